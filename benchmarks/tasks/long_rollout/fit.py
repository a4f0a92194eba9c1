"""Charges from an observed trajectory."""

import jax
import jax.numpy as jnp
from simulation import simulate

PARTICLES, STEPS = 32, 1_000


def misfit(charges, start, observed):
    positions, velocities = start
    trajectory, energy = simulate(charges, positions, velocities, len(observed))
    drift = jnp.mean((energy - energy[0]) ** 2)
    return jnp.mean((trajectory - observed) ** 2) + 1e-4 * drift


def types():
    """The types of the arguments of `misfit` in a fit."""
    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return f32(PARTICLES), (f32(PARTICLES, 3), f32(PARTICLES, 3)), f32(STEPS, PARTICLES, 3)


if __name__ == "__main__":
    key = jax.random.key(0)
    start = jax.random.uniform(key, (PARTICLES, 3)), jnp.zeros((PARTICLES, 3))
    charges = jax.random.normal(key, (PARTICLES,))
    observed, _ = simulate(charges, *start, STEPS)
    guess = jnp.zeros(PARTICLES) + 0.1
    gradient = jax.jit(jax.value_and_grad(misfit))
    for i in range(5):
        value, g = gradient(guess, start, observed)
        guess = guess - g / jnp.linalg.norm(g) * 0.1
        print(i, value)
