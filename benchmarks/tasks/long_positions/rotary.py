"""Rotations of queries and keys by their positions."""

import jax.numpy as jnp

BASE = 10_000.0


def frequencies(dim):
    return BASE ** (-jnp.arange(0, dim, 2) / dim)


def tables(positions, dim, dtype):
    """Cosines and sines, [tokens, dim / 2] each."""
    steps = positions.astype(dtype)
    angles = steps[:, None] * frequencies(dim).astype(jnp.float32)
    return jnp.cos(angles).astype(dtype), jnp.sin(angles).astype(dtype)


def rotated(x, cos, sin):
    a, b = jnp.split(x, 2, axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
