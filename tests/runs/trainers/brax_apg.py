"""A policy trained by the gradient of a rollout, from the parts of Brax: its environment, networks and update."""

import functools

import jax
import jax.numpy as jnp
import optax
from brax import envs
from brax.training import gradients
from brax.training.agents.apg import networks

env = envs.training.wrap(envs.get_environment("inverted_pendulum", backend="generalized"), episode_length=100)
apg = networks.make_apg_networks(env.observation_size, env.action_size, hidden_layer_sizes=(16, 16))
make_policy = networks.make_inference_fn(apg)
optimizer = optax.chain(optax.clip(1.0), optax.adam(1e-3))


def loss(policy_params, env_state, key):
    policy = make_policy((None, policy_params))

    def env_step(carry, _):
        state, key = carry
        key, key_sample = jax.random.split(key)
        state = env.step(state, policy(state.obs, key_sample)[0])
        return (state, key), (state.reward, state.obs)

    _, (reward, obs) = jax.lax.scan(env_step, (env_state, key), None, length=8)
    return jnp.mean(jnp.sum(obs**2, -1) - reward)


update = gradients.gradient_update_fn(loss, optimizer, pmap_axis_name=None)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def training_step(policy_params, optimizer_state, env_state, key):
    value, policy_params, optimizer_state = update(policy_params, env_state, key, optimizer_state=optimizer_state)
    return policy_params, optimizer_state, value


params = apg.policy_network.init(jax.random.PRNGKey(0))
optimizer_state = optimizer.init(params)
state = jax.jit(env.reset)(jax.random.split(jax.random.PRNGKey(1), 4))
for n in range(3):
    params, optimizer_state, value = training_step(params, optimizer_state, state, jax.random.PRNGKey(n))
    print(n, float(value).hex())
