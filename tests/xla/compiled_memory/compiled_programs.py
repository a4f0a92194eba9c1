"""Programs to attribute: loops, branches, library calls, several devices, training steps, versions."""

from functools import cache, partial

import jax
import jax.numpy as jnp
from device_programs import LINE
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxviz


def shape(*dims, dtype=jnp.float32, sharding=None):
    return jax.ShapeDtypeStruct(dims, dtype, sharding=sharding)


W, X = shape(64, 64), shape(256, 64)
LAYERS, STACK = [W] * 4, shape(4, 64, 64)


def block(h, w):
    return jnp.tanh(h @ w) * jnp.sin(h)


def unrolled(ws, x):
    for w in ws:
        x = block(x, w)
    return jnp.sum(x**2)


def unrolled_checkpoints(ws, x):
    for w in ws:
        x = jax.checkpoint(block)(x, w)
    return jnp.sum(x**2)


def scanned(ws, x):
    return jnp.sum(lax.scan(lambda h, w: (block(h, w), None), x, ws)[0] ** 2)


def scanned_checkpoints(ws, x):
    return jnp.sum(lax.scan(jax.checkpoint(lambda h, w: (block(h, w), None)), x, ws)[0] ** 2)


def nested_scans(ws, x):
    def outer(h, w):
        return lax.scan(lambda g, _: (jnp.sin(g @ w), None), h, None, 3)[0], None

    return jnp.sum(lax.scan(outer, x, ws)[0] ** 2)


def recurrent(params, xs):
    def cell(carry, x):
        h, c = carry
        gate = jax.nn.sigmoid(x @ params["in"] + h @ params["back"])
        c = gate * c + (1 - gate) * jnp.tanh(h)
        return (jnp.tanh(c), c), h

    start = jnp.zeros(xs.shape[1:])
    return jnp.mean(lax.scan(cell, (start, start), xs)[1] ** 2)


def branches(ws, x):
    for w in ws:
        x = lax.cond(jnp.sum(x) > 0, lambda h, w=w: jnp.tanh(h @ w), lambda h: jnp.sin(h) * 2, x)
    return jnp.sum(x)


def convolutions(kernel, x):
    for _ in range(3):
        x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.gelu(x)
    return jnp.sum(x)


def attention(layers, x):
    for q, k, v, o in layers:
        y = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        weights = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", y @ q, y @ k) / 8.0)
        x = x + jax.nn.gelu(weights @ (y @ v)) @ o
    return jnp.mean(x**2)


def factorized(a, b):
    spread = a @ a.T + jnp.eye(64)
    return jnp.sum(jnp.linalg.solve(spread, b) ** 2) + jnp.sum(jnp.linalg.cholesky(spread))


def embedded(table, rows):
    return jnp.sum(jnp.tanh(table[rows]) ** 2)


def ordered(x, y):
    return jnp.sum(jnp.sort(x, -1) * y)


@partial(jax.shard_map, mesh=LINE, in_specs=(P(), P("i")), out_specs=P())
def mapped(w, x):
    return lax.psum(jnp.sum(jnp.tanh(jnp.sin(x @ w) @ w) ** 2), "i")


def divided(w, x):
    return jnp.sum(jnp.tanh(jnp.sin(x @ w) @ w) ** 2)


def error(w, x):
    return jnp.mean(jnp.tanh(jnp.sin(x @ w) @ w) ** 2)


@partial(jax.jit, donate_argnums=(0, 1))
def training_step(w, momentum, x):
    value, gradient = jax.value_and_grad(error)(w, x)
    momentum = 0.9 * momentum + gradient
    return w - 0.1 * momentum, momentum, value


@jax.jit
def accumulated(w, xs):
    total = lax.scan(lambda g, x: (g + jax.grad(error)(w, x), None), jnp.zeros_like(w), xs)[0]
    return w - total, jnp.sum(total)


EVERYWHERE, OVER = NamedSharding(LINE, P()), NamedSharding(LINE, P("i"))
ARGS = {
    unrolled: (LAYERS, X), unrolled_checkpoints: (LAYERS, X), scanned: (STACK, X), scanned_checkpoints: (STACK, X),
    nested_scans: (STACK, X), recurrent: ({"in": W, "back": W}, shape(8, 32, 64)), branches: (LAYERS, X),
    convolutions: (shape(3, 3, 16, 16), shape(4, 16, 16, 16)), attention: ([[W] * 4] * 2, shape(4, 32, 64)),
    factorized: (W, shape(64, 8)), embedded: (shape(1000, 64), shape(256, dtype=jnp.int32)), ordered: (X, X),
    mapped: (W, X), training_step: (W, W, X), accumulated: (W, shape(4, 256, 64)),
    divided: (shape(64, 64, sharding=EVERYWHERE), shape(256, 64, sharding=OVER)),
}  # fmt: skip
PROGRAMS = {f.__name__: (f, *args) for f, args in ARGS.items()}
"""By name, each with its arguments."""
STEPS = ("training_step", "accumulated")


