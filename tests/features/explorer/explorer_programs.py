"""A program with layers, to test what the explorer shows of scopes and saved values."""

import jax.numpy as jnp


def block(p, x):
    return x + jnp.tanh(x @ p["up"]) @ p["down"]


def layers(params, x):
    for p in params:
        x = block(p, x)
    return jnp.sum(x**2)


layers_args = ([{"up": jnp.ones((8, 16)), "down": jnp.ones((16, 8))}] * 3, jnp.ones((4, 8)))
