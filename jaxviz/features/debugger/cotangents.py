"""Where the backward program computes the cotangents of the forward program's values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxviz.derivation import Derivation
from jaxviz.features.debugger.programs import EquationSite, Place, StageText
from jaxviz.higher_order import of
from jaxviz.ir.origin import ancestors
from jaxviz.ir.syntax import Atom, Equation, Var


@dataclass(frozen=True)
class CotangentPlaces:
    """Finds cotangents.

    Args:
      derivation: of the function.
      texts: its programs, by stage.
    """

    derivation: Derivation
    texts: Mapping[str, StageText]

    @cached_property
    def places(self) -> dict[Atom, list[Place]]:
        """Where the backward program computes the cotangents of values of the forward program,
        and of checkpointed functions."""
        places: dict[Atom, list[Place]] = {}
        for program, path, holders in self.texts["backward"].programs:
            position: dict[Atom, int] = {v: i + 1 for i, e in enumerate(program.equations) for v in e.outvars}
            for value, ct in program.cotangents().items():
                site = EquationSite(path, max(position.get(part, 0) for part in ct), holders)
                places.setdefault(value, []).append((site, ct))
        return places

    @cached_property
    def _checkpointed(self) -> dict[int, Equation]:
        """The equations of checkpointed functions, by their origins,
        which the copies in the forward program have too."""
        equations = {}
        for checkpoint in self.derivation.linearized.checkpoints:
            for _, e in checkpoint.forward.walk():
                if e.origin is not None:
                    equations[id(e.origin)] = e
        return equations

    @cached_property
    def _stands_for(self) -> dict[Var, Var]:
        """Maps results of such a copy to those of the original equation."""
        originals: dict[Var, Var] = {}
        for program, _, _ in self.texts["forward"].programs:
            for e in program.equations:
                original = self._checkpointed.get(id(e.origin))
                if original is not None and len(original.outvars) == len(e.outvars):
                    originals.update(zip(e.outvars, original.outvars, strict=True))
        return originals

    @cached_property
    def _alike(self) -> dict[Var, list[tuple[EquationSite, Var]]]:
        """The variables of the forward program by their originals, in order."""
        copies: dict[Var, list[tuple[EquationSite, Var]]] = {}
        text = self.texts["forward"]
        for program, _, _ in text.programs:
            for v in (*program.invars, *(v for e in program.equations for v in e.outvars)):
                for site in text.sites[v]:
                    group = copies.setdefault(self._stands_for.get(v, v), [])
                    if (site, v) not in group:
                        group.append((site, v))
        return copies

    def place(self, site: EquationSite, v: Var) -> Place | None:
        """Where the cotangent of a variable of the forward program is computed; None if it has none."""
        of = self._stands_for.get(v, v)
        here = way(site.holders)
        there = [place for place in self.places.get(of, ()) if way(place[0].holders) == here]
        if len(there) < 2:
            return there[0] if there else None
        # A function that is called several times is one program; the backward pass visits the calls in reverse.
        forward = [place for place in self._alike[of] if way(place[0].holders) == here]
        rank = forward.index((site, v))
        return there[len(there) - 1 - rank] if len(there) == len(forward) else None

    @cached_property
    def names(self) -> dict[Atom, str]:
        """For a variable of the backward program, the names of the forward values that it is the cotangent of."""
        by_atom: dict[Atom, list[str]] = {}
        text = self.texts["forward"]
        for v, name in text.names.items():
            for site in text.sites.get(v, ()):
                place = self.place(site, v)
                if place is not None and len(place[1]) == 1 and name != "_":
                    names = by_atom.setdefault(place[1][0], [])
                    if name not in names:
                        names.append(name)
        return {ct: ", ".join(names) for ct, names in by_atom.items()}


def way(holders: Sequence[Equation]) -> tuple[Equation, ...]:
    """The user's equations that lead into a program, without checkpoints,
    which the forward program replaces by their bodies."""
    sources = [([*ancestors(e)] or [e])[-1] for e in holders]
    return tuple(e for e in sources if not of(e).is_checkpoint)
