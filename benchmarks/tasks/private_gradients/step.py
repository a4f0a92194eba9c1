"""A step of DP-SGD."""

import jax
import jax.numpy as jnp
from model import init, loss

BATCH, NORM, NOISE, RATE = 64, 1.0, 0.5, 0.05


def clipped(grads):
    """A gradient with a global norm of `NORM` at most."""
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
    scale = jnp.minimum(1.0, NORM / (norm + 1e-12))
    return jax.tree.map(lambda g: g * scale, grads)


def noisy(key, grads):
    leaves, tree = jax.tree.flatten(grads)
    keys = jax.random.split(key, len(leaves))
    leaves = [g + NOISE * NORM * jax.random.normal(k, g.shape) for k, g in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, leaves)


def private_step(params, images, labels, key):
    value, grads = jax.vmap(jax.value_and_grad(loss), (None, 0, 0))(params, images, labels)
    grads = jax.vmap(clipped)(grads)
    total = noisy(key, jax.tree.map(lambda g: jnp.sum(g, axis=0), grads))
    return jnp.mean(value), jax.tree.map(lambda p, g: p - RATE * g / len(labels), params, total)


def types():
    """The types of the arguments of `private_step` in training."""
    of = jax.ShapeDtypeStruct
    params = jax.eval_shape(init, jax.random.key(0))
    key = jax.eval_shape(lambda: jax.random.key(0))
    return params, of((BATCH, 28, 28, 1), jnp.float32), of((BATCH,), jnp.int32), key


if __name__ == "__main__":
    params = init(jax.random.key(0))
    images, labels = jax.random.normal(jax.random.key(1), (BATCH, 28, 28, 1)), jnp.arange(BATCH) % 10
    for i in range(3):
        value, params = jax.jit(private_step)(params, images, labels, jax.random.key(i))
        print(i, value)
