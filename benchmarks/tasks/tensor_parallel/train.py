"""Compiles the gradient for eight devices."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from model import init, loss
from shardings import shardings

BATCH, LENGTH = 8, 32


def types(batch=BATCH):
    """The types of the arguments of `loss`, with their shardings."""
    mesh = jax.make_mesh((8,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    params = jax.eval_shape(init, jax.random.key(0))
    place = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    tokens = jax.ShapeDtypeStruct((batch, LENGTH + 1), jnp.int32, sharding=NamedSharding(mesh, P()))
    return jax.tree.map(place, params, shardings(params, mesh)), tokens


def compiled():
    params, tokens = types()
    out = jax.tree.map(lambda x: x.sharding, params)
    return jax.jit(jax.grad(loss), out_shardings=out).lower(params, tokens).compile()


if __name__ == "__main__":
    print(compiled().as_text())
