"""Whether `compile_cost` is right about identical blocks: what one of them alone saves, beside what a loop in their
place does.

Ten programs, each written with blocks in a Python loop and with `jax.lax.scan`. Seconds of CPU time, medians of five,
without caches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import models
from jaxviz.xla.compile_cost.stages import CompileTimings, subject_of
from jaxviz.xla.compile_cost.start import TIMES, compile_cost

Call = tuple[Callable[..., Any], tuple[Any, ...]]


def types_of(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jax.ShapeDtypeStruct((len(leaves), *leaves[0].shape), leaves[0].dtype), *trees)


def convolutions(n: int) -> tuple[Call, Call]:
    """Residual blocks of two convolutions and a norm."""

    def block(p: Any, x: jax.Array) -> jax.Array:
        conv = lambda x, w: jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        y = jax.nn.silu(conv(x, p["first"]))
        y = (y - y.mean((1, 2), keepdims=True)) * jax.lax.rsqrt(y.var((1, 2), keepdims=True) + 1e-5) * p["scale"]
        return x + conv(jax.nn.silu(y), p["second"])

    of = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    one = {"first": of(3, 3, 16, 16), "second": of(3, 3, 16, 16), "scale": of(16)}
    return stack_of(block, n, one, of(2, 16, 16, 16))


def mixer(n: int) -> tuple[Call, Call]:
    """Blocks of an MLP-mixer: over tokens, then over channels."""

    def norm(p: Any, x: jax.Array) -> jax.Array:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * p

    def block(p: Any, x: jax.Array) -> jax.Array:
        y = jnp.swapaxes(norm(p["first"], x), 1, 2)
        x = x + jnp.swapaxes(jax.nn.gelu(y @ p["tokens_up"]) @ p["tokens_down"], 1, 2)
        return x + jax.nn.gelu(norm(p["second"], x) @ p["up"]) @ p["down"]

    of = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    one = {
        "first": of(64), "second": of(64), "tokens_up": of(49, 128), "tokens_down": of(128, 49), "up": of(64, 256),
        "down": of(256, 64),
    }  # fmt: skip
    return stack_of(block, n, one, of(4, 49, 64))


def experts(n: int) -> tuple[Call, Call]:
    """Layers of eight experts each; a router combines the results of two."""

    def block(p: Any, x: jax.Array) -> jax.Array:
        gates = jax.nn.softmax(x @ p["router"])
        top, chosen = jax.lax.top_k(gates, 2)
        weights = jnp.sum(jax.nn.one_hot(chosen, 8) * top[..., None], -2)
        h = jax.nn.silu(jnp.einsum("td,edf->etf", x, p["up"]))
        return x + jnp.einsum("te,etf,efd->td", weights, h, p["down"])

    of = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return stack_of(block, n, {"router": of(32, 8), "up": of(8, 32, 64), "down": of(8, 64, 32)}, of(64, 32))


def vision(n: int) -> tuple[Call, Call]:
    """Blocks of a vision transformer, with pre-norm and biases."""

    def norm(p: Any, x: jax.Array) -> jax.Array:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6) * p["g"] + p["b"]

    def block(p: Any, x: jax.Array) -> jax.Array:
        y = norm(p["first"], x)
        q, k, v = jnp.moveaxis((y @ p["qkv"] + p["qkv_b"]).reshape(*x.shape[:2], 3, 4, 16), 2, 0)
        weights = jax.nn.softmax(jnp.einsum("bqhe,bkhe->bhqk", q, k) / 4.0)
        x = x + jnp.einsum("bhqk,bkhe->bqhe", weights, v).reshape(x.shape) @ p["o"]
        return x + jax.nn.gelu(norm(p["second"], x) @ p["up"] + p["up_b"]) @ p["down"] + p["down_b"]

    of = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    one = {
        "first": {"g": of(64), "b": of(64)}, "second": {"g": of(64), "b": of(64)}, "qkv": of(64, 192), "qkv_b": of(192),
        "o": of(64, 64),
        "up": of(64, 256), "up_b": of(256), "down": of(256, 64), "down_b": of(64),
    }  # fmt: skip
    return stack_of(block, n, one, of(4, 50, 64))


def stack_of(block: Callable[[Any, jax.Array], jax.Array], n: int, one: Any, x: Any) -> tuple[Call, Call]:
    """`n` blocks, each with its own parameters."""

    def unrolled(params: Any, x: jax.Array) -> jax.Array:
        for p in params:
            x = block(p, x)
        return jnp.mean(x**2)

    def scanned(params: Any, x: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(lambda x, p: (block(p, x), None), x, params)
        return jnp.mean(x**2)

    return (unrolled, (n * [one], x)), (scanned, (stacked(n * [one]), x))


def transformer(n: int) -> tuple[Call, Call]:
    f, args = models.transformer(n)
    g, stacked_args = models.scan_transformer(n)
    return (f, types_of(args)), (g, types_of(stacked_args))


def remat_transformer(n: int) -> tuple[Call, Call]:
    f, args = models.remat_transformer(n)
    _, stacked_args = models.scan_transformer(n)
    saves = jax.checkpoint(models.layer, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)

    def scanned(params: Any, tokens: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(lambda x, p: (saves(p, x), None), params["embedding"][tokens], params["layers"])
        return models.prediction_loss(params, x, tokens)

    return (f, types_of(args)), (scanned, types_of(stacked_args))


def recurrent(n: int) -> tuple[Call, Call]:
    """A gated unit over time, with the same weights at each step."""

    def cell(p: Any, h: jax.Array, x: jax.Array) -> jax.Array:
        z = jax.nn.sigmoid(x @ p["xz"] + h @ p["hz"])
        r = jax.nn.sigmoid(x @ p["xr"] + h @ p["hr"])
        return (1 - z) * h + z * jnp.tanh(x @ p["xn"] + (r * h) @ p["hn"])

    def unrolled(p: Any, h: jax.Array, xs: list[jax.Array]) -> jax.Array:
        for x in xs:
            h = cell(p, h, x)
        return jnp.sum(h**2)

    def scanned(p: Any, h: jax.Array, xs: jax.Array) -> jax.Array:
        h, _ = jax.lax.scan(lambda h, x: (cell(p, h, x), None), h, xs)
        return jnp.sum(h**2)

    of = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    p, h = {name: of(32, 32) for name in ("xz", "hz", "xr", "hr", "xn", "hn")}, of(8, 32)
    return (unrolled, (p, h, n * [of(8, 32)])), (scanned, (p, h, of(n, 8, 32)))


def diffusion(n: int) -> tuple[Call, Call]:
    """Steps of a two-dimensional reaction-diffusion equation."""

    def step(u: jax.Array, v: jax.Array, rate: jax.Array) -> tuple[jax.Array, jax.Array]:
        spread = lambda a: sum(jnp.roll(a, k, axis) for k in (1, -1) for axis in (0, 1)) - 4 * a
        reaction = u * v**2
        return u + 0.1 * (spread(u) - reaction + rate * (1 - u)), v + 0.1 * (0.5 * spread(v) + reaction - 0.06 * v)

    def unrolled(rate: jax.Array, u: jax.Array, v: jax.Array) -> jax.Array:
        for _ in range(n):
            u, v = step(u, v, rate)
        return jnp.sum(v**2)

    def scanned(rate: jax.Array, u: jax.Array, v: jax.Array) -> jax.Array:
        (u, v), _ = jax.lax.scan(lambda uv, _: (step(*uv, rate), None), (u, v), None, length=n)
        return jnp.sum(v**2)

    args = jax.ShapeDtypeStruct((), jnp.float32), *2 * (jax.ShapeDtypeStruct((64, 64), jnp.float32),)
    return (unrolled, args), (scanned, args)


def neural_ode(n: int) -> tuple[Call, Call]:
    """Steps of the classical Runge–Kutta method on a small network, with the same weights at each step."""

    def slope(p: Any, y: jax.Array) -> jax.Array:
        return jnp.tanh(jax.nn.softplus(y @ p["in"]) @ p["middle"]) @ p["out"]

    def step(p: Any, y: jax.Array) -> jax.Array:
        a = slope(p, y)
        b = slope(p, y + 0.05 * a)
        c = slope(p, y + 0.05 * b)
        d = slope(p, y + 0.1 * c)
        return y + 0.1 / 6 * (a + 2 * b + 2 * c + d)

    def unrolled(p: Any, y: jax.Array) -> jax.Array:
        for _ in range(n):
            y = step(p, y)
        return jnp.sum(y**2)

    def scanned(p: Any, y: jax.Array) -> jax.Array:
        y, _ = jax.lax.scan(lambda y, _: (step(p, y), None), y, None, length=n)
        return jnp.sum(y**2)

    of = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    args = {"in": of(8, 32), "middle": of(32, 32), "out": of(32, 8)}, of(16, 8)
    return (unrolled, args), (scanned, args)


def training_step(n: int) -> tuple[Call, Call]:
    """A step of Adam on a transformer."""
    (f, args), (g, stacked_args) = transformer(n)

    def step_of(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
        def step(params: Any, first: Any, second: Any, tokens: jax.Array) -> Any:
            loss_value, grads = jax.value_and_grad(loss)(params, tokens)
            first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
            second = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, second, grads)
            params = jax.tree.map(lambda p, m, s: p - 1e-3 * m / (jnp.sqrt(s) + 1e-8), params, first, second)
            return params, first, second, loss_value

        return step

    with_moments = lambda params, tokens: (params, params, params, tokens)
    return (step_of(f), with_moments(*args)), (step_of(g), with_moments(*stacked_args))


PROGRAMS: dict[str, Callable[[], tuple[Call, Call]]] = {
    "transformer, 16 layers": lambda: transformer(16),
    "the same, checkpointed": lambda: remat_transformer(16),
    "vision transformer, 12 blocks": lambda: vision(12),
    "MLP-mixer, 16 blocks": lambda: mixer(16),
    "mixture of experts, 16 layers": lambda: experts(16),
    "gated unit, 24 steps": lambda: recurrent(24),
    "neural ODE, 24 steps": lambda: neural_ode(24),
    "diffusion, 6 steps": lambda: diffusion(6),
    "Adam step, 16 layers": lambda: training_step(16),
    "convolutions, 24 blocks": lambda: convolutions(24),
}


def taken(*calls: Call, times: int = TIMES) -> list[Any]:
    """The seconds of each phase of some programs, interleaved, measured as in a report."""
    measured = [(subject_of(f, args, {}, 0), CompileTimings()) for f, args in calls]
    for _ in range(times):
        for subject, of in measured:
            of.compile(subject.make(), (*subject.inputs, *subject.cotangents))
    return [of.phases for _, of in measured]


def measure(unrolled: Call, scanned: Call) -> tuple[float, float, float]:
    """The seconds of the unrolled program, with only one block, and with the written loop."""
    report = compile_cost(unrolled[0], *unrolled[1], ablate=True)
    whole, written = taken(unrolled, scanned)
    saving = report.repeated[0].saving
    assert saving is not None
    return whole.cpu, saving.rest, written.cpu


def main(quick: bool = False) -> None:
    print(
        "\nTracing, lowering and compiling: with only one block, and with a written loop; seconds of CPU time, medians "
        "of five"
    )
    print(f"  {'':30}{'unrolled':>10}{'one block':>11}{'loop':>10}   loop/one block")
    for name, make in list(PROGRAMS.items())[: 1 if quick else None]:
        whole, one, loop = measure(*make())
        print(f"  {name:30}{whole:8.2f} s{one:9.2f} s{loop:8.2f} s{loop / one:12.2f}", flush=True)


if __name__ == "__main__":
    main("--quick" in sys.argv)
