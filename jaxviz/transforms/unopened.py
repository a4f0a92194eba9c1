"""What a program holds that jaxviz does not look into: "not opened: pallas_call (model.py:12)"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from jaxviz.ir import compat
from jaxviz.ir.origin import Location
from jaxviz.ir.syntax import Equation, Program
from jaxviz.transforms.jvp import jvp_rules

_FOREIGN = frozenset(("ffi_call", "tpu_custom_call"))
"""Primitives that call what was not written in JAX, and hold no more than its name or its text."""

_OF_ELEMENTS = frozenset("reduce reduce_window reduce_window_no_identity select_and_scatter".split())
"""Primitives that apply a function to each element, which is part of the operation; so do those whose name begins with `scatter`."""


@dataclass(frozen=True, slots=True)
class Unopened:
    """Equations of one kind on one line that hold, call or change what jaxviz does not look into.

    Args:
      name: of the primitive; of a hi-primitive, the name of its class.
      location: the user's line.
      is_opaque: whether it holds code out of sight, in which there may be anything, a checkpoint too.
      count: how many.
    """

    name: str
    location: Location | None
    is_opaque: bool
    count: int = 1

    def __str__(self) -> str:
        where = f" ({str(self.location).rsplit('/', 1)[-1]})" if self.location is not None else ""
        return f"{f'{self.count} times ' if self.count > 1 else ''}{self.name}{where}"


def find_unopened(programs: Iterable[Program], opened: Collection[str] = ()) -> tuple[Unopened, ...]:
    """What is not opened in some programs: hi-primitives, operations on refs, kernels, foreign calls, and whatever else holds a program
    or a function and has no rule of jaxviz's own. Of programs that were derived from each other the same lines count once.

    Args:
      programs: such as a function and its backward pass.
      opened: names of primitives that who asks looks into, though they have no rule.
    """
    most: Counter[Unopened] = Counter()
    for program in programs:
        most |= Counter(Unopened(_name(e), where, _is_opaque(e)) for e, where in _walk(program, None, opened))
    return tuple(replace(found, count=n) for found, n in most.items())


def unopened_text(found: Sequence[Unopened], listed: int = 5) -> str:
    """`not opened: pallas_call (model.py:12), 2 times RematTraced (model.py:30)`; '' where there is nothing of the kind.

    Args:
      listed: how many are named.
    """
    if not found:
        return ""
    more = [f"{len(found) - listed:,} more"] if len(found) > listed else []
    return f"not opened: {', '.join([*map(str, found[:listed]), *more])}"


def unopened_note(found: Sequence[Unopened]) -> tuple[str, ...]:
    """The same as a note of a report; none where there is nothing of the kind."""
    text = unopened_text(found)
    return (f"{text}. jaxviz does not show what is computed, saved or checkpointed inside.",) if text else ()


def _walk(
    program: Program, outer: Location | None, opened: Collection[str]
) -> Iterator[tuple[Equation, Location | None]]:
    for e in program.equations:
        where = e.location or outer
        if _is_unopened(e, opened):
            yield e, where
        elif e.primitive in jvp_rules.registered or e.primitive.name in opened:
            for _, inner in e.programs:
                yield from _walk(inner, where, opened)


def _is_unopened(e: Equation, opened: Collection[str]) -> bool:
    operation, name = e.operation, e.primitive.name
    if e.primitive in jvp_rules.registered or name in opened or name in _OF_ELEMENTS or name.startswith("scatter"):
        return False
    if any(map(compat.is_ref, (*operation.in_avals, *operation.out_avals))):
        return True
    return name in _FOREIGN or (bool(e.outvars) and (bool(e.programs) or _is_opaque(e)))


def _is_opaque(e: Equation) -> bool:
    """Whether an equation holds code that is no Program: a function, or a hi-primitive."""
    if any(callable(x) and not isinstance(x, type) for x in e.params.values()):
        return True
    return compat.is_high_equation(e.primitive, e.operation.in_avals, e.params)


def _name(e: Equation) -> str:
    return compat.hi_primitive_name(e.params) or f"{e.primitive.name}{' of a ref' if _reads_ref(e) else ''}"


def _reads_ref(e: Equation) -> bool:
    return bool(e.operation.in_avals) and compat.is_ref(e.operation.in_avals[0])
