"""Time by kernel and line, the roofline, and what looking costs: `profile`, `find_nan`, `step`, probes and more."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import jaxviz
from benchmarks import nan_programs, probes
from benchmarks.device.device import (
    alone,
    device,
    distance,
    is_accelerator,
    median_seconds,
    seconds,
    size,
    text_of_seconds,
    values,
)
from benchmarks.device.programs import subjects
from benchmarks.device.raw import keep
from benchmarks.device.rows import Row, guarded
from benchmarks.models import transformer
from benchmarks.nans import MOST_TIME
from benchmarks.remat_programs import llama
from jaxviz.ir.own_code import is_own
from jaxviz.runtime.speed import measured_speed, memory_speed, product_speed

WITH_A_LINE = 0.9
"""The share of the kernels' time that should be led to lines."""
PROFILED = ("scan", "attention by cuDNN", "convolutions", "donated step", "transformer, scanned")


def kernels() -> Iterator[Row]:
    for name in PROFILED[: size(2, None)]:
        yield from guarded(name, "`profile`", partial(_profiled, name))


def _profiled(name: str) -> Iterator[Row]:
    subject = subjects()[name]
    jitted = subject.jitted()
    given = values(subject.args)
    compiled = jitted.lower(*subject.args).compile()
    with alone():
        own = jax.tree.map(jnp.copy, given) if subject.step else given
        plain = median_seconds(partial(compiled, *own), 5) if not subject.step else None
        found = jaxviz.profile(jitted, *given)
        _record(name, compiled, own)
    keep(f"profile {name}.txt", str(found))
    total = sum(k.seconds for k in found.kernels)
    led = sum(k.seconds for k in found.kernels if k.locations)
    if not found.kernels:
        yield Row(name, "kernels' time with a line of the user's", f"at least {WITH_A_LINE:.0%}", "no kernels recorded",
        False)  # fmt: skip
        return
    without = sorted((k for k in found.kernels if not k.locations), key=lambda k: -k.seconds)[:3]
    yield Row(
        name, "kernels' time with a line of the user's", f"at least {WITH_A_LINE:.0%}",
        f"{led / total:.0%}" if led < total else "all",
        led >= WITH_A_LINE * total, note=", ".join(f"{k.name} {k.seconds / total:.0%}" for k in without),
        figures={"kernels": [k.to_dict() for k in found.kernels[:40]]}, is_timed=True,
    )  # fmt: skip
    # What overlaps counts twice in the sum, and recording takes time too.
    yield Row(
        name, "kernels' time, together", f"at most {text_of_seconds(found.run)}, a call", text_of_seconds(total),
        0.5 * found.run <= total <= 1.1 * found.run if size(False, True) else None, True, figures={"run": found.run,
        "kernels": total, "plain": plain, "busy": found.busy},
    )  # fmt: skip
    if plain is not None:
        yield Row(
            name, "time of a call", text_of_seconds(plain), text_of_seconds(found.run),
            abs(found.run / plain - 1) < 0.25 if size(False, True) else None, True,
        )  # fmt: skip


def lines() -> Iterator[Row]:
    f, args = transformer(size(2, 6))
    yield from guarded("transformer", "`cost(…).measure()`", partial(_by_line, f, args))


def _by_line(f: Callable[..., Any], args: tuple[Any, ...]) -> Iterator[Row]:
    cost = jaxviz.cost(f, *args)
    with alone():
        gradient = jax.jit(jax.value_and_grad(f))
        fused = seconds(partial(gradient, *args))
        found = cost.measure()
    total = found.seconds
    led = sum(t.seconds for t in found.rows if is_own(t.location.file))
    yield Row(
        "transformer", "time of single equations with a line of the user's", f"at least {WITH_A_LINE:.0%}",
        f"{led / total:.0%}",
        led >= WITH_A_LINE * total,
    )  # fmt: skip
    yield Row(
        "transformer", "time of single equations, together, beside the compiled gradient", text_of_seconds(fused),
        text_of_seconds(total),
        None, True, note="each equation is a program of its own",
    )  # fmt: skip


