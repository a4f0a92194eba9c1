"""Two small towers, for images and for captions."""

import jax
import jax.numpy as jnp

IMAGE, CAPTION, WIDE, WIDTH = 96, 64, 128, 32


def init(key):
    shapes = {
        "image": (IMAGE, WIDE),
        "caption": (CAPTION, WIDE),
        "image_out": (WIDE, WIDTH),
        "caption_out": (WIDE, WIDTH),
    }
    keys = jax.random.split(key, len(shapes))
    return {n: jax.random.normal(k, s) * s[0] ** -0.5 for k, (n, s) in zip(keys, shapes.items(), strict=True)}


def unit(x):
    return x / jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)


def standardized(h):
    """With the statistics of the whole batch."""
    return (h - jnp.mean(h, axis=0)) / jnp.sqrt(jnp.var(h, axis=0) + 1e-5)


def tower(x, w, out):
    return unit(jax.nn.relu(standardized(x @ w)) @ out)
