"""The programs of a run as shown: names of variables, and where each is computed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from jaxviz.features.debugger.positions import enterable
from jaxviz.higher_order import is_loop
from jaxviz.ir.pretty import printed_params, variable_names
from jaxviz.ir.syntax import Atom, Equation, Literal, Program, Var
from jaxviz.report.tables import printable

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
