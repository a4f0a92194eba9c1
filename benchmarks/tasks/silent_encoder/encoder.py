"""Turns a recording into a few numbers."""

import jax
import jax.numpy as jnp

CHANNELS, WIDTH, SUMMARY = 3, 24, 12


def init(key):
    keys = jax.random.split(key, 4)
    normal = lambda key, *shape: jax.random.normal(key, shape) * shape[0] ** -0.5
    return {
        "filters": normal(keys[0], CHANNELS, WIDTH),
        "mix": normal(keys[1], WIDTH, WIDTH),
        "summary": normal(keys[2], WIDTH, SUMMARY),
        "shift": 0.5 + jnp.abs(jax.random.normal(keys[3], (WIDTH,))),
    }


def limited(x):
    """Spikes of the sensor are cut off."""
    return jnp.clip(x, -4.0, 4.0)


def frames(params, samples):
    """Of each sample, f32[batch, samples, WIDTH]."""
    h = jnp.tanh(limited(samples) @ params["filters"])
    return jnp.tanh(h @ params["mix"] + params["shift"])


def pooled(h):
    """The energy of a recording."""
    return jnp.sum(h * h, axis=1)


def encode(params, samples):
    energy = pooled(frames(params, samples))
    summary = jnp.tanh(energy @ jnp.abs(params["summary"]))
    return summary / jnp.sqrt(jnp.sum(summary**2, axis=-1, keepdims=True))
