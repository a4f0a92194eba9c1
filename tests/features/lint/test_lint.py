"""Advice: for each rule a program with the advice, what JAX saves after following it, and programs without advice."""

import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transcripts
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import jaxviz
from benchmarks import models
from benchmarks.remat import held
from jaxviz.features.lint import checks as lint_checks

POLICIES = jax.checkpoint_policies
KEY = jax.random.key(0)
X = jnp.linspace(-1.0, 1.0, 64 * 64).reshape(64, 64)
W = X * 0.1
H = jnp.bfloat16(X)
BIG = np.ones((512, 512), np.float32)
SMALL = np.ones((256, 512), np.float32)


# --- programs ---------------------------------------------------------------------------------------------------------


def feed_forward(act, w, x):
    return jnp.sum(act(x @ w) @ w)


def dropout(key, x):
    keep = jax.random.bernoulli(key, 0.5, x.shape)
    return jnp.where(keep, x / 0.5, 0.0)


def normalize(x):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-5)


def softmax(scores):
    scores = jnp.where(jnp.tril(jnp.ones((64, 64), bool)), scores * 0.5, -1e9)
    weights = jnp.exp(scores - lax.stop_gradient(scores.max(-1, keepdims=True)))
    return weights / weights.sum(-1, keepdims=True)


def attend(weights_of, w, x):
    scores = x @ w
    return jnp.sum(weights_of(scores) @ w)


def attend_inline(w, x):
    scores = x @ w @ w
    scores = jnp.where(jnp.tril(jnp.ones((64, 64), bool)), scores * 0.5, -1e9)
    weights = jnp.exp(scores - lax.stop_gradient(scores.max(-1, keepdims=True)))
    weights = weights / weights.sum(-1, keepdims=True)
    return jnp.sum(weights @ w)


def growth(x):
    return jnp.tanh(jnp.exp(x))


def stretched(h):
    h = jnp.exp(h) * h
    return jnp.tanh(h) * h


def stretched_inline(w, x):
    h = x @ w
    h = jnp.exp(h) * h
    h = jnp.tanh(h) * h @ w
    return jnp.sum(h @ w)


def rows_taken(take, w, ids):
    return jnp.sum(jax.vmap(take, (None, 0))(w @ w, ids))


def in_a_loop_and_after_it(w, x):
    for _ in range(3):
        y = jnp.exp(x) * x  # right after the last line of the previous iteration
        x = y @ w
        x = jax.nn.silu(x) * x
    x = jnp.tanh(x) * x
    return jnp.sum(x @ w)


def clip(h):
    return jnp.where((h > 0) & (h < 1), h, 0.0)


def clipped_by(clip, w, x):
    h = x @ w
    return jnp.sum(h * clip(h) @ w)


def in_loop(act, w, x):
    def cell(h, _):
        return act(h @ w), None

    return jnp.sum(lax.scan(cell, x, None, length=5)[0] @ w)


def unrolled(act, w, x):
    for _ in range(3):
        x = act(x)
        x = x @ w
    return jnp.sum(x)


def named(policy, w, x):
    def f(w, x):
        h = checkpoint_name(jnp.sin(x @ w), "hidden")
        return jnp.sum(jnp.sin(h @ w))

    return jax.checkpoint(f, policy=policy)(w, x)


def elementwise(policy, w, x):
    return jnp.sum(jax.checkpoint(lambda a: jnp.sin(jnp.tanh(a)), policy=policy)(x @ w))


def calling(f, w, x):
    return jnp.sum(jax.jit(lambda a: f(a) * 2.0)(x @ w))


def sgd(w, x):
    return w - jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))(w)


def update(step, w, x):
    return step(w, x)


def named_outside(w, x):
    h = checkpoint_name(jnp.sin(x @ w), "hidden")
    f = jax.checkpoint(lambda w, h: jnp.sum(jnp.sin(h @ w)), policy=POLICIES.save_only_these_names("hidden"))
    return f(w, h)