def _record(name: str, compiled: Any, args: Any) -> None:
    """Keeps what JAX's profiler writes for one call."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(compiled(*args))
        for file in Path(folder).rglob("*.xplane.pb"):
            keep(f"profile {name}.xplane.pb", file.read_bytes())


def nans() -> Iterator[Row]:
    jaxviz.find_nan(jnp.sum, jnp.ones(3))  # imports
    names = list(nan_programs.PROGRAMS)[: size(2, 5)]
    for name in names:
        yield from guarded(name, "`find_nan`", partial(_find_nan, name))


def _find_nan(name: str) -> Iterator[Row]:
    f, finite, broken = nan_programs.PROGRAMS[name]()
    with alone():
        start = time.perf_counter()
        value, grads = jax.block_until_ready(jax.jit(jax.value_and_grad(f))(*broken))
        plain = time.perf_counter() - start
        start = time.perf_counter()
        found = jaxviz.find_nan(f, *broken)
        ours = time.perf_counter() - start
    is_finite = all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves((value, grads)))
    where = "finite" if found is None else found.born.short if found.born else found.given[0]
    yield Row(
        name, "a NaN or an infinity in the value or the gradient", "no" if is_finite else "yes",
        "no" if found is None else "yes",
        is_finite == (found is None), note=where,
    )  # fmt: skip
    healthy = jaxviz.find_nan(f, *finite)
    grads = jax.block_until_ready(jax.jit(jax.value_and_grad(f))(*finite))
    is_finite = all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(grads))
    yield Row(
        name, "the same with finite arguments", "no" if is_finite else "yes", "no" if healthy is None else "yes",
        is_finite == (healthy is None),
        note="" if healthy is None else healthy.born.short if healthy.born else "",
    )  # fmt: skip
    yield Row(
        name, f"time of finding it, at most {MOST_TIME:.0f} × compiling and running the gradient",
        text_of_seconds(plain),
        text_of_seconds(ours), ours <= MOST_TIME * plain if size(False, True) else None, True,
        note=f"{ours / plain:.2f} ×", figures={"plain": plain,
        "ours": ours},
    )  # fmt: skip


def stepping() -> Iterator[Row]:
    f, args = transformer(size(2, 4))
    yield from guarded("transformer", "`step`", partial(_stepped, f, args))


def _stepped(f: Callable[..., Any], args: tuple[Any, ...]) -> Iterator[Row]:
    jax.block_until_ready(jax.grad(f)(*args))
    jaxviz.step(f, *args).run()
    with alone():
        once = time.perf_counter()
        expected = jax.block_until_ready(jax.grad(f)(*args))
        plain = time.perf_counter() - once
        start = time.perf_counter()
        stepper = jaxviz.step(f, *args)
        stepper.run()
        ours = time.perf_counter() - start
    got = stepper.gradient
    far = distance(list(got), jax.tree.leaves(expected))
    yield Row(
        "transformer", "the gradient at the end of `step`, beside jax.grad op by op", "0", f"{far:.1e}", far < 1e-5,
    )  # fmt: skip
    where = {str(d) for x in got for d in x.devices()}
    yield Row(
        "transformer", "the device of its values", str(jax.devices()[0]), ", ".join(sorted(where)),
        where == {str(jax.devices()[0])}
    )  # fmt: skip
    yield Row("transformer", "time of stepping to the end", text_of_seconds(plain), text_of_seconds(ours), None, True,
    "beside jax.grad op by op")  # fmt: skip


def probing() -> Iterator[Row]:
    ways = probes.ways()[: size(3, None)]
    width, tokens = size((32, 16), (512, 1024))
    params = probes.transformer_params(probes.N_LAYERS, width, 2 * width)
    numbers = jnp.arange(tokens) % 50
    probes.measured(ways, params, numbers, 0, 1)
    with alone():
        found = probes.measured(ways, params, numbers, size(1, 5), size(2, 10))
    least = min(found["plain"][0])
    for name, (taken, _) in found.items():
        ratio = min(taken) / least
        limit = 1.05 if name == "probes, nothing watched" else None
        yield Row(
            "transformer", f"time of a training step: {name}", text_of_seconds(least), text_of_seconds(min(taken)),
            ratio <= limit if limit and size(False, True) else None, True, f"{ratio:.2f} of plain",
            figures={"ratio": ratio},
        )  # fmt: skip


def roof() -> Iterator[Row]:
    yield from guarded("a chain of products", "the roofline's FLOPs per second", _products)
    yield from guarded("a copy", "the roofline's bytes per second", _copied)
    yield from guarded("transformer", "least time by the roofline", _under_the_roof)


def _products() -> Iterator[Row]:
    """Eight products in one program, beside one at a time."""
    n, dtype = size(1024, 8192), size(jnp.float32, jnp.bfloat16)
    w = (jax.random.normal(jax.random.key(0), (n, n)) / n**0.5).astype(dtype)
    chain = jax.jit(lambda w: jax.lax.fori_loop(0, 8, lambda _, x: x @ w, w))
    with alone():
        plain = 8 * 2 * n**3 / seconds(partial(chain, w))
        found = product_speed(device(), dtype)
    yield _speeds(f"a chain of {w.dtype.name} products", "the roofline's FLOPs per second", "FLOP", plain, found)


def _copied() -> Iterator[Row]:
    """A copy of more memory than the roofline's loop uses; into memory that the last copy has freed."""
    x = jnp.zeros(size(2**25, 2**30), jnp.float32)
    copy = jax.jit(lambda x: x + 1)
    with alone():
        plain = 2 * x.nbytes / seconds(partial(copy, x))
        found = memory_speed(device())
    yield _speeds("a sum with 1", "the roofline's bytes per second", "B", plain, found)


