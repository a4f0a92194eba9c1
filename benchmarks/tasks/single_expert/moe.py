"""A layer of experts, of which each token uses a few."""

import jax
import jax.numpy as jnp

EXPERTS = 4


def dispatched(weights, chosen):
    """f32[tokens, experts] of the weights of the chosen experts."""
    rows = jnp.arange(len(chosen))[:, None]
    return jnp.zeros((len(chosen), EXPERTS)).at[rows, chosen].add(weights)


def route(x, router, k):
    """How much of each expert each token uses."""
    logits = x @ router
    top, chosen = jax.lax.top_k(logits, k)
    return dispatched(jax.nn.softmax(top, axis=-1), chosen)


def experts(x, w):
    h = jax.nn.relu(jnp.einsum("td,edh->teh", x, w["up"]))
    return jnp.einsum("teh,ehd->ted", h, w["down"])


def balance(x, router):
    """How evenly the router uses the experts; logged, and not trained on."""
    share = jnp.mean(jax.nn.softmax(x @ router), axis=0)
    return EXPERTS * jnp.sum(jax.lax.stop_gradient(share) ** 2)


def layer(x, params, k):
    weights = route(x, params["router"], k)
    return x + jnp.einsum("te,ted->td", weights, experts(x, params["experts"])), balance(x, params["router"])
