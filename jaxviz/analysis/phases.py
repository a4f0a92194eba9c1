"""What equations of derived programs compute of what addresses mean: a value, the same again, or its cotangent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from jaxviz.analysis.addressed import AddressedValue, addressed_values
from jaxviz.analysis.addresses import Address, Phase
from jaxviz.analysis.walk import primal_equation, programs_in, way, with_holders
from jaxviz.analysis.written import address_of
from jaxviz.derivation import STAGES, Derivation
from jaxviz.ir.syntax import Atom, Equation, Program, Relation


@dataclass(frozen=True, eq=False)
class PhaseOfValue:
    """A value of a function, and whether it is itself that an equation computes, or its cotangent."""

    value: AddressedValue
    phase: Phase


class ValuePhases:
    """Finds what the equations of derived programs compute, by the relations that the transforms have recorded.

    Args:
      function: the function, whose values addresses mean.
      derived: programs derived from it: those whose equations are asked about, and, for cotangents, the linear program.
    """

    def __init__(self, function: Program, derived: Iterable[Program] = ()):
        self.function = function
        self._derived = tuple(derived)
        self._values: dict[Atom, list[AddressedValue]] = {}
        for v in addressed_values(function):
            self._values.setdefault(v.place[1], []).append(v)
        self._related: dict[Relation, dict[Atom, list[Atom]]] = {}
        for program in dict.fromkeys(p for each in self._derived for p in programs_in(each)):
            for a, relation, of in program.relations():
                self._related.setdefault(relation, {}).setdefault(a, []).append(of)

    def all_of(self, equation: Equation, within: Sequence[Equation], index: int = 0) -> Iterator[PhaseOfValue]:
        """What a result of an equation is: also several values that are one, such as the last in a function and that
        of its call.

        Args:
          within: the equations that contain its program, outermost first.
        """
        for variable, phase in self._meant(equation, index):
            value = self._of_call(variable, phase, equation.outvars[index], within)
            if value is not None:
                yield PhaseOfValue(value, phase)

    def of(self, equation: Equation, within: Sequence[Equation], index: int = 0) -> PhaseOfValue | None:
        """The first of these, the innermost; None if no address means it."""
        return next(self.all_of(equation, within, index), None)

    def address(
        self, equation: Equation, within: Sequence[Equation], index: int = 0, iteration: int | None = None
    ) -> Address | None:
        """The address of a result of an equation, with the iteration of the innermost loop; None if it has none."""
        found = self.of(equation, within, index)
        if found is None:
            return None
        return replace(address_of(self.function, found.value), iteration=iteration, phase=found.phase)

    def _meant(self, equation: Equation, index: int) -> Iterator[tuple[Atom, Phase]]:
        """The function's variables whose value, or else whose cotangent, a result of an equation is."""
        result = equation.outvars[index]
        values = list(self._same(_as_written(equation, index), result))
        is_again = equation.origin is not None and equation.origin.role == "recomputation"
        yield from ((v, "recomputed" if is_again else "forward") for v in values)
        for tangent in () if values else self._related.get("cotangent", {}).get(result, ()):
            for of in self._related.get("tangent", {}).get(tangent, ())[:1]:  # the others are this plus a constant
                yield from ((v, "cotangent") for v in self._same(of))

    def _same(self, *variables: Atom) -> Iterator[Atom]:
        """The function's variables with the value of one of these, if addresses mean it."""
        todo = list(dict.fromkeys(variables))
        for a in todo:
            if a in self._values:
                yield a
            todo += [of for of in self._related.get("value", {}).get(a, ()) if of not in todo]

    def _of_call(self, variable: Atom, phase: Phase, result: Atom, within: Sequence[Equation]) -> AddressedValue | None:
        """The value in one of the calls of its function; None if it is not certain which it is."""
        around = way(within)
        # In a checkpoint, only the equations inside of it are known.
        values = [v for v in self._values[variable] if (path := way(v.path))[len(path) - len(around) :] == around]
        if len(values) < 2:
            return values[0] if values else None
        # Checkpoints of one function: the backward pass visits them in reverse.
        for calls in self._calls.get((variable, phase, around), {}).values():
            if (result, tuple(within)) in calls and len(calls) == len(values):
                place = calls.index((result, tuple(within)))
                return values[place if phase == "forward" else -1 - place]
        return None

    @cached_property
    def _calls(self) -> dict[tuple[Atom, Phase, tuple[Equation, ...]], dict[Program, list[Call]]]:
        """For the variables of functions that are called several times, what is this value in each program."""
        calls: dict[tuple[Atom, Phase, tuple[Equation, ...]], dict[Program, list[Call]]] = {}
        for program in dict.fromkeys((self.function, *self._derived)):
            for e, within in with_holders(program):
                for index, result in enumerate(e.outvars):
                    for variable, phase in self._meant(e, index):
                        if len(self._values[variable]) > 1:
                            of_programs = calls.setdefault((variable, phase, way(within)), {})
                            of_programs.setdefault(program, []).append((result, within))
        return calls


Call = tuple[Atom, tuple[Equation, ...]]
"""A variable, and the equations around its program."""


def _as_written(equation: Equation, index: int) -> Atom:
    """The result of the equation that it came from, if it computes the same: without references, a program has no
    relations."""
    source = primal_equation(equation)
    is_copy = equation.origin is None or equation.origin.role in ("primal", "recomputation")
    if is_copy and equation.primitive is source.primitive and len(equation.outvars) == len(source.outvars):
        return source.outvars[index]
    return equation.outvars[index]


def stages_of(derivation: Derivation) -> dict[str, Program]:
    """The programs of a derivation by stage, without those that cannot be derived, of which the page shows why."""
    programs = {}
    for stage in STAGES:
        with suppress(Exception):
            programs[stage] = getattr(derivation, stage)
    return programs


def phases_of(derivation: Derivation) -> ValuePhases:
    """The phases of values in all programs of a derivation."""
    return ValuePhases(derivation.primal, stages_of(derivation).values())
