"""Deriving the forward and backward programs, compared with `jax.vjp` traced over the same jaxpr; and hi-primitives and
references, compared with the same programs without them.

With `--against REVISION` compared with the jaxviz of another revision instead: two processes that take turns.
"""

from __future__ import annotations

import argparse
import gc
import io
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

import jaxviz
from benchmarks.models import (
    accumulate,
    accumulate_in_place,
    lstm,
    mlp,
    remat_transformer,
    ruled_transformer,
    scan_transformer,
    summed_transformer,
    transformer,
)
from jaxviz.ir.syntax import Program
from jaxviz.runtime.flags import under_flags
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


def import_rules() -> None:
    """Imports all rules, at any revision."""
    jaxviz.derive(lambda x: x, 1.0)


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
                     *compare(lambda: derive_programs(program), lambda: jax_derives(over_jaxpr, flat), before,
                              repeats)))  # fmt: skip
    fresh: Callable[[], Callable[..., Any]] = lambda: lambda *xs: fun(*xs)
    for label, before in (("cold", forget), ("warm", warm)):
        rows.append((f"{name}, from Python, {label}",
                     *compare(lambda: derive_programs(jaxviz.trace(fresh())(*args)),
                              lambda: jax_derives(fresh(), args), before, repeats)))  # fmt: skip
    return rows


def with_collector(work: Callable[[], Any], times: int = 3) -> float:
    """CPU seconds of some work repeated several times with Python's garbage collector on, so that garbage of earlier
    repetitions counts."""
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
    """For a transformer: the number of derived equations; µs per derived equation, and per traced equation, each with
    the garbage collector on and off; and bytes per derived equation."""
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


PROGRAMS: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "MLP, 8 layers": lambda: mlp(8), "transformer, 12 layers": lambda: transformer(12),
    "transformer, 48 layers": lambda: transformer(48),
    "scan over 12 layers": lambda: scan_transformer(12), "remat, 12 layers": lambda: remat_transformer(12),
    "LSTM, 3 layers": lambda: lstm(3),
}  # fmt: skip


Make = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]

FORMS: dict[str, tuple[Make, Make, dict[str, Any]]] = {
    "custom VJP rules as hi-primitives": (*[lambda: ruled_transformer(12, False)] * 2, {"jax_custom_vjp3": True}),
    "custom JVP rules as hi-primitives": (*[lambda: ruled_transformer(12, True)] * 2, {"jax_custom_jvp3": True}),
    "checkpoints as hi-primitives": (*[lambda: remat_transformer(12)] * 2, {"jax_remat3": True}),
    "sum in a reference": (
        lambda: summed_transformer(12, accumulate), lambda: summed_transformer(12, accumulate_in_place), {},
    ),
}  # fmt: skip
"""A program in its classic form; the same in another form, with the flags of JAX that give it this form."""


def forms(repeats: int) -> Iterator[tuple[str, float, float, float]]:
    """For each form, cold and warm: the seconds of a derivation in the classic one and in it, and their ratio."""
    import_rules()
    for name, (classic, other, flags) in FORMS.items():
        with under_flags(dict.fromkeys(flags, False)):
            fun, args = classic()
            program = jaxviz.trace(fun)(*args)
        with under_flags(flags):
            fun, args = other()
            in_form = jaxviz.trace(fun)(*args)

        def derived_in_form(program: Program = in_form, flags: dict[str, Any] = flags) -> None:
            with under_flags(flags):
                derive_programs(program)

        def derived_classic(program: Program = program, flags: dict[str, Any] = flags) -> None:
            with under_flags(dict.fromkeys(flags, False)):
                derive_programs(program)

        for label, before in (("cold", forget), ("warm", lambda: None)):
            derived_in_form(), derived_classic()
            yield f"{name}, {label}", *compare(derived_classic, derived_in_form, before, repeats)


