"""Measurements of a sensor, and the model that we fitted to it."""

import jax
import jax.numpy as jnp

STATES = 6


def recording():
    """A day: f32[400], in volts."""
    day = jnp.sin(jnp.arange(400) / 30) + 0.1 * jax.random.normal(jax.random.key(4), (400,))
    day = day.at[100:104].add(2.5)
    day = day.at[217].add(-1.9)
    return day.at[263].add(5.4)


def fitted():
    stay = 0.95 * jnp.eye(STATES) + 0.05 / STATES
    return {
        "start": jnp.full(STATES, 1 / STATES),
        "transition": stay / stay.sum(1, keepdims=True),
        "mean": jnp.linspace(-1.0, 1.0, STATES),
        "width": jnp.array([0.3, 0.25, 0.25, 0.25, 0.25, 0.3]),
    }
