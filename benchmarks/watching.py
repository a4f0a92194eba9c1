"""The cost of watching: donations in a step of a millisecond with 400 donated leaves, compilations in a cached step and
in a compiled one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxviz

N_LEAVES = 400
MOST = 0.02
"""How much watching may add to a step."""


def donating_step(work: int) -> Callable[..., Any]:
    """A step that replaces 400 parameters and computes for as long as `work` says."""

    def step(params: dict[str, jax.Array], x: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        y = jax.lax.fori_loop(0, work, lambda _, y: jnp.tanh(x @ y), x)
        return {name: p * 0.5 for name, p in params.items()}, y

    return jax.jit(step, donate_argnums=0)


def parameters() -> dict[str, jax.Array]:
    return {f"layer{i}": jnp.ones(8) for i in range(N_LEAVES)}


def seconds_a_step(step: Callable[..., Any], x: jax.Array, n: int) -> float:
    params, start = parameters(), 0.0
    for i in range(-10, n):
        if i == 0:  # a watch always records the first calls at a line, which are not typical
            start = time.perf_counter()
        params, y = step(params, x)
        jax.block_until_ready(y)
    return (time.perf_counter() - start) / n


def of_a_millisecond(x: jax.Array) -> Callable[..., Any]:
    """The step with enough work to take about a millisecond."""
    work = 1
    while True:
        step = donating_step(work)
        if min(seconds_a_step(step, x, 20) for _ in range(5)) > 0.95e-3:
            return step
        work = work * 5 // 4 + 1


def seconds_to_compile(n: int) -> float:
    def compiled(k: float) -> Any:
        return jax.jit(lambda params: {name: p * k for name, p in params.items()})

    params = dict(list(parameters().items())[:20])
    start = time.perf_counter()
    for i in range(n):
        jax.block_until_ready(compiled(float(i))(params))
    return (time.perf_counter() - start) / n


Way = tuple[str, Callable[[], object], Callable[[], object]]
"""A name, a function to start it and one to end it."""

nothing: Callable[[], object] = lambda: None
PLAIN: list[Way] = [("plain", nothing, nothing), ("plain again", nothing, nothing)]
DONATIONS: Way = ("donations watched", jaxviz.watch_donations, lambda: jaxviz.watch_donations(False))
COMPILATIONS: Way = ("compilations watched", jaxviz.watch_compilations, lambda: jaxviz.watch_compilations(False))


def in_turn(ways: list[Way], work: Callable[[], float], rounds: int) -> dict[str, tuple[float, float]]:
    """For each way the tenth percentile of its rounds' seconds, since other processes use the machine as well; and what
    it adds to the plain one."""
    taken: dict[str, list[float]] = {name: [] for name, _, _ in ways}
    for k in range(rounds + 1):
        for name, begin, end in ways if k % 2 else reversed(ways):
            begin()
            seconds = work()
            end()
            if k:  # the first round compiles
                taken[name].append(seconds)
    low = {name: statistics.quantiles(ts, n=10)[0] for name, ts in taken.items()}
    return {name: (seconds, seconds / low["plain"] - 1) for name, seconds in low.items()}


def main(quick: bool = False) -> None:
    rounds, steps = (50, 20) if quick else (250, 20)
    x = jnp.ones((96, 96)) / 96
    step = of_a_millisecond(x)
    for title, ways, work, n in (
        (f"A step with {N_LEAVES} donated leaves", [*PLAIN, DONATIONS, COMPILATIONS],
        lambda: seconds_a_step(step, x, steps), rounds),
        ("A function that is compiled", [*PLAIN, COMPILATIONS], lambda: seconds_to_compile(1), rounds // 4),
    ):  # fmt: skip
        print(f"\n{title}; jaxviz is only imported unless stated otherwise")
        for name, (seconds, added) in in_turn(ways, work, n).items():
            asked = f"   target: at most {MOST:+.0%}" if name == DONATIONS[0] else ""
            print(f"  {name:22} {seconds * 1e3:8.3f} ms  {added:+7.1%}{asked}")


if __name__ == "__main__":
    main()
