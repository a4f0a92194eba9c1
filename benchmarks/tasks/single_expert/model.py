"""A classifier with a layer of experts."""

import jax
import jax.numpy as jnp
from moe import EXPERTS, layer

WIDTH, WIDE, CLASSES, K = 16, 32, 6, 1


def init(key):
    a, b, c, d = jax.random.split(key, 4)
    return {
        "router": jax.random.normal(a, (WIDTH, EXPERTS)) * WIDTH**-0.5,
        "experts": {
            "up": jax.random.normal(b, (EXPERTS, WIDTH, WIDE)) * WIDTH**-0.5,
            "down": jax.random.normal(c, (EXPERTS, WIDE, WIDTH)) * WIDE**-0.5,
        },
        "out": jax.random.normal(d, (WIDTH, CLASSES)) * WIDTH**-0.5,
    }


def loss(params, x, labels, k=K):
    x, balance = layer(x, params, k)
    log_p = jax.nn.log_softmax(x @ params["out"])
    return -jnp.mean(jnp.take_along_axis(log_p, labels[:, None], axis=-1)) + 0.01 * balance


def batch(key, n=64):
    x = jax.random.normal(key, (n, WIDTH))
    return x, jnp.argmax(x[:, :CLASSES], axis=-1)


if __name__ == "__main__":
    params = init(jax.random.key(0))
    for i in range(5):
        value, grads = jax.jit(jax.value_and_grad(loss))(params, *batch(jax.random.key(i)))
        params = jax.tree.map(lambda p, g: p - 0.5 * g, params, grads)
        print(i, value, jnp.max(jnp.abs(grads["router"])))
