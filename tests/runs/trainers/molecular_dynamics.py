"""Molecular dynamics: forces are gradients in a loop, as with JAX MD."""

import jax
import jax.numpy as jnp


def energy(R):
    d = R[:, None] - R[None]
    r2 = jnp.sum(d**2, -1) + jnp.eye(R.shape[0])
    s = (1 / r2) ** 3
    return 2 * jnp.sum((s**2 - s) * (1 - jnp.eye(R.shape[0])))


force = lambda R: -jax.grad(energy)(R)


@jax.jit
def simulate(R, V):
    def step(i, s):
        R, V = s
        V = V + 0.5e-3 * force(R)
        R = R + 1e-3 * V
        return R, V + 0.5e-3 * force(R)

    return jax.lax.fori_loop(0, 100, step, (R, V))


x = jnp.arange(4.0) * 1.2
R = jnp.stack(jnp.meshgrid(x, x), -1).reshape(-1, 2)
R, V = simulate(R, jnp.zeros_like(R))
print(float(energy(R)).hex())
