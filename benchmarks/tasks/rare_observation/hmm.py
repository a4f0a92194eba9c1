"""A hidden Markov model with Gaussian emissions: the forward algorithm."""

import jax
import jax.numpy as jnp
from data import fitted, recording


def density(model, measured):
    """Of a measurement in each state."""
    z = (measured - model["mean"]) / model["width"]
    return jnp.exp(-0.5 * z * z) / (model["width"] * jnp.sqrt(2 * jnp.pi))


def smoothed(belief):
    """No state is ruled out for good."""
    return 0.999 * belief + 0.001 / belief.shape[-1]


def forward(model, measurements):
    """The log-likelihood, and the belief after each measurement."""

    def step(belief, measured):
        predicted = smoothed(belief) @ model["transition"]
        joint = predicted * density(model, measured)
        evidence = jnp.sum(joint)
        belief = joint / evidence
        surprise = -jnp.log(jnp.maximum(evidence, 1e-30))
        return belief, (surprise, belief)

    _, (surprise, beliefs) = jax.lax.scan(step, model["start"], measurements)
    return -jnp.sum(surprise), beliefs


def log_likelihood(model, measurements):
    value, beliefs = forward(model, measurements)
    certainty = jnp.sum(beliefs * jnp.log(beliefs + 1e-9), axis=-1)
    return value + 0.01 * jnp.mean(certainty)


if __name__ == "__main__":
    print(jax.jit(log_likelihood)(fitted(), recording()))
