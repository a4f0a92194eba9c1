"""The addresses of the values that a search follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxviz.analysis.addresses import Address
from jaxviz.analysis.phases import ValuePhases
from jaxviz.features.nans.search import Birth, NanSearch, Place, ProgramLevel, Steps, ValueKinds, has_steps
from jaxviz.higher_order import is_loop, of
from jaxviz.ir.syntax import Atom, Equation
from jaxviz.transforms.inline import Made


@dataclass(frozen=True)
class SearchAddresses:
    """The addresses of values in a searched program.

    Args:
      phases: what the equations of that program compute, as it was before its calls were inlined.
      originals: the equations that those of the searched program were before.
    """

    phases: ValuePhases
    originals: Mapping[Equation, Made]

    def of(self, level: ProgramLevel, value: Atom, steps: Steps) -> Address | None:
        """The address of a value in a step of the loops around it; None if it has none."""
        made = self._made(level, value)
        return None if made is None else self.phases.address(*made, _iteration(level, steps))

    def has(self, level: ProgramLevel, value: Atom) -> bool:
        """Whether a value has an address, which takes less than to write it down."""
        made = self._made(level, value)
        return made is not None and self.phases.of(*made) is not None

    def _made(self, level: ProgramLevel, value: Atom) -> tuple[Equation, tuple[Equation, ...], int] | None:
        """What computes a value in the program as it was, the equations around that, and the index of the result."""
        place = level.makers.get(value)
        if place is None:
            return None
        e = level.program.equations[place]
        equation, within = self.originals.get(e, (e, tuple([outer for outer, _ in level.path])))
        return equation, within, list[Atom](e.outvars).index(value)


@dataclass(frozen=True)
class AddressedWay:
    """The values with addresses from where a non-finite one is born to a result, each in the step that it passes in."""

    values: Sequence[tuple[Place, Atom]]
    kind: int

    @property
    def places(self) -> dict[Place, list[Atom]]:
        """The values of each program and step."""
        together: dict[Place, list[Atom]] = {}
        for place, v in self.values:
            together.setdefault(place, []).append(v)
        return together

    @staticmethod
    def of(search: NanSearch, birth: Birth, addresses: SearchAddresses) -> AddressedWay:
        found: dict[tuple[Place, Atom], None] = {}
        for level, value in birth.chain:
            if value in level.makers:
                steps = search.first(level, value, birth.kind) or birth.steps[: len(level.devices)]
                computed = [v for e in search.computed_from(level, value)[0] for v in e.outvars]
                found |= {((level, steps), v): None for v in computed if addresses.has(level, v)}
        return AddressedWay(list(found), birth.kind)

    def first(self, kinds: ValueKinds, addresses: SearchAddresses) -> Address | None:
        """The address of the first that is not finite, given the kinds of all; None if none is."""
        for place, v in self.values:
            if kinds[place][v][self.kind]:
                return addresses.of(place[0], v, place[1])
        return None


def _iteration(level: ProgramLevel, steps: Steps) -> int | None:
    """Of the innermost loop, as the index of the slice that it reads."""
    around = [e for e, _ in level.path if has_steps(e)]
    loops = [(e, step) for e, step in zip(around, steps, strict=True) if is_loop(e)]
    return of(loops[-1][0]).turned(loops[-1][0].operation, loops[-1][1]) if loops else None
