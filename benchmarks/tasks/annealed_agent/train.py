"""Evolution strategies: of two variants of the agent, the one with the larger reward stays."""

import equinox as eqx
import jax
import jax.numpy as jnp
from agent import Agent
from rollout import PUSHES, rollout


def mutated(agent, key, size=0.1):
    arrays, rest = eqx.partition(agent, lambda x: eqx.is_array(x) and x.ndim > 0)
    leaves, tree = jax.tree.flatten(arrays)
    keys = jax.random.split(key, len(leaves))
    leaves = [x + size * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
    return eqx.combine(jax.tree.unflatten(tree, leaves), rest)


def run(key, epochs):
    """The mean reward of each epoch."""
    agent = Agent(key, 2, len(PUSHES))
    history = []
    for epoch in range(epochs):
        a, b = jax.random.split(jax.random.fold_in(key, epoch))
        other = mutated(agent, a)
        rewards = [jnp.mean(rollout(candidate, b)) for candidate in (agent, other)]
        history.append(float(max(rewards)))
        agent = (agent if rewards[0] >= rewards[1] else other).annealed()
    return history


if __name__ == "__main__":
    print(run(jax.random.key(0), 5))
