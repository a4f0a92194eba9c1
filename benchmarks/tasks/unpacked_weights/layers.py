"""Blocks with packed weights, in a scan."""

import jax
import jax.numpy as jnp
from packing import random_packed, unpack

LAYERS, ROWS, WIDTH, WIDE = 6, 128, 256, 1024
POLICY = jax.checkpoint_policies.save_anything_except_these_names("unpacked")


def init(key):
    a, b = jax.random.split(key)
    return {"up": random_packed(a, LAYERS, WIDTH, WIDE), "down": random_packed(b, LAYERS, WIDE, WIDTH)}


def block(x, packed):
    h = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    h = jax.nn.gelu(h @ unpack(packed["up"]))
    return x + h @ unpack(packed["down"]), None


def loss(params, x, y):
    x, _ = jax.lax.scan(jax.checkpoint(block, policy=POLICY), x, params)
    return jnp.mean((x - y) ** 2)


def types():
    """The types of the arguments of `loss` in training."""
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    return jax.eval_shape(init, jax.random.key(0)), x, x


if __name__ == "__main__":
    x, y = jax.random.normal(jax.random.key(1), (2, ROWS, WIDTH))
    print(jax.jit(jax.value_and_grad(loss))(init(jax.random.key(0)), x, y)[0])
