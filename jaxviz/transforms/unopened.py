"""Equations of a program that jaxviz does not look into: "not opened: pallas_call (model.py:12)"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from jaxviz.ir import compat
from jaxviz.ir.convert import write_params
from jaxviz.ir.origin import Location
from jaxviz.ir.sharing import is_data
from jaxviz.ir.syntax import Equation, Operation, Program
from jaxviz.transforms.primitive import of

_FOREIGN = frozenset(("ffi_call", "tpu_custom_call"))
"""Primitives that call code not written in JAX, and contain only its name or its text."""

_OF_ELEMENTS = frozenset(("reduce", "reduce_window", "select_and_scatter"))
"""Primitives that apply a function to each element as part of the operation; so do those whose name begins with
`scatter`."""

_OF_PARTS = frozenset(("LowerVal", "RaiseVal"))
"""Hi-primitives between a value of a hi type and its arrays, which compute nothing."""


@dataclass(frozen=True, slots=True)
class Unopened:
    """Equations of one kind on one line that contain or call something that jaxviz does not look into, or that change
    references.

    Args:
      name: the name of the primitive; for a hi-primitive, the name of its class.
      location: the user's line.
      is_opaque: whether it contains code that cannot be seen, which may do anything, such as use a checkpoint.
      count: the number of equations.
      on_reference: whether it reads or writes a mutable reference.
      is_checkpoint: whether it is a checkpoint.
    """

    name: str
    location: Location | None
    is_opaque: bool
    count: int = 1
    on_reference: bool = False
    is_checkpoint: bool = False

    def __str__(self) -> str:
        where = f" ({str(self.location).rsplit('/', 1)[-1]})" if self.location is not None else ""
        return f"{f'{self.count} times ' if self.count > 1 else ''}{self.name}{where}"


def find_unopened(programs: Iterable[Program], costs: bool = False) -> tuple[Unopened, ...]:
    """The unopened equations of some programs: hi-primitives, operations on refs, kernels, foreign calls, and anything
    else that contains a program or a function and has no rule in jaxviz. In programs derived from each other, the same
    lines count once.

    Args:
      programs: such as a function and its backward pass.
      costs: for a caller that looks into the program that a primitive runs, see `Primitive.runs`, although it has no
        rule.
    """
    is_unopened = cache(_is_unopened)  # cached per operation, which many equations share
    most: Counter[Unopened] = Counter()
    for program in programs:
        most |= Counter(
            Unopened(
                _name(e.operation),
                _location(e, holders),
                _is_opaque(e.operation),
                on_reference=compat.touches_ref(e.operation),
                is_checkpoint=compat.calls_checkpoint(e.operation.params),
            )
            for e, holders in _walk(program, (), costs, is_unopened)
        )
    return tuple(replace(unopened, count=n) for unopened, n in most.items())


def unopened_text(unopened: Sequence[Unopened], listed: int = 5) -> str:
    """`not opened: pallas_call (model.py:12), 2 times RematTraced (model.py:30)`; '' if there are none.

    Args:
      listed: how many are named.
    """
    if not unopened:
        return ""
    more = [f"{len(unopened) - listed:,} more"] if len(unopened) > listed else []
    return f"not opened: {', '.join([*map(str, unopened[:listed]), *more])}"


def unopened_note(unopened: Sequence[Unopened]) -> tuple[str, ...]:
    """The same as a note of a report; none if there are none."""
    text = unopened_text(unopened)
    return (f"{text}. jaxviz does not show what is computed, saved or checkpointed inside.",) if text else ()


def _walk(
    program: Program,
    holders: tuple[Equation, ...],
    costs: bool,
    is_unopened: Callable[[Operation], bool],
) -> Iterator[tuple[Equation, tuple[Equation, ...]]]:
    """The equations that are not opened, each with its enclosing equations, innermost first."""
    for e in program.equations:
        if (of(e).is_opened and e.programs) or (costs and of(e).runs(e.operation) is not None):
            for _, inner in e.programs:
                yield from _walk(inner, (e, *holders), costs, is_unopened)
        elif is_unopened(e.operation):
            yield e, holders


def _is_unopened(operation: Operation) -> bool:
    name = operation.primitive.name
    if name in _OF_ELEMENTS or name in _OF_PARTS or name.startswith("scatter"):
        return False
    if compat.touches_ref(operation):
        return not of(operation).accumulates
    return name in _FOREIGN or (bool(operation.out_avals) and (bool(operation.programs) or _is_opaque(operation)))


def _is_opaque(operation: Operation) -> bool:
    """Whether an operation contains code that is not a Program: a function, or a hi-primitive."""
    if any(callable(x) and not isinstance(x, type) and not is_data(x) for x in operation.params.values()):
        return True  # a mesh can be called too
    return compat.is_high_equation(operation.primitive, operation.in_avals, write_params(operation))


def _name(operation: Operation) -> str:
    reads_ref = bool(operation.in_avals) and compat.is_ref(operation.in_avals[0])
    return compat.hi_primitive_name(operation.params) or f"{operation.primitive.name}{' of a ref' if reads_ref else ''}"


def _location(e: Equation, holders: tuple[Equation, ...]) -> Location | None:
    return next(filter(None, (x.location for x in (e, *holders))), None)
