"""Positions in a run, and which equations have a program that can be stepped into."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxviz.higher_order import bodies, of
from jaxviz.ir.errors import JaxvizError
from jaxviz.ir.pretty import describe_equation
from jaxviz.ir.syntax import Equation, Program
from jaxviz.report.tables import short_location

if TYPE_CHECKING:
    from jaxviz.features.debugger.stepping import Machine


class SteppingError(JaxvizError, ValueError):
    """A position that does not exist, or a breakpoint that can never be hit; the message says why.

    >>> try:
    ...     jaxviz.step(loss, params, x).run(name="nothing_of_the_kind")
    ... except jaxviz.SteppingError as error:
    ...     print(error)
    """


class NoValueError(SteppingError, KeyError):
    """A value that is not available; the message says why."""

    __str__ = Exception.__str__


def described(equation: Equation, index: int | None = None) -> str:
    """`sin (equation 12, model.py:41)`: how the debugger names an equation."""
    return describe_equation(equation, index, short_location)


@dataclass(frozen=True, slots=True)
class Level:
    """An equation whose body contains the position.

    Args:
      index: its index in its program.
      body: which of the programs that it holds, such as 'jaxpr' or 'branches[1]'.
      iteration: for a scan, the index of the slice of xs that the body reads, so a reverse scan begins with the last;
        for a while loop, the count. None if the body runs once.
    """

    index: int
    body: str
    iteration: int | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """A position in the run: before equation `index` of the innermost program, or at its end.

    >>> Position("forward", (Level(3, "jaxpr", 7),), 2)  # before equation 2 in iteration 7 of the scan at 3

    Args:
      stage: the program, such as 'forward'.
      path: the enclosing equations, outermost first.
      index: the equation that runs next.
    """

    stage: str
    path: tuple[Level, ...] = ()
    index: int = 0


@dataclass(frozen=True)
class StepperStage:
    """One of the programs that run in sequence, such as 'forward', and what returns its inputs, which may be results of
    an earlier stage."""

    name: str
    program: Program
    inputs: Callable[[Machine], Sequence[Any]]


def can_enter(equation: Equation) -> bool:
    """Whether an equation has a nested program that can be stepped into: a call, a loop or a branch.

    A `shard_map` is a single step.
    """
    kind = of(equation)
    if not kind.kind or not kind.can_be_stepped:
        return False
    return not any(hasattr(a, "inner_aval") for _, p in equation.programs for a in p.in_avals)  # mutable references


def enterable(equation: Equation) -> Iterator[tuple[str, Program]]:
    """The programs of an equation that can be stepped into, each with its label; the condition of a while loop is
    evaluated in one step."""
    if can_enter(equation):
        for body in bodies(equation):
            if body.has_results:
                yield body.label, body.program