def _speeds(case: str, question: str, unit: str, plain: float, found: float) -> Row:
    return Row(
        case, question, f"{plain / 1e12:.3g} T{unit}/s", f"{found / 1e12:.3g} T{unit}/s",
        abs(found / plain - 1) < 0.15 if is_accelerator() else None, True, f"{found / plain:.2f} of it",
        figures={"plain": plain, "found": found},
    )  # fmt: skip


def _under_the_roof() -> Iterator[Row]:
    """A program cannot be faster than its FLOPs allow; if it is, FLOPs are counted or measured wrongly."""
    case = size(partial(llama, 2, True, 64, 128, length=64, words=100), partial(llama, 8, True, 2048, 5504))()
    compiled = jax.jit(jax.value_and_grad(case.plain)).lower(*case.args).compile()
    with alone():
        plain = seconds(partial(compiled, *values(case.args)))
        speed = measured_speed(device(), jnp.bfloat16)
    least = jaxviz.cost(case.plain, *case.args).total.flops / speed.flops
    yield Row(
        "transformer", "least time of its FLOPs, at most the time of the gradient", text_of_seconds(plain),
        text_of_seconds(least), least <= 1.05 * plain if is_accelerator() else None, True, f"{least / plain:.2f} of it",
        figures={"plain": plain, "least": least},
    )  # fmt: skip


def compiling() -> Iterator[Row]:
    f, args = transformer(size(2, 6))
    yield from guarded("transformer", "`compile_cost`", partial(_compile_cost, f, args))


def _compile_cost(f: Callable[..., Any], args: tuple[Any, ...]) -> Iterator[Row]:
    jax.block_until_ready(jax.jit(lambda x: x + 1)(1.0))
    with alone():
        start = time.perf_counter()
        jax.jit(jax.value_and_grad(lambda *xs: f(*xs))).lower(*args).compile()
        plain = time.perf_counter() - start
        found = jaxviz.compile_cost(f, *args)
    keep("compile_cost.txt", str(found))
    phases = found.phases
    total = sum(getattr(phases, name).wall for name in ("tracing", "lowering", "compiling"))
    yield Row(
        "transformer", "wall time of tracing, lowering and compiling", text_of_seconds(plain), text_of_seconds(total),
        None, True,
        note=found.summary.split(". ")[0],
    )  # fmt: skip
    counted = found.counts.after
    yield Row("transformer", "instructions of the compiled program are counted", "yes", "yes" if counted else "no",
    bool(counted))  # fmt: skip


PARTS = {
    "profile": kernels, "time by line": lines, "find_nan": nans, "step": stepping, "probes": probing,
    "compile_cost": compiling, "roofline": roof,
}  # fmt: skip
