"""The programs of the screenshots: small ones that are written here as people write them, and large ones of the
benchmarks, as types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import models, remat_programs

jax.config.update("jax_num_cpu_devices", 8)  # for the one that is sharded

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def random(*shape: int) -> jax.Array:
    return 0.3 * jax.random.normal(jax.random.key(sum(shape)), shape)


# --- an MLP -----------------------------------------------------------------------------------------------------------


def predict(params, x):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = params[-1]
    return x @ w + b


@jax.jit
def distance(a, b):
    return jnp.sqrt(jnp.sum((a - b) ** 2))


def loss(params, x, y):
    error = predict(params, x)
    return distance(error, y) + 0.5 * jnp.sum(params[0][0] ** 2)


def leaner_loss(params, x, y):
    error = jax.checkpoint(predict)(params, x)
    return distance(error, y) + 0.5 * jnp.sum(jnp.abs(params[0][0]))


def mlp() -> Program:
    params = [(random(n, m), jnp.zeros(m)) for n, m in ((4, 16), (16, 16), (16, 2))]
    return loss, (params, jnp.ones((8, 4)), jnp.zeros((8, 2)))


# --- libraries --------------------------------------------------------------------------------------------------------


class LinenBlock(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x):
        h = nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x)))
        return x + nn.Dense(self.width)(h)


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(4):
            x = LinenBlock(64)(x)
        return nn.Dense(10)(x)


def cross_entropy(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


def linen_loss(variables, x, labels):
    return cross_entropy(LinenNet().apply(variables, x), labels)


def linen() -> Program:
    x = jnp.ones((128, 64))
    return linen_loss, (LinenNet().init(jax.random.key(0), x), x, jnp.zeros(128, jnp.int32))


class NnxBlock(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs):
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.down(nnx.gelu(self.up(x)))


class NnxNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.blocks = nnx.List([NnxBlock(64, rngs) for _ in range(4)])
        self.head = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def nnx_net() -> Program:
    graph, params = nnx.split(NnxNet(nnx.Rngs(0)))

    def nnx_loss(params, x, labels):
        return cross_entropy(nnx.merge(graph, params)(x), labels)

    return nnx_loss, (params, jnp.ones((16, 32, 64)), jnp.zeros(16, jnp.int32))


def equinox() -> Program:
    model = eqx.nn.MLP(32, 10, 256, depth=4, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_array)

    def equinox_loss(params, x, labels):
        return cross_entropy(jax.vmap(eqx.combine(params, static))(x), labels)

    return equinox_loss, (params, jnp.ones((128, 32)), jnp.zeros(128, jnp.int32))


# --- loops and devices ------------------------------------------------------------------------------------------------


@jax.checkpoint
def cell(params, h, x):
    h = jnp.tanh(params["w"] @ h + params["u"] @ x)
    return jax.lax.cond(h[0] > 0, jnp.cos, jnp.sin, h)


def rnn_loss(params, xs, ys):
    def step(h, x):
        h = cell(params, h, x)
        return h, params["v"] @ h

    _, outs = jax.lax.scan(step, jnp.zeros(64), xs)
    return jnp.mean((outs - ys) ** 2)


def rnn() -> Program:
    params = {"w": random(64, 64), "u": random(64, 8), "v": random(3, 64)}
    return rnn_loss, (params, random(32, 8), jnp.zeros((32, 3)))


def sharded() -> Program:
    """The batch on one axis of devices, the hidden units on the other."""
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    on = lambda x, *axes: jax.device_put(x, NamedSharding(mesh, P(*axes)))
    params = [(on(random(64, 256), None, "model"), on(random(256, 64), "model", None)) for _ in range(4)]
    x = on(jnp.ones((128, 64)), "data", None)

    def sharded_loss(params, x, y):
        for w1, w2 in params:
            h = jax.nn.relu(x @ w1)
            x = x + jnp.matmul(h, w2, out_sharding=NamedSharding(mesh, P("data", None)))
        return jnp.mean((x - y) ** 2)

    return sharded_loss, (params, x, x)


def of_benchmark(case: remat_programs.Case) -> Program:
    return case.plain, case.args


PROGRAMS: dict[str, Callable[[], Program]] = {
    "mlp": mlp,
    "transformer": lambda: models.transformer(12),
    "transformer-100": lambda: models.transformer(100),
    "linen": linen,
    "nnx": nnx_net,
    "equinox": equinox,
    "rnn": rnn,
    "unet": lambda: of_benchmark(remat_programs.unet()),
    "sharded": sharded,
    "7b": lambda: of_benchmark(remat_programs.llama(32, is_scanned=False)),
}
"""Each returns a function and its arguments."""
