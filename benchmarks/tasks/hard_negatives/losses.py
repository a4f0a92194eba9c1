"""A contrastive loss with hard negatives."""

import jax
import jax.numpy as jnp

TEMPERATURE, MARGIN, HARD = 0.1, 0.2, 8


def similarities(a, b):
    """Of each image with each caption."""
    return a @ b.T


def contrastive(scores):
    own = jnp.diagonal(scores)
    return jnp.mean(jax.nn.logsumexp(scores / TEMPERATURE, axis=1) - own / TEMPERATURE)


def hardest(scores):
    """For each caption, the scores of the images that are the most difficult to tell from its own."""
    others = jnp.where(jnp.eye(len(scores), dtype=bool), -1.0, scores)
    ranked = jnp.sort(others, axis=0)
    return ranked[-HARD:]


def hinge(scores):
    own = jnp.diagonal(scores)
    return jnp.mean(jnp.maximum(hardest(scores) - own + MARGIN, 0.0))