@cache
def compiled(name):
    return jaxviz.compiled_memory(*PROGRAMS[name])


def lowered(name):
    """What JAX itself lowers: a training step, or the gradient of a loss."""
    f, *args = PROGRAMS[name]
    return (f if name in STEPS else jax.jit(jax.value_and_grad(f))).lower(*args)


def named(saved, scan):
    """A loss of six checkpointed blocks that save the values with these names, and its arguments."""

    @partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names(*saved))
    def block(x, w):
        a = checkpoint_name(x @ w["a"], "a")
        b = checkpoint_name(jnp.sin(a) @ w["b"], "b")
        return jnp.tanh(checkpoint_name(jnp.cos(b) @ w["c"], "c")) + x

    def loss(ws, x):
        if scan:
            return jnp.sum(lax.scan(lambda x, w: (block(x, w), None), x, ws)[0] ** 2)
        for w in ws:
            x = block(x, w)
        return jnp.sum(x**2)

    return loss, {k: shape(6, 64, 64) for k in "abc"} if scan else [dict.fromkeys("abc", W)] * 6, X


def read_or_refused(read, path):
    """What is read; None for an error that names the file."""
    try:
        return read()
    except ValueError as error:
        if str(path) not in str(error):
            raise
        return None


# --- an upgrade changes how a mixture of experts multiplies its groups: each token with its expert's matrix -----------

EXPERTS, TOKENS, WIDTH = 8, 256, 64


@jax.custom_vjp
def by_blocks(x, w, sizes):
    """Block by block, like a kernel; here all experts have equally many tokens."""
    return jnp.einsum("etd,edf->etf", x.reshape(len(w), -1, x.shape[1]), w).reshape(len(x), -1)


def _forward(x, w, sizes):
    return by_blocks(x, w, sizes), (x, w)


def _backward(kept, g):
    x, w = kept
    parts = lambda a: a.reshape(len(w), -1, a.shape[1])
    return (
        jnp.einsum("etf,edf->etd", parts(g), w).reshape(x.shape),
        jnp.einsum("etd,etf->edf", parts(x), parts(g)),
        None,
    )


by_blocks.defvjp(_forward, _backward)


def masked(x, w, sizes):
    """For each expert, the tokens of others are set to zero, and all are multiplied."""
    ends = jnp.cumsum(sizes)
    rows = jnp.arange(len(x))
    own = (rows >= (ends - sizes)[:, None]) & (rows < ends[:, None])
    return jnp.einsum("etd,edf->tf", jnp.where(own[:, :, None], x, 0.0), w)


def experts(grouped_dot):
    def loss(w, x, sizes):
        hidden = jax.nn.silu(grouped_dot(x, w["up"], sizes))
        return jnp.sum(grouped_dot(hidden, w["down"], sizes) ** 2)

    return loss


EXPERTS_ARGS = (
    {"up": shape(EXPERTS, WIDTH, WIDTH), "down": shape(EXPERTS, WIDTH, WIDTH)}, shape(TOKENS, WIDTH),
    shape(EXPERTS, dtype=jnp.int32),
)  # fmt: skip

# --- gradient accumulation --------------------------------------------------------------------------------------------


def error_in_16_bits(params, x):
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.mean(x.astype(jnp.float32) ** 2)


@partial(jax.jit, donate_argnums=0)
def step(params, x):
    gradient = jax.grad(error_in_16_bits)(params, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g.astype(w.dtype), params, gradient), jnp.zeros(())


def accumulating(dtype):
    @partial(jax.jit, donate_argnums=0)
    def step(params, xs):
        def add(total, x):
            gradient = jax.grad(error_in_16_bits)(params, x)
            return jax.tree.map(lambda t, g: t + g.astype(dtype), total, gradient), None

        zeros = jax.tree.map(lambda w: jnp.zeros(w.shape, dtype), params)
        total, _ = lax.scan(add, zeros, xs)
        return jax.tree.map(lambda w, t: w - 0.1 * t.astype(w.dtype), params, total), jnp.zeros(())

    return step


PARAMS = [shape(256, 256, dtype=jnp.bfloat16)] * 3
BATCH = shape(32, 256, dtype=jnp.bfloat16)
BATCHES = shape(4, 32, 256, dtype=jnp.bfloat16)
