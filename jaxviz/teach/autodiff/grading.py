"""Shared parts of the exercises on building your own autodiff: test values, JAX's answer, and a verdict with a point for each operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxviz.ir.errors import message_of
from jaxviz.teach.autodiff.workbook import Engine
from jaxviz.teach.exercise import Exercise, Point, Verdict
from jaxviz.teach.rule import rule

A = np.array([[0.5, -1.2, 2.0], [0.3, 0.8, -0.4]], np.float32)
B = np.array([[1.0, 0.2], [-0.7, 0.4], [0.6, 1.5]], np.float32)
POSITIVE = np.array([0.4, 1.7, 2.5], np.float32)

SAMPLES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "neg": ((A,), {}), "add": ((A, A[::-1]), {}), "mul": ((A, A[::-1]), {}), "sin": ((A,), {}), "cos": ((A,), {}), "exp": ((A,), {}),
    "log": ((POSITIVE,), {}), "recip": ((POSITIVE,), {}), "step": ((A,), {}), "sum": ((A,), {"axis": 1}),
    "spread": ((A,), {"axis": 1, "size": 4}), "dot": ((A, B), {}), "swap": ((A,), {}),
}  # fmt: skip
"""Inputs and params of each operation, to try a rule on."""

LINEAR = {"neg": (0,), "add": (0, 1), "mul": (0, 1), "sum": (0,), "spread": (0,), "dot": (0, 1), "swap": (0,)}
"""The operations of linear programs, and the inputs in which each is linear."""


def close(a: Any, b: Any, tol: float = 1e-4) -> bool:
    return np.shape(a) == np.shape(b) and bool(np.allclose(a, b, rtol=tol, atol=tol))


def shown(x: Any) -> str:
    return np.array2string(np.asarray(x), precision=4, separator=", ", threshold=8).replace("\n", "")


def reference(op: str, params: dict[str, Any]) -> Callable[..., Any]:
    """The same operation, by JAX."""
    others: dict[str, Callable[..., Any]] = {
        "neg": lambda x: -x, "add": lambda x, y: x + y, "mul": lambda x, y: x * y, "recip": lambda x: 1 / x,
        "step": lambda x: jnp.where(x > 0, 1.0, 0.0), "dot": lambda x, y: x @ y, "swap": lambda x: jnp.swapaxes(x, -1, -2),
        "sum": lambda x: jnp.sum(x, params["axis"]),
        "spread": lambda x: jnp.repeat(jnp.expand_dims(x, params["axis"]), params["size"], params["axis"]),
    }  # fmt: skip
    return others.get(op) or getattr(jnp, op)


def functions(my: Engine) -> dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]]:
    """By its text: a function of the engine's operations, the same function in JAX, and test points."""
    return {
        "sin(x) * x": (lambda x: my.sin(x) * x, lambda x: jnp.sin(x) * x, (np.float32(0.7),)),
        "exp(x) / (1 + y * y)": (
            lambda x, y: my.exp(x) / (1.0 + y * y), lambda x, y: jnp.exp(x) / (1.0 + y * y), (np.float32(0.3), np.float32(-1.4))),
        "tanh(x @ w)": (lambda x, w: my.tanh(my.dot(x, w)), lambda x, w: jnp.tanh(x @ w), (A, B)),
        "sum(log(x)) * 3": (lambda x: my.sum(my.log(x), 0) * 3.0, lambda x: jnp.sum(jnp.log(x), 0) * 3.0, (POSITIVE,)),
        "x + x * x + x": (lambda x: x + x * x + x, lambda x: x + x * x + x, (np.float32(1.5),)),
    }  # fmt: skip


def each(my: Engine, question: str, ops: Iterable[str], problem: Callable[[Any, str], str], name: str,
          hints: Sequence[str], wrong: Sequence[Any]) -> Exercise:  # fmt: skip
    """An exercise on a function with a case for each operation: each of them is a point of the verdict."""
    base = rule(question, hints=hints, example=my.original(name), wrong=wrong)

    def check(given: Any) -> Verdict:
        points = []
        for op in ops:
            try:
                why = problem(given, op)
            except Exception as error:
                why = f"It raises {type(error).__name__}: {message_of(error).splitlines()[0] if message_of(error) else ''}"
            points.append(Point("right" if not why else "missed" if why == DOTS else "wrong", f"`{op}`", why))
        n_right = len([p for p in points if p.mark == "right"])
        return Verdict(n_right == len(points), f"{n_right} of {len(points)} rules.", tuple(points))

    return replace(base, check=check)


DOTS = "It has not been written yet."


def but_for(solution: Callable[..., Any]) -> Callable[[str, Callable[..., Any]], Callable[..., Any]]:
    """Returns the solution with another rule for one operation: an answer that is wrong only there."""
    return lambda op, other: lambda o, *args: (other if o == op else solution)(o, *args)
