"""Asking why a gradient is zero: the structure, compared with deriving the gradient; the values, compared with
compiling and running the gradient once.

Each is measured in a fresh process, with tables that a first derivation has filled.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxviz
from benchmarks import models
from benchmarks.fresh import in_new_process, run
from jaxviz.features.flow.structure import Reach

MOST_OF_DERIVATION, MOST_GRADIENTS = 0.05, 1.3


def dead_mlp(n_layers: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """An MLP whose last relu is never active."""
    loss, (params, x, _) = models.mlp(n_layers)
    del loss
    return lambda params, x: jnp.sum(jax.nn.relu(_through(params, x) - 10.0)), (params, x)


def _through(params: Any, x: jax.Array) -> jax.Array:
    for w, b in params:
        x = jnp.tanh(x @ w + b)
    return x


PROGRAMS: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "transformer of 12 layers": lambda: models.transformer(12),
    "checkpointed, 12 layers": lambda: models.remat_transformer(12),
    "scanned, 12 layers": lambda: models.scan_transformer(12),
    "lstm": lambda: models.lstm(2),
    "mlp of 24 layers": lambda: models.mlp(24),
    "mlp of 24 layers, dead": lambda: dead_mlp(24),
}


def measure(name: str, what: str) -> dict[str, float]:
    """Seconds in this process, without a cache on disk."""
    loss, args = jax.block_until_ready(PROGRAMS[name]())
    seconds: dict[str, float] = {}
    if what == "structure":
        _ = jaxviz.derive(loss, *args).backward  # fills the tables
        derive, reach = [], []
        for _ in range(9):
            start = time.perf_counter()
            d = jaxviz.derive(lambda *xs: loss(*xs), *args)
            _ = d.backward
            middle = time.perf_counter()
            Reach(d)
            derive.append(middle - start)
            reach.append(time.perf_counter() - middle)
        seconds = {"derive": statistics.median(derive), "flow": statistics.median(reach)}
    elif what == "gradient":
        start = time.perf_counter()
        jax.block_until_ready(jax.jit(jax.value_and_grad(loss))(*args))
        seconds = {"gradient": time.perf_counter() - start}
    else:
        jaxviz.gradient_flow  # noqa: B018  imported on first use
        start = time.perf_counter()
        jaxviz.gradient_flow(loss, *args)
        seconds = {"flow": time.perf_counter() - start}
    return seconds


def main(quick: bool = False) -> None:
    print(f"\ngradient_flow: the structure, of the time to derive the gradient (target {MOST_OF_DERIVATION:.0%});")
    print(f"with values, in times of compiling and running the gradient once (target {MOST_GRADIENTS})")
    print(f"{'':26} {'derive':>9} {'structure':>10} {'share':>7}   {'gradient':>9} {'values':>8} {'times':>6}")
    for name in PROGRAMS:
        structure = in_new_process("benchmarks.flow", name, "structure")
        pairs = [
            (in_new_process("benchmarks.flow", name, "gradient"), in_new_process("benchmarks.flow", name, "values"))
            for _ in range(1 if quick else 3)
        ]
        gradient, values = (
            statistics.median(s) for s in zip(*((a["gradient"], b["flow"]) for a, b in pairs), strict=True)
        )
        derive, reach = structure["derive"], structure["flow"]
        print(
            f"{name:26} {1e3 * derive:6.1f} ms {1e3 * reach:7.2f} ms {reach / derive:6.1%}   "
            f"{gradient:7.2f} s {values:6.2f} s {values / gradient:5.2f}x",
            flush=True,
        )


if __name__ == "__main__":
    run(measure, main)
