"""Trains the tagger, with gradients summed over microbatches."""

import jax
import jax.numpy as jnp
from losses import metrics, microbatch_loss
from model import CLASSES, TOKENS, init

MICROBATCHES, BATCH, LENGTH = 16, 64, 64


def step(params, tokens, tags):
    """The new parameters and the metrics of a batch i32[batch, length]."""
    split = lambda x: x.reshape(MICROBATCHES, -1, *x.shape[1:])

    def add(total, microbatch):
        grads, outputs = jax.grad(microbatch_loss, has_aux=True)(params, *microbatch)
        return jax.tree.map(jnp.add, total, grads), outputs

    zeros = jax.tree.map(jnp.zeros_like, params)
    total, outputs = jax.lax.scan(add, zeros, (split(tokens), split(tags)))
    params = jax.tree.map(lambda p, g: p - 0.1 * g / MICROBATCHES, params, total)
    return params, metrics(outputs, tags)


def types():
    """The types of the arguments of `step` in training."""
    batch = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    return jax.eval_shape(init, jax.random.key(0)), batch, batch


if __name__ == "__main__":
    params = init(jax.random.key(0))
    for i in range(3):
        tokens = jax.random.randint(jax.random.key(i), (BATCH, LENGTH), 0, TOKENS)
        params, values = jax.jit(step)(params, tokens, tokens % CLASSES)
        print(i, {name: float(value) for name, value in values.items()})