def shared_policy(names, w, x):
    policy = POLICIES.save_only_these_names(*names)
    first = jax.checkpoint(lambda x: jnp.sin(checkpoint_name(jnp.sin(x @ w), "a")), policy=policy)
    second = jax.checkpoint(lambda x: jnp.sin(checkpoint_name(jnp.sin(x @ w), "b")), policy=policy)
    return jnp.sum(second(first(x)))


def scaled_twice(scale, s, x):
    h = jnp.sin(x)
    return jnp.sum(scale(s, h)) + jnp.sum(h * s.astype(jnp.bfloat16)).astype(jnp.float32)


def scaled_in_loop(scale, s, x):
    def body(h, _):
        return scale(s, h).astype(jnp.bfloat16), None

    return jnp.sum(lax.scan(body, x, None, length=3)[0].astype(jnp.float32))


def carried(w, x):
    @jax.checkpoint
    def body(carry, _):
        x, w = carry
        return (jnp.tanh(x * jnp.exp(w)), w), None

    return jnp.sum(lax.scan(body, (x, w), None, length=5)[0][0])


def changed(w, x):
    @jax.checkpoint
    def body(carry, _):
        x, w = carry
        return (jnp.tanh(x * jnp.exp(w)), w * 0.5), None

    return jnp.sum(lax.scan(body, (x, w), None, length=5)[0][0])


def closed_over(w, x):
    @jax.checkpoint
    def body(x, _):
        return jnp.tanh(x * jnp.exp(w)), None

    return jnp.sum(lax.scan(body, x, None, length=5)[0])


def branching(other, w):
    body = lambda x, i: (lax.cond(i > 1, lambda x: jnp.sin(x) * w, other, x), None)
    return jnp.sum(lax.scan(body, w, jnp.arange(3))[0])


def recomputed_branching(other, w):
    choose = jax.checkpoint(lambda x, i: lax.cond(i > 1, lambda x: jnp.sin(x) * w, other, x))
    return jnp.sum(lax.scan(lambda x, i: (choose(x, i), None), w, jnp.arange(3))[0])


def alike(w):
    body = lambda x, i: (lax.cond(i > 1, jnp.sin, jnp.cos, x), None)
    return jnp.sum(lax.scan(body, w, jnp.arange(3))[0])


def custom(fwd, bwd):
    f = jax.custom_vjp(lambda x, y: jnp.sin(x) * y)
    f.defvjp(fwd, bwd)
    return lambda x: jnp.sum(f(x, X))


def two_results(x):
    y = jnp.sin(x)
    return y, y


def squares(results, x):
    y, z = results(x)
    return jnp.sum(y * y + z * z)


IDS = jnp.arange(64) % 7
gram = lambda y: y @ y.T
keeps_both = lambda x, y: (jnp.sin(x) * y, (jnp.cos(x), jnp.exp(y)))
keeps_one = lambda x, y: (jnp.sin(x) * y, (jnp.cos(x),))
reads_first = lambda saved, ct: (saved[0] * ct, None)
reads_both = lambda saved, ct: (saved[0] * ct * saved[1], None)
embed = lambda rows, w: jnp.sum(jnp.sin(rows(IDS, w)))
rows_by_product = lambda ids, w: jax.nn.one_hot(ids, 64) @ w
of_label = lambda chosen, x: jnp.sum(chosen(jnp.exp(x)))
compared = lambda y: jnp.sum((IDS[:, None] == jnp.arange(64)).astype(y.dtype) * y, -1)
indexed = lambda y: jnp.take_along_axis(y, IDS[:, None], -1)
scaled = lambda scale, s, x: jnp.sum(scale(s, jnp.sin(x)))
masked = lambda w, x, mask: jnp.sum(jnp.where(mask, x @ w, 0.0) @ w)


