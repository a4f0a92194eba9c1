"""Names for the values in the memory of a gradient."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxviz.analysis.naming import ROOM_IN_SENTENCE, Naming, naming_of
from jaxviz.analysis.site import call_name
from jaxviz.analysis.walk import cotangents_of, place_of, tangents_of, with_holders
from jaxviz.derivation import Derivation
from jaxviz.ir.expressions import shows_source
from jaxviz.ir.origin import Location
from jaxviz.ir.syntax import Atom, Equation, Var

_OF_COTANGENTS = ("cotangent", "accumulation", "zero")
"""Roles of equations that compute cotangents."""


@dataclass(frozen=True)
class DerivationNames:
    """The names of what the forward and the backward program of a derivation compute."""

    derivation: Derivation

    def of(self, equation: Equation, within: Sequence[Equation], var: Atom | None) -> str:
        """`jnp.tanh(x @ w)`, `the cotangent of jnp.tanh(x @ w)`, `transpose for the cotangent of w`; or the operation.

        Args:
          var: which of its results it is.
        """
        named = self._of_cotangent(equation, var) or self._naming.name(equation, within, place_of(equation, var))
        return named or what_makes(equation, within)

    def repetition(self, equation: Equation, within: Sequence[Equation], var: Atom | None) -> Hashable:
        """A key shared by the values of one expression in repeated layers and calls."""
        return self._naming.repetition(equation, within, place_of(equation, var))

    def location(self, equation: Equation, within: Sequence[Equation]) -> Location | None:
        """The user's line of an equation."""
        return self._naming.location(equation, within)

    def library(self, equation: Equation, within: Sequence[Equation]) -> str:
        """Where in a library the user's line has an equation computed; '' if in none."""
        return self._naming.library(equation, within)

    def _of_cotangent(self, equation: Equation, var: Atom | None) -> str:
        """The value whose cotangent an equation computes; '' if none, or if unknown."""
        if equation.origin is None or equation.origin.role not in _OF_COTANGENTS or not any(self.derivation.nonzeros):
            return ""  # the last: in a step, another gradient than the one that reports are about
        if var is not None and var in self._cotangents:
            value, is_complete = self._cotangents[var]
            whose = self._value(value)
            if whose:
                return f"{'the cotangent' if is_complete else 'a part of the cotangent'} of {whose}"
        linear = equation.origin.equation
        values = (self._tangents[a] for a in (linear.invars if linear is not None else ()) if a in self._tangents)
        whose = next(filter(None, map(self._value, values)), "")
        return f"{equation.primitive.name} for the cotangent of {whose}" if whose else ""

    @cached_property
    def _naming(self) -> Naming:
        return naming_of(self.derivation) if any(self.derivation.nonzeros) else Naming(self.derivation.primal)

    @cached_property
    def _tangents(self) -> Mapping[Atom, Atom]:
        return tangents_of(self.derivation.linear)

    @cached_property
    def _cotangents(self) -> Mapping[Atom, tuple[Atom, bool]]:
        return cotangents_of(self.derivation.backward, self._tangents)

    @cached_property
    def _makers(self) -> Mapping[Atom, tuple[Equation, tuple[Equation, ...], int]]:
        """The equation that computes each value of the forward program."""
        computed = with_holders(self.derivation.forward)
        return {v: (e, within, i) for e, within in computed for i, v in enumerate(e.outvars)}

    @cached_property
    def _arguments(self) -> Mapping[Var, str]:
        primal = self.derivation.primal
        return dict(zip(primal.invars, primal.arg_names, strict=True))

    def _value(self, value: Atom) -> str:
        """The expression of a value of the forward program, or the path of an argument; '' if there is none."""
        key = value, shows_source()
        if key not in self._values:
            producer = self._makers.get(value)
            named = self._arguments.get(value, "") if isinstance(value, Var) else ""
            self._values[key] = named if producer is None else self._naming.name(*producer, ROOM_IN_SENTENCE)
        return self._values[key]

    @cached_property
    def _values(self) -> dict[tuple[Atom, bool], str]:
        """The names of values found so far: several equations form the cotangent of each."""
        return {}


def what_makes(equation: Equation, within: Sequence[Equation]) -> str:
    """`mul in cell`: the operation that computes a value, and the calls that contain it."""
    inside = " in ".join(dict.fromkeys(call_name(e) for e in reversed(within)))
    return f"{equation.primitive.name}{f' in {inside}' if inside else ''}"
