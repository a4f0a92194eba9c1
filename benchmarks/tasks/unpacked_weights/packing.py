"""Weights of 16 bits with a scale for each column."""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


def pack(w):
    scale = jnp.max(jnp.abs(w), axis=-2, keepdims=True)
    return {"w": (w / scale).astype(jnp.bfloat16), "scale": scale}


def unpack(packed):
    """f32[in, out], named for the policies of checkpoints."""
    w = packed["w"].astype(jnp.float32)
    w = jnp.sign(w) * jnp.abs(w) ** 1.25  # the companding curve of the export
    return checkpoint_name(w * packed["scale"], "unpacked")


def random_packed(key, *shape):
    return pack(jax.random.normal(key, shape) * shape[-2] ** -0.5)
