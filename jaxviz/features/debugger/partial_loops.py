"""Loops that run in parts: any number of iterations at once, by one compiled function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxviz.higher_order import HigherOrder, of
from jaxviz.higher_order.while_loop import WHILE
from jaxviz.ir.syntax import Equation, Program

_SEGMENT = object()


@dataclass(eq=False)
class Loop:
    """A scan or a while loop that is run in parts.

    Args:
      equation: the loop.
      operands: what it reads.
      carries: what goes round, at the start of an iteration, counted in the order of the run.
      ys: what a scan stacks, `filled` for the iterations that are written there.
      length: the number of iterations; of a while loop None until it has ended once.
    """

    equation: Equation
    operands: list[Any]
    carries: dict[int, list[Any]]
    length: int | None
    ys: list[Any] = field(default_factory=list)
    filled: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    prints: dict[int, list[np.ndarray]] = field(default_factory=dict)

    @property
    def kind(self) -> HigherOrder:
        return of(self.equation)

    @property
    def is_scan(self) -> bool:
        return self.kind is not WHILE

    @property
    def body(self) -> Program:
        return self.kind.bodies(self.equation.operation)[-1].program

    @property
    def is_mapped(self) -> bool:
        """Whether it is a while loop with a predicate for each example, which keeps the carry of those that have ended."""
        return not self.is_scan and WHILE.is_mapped(self.equation.operation)

    def turned(self, iteration: int) -> int:
        """From an iteration's number to its place in the order of the run, and back."""
        return self.kind.turned(self.equation.operation, iteration)

    @property
    def sizes(self) -> tuple[int, int]:
        """How many operands come before the carry, and how many go round."""
        before, n = self.kind.carry(self.equation.operation)
        operands = self.kind.bodies(self.equation.operation)[-1].operands
        return (operands[before] if before < len(operands) else len(self.operands)), n

    def inputs(self, k: int, carry: list[Any]) -> list[Any]:
        """What the body reads in the k-th iteration."""
        return self.kind.inputs(self.equation.operation, self.operands, k, carry)

    @property
    def segment(self) -> Callable[..., Any]:
        """A function that runs some of the iterations, compiled once for all loops of this operation."""
        operation = self.equation.operation
        found = operation.rules.get(_SEGMENT)
        if found is None:
            found = operation.rules[_SEGMENT] = jax.jit(self.kind.segment(operation))
        run: Callable[..., Any] = found
        return run
