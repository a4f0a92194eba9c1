"""Puzzles on checkpoints and policies: around one call, by name, in the bodies of loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from jaxviz.features.cost.report import cost
from jaxviz.teach.predict import predict
from jaxviz.teach.puzzles import records
from jaxviz.teach.puzzles.measures import KEPT, PEAK
from jaxviz.teach.puzzles.puzzle import Puzzle, normal, typed

# --- one call ---------------------------------------------------------------------------------------------------------


def block(p, x):
    return x + jax.nn.gelu(x @ p["widen"]) @ p["narrow"]


_saved_products = jax.checkpoint(block, policy=jax.checkpoint_policies.dots_saveable)

_BLOCK = {"widen": typed(512, 2_048), "narrow": typed(2_048, 512)}, typed(4_096, 512)

CALL = Puzzle(
    "call", "One call",
    "Save less of a block with `gelu`, without computing any matrix product twice: at most 10 % more FLOPs.",
    block, KEPT, _BLOCK,
    lambda rng: ({"widen": normal(rng, 4, 6), "narrow": normal(rng, 6, 4)}, normal(rng, 5, 4)),
    (
        "`gelu` is a formula of ten steps. Which one value is enough to recompute all of them?",
        "With a checkpoint around `gelu` alone, its argument is saved, and the second product saves its result. One of "
        "the two is enough.",
        "Put a checkpoint around the block, with a policy that saves the results of products. Nothing in the backward "
        "pass reads the result of the last one.",
    ),
    _saved_products,
    lambda: predict(
        "`x @ p['widen']` is 32 MiB. How many arrays of that size does the gradient of `block` save?",
        truth=lambda: {1: "one", 2: "two"}.get(KEPT.of(block, _BLOCK, (0, 1)) >> 25, "four or more"),
        because={
            "one": "The argument of `gelu` would be enough if everything else were recomputed, but without a "
                   "checkpoint nothing is.",
            "two": "The argument and the result of `gelu` would be enough with a checkpoint around it.",
            "four or more": "One for each step inside `gelu` whose derivative multiplies by a value, and the result of "
                            "`gelu`, which is a factor of the second product.",
        },
        hints=("`gelu` has a cube, a tanh and products, and the derivative of each multiplies by something.",),
    ),
    record=records.call,
    how="It saves the argument of `gelu` in 16 bits, evenly spaced in its `arcsinh`, which is as exact as "
        "the tolerance asks.",
    lesson="06_checkpoints",
    wrong=(jax.checkpoint(block), lambda p, x: x + jax.checkpoint(jax.nn.gelu)(x @ p["widen"]) @ p["narrow"],
           lambda p, x: x + jax.nn.relu(x @ p["widen"]) @ p["narrow"]),
    argnums=(0, 1),
    extra_work=0.1,
)  # fmt: skip


# --- names ------------------------------------------------------------------------------------------------------------


def head(w, x):
    scores = checkpoint_name(x @ w["q"] @ (x @ w["k"]).T, "scores")
    weights = checkpoint_name(jax.nn.softmax(scores), "weights")
    return checkpoint_name(weights @ (x @ w["v"]), "mixed")


def _checkpointed(policy):
    return jax.checkpoint(head, policy=policy)


def _only(*names: str):
    return jax.checkpoint_policies.save_only_these_names(*names)


_saved_scores = jax.checkpoint_policies.save_only_these_names("scores")

_HEAD = {n: typed(256, 64) for n in "qkv"}, typed(4_096, 256)

NAMES = Puzzle(
    "names", "By name",
    "Three values of an attention head have names. Answer with a policy for `jax.checkpoint(head, policy=…)` that "
    "saves little and costs at most 10 % more FLOPs.",
    head, KEPT, _HEAD, lambda rng: ({n: normal(rng, 4, 3) for n in "qkv"}, normal(rng, 5, 4)),
    (
        "Values that are not saved are recomputed from those that are. Which of the three needs a product of size "
        "4,096 × 4,096?",
        "The weights are the softmax of the scores, which needs no product.",
        '`jax.checkpoint_policies.save_only_these_names("…")` returns a policy that saves by name.',
    ),
    _saved_scores,
    lambda: predict(
        "A policy saves one of the three names. Which one leads to the least recomputation?",
        truth=lambda: min(
            ("scores", "weights", "mixed"),
            key=lambda n: cost(_checkpointed(_only(n)), *_HEAD, argnums=(0, 1)).total.flops,
        ),
        because={
            "scores": "The derivative of softmax needs the intermediate values of softmax. Computing them from the "
                      "scores takes no matrix product.",
            "weights": "The derivative of softmax needs the intermediate values of softmax, which are computed from "
                       "the scores: the large product is computed again.",
            "mixed": "The backward pass does not read the result, so saving it does not help.",
        },
    ),
    how="It is the answer at par: without the scores, a product of that size is computed again.",
    lesson="07_policies_and_plans",
    wrong=(_only("weights"), _only("mixed"), _only("scores", "weights"), jax.checkpoint_policies.nothing_saveable,
           jax.checkpoint_policies.everything_saveable),
    argnums=(0, 1),
    extra_work=0.1,
    function_of=lambda policy: head if policy is head else _checkpointed(policy),
)  # fmt: skip


# --- the body of a loop -----------------------------------------------------------------------------------------------


def rollout(w, h):
    step = lambda h, _: (h + jnp.sin(jnp.tanh(h) @ w), None)
    return jax.lax.scan(step, h, length=16)[0]


def _saved_step(w, h):
    step = lambda h, _: (h + jnp.sin(jnp.tanh(h) @ w), None)
    return jax.lax.scan(jax.checkpoint(step, policy=jax.checkpoint_policies.dots_saveable), h, length=16)[0]


def _bare_step(w, h):
    step = lambda h, _: (h + jnp.sin(jnp.tanh(h) @ w), None)
    return jax.lax.scan(jax.checkpoint(step), h, length=16)[0]


_ROLLOUT = typed(256, 256), typed(1_024, 256)

BODY = Puzzle(
    "body", "The body of a loop",
    "Sixteen steps of a recurrent network. Lower the peak, with at most 10 % more FLOPs.",
    rollout, PEAK, _ROLLOUT, lambda rng: (normal(rng, 3, 3) / 2, normal(rng, 5, 3)),
    (
        "What is saved for each of the sixteen steps? `jaxviz.residuals` lists it. A checkpoint goes around a "
        "function, and the step is a function.",
        "With a checkpoint around the step, its product is computed twice, which is a third more FLOPs. A policy can "
        "save the product.",
        "The policy `dots_saveable` saves the results of products; a checkpoint takes a policy beside its function.",
    ),
    _saved_step,
    lambda: predict(
        "How many arrays of the size of `h` does the gradient of `rollout` save per step?",
        truth=lambda: ["none", "one", "two", "three"][KEPT.of(rollout, _ROLLOUT, (0, 1)) // (16 << 20)],
        because={
            "one": "The derivative of the sine alone needs one: the cosine.",
            "two": "The cosine, and the factor of the product. How many does the derivative of tanh need?",
            "three": "The cosine for the sine; `tanh(h)` for the product and for its own derivative; and one more, "
                     "because JAX computes that derivative in two factors.",
        },
        hints=("The derivatives of the sine, of the product in `w`, and of tanh.",),
    ),
    record=records.body,
    how="32 rows go through all steps, and are computed again in the backward pass; Strassen's method pays for that.",
    lesson="07_policies_and_plans",
    run_with=lambda w, h: (w / 16, h),  # otherwise 16 steps turn rounding into another result
    wrong=(_bare_step, jax.checkpoint(rollout), lambda w, h: _saved_step(w, h) + 1e-2),
    argnums=(0, 1),
    extra_work=0.1,
)  # fmt: skip


# --- skipped steps ----------------------------------------------------------------------------------------------------


def roots(a):
    newton = lambda x: x - (x**3 + x - a) / (3 * x**2 + 1)
    again = lambda x: jnp.max(jnp.abs(x**3 + x - a)) > 1e-5
    step = lambda x, _: (jax.lax.cond(again(x), newton, lambda x: x, x), None)
    return jax.lax.scan(step, a, length=64)[0]


def _checked_roots(a):
    newton = lambda x: x - (x**3 + x - a) / (3 * x**2 + 1)
    again = lambda x: jnp.max(jnp.abs(x**3 + x - a)) > 1e-5
    step = jax.checkpoint(lambda x, _: (jax.lax.cond(again(x), newton, lambda x: x, x), None))
    return jax.lax.scan(step, a, length=64)[0]


@jax.custom_jvp
def _implicit_roots(a):
    return roots(a)


@_implicit_roots.defjvp
def _implicit_rule(primals, tangents):
    x = _implicit_roots(*primals)
    return x, tangents[0] / (3 * x**2 + 1)


_ROOTS = (typed(100_000),)

STEPS = Puzzle(
    "steps", "Steps that are not taken",
    "Newton's method for x³ + x = a, with at most 64 steps. It stops after a few, but its gradient saves residuals for "
    "all 64: save less, with at most 40 % more FLOPs.",
    roots, KEPT, _ROOTS, lambda rng: ((1 + 2 * rng.random(4)).astype(np.float32),),
    (
        "What does a step save that does nothing? Every step must save arrays of the same types.",
        "With a checkpoint around the step, only its arguments are saved.",
        "To beat par: however the loop gets there, x³ + x = a at the end. So (3x² + 1) dx = da, and a custom rule can "
        "use that.",
    ),
    _checked_roots,
    lambda: predict(
        "The loop stops after a few of its 64 steps. For which steps does the gradient save arrays?",
        truth=lambda: "for all" if KEPT.of(roots, _ROOTS, 0) >= 64 * 400_000 else "for those that run",
        because={
            "for those that run": "Their number is known only at run time, but the size of the residuals must be known "
                                  "at compile time.",
            "for those it skips": "Their residuals are never needed.",
            "for all": "Every step must save the same arrays, filled with zeros if the step is skipped.",
        },
    ),
    better=_implicit_roots,
    record=records.steps,
    par_is="the residuals with a checkpoint around the step",
    how="The cubic has a closed solution, with `sinh` and `arcsinh`; a checkpoint around it saves nothing "
        "but its argument.",
    lesson="08_control_flow_gradients",
    wrong=(jax.checkpoint(roots), lambda a: jax.lax.stop_gradient(roots(a)), jnp.cbrt),
    extra_work=0.4,
    tol=1e-3,
)  # fmt: skip


# --- a loop of loops --------------------------------------------------------------------------------------------------


def orbit(q, p):
    drift = lambda q, p: (q + 0.05 * p, p)
    kick = lambda q, p: p - 0.05 * q * jnp.exp(-q * q)
    step = lambda state, _: (drift(state[0], kick(*state)), None)
    return jax.lax.scan(step, (q, p), length=400)[0]


def _kick_and_drift(q, p):
    p = p - 0.05 * q * jnp.exp(-q * q)
    return q + 0.05 * p, p


def _in_chunks(size: int):
    def chunked(q, p):
        step = jax.checkpoint(lambda state, _: (_kick_and_drift(*state), None))
        chunk = jax.checkpoint(lambda state, _: jax.lax.scan(step, state, length=size))
        return jax.lax.scan(chunk, (q, p), length=400 // size)[0]

    return chunked


@jax.custom_vjp
def _reversible(q, p):
    return orbit(q, p)


def _reversible_forward(q, p):
    end = orbit(q, p)
    return end, end


def _reversible_backward(end, ct):
    def back(carry, _):
        (q, p), ct = carry
        q = q - 0.05 * p
        p = p + 0.05 * q * jnp.exp(-q * q)
        return ((q, p), jax.vjp(_kick_and_drift, q, p)[1](ct)), None

    return jax.lax.scan(back, (end, ct), length=400)[0][1]


_reversible.defvjp(_reversible_forward, _reversible_backward)

_twenty_chunks = _in_chunks(20)

_ORBIT = typed(10_000), typed(10_000)

LOOPS = Puzzle(
    "loops", "A loop of loops",
    "400 steps of 10,000 particles. Lower the peak, with at most twice the FLOPs.",
    orbit, PEAK, _ORBIT, lambda rng: (normal(rng, 4), normal(rng, 4)),
    (
        "How many states does a checkpoint around the step save? And with one around the whole loop, how many are in "
        "memory in the backward pass?",
        "In between: a loop over 20 chunks, each a loop of 20 steps, with checkpoints around the chunk and around the "
        "step.",
        "To beat par: each step can be inverted. All earlier states can be computed backward from the last one, so "
        "none needs to be saved.",
    ),
    _twenty_chunks,
    lambda: predict(
        "A loop over chunks, each with a checkpoint, and a checkpoint around each of the 400 steps. How many steps per "
        "chunk give the lowest peak?",
        truth=lambda: min(
            ("2", "20", "100", "400"), key=lambda n: PEAK.of(_in_chunks(int(n)), _ORBIT, (0, 1))
        ),
        because={
            "2": "Then there are 200 chunks, and the initial state of each is saved.",
            "20": "20 chunks, and the 20 steps of one of them: the sum is smallest when both are the square root of "
                  "400.",
            "100": "Only 4 chunks, but while one is recomputed, the states of its 100 steps are all in memory.",
            "400": "One chunk is the whole loop: while it is recomputed, all 400 states are in memory.",
        },
    ),
    better=_reversible,
    record=records.loops,
    par_is="the peak of 20 chunks of 20 steps",
    how="The steps are inverted, for ten particles at a time: what remains are arguments, results, "
        "cotangents and gradients.",
    lesson="08_control_flow_gradients",
    wrong=(jax.checkpoint(orbit), _in_chunks(2), lambda q, p: orbit(p, q)),
    argnums=(0, 1),
    extra_work=1.0,
    tol=1e-3,
)  # fmt: skip

CHECKPOINTS = (CALL, NAMES, BODY, STEPS, LOOPS)
