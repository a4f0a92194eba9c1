"""Puzzles on work: the order of products, forward or reverse, second derivatives, traces, branches under vmap."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.ir.trace import trace
from jaxviz.report.tables import type_text
from jaxviz.teach.predict import predict
from jaxviz.teach.puzzles import records
from jaxviz.teach.puzzles.measures import FLOPS
from jaxviz.teach.puzzles.puzzle import Puzzle, normal, typed

# --- the order of products --------------------------------------------------------------------------------------------


def pushed(a, b, c, v):
    return a @ b @ c @ v


def _from_the_right(a, b, c, v):
    return a @ (b @ (c @ v))


_CHAIN = typed(512, 512), typed(512, 512), typed(512, 512), typed(512)

ORDER = Puzzle(
    "order", "The order of products",
    "Multiply three matrices and a vector in fewer FLOPs.",
    pushed, FLOPS, _CHAIN, lambda rng: (normal(rng, 2, 3), normal(rng, 3, 4), normal(rng, 4, 3), normal(rng, 3)),
    (
        "Python computes `a @ b` first. How large is the result, and how large would it need to be?",
        "Use parentheses so that every product includes a vector.",
    ),
    _from_the_right,
    lambda: predict(
        "Jacobians are matrices, and the derivative of a chain of functions is the product of their Jacobians. Which "
        "mode evaluates `ct @ J3 @ J2 @ J1` from the left?",
        truth=lambda: "reverse",
        because={
            "forward": "It starts from a tangent, which is to the right of `J1`.",
            "reverse": "It starts from the cotangent of the result, `ct`: a vector times a matrix, three times. "
                       "Forward mode starts from a tangent, to the right of `J1`.",
        },
    ),
    par_is="three products of a matrix and a vector",
    how="It is the answer at par: each matrix is read once.",
    lesson="03_jvp_and_linearize",
    wrong=(lambda a, b, c, v: (a @ b) @ (c @ v), lambda a, b, c, v: 2 * (a @ (b @ (c @ v)))),
    argnums=(0, 1, 2, 3),
)  # fmt: skip


# --- forward or reverse -----------------------------------------------------------------------------------------------


def velocity(w, t):
    curve = lambda t: jnp.sin(w @ jnp.cos(t * jnp.arange(w.shape[1])))
    return jax.jacrev(curve)(t)


def _forward(w, t):
    curve = lambda t: jnp.sin(w @ jnp.cos(t * jnp.arange(w.shape[1])))
    return jax.jacfwd(curve)(t)


_CURVE = typed(1_000, 64), typed()

MODE = Puzzle(
    "mode", "Forward or reverse",
    "Compute the velocity of a curve in 1,000 dimensions at time `t`, in fewer FLOPs.",
    velocity, FLOPS, _CURVE, lambda rng: (normal(rng, 5, 3), np.float32(rng.normal())),
    (
        "How many results does the curve have, and how many arguments? One reverse-mode pass gives the derivative of "
        "one result.",
        "One forward-mode pass gives the derivative with respect to one argument, and there is only one.",
        "`jax.jacfwd`, or `jax.jvp` with a tangent of 1.0.",
    ),
    _forward,
    lambda: predict(
        "A function has 1,000 results and 1 argument. How many backward passes does `jax.jacrev` need for its "
        "Jacobian?",
        truth=lambda: "1,000 times" if FLOPS.of(velocity, _CURVE, 0) > 500 * FLOPS.of(_forward, _CURVE, 0) else "once",
        because={
            "once": "One pass gives one row of the Jacobian, which has 1,000 rows.",
            "1,000 times": "One for each result: a batch of 1,000 cotangents, one for each row. Forward mode needs one "
                           "pass for each argument.",
        },
    ),
    par_is="one evaluation of the function with a tangent",
    how="It is the answer at par: one product for the value, and one for the tangent.",
    lesson="03_jvp_and_linearize",
    wrong=(jax.jit(velocity), lambda w, t: 2 * _forward(w, t)),
    argnums=(0, 1),
)  # fmt: skip


# --- second derivatives -----------------------------------------------------------------------------------------------


def energy(w, x):
    return jnp.sum(jnp.tanh(w @ x) ** 2)


def bent(w, x, v):
    of_x = lambda x: jnp.sum(jnp.tanh(w @ x) ** 2)
    return jax.hessian(of_x)(x) @ v


def _forward_over_reverse(w, x, v):
    return jax.jvp(lambda x: jax.grad(energy, 1)(w, x), (x,), (v,))[1]


def _reverse_over_forward(w, x, v):
    return jax.grad(lambda x: jax.jvp(lambda x: energy(w, x), (x,), (v,))[1])(x)


_ENERGY = typed(300, 300), typed(300), typed(300)

BENT = Puzzle(
    "hessian", "A Hessian and one vector",
    "Multiply the Hessian of an energy by a vector, in fewer FLOPs.",
    bent, FLOPS, _ENERGY, lambda rng: (normal(rng, 4, 3), normal(rng, 3), normal(rng, 3)),
    (
        "The Hessian is the Jacobian of the gradient. Do you need all of it for one product?",
        "`jax.jvp` computes a Jacobian times a vector. Which function do you apply it to?",
        "To beat par: the two derivatives can also be taken in the other order, which has fewer products to push "
        "forward.",
    ),
    _forward_over_reverse,
    lambda: predict(
        "Which is cheaper here: `jax.jvp` of `jax.grad`, or `jax.grad` of a directional derivative computed by "
        "`jax.jvp`?",
        truth=lambda: ("grad of jvp", "they are the same", "jvp of grad")[
            1 + np.sign(FLOPS.of(_reverse_over_forward, _ENERGY, 0) - FLOPS.of(_forward_over_reverse, _ENERGY, 0))
        ],
        because={
            "jvp of grad": "It computes values and tangents of both passes: four products with `w`, one of them for "
                           "the gradient itself, which is not needed.",
            "grad of jvp": "The forward pass has a value and a tangent, and the backward pass one cotangent: three "
                           "products with `w`. `jvp` of `grad` has four, and one of them is for the gradient itself.",
            "they are the same": "Their results are the same. Count the products with `w`.",
        },
    ),
    better=_reverse_over_forward,
    record=records.hessian,
    par_is="the count of `jax.jvp` of `jax.grad`",
    how="The second derivative of `tanh(u) ** 2`, written by hand: the three products remain, and little beside them.",
    lesson="03_jvp_and_linearize",
    wrong=(lambda w, x, v: jax.grad(lambda x: energy(w, x))(x) * v,
           lambda w, x, v: jax.jacrev(jax.grad(lambda x: energy(w, x)))(x) @ v),
    argnums=(1, 2),
)  # fmt: skip


# --- the trace of a Jacobian ------------------------------------------------------------------------------------------


def divergence(w, u, x):
    field = lambda x: u @ jnp.tanh(w @ x)
    return jnp.trace(jax.jacrev(field)(x))


def _diagonal(w, u, x):
    slope = 1 - jnp.tanh(w @ x) ** 2
    return jnp.sum(slope * jnp.sum(w * u.T, 1))


_FIELD = typed(1_024, 256), typed(256, 1_024), typed(256)

TRACE = Puzzle(
    "trace", "The trace of a Jacobian",
    "Compute the divergence of a field in 256 dimensions, as in a continuous normalizing flow, in fewer FLOPs.",
    divergence, FLOPS, _FIELD, lambda rng: (normal(rng, 5, 3), normal(rng, 3, 5), normal(rng, 3)),
    (
        "The Jacobian is `u @ diag(1 - tanh²) @ w`: 256 × 256 numbers. How many of them does the trace use?",
        "The trace of a product of two matrices is the sum of the products of their elements: `sum(a * b.T)`.",
        "Each of the 1,024 units has one slope, the derivative of tanh at `w @ x`, which multiplies one number: a sum "
        "over 256 products of weights.",
    ),
    _diagonal,
    lambda: predict(
        "With `jax.jacfwd` instead of `jax.jacrev`, what does the trace cost?",
        truth=lambda: {0: "as much", -1: "a tenth", 1: "ten times as much"}[
            round(np.log10(FLOPS.of(_jacfwd, _FIELD, 0) / FLOPS.of(divergence, _FIELD, 0)))
        ],
        because={
            "a tenth": "The field has as many results as arguments.",
            "as much": "The field has as many results as arguments: 256 passes in either mode. Both compute the whole "
                       "Jacobian.",
            "ten times as much": "The field has as many results as arguments.",
        },
    ),
    par_is="the count for the diagonal alone",
    how="It is the answer at par: each element of both matrices is read once.",
    lesson="03_jvp_and_linearize",
    wrong=(lambda w, u, x: jnp.trace(jax.jacfwd(lambda x: u @ jnp.tanh(w @ x))(x)),
           lambda w, u, x: jnp.sum(w * u.T)),
    argnums=(0, 1, 2),
)  # fmt: skip


def _jacfwd(w, u, x):
    return jnp.trace(jax.jacfwd(lambda x: u @ jnp.tanh(w @ x))(x))


# --- branches under vmap ----------------------------------------------------------------------------------------------


def routed(w, xs):
    wave, ramp = lambda x: w @ jnp.sin(x), lambda x: w @ jnp.tanh(x)
    one = lambda x: jax.lax.cond(x[0] > 0, wave, ramp, x)
    return jax.vmap(one)(xs)


def _routed_once(w, xs):
    return jnp.where(xs[:, :1] > 0, jnp.sin(xs), jnp.tanh(xs)) @ w.T


_ROUTED = typed(512, 512), typed(1_024, 512)

BRANCHES = Puzzle(
    "branches", "Both branches",
    "Under `jax.vmap`, each example takes one of two branches. Compute the same values in fewer FLOPs.",
    routed, FLOPS, _ROUTED, lambda rng: (normal(rng, 3, 4), normal(rng, 5, 4)),
    (
        "`jax.make_jaxpr(routed)` has no `cond`. What replaced it?",
        "Under vmap the predicate differs between examples, so both branches are computed and one is selected. What do "
        "the branches have in common?",
        "Select what the product reads, not what it returns: then there is one product, for all examples.",
    ),
    _routed_once,
    lambda: predict(
        "`w` is `f32[512,512]`, and there are 1,024 examples. Under vmap, what is the type of the `w` that each "
        "product reads?",
        truth=_type_of_factor,
        because={
            "f32[512,512]": "That is correct without a `cond`. With one, JAX makes each branch read its operands "
                            "through a selection for each example.",
            "f32[1024,512,512]": "One for each example, 1 GiB: JAX makes each branch read its operands through a "
                                 "selection by the predicate, so that "
            "a NaN in a branch that is not taken cannot reach a gradient, and the predicate differs between examples.",
        },
        hints=("`jax.make_jaxpr(routed)(w, xs)` shows it.",),
    ),
    record=records.branches,
    par_is="one matrix product",
    how="One product, by Strassen's method on five levels.",
    lesson="01_reading_jaxprs",
    wrong=(jax.jit(routed), lambda w, xs: jnp.where(xs > 0, jnp.sin(xs), jnp.tanh(xs)) @ w.T),
    argnums=(0, 1),
)  # fmt: skip


def _type_of_factor() -> str:
    read = (e.invars[0].aval for _, e in trace(routed)(*_ROUTED).walk() if e.primitive.name == "dot_general")
    return type_text(next(read))


WORK = (ORDER, MODE, BENT, TRACE, BRANCHES)
