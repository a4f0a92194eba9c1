"""The loss of a batch that is split over eight devices."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from losses import contrastive, hinge, similarities
from towers import CAPTION, IMAGE, init, tower

BATCH = 1024


def loss(params, images, captions):
    a = tower(images, params["image"], params["image_out"])
    b = tower(captions, params["caption"], params["caption_out"])
    scores = similarities(a, b)
    return contrastive(scores) + 0.5 * hinge(scores)


def types():
    """The types of the arguments of `loss`, with their shardings."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    place = lambda shape, spec: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
    params = jax.tree.map(lambda x: place(x.shape, P()), jax.eval_shape(init, jax.random.key(0)))
    return params, place((BATCH, IMAGE), P("data")), place((BATCH, CAPTION), P("data"))


if __name__ == "__main__":
    print(jax.jit(jax.grad(loss)).lower(*types()).compile().as_text())
