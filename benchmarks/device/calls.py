"""Calls that jaxviz does not look into: a kernel written with Pallas, a foreign call, a callback.

Each is named with its line, in every report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxviz
from benchmarks.device.device import distance, is_accelerator
from benchmarks.device.rows import Row, guarded

X = jax.ShapeDtypeStruct((1024,), jnp.float32)


def doubled_kernel(x: Any, out: Any) -> None:
    out[...] = x[...] * 2.0


@jax.custom_jvp
def with_pallas(x: jax.Array) -> jax.Array:
    from jax.experimental import pallas as pl

    out_shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(doubled_kernel, out_shape=out_shape, interpret=not is_accelerator())(x)


@with_pallas.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return with_pallas(*primals), 2.0 * tangents[0]


@jax.custom_jvp
def with_triton(x: jax.Array) -> jax.Array:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    return pl.pallas_call(
        doubled_kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=triton.CompilerParams(num_warps=4),
    )(x)  # fmt: skip


@with_triton.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return with_triton(*primals), 2.0 * tangents[0]


@jax.custom_jvp
def with_callback(x: jax.Array) -> jax.Array:
    return jax.pure_callback(lambda x: np.asarray(x) * np.float32(2), jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@with_callback.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return with_callback(*primals), 2.0 * tangents[0]


@jax.custom_jvp
def with_foreign_call(x: jax.Array) -> jax.Array:
    return jax.ffi.ffi_call("a_target_that_is_only_traced", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


@with_foreign_call.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return with_foreign_call(*primals), 2.0 * tangents[0]


CALLS: dict[str, tuple[Callable[..., Any], str, bool]] = {
    "Pallas": (with_pallas, "pallas_call", True),
    "Pallas by Triton": (with_triton, "pallas_call", is_accelerator()),
    "callback": (with_callback, "pure_callback", True),
    "foreign call": (with_foreign_call, "ffi_call", False),
}
"""By name: the function, the primitive, and whether it can run here."""


def calls() -> Iterator[Row]:
    for name in CALLS:
        yield from guarded(name, "calls that are not opened", partial(_call, name))


def _call(name: str) -> Iterator[Row]:
    inner, primitive, runs = CALLS[name]

    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(inner(jnp.sin(x)) ** 2)

    reports: dict[str, Callable[[], Any]] = {
        "residuals": lambda: jaxviz.residuals(loss, X), "memory": lambda: jaxviz.memory(loss, X),
        "cost": lambda: jaxviz.cost(loss, X),
        "lint": lambda: jaxviz.lint(loss, X), "check": lambda: jaxviz.derive(loss, X).check(),
    }  # fmt: skip
    if runs:
        reports["compiled_memory"] = lambda: jaxviz.compiled_memory(loss, X)
    texts = {report: str(make()) for report, make in reports.items()}
    silent = [report for report, text in texts.items() if not _tells(text, primitive)]
    yield Row(
        name, "reports that name it with its line", ", ".join(reports),
        f"all but {', '.join(silent)}" if silent else "all",
        not silent,
    )  # fmt: skip
    if runs:
        x = jnp.linspace(0.1, 1.0, X.shape[0])
        expected, found = jax.jit(jax.grad(loss))(x), jax.jit(jaxviz.grad(loss))(x)
        far = distance(found, expected)
        yield Row(name, "the gradient, beside JAX's", "0", f"{far:.1e}", far == 0)


def _tells(text: str, primitive: str) -> bool:
    return "not opened" in text and primitive in text and "calls.py:" in text


PARTS = {"calls": calls}
