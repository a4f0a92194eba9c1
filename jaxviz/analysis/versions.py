"""Which value of a mutable reference is read: the versions that a program writes to it, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxviz.higher_order import bodies, is_loop
from jaxviz.ir import compat
from jaxviz.ir.origin import Location
from jaxviz.ir.syntax import Atom, Equation, Program


@dataclass(frozen=True)
class Version:
    """What is in a reference when it is read.

    Args:
      number, of: its place among the values that the reference has in the program that makes or takes it, from 1; what
        a loop, a branch or a call writes counts as one.
      written: the line that wrote it; None if it is what the reference was made with.
      by_iteration: whether each iteration of a loop reads another one.
    """

    number: int
    of: int
    written: Location | None
    by_iteration: bool


def version_read(program: Program, equation: Equation, within: Sequence[Equation]) -> Version | None:
    """The version that an equation reads from its first operand; None if that is no reference, or has only one.

    Args:
      program: the program.
      equation: an equation of it, or in programs that its equations hold.
      within: the equations that hold it, outermost first.
    """
    if not equation.invars or not compat.is_ref(equation.invars[0].aval):
        return None
    ref, at = equation.invars[0], equation
    written: Location | None = None
    by_iteration = False
    for holder in (*reversed(within), None):
        body = None if holder is None else next(b for b in bodies(holder) if at in b.program.equations)
        inside = program if body is None else body.program
        i = inside.equations.index(at)
        writers = [e for e in inside.equations if e is not at and _line(e, ref) is not None]
        before = [e for e in inside.equations[:i] if e in writers]
        from_previous = holder is not None and is_loop(holder) and ref in inside.invars and bool(writers)
        by_iteration |= from_previous
        last = before or (writers if from_previous else ())
        if written is None and last:
            written = _line(last[-1], ref)
        if holder is None or body is None or ref not in inside.invars:
            total = len(writers) + by_iteration
            return Version(len(before) + 1, total + 1, written, by_iteration) if total else None
        ref, at = holder.invars[body.operands[inside.invars.index(ref)]], holder
    return None


def _line(equation: Equation, ref: Atom) -> Location | None:
    """The line in which an equation, or what it runs, last writes to a reference; None if it does not."""
    places = [i for i in compat.written_refs(equation.effects) if equation.invars[i] is ref]
    if not places:
        return None
    for body in bodies(equation):
        inside = {body.program.invars[body.operands.index(i)] for i in places if i in body.operands}
        for e in reversed(body.program.equations):
            for v in inside:
                if (line := _line(e, v)) is not None:
                    return line
    return equation.location
