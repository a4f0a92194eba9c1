"""The loss of a recurrent network, with the batch split over devices."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
from cells import INPUTS, WIDTH, cell, init
from jax.sharding import PartitionSpec as P

BATCH, LENGTH = 16, 64


def make_loss():
    """A loss of parameters, inputs f32[batch, length, inputs] and targets f32[batch, length]."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def local_loss(params, xs, ys):
        h = jnp.zeros((xs.shape[0], WIDTH)) + params["start"]
        h = jax.lax.pcast(h, "data", to="varying")

        def step(h, x_y):
            x, y = x_y
            h = cell(params, h, x)
            return h, jnp.mean((h @ params["out"] - y) ** 2)

        _, losses = jax.lax.scan(step, h, (jnp.swapaxes(xs, 0, 1), jnp.swapaxes(ys, 0, 1)))
        return jax.lax.pmean(jnp.mean(losses), "data")

    return jax.shard_map(local_loss, mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=P())


loss = make_loss()


def types():
    """The types of the arguments of `loss` in training."""
    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return jax.eval_shape(init, jax.random.key(0)), f32(BATCH, LENGTH, INPUTS), f32(BATCH, LENGTH)


if __name__ == "__main__":
    xs = jax.random.normal(jax.random.key(1), (BATCH, LENGTH, INPUTS))
    print(jax.jit(jax.value_and_grad(loss))(init(jax.random.key(0)), xs, xs.sum(-1))[0])
