"""A gated recurrent cell."""

import jax
import jax.numpy as jnp

INPUTS, WIDTH = 8, 32


def init(key):
    a, b, c, d = jax.random.split(key, 4)
    return {
        "input": jax.random.normal(a, (INPUTS, 2 * WIDTH)) * INPUTS**-0.5,
        "state": jax.random.normal(b, (WIDTH, 2 * WIDTH)) * WIDTH**-0.5,
        "bias": jnp.zeros(2 * WIDTH),
        "out": jax.random.normal(c, (WIDTH,)) * WIDTH**-0.5,
        "start": 0.1 * jax.random.normal(d, (WIDTH,)),
    }


def cell(params, h, x):
    gate, candidate = jnp.split(x @ params["input"] + h @ params["state"] + params["bias"], 2, axis=-1)
    gate = jax.nn.sigmoid(gate)
    return gate * h + (1 - gate) * jnp.tanh(candidate)
