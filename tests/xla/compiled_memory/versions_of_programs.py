"""Pairs of program versions, where the second takes more memory for a realistic reason."""

from functools import partial

import jax
import jax.numpy as jnp
from compiled_programs import shape
from jax import lax

# --- an upgrade changes how a mixture of experts multiplies its groups: each token with the matrix of its expert ---------------------------------------

EXPERTS, TOKENS, WIDTH = 8, 256, 64


@jax.custom_vjp
def by_blocks(x, w, sizes):
    """Block by block, like a kernel; here all experts have equally many tokens."""
    return jnp.einsum("etd,edf->etf", x.reshape(len(w), -1, x.shape[1]), w).reshape(len(x), -1)


def _forward(x, w, sizes):
    return by_blocks(x, w, sizes), (x, w)


def _backward(kept, g):
    x, w = kept
    parts = lambda a: a.reshape(len(w), -1, a.shape[1])
    return (
        jnp.einsum("etf,edf->etd", parts(g), w).reshape(x.shape),
        jnp.einsum("etd,etf->edf", parts(x), parts(g)),
        None,
    )


by_blocks.defvjp(_forward, _backward)


def masked(x, w, sizes):
    """For each expert, the tokens of others are set to zero, and all are multiplied."""
    ends = jnp.cumsum(sizes)
    rows = jnp.arange(len(x))
    own = (rows >= (ends - sizes)[:, None]) & (rows < ends[:, None])
    return jnp.einsum("etd,edf->tf", jnp.where(own[:, :, None], x, 0.0), w)


def experts(grouped_dot):
    def loss(w, x, sizes):
        hidden = jax.nn.silu(grouped_dot(x, w["up"], sizes))
        return jnp.sum(grouped_dot(hidden, w["down"], sizes) ** 2)

    return loss


EXPERTS_ARGS = (
    {"up": shape(EXPERTS, WIDTH, WIDTH), "down": shape(EXPERTS, WIDTH, WIDTH)}, shape(TOKENS, WIDTH), shape(EXPERTS, dtype=jnp.int32),
)  # fmt: skip

# --- gradient accumulation -----------------------------------------------------------------------------------------------------------------------------


def error(params, x):
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.mean(x.astype(jnp.float32) ** 2)


@partial(jax.jit, donate_argnums=0)
def step(params, x):
    gradient = jax.grad(error)(params, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g.astype(w.dtype), params, gradient), jnp.zeros(())


def accumulating(dtype):
    @partial(jax.jit, donate_argnums=0)
    def step(params, xs):
        def add(total, x):
            gradient = jax.grad(error)(params, x)
            return jax.tree.map(lambda t, g: t + g.astype(dtype), total, gradient), None

        zeros = jax.tree.map(lambda w: jnp.zeros(w.shape, dtype), params)
        total, _ = lax.scan(add, zeros, xs)
        return jax.tree.map(lambda w, t: w - 0.1 * t.astype(w.dtype), params, total), jnp.zeros(())

    return step


PARAMS = [shape(256, 256, dtype=jnp.bfloat16)] * 3
BATCH = shape(32, 256, dtype=jnp.bfloat16)
BATCHES = shape(4, 32, 256, dtype=jnp.bfloat16)
