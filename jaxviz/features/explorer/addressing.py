"""The addresses of equations that are selected, and the equations that addresses mean."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from jaxviz.analysis.addresses import Address, address
from jaxviz.analysis.phases import ValuePhases, phases_of, stages_of
from jaxviz.analysis.probed import meanings_in, resolve_in
from jaxviz.analysis.walk import with_holders
from jaxviz.analysis.written import address_of
from jaxviz.derivation import Derivation
from jaxviz.features.explorer.messages import EquationAddress, EquationAddresses, FoundAddresses, FoundValue
from jaxviz.higher_order.observing import Place
from jaxviz.ir.syntax import Equation

_MOST = 200
"""How many values of one text are listed."""


class ExplorerAddresses:
    """Addresses for the equations of all stages, which are named as in `Explorer.selected`."""

    def __init__(self, derivation: Derivation):
        self.derivation = derivation

    @cached_property
    def _phases(self) -> ValuePhases:
        return phases_of(self.derivation)

    def of(self, equation: str) -> EquationAddresses:
        """The addresses of an equation's results, as the page shows and copies them; none if there is no such
        equation."""
        made = self._named.get(equation)
        found = [] if made is None else [self._phases.address(*made, index) for index in range(len(made[0].outvars))]
        rows = [EquationAddress(a.text, a.phase, f"jaxviz.{a!r}") for a in found if a is not None]
        return EquationAddresses(asked=equation, addresses=rows)

    def found(self, text: str) -> FoundAddresses:
        """What a text means as an address, which may be several values."""
        function = self.derivation.primal
        values = meanings_in(self.derivation, address(text))[:_MOST]
        rows = [
            FoundValue(
                str(address_of(function, v)), " · ".join(filter(None, [v.line, v.aval.str_short(short_dtypes=True)])),
                [name for phase in ("forward", "recomputed") for name in self._computing.get((v.place, phase), ())],
            )
            for v in values
        ]  # fmt: skip
        return FoundAddresses(asked=text, values=rows)

    def equation(self, given: Any, shown: str) -> str:
        """The first equation that computes what an address means, preferably in a stage that is shown.

        Raises:
          AddressError: it means nothing, or several values; or no stage computes that.
        """
        a: Address = address(given)
        places = [v.place for v in resolve_in(self.derivation, a).values]
        names = [name for place in places for name in self._computing.get((place, a.phase), ())]
        if not names:
            raise ValueError(f"no stage has an equation that computes {a}")
        return next((name for name in names if name.partition(":")[0] in shown.split("+")), names[0])

    @cached_property
    def _named(self) -> Mapping[str, tuple[Equation, tuple[Equation, ...]]]:
        """The equations of all stages, each with those around it."""
        return {
            f"{stage}:{number}": made
            for stage, program in stages_of(self.derivation).items()
            for number, made in enumerate(with_holders(program))
        }

    @cached_property
    def _computing(self) -> Mapping[tuple[Place, str], list[str]]:
        """The equations of all stages by what they compute, in which phase."""
        computing: dict[tuple[Place, str], list[str]] = {}
        for name, (e, within) in self._named.items():
            for index in range(len(e.outvars)):
                for what in self._phases.all_of(e, within, index):
                    computing.setdefault((what.value.place, what.phase), []).append(name)
        return computing
