"""Programs for `test_divergence.py`: one model, equal ones written otherwise, and ones with a fault planted."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

RNG = np.random.default_rng(0)
N, WIDTH = 6, 16
WS = jnp.asarray(0.2 * RNG.normal(size=(N, 2, WIDTH, WIDTH)), jnp.float32)
X = jnp.asarray(RNG.normal(size=(8, WIDTH)), jnp.float32)


def softmax(q):
    weights = jnp.exp(q - q.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def layer(h, w, softmax=softmax):
    q = h @ w[0]
    a = softmax(q)
    g = jnp.tanh(a * 8 - q)
    h = h + g @ w[1]
    return h, None


def end(h):
    y = jnp.sin(h)
    return jnp.mean(y * y)


def model(ws, x):
    return end(lax.scan(layer, x, ws)[0])


# --- the same, otherwise ----------------------------------------------------------------------------------------------


def unrolled(ws, x):
    for w in ws:
        x, _ = layer(x, w)
    return end(x)


def in_checkpoints(ws, x):
    return end(lax.scan(jax.checkpoint(layer), x, ws)[0])


def jitted(ws, x):
    return end(lax.scan(jax.jit(layer), x, ws, unroll=2)[0])


def other_order(ws, x):
    """Sums in another order."""

    def backwards(h, w):
        q = (h[:, ::-1] @ w[0][::-1]) * 1.0
        a = softmax(q)
        g = jnp.tanh(a * 8 - q)
        h = g @ w[1] + h
        return h, None

    y = jnp.sin(lax.scan(backwards, x, ws)[0])
    return jnp.mean((y * y)[::-1])


def by_rows(ws, x):
    """Each row by itself."""
    return jnp.mean(jax.vmap(lambda x: model(ws, x[None]))(x))


def another_softmax(ws, x):
    return end(lax.scan(partial(layer, softmax=jax.nn.softmax), x, ws)[0])


HEALTHY = [unrolled, in_checkpoints, jitted, other_order, by_rows, another_softmax]


# --- faults -----------------------------------------------------------------------------------------------------------


def with_fault(forward=None, backward=None, at=None):
    """The model with something done to one of its values or to a cotangent, perhaps in one iteration.

    Args:
      forward, backward: the name of a value, and from its array, or from its cotangent, to another.
      at: the iteration.
    """

    def hooked(name, i, x):
        is_now = True if at is None else i == at
        if forward is not None and forward[0] == name:
            x = jnp.where(is_now, forward[1](x), x)
        if backward is not None and backward[0] == name:
            hook = jax.custom_vjp(lambda x, i: x)
            changed = lambda i, ct: (jnp.where(True if at is None else i == at, backward[1](ct), ct), None)
            hook.defvjp(lambda x, i: (x, i), changed)
            x = hook(x, i)
        return x

    def faulty(ws, x):
        def layer(h, inputs):
            i, w = inputs
            q = hooked("q", i, h @ w[0])
            a = hooked("a", i, softmax(q))
            g = hooked("g", i, jnp.tanh(a * 8 - q))
            h = hooked("h", i, h + g @ w[1])
            return h, None

        h, _ = lax.scan(layer, x, (jnp.arange(N), ws))
        y = hooked("y", 0, jnp.sin(h))
        return jnp.mean(y * y)

    return faulty


LARGEST, WEIGHTS = "q.max(-1, keepdims=True)", "weights / weights.sum(-1, keepdims=True)"
TANH, SWAPPED = "jnp.tanh(a * 8 - q)", np.array([1, 0, *range(2, 8)])

FAULTS = {
    "a factor": (with_fault(forward=("a", lambda a: a * 1.001)), "forward", "a * 8", 0),
    "a factor in iteration 4": (with_fault(forward=("g", lambda g: g * 1.001), at=4), "forward", "g @ w[1]", 4),
    "an added constant": (with_fault(forward=("q", lambda q: q + 1e-3), at=2), "forward", LARGEST, 2),
    "one element": (with_fault(forward=("h", lambda h: h.at[3, 5].add(0.01)), at=1), "forward", "h @ w[0]", 2),
    "rounded to bfloat16": (
        with_fault(forward=("g", lambda g: g.astype(jnp.bfloat16).astype(g.dtype)), at=3), "forward", "g @ w[1]", 3,
    ),
    "two rows swapped": (with_fault(forward=("y", lambda y: y[SWAPPED])), "forward", "y * y", None),
    "a NaN": (with_fault(forward=("q", lambda q: q.at[0, 0].set(jnp.nan)), at=5), "forward", LARGEST, 5),
    "a wrong sign in the last iteration": (with_fault(forward=("g", lambda g: -g), at=5), "forward", "g @ w[1]", 5),
    "a rule off by a factor": (with_fault(backward=("g", lambda ct: ct * 1.01)), "cotangent", TANH, 5),
    "a rule off in iteration 2": (with_fault(backward=("g", lambda ct: ct * 1.01), at=2), "cotangent", TANH, 2),
    "a stop_gradient": (with_fault(backward=("a", jnp.zeros_like), at=4), "cotangent", WEIGHTS, 4),
    "clipped": (with_fault(backward=("q", lambda ct: jnp.clip(ct, -1e-3, 1e-3)), at=3), "cotangent", "h @ w[0]", 3),
    "a cotangent in bfloat16": (
        with_fault(backward=("h", lambda ct: ct.astype(jnp.bfloat16).astype(ct.dtype)), at=1),
        "cotangent", "h + g @ w[1]", 1,
    ),
    "a transposed rule": (with_fault(backward=("q", lambda ct: ct[::-1]), at=0), "cotangent", "h @ w[0]", 0),
    "added twice": (with_fault(backward=("y", lambda ct: 2 * ct)), "cotangent", "jnp.sin(h)", None),
    "one row without": (with_fault(backward=("g", lambda ct: ct.at[2].set(0.0)), at=5), "cotangent", TANH, 5),
}  # fmt: skip
"""What is planted: the program, the pass, the first value in common that differs, and the iteration."""


# --- over devices -----------------------------------------------------------------------------------------------------


def on_devices(wrong=""):
    mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    def sharded(ws, x):
        def one(ws, x):
            q = x @ ws[0, 0]
            a = softmax(q)
            s = jnp.sum(a * q) if wrong != "the mean of a device" else jnp.mean(a * q) * 8
            t = s if wrong == "without a psum" else lax.psum(s, "i")
            return t[None] * (1.0 if wrong != "summed twice" else 8.0)

        totals = jax.shard_map(one, mesh=mesh, in_specs=(P(), P("i")), out_specs=P("i"), check_vma=False)(ws, x)
        return jnp.mean(totals)

    return sharded


ON_DEVICES = {
    "without a psum": "t[None]",
    "summed twice": 't[None] * (1.0 if wrong != "summed twice" else 8.0)',
    "the mean of a device": 'lax.psum(s, "i")',
}
"""The first value in common that differs."""
