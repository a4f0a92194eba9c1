"""A layer of attention, and its loss."""

import jax
import jax.numpy as jnp


def attention(q, k, v, chunk=64):
    """Of f32[tokens, dim] each."""
    del chunk
    scores = q @ k.T * q.shape[-1] ** -0.5
    return jax.nn.softmax(scores, axis=-1) @ v


def loss_of(attention):
    def loss(params, x, y, chunk=64):
        q, k, v = (x @ params[name] for name in "qkv")
        return jnp.mean((attention(q, k, v, chunk) @ params["out"] - y) ** 2)

    return loss


loss = loss_of(attention)


def init(key, width=32):
    keys = jax.random.split(key, 4)
    w = lambda key: jax.random.normal(key, (width, width)) * 1.5 * width**-0.5
    return {name: w(k) for name, k in zip(["q", "k", "v", "out"], keys, strict=True)}


def batch(key, tokens=192, width=32):
    return tuple(jax.random.normal(key, (2, tokens, width)))