def embedded_in_loop(rows, w, ids):
    return jnp.sum(lax.scan(lambda total, i: (total + jnp.sin(rows(i, w)), None), jnp.zeros((4, 64)), ids)[0])


@dataclass(frozen=True)
class Case:
    """A program with a rule's advice, and the same with the advice followed, or if there is no advice, a similar one.

    Args:
      exact: whether the bytes at stake are those that JAX no longer saves with the advice followed; for names and
      constants they are not, and a cond's dummies disappear together with other values.
      words: words that the advice contains.
    """

    rule: str
    name: str
    before: Callable[..., Any]
    after: Callable[..., Any]
    args: tuple[Any, ...]
    exact: bool = True
    words: tuple[str, ...] = ()

    def __str__(self):
        return f"{self.rule}-{self.name}"


WX = (W, X)
NARROW = (jnp.ones((64, 1)), H)
cast_and_scale = lambda s, h: h.astype(jnp.float32) * s


def layers_scanned(wrap, ws, x):
    step = lambda x, w: (x + jnp.sin(jnp.tanh(x @ w)) * jnp.tanh(x @ w), None)
    return jnp.sum(jax.lax.scan(wrap(step), x, ws)[0])


def a_layer(x, w):
    h = jnp.tanh(x @ w)
    return x + jnp.sin(h) * h


def layers_unrolled(wrap, ws, x):
    for i in range(8):
        x = wrap(a_layer)(x, ws[i])
    return jnp.sum(x)


def all_at_once(around, inside, ws, x):
    step = inside(lambda x, w: (a_layer(x, w), None))
    return jnp.sum(around(lambda ws, x: jax.lax.scan(step, x, ws)[0])(ws, x))


LAYERS = (jnp.zeros((8, 32, 32)), jnp.ones((512, 32)))


def microbatches(sums_up, w, xs):
    """The gradient of stacked layers, added up over microbatches."""
    loss = lambda w, x: jnp.sum(lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, w)[0])
    return sums_up(loss, w, xs)


def in_carry(loss, w, xs):
    return lax.scan(lambda total, x: (total + jax.grad(loss)(w, x), None), jnp.zeros_like(w), xs)[0]


def in_reference(loss, w, xs):
    total = jax.new_ref(jnp.zeros_like(w))
    add = lambda _, x: (None, jax.vjp(lambda w: loss(w, x), w)[1].with_refs(total)(jnp.float32(1.0)))
    lax.scan(add, None, xs)
    return jax.freeze(total)


MICROBATCHES = (jnp.zeros((8, 32, 32)), jnp.ones((3, 4, 32)))


def ranked(choose, w, x):
    return jnp.sum(choose(jnp.abs(w) @ w.T) @ jnp.sin(x))


def rows_by_index(scores):
    return jax.nn.one_hot(jnp.argmax(scores, -1), scores.shape[-1])


