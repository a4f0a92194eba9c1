"""Scores a document by its words, of which the last ones count most."""

import jax
import jax.numpy as jnp

WORDS, WIDTH, DECAY = 50, 16, 0.97


def init(key):
    a, b = jax.random.split(key)
    return {"embed": jax.random.normal(a, (WORDS, WIDTH)), "out": jax.random.normal(b, (WIDTH, WORDS))}


def recency(mask):
    """A weight of each token, by its distance from the end."""
    t = jnp.arange(mask.shape[1])
    return DECAY ** (mask.shape[1] - 1 - t) * mask


def batch_loss(params, tokens, mask):
    """How badly each token is predicted from those before it, in the mean over the tokens of the batch."""
    x = params["embed"][tokens] * mask[..., None]
    before = (jnp.cumsum(x, axis=1) - x) / jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 1)[..., None]
    log_p = jax.nn.log_softmax(jnp.tanh(before) @ params["out"])
    losses = -jnp.take_along_axis(log_p, tokens[..., None], axis=-1)[..., 0]
    weights = recency(mask)
    return jnp.sum(weights * losses) / jnp.sum(weights)
