"""Trains the language model on random tokens."""

import jax
import jax.numpy as jnp
from model import hidden, init

VOCABULARY, BATCH, LENGTH = 32_000, 4, 256


def smoothed(logits, labels, amount=0.1):
    """The cross-entropy with smoothed labels."""
    log_p = logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    picked = jnp.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0]
    return -(1 - amount) * picked - amount * jnp.mean(log_p, axis=-1)


def loss(params, tokens):
    x = hidden(params, tokens[:, :-1])
    return jnp.mean(smoothed(x @ params["unembed"], tokens[:, 1:]))


def types():
    """The types of the arguments of `loss` in training."""
    params = jax.eval_shape(lambda: init(jax.random.key(0), VOCABULARY))
    return params, jax.ShapeDtypeStruct((BATCH, LENGTH + 1), jnp.int32)


@jax.jit
def step(params, tokens):
    value, grads = jax.value_and_grad(loss)(params, tokens)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


if __name__ == "__main__":
    params = init(jax.random.key(0), VOCABULARY)
    for i in range(3):
        tokens = jax.random.randint(jax.random.key(i), (BATCH, LENGTH + 1), 0, VOCABULARY)
        value, params = step(params, tokens)
        print(i, value)
