"""Primitives with nested programs that no transform looks into: JAX's rules are applied to them as a whole."""

from __future__ import annotations

from jaxviz.ir.syntax import Equation, Program

RUNS = {
    "custom_linear_solve": "solve", "linear_call": "callee", "custom_vmap_call": "call",
    "remat_opt": "fwd_jaxpr", "run_state": "jaxpr",
}  # fmt: skip
"""Which of their several programs runs."""

_ON_ALL_OPERANDS = frozenset(("linear_call", "remat_opt"))
"""Primitives whose program takes all operands, in order."""


def runs(equation: Equation) -> Program | None:
    """The program that such an equation runs; None for any other."""
    return next((p for label, p in equation.programs if label == RUNS.get(equation.primitive.name)), None)


def is_on_all_operands(equation: Equation) -> bool:
    """Whether that program takes all operands, in order."""
    return equation.primitive.name in _ON_ALL_OPERANDS
