"""Attention with a running maximum and sum over chunks of the keys, and the same in the backward pass."""

from functools import partial

import jax
import jax.numpy as jnp
from plain import batch, init, loss_of


def chunks(x, size):
    return x.reshape(-1, size, x.shape[-1])


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def attention(q, k, v, chunk=64):
    """Of f32[tokens, dim] each; `chunk` divides the number of tokens, or is larger."""
    return forward(q, k, v, chunk)[0]


def forward(q, k, v, chunk):
    chunk = min(chunk, len(k))
    q = q * q.shape[-1] ** -0.5

    def step(carry, k_v):
        largest, total, out = carry
        k, v = k_v
        scores = q @ k.T
        new = jnp.maximum(largest, jnp.max(scores, axis=-1))
        p, rescaled = jnp.exp(scores - new[:, None]), jnp.exp(largest - new)
        return (new, total * rescaled + jnp.sum(p, axis=-1), out * rescaled[:, None] + p @ v), None

    start = jnp.full(len(q), -jnp.inf), jnp.zeros(len(q)), jnp.zeros((len(q), v.shape[-1]))
    (largest, total, out), _ = jax.lax.scan(step, start, (chunks(k, chunk), chunks(v, chunk)))
    out = out / total[:, None]
    return out, (q, k, v, largest + jnp.log(total))


def backward(chunk, residuals, out_bar):
    q, k, v, log_total = residuals
    chunk = min(chunk, len(k))

    def step(q_bar, k_v):
        k, v = k_v
        p = jnp.exp(q @ k.T - log_total[:, None])
        v_bar = p.T @ out_bar
        p_bar = out_bar @ v.T
        mean = jnp.sum(p * p_bar, axis=-1, keepdims=True)
        scores_bar = p * (p_bar - mean)
        return q_bar + scores_bar @ k, (scores_bar.T @ q, v_bar)

    q_bar, (k_bar, v_bar) = jax.lax.scan(step, jnp.zeros_like(q), (chunks(k, chunk), chunks(v, chunk)))
    return q_bar * q.shape[-1] ** -0.5, k_bar.reshape(k.shape), v_bar.reshape(v.shape)


attention.defvjp(forward, backward)
loss = loss_of(attention)


if __name__ == "__main__":
    value, grads = jax.value_and_grad(loss)(init(jax.random.key(0)), *batch(jax.random.key(1)))
    print(value, jax.tree.map(jnp.linalg.norm, grads))
