"""The bytes of values; on one device if a function runs on several."""

from __future__ import annotations

from collections.abc import Mapping

from jaxviz.analysis.layouts import Layouts
from jaxviz.derivation import Derivation
from jaxviz.ir.syntax import Atom, Var
from jaxviz.report.tables import nbytes


class Sizes:
    """The sizes of a function's values.

    Args:
      layouts: of the function's gradient; None if it runs on one device, or if all devices are to be counted together.
      inputs: for each input of the function over how many devices it is divided.
      copies: maps values of an inlined function to those that they replace.
    """

    def __init__(
        self,
        layouts: Layouts | None = None,
        inputs: Mapping[Atom, int] | None = None,
        copies: Mapping[Var, Var] | None = None,
    ):
        self.is_per_device = layouts is not None
        self.layouts = layouts.called_too(copies or {}) if layouts is not None else None
        self._parts: dict[Atom, int] = {**layouts.own, **(inputs or {})} if layouts is not None else {}

    def of(self, value: Atom) -> int:
        """Bytes of a value of the function."""
        return nbytes(value.aval) // self._parts.get(value, 1)

    def stands_for(self, binder: Var, operand: Atom) -> None:
        """Gives the inputs of a body the layouts of its operands."""
        if operand in self._parts:
            self._parts.setdefault(binder, self._parts[operand])

    def residuals(self, derivation: Derivation) -> dict[Atom, int]:
        """Bytes of each residual of the function, or of some of its equations."""
        residuals = dict.fromkeys(derivation.linearized.residuals, 0)
        if self.layouts is None:
            return {a: nbytes(a.aval) for a in residuals}
        forward, primal = derivation.forward, derivation.primal
        own: dict[Atom, Atom] = dict(zip(forward.invars, primal.invars, strict=True))
        made = {v: (e, k) for e in forward.equations for k, v in enumerate(e.outvars)}
        return {a: self.layouts.nbytes(*made[a]) if a in made else self.of(own.get(a, a)) for a in residuals}
