"""What is said to have no effect has none on what JAX derives, and what is not said has one."""

import re
import warnings
from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import laws
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from programs import Case
from short_runs import short

import jaxviz

P = jax.checkpoint_policies
W, X = jnp.full((16, 16), 0.1), jnp.ones((8, 16))
WS = jnp.full((4, 16, 16), 0.1)


# --- programs ---------------------------------------------------------------------------------------------------------


def around(body, policy=None, **options):
    """The sum of a function in a checkpoint."""
    return lambda w, x: jnp.sum(jax.checkpoint(body, policy=policy, **options)(w, x))


def named(w, x):
    return jnp.sin(checkpoint_name(jnp.tanh(x @ w), "h") @ w)


def to_host(*names):
    return P.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=list(names), offload_src="device",
        offload_dst="pinned_host",
    )  # fmt: skip


def scanned(body, ws, x):
    return jnp.sum(lax.scan(lambda x, w: (body(w, x), None), x, ws)[0])


def elementwise(a):
    return jnp.sin(jnp.tanh(a))


SAYS = {
    "no_dot": (lambda w, x: jnp.sum(jax.checkpoint(elementwise, policy=P.dots_saveable)(x @ w)),
               ["the policy of `elementwise` changes nothing"]),
    "no_dot_in_a_scan": (partial(scanned, lambda w, x: jax.checkpoint(elementwise, policy=P.dots_saveable)(x @ w)),
                         ["the policy of `elementwise` changes nothing"]),
    "no_tangent": (lambda w, x: jnp.sum(jax.checkpoint(elementwise)(x) @ w),
                   ["the checkpoint of `elementwise` saves no bytes"]),
    "saves_all": (around(lambda w, x: jnp.sin(x @ w), P.everything_saveable),
                  ["the checkpoint of `<lambda>` saves no bytes"]),
    "not_read": (around(lambda w, x: jnp.sin(checkpoint_name(x @ w, "h") + 1.0) @ w, P.save_only_these_names("h")), []),
    "named_but_not_read": (
        lambda w, x: jnp.sum(jax.checkpoint(
            lambda w, x: jnp.sin(jnp.exp(checkpoint_name(x @ w, "a"))) + checkpoint_name(x @ w, "b"),
            policy=P.save_only_these_names("a", "b"))(w, x)),
        ["the policy of `<lambda>` lists 'b' without effect"]),
    "excluded": (around(named, P.save_any_names_but_these("h")),
                 ["the policy of `named` lists 'h' without effect"]),
    "misspelt": (around(named, P.save_only_these_names("j")),
                 ["the policy of `named` lists 'j', which nothing in it has",
                  "the policy of `named` does not list 'h'"]),
    "nobody_lists_it": (around(named, P.dots_saveable), ["no policy lists 'h'"]),
    "no_checkpoint": (lambda w, x: jnp.sum(jnp.sin(checkpoint_name(x @ w, "h"))), ["no policy lists 'h'"]),
    # JAX saves the result of exp for its derivative, and the same under the name for that of the product.
    "no_checkpoint_but_saved_twice": (lambda w, x: jnp.sum(jnp.sin(checkpoint_name(jnp.exp(x @ w), "h") @ w)), []),
    "a_function_asks_for_it": (around(named, lambda p, *_, **k: k.get("name") == "h"), []),
    "listed": (around(named, P.save_only_these_names("h")), []),
    "in_another": (around(lambda w, x: jnp.sin(jax.checkpoint(lambda a: jnp.tanh(a @ w))(x))),
                   ["the checkpoint of `<lambda>` inside that of `<lambda>` does not lower the peak"]),
    "lowers_the_peak_of_another": (
        lambda w, x: jnp.sum(jax.checkpoint(lambda ws, x: scanned(jax.checkpoint(
            lambda w, x: elementwise(elementwise(elementwise(x @ w)))), ws, x))(jnp.stack([w] * 4), x)),
        ["the checkpoint of `<lambda>` leaves the peak where it was"]),
    "offloaded": (around(named, to_host("h")), ["the cpu offloads nothing of `named`"]),
    "offload_misspelt": (around(named, to_host("j")),
                         ["the policy of `named` lists 'j', which nothing in it has",
                          "the policy of `named` does not list 'h'"]),
    "donated_inside": (lambda w, x: jnp.sum(jax.jit(lambda a: jax.jit(jnp.tanh, donate_argnums=0)(a))(x @ w)),
                       ["`tanh` donates `x` inside of another program"]),
    "useful": (around(lambda w, x: elementwise(x @ w)), []),
    "without_barriers": (around(lambda w, x: elementwise(x @ w), prevent_cse=False), []),
}  # fmt: skip
ARGS = {"no_dot_in_a_scan": (WS, X)}


