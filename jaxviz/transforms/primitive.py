"""Describes primitives that jaxviz has rules for, nearly all of which hold programs: their bodies and the operands of
each, what they carry, how often they run, how to step through them, and the rule of each transform.

Each file of `jaxviz/higher_order` has one of them, as a class. Everyone else calls `of(equation)`, and names no such
primitive; `convert.with_programs` rebuilds any operation with bodies of the same types.

Source: the methods for transforms have the names of those of JAX's `HiPrim` (`hijax.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.syntax import Equation, Operation, Program

Rule = Callable[..., Any] | None
Kind = Literal["", "call", "loop", "choice", "devices"]
"""How the bodies run: once, in iterations, one of them chosen, on each device; '' without bodies."""


_PRIMITIVES: dict[Any, Primitive] = {}
_RULES: dict[str, dict[Any, Callable[..., Any]]] = {
    transform: {} for transform in ("jvp", "linearize", "split", "transpose", "batch", "dce", "flags", "observe")
}


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


class Primitive:
    """A primitive with rules of ours. This base class describes one without programs, to which JAX's rules apply.

    Args:
      primitive: JAX's primitive.
    """

    kind: ClassVar[Kind] = ""
    is_checkpoint: ClassVar[bool] = False
    has_custom_rule: ClassVar[bool] = False
    is_opened: ClassVar[bool] = True
    """Whether the transforms look into its programs."""
    can_be_stepped: ClassVar[bool] = True
    """Whether the debugger can step into it."""
    splits_by_policy: ClassVar[bool] = True
    """Whether a checkpoint policy is asked about the equations in its programs, and not about itself."""
    looks_at_values: ClassVar[bool] = False
    """Whether its linearization rule is the user's Python, which may look at the values of the operands: its method
    takes them as `values`."""
    is_typed_by_cotangents: ClassVar[bool] = False
    """Whether JAX transposes it for the types of the incoming cotangents; otherwise those of its program are used."""

    makes_reference: ClassVar[bool] = False
    """Whether its result is a new mutable reference, which has a tangent even if it is made from none."""

    accumulates: ClassVar[bool] = False
    """Whether its transpose takes the accumulators of linear operands that are references, and adds to them; otherwise
    it returns their cotangents, as those of other operands."""

    # The rules of the transforms; where one is None, that of JAX applies. The arguments and results are those of the
    # transforms' rules.
    jvp: Rule = None
    """`operation, nonzeros → JvpRule`: which operands carry a nonzero tangent."""
    linearize: Rule = None
    """`operation, nonzeros, mode=VJP → LinearizeRule`"""
    split: Rule = None
    """`operation, unknown, available, policy → SplitRule`: which operands are unknown, and with a policy, which are
    available later."""
    transpose: Rule = None
    """`operation, linear, nonzero_cts, logs → TransposeRule`"""
    batch: Rule = None
    """`operation, dims, axis → VmapRule`"""
    dce: Rule = None
    """`operation, used → DceRule`: which results are used."""
    flags: Rule = None
    """`operation, watching, keeps → FlagRule`"""
    observe: Rule = None
    """`equation, path, passed, builder, observing → taps`: adds the equation with values in its programs observed."""

    def __init__(self, primitive: Any):
        self.primitive = primitive
        _PRIMITIVES[primitive] = self
        for transform, rules in _RULES.items():
            rule = getattr(self, transform)
            if rule is not None:
                rules[primitive] = rule

    def bodies(self, operation: Operation) -> tuple[Body, ...]:
        """The programs that it runs, which the transforms look into."""
        return ()

    def is_transposed_whole(self, operation: Operation) -> bool:
        """Whether JAX transposes its linearized rule as a whole, although the rule is among the equations of the linear
        program: what the rule adds to a cotangent is summed first."""
        return False

    def reads_all(self, operation: Operation) -> bool:
        """Whether its only result is all that is in a mutable reference, its only operand."""
        return False

    def is_asked_inside(self, operation: Operation) -> bool:
        """Whether under `jax_remat3` JAX asks a checkpoint policy about what its rule computes."""
        return True

    def has_jvp_rule(self, operation: Operation) -> bool:
        """Whether its custom rule is a JVP rule, which JAX linearizes like any other function."""
        return False

    def function_of_rule(self, operation: Operation) -> str:
        """The name of the function that has the custom rule; '' if it is no function's."""
        return ""

    def runs(self, operation: Operation) -> Body | None:
        """The program that it runs although no transform looks into it."""
        return None

    def first_covered(self, operation: Operation) -> int | None:
        """The first of its results that are values of its programs, in each iteration; None if none is."""
        return None

    def carry(self, operation: Operation) -> tuple[int, int]:
        """The carry of a loop: how many inputs of the body come before it, and how many inputs it consists of. They are
        the first results."""
        return 0, 0

    def n_fixed(self, operation: Operation) -> int:
        """How many of the first inputs of each body with the equation's results get the same operand in each run, among
        branches and iterations, and can be replaced by others; see `with_fixed`."""
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
        """Maps an iteration's number to its position in execution order, and back: a reverse scan begins with the
        last."""
        return iteration

    def inputs(self, operation: Operation, operands: Sequence[Any], step: int, carry: Sequence[Any]) -> list[Any]:
        """The inputs of the body in one step, counted from 0 in execution order, given the carry."""
        raise NotImplementedError

    def inputs_of_step(
        self, operation: Operation, operands: Sequence[Any], step: int, of_condition: bool = False, since: int = 0
    ) -> list[Any]:
        """The same, or the inputs of the condition before that step, computed by running the steps before it;
        traceable.

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


class CallPrimitive(Primitive):
    """A primitive that calls a program on all of its operands.

    Args:
      primitive: JAX's primitive.
      param: the param that is the program.
    """

    kind: ClassVar[Kind] = "call"

    def __init__(self, primitive: Any, param: str = "jaxpr"):
        super().__init__(primitive)
        self.param = param

    def bodies(self, operation: Operation) -> tuple[Body, ...]:
        return (Body(operation.params[self.param], range(len(operation.in_avals)), self.param),)

    def with_fixed(self, operation: Operation, programs: Sequence[Program], n: int) -> Operation:
        (program,) = programs
        params = {**operation.params, self.param: program}
        return make_operation(
            operation.primitive, params, program.in_avals, program.out_avals, program.effects, operation.context
        )


class _Plain(Primitive):
    """All other primitives. The programs of a scatter or a reduction are part of the operation."""

    is_opened = False

    def __init__(self) -> None:
        self.primitive = None


_PLAIN = _Plain()


def own_rules(transform: str) -> Mapping[Any, Callable[..., Any]]:
    """The rules of ours for a transform, by JAX's primitive; primitives that are described later are added."""
    return _RULES[transform]


def of(equation: Equation | Operation) -> Primitive:
    """The description of an equation's primitive."""
    return _PRIMITIVES.get(equation.primitive, _PLAIN)


def opened() -> tuple[Primitive, ...]:
    """All primitives whose programs the transforms look into."""
    return tuple(p for p in _PRIMITIVES.values() if p.kind)


def bodies(equation: Equation) -> tuple[Body, ...]:
    """The programs that an equation runs, each with the operands that it gets."""
    return of(equation).bodies(equation.operation) if equation.operation.programs else ()


def is_loop(equation: Equation) -> bool:
    return of(equation).kind == "loop"


def is_choice(equation: Equation) -> bool:
    return of(equation).kind == "choice"


def is_call(equation: Equation) -> bool:
    """Whether it runs one program once, on its operands: a jit, a checkpoint, a function with a custom rule."""
    return of(equation).kind == "call" and bool(equation.programs)


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
