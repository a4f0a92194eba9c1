"""Runs a program once: optimized if it is the program in question, compiled fast if it only helps the search."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.ir import compat
from jaxviz.ir.emit import as_function
from jaxviz.ir.syntax import Program
from jaxviz.report.tables import nbytes

Kinds = tuple[bool, bool]
"""Whether an array contains non-finite elements, and a NaN."""


@dataclass(frozen=True, slots=True)
class CompiledRun:
    """A program that was compiled and run.

    Args:
      kinds: those of its results.
      is_short: whether it ran so much faster than it compiled that it may as well run ten times slower.
      compiled: maps the program's inputs to its results.
    """

    kinds: tuple[Kinds, ...]
    is_short: bool
    compiled: Callable[..., Sequence[Any]]

    def once(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """`jax.jit` for a part that runs once; of a program that runs quickly it is compiled without optimizations."""
        jitted = jax.jit(fun)
        quickly = self.is_short and jax.default_backend() == "cpu"
        return (
            (lambda *args: jitted.lower(*args).compile(compiler_options=compat.COMPILED_IN_LESS_TIME)(*args))
            if quickly
            else jitted
        )


_SHARE = 0.2


def run_program(program: Program, inputs: Sequence[Any]) -> CompiledRun:
    """Compiles a program as `jax.jit` does and runs it once."""
    start = time.perf_counter()
    compiled = jax.jit(as_function(program)).lower(*inputs).compile()
    compiling = time.perf_counter() - start
    outs = jax.block_until_ready(compiled(*inputs))
    running = time.perf_counter() - start - compiling
    return CompiledRun(tuple(kinds_of_all(outs)), running < _SHARE * compiling, compiled)


_SMALL = 1 << 20
"""Arrays of at most this many bytes are checked on the host; larger ones on the device, all together."""


def kinds_of(x: Any) -> Kinds:
    """Whether an array contains non-finite elements, and a NaN."""
    return kinds_of_all([x])[0]


def kinds_of_all(values: Sequence[Any]) -> list[Kinds]:
    """For each array whether it contains non-finite elements, and a NaN."""
    on_cpu = jax.default_backend() == "cpu"
    large = [k for k, x in enumerate(values) if is_inexact(x) and not on_cpu and nbytes(compat.aval_of(x)) > _SMALL]
    known = dict(zip(large, _kinds_on_device([values[k] for k in large]) if large else (), strict=True))
    return [(bool(known[k][0]), bool(known[k][1])) if k in known else _kinds_here(x) for k, x in enumerate(values)]


def is_inexact(x: Any) -> bool:
    return bool(jnp.issubdtype(compat.aval_of(x).dtype, jnp.inexact))


def _kinds_here(x: Any) -> Kinds:
    if not is_inexact(x):
        return False, False
    host = np.asarray(x)
    if np.isfinite(host).all():
        return False, False
    return True, bool(np.isnan(host).any())


def _kinds_on_device(values: list[Any]) -> list[tuple[Any, Any]]:
    kinds = jax.jit(lambda xs: [(~jnp.isfinite(x).all(), jnp.isnan(x).any()) for x in xs])
    return list(kinds(values))


def without_nans(x: Any) -> Any:
    """An array with non-finite elements replaced by its first finite one."""
    finite = jnp.isfinite(x)
    return jnp.where(finite, x, jnp.where(finite.any(), x.ravel()[jnp.argmax(finite)], 1).astype(x.dtype))
