"""Describes primitives with nested programs: their bodies and the operands of each, what they carry, how often they run and how to step
through them.

Each file of this package describes one primitive, and has the rules of each transform for it, and what rebuilds the equation for bodies of
other types (`Scan.like`, `jit_operation`, …). Everyone else calls `of(equation)`, and names no such primitive; `convert.with_programs`
rebuilds any operation with bodies of the same types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from jaxviz.ir.syntax import Equation, Operation, Program

Kind = Literal["", "call", "loop", "choice", "devices"]
"""How the bodies run: once, in iterations, one of them chosen, on each device; '' without bodies."""


@dataclass(frozen=True, slots=True)
class Body:
    """A program that an equation holds and runs.

    Args:
      program: the program.
      operands: for each of its inputs the operand that it gets; a loop's carry gets it in the first iteration.
      label: its name among the programs of the operation, such as 'jaxpr' or 'branches[1]'.
      has_results: whether the equation's results are its results.
      branch: its number, in a cond.
    """

    program: Program
    operands: Sequence[int]
    label: str = "jaxpr"
    has_results: bool = True
    branch: int | None = None


class HigherOrder:
    """A primitive with nested programs. This base class describes one that calls a program on all of its operands.

    Args:
      primitive: JAX's primitive.
      param: the param that is the program.
    """

    kind: ClassVar[Kind] = "call"
    is_checkpoint: ClassVar[bool] = False
    has_custom_rule: ClassVar[bool] = False
    can_be_stepped: ClassVar[bool] = True
    """Whether the debugger can step into it."""

    def __init__(self, primitive: Any, param: str = "jaxpr"):
        self.primitive = primitive
        self.param = param
        _KINDS[primitive] = self

    def bodies(self, operation: Operation) -> tuple[Body, ...]:
        """The programs that it runs."""
        return (Body(operation.params[self.param], range(len(operation.in_avals)), self.param),)

    def carry(self, operation: Operation) -> tuple[int, int]:
        """The carry of a loop: how many inputs of the body come before it, and how many inputs it consists of. They are the first results."""
        return 0, 0

    def n_fixed(self, operation: Operation) -> int:
        """How many of the first inputs of each body with the equation's results get the same operand in each run, among branches and
        iterations, and can be replaced by others; see `with_fixed`."""
        return 0

    def with_fixed(self, operation: Operation, programs: Sequence[Program], n: int) -> Operation:
        """The operation with other bodies of that kind, whose first `n` inputs are such ones."""
        raise NotImplementedError

    def trip_count(self, operation: Operation) -> int | None:
        """How often the body runs on one device; None if that is known only after running it."""
        return 1

    def copies(self, operation: Operation) -> int:
        """How many copies of the body the compiled program contains."""
        return 1

    def n_devices(self, operation: Operation) -> int:
        """The number of devices over which the body is mapped."""
        return 1

    def is_stacked(self, operation: Operation, result: int) -> bool:
        """Whether a result has one value per iteration."""
        return False

    # --- stepping a loop; not used for other kinds --------------------------------------------------------------------

    def turned(self, operation: Operation, iteration: int) -> int:
        """Maps an iteration's number to its position in execution order, and back: a reverse scan begins with the last."""
        return iteration

    def inputs(self, operation: Operation, operands: Sequence[Any], step: int, carry: Sequence[Any]) -> list[Any]:
        """The inputs of the body in one step, counted from 0 in execution order, given the carry."""
        raise NotImplementedError

    def inputs_of_step(
        self, operation: Operation, operands: Sequence[Any], step: int, of_condition: bool = False, since: int = 0
    ) -> list[Any]:
        """The same, or the inputs of the condition before that step, computed by running the steps before it; traceable.

        Args:
          since: the step that starts with the carry among the operands.
        """
        raise NotImplementedError

    def steps(self, operation: Operation, operands: Sequence[Any]) -> Iterator[tuple[list[Any], list[Any]]]:
        """Runs the loop step by step: the inputs of the body in each step, and its results."""
        raise NotImplementedError

    def segment(self, operation: Operation) -> Callable[..., Any]:
        """A function that runs some of the steps; their number is an argument, so that it is compiled once."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.primitive})"


class _FirstOrder(HigherOrder):
    """All other primitives, which have no nested program that they run. The programs of a scatter or a reduction are part of the operation."""

    kind = ""

    def bodies(self, operation: Operation) -> tuple[Body, ...]:
        return ()


_KINDS: dict[Any, HigherOrder] = {}
_FIRST_ORDER = _FirstOrder(None)


def of(equation: Equation | Operation) -> HigherOrder:
    """The description of an equation's primitive."""
    return _KINDS.get(equation.primitive, _FIRST_ORDER)


def kinds() -> tuple[HigherOrder, ...]:
    """All primitives with nested programs."""
    return tuple(k for k in _KINDS.values() if k is not _FIRST_ORDER)


def bodies(equation: Equation) -> tuple[Body, ...]:
    """The programs that an equation runs, each with the operands that it gets."""
    return of(equation).bodies(equation.operation) if equation.operation.programs else ()


def is_loop(equation: Equation) -> bool:
    return of(equation).kind == "loop"


def is_choice(equation: Equation) -> bool:
    return of(equation).kind == "choice"


def is_call(equation: Equation) -> bool:
    """Whether it runs one program once, on its operands: a jit, a checkpoint, a function with a custom rule."""
    return of(equation).kind == "call"


def is_scan(equation: Equation) -> bool:
    """Whether it is a loop with a known trip count, which scans over values and may stack results."""
    return is_loop(equation) and of(equation).trip_count(equation.operation) is not None


def scan_length(equation: Equation) -> int:
    """The trip count of a scan."""
    length = of(equation).trip_count(equation.operation)
    assert length is not None
    return length


def carried(equation: Equation) -> range:
    """The operands that are the initial carry of a loop, in the order of its first results."""
    kind = of(equation)
    n_before, n = kind.carry(equation.operation)
    if not n:
        return range(0)
    body = next(b for b in kind.bodies(equation.operation) if b.has_results)
    first = body.operands[n_before]
    return range(first, first + n)
