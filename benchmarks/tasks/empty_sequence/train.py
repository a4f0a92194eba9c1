"""Trains the classifier of documents."""

import jax
import jax.numpy as jnp
from model import CLASSES, init, log_probabilities


def loss(params, tokens, lengths, labels):
    log_p = log_probabilities(params, tokens, lengths)
    losses = -jnp.take_along_axis(log_p, labels[:, None], axis=-1)[:, 0]
    counted = lengths > 0
    return jnp.sum(jnp.where(counted, losses, 0.0)) / jnp.maximum(jnp.sum(counted), 1)


def batch():
    tokens = jax.random.randint(jax.random.key(1), (6, 12), 0, 100)
    return tokens, jnp.array([12, 3, 0, 7, 1, 12]), jnp.arange(6) % CLASSES


@jax.jit
def step(params, *batch):
    value, grads = jax.value_and_grad(loss)(params, *batch)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


if __name__ == "__main__":
    params = init(jax.random.key(0))
    for i in range(3):
        value, params = step(params, *batch())
        print(i, value)
