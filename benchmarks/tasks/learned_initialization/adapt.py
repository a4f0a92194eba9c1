"""The inner loop: a model of words and numbers, adapted to a task by a few steps of Adam."""

import jax
import jax.numpy as jnp
import optax

WORDS, WIDTH, INNER_STEPS, RATE = 50, 16, 4, 0.03


def init(key):
    a, b, c = jax.random.split(key, 3)
    return {
        "words": jax.random.normal(a, (WORDS, WIDTH)),
        "hidden": jax.random.normal(b, (WIDTH, WIDTH)) * WIDTH**-0.5,
        "out": jax.random.normal(c, (WIDTH,)) * WIDTH**-0.5,
    }


def predict(params, words):
    """From an example's bag of words, i32[batch, words]."""
    bag = jnp.mean(jax.nn.one_hot(words, WORDS), axis=1)
    x = bag @ params["words"]
    return jnp.tanh(x @ params["hidden"]) @ params["out"]


def task_loss(params, words, targets):
    return jnp.mean((predict(params, words) - targets) ** 2)


def inner_optimizer():
    return optax.chain(optax.clip_by_global_norm(10.0), optax.adam(RATE, eps=1e-3))


def adapted(params, words, targets):
    """The parameters after a few steps on a task's examples."""
    optimizer = inner_optimizer()

    def step(carry, _):
        params, state = carry
        grads = jax.grad(task_loss)(params, words, targets)
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), None, length=INNER_STEPS)
    return params
