"""Models that a user writes with a library's layers, in a separate file."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from registry import program

X = jax.random.normal(jax.random.key(1), (6, 16))
BLOCKS = 3


def squares(y):
    return jnp.mean(y**2)


@program(
    "flax",
    modules=("Net/block_0…2/Dense_0", "Net/block_0…2/MultiHeadDotProductAttention_0/key", "Net/block_0…2/LayerNorm_1"),
)
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


@program("flax", modules=("Net/Block/up", "Net/Block/norm", "Net/Block/attention"))
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


@program("equinox", modules=("Net/Block/up", "Net/Block/norm", "Net/Block/attention"))
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


@program("dm-haiku", modules=("block_0…2/linear_1", "block_0…2/multi_head_attention", "block_0…2/layer_norm_1"))
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


def equinox_net():
    """A network with its activation function, a switch, a number and a name among the leaves, and its loss."""
    import equinox as eqx

    class Net(eqx.Module):
        layers: list
        dropout: eqx.nn.Dropout
        activation: object
        n_repeats: int
        name: str

        def __call__(self, x, key):
            x = self.dropout(self.layers[0](x), key=key)
            for _ in range(self.n_repeats):
                x = self.activation(self.layers[1](x))
            return self.layers[2](x)

    keys = jax.random.split(jax.random.key(0), 3)
    layers = [eqx.nn.Linear(i, o, key=k) for i, o, k in zip((16, 32, 32), (32, 32, 2), keys, strict=True)]

    def loss(net, x, key):
        return squares(jax.vmap(net)(x, jax.random.split(key, len(x))))

    return Net(layers, eqx.nn.Dropout(0.2), jax.nn.silu, 3, "net"), loss


@program("equinox")
def equinox_whole_model():
    net, loss = equinox_net()
    return loss, (net, X, jax.random.key(3))


@program("equinox")
def equinox_filter_jit():
    import equinox as eqx

    net, loss = equinox_net()
    return eqx.filter_jit(loss), (net, X, jax.random.key(3))


@program("equinox", step_of="equinox_whole_model")
def equinox_training_step():
    import equinox as eqx
    import optax

    net, loss = equinox_net()
    optimizer = optax.adamw(1e-3)

    @eqx.filter_jit
    def train_step(net, state, x, key):
        value, gradient = eqx.filter_value_and_grad(loss)(net, x, key)
        updates, state = optimizer.update(gradient, state, eqx.filter(net, eqx.is_inexact_array))
        return eqx.apply_updates(net, updates), state, value

    return train_step, (net, optimizer.init(eqx.filter(net, eqx.is_inexact_array)), X, jax.random.key(3))


def equinox_loop(kind):
    """Layers in Equinox's own loop, until the values are small."""
    from equinox.internal import while_loop

    def loss(ws, x):
        def layer(state):
            k, x = state
            return k + 1, jnp.tanh(x @ ws[k]) + 0.1 * jnp.sin(x)

        _, x = while_loop(
            lambda state: jnp.sum(state[1] ** 2) > 1e-3, layer, (0, x), max_steps=8, kind=kind, checkpoints=3
        )
        return squares(x @ ws[0])

    return loss, (0.3 * jax.random.normal(jax.random.key(0), (8, 16, 16)), X)


@program("equinox")
def equinox_bounded_loop():
    return equinox_loop("bounded")


@program("equinox")
def equinox_checkpointed_loop():
    return equinox_loop("checkpointed")


@program("equinox", unbounded="while_loop(")
def equinox_unbounded_loop():
    """The loop without a bound."""
    from equinox.internal import while_loop

    def loss(w, x):
        layer = lambda x: jnp.tanh(x @ w)
        x = while_loop(lambda x: jnp.sum(x**2) > 1e-3, layer, x, kind="lax")
        return squares(x @ w)

    return loss, (0.1 * jnp.eye(16), X)


@program("diffrax", find_nan_argument="The library refuses a NaN: its steps shrink until it raises.")
def diffrax_adaptive_steps():
    """Adaptive steps, of unknown number, by recursive checkpoints, with a whole model as the field."""
    import diffrax
    import equinox as eqx

    net = eqx.nn.MLP(4, 4, 16, 2, activation=jnp.tanh, key=jax.random.key(0))

    def loss(net, y):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, net: net(y)), diffrax.Tsit5(), 0.0, 2.0, 0.1, y, net,
            saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, 2.0, 4)), max_steps=64,
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-4),
        )  # fmt: skip
        return squares(solution.ys)

    return loss, (net, X[0, :4])


