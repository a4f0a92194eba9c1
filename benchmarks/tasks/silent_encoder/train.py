"""Trains encoder and head, with a slow copy of the encoder as a teacher."""

import jax
import jax.numpy as jnp
from encoder import CHANNELS, SUMMARY, encode
from encoder import init as encoder_init

CLASSES = 4


def init(key):
    a, b = jax.random.split(key)
    return {"encoder": encoder_init(a), "head": jax.random.normal(b, (SUMMARY, CLASSES)), "bias": jnp.zeros(CLASSES)}


def consistency(code, teacher):
    """How far the code is from that of the teacher, which is not trained."""
    return jnp.mean((code - jax.lax.stop_gradient(teacher)) ** 2)


def loss(params, teacher, samples, labels):
    code = encode(params["encoder"], samples)
    logits = jnp.clip(code @ params["head"] + params["bias"], -20.0, 20.0)
    log_p = jax.nn.log_softmax(logits)
    fit = -jnp.mean(jnp.take_along_axis(log_p, labels[:, None], axis=-1))
    return fit + 0.1 * consistency(code, encode(teacher, samples))


def batch(seed=0, n=8, length=1500):
    a, b = jax.random.split(jax.random.key(seed))
    return jax.random.normal(a, (n, length, CHANNELS)), jax.random.randint(b, (n,), 0, CLASSES)


if __name__ == "__main__":
    params = init(jax.random.key(0))
    teacher = encoder_init(jax.random.key(1))
    for i in range(3):
        value, grads = jax.jit(jax.value_and_grad(loss))(params, teacher, *batch(i))
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        print(i, value, jax.tree.map(lambda g: float(jnp.max(jnp.abs(g))), grads))
