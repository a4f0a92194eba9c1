"""Attention over a long document, with activations of any type."""

import jax
import jax.numpy as jnp
from rotary import rotated, tables

WIDTH, HEADS, DIM, WORDS = 64, 4, 16, 100


def init(key):
    shapes = {"embed": (WORDS, WIDTH), "qkv": (WIDTH, 3 * HEADS * DIM), "out": (HEADS * DIM, WIDTH)}
    keys = jax.random.split(key, len(shapes))
    return {n: jax.random.normal(k, s) * s[0] ** -0.5 for k, (n, s) in zip(keys, shapes.items(), strict=True)}


def normed(x):
    variance = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
    return (x * jax.lax.rsqrt(variance + 1e-6)).astype(x.dtype)


def attention(params, x, positions):
    t = len(x)
    q, k, v = (y.reshape(t, HEADS, DIM) for y in jnp.split(x @ params["qkv"], 3, axis=-1))
    cos, sin = tables(positions, DIM, x.dtype)
    q, k = rotated(q, cos, sin), rotated(k, cos, sin)
    scores = jnp.einsum("qhd,khd->hqk", q, k, preferred_element_type=jnp.float32) * DIM**-0.5 * 8
    scores = jnp.where(jnp.tri(t, dtype=bool), scores, -1e30)
    weights = jax.nn.softmax(scores).astype(x.dtype)
    return jnp.einsum("hqk,khd->qhd", weights, v).reshape(t, -1) @ params["out"]


def loss(params, tokens, dtype):
    params = jax.tree.map(lambda p: p.astype(dtype), params)
    x = params["embed"][tokens[:-1]]
    x = 0.1 * x + 4 * attention(params, normed(x), jnp.arange(len(x)))
    logits = jnp.matmul(normed(x), params["embed"].T, preferred_element_type=jnp.float32)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - logits[jnp.arange(len(x)), tokens[1:]])


def in_32_bits(params, tokens):
    return loss(params, tokens, jnp.float32)


def in_16_bits(params, tokens):
    return loss(params, tokens, jnp.bfloat16)


def document(length=1200):
    return jax.random.randint(jax.random.key(3), (length + 1,), 0, WORDS)


if __name__ == "__main__":
    params = init(jax.random.key(0))
    for length in (100, 1200):
        print(length, in_32_bits(params, document(length)), in_16_bits(params, document(length)))
