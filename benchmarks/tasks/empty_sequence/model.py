"""A classifier of documents: sentences attend to each other, then documents to their sentences."""

import jax
import jax.numpy as jnp

WIDTH, CLASSES = 32, 5


def init(key):
    shapes = {"embed": (100, WIDTH), "qkv": (WIDTH, 3 * WIDTH), "pool": (WIDTH, 1), "out": (WIDTH, CLASSES)}
    keys = jax.random.split(key, len(shapes))
    params = {n: jax.random.normal(k, s) * s[0] ** -0.5 for k, (n, s) in zip(keys, shapes.items(), strict=True)}
    return params | {"scale": jnp.ones(WIDTH)}


def normed(x, scale):
    variance = jnp.mean(jnp.square(x - x.mean(-1, keepdims=True)), axis=-1, keepdims=True)
    return scale * x / jnp.sqrt(variance + 1e-5)


def masked_softmax(scores, mask):
    return jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)


def attention(params, x, mask):
    q, k, v = jnp.split(x @ params["qkv"], 3, axis=-1)
    scores = jnp.einsum("bqd,bkd->bqk", q, k) * WIDTH**-0.5
    mixed = jnp.einsum("bqk,bkd->bqd", masked_softmax(scores, mask[:, None, :]), v)
    return jnp.where(mask[..., None], mixed, 0.0)


def pooled(params, x, mask):
    """A weighted mean over the tokens of each document."""
    weights = masked_softmax((x @ params["pool"])[..., 0], mask)
    weights = jnp.where(jnp.any(mask, axis=-1, keepdims=True), weights, 0.0)
    return jnp.einsum("bt,btd->bd", weights, x)


def log_probabilities(params, tokens, lengths):
    mask = jnp.arange(tokens.shape[1]) < lengths[:, None]
    x = params["embed"][tokens]
    x = x + attention(params, normed(x, params["scale"]), mask)
    return jax.nn.log_softmax(pooled(params, x, mask) @ params["out"])
