"""Programs whose devices exchange values, one for each way in which models are divided."""

import contextlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

DEVICES = np.array(jax.devices()[:8])
DATA = Mesh(DEVICES, ("data",))
GRID = Mesh(DEVICES.reshape(2, 4), ("data", "model"))
CUBE = Mesh(DEVICES.reshape(2, 2, 2), ("a", "b", "c"))
STAGES = Mesh(DEVICES, ("stage",))
EXPERTS = Mesh(DEVICES, ("expert",))
EXPLICIT = Mesh(DEVICES.reshape(2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)


def shape(*dims, mesh, spec=(), dtype=jnp.float32):
    return jax.ShapeDtypeStruct(dims, dtype, sharding=NamedSharding(mesh, P(*spec)))


on_data, on_grid = partial(shape, mesh=DATA), partial(shape, mesh=GRID)


def data_parallel(params, x, y):
    h = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.mean((h @ params["w2"] - y) ** 2)


def fsdp(ws, x):
    h, _ = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)
    return jnp.mean(h**2)


def fsdp_layers(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def tensor_parallel(p, x):
    h = jax.nn.gelu(x @ p["up"])
    return jnp.mean((h @ p["down"]) ** 2)


@partial(jax.shard_map, mesh=EXPERTS, in_specs=(P("expert"), P(), P("expert")), out_specs=P())
def experts(weights, router, x):
    n = 8
    gates = jax.nn.softmax(x @ router)
    order = jnp.argsort(jnp.argmax(gates, -1))
    sent = lax.all_to_all(x[order].reshape(n, x.shape[0] // n, -1), "expert", 0, 0, tiled=True)
    out = jnp.tanh(sent.reshape(-1, sent.shape[-1]) @ weights[0]).reshape(sent.shape)
    back = lax.all_to_all(out, "expert", 0, 0, tiled=True).reshape(x.shape)
    return lax.pmean(jnp.mean((back * gates.max(-1)[order][:, None]) ** 2), "expert")


def sequence_parallel(p, x):
    rows, heads = NamedSharding(GRID, P("data", "model")), NamedSharding(GRID, P("data", None, "model"))
    y = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    y = lax.with_sharding_constraint(y, rows)
    h = lax.with_sharding_constraint(jax.nn.gelu(y @ p["up"]), heads)
    return jnp.mean(lax.with_sharding_constraint(x + h @ p["down"], rows) ** 2)


@partial(jax.shard_map, mesh=STAGES, in_specs=(P("stage"), P()), out_specs=P())
def pipeline(ws, xs):
    stage, n, m = lax.axis_index("stage"), 8, xs.shape[0]

    def tick(carry, t):
        x = jnp.where(stage == 0, xs[jnp.minimum(t, m - 1)], carry)
        y = jnp.tanh(x @ ws[0])
        return lax.ppermute(y, "stage", [(k, (k + 1) % n) for k in range(n)]), y

    start = lax.pcast(jnp.zeros(xs.shape[1:]), ("stage",), to="varying")
    _, ys = lax.scan(tick, start, jnp.arange(m + n - 1))
    return lax.psum(jnp.where(stage == n - 1, jnp.sum(ys[n - 1 :] ** 2), 0.0), "stage")


def explicit_axes(p, x):
    h = jnp.tanh(jnp.dot(x, p["up"], out_sharding=P("data", "model")))
    h = jnp.dot(h, p["down"], out_sharding=P("data", None))
    return jnp.sum(jax.sharding.reshard(h, P("data", "model")) ** 2)


def attention(p, x):
    def layer(x, p):
        q, k, v = (jnp.einsum("btd,dhe->bthe", x, p[n]) for n in "qkv")
        weights = jax.nn.softmax(jnp.einsum("bqhe,bkhe->bhqk", q, k) / 4.0)
        x = x + jnp.einsum("bqhe,hed->bqd", jnp.einsum("bhqk,bkhe->bqhe", weights, v), p["o"])
        return x + jax.nn.gelu(x @ p["up"]) @ p["down"], None

    return jnp.mean(lax.scan(jax.checkpoint(layer), x, p)[0] ** 2)


def embedded(p, tokens):
    h = jnp.tanh(p["table"][tokens] @ p["w"])
    logits = jax.nn.log_softmax(h @ p["table"].T)
    return -jnp.mean(jnp.take_along_axis(logits, tokens[..., None], -1))


@jax.jit
def training_step(params, momentum, x, y):
    loss, gradient = jax.value_and_grad(data_parallel)(params, x, y)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum, loss


_MLP = {"w1": on_data(64, 128), "b1": on_data(128), "w2": on_data(128, 32)}
_BATCH = on_data(256, 64, spec=("data",)), on_data(256, 32, spec=("data",))
_UP_DOWN = {"up": on_grid(64, 256, spec=(None, "model")), "down": on_grid(256, 64, spec=("model",))}
PROGRAMS = {
    data_parallel: (_MLP, *_BATCH),
    training_step: (_MLP, _MLP, *_BATCH),
    fsdp: (on_data(6, 64, 64, spec=(None, "data")), on_data(256, 64, spec=("data",))),
    fsdp_layers: ([on_data(64, 64, spec=("data",))] * 3, on_data(256, 64, spec=("data",))),
    tensor_parallel: (_UP_DOWN, on_grid(128, 64, spec=("data",))),
    experts: (
        shape(8, 32, 32, mesh=EXPERTS, spec=("expert",)), shape(32, 8, mesh=EXPERTS),
        shape(512, 32, mesh=EXPERTS, spec=("expert",)),
    ),
    sequence_parallel: (_UP_DOWN, on_grid(4, 32, 64, spec=("data", "model"))),
    pipeline: (shape(8, 32, 32, mesh=STAGES, spec=("stage",)), shape(4, 16, 32, mesh=STAGES)),
    explicit_axes: (
        {"up": shape(64, 256, mesh=EXPLICIT, spec=(None, "model")),
         "down": shape(256, 64, mesh=EXPLICIT, spec=("model", None))},
        shape(128, 64, mesh=EXPLICIT, spec=("data", None)),
    ),
    attention: (
        {
            **{n: on_grid(4, 64, 4, 16, spec=(None, "data", "model")) for n in "qkv"},
            "o": on_grid(4, 4, 16, 64, spec=(None, "model", None, "data")),
            "up": on_grid(4, 64, 256, spec=(None, "data", "model")),
            "down": on_grid(4, 256, 64, spec=(None, "model", "data")),
        },
        on_grid(8, 32, 64, spec=("data",)),
    ),
    embedded: (
        {"table": on_grid(512, 64, spec=("model",)), "w": on_grid(64, 64, spec=(None, "model"))},
        on_grid(8, 32, spec=("data",), dtype=jnp.int32),
    ),
}  # fmt: skip


def within(f):
    """The context in which to call a program: its mesh, if its axes are explicit."""
    return jax.set_mesh(EXPLICIT) if f is explicit_axes else contextlib.nullcontext()
