"""Conditions on values that a page may set: comparisons of a few figures, which are parsed and never evaluated as
Python.

A condition is such a comparison, or several with `and`, `or`, `not` and parentheses; a comparison may be a chain, as in
`0.1 < std < 10`.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxviz.features.debugger.positions import SteppingError
from jaxviz.features.debugger.summaries import FEW, in_plain_type

_LONGEST = 200
"""The most characters of a condition, so that none is deeply nested."""

_FIGURES: Mapping[str, Callable[[Any, Any, Any], Any]] = {
    "min": lambda xp, x, finite: xp.min(x, where=finite, initial=xp.inf),
    "max": lambda xp, x, finite: xp.max(x, where=finite, initial=-xp.inf),
    "max_abs": lambda xp, x, finite: xp.max(xp.abs(x), where=finite, initial=0),
    "mean": lambda xp, x, finite: xp.mean(x, where=finite),
    "std": lambda xp, x, finite: xp.std(x, where=finite),
    "norm": lambda xp, x, finite: xp.sqrt(xp.sum(x * x, where=finite)),
}
"""The figures of the finite elements of an array: by name, functions of the module that computes it, the array, and
which elements are finite."""

_COUNTS: Mapping[str, Callable[[Any, Any], Any]] = {
    "nan": lambda xp, x: xp.isnan(x).sum(),
    "inf": lambda xp, x: xp.isinf(x).sum(),
    "zeros": lambda xp, x: (x == 0).sum(),
    "size": lambda xp, x: x.size,
}
"""The figures of all elements: functions of that module and the array."""

_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip

WHAT_TO_WRITE = (
    "Write a comparison such as `max_abs > 1e3` or `nan > 0 or not 0.1 < std < 10`. The figures are "
    f"{', '.join(_FIGURES)} of the finite elements, and {', '.join(_COUNTS)}. A page cannot run Python: for any other "
    "condition, run `s.break_at(when=lambda v: ...)` in a cell, where s is the stepper."
)

_Figures = Callable[[str], float]
_Test = Callable[[_Figures], bool]
_Term = Callable[[_Figures], float]


@dataclass(frozen=True)
class Condition:
    """A condition, which can be called with a value as a predicate can.

    >>> Condition("max_abs > 1e3")(jnp.array([1.0, -2e3]))
    True

    Args:
      text: as the user typed it.

    Raises:
      SteppingError: the text is not a condition; says what to write.
    """

    text: str
    _test: _Test = field(init=False, compare=False)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "_test", _test(_parsed(self.text)))
        except _NotACondition as error:
            shown = " ".join(self.text.split())
            shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"
            raise SteppingError(f"`{shown}` is not a condition: {error}. {WHAT_TO_WRITE}") from None

    def __call__(self, value: Any) -> bool:
        return self._test(_Measured(value).figure)

    def __repr__(self) -> str:
        return " ".join(self.text.split())


class _Measured:
    """An array whose figures are computed when they are compared.

    For complex numbers they are those of the absolute value.
    """

    def __init__(self, value: Any):
        is_small = np.size(value) <= FEW
        self.xp: Any = np if is_small else jnp
        x = in_plain_type(value)
        x = jnp.abs(x) if jnp.issubdtype(x.dtype, jnp.complexfloating) else x
        self.x = np.asarray(x).astype(np.float64) if is_small else x.astype(jnp.promote_types(x.dtype, np.float32))

    @cached_property
    def finite(self) -> Any:
        return self.xp.isfinite(self.x)

    def figure(self, name: str) -> float:
        if name in _COUNTS:
            return float(_COUNTS[name](self.xp, self.x))
        return float(_FIGURES[name](self.xp, self.x, self.finite)) if self.finite.any() else math.nan


class _NotACondition(Exception):
    pass


def _parsed(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise _NotACondition(f"it has more than {_LONGEST} characters")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise _NotACondition(error.msg) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise _NotACondition(str(error)) from None


def _test(node: ast.expr) -> _Test:
    match node:
        case ast.BoolOp(op=kind, values=values):
            tests = [_test(value) for value in values]
            combine = all if isinstance(kind, ast.And) else any
            return lambda of: combine(test(of) for test in tests)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _test(operand)
            return lambda of: not inner(of)
        case ast.Compare(left=left, ops=ops, comparators=rest) if all(type(op) in _COMPARISONS for op in ops):
            sides = [left, *rest]
            terms, compares = list(map(_term, sides)), [_COMPARISONS[type(op)] for op in ops]
            if not any(isinstance(side, ast.Name) for side in sides):
                raise _NotACondition("it compares no figure of the value")
            pairs = list(zip(terms, compares, terms[1:], strict=False))
            return lambda of: all(compare(a(of), b(of)) for a, compare, b in pairs)
    raise _NotACondition(f"`{ast.unparse(node)}` is not a comparison")


def _term(node: ast.expr) -> _Term:
    match node:
        case ast.Name(id=name) if name in _FIGURES or name in _COUNTS:
            return lambda of: of(name)
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as number):
            return lambda of: number
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant() as positive):
            minus = _term(positive)
            return lambda of: -minus(of)
    raise _NotACondition(f"`{ast.unparse(node)}` is neither a figure nor a number")