CASES = [
    Case("dead-gradient", "argmax", partial(ranked, rows_by_index), partial(ranked, jax.nn.softmax), WX, exact=False,
         words=("The gradient in `w` is zero: its only path to the loss ends at `jnp.argmax(scores, -1)`",
                "jax.nn.softmax")),
    Case("sum-in-carry", "layers", partial(microbatches, in_carry), partial(microbatches, in_reference), MICROBATCHES,
         exact=False, words=("The loop adds up the gradient of `<lambda>` in `w`", "pull.with_refs(total)")),
    Case("layer-checkpoint", "scan", partial(layers_scanned, lambda f: f), partial(layers_scanned, jax.checkpoint),
         LAYERS,
         words=("Everything that its iterations compute",
                "write `jax.checkpoint(wrap(step), prevent_cse=False)` for `wrap(step)`", "more work")),
    Case("layer-checkpoint", "calls", partial(layers_unrolled, lambda f: f), partial(layers_unrolled, jax.checkpoint),
         LAYERS,
         words=("8 calls of a_layer", "write `jax.checkpoint(wrap(a_layer))` for `wrap(a_layer)`")),
    Case("cheap-recompute", "gelu", partial(feed_forward, jax.nn.gelu),
         partial(feed_forward, jax.checkpoint(jax.nn.gelu)), WX,
         words=("`gelu`", "call `gelu` through jax.checkpoint")),
    Case("cheap-recompute", "dropout", partial(feed_forward, partial(dropout, KEY)),
         partial(feed_forward, jax.checkpoint(partial(dropout, KEY))), WX, words=("wrap dropout in jax.checkpoint",)),
    Case("cheap-recompute", "function", partial(feed_forward, normalize),
         partial(feed_forward, jax.checkpoint(normalize)), WX,
         words=("wrap normalize in jax.checkpoint",)),
    Case("cheap-recompute", "argument", lambda x, w: jnp.sum(growth(x) @ w),
         lambda x, w: jnp.sum(jax.checkpoint(growth)(x) @ w), (X, W), exact=False,
         words=("could be recomputed from values that are in memory anyway",)),
    Case("cheap-recompute", "lines", attend_inline, lambda w, x: attend(jax.checkpoint(softmax), w, x @ w), WX,
         words=("into a separate function", "`x @ w @ w` (test_lint.py:")),
    Case("cheap-recompute", "part_of_lines", stretched_inline,
         lambda w, x: jnp.sum(jax.checkpoint(stretched)(x @ w) @ w @ w), WX,
         words=("from `jnp.exp(h)` to `jnp.tanh(h) * h` of lines",)),
    Case("cheap-recompute", "index", partial(rows_taken, lambda w, ids: w[ids]),
         partial(rows_taken, jax.checkpoint(lambda w, ids: w[ids])), (X, jnp.arange(2048) % 64), exact=False,
         words=("put `w[ids]` of line",)),
    Case("cheap-recompute", "mask", lambda w, x: clipped_by(clip, w, x), lambda w,
         x: clipped_by(jax.checkpoint(clip), w, x), WX),
    Case("cheap-recompute", "scan", partial(in_loop, normalize), partial(in_loop, jax.checkpoint(normalize)), WX),
    Case("cheap-recompute", "python_loop", partial(unrolled, jax.nn.gelu),
         partial(unrolled, jax.checkpoint(jax.nn.gelu)), WX),
    Case("checkpoint-without-effect", "product", jax.checkpoint(lambda w, x: jnp.sum(x @ w)), lambda w,
         x: jnp.sum(x @ w), WX,
         words=("saves no bytes", "recomputes nothing")),
    Case("checkpoint-without-effect", "policy",
         jax.checkpoint(partial(feed_forward, jnp.sin), policy=POLICIES.everything_saveable),
         partial(feed_forward, jnp.sin), WX, words=("everything_saveable",)),
    Case("checkpoint-without-effect", "larger_inputs", lambda w,
         x: jnp.sum(jax.checkpoint(lambda a, b: jnp.sin(a + b))(x @ w, w @ x) @ w),
         lambda w, x: jnp.sum(jnp.sin(x @ w + w @ x) @ w), WX, words=("16.0 KiB more than without it", "recomputes")),
    Case("checkpoint-without-effect", "around_a_loop", partial(all_at_once, jax.checkpoint, lambda f: f),
         partial(all_at_once, lambda f: f, jax.checkpoint), LAYERS, exact=False,
         words=("saves 2.5 MiB less between the passes, but leaves the peak where it was",
                "put it around the body of the loop")),
    Case("checkpoint-without-effect", "around_a_loop_of_checkpoints",
         partial(all_at_once, jax.checkpoint, jax.checkpoint),
         partial(all_at_once, lambda f: f, jax.checkpoint), LAYERS, exact=False,
         words=("remove it: there is one inside of its loop",)),
    Case("policy-without-effect", "names_ignored", partial(named, POLICIES.save_anything_except_these_names("hidden")),
         partial(named, POLICIES.save_any_names_but_these("other")), WX, exact=False,
         words=("JAX ignores the names", "saves every value that it is asked about, 'hidden' too",
                "save_any_names_but_these")),
    Case("policy-without-effect", "no_dots", partial(elementwise, POLICIES.dots_saveable),
         partial(elementwise, None), WX, words=("changes nothing", "leave the policy out")),
    Case("donation-without-effect", "inside", partial(calling, jax.jit(jnp.tanh, donate_argnums=0)),
         partial(calling, jax.jit(jnp.tanh)), WX, exact=False, words=("only the outermost jax.jit donates",)),
    Case("donation-without-effect", "no_result", partial(update, jax.jit(sgd, donate_argnums=(0, 1))),
         partial(update, jax.jit(sgd, donate_argnums=0)), WX, exact=False,
         words=("`x`, but no result reuses its memory", "do not donate it")),
    Case("unknown-name", "misspelt", partial(named, POLICIES.save_only_these_names("hiden")),
         partial(named, POLICIES.save_only_these_names("hidden")), WX, exact=False, words=("'hiden'", "list 'hidden'")),
    Case("unknown-name", "outside", named_outside, partial(named, POLICIES.save_only_these_names("hidden")), WX,
         exact=False,
         words=("outside of the checkpoint",)),
    Case("unknown-name", "of_several", partial(shared_policy, ["a", "b", "c"]), partial(shared_policy, ["a", "b"]), WX,
         exact=False,
         words=("'c'", "names defined there: 'a', 'b'")),
    Case("unused-name", "not_listed", partial(named, POLICIES.save_only_these_names("other")),
         partial(named, POLICIES.save_only_these_names("hidden")), WX, exact=False, words=("'hidden'",)),
    Case("unused-name", "one_of_two", partial(shared_policy, ["a"]), partial(shared_policy, ["a", "b"]), WX,
         exact=False,
         words=("'b'", "list it in the policy")),
    Case("unused-name", "both", partial(shared_policy, ["c"]), partial(shared_policy, ["a", "b"]), WX, exact=False,
         words=("'a', 'b'", "list them in the policy")),
    Case("upcast-kept", "alone", partial(scaled, cast_and_scale), partial(scaled, jax.checkpoint(cast_and_scale)),
         NARROW,
         words=("f32[64,64] of bf16[64,64]",)),
    Case("upcast-kept", "beside_the_narrow_one", partial(scaled_twice, cast_and_scale),
         partial(scaled_twice, jax.checkpoint(cast_and_scale)), NARROW, words=("which is saved too",)),
    Case("upcast-kept", "in_scan", partial(scaled_in_loop, cast_and_scale),
         partial(scaled_in_loop, jax.checkpoint(cast_and_scale)),
         NARROW, words=("3 × f32[64,64] of bf16[64,64]",)),
    Case("type-widened", "scale", lambda w, s, x: jnp.sum(jnp.sin(x @ w * s) @ w),
         lambda w, s, x: jnp.sum(jnp.sin((x @ w * s).astype(x.dtype)) @ w), (H, X, H), exact=False,
         words=("`x @ w * s` is float32, since `s` is",)),
    Case("narrow-sum", "bias", lambda b, x: jnp.sum(jnp.sin(x + b)),
         lambda b, x: jnp.sum(jnp.sin((x + b.astype(jnp.float32)).astype(x.dtype))),
         (H[0], jnp.zeros((256, 64), jnp.bfloat16)), exact=False, words=("256 terms in bfloat16",)),
    Case("narrow-integers", "positions", lambda x: jnp.sum(jnp.sin(x * (jnp.arange(300).astype(x.dtype) * 0.1))),
         lambda x: jnp.sum(jnp.sin(x * (jnp.arange(300) * 0.1).astype(x.dtype))), (jnp.ones(300, jnp.bfloat16),),
         exact=False, words=("up to 299 in bfloat16", "up to 256 only")),
    Case("one-hot-kept", "embedding", partial(embed, rows_by_product), partial(embed, lambda ids, w: w[ids]), (W,),
         words=("`jax.nn.one_hot(ids, 64)`",)),
    Case("one-hot-kept", "label", partial(of_label, compared), partial(of_label, indexed), (X,),
         words=("take_along_axis",)),
    Case("one-hot-kept", "scan", partial(embedded_in_loop, rows_by_product),
         partial(embedded_in_loop, lambda ids, w: w[ids]),
         (W, IDS.reshape(16, 4))),
    Case("scan-stacks-invariant", "carried", carried, closed_over, WX),
    Case("captured-constant", "large", lambda x: jnp.sum(x * BIG), lambda x: jnp.sum(x * x), (BIG,), exact=False,
         words=("f32[512,512]",)),
    Case("cond-dummy", "in_scan", partial(branching, lambda x: x + 1.0),
         partial(recomputed_branching, lambda x: x + 1.0), (W,),
         exact=False, words=("branch", "jax.checkpoint around the cond")),
    Case("unread-residual", "custom", custom(keeps_both, reads_first), custom(keeps_one, reads_first), (X,),
         words=("exp",)),
    Case("kept-twice", "transposed", lambda x: jnp.sum(gram(jnp.sin(x))),
         lambda x: jnp.sum(jax.checkpoint(gram)(jnp.sin(x))), (X,)),
    Case("forced-by-jit", "results", partial(squares, jax.jit(two_results)), partial(squares, two_results), (X,)),
]  # fmt: skip


