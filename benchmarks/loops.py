"""The gradient of a while loop with a bound, written as a binary tree of conds in scans: 8 steps run, whatever the
bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import jaxviz

STEPS = 8


def bounded(carry: Any, step: Callable[[Any], Any], bound: int, checkpoint: bool) -> Any:
    """Runs STEPS steps, but no more than the bound."""
    if bound == 1:
        return step(carry)

    def half(carry: Any, _: None) -> tuple[Any, None]:
        inner = lambda c: bounded(c, step, bound // 2, checkpoint)
        return lax.cond(carry[0] < STEPS, inner, lambda c: c, carry), None

    return lax.scan(jax.checkpoint(half) if checkpoint else half, carry, None, length=2)[0]


def loss(bound: int, checkpoint: bool = False) -> Callable[[jax.Array], jax.Array]:
    def f(w: jax.Array) -> jax.Array:
        step = lambda c: (c[0] + 1, jnp.tanh(w @ c[1]))
        return bounded((0, jnp.ones_like(w)), step, bound, checkpoint)[1].sum()

    return f


def measured(gradients: dict[str, Callable[..., Any]], w: jax.Array, repeats: int) -> dict[str, tuple[float, float]]:
    """For each gradient the least seconds of a run, interleaved, and the seconds to trace and compile it."""
    compiled, compile_time, run_time = {}, {}, dict.fromkeys(gradients, float("inf"))
    for name, gradient in gradients.items():
        start = time.perf_counter()
        compiled[name] = jax.jit(gradient).lower(w).compile()
        compile_time[name] = time.perf_counter() - start
        jax.block_until_ready(compiled[name](w))
    for _ in range(repeats):
        for name, run in compiled.items():
            start = time.perf_counter()
            jax.block_until_ready(run(w))
            run_time[name] = min(run_time[name], time.perf_counter() - start)
    return {name: (run_time[name], compile_time[name]) for name in gradients}


def main(quick: bool = False) -> None:
    print(
        f"\nGradient of a bounded loop, {STEPS} steps taken: time by bound, relative to the lowest bound (seconds to "
        "compile)"
    )
    w = 0.9 * jnp.eye(64 if quick else 256)
    first: dict[str, float] = {}
    for bound in (8, 32, 128, 512):
        gradients = {
            "jaxviz, recompute": jaxviz.grad(loss(bound), cond_residuals="recompute"),
            "jax.checkpoint by hand": jax.grad(loss(bound, checkpoint=True)),
        }
        if bound <= 128 or not quick:
            gradients["jax"] = jax.grad(loss(bound))
        found = measured(gradients, w, 5 if quick else 15)
        cells = []
        for name, (run, compile_time) in found.items():
            ratio = run / first.setdefault(name, run)
            cells.append(f"{name} {run * 1e3:8.2f} ms {ratio:5.1f}x ({compile_time:.2f})")
        print(f"{bound:>5}  " + "   ".join(cells), flush=True)


if __name__ == "__main__":
    main()