@pytest.mark.parametrize("name", SAYS)
def test_what_has_no_effect_is_said(name):
    f, says = SAYS[name]
    found = jaxviz.policies(f, *ARGS.get(name, (W, X))).without_effect
    assert [n.short for n in found] == says
    assert all(n.location.file == __file__ for n in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAYS)
def test_what_changes_nothing_changes_nothing_in_jax(name):
    f, _ = SAYS[name]
    laws.what_changes_nothing_changes_nothing_in_jax(Case(name, f, ARGS.get(name, (W, X))))


def lowered(f, *args, **options):
    return jax.jit(f, **options).lower(*args).as_text()


def test_an_offload_that_does_not_happen_is_left_out_by_jax():
    """The compiled gradient has nothing in the host's memory, and takes as much as if the value were saved."""
    gradients = [jax.grad(around(named, policy)) for policy in (to_host("h"), P.save_only_these_names("h"))]
    compiled = [jax.jit(g).lower(W, X).compile() for g in gradients]
    memory = [c.memory_analysis() for c in compiled]
    assert memory[0].host_temp_size_in_bytes == 0
    assert "S(5)" not in compiled[0].as_text()
    assert memory[0].temp_size_in_bytes == memory[1].temp_size_in_bytes
    (found,) = jaxviz.policies(around(named, to_host("h")), W, X).without_effect
    assert found.nbytes == X.nbytes


def test_a_donation_inside_of_a_program_is_left_out_by_jax():
    inner = lambda **options: jax.jit(lambda x: jnp.tanh(x), **options)
    f = lambda donating: lambda w, x: jnp.sum(donating(x @ w))
    whole = [jax.grad(jax.jit(f(inner(**options)))) for options in ({"donate_argnums": 0}, {})]
    assert lowered(whole[0], W, X) == lowered(whole[1], W, X)
    (found,) = jaxviz.policies(jax.jit(f(inner(donate_argnums=0))), W, X).without_effect
    assert (found.rule, found.nbytes) == ("donation-without-effect", X.nbytes)


@pytest.mark.parametrize("donated", [(0,), (1,), (0, 1)])
def test_donations_that_are_not_reused_are_those_that_jax_warns_about(donated):
    loss = lambda w, x: jnp.sum(jnp.sin(x @ w))
    step = jax.jit(lambda w, x: w - jax.grad(loss)(w, x), donate_argnums=donated)
    found = jaxviz.policies(step, W, X).without_effect
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        step.lower(W, X).compile()
    assert [(n.short, n.nbytes) for n in found] == [("`<lambda>` donates `x` without effect", X.nbytes)] * (
        1 in donated
    )
    assert ["float32[8,16]" in str(w.message) for w in given if "donated" in str(w.message)] == [True] * len(found)


def calls_twice(w, x, **options):
    f = jax.checkpoint(lambda w, x: jnp.sin(jnp.tanh(x @ w) @ w), **options)
    return jnp.sum(f(w, f(w, x)))


def in_a_loop(ws, x, **options):
    return scanned(jax.checkpoint(lambda w, x: jnp.sin(jnp.tanh(x @ w) @ w), **options), ws, x)


COMPILED = {
    "calls": (calls_twice, (W, X), {}),
    "calls_that_xla_may_merge": (calls_twice, (W, X), {"prevent_cse": False}),
    "loop": (in_a_loop, (WS, X), {}),
    "loop_without_barriers": (in_a_loop, (WS, X), {"prevent_cse": False}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", short(list(COMPILED), 2))
def test_what_xla_compiles_to_the_same_has_no_effect(name, monkeypatch):
    """Compiled by JAX from the function as it would be written without it, the gradient has as many operations and as
    many bytes of temporaries."""
    f, args, options = COMPILED[name]
    given, flipped = partial(f, **options), partial(f, prevent_cse=not options.get("prevent_cse", True))
    assert jaxviz.policies(given, *args).without_effect == ()
    found = [n.short for n in jaxviz.policies(given, *args, of="compiled").without_effect]

    def compiled(fun):
        made = jax.jit(jax.grad(fun)).lower(*args).compile()
        return Counter(re.findall(r" = \S+ ([a-z-]+)\(", made.as_text())), made.memory_analysis().temp_size_in_bytes

    whole = compiled(given)
    says = ["prevent_cse of the checkpoint of `<lambda>` has no effect on cpu"] * (compiled(flipped) == whole)
    monkeypatch.setattr(jax, "checkpoint", lambda fun, **_: fun)
    if compiled(given) == whole:
        says = ["XLA undoes the checkpoint of `<lambda>` on cpu"]
    assert found == says
    assert bool(found) or name.startswith("calls")


def test_only_what_there_is_can_be_compiled():
    with pytest.raises(ValueError, match="of must be 'modelled' or 'compiled'; got 'xla'"):
        jaxviz.policies(calls_twice, W, X, of="xla")