def saved(f, args):
    """The bytes that JAX saves for the gradient of a function, without its arguments."""
    kept = jax.tree.leaves(jax.vjp(lambda x: f(x, *args[1:]), args[0])[1])
    return sum(x.nbytes for x in kept if not any(x is a for a in jax.tree.leaves(args)))


def advice(f, *args, rule, **options):
    return [a for a in jaxviz.lint(f, *args, **options) if a.rule == rule]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_there_is_advice_and_following_it_is_worth_what_it_says(case):
    (a,) = advice(case.before, *case.args, rule=case.rule)
    assert not advice(case.after, *case.args, rule=case.rule)
    for word in case.words:
        assert word in f"{a.text} {a.fix}", str(a)
    before, after = held(case.before, case.args), held(case.after, case.args)
    if case.exact:
        assert before - after == a.nbytes + a.unread_nbytes
    assert a.location.file == __file__
    assert all(r.location.file == __file__ for r in a.residuals)


NONE = {
    "dead-gradient": [
        ("on_purpose", lambda w, x: jnp.sum(lax.stop_gradient(w) * x), WX),
        ("at_these_values", lambda w, x: jnp.sum(jax.nn.relu(w * x - 1e9)), WX),
        ("on_another_path", lambda w, x: jnp.sum(w * (w > 0)), WX),
    ],
    "layer-checkpoint": [
        ("nothing_repeats", partial(feed_forward, jax.nn.gelu), WX),
        ("arguments_are_all", lambda w, x: jnp.sum(x @ w), WX),
        ("there_is_one", partial(layers_scanned, jax.checkpoint), LAYERS),
    ],
    "cheap-recompute": [
        ("output_kept_anyway", partial(feed_forward, jnp.exp), WX),
        ("input_instead", partial(feed_forward, jnp.sin), WX),
        ("costly", lambda w, x: jnp.sum((x @ w @ w @ w) ** 2 @ w), WX),
        ("mask_given", masked, (W, X, X > 0)),
        ("in_a_costly_call", lambda q: jnp.sum(jax.nn.dot_product_attention(q, q, q)), (X.reshape(1, 64, 4, 16),)),
        ("checkpointed", jax.checkpoint(partial(feed_forward, jax.nn.gelu)), WX),
        ("argument", lambda x, w: jnp.sum(x * w), WX),
        ("tanh_in_python_loop", partial(unrolled, jnp.exp), WX),
    ],
    "checkpoint-without-effect": [
        ("saves", jax.checkpoint(partial(feed_forward, jax.nn.gelu)), WX),
        ("in_another", jax.checkpoint(lambda w, x: jnp.sum(jnp.sin(jax.checkpoint(lambda a: jnp.sin(a @ w))(x)))), WX),
        ("in_scan", partial(in_loop, jax.checkpoint(normalize)), WX),
        ("in_the_body", partial(all_at_once, lambda f: f, jax.checkpoint), LAYERS),
        ("one_of_its_calls", partial(unrolled, jax.checkpoint(jax.nn.gelu)), WX),
    ],
    "policy-without-effect": [
        ("names", partial(named, POLICIES.save_only_these_names("hidden")), WX),
        ("everything", partial(named, POLICIES.everything_saveable), WX),
        ("a_function", partial(named, lambda *_, **__: True), WX),
    ],
    "sum-in-carry": [("in_place", partial(microbatches, in_reference), MICROBATCHES)],
    "donation-without-effect": [
        ("reused", partial(update, jax.jit(sgd, donate_argnums=0)), WX),
        ("outermost", jax.jit(lambda w, x: jnp.sum(jnp.sin(x @ w)), donate_argnums=1), WX),
    ],
    "unknown-name": [("other_policies", jax.checkpoint(partial(feed_forward, jnp.sin), policy=POLICIES.dots_saveable),
                      WX)],
    "unused-name": [
        ("no_names_policy", partial(named, POLICIES.dots_saveable), WX),
        ("all_but", partial(named, POLICIES.save_any_names_but_these("other")), WX),
        ("no_checkpoint", lambda w, x: jnp.sum(checkpoint_name(jnp.sin(x @ w), "hidden")), WX),
    ],
    "upcast-kept": [
        ("wide", partial(scaled, cast_and_scale), (jnp.ones((64, 1)), X)),
        ("converted_later", lambda s, h: jnp.sum((jnp.sin(h) * s).astype(jnp.float32)),
         (jnp.ones((64, 1), jnp.bfloat16), H)),
        ("converted_down", lambda x: jnp.sum(jnp.sin(x).astype(jnp.bfloat16) ** 2), (X,)),
    ],
    "type-widened": [("converted_back", lambda w, s, x: jnp.sum((x * s).astype(x.dtype) @ w), (H, X, H))],
    "narrow-sum": [("few", lambda b, x: jnp.sum(jnp.sin(x + b)), (H[0], H))],
    "narrow-integers": [("few", lambda x: jnp.sum(x * jnp.arange(64).astype(x.dtype)), (H,))],
    "one-hot-kept": [
        ("identity", lambda x: jnp.sum((jnp.arange(64)[:, None] == jnp.arange(64)).astype(x.dtype) * jnp.sin(x)), (X,)),
        ("mask", lambda x: jnp.sum(jnp.where(IDS[:, None] == jnp.arange(64), jnp.sin(x), 0.0)), (X,)),
        ("checkpointed", partial(embed, jax.checkpoint(rows_by_product)), (W,)),
    ],
    "scan-stacks-invariant": [("changes", changed, WX)],
    "captured-constant": [("small", lambda x: jnp.sum(x * SMALL), (SMALL,)),
                          ("argument", lambda x, y: jnp.sum(x * y), (BIG, BIG))],
    "cond-dummy": [("alike", alike, (W,))],
    "unread-residual": [("read", custom(keeps_both, reads_both), (X,)),
                        ("select", lambda x: jnp.sum(jnp.where(x > 0, x, 0.0)), (X,))],
    "kept-twice": [("made_twice", lambda x: jnp.sum(jnp.sin(x) @ jnp.sin(x)), (X,)),
                   ("slice", lambda x: jnp.sum(x[:32] @ x.T), (X,))],
    "forced-by-jit": [("numbers", lambda x: jnp.sum(jnp.sin(x) * 2.0 * 3.0), (X,)),
                      ("jit", jax.jit(partial(feed_forward, jnp.sin)), WX)],
}  # fmt: skip


