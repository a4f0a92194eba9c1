"""A small decoder: scanned layers, each of them checkpointed."""

from functools import partial

import jax
import jax.numpy as jnp

WIDTH, HEADS, LAYERS = 128, 4, 6


def init(key, vocabulary):
    keys = iter(jax.random.split(key, 6))
    normal = lambda *shape: jax.random.normal(next(keys), shape) * shape[-2] ** -0.5
    return {
        "embed": normal(vocabulary, WIDTH) * WIDTH**0.5,
        "layers": {
            "qkv": normal(LAYERS, WIDTH, 3 * WIDTH),
            "out": normal(LAYERS, WIDTH, WIDTH),
            "up": normal(LAYERS, WIDTH, 4 * WIDTH),
            "down": normal(LAYERS, 4 * WIDTH, WIDTH),
        },
        "unembed": normal(WIDTH, vocabulary),
    }


def normed(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def attention(x, w):
    b, t, d = x.shape
    q, k, v = (y.reshape(b, t, HEADS, -1) for y in jnp.split(x @ w["qkv"], 3, axis=-1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (d // HEADS) ** -0.5
    scores = jnp.where(jnp.tri(t, dtype=bool), scores, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(b, t, d) @ w["out"]


@partial(jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable)
def layer(x, w):
    x = x + attention(normed(x), w)
    return x + jax.nn.gelu(normed(x) @ w["up"]) @ w["down"], None


def hidden(params, tokens):
    x, _ = jax.lax.scan(layer, params["embed"][tokens], params["layers"])
    return normed(x)
