"""Models that a user writes with a library's layers, in a separate file."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from registry import program

X = jax.random.normal(jax.random.key(1), (6, 16))
BLOCKS = 3


def squares(y):
    return jnp.mean(y**2)


@program("flax", modules=("Net/block_0…2/Dense_0", "Net/block_0…2/MultiHeadDotProductAttention_0/query", "Net/Dense_0"))
def flax_linen_blocks():
    import flax.linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            h = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(num_heads=2)(h, h)
            h = nn.gelu(nn.Dense(32)(nn.LayerNorm()(x)))
            return x + nn.Dense(16)(h)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            for i in range(BLOCKS):
                x = Block(name=f"block_{i}")(x)
            return nn.Dense(2)(x)

    net = Net()
    return lambda params, x: squares(net.apply(params, x)), (net.init(jax.random.key(0), X), X)


@program("flax", modules=("Net/Block/up", "Net/Block/down", "Net/Block/norm", "Net/Block/attention/query", "Net/head"))
def flax_nnx_blocks():
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.LayerNorm(16, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(2, 16, rngs=rngs, decode=False)
            self.up = nnx.Linear(16, 32, rngs=rngs)
            self.down = nnx.Linear(32, 16, rngs=rngs)

        def __call__(self, x):
            x = x + self.attention(self.norm(x))
            return x + self.down(nnx.gelu(self.up(self.norm(x))))

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.blocks = nnx.List([Block(rngs) for _ in range(BLOCKS)])
            self.head = nnx.Linear(16, 2, rngs=rngs)

        def __call__(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    graph, params, rest = nnx.split(Net(nnx.Rngs(0)), nnx.Param, ...)
    return lambda params, x: squares(nnx.merge(graph, params, rest)(x)), (params, X)


@program(
    "equinox", modules=("Net/Block/up", "Net/Block/down", "Net/Block/norm", "Net/Block/attention/Linear", "Net/head")
)
def equinox_blocks():
    import equinox as eqx

    class Block(eqx.Module):
        norm: eqx.nn.LayerNorm
        attention: eqx.nn.MultiheadAttention
        up: eqx.nn.Linear
        down: eqx.nn.Linear

        def __call__(self, x):
            h = jax.vmap(self.norm)(x)
            x = x + self.attention(h, h, h)
            return x + jax.vmap(lambda v: self.down(jax.nn.gelu(self.up(self.norm(v)))))(x)

    class Net(eqx.Module):
        blocks: list[Block]
        head: eqx.nn.Linear

        def __call__(self, x):
            for block in self.blocks:
                x = block(x)
            return jax.vmap(self.head)(x)

    def block(key):
        keys = jax.random.split(key, 3)
        linear = (eqx.nn.Linear(16, 32, key=keys[0]), eqx.nn.Linear(32, 16, key=keys[1]))
        return Block(eqx.nn.LayerNorm(16), eqx.nn.MultiheadAttention(2, 16, key=keys[2]), *linear)

    blocks = [block(key) for key in jax.random.split(jax.random.key(0), BLOCKS)]
    params, static = eqx.partition(Net(blocks, eqx.nn.Linear(16, 2, key=jax.random.key(2))), eqx.is_inexact_array)
    return lambda params, x: squares(eqx.combine(params, static)(x)), (params, X)


@program("dm-haiku", modules=("block_0…2/linear", "block_0…2/multi_head_attention/query", "linear"))
def haiku_blocks():
    import haiku as hk

    class Block(hk.Module):
        def __call__(self, x):
            h = hk.LayerNorm(-1, True, True)(x)
            x = x + hk.MultiHeadAttention(2, 8, model_size=16, w_init=hk.initializers.VarianceScaling())(h, h, h)
            return x + hk.Linear(16)(jax.nn.gelu(hk.Linear(32)(hk.LayerNorm(-1, True, True)(x))))

    def net(x):
        for i in range(BLOCKS):
            x = Block(name=f"block_{i}")(x)
        return hk.Linear(2)(x)

    made = hk.without_apply_rng(hk.transform(net))
    return lambda params, x: squares(made.apply(params, x)), (made.init(jax.random.key(0), X), X)


@program("optax")
def optax_steps():
    """The loss after some steps of Adam, as in meta-learning."""
    import optax

    optimizer = optax.adam(1e-2)
    w = jax.random.normal(jax.random.key(0), (16, 16))

    def train(w, x):
        return squares(jnp.tanh(x @ w) - x)

    def loss(w, x):
        state = optimizer.init(w)
        for _ in range(3):
            updates, state = optimizer.update(jax.grad(train)(w, x), state, w)
            w = optax.apply_updates(w, updates)
        return train(w, x)

    return loss, (w, X)


@program("diffrax")
def diffrax_neural_ode():
    """A vector field given by a network, integrated over time."""
    import diffrax

    params = [jax.random.normal(key, (16, 16)) / 4 for key in jax.random.split(jax.random.key(0), 2)]

    def field(t, y, params):
        up, down = params
        return jnp.tanh(y @ up) @ down

    def loss(params, x):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field), diffrax.Tsit5(), 0.0, 1.0, 0.1, x, params, max_steps=32,
        )  # fmt: skip
        return squares(solution.ys)

    return loss, (params, X)


@program("lineax", find_nan_argument="The library refuses a NaN: its program raises before there is a result.")
def lineax_least_squares():
    import lineax

    matrix = jax.random.normal(jax.random.key(0), (6, 3))

    def loss(matrix, targets):
        found = lineax.linear_solve(lineax.MatrixLinearOperator(matrix), targets, lineax.QR())
        return squares(found.value)

    return loss, (matrix, X[:, 0])