@pytest.mark.parametrize(("rule", "f", "args"), [
    pytest.param(rule, f, args, id=f"{rule}-{name}") for rule, cases in NONE.items() for name, f, args in cases
])  # fmt: skip
def test_there_is_none(rule, f, args):
    assert not advice(f, *args, rule=rule)


def test_what_jax_passes_to_its_own_jitted_functions_is_not_forced_by_the_user():
    padded = lambda x: jnp.sum(jnp.fft.irfft(jnp.fft.rfft(x * 2.0, n=128) * 3, n=128)[:5])
    assert jaxviz.residuals(padded, X).forced
    assert not advice(padded, X, rule="forced-by-jit", min_nbytes=1)


def test_lines_in_a_loop_and_after_it_are_apart():
    start = in_a_loop_and_after_it.__code__.co_firstlineno
    found = {a.location.line - start: a.count for a in advice(in_a_loop_and_after_it, *WX, rule="cheap-recompute")}
    assert found == {2: 2, 4: 3, 5: 1}  # the first time, x has no tangent


def test_the_dummies_of_a_cond_go_if_it_is_computed_again():
    before, after = partial(branching, lambda x: x + 1.0), partial(recomputed_branching, lambda x: x + 1.0)
    (a,) = advice(before, W, rule="cond-dummy")
    assert a.nbytes == jaxviz.residuals(before, W).dummy_nbytes
    assert held(before, (W,)) - held(after, (W,)) > 0
    assert jaxviz.residuals(after, W).dummy_nbytes == 0


