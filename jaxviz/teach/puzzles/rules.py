"""Puzzles on custom rules, programs and devices: straight through, implicit, rolled up, one collective, few bytes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.features.cost.report import cost
from jaxviz.teach.predict import predict
from jaxviz.teach.puzzles.measures import AXIS, COLLECTIVES, DEVICES, EQUATIONS, KEPT, PEAK, SENT, Function
from jaxviz.teach.puzzles.puzzle import Puzzle, normal, typed

# --- straight-through estimator ---------------------------------------------------------------------------------------


def quantized(x):
    return jnp.round(4 * jnp.clip(x, -1, 1)) / 4


def _stopped(x):
    inside = jnp.clip(x, -1, 1)
    return inside + jax.lax.stop_gradient(jnp.round(4 * inside) / 4 - inside)


@jax.custom_vjp
def _of_mask(x):
    return quantized(x)


_of_mask.defvjp(lambda x: (quantized(x), jnp.abs(x) < 1), lambda inside, ct: (ct * inside,))


@jax.custom_vjp
def _of_bits(x):
    return quantized(x)


_of_bits.defvjp(
    lambda x: (quantized(x), jnp.packbits(jnp.abs(x) < 1)),
    lambda bits, ct: (ct * jnp.unpackbits(bits, count=ct.size).reshape(ct.shape),),
)


@jax.custom_vjp
def _straight(x):
    return quantized(x)


_straight.defvjp(lambda x: (quantized(x), None), lambda _, ct: (ct,))

_QUANTIZED = typed(512, 2_048), typed(8_192, 512)

STRAIGHT = Puzzle(
    "straight", "Straight through",
    "Rounding has zero slope. Give `quantized` the gradient of `jnp.clip(x, -1, 1)` instead; it is applied to a "
    "product `x @ w`, and should save little.",
    quantized, KEPT, _QUANTIZED, lambda rng: (normal(rng, 4, 6) / 2, normal(rng, 5, 4) / 2),
    (
        "What is the derivative of clip, and what does it need to know about `x`?",
        "`jax.custom_vjp`: the forward rule saves where `x` is within the bounds, and the backward rule returns the "
        "cotangent there, and 0 elsewhere.",
        "To beat par: eight booleans fit into a byte. See `jnp.packbits`.",
    ),
    _of_mask,
    lambda: predict(
        "Another way is `inside + stop_gradient(rounded - inside)`, with `inside = jnp.clip(x, -1, 1)`. What is its "
        "gradient at 0.3?",
        truth=lambda: f"{jax.grad(_stopped)(0.3):g}",
        because={
            "0": "That is the gradient of rounding, but that term is stopped.",
            "0.25": "That is the value, not the gradient. What is the derivative of each of the two terms?",
            "1": "The second term supplies the missing value and has no derivative; the first has derivative 1 inside "
                 "the bounds.",
        },
    ),
    better=_of_bits,
    par_is="one boolean for each element",
    how="One bit for each element: it is the answer that beats par.",
    lesson="09_custom_rules",
    wrong=(_stopped, _straight, lambda x: jnp.clip(x, -1, 1)),
    right=lambda w, x: _stopped(x @ w),
    extra_work=0.1,
    function_of=lambda answer: lambda w, x: answer(x @ w),
)  # fmt: skip


# --- the end of a loop ------------------------------------------------------------------------------------------------


def kepler(m, e):
    step = lambda x, _: (m + e * jnp.sin(x), None)
    return jax.lax.scan(step, m, length=100)[0]


def _checked_kepler(m, e):
    step = jax.checkpoint(lambda x, _: (m + e * jnp.sin(x), None))
    return jax.lax.scan(step, m, length=100)[0]


@jax.custom_jvp
def _implicit(m, e):
    return kepler(m, e)


@_implicit.defjvp
def _implicit_rule(primals, tangents):
    x, (_, e), (dm, de) = _implicit(*primals), primals, tangents
    return x, (dm + jnp.sin(x) * de) / (1 - e * jnp.cos(x))


_PLANETS = typed(10_000), typed(10_000)

IMPLICIT = Puzzle(
    "implicit", "Where a loop ends",
    "100 steps to the solution of x = m + e sin(x), for 10,000 planets. Lower the peak of the gradient, with at most "
    "10 % more FLOPs.",
    kepler, PEAK, _PLANETS, lambda rng: (normal(rng, 4), rng.uniform(0.1, 0.5, 4).astype(np.float32)),
    (
        "What is saved for each step, and which argument of the step is enough to recompute it?",
        "A checkpoint around the step saves only `x`, once for each step.",
        "To beat par: at the end x = m + e sin(x). Take the derivative of both sides, solve for dx, and write the "
        "result as a custom rule.",
    ),
    _checked_kepler,
    lambda: predict(
        "If a rule derived from that equation replaces the derivative of the loop, how many FLOPs does the gradient "
        "take?",
        truth=lambda: (
            "less than half"
            if cost(_implicit, *_PLANETS, argnums=(0, 1)).total.flops * 2
            < cost(kepler, *_PLANETS, argnums=(0, 1)).total.flops
            else "about as many"
        ),
        because={
            "less than half": "The forward pass still runs the loop; the backward pass has no loop, only a division.",
            "about as many": "What would the backward pass do if its rule does not use the loop?",
            "more than twice as many": "The rule is one equation, for any number of steps.",
        },
    ),
    better=_implicit,
    how="The rule of the equation: it is the answer that beats par, and what remains are arguments, results, "
        "a sine and a cotangent.",
    lesson="09_custom_rules",
    wrong=(jax.checkpoint(kepler), lambda m, e: jax.lax.stop_gradient(kepler(m, e)),
           lambda m, e: m + e * jnp.sin(m)),
    argnums=(0, 1),
    extra_work=0.1,
)  # fmt: skip


# --- rolling up a loop ------------------------------------------------------------------------------------------------


def deep(ws, x):
    for w in ws:
        x = x + jnp.tanh(x @ w)
    return x


def _rolled(ws, x):
    return jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, ws)[0]


_LAYERS = typed(12, 64, 64), typed(8, 64)
_TWICE = typed(24, 64, 64), typed(8, 64)

ROLLED = Puzzle(
    "rolled", "Rolled up",
    "A Python loop over 12 layers is traced 12 times, and compiled as 12 layers. Reduce it to few equations, for any "
    "number of layers.",
    deep, EQUATIONS, _LAYERS, lambda rng: (normal(rng, 12, 3, 3) / 2, normal(rng, 2, 3)),
    (
        "JAX sees no loop: Python runs it during tracing. Which kind of loop does JAX see?",
        "`jax.lax.scan(f, init, xs)`, where `f` takes the carry and one of `xs`, and returns the next carry and a "
        "value to stack, or None.",
        "The carry is `x`, and `xs` is the array of weights.",
    ),
    _rolled,
    lambda: predict(
        "With 24 layers instead of 12, how do the equation counts of the Python loop and the `scan` change?",
        truth=lambda: (
            "the loop doubles, the scan stays the same"
            if EQUATIONS.of(deep, _TWICE, 0) > EQUATIONS.of(deep, _LAYERS, 0)
            and EQUATIONS.of(_rolled, _TWICE, 0) == EQUATIONS.of(_rolled, _LAYERS, 0)
            else "both double"
        ),
        because={
            "both double": "The body of a `scan` is traced once; the number of iterations is one of its parameters.",
            "the loop doubles, the scan stays the same": "The body of a `scan` is one program, traced and compiled "
                                                         "once; the number of iterations is one of its parameters.",
            "both stay the same": "Python runs its loop while JAX traces, and each layer's operations are recorded.",
        },
    ),
    par_is="the count with a `scan` over one layer",
    how="It is the answer at par: a product, a `tanh`, a sum, and the `scan`.",
    lesson="01_reading_jaxprs",
    wrong=(jax.jit(deep), lambda ws, x: jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]),
    argnums=(0, 1),
)  # fmt: skip


# --- one collective ---------------------------------------------------------------------------------------------------


def _mapped(function: Function) -> Function:
    """Runs on the shards of several devices, concatenated in an array."""
    mapped: Function = jax.vmap(function, axis_name=AXIS)
    return mapped


def variance(x):
    n = jax.lax.axis_size("devices") * x.size
    mean = jax.lax.psum(jnp.sum(x), "devices") / n
    return jax.lax.psum(jnp.sum((x - mean) ** 2), "devices") / n


def _of_moments(x):
    moments = jnp.stack([jnp.sum(x), jnp.sum(x**2)])
    mean, mean_square = jax.lax.psum(moments, "devices") / (jax.lax.axis_size("devices") * x.size)
    return mean_square - mean**2


def _of_shares(x):
    own = jnp.stack([jnp.mean(x), jnp.var(x)])
    means, variances = jax.lax.all_gather(own, "devices", axis=1)
    return jnp.mean(variances) + jnp.var(means)


_SHARE = (typed(1_000),)

_FAR_FROM_ZERO = 1_000 + normal(np.random.default_rng(3), DEVICES, 5)
"""Where the mean of the squares is a million times the variance: their difference has no digit left in float32."""

COLLECTIVE = Puzzle(
    "collective", "One collective",
    "Each of eight devices has a share of the numbers, and needs the variance of all. It uses two sums over the "
    "devices, and the second waits for the first: use only one collective, which is accurate also far from 0.",
    variance, COLLECTIVES, _SHARE, lambda rng: (normal(rng, DEVICES, 5),),
    (
        "The second sum waits for the mean of all. Which mean does a device have before it hears from the others?",
        "The mean of the squares minus the square of the mean is not accurate: far from 0 both are large, and their "
        "difference has no digit left. Each device can compute the mean and the variance of its own share.",
        "The variance of all is the mean of the shares' variances plus the variance of their means, as Chan, Golub and "
        "LeVeque combine them. An `all_gather` of two numbers in one array, made by `jnp.stack`, is one collective.",
    ),
    _of_shares,
    lambda: predict(
        "How many collectives does JAX trace for `jax.lax.psum((a, b), axis)` of a pair?",
        truth=lambda: ["none", "one", "two"][COLLECTIVES.of(_of_pair, _SHARE, 0)],
        because={
            "one": "That would be right for an array of two numbers. A pair is a pytree with two leaves.",
            "two": "One for each leaf of a pytree. XLA may combine them later; an array of two numbers does not depend "
                   "on that.",
        },
    ),
    par_is="the fewest possible",
    how="It is the answer at par: there is no variance without a collective.",
    lesson="10_named_axes",
    wrong=(_of_moments,
           lambda x: _of_pair(x)[1] / (8 * x.size) - (_of_pair(x)[0] / (8 * x.size)) ** 2,
           lambda x: jax.lax.pmean(jnp.var(x), "devices")),
    points=((_FAR_FROM_ZERO,),),
    run=_mapped,
    tol=1e-3,
)  # fmt: skip


def _of_pair(x):
    pair = jax.lax.psum((jnp.sum(x), jnp.sum(x**2)), "devices")
    return jnp.stack(pair)


# --- few bytes --------------------------------------------------------------------------------------------------------


def log_sum(x):
    everything = jax.lax.all_gather(x, "devices", tiled=True)
    return jax.nn.logsumexp(everything)


def _of_maximum(x):
    largest = jax.lax.pmax(jax.lax.stop_gradient(jnp.max(x)), "devices")
    return largest + jnp.log(jax.lax.psum(jnp.sum(jnp.exp(x - largest)), "devices"))


def _of_logs(x):
    return jax.nn.logsumexp(jax.lax.all_gather(jax.nn.logsumexp(x), "devices"))


GATHER = Puzzle(
    "gather", "Do not send everything",
    "The logarithm of a sum of exponentials over eight devices, where each sends its share to all others. Send fewer "
    "bytes.",
    log_sum, SENT, _SHARE, lambda rng: (100 * normal(rng, DEVICES, 5),),
    (
        "How many numbers does a device have to send of a sum over its own 1,000 numbers?",
        "The exponentials overflow unless the largest number is subtracted: use `jax.lax.pmax`, then `jax.lax.psum`. "
        "The result does not depend on the subtracted number, so stop its gradient.",
        "To beat par: what does a device know once it has computed the result for its own share?",
    ),
    _of_maximum,
    lambda: predict(
        "How many bytes does each device send in the function as given, with 1,000 float32 numbers?",
        truth=lambda: SENT.of(log_sum, _SHARE, 0),
        because="Its whole share: 4 bytes for each number.",
        tolerance=0.01,
        hints=("What does `all_gather` gather?",),
    ),
    better=_of_logs,
    par_is="two numbers: a maximum and a sum",
    how="One number from each device: it is the answer that beats par.",
    lesson="10_named_axes",
    wrong=(lambda x: jnp.log(jax.lax.psum(jnp.sum(jnp.exp(x)), "devices")),
           lambda x: jax.lax.psum(jax.nn.logsumexp(x), "devices")),
    run=_mapped,
)  # fmt: skip

RULES = (STRAIGHT, IMPLICIT, ROLLED, COLLECTIVE, GATHER)
