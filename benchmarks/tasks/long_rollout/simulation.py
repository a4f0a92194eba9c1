"""Charged particles whose fields travel with a finite speed: each feels where the others were a while ago."""

from functools import partial

import jax
import jax.numpy as jnp

DT, DELAY = 1e-3, 4


def forces(charges, positions, earlier):
    """On particles, by those at their earlier positions."""
    apart = positions[:, None] - earlier[None]
    squared = jnp.sum(apart**2, axis=-1) + 1e-2
    strength = charges[:, None] * charges[None] * squared**-1.5
    return jnp.sum(strength[..., None] * apart, axis=1)


def leapfrog(charges, positions, velocities, earlier):
    velocities = velocities + 0.5 * DT * forces(charges, positions, earlier)
    positions = positions + DT * velocities
    return positions, velocities + 0.5 * DT * forces(charges, positions, earlier)


def record(log, step, positions, velocities):
    """Enters a step into the log."""
    return {
        "positions": log["positions"].at[step].set(positions),
        "energy": log["energy"].at[step].set(0.5 * jnp.sum(velocities**2)),
    }


def simulate(charges, positions, velocities, steps):
    """The trajectory, f32[steps, particles, 3], and the kinetic energies.

    The force of a step is that of the positions `DELAY` steps before; until then, that of the first positions.
    """
    first = positions
    log = {"positions": jnp.zeros((steps, *positions.shape)), "energy": jnp.zeros(steps)}

    @partial(jax.checkpoint, static_argnums=())
    def step(state, i):
        positions, velocities, log = state
        earlier = jnp.where(i < DELAY, first, log["positions"][i - DELAY])
        positions, velocities = leapfrog(charges, positions, velocities, earlier)
        return (positions, velocities, record(log, i, positions, velocities)), None

    (_, _, log), _ = jax.lax.scan(step, (positions, velocities, log), jnp.arange(steps))
    return log["positions"], log["energy"]
