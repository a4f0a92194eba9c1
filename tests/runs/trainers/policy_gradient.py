"""A policy gradient with rollouts in a scan, as in Brax."""

import functools

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn


class Policy(nn.Module):
    @nn.compact
    def __call__(self, x):
        for w in (32, 32):
            x = nn.tanh(nn.Dense(w)(x))
        return nn.Dense(1)(x)


policy = Policy()


def env_step(s, a):
    p, v = s
    v = v + 0.05 * a[0]
    return (p + 0.05 * v, v)


def rollout(params, key):
    def f(s, k):
        obs = jnp.stack(s)
        mean = policy.apply(params, obs)
        a = mean + 0.1 * jax.random.normal(k, (1,))
        s2 = env_step(s, a)
        return s2, -((s2[0] - 1) ** 2)

    _, r = jax.lax.scan(f, (jnp.float32(0), jnp.float32(0)), jax.random.split(key, 50))
    return r.sum()


def loss(params, key):
    return -jnp.mean(jax.vmap(rollout, (None, 0))(params, jax.random.split(key, 16)))


tx = optax.adam(1e-3)


@functools.partial(jax.jit, static_argnames="n")
def train_epoch(params, opt, key, n):
    def body(c, k):
        params, opt = c
        l, g = jax.value_and_grad(loss)(params, k)
        u, opt = tx.update(g, opt)
        return (optax.apply_updates(params, u), opt), l

    return jax.lax.scan(body, (params, opt), jax.random.split(key, n))


params = policy.init(jax.random.key(0), jnp.zeros(2))
opt = tx.init(params)
(params, opt), l = train_epoch(params, opt, jax.random.key(1), n=5)
print([float(v).hex() for v in l])