@program("diffrax", unbounded="diffrax.diffeqsolve(")
def diffrax_forward_mode():
    """The same with a loop that JAX differentiates forward only."""
    import diffrax

    def loss(w, y):
        term = diffrax.ODETerm(lambda t, y, w: jnp.tanh(w @ y))
        solution = diffrax.diffeqsolve(term, diffrax.Heun(), 0.0, 1.0, 0.1, y, w, adjoint=diffrax.ForwardMode())
        return squares(solution.ys)

    return loss, (0.5 * jnp.eye(4), X[0, :4])


def nnx_recurrent(is_scaled: bool):
    """A recurrent cell that centres its input, and keeps the mean in mutable arrays that the scan reads and writes."""
    from flax import nnx

    class Centre(nnx.Module):
        def __init__(self, size):
            self.mean, self.scale = nnx.BatchStat(jnp.zeros(size)), nnx.BatchStat(jnp.ones(size))
            self.gain = nnx.Param(jnp.ones(size))

        def __call__(self, x):
            seen = jax.lax.stop_gradient(x)
            self.mean[...] = 0.9 * self.mean[...] + 0.1 * seen.mean(0)
            self.scale[...] = 0.9 * self.scale[...] + 0.1 * seen.std(0)
            x = x - self.mean[...]
            return self.gain[...] * (x / self.scale[...] if is_scaled else x)

    class Cell(nnx.Module):
        def __init__(self, rngs):
            self.centre, self.up, self.down = Centre(16), nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, 16, rngs=rngs)

        def __call__(self, h, x):
            return h + self.down(nnx.gelu(self.up(self.centre(h + x))))

    graph, params, statistics = nnx.split(Cell(nnx.Rngs(0)), nnx.Param, ...)

    def loss(params, statistics, xs):
        cell = nnx.with_vars(nnx.merge(graph, params, statistics), ref=True, only=nnx.BatchStat)
        h, _ = jax.lax.scan(lambda h, x: (cell(h, x), None), jnp.zeros_like(xs[0]), xs)
        return squares(h)

    return loss, (params, statistics, jax.random.normal(jax.random.key(2), (5, 6, 16)))


@program("flax")
def flax_nnx_mutable_arrays_in_scan():
    return nnx_recurrent(False)


@program("flax")
def flax_nnx_scaled_by_mutable_arrays():
    return nnx_recurrent(True)


NO_CHECKPOINT = "JAX allows no checkpoint around the effects of variables under hijax, and the report says so."


def nnx_centred(updated):
    from flax import nnx

    class Centred(nnx.Module):
        def __init__(self, rngs):
            self.mean, self.linear = nnx.BatchStat(jnp.zeros(16)), nnx.Linear(16, 16, rngs=rngs)

        def __call__(self, x):
            self.mean[...] = updated(self.mean[...], jax.lax.stop_gradient(x.mean(0)))
            return jnp.tanh(self.linear(x - self.mean[...]))

    return Centred(nnx.Rngs(0))


@program("flax", compare_policies=NO_CHECKPOINT, plan=NO_CHECKPOINT)
def flax_nnx_hijax_arguments():
    """Such variables among the arguments. They are written in each run, and what is in them before has no effect."""
    from flax import nnx

    layer = nnx.with_vars(nnx_centred(lambda old, new: new), hijax=True, only=nnx.BatchStat)
    graph, params, statistics = nnx.split(layer, nnx.Param, ...)

    def loss(params, statistics, x):
        layer = nnx.merge(graph, params, statistics)
        return squares(layer(layer(x)))

    return loss, (params, statistics, X)


@program("flax", compare_policies=NO_CHECKPOINT, plan=NO_CHECKPOINT)
def flax_nnx_hijax_variables():
    """Statistics in variables that JAX sees as values of a mutable hi type."""
    from flax import nnx

    graph, params, statistics = nnx.split(nnx_centred(lambda old, new: 0.9 * old + 0.1 * new), nnx.Param, ...)

    def loss(params, statistics, x):
        layer = nnx.with_vars(nnx.merge(graph, params, statistics), hijax=True, only=nnx.BatchStat)
        return squares(layer(layer(x)))

    return loss, (params, statistics, X)


@program("quax")
def quax_low_rank_adaptation():
    """A network whose weights are sums of a fixed matrix and a product of two narrow ones, which is never formed."""
    import equinox as eqx
    import quax
    from quax.examples.lora import loraify

    net = eqx.nn.MLP(16, 2, 32, 2, activation=jax.nn.gelu, key=jax.random.key(0))
    adapted = loraify(net, rank=2, key=jax.random.key(1))

    def loss(adapted, x):
        return squares(jax.vmap(quax.quaxify(adapted))(x))

    return loss, (adapted, X)
