"""A deep residual network on tables."""

from functools import partial

import jax
import jax.numpy as jnp

LAYERS, ROWS, WIDTH, WIDE = 8, 2048, 128, 512


def init(key, layers=LAYERS):
    params = []
    for k in jax.random.split(key, layers):
        a, b = jax.random.split(k)
        up = jax.random.normal(a, (WIDTH, WIDE)) * WIDTH**-0.5
        params.append({"up": up, "down": jax.random.normal(b, (WIDE, WIDTH)) * WIDE**-0.5, "shift": jnp.zeros(WIDTH)})
    return params


def standardized(x):
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)


@partial(jax.checkpoint, prevent_cse=False)
def layer(x, w):
    h = jnp.tanh((standardized(x) + w["shift"]) @ w["up"])
    h = h * jax.nn.sigmoid(h)
    return x + h @ w["down"]


def apply(params, x):
    for w in params:
        x = layer(x, w)
    return x


def loss(params, x, y):
    return jnp.mean(jnp.abs(apply(params, x) - y) ** 1.5)


def types():
    """The types of the arguments of `loss` in training."""
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    return jax.eval_shape(init, jax.random.key(0)), x, x


if __name__ == "__main__":
    compiled = jax.jit(jax.grad(loss)).lower(*types()).compile()
    print(f"{compiled.memory_analysis().temp_size_in_bytes:,} bytes of temporaries")
