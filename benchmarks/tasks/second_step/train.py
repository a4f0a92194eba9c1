"""Trains a small network in bfloat16."""

import jax
import jax.numpy as jnp
import optimizer
import scaling


def init(key):
    a, b = jax.random.split(key)
    w = lambda key, *shape: (jax.random.normal(key, shape) * shape[0] ** -0.5).astype(jnp.bfloat16)
    return {"up": w(a, 16, 64), "down": w(b, 64, 1)}


def loss(params, x, y):
    predicted = (jnp.tanh(x.astype(jnp.bfloat16) @ params["up"]) @ params["down"])[:, 0]
    return jnp.mean((predicted.astype(jnp.float32) - y) ** 2)


@jax.jit
def step(state, x, y):
    params, moments, scale = state
    value, grads = jax.value_and_grad(lambda p: scale * loss(p, x, y))(params)
    finite = scaling.is_finite(grads)
    grads = jax.tree.map(lambda g: (g / scale).astype(g.dtype), grads)
    new = optimizer.update(grads, moments, params)
    params, moments = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, (params, moments))
    return (params, moments, scaling.adjusted(scale, finite)), value / scale


def run(key, steps):
    """The parameters and the losses after some steps."""
    params = init(key)
    state = params, optimizer.init(params), scaling.start()
    losses = []
    for i in range(steps):
        x = jax.random.normal(jax.random.fold_in(key, i), (32, 16))
        state, value = step(state, x, jnp.sin(x.sum(-1)))
        losses.append(float(value))
    return state[0], losses


if __name__ == "__main__":
    print(run(jax.random.key(0), 5)[1])
