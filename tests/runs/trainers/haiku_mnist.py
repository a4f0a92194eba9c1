"""MNIST with random images, as in Haiku's examples."""

from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax


class TrainingState(NamedTuple):
    params: hk.Params
    opt_state: optax.OptState


def net_fn(images):
    x = images.astype(jnp.float32) / 255.0
    return hk.Sequential([hk.Flatten(), hk.Linear(64), jax.nn.relu, hk.Linear(32), jax.nn.relu, hk.Linear(10)])(x)


network = hk.without_apply_rng(hk.transform(net_fn))
optimiser = optax.adam(1e-3)


def loss(params, images, labels):
    logits = network.apply(params, images)
    l2 = 0.5 * sum(jnp.sum(jnp.square(p)) for p in jax.tree.leaves(params))
    return -jnp.mean(jnp.sum(jax.nn.one_hot(labels, 10) * jax.nn.log_softmax(logits), -1)) + 1e-4 * l2


@jax.jit
def update(state, images, labels):
    grads = jax.grad(loss)(state.params, images, labels)
    updates, opt_state = optimiser.update(grads, state.opt_state)
    return TrainingState(optax.apply_updates(state.params, updates), opt_state)


rng = np.random.default_rng(0)
x = rng.integers(0, 255, (32, 28, 28, 1)).astype(np.uint8)
y = rng.integers(0, 10, 32)
p = network.init(jax.random.PRNGKey(0), x)
state = TrainingState(p, optimiser.init(p))
for i in range(3):
    state = update(state, x, y)
    print(i, float(loss(state.params, x, y)).hex())
