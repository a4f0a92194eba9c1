"""Deriving the forward and backward programs, compared with `jax.vjp` traced over the same jaxpr."""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

import jaxviz
from benchmarks.models import lstm, mlp, remat_transformer, scan_transformer, transformer
from jaxviz.ir.syntax import Program
from jaxviz.transforms.linearize import linearize_program
from jaxviz.transforms.transpose import transpose_program


def derive_programs(program: Program) -> tuple[Program, ...]:
    """The forward, linear and backward program, with respect to all inputs that have a tangent."""
    nonzeros = [jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in program.invars]
    parts = linearize_program(program, nonzeros)
    linear = [False] * len(parts.residuals) + [True] * sum(nonzeros)
    backward = transpose_program(parts.linear, linear, [True] * len(parts.linear.outvars))
    return parts.forward, parts.linear, backward.backward


def jax_derives(fun: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """`jax.vjp` and its pullback, traced: the same work, by JAX."""

    def both(*xs: Any) -> Any:
        differentiated = [jnp.issubdtype(jnp.result_type(x), jnp.inexact) for leaf in xs for x in jax.tree.leaves(leaf)]
        flat, tree = jax.tree.flatten(xs)

        def in_floats(*floats: Any) -> Any:
            it = iter(floats)
            return fun(
                *jax.tree.unflatten(tree, [next(it) if d else x for d, x in zip(differentiated, flat, strict=True)])
            )

        out, pull = jax.vjp(in_floats, *(x for d, x in zip(differentiated, flat, strict=True) if d))
        return out, pull(jax.tree.map(jnp.ones_like, out))

    return jax.make_jaxpr(both)(*args)


def seconds(work: Callable[[], Any]) -> float:
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    finally:
        gc.enable()


def compare(
    ours: Callable[[], Any], theirs: Callable[[], Any], before: Callable[[], None], repeats: int
) -> tuple[float, float, float]:
    """The medians of both, interleaved, and the median of their ratio."""
    pairs = []
    for _ in range(repeats):
        before()
        t_theirs = seconds(theirs)
        before()
        pairs.append((seconds(ours), t_theirs))
    ratio = statistics.median(b / a for a, b in pairs)
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs), ratio


def forget() -> None:
    jax.clear_caches()
    jaxviz.clear_caches()


def speed(
    name: str, fun: Callable[..., Any], args: tuple[Any, ...], repeats: int
) -> list[tuple[str, float, float, float]]:
    program = jaxviz.trace(fun)(*args)
    over_jaxpr = jaxpr_as_fun(program.jaxpr)
    flat = tuple(jax.tree.leaves(args))

    def warm() -> None:
        pass

    rows = []
    for label, before in (("cold", forget), ("warm", warm)):
        derive_programs(program)
        rows.append((f"{name}, from the jaxpr, {label}",
                     *compare(lambda: derive_programs(program), lambda: jax_derives(over_jaxpr, flat), before, repeats)))  # fmt: skip
    fresh: Callable[[], Callable[..., Any]] = lambda: lambda *xs: fun(*xs)
    for label, before in (("cold", forget), ("warm", warm)):
        rows.append((f"{name}, from Python, {label}",
                     *compare(lambda: derive_programs(jaxviz.trace(fresh())(*args)),
                              lambda: jax_derives(fresh(), args), before, repeats)))  # fmt: skip
    return rows


def with_collector(work: Callable[[], Any], times: int = 3) -> float:
    """CPU seconds of some work repeated several times with Python's garbage collector on, so that garbage of earlier repetitions counts."""
    gc.collect()
    start = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - start) / times


def without_collector(work: Callable[[], Any], times: int = 3) -> float:
    gc.disable()
    try:
        return with_collector(work, times)
    finally:
        gc.enable()


def growth(n_layers: int) -> tuple[int, list[float], float]:
    """For a transformer: the number of derived equations; µs per derived equation, and per traced equation, each with the garbage collector
    on and off; and bytes per derived equation.
    """
    fun, args = transformer(n_layers)
    trace = lambda: jaxviz.trace(lambda *xs: fun(*xs))(*args)
    program = trace()
    derive = lambda: derive_programs(program)
    derive()
    gc.collect()
    tracemalloc.start()
    derived = derive()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    n = sum(1 for p in derived for _ in p.walk())
    del derived
    n_traced = sum(1 for _ in program.walk())
    times = [
        min(measure(work) for _ in range(3)) / of * 1e6
        for work, of in ((derive, n), (trace, n_traced))
        for measure in (with_collector, without_collector)
    ]
    return n, times, size / n


def main(quick: bool = False) -> None:
    repeats = 3 if quick else 7
    print(
        "Derivation of forward, linear and backward programs; JAX: jax.vjp and its pullback, traced over the same program"
    )
    print(f"{'program':<46}{'jaxviz':>10}{'jax':>10}{'ratio':>8}")
    for name, (fun, args) in {
        "MLP, 8 layers": mlp(8), "transformer, 12 layers": transformer(12), "transformer, 48 layers": transformer(48),
        "scan over 12 layers": scan_transformer(12), "remat, 12 layers": remat_transformer(12), "LSTM, 3 layers": lstm(3),
    }.items():  # fmt: skip
        for label, ours, theirs, ratio in speed(name, fun, args, repeats):
            print(f"{label:<46}{ours * 1e3:>7.1f} ms{theirs * 1e3:>7.1f} ms{ratio:>7.1f}x")
    print("\nGrowth with a warm memo table: CPU time, and CPU time with Python's garbage collector off")
    header = f"{'layers':>8}{'derived equations':>20}{'derive, µs/equation':>22}{'off':>8}{'trace, µs/equation':>21}{'off':>8}"
    print(f"{header}{'bytes/equation':>16}")
    for n_layers in (12, 50, 150) if quick else (12, 50, 150, 300):
        n, (derive, derive_off, trace, trace_off), size = growth(n_layers)
        row = f"{n_layers:>8}{n:>20,}{derive:>22.2f}{derive_off:>8.2f}{trace:>21.2f}{trace_off:>8.2f}"
        print(f"{row}{size:>16,.0f}")


if __name__ == "__main__":
    main()
