"""Gated blocks in a scan, each of them checkpointed."""

import jax
import jax.numpy as jnp
from config import BATCH, LAYERS, LENGTH, SAVE, WIDE, WIDTH
from jax.ad_checkpoint import checkpoint_name

POLICY = jax.checkpoint_policies.save_only_these_names(*SAVE)


def init(key):
    a, b, c = jax.random.split(key, 3)
    return {
        "gate": jax.random.normal(a, (LAYERS, WIDTH, WIDE)) * WIDTH**-0.5,
        "up": jax.random.normal(b, (LAYERS, WIDTH, WIDE)) * WIDTH**-0.5,
        "down": jax.random.normal(c, (LAYERS, WIDE, WIDTH)) * WIDE**-0.5,
        "scale": jnp.ones((LAYERS, WIDTH)),
    }


def normed(x, scale):
    return scale * x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def mlp(x, w):
    """The result, and what the dashboard may ask for."""
    wide = jax.nn.silu(x @ w["gate"]) * (x @ w["up"])
    seen = {"wide": checkpoint_name(wide, "mlp_wide"), "zeros": jnp.mean(wide == 0)}
    return wide @ w["down"], seen


def block(x, w):
    y, seen = mlp(normed(x, w["scale"]), w)
    return x + y, seen["zeros"]


def apply(params, x):
    return jax.lax.scan(jax.checkpoint(block, policy=POLICY), x, params)


def loss(params, x, y):
    z, zeros = apply(params, x)
    return jnp.mean((z - y) ** 2) + 0.0 * jnp.sum(zeros)


def types():
    """The types of the arguments of `loss` in training."""
    x = jax.ShapeDtypeStruct((BATCH, LENGTH, WIDTH), jnp.float32)
    return jax.eval_shape(init, jax.random.key(0)), x, x


if __name__ == "__main__":
    params = init(jax.random.key(0))
    x, y = jax.random.normal(jax.random.key(1), (2, BATCH, LENGTH, WIDTH))
    print(jax.jit(jax.value_and_grad(loss))(params, x, y)[0])
