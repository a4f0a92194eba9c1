"""The programs of a run as shown: names of variables, where each and its cotangent are computed, and both by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jaxviz.analysis.walk import way
from jaxviz.derivation import Derivation
from jaxviz.features.debugger.positions import enterable
from jaxviz.higher_order import is_loop
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.pretty import printed_params, variable_names
from jaxviz.ir.syntax import Atom, Equation, Literal, Program, Var
from jaxviz.report.tables import printable

if TYPE_CHECKING:
    from jaxviz.features.debugger.stepper import Stepper

StaticPath = tuple[tuple[int, str], ...]
"""The equations that lead to a program, and which of their programs."""


@dataclass(frozen=True, slots=True)
class EquationSite:
    """Where a variable is computed: in the program at the end of `path`, available before equation `index` runs."""

    path: StaticPath
    index: int
    holders: tuple[Equation, ...]
    """The equations of the path."""

    @property
    def loops(self) -> int:
        return sum(is_loop(e) for e in self.holders)


Place = tuple[EquationSite, tuple[Atom, ...]]
"""Where a value is computed, as the sum of some variables."""


@dataclass(frozen=True)
class StageText:
    """One stage's program as it is displayed: the names of its variables, and where each is computed."""

    stage: str
    program: Program

    @cached_property
    def names(self) -> dict[Var, str]:
        return variable_names(self.program)

    @cached_property
    def by_name(self) -> dict[str, list[Var]]:
        variables: dict[str, list[Var]] = {}
        for v, name in self.names.items():
            if name != "_":
                variables.setdefault(name, []).append(v)
        return variables

    @cached_property
    def sites(self) -> dict[Var, list[EquationSite]]:
        sites: dict[Var, list[EquationSite]] = {}
        for program, path, holders in self.programs:
            for v in (*program.constvars, *program.invars):
                sites.setdefault(v, []).append(EquationSite(path, 0, holders))
            for i, e in enumerate(program.equations):
                for v in e.outvars:
                    sites.setdefault(v, []).append(EquationSite(path, i + 1, holders))
        return sites

    @cached_property
    def programs(self) -> list[tuple[Program, StaticPath, tuple[Equation, ...]]]:
        """The program and the nested ones that can be stepped into."""
        programs: list[tuple[Program, StaticPath, tuple[Equation, ...]]] = []

        def walk(program: Program, path: StaticPath, holders: tuple[Equation, ...]) -> None:
            programs.append((program, path, holders))
            for i, e in enumerate(program.equations):
                for label, inner in enterable(e) if e.operation.programs else ():
                    walk(inner, (*path, (i, label)), (*holders, e))

        walk(self.program, (), ())
        return programs

    def atom(self, a: Atom) -> str:
        return printable(str(a.val), 24) if isinstance(a, Literal) else self.names.get(a, "_")

    def equation(self, e: Equation) -> str:
        """`b:f32[3] = tanh a`, with the params that are not programs."""
        results = " ".join(f"{self.atom(v)}:{v.aval.str_short(short_dtypes=True)}" for v in e.outvars)
        params = " ".join(p for p in printed_params(e.operation) if "=" in p)
        shown = f"[{printable(params, 60)}]" if params else ""
        return f"{results} = {e.primitive.name}{shown} {' '.join(map(self.atom, e.invars))}".rstrip()


def shared(a: StaticPath, b: StaticPath) -> int:
    """The length of the common prefix of two paths."""
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


# --- cotangents -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CotangentPlaces:
    """Where the backward program computes the cotangents of the forward program's values."""

    derivation: Derivation
    texts: Mapping[str, StageText]

    @cached_property
    def places(self) -> dict[Atom, list[Place]]:
        """Where the backward program computes the cotangents of values of the forward program, and of checkpointed
        functions."""
        places: dict[Atom, list[Place]] = {}
        for program, path, holders in self.texts["backward"].programs:
            position: dict[Atom, int] = {v: i + 1 for i, e in enumerate(program.equations) for v in e.outvars}
            for value, ct in program.cotangents().items():
                site = EquationSite(path, max(position.get(part, 0) for part in ct), holders)
                places.setdefault(value, []).append((site, ct))
        return places

    @cached_property
    def _checkpointed(self) -> dict[int, Equation]:
        """The equations of checkpointed functions, by their origins, which the copies in the forward program have
        too."""
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


# --- values by name ---------------------------------------------------------------------------------------------------


class _ByName(Mapping[Any, Any]):
    def __init__(self, stepper: Stepper):
        self._stepper = stepper

    @api_boundary
    def __getitem__(self, key: Any) -> Any:
        name, *iterations = key if isinstance(key, tuple) else (key,)
        return self._value(str(name), tuple(int(i) for i in iterations))

    def _value(self, name: str, iterations: tuple[int, ...]) -> Any:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(list(iter(self)))


class Values(_ByName):
    """Values by the name that the program at the position prints: `s.values["b"]`, or `s.values["b", 7]` for iteration
    7 of a loop."""

    def _value(self, name: str, iterations: tuple[int, ...]) -> Any:
        return self._stepper._value(self._stepper.stage, name, iterations)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stepper._bound())

    def __repr__(self) -> str:
        return f"values of {', '.join(self)}"


class Cotangents(_ByName):
    """Cotangents of values of the forward program: `s.cotangents["b"]`, or `s.cotangents["b", 7]` for iteration 7 of a
    loop.

    A cotangent is available once the backward pass has computed it, summed over everything that reads the value. For a
    value that a loop reads unchanged in each iteration, the cotangent in its body is the sum over the iterations so
    far.
    """

    def _value(self, name: str, iterations: tuple[int, ...]) -> Any:
        return self._stepper._cotangent(name, iterations)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stepper._known_cotangents())

    def __repr__(self) -> str:
        return f"cotangents of {', '.join(self)}" if len(self) else "no cotangents yet"
