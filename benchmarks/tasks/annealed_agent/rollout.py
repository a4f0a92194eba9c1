"""Episodes of a cart that is pushed to the origin."""

import equinox as eqx
import jax
import jax.numpy as jnp

PUSHES = jnp.array([-1.0, 0.0, 1.0])


def environment(state, action):
    position, speed = state
    speed = 0.98 * speed + 0.1 * PUSHES[action]
    position = position + 0.1 * speed
    return jnp.stack([position, speed]), -jnp.abs(position)


@eqx.filter_jit
def rollout(agent, key, steps=50):
    """The rewards, f32[8, steps], of episodes from random starts."""

    def episode(key):
        start, key = jax.random.split(key)

        def step(state, key):
            return environment(state, agent.act(key, state))

        _, rewards = jax.lax.scan(step, jax.random.normal(start, (2,)), jax.random.split(key, steps))
        return rewards

    return jax.vmap(episode)(jax.random.split(key, 8))
