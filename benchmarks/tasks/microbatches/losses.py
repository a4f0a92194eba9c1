"""The loss of a microbatch, and what is printed of it."""

import jax
import jax.numpy as jnp
from model import Tagger


def microbatch_loss(params, tokens, tags):
    logits = Tagger().apply(params, tokens)
    log_p = jax.nn.log_softmax(logits)
    loss = -jnp.mean(jnp.take_along_axis(log_p, tags[..., None], axis=-1))
    return loss, {"log_p": log_p, "loss": loss}


def metrics(outputs, tags):
    """Of all microbatches."""
    log_p = outputs["log_p"].reshape(*tags.shape, -1)
    entropy = -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
    return {
        "loss": jnp.mean(outputs["loss"]),
        "accuracy": jnp.mean(jnp.argmax(log_p, axis=-1) == tags),
        "perplexity": jnp.exp(jnp.mean(entropy)),
    }
