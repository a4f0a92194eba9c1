"""Shared parts of the exercises on building your own autodiff: test values, JAX's answer, and a verdict with a point
for each operation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxviz.teach.autodiff.workbook import Engine
from jaxviz.teach.checks import difference
from jaxviz.teach.exercise import Exercise, Verdict
from jaxviz.teach.rule import Check, rule, tried

A = np.array([[0.5, -1.2, 2.0], [0.3, 0.8, -0.4]], np.float32)
B = np.array([[1.0, 0.2], [-0.7, 0.4], [0.6, 1.5]], np.float32)
POSITIVE = np.array([0.4, 1.7, 2.5], np.float32)

SAMPLES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "neg": ((A,), {}), "add": ((A, A[::-1]), {}), "mul": ((A, A[::-1]), {}), "sin": ((A,), {}), "cos": ((A,), {}),
    "exp": ((A,), {}), "log": ((POSITIVE,), {}), "recip": ((POSITIVE,), {}), "step": ((A,), {}),
    "sum": ((A,), {"axis": 1}), "spread": ((A,), {"axis": 1, "size": 4}), "dot": ((A, B), {}), "swap": ((A,), {}),
}  # fmt: skip
"""Inputs and params of each operation, to try a rule on."""

LINEAR = {"neg": (0,), "add": (0, 1), "mul": (0, 1), "sum": (0,), "spread": (0,), "dot": (0, 1), "swap": (0,)}
"""The operations of linear programs, and the inputs in which each is linear."""


def unlike(result: Any, expected: Any, by: str) -> str:
    """A sentence on where a result differs from what `by` returns; '' if it does not."""
    return difference(result, expected, 1e-4, by)


def unlike_cotangents(cotangents: Any, expected: Any) -> str:
    """What is wrong with a list of cotangents, None for a known input and for zero; '' if nothing is."""
    if not isinstance(cotangents, (list, tuple)) or len(cotangents) != len(expected):
        n = len(cotangents) if isinstance(cotangents, (list, tuple)) else "no list of"
        return f"it returns {n} cotangents for {len(expected)} inputs; it should return one for each, or None."
    for i, (a, b) in enumerate(zip(cotangents, expected, strict=True)):
        if a is None and b is not None:
            return f"for input {i} it returns None, but that input is linear and has a cotangent."
        if a is not None and b is None:
            return f"for input {i}, which is known or has none, it returns a cotangent; it should return None."
        if why := unlike(a, b, "JAX"):
            return f"for input {i} {why}"
    return ""


def moving(x: Any) -> Any:
    """A tangent or a cotangent that differs from element to element."""
    return np.cos(np.arange(np.size(x), dtype=np.float32)).reshape(np.shape(x))


def reference(my: Engine, op: str, params: dict[str, Any]) -> Callable[..., Any]:
    """The same operation, by JAX."""
    return lambda *inputs: my.IMPLEMENTATIONS[op](jnp, *inputs, **params)


_FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "sin(x) * x": (lambda m, x: m.sin(x) * x, (np.float32(0.7),)),
    "exp(x) / (1 + y * y)": (lambda m, x, y: m.exp(x) / (1.0 + y * y), (np.float32(0.3), np.float32(-1.4))),
    "tanh(x @ w)": (lambda m, x, w: m.tanh(m.dot(x, w)), (A, B)),
    "sum(log(x)) * 3": (lambda m, x: m.sum(m.log(x), 0) * 3.0, (POSITIVE,)),
    "x + x * x + x": (lambda m, x: x + x * x + x, (np.float32(1.5),)),
}
"""By its text: a function of a module of operations, and test points."""


def functions(my: Engine) -> dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]]:
    """By its text: a function of the engine's operations, the same function of JAX's, and test points."""
    return {text: (partial(f, my), partial(f, jnp), args) for text, (f, args) in _FUNCTIONS.items()}


def of_function(
    my: Engine, name: str, question: str, *checks: Check, hints: Sequence[str],
    mistakes: Iterable[tuple[str, str]] = (), wrong: Sequence[Any] = (),
) -> Exercise:  # fmt: skip
    """An exercise on one of the engine's functions.

    Args:
      my: the engine.
      name: of the function.
      question: the question.
      *checks: the checks, in order.
      hints: hints, in order.
      mistakes: for each of some wrong answers, a piece of code of the notebooks' own function, and what it has instead.
      wrong: further wrong answers.
    """
    own = my.original(name)
    with_mistakes = [_with_mistake(my, own, code, instead) for code, instead in mistakes]
    return rule(question, *checks, hints=hints, example=own, wrong=(*with_mistakes, *wrong))


def _with_mistake(my: Engine, function: Callable[..., Any], code: str, instead: str) -> Any:
    source = inspect.getsource(function)
    assert code in source, f"{function.__name__} has no {code}"
    namespace: dict[str, Any] = {}
    exec(source.replace(code, instead), my.__dict__, namespace)
    return namespace[function.__name__]


def each(
    my: Engine, name: str, question: str, ops: Iterable[str], problem: Callable[..., str], *, hints: Sequence[str],
    mistakes: Iterable[tuple[str, str]],
) -> Exercise:  # fmt: skip
    """An exercise on a function with a case for each operation: each of them is a point of the verdict."""
    checks = [Check(f"`{op}`", partial(problem, op=op)) for op in ops]

    def check(answer: Any) -> Verdict:
        points = tuple(replace(p, mark="missed") if p.why == DOTS else p for p in tried(checks, answer))
        n_right = len([p for p in points if p.mark == "right"])
        return Verdict(n_right == len(points), f"{n_right} of {len(points)} rules.", points)

    return replace(of_function(my, name, question, hints=hints, mistakes=mistakes), check=check)


DOTS = "It has not been written yet."
