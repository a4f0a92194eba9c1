"""Following a value through a derivation: who makes it and who reads it, inside jitted functions too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jaxviz.derivation import Derivation
from jaxviz.ir import compat
from jaxviz.ir.origin import Location, ancestors, definition, locate
from jaxviz.ir.syntax import Atom, Equation, Literal, Program, Var


@dataclass(frozen=True, slots=True)
class Reader:
    """An equation, and the equations that hold the program it stands in, outermost first."""

    equation: Equation
    within: tuple[Equation, ...] = ()


@dataclass(frozen=True, eq=False)
class Site:
    """The forward program as a reader sees it: names, producers, where its function is defined."""

    names: Mapping[Var, str]
    producers: Mapping[Var, Equation]
    constants: frozenset[Var]
    arguments: Mapping[Var, str]
    definition: Location
    derivation: Derivation

    @staticmethod
    def of(derivation: Derivation, names: Mapping[Var, str]) -> Site:
        forward = derivation.forward
        producers = {v: e for e in forward.equations for v in e.outvars}
        arguments = {v: n for v, n in zip(derivation.primal.invars, derivation.primal.arg_names, strict=True) if n}
        where = defined_at(derivation.primal)
        return Site(names, producers, frozenset(forward.constvars), arguments, where, derivation)

    def name(self, atom: Atom) -> str:
        """The path of an argument, the value of a literal, or the name in the forward program."""
        if isinstance(atom, Literal):
            return str(atom.val)
        return self.names.get(atom, "_")

    def operand(self, atom: Atom) -> str:
        return self.arguments.get(atom) or self.name(atom) if isinstance(atom, Var) else self.name(atom)

    def expression(self, found: Reader) -> str:
        """`cos(x)`: the operation and its operands, by the paths of arguments and the names of other values."""
        equation = found.equation
        if found.within:
            return f"{equation.primitive.name} in {call_name(found.within[-1])}"
        return f"{equation.primitive.name}({', '.join(self.operand(a) for a in equation.invars[:4])})"


def call_name(equation: Equation) -> str:
    """The name of the function that an equation calls."""
    return str(equation.params.get("name", equation.primitive.name))


def find_producer(producers: Mapping[Var, Equation], atom: Atom, within: tuple[Equation, ...] = ()) -> Reader | None:
    """The innermost equation that makes a value, or None for an input, a constant or a literal."""
    equation = producers.get(atom) if isinstance(atom, Var) else None
    if equation is None:
        return None
    if equation.primitive is compat.jit_p:
        body: Program = equation.params["jaxpr"]
        result = body.outvars[equation.outvars.index(atom)]  # type: ignore[arg-type]
        inner = {v: e for e in body.equations for v in e.outvars}
        found = find_producer(inner, result, (*within, equation))
        if found is not None:
            return found
    return Reader(equation, within)


def find_readers(program: Program, variables: Iterable[Var]) -> dict[Var, list[Reader]]:
    """For each variable the innermost equations that read it."""
    readers: dict[Var, list[Reader]] = {v: [] for v in variables}
    _collect(program, {v: [v] for v in readers}, (), readers)
    return readers


def _collect(
    program: Program,
    stands_for: Mapping[Atom, Sequence[Var]],
    within: tuple[Equation, ...],
    readers: dict[Var, list[Reader]],
) -> None:
    for equation in program.equations:
        read = [(i, stands_for[a]) for i, a in enumerate(equation.invars) if a in stands_for]
        if not read:
            continue
        if equation.primitive is compat.jit_p:
            body: Program = equation.params["jaxpr"]
            inner: dict[Atom, list[Var]] = {}
            for i, variables in read:
                inner.setdefault(body.invars[i], []).extend(variables)
            _collect(body, inner, (*within, equation), readers)
        else:
            for v in dict.fromkeys(v for _, variables in read for v in variables):
                readers[v].append(Reader(equation, within))


def location_of(equation: Equation, within: Sequence[Equation] = ()) -> Location | None:
    """The user's line of an equation: its own, or that of the call it stands in."""
    for candidate in (equation, *reversed(within)):
        for e in (candidate, *ancestors(candidate)):
            location = locate(e.source)
            if location is not None:
                return location
    return None


def defined_at(program: Program) -> Location:
    """Where the user's function is defined; failing that, the first line of the user's in it; never empty."""
    found = definition(program.debug_info)
    if found is not None and compat.is_user_file(found.file):
        return found
    for equation in program.equations:
        location = locate(equation.source)
        if location is not None:
            return location
    return Location("<unknown>", 0, program.name)


def primal_equation(equation: Equation) -> Equation:
    """The equation of the user's program that a derived one came from."""
    return list(ancestors(equation))[-1] if equation.origin is not None and equation.origin.equation else equation
