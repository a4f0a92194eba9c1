"""Adam for parameters in bfloat16, with moments in float32."""

import jax
import jax.numpy as jnp

RATE, B1, B2, EPS = 1e-2, 0.9, 0.99, 1e-8


def init(params):
    return {
        "count": jnp.zeros((), jnp.int32),
        "mu": jax.tree.map(jnp.zeros_like, params),
        "nu": jax.tree.map(jnp.zeros_like, params),
    }


def update(grads, state, params):
    count = state["count"] + 1
    grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
    mu = jax.tree.map(lambda m, g: B1 * m + (1 - B1) * g, state["mu"], grads)
    nu = jax.tree.map(lambda n, g: B2 * n + (1 - B2) * g * g, state["nu"], grads)

    def moved(p, m, n):
        step = m / (1 - B1**count) / (jnp.sqrt(n / (1 - B2**count)) + EPS)
        return (p - RATE * step).astype(p.dtype)

    return jax.tree.map(moved, params, mu, nu), {"count": count, "mu": mu, "nu": nu}
