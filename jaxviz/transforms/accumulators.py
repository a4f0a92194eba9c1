"""The accumulators of a linear program's references: mutable references that hold the cotangents of what is in them.

An accumulator is made at the last equation that uses the reference, from the cotangent that this equation adds, or from
zeros. It is frozen where the reference was made; that is the cotangent of what it was made from. That of a reference
that is an input is an input, too: the caller's is added to in place.

Source: `RefAccum` in JAX's `interpreters/ad.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxviz.ir import compat
from jaxviz.ir.convert import shared, trace_rule
from jaxviz.ir.syntax import Atom, Equation, Origin, Var
from jaxviz.transforms.driver import Builder, written_out


def accumulator_type(ref: Any) -> Any:
    """The type of the accumulator of a reference of this type."""
    return compat.ref_to(compat.cotangent_type(compat.inner_type(ref)))


class Accumulators:
    """The accumulator of each reference of a linear program that has one so far.

    Args:
      builder: of the backward program.
    """

    def __init__(self, builder: Builder):
        self.builder = builder
        self.of: dict[Atom, Atom] = {}
        self.made: dict[Atom, Atom] = {}
        """All that there were."""

    def given(self, ref: Var) -> Var:
        """The accumulator of a reference that is an input, which is one, too."""
        self.of[ref] = self.made[ref] = accumulator = Var(accumulator_type(ref.aval))
        return accumulator

    def add(self, ref: Atom, ct: Atom, equation: Equation) -> None:
        """Adds to the cotangent of all that is in a reference."""
        if ref in self.of:
            self._splice(_added, (self.of[ref].aval, ct.aval), [self.of[ref], ct], equation)
        else:
            self._make(ref, self._splice(_made_from, (ct.aval,), [ct], equation))

    def ready(self, ref: Atom, equation: Equation) -> Atom:
        """The accumulator of a reference, made from zeros if there is none."""
        if ref not in self.of:
            self._make(ref, self._splice(_zeros, (accumulator_type(ref.aval),), [], equation))
        return self.of[ref]

    def end(self, ref: Atom, equation: Equation) -> Atom | None:
        """The cotangent of what a reference was made from; None for zero."""
        if ref not in self.of:
            return None
        accumulator = self.of.pop(ref)
        (ct,) = self._splice(_frozen, (accumulator.aval,), [accumulator], equation)
        return ct

    def _make(self, ref: Atom, outs: Sequence[Atom]) -> None:
        (self.of[ref],) = outs
        self.made[ref] = self.of[ref]

    def _splice(self, template: Any, types: Sequence[Any], inputs: Sequence[Atom], equation: Equation) -> list[Atom]:
        origin = Origin(equation, "transpose", "the cotangent of what is in a reference", "accumulation")
        return self.builder.splice(written_out(template(*types), origin), inputs)


@shared
def _added(accumulator: Any, ct: Any) -> Any:
    def add(ref: Any, ct: Any) -> list[Any]:
        jax.ref.addupdate(ref, ..., ct)
        return []

    return trace_rule(add, [accumulator, ct])


@shared
def _made_from(ct: Any) -> Any:
    return trace_rule(lambda ct: [jax.new_ref(ct)], [ct])


@shared
def _zeros(accumulator: Any) -> Any:
    return trace_rule(lambda: [jax.new_ref(compat.zeros(compat.inner_type(accumulator)))], [])


@shared
def _frozen(accumulator: Any) -> Any:
    return trace_rule(lambda ref: [jax.freeze(ref)], [accumulator])