def answer_with_times() -> None:
    """For each line that is read, a program's name and "cold" or "warm", prints the CPU seconds of one derivation."""
    import_rules()
    traced: dict[str, Program] = {}
    for line in sys.stdin:
        name, state = line.rstrip("\n").split("\t")
        if name not in traced:
            fun, args = PROGRAMS[name]()
            traced[name] = jaxviz.trace(fun)(*args)
            derive_programs(traced[name])
        if state == "cold":
            forget()
        gc.collect()
        taken = []
        for _ in range(1 if state == "cold" else 5):
            start = time.process_time()
            derive_programs(traced[name])
            taken.append(time.process_time() - start)
        print(min(taken), flush=True)


@contextmanager
def process_of(revision: str) -> Iterator[Callable[[str, str], float]]:
    """A process with the jaxviz of a revision, "" for the working tree, and these benchmarks; it gives the seconds of a
    derivation."""
    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        if revision:
            command = ["git", "archive", revision, "jaxviz"]
            packed = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                archive.extractall(folder, filter="data")
            (Path(folder) / "benchmarks").symlink_to(root / "benchmarks")
        command = [sys.executable, "-m", "benchmarks.derivation", "--answer"]
        cwd = folder if revision else root
        with subprocess.Popen(command, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

            def taken(name: str, state: str) -> float:
                assert process.stdin is not None
                assert process.stdout is not None
                print(name, state, sep="\t", file=process.stdin, flush=True)
                return float(process.stdout.readline())

            yield taken


def against(revision: str, quick: bool) -> None:
    """Prints the CPU time of deriving with the working tree beside a revision: the least of many, in turns, and their
    ratio."""
    repeats = {"cold": 4 if quick else 10, "warm": 15 if quick else 40}
    print(f"Derivation from the jaxpr, CPU time, the least of {repeats['cold']} cold and {repeats['warm']} warm")
    print(f"{'program':<32}{revision[:12]:>12}{'this':>12}{'ratio':>8}")
    with ExitStack() as stack:
        before, now = (stack.enter_context(process_of(r)) for r in (revision, ""))
        for name in PROGRAMS:
            for state, n in repeats.items():
                before(name, "warm"), now(name, "warm")  # traces it
                pairs = [(before(name, state), now(name, state)) for _ in range(n)]
                a, b = (min(p[k] for p in pairs) for k in (0, 1))
                print(f"{f'{name}, {state}':<32}{a * 1e3:>9.2f} ms{b * 1e3:>9.2f} ms{b / a:>7.2f}x", flush=True)


def main(quick: bool = False) -> None:
    repeats = 3 if quick else 7
    print(
        "Derivation of forward, linear and backward programs; JAX: jax.vjp and its pullback, traced over the same "
        "program"
    )
    print(f"{'program':<46}{'jaxviz':>10}{'jax':>10}{'ratio':>8}")
    for name, make in PROGRAMS.items():
        fun, args = make()
        for label, ours, theirs, ratio in speed(name, fun, args, repeats):
            print(f"{label:<46}{ours * 1e3:>7.1f} ms{theirs * 1e3:>7.1f} ms{ratio:>7.1f}x")
    print("\nForms of a transformer of 12 layers, each beside its classic form, from the jaxpr")
    print(f"{'form':<46}{'classic':>10}{'in it':>10}{'ratio':>8}")
    for label, plain, it, ratio in forms(4 * repeats):
        print(f"{label:<46}{plain * 1e3:>7.1f} ms{it * 1e3:>7.1f} ms{ratio:>7.2f}x")
    print("\nGrowth with a warm memo table: CPU time, and CPU time with Python's garbage collector off")
    header = f"{'layers':>8}{'derived equations':>20}{'derive, µs/equation':>22}{'off':>8}"
    print(f"{header}{'trace, µs/equation':>21}{'off':>8}{'bytes/equation':>16}")
    for n_layers in (12, 50, 150) if quick else (12, 50, 150, 300):
        n, (derive, derive_off, trace, trace_off), size = growth(n_layers)
        row = f"{n_layers:>8}{n:>20,}{derive:>22.2f}{derive_off:>8.2f}{trace:>21.2f}{trace_off:>8.2f}"
        print(f"{row}{size:>16,.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--against", metavar="REVISION", help="a git revision to compare with")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        answer_with_times()
    elif options.against:
        against(options.against, options.quick)
    else:
        main(options.quick)
