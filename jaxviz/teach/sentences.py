"""The sentences on which notebooks train a small language model, which the reader sees, and the training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

NAMES = ["Ann", "Bob", "Cid", "Dan", "Eve", "Fay", "Gus", "Hal"]
WORDS = [*NAMES, "and", "met", ".", "gave", "a", "to", "ball", "book", "coin"]
"""All words; the number of one is its place."""


def encode(text: str) -> jax.Array:
    """int[n]: the numbers of words."""
    return jnp.array([WORDS.index(word) for word in text.split()])


def examples(rng: np.random.Generator, n: int) -> np.ndarray[Any, Any]:
    """int[n, 11]: sentences in which two people meet, and one of them gives something to the other."""
    words = np.tile(encode("Ann and Ann met . Ann gave a ball to Ann"), (n, 1))
    names = rng.permuted(np.tile(np.arange(len(NAMES)), (n, 1)), axis=1)
    giver = rng.integers(2, size=n)
    words[:, [0, 2]] = names[:, :2]
    words[:, 5], words[:, 10] = names[np.arange(n), giver], names[np.arange(n), 1 - giver]
    words[:, 8] = rng.integers(WORDS.index("ball"), len(WORDS), n)
    return words


def untrained(rng: np.random.Generator, layers: int, width: int) -> dict[str, Any]:
    """Random parameters; those of all layers are stacked."""
    normal = lambda *shape: jnp.asarray(0.1 * rng.normal(size=shape), jnp.float32)
    shapes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
    blocks = {name: normal(layers, *shape) for name, shape in shapes.items()}
    ends = {"embed": normal(len(WORDS), width), "position": normal(10, width), "unembed": normal(width, len(WORDS))}
    return {**ends, "blocks": blocks}


@partial(jax.jit, static_argnums=0)
def trained(loss: Callable[..., Any], params: Any, batches: Any) -> tuple[Any, Any]:
    """The parameters after a step of Adam with each batch, and the losses."""

    def step(carry: Any, inputs: Any) -> Any:
        params, mean, square = carry
        n, batch = inputs
        value, gradient = jax.value_and_grad(loss)(params, batch)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
        square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g**2, square, gradient)
        rate = 5e-3 * jnp.minimum(n / 30, jnp.minimum(1, 3 * (1 - n / len(batches)) + 0.02)) / (1 - 0.9**n)
        params = jax.tree.map(lambda p, m, s: p - rate * m / (jnp.sqrt(s / (1 - 0.99**n)) + 1e-8), params, mean, square)
        return (params, mean, square), value

    zeros = jax.tree.map(jnp.zeros_like, params)
    numbers = 1.0 + jnp.arange(len(batches))
    (params, *_), losses = jax.lax.scan(step, (params, zeros, zeros), (numbers, batches))
    return params, losses
