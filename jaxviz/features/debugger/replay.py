"""Equations that run again: which of them may have a different result, and how operands are preserved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jaxviz.features.debugger.positions import described
from jaxviz.higher_order import of
from jaxviz.higher_order.jit import JIT
from jaxviz.ir import compat
from jaxviz.ir.syntax import Equation, Operation


def differs(equation: Equation) -> str:
    """The message that an equation had another result the second time, with possible reasons."""
    from_python = sorted({e.primitive.name for e in equations_in(equation) if "callback" in e.primitive.name})
    where = described(equation)
    why = f" The `{from_python[0]}` in it calls Python, which must return the same value again." if from_python else ""
    return (
        f"{where} gave a different value when it was run again.{why} "
        "The values shown may differ from those of the first run."
    )


def equations_in(equation: Equation) -> Iterator[Equation]:
    """An equation, and all equations nested in it."""
    yield equation
    for _, program in equation.programs:
        for _, inner in program.walk():
            yield inner


def may_differ(equation: Equation) -> bool:
    """Whether running an equation again may have a different result, since it calls Python or has effects."""
    return any(is_effectful(e) or "callback" in e.primitive.name for e in equations_in(equation))


def is_effectful(equation: Equation) -> bool:
    """Whether it has effects other than its results, so that it is not run again."""
    return any(map(compat.is_real_effect, equation.effects))


def keeping_operands(operation: Operation) -> Operation:
    """A jit without donation, since its operands are kept for going back."""
    if of(operation) is not JIT or not any(operation.params["donated_invars"]):
        return operation
    params = {**operation.params, "donated_invars": (False,) * len(operation.in_avals)}
    return replace(operation, params=params, rules={})
