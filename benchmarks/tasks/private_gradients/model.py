"""A convolutional classifier for images of 28 x 28."""

import jax
import jax.numpy as jnp


def init(key):
    a, b, c, d = jax.random.split(key, 4)
    return {
        "conv1": jax.random.normal(a, (5, 5, 1, 16)) * 0.2,
        "conv2": jax.random.normal(b, (5, 5, 16, 32)) * 0.05,
        "dense": jax.random.normal(c, (7 * 7 * 32, 256)) * 0.02,
        "out": jax.random.normal(d, (256, 10)) * 0.06,
    }


def conv(x, w):
    x = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def loss(params, image, label):
    """Of one example."""
    x = conv(conv(image[None], params["conv1"]), params["conv2"]).reshape(-1)
    logits = jax.nn.relu(x @ params["dense"]) @ params["out"]
    return jax.nn.logsumexp(logits) - logits[label]
