"""Loops that run in segments: any number of iterations at once, by one compiled function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxviz.higher_order import Primitive, of
from jaxviz.higher_order.while_loop import WHILE
from jaxviz.ir.syntax import Equation, Program

_SEGMENT = object()


@dataclass(eq=False)
class PartialLoop:
    """A scan or a while loop that runs in segments.

    Args:
      equation: the loop.
      operands: its operands.
      carries: the carry at the start of an iteration, counted in execution order.
      ys: a scan's stacked results, `filled` for the iterations that have run.
      length: the number of iterations; for a while loop None until it has ended once.
    """

    equation: Equation
    operands: list[Any]
    carries: dict[int, list[Any]]
    length: int | None
    ys: list[Any] = field(default_factory=list)
    filled: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    prints: dict[int, list[np.ndarray]] = field(default_factory=dict)

    @property
    def kind(self) -> Primitive:
        return of(self.equation)

    @property
    def is_scan(self) -> bool:
        return self.kind is not WHILE

    @property
    def body(self) -> Program:
        return self.kind.bodies(self.equation.operation)[-1].program

    @property
    def is_mapped(self) -> bool:
        """Whether it is a while loop with a predicate per example, in which finished examples keep their carry."""
        return not self.is_scan and WHILE.is_mapped(self.equation.operation)

    def turned(self, iteration: int) -> int:
        """Maps an iteration's number to its position in execution order, and back."""
        return self.kind.turned(self.equation.operation, iteration)

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of operands before the carry, and the size of the carry."""
        before, n = self.kind.carry(self.equation.operation)
        operands = self.kind.bodies(self.equation.operation)[-1].operands
        return (operands[before] if before < len(operands) else len(self.operands)), n

    def inputs(self, k: int, carry: list[Any]) -> list[Any]:
        """The body's inputs in the k-th iteration."""
        return self.kind.inputs(self.equation.operation, self.operands, k, carry)

    @property
    def segment(self) -> Callable[..., Any]:
        """A function that runs some of the iterations, compiled once for all loops of this operation."""
        operation = self.equation.operation
        segment = operation.rules.get(_SEGMENT)
        if segment is None:
            segment = operation.rules[_SEGMENT] = jax.jit(self.kind.segment(operation))
        run: Callable[..., Any] = segment
        return run