def test_every_rule_is_found_by_something_documented_and_tested():
    assert set(jaxviz.LINT_RULES) == set(lint_checks.FIND) == {c.rule for c in CASES} == set(NONE)
    page = (pathlib.Path(__file__).parents[3] / "docs" / "lint.md").read_text()
    for rule in jaxviz.LINT_RULES.values():
        assert f"\n## {rule.id}\n\n" in page
        section = page.split(f"\n## {rule.id}\n\n")[1].split("\n## ")[0]
        assert rule.summary.lower() in section.replace("`", "").lower()
        assert "```python" in section
        assert all(len(line) <= 100 for line in str(rule).splitlines())


# --- the report -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_following_all_of_it(monkeypatch):
    """If the pieces are about different lines, their savings add up."""
    report = jaxviz.lint(models.transformer_loss, models.transformer_params(3), jnp.arange(16))
    params, tokens = args = models.transformer_params(3), jnp.arange(16)
    before = saved(models.transformer_loss, args)
    monkeypatch.setattr(models, "layer_norm", jax.checkpoint(models.layer_norm))
    monkeypatch.setattr(jax.nn, "gelu", jax.checkpoint(jax.nn.gelu))
    after = saved(models.transformer_loss, args)
    assert before - after == report[0].nbytes + report[1].nbytes
    left = jaxviz.lint(models.transformer_loss, params, tokens)
    assert [a.location.line for a in left] == [report[2].location.line]


def test_a_rule_that_fails_is_heard_of(monkeypatch):
    def fails(subject):
        raise ZeroDivisionError("a mistake")
        yield

    monkeypatch.setitem(lint_checks.FIND, "kept-twice", fails)
    with pytest.raises(ZeroDivisionError, match="a mistake") as caught:
        jaxviz.lint(lambda x: jnp.sum(jnp.sin(x)), X)
    assert "in the rule 'kept-twice' of jaxviz.lint" in caught.value.__notes__


@pytest.mark.slow
@transcripts.of("lint")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)
