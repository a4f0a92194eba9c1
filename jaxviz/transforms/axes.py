"""Named axes: which values differ along one, and where a cotangent is to be summed over one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxviz.ir import compat
from jaxviz.ir.convert import trace_rule
from jaxviz.ir.syntax import Atom, Equation, Operation, Origin, Program
from jaxviz.transforms.driver import Builder, written_out

Axes = frozenset[Any]
NO_AXES: Axes = frozenset()


def named_axes(operation: Operation) -> Axes:
    """The axes that an operation names, as a collective does, or one in its bodies."""
    names = compat.axis_names(operation.params)
    for _, program in operation.programs:
        for e in program.equations:
            names |= named_axes(e.operation)
    return frozenset(names).difference(operation.params.get("newly_manual_axes", ()))


def varying(program: Program, inputs: Sequence[Axes]) -> dict[Atom, Axes]:
    """For each value of a program the named axes along which it differs.

    A value differs where something does that it depends on. The result of a collective counts as differing too, though it is the
    same: each place has a copy of its own, with a cotangent of its own, and the collective's transpose is what sums those.

    Args:
      program: not looked into its bodies.
      inputs: the axes of its inputs.
    """
    found: dict[Atom, Axes] = dict(zip(program.invars, inputs, strict=True))
    found |= {v: compat.varying_axes(x) or NO_AXES for v, x in zip(program.constvars, program.consts, strict=True)}
    for e in program.equations:
        axes = NO_AXES.union(*(found.get(a, NO_AXES) for a in e.invars), named_axes(e.operation))
        found.update((v, axes) for v in e.outvars)
    return found


@dataclass(frozen=True, slots=True)
class Summing:
    """What a cotangent is summed over where it is formed: the axes along which it differs and its primal does not.

    Args:
      axes: those to sum over; along others the cotangents stay apart.
      inputs: the axes of the linear program's inputs.
    """

    axes: tuple[Any, ...]
    inputs: tuple[Axes, ...]

    def over(self, cotangent: Axes, primal: Axes) -> tuple[Any, ...]:
        return tuple(a for a in self.axes if a in cotangent and a not in primal)


def sum_over(builder: Builder, ct: Atom, axes: tuple[Any, ...], equation: Equation | None) -> Atom:
    """A cotangent summed over named axes."""
    program = trace_rule(lambda x: [compat.psum(x, axes)], [ct.aval])
    rule = f"summed over the axis {', '.join(map(str, axes))}, along which the primal is the same"
    origin = Origin(equation, "transpose", rule, "accumulation")
    return builder.splice(written_out(program, origin), [ct], None, "", "")[0]
