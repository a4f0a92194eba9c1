"""Follows a value through a derivation: what computes it and what reads it, also inside calls, loops and branches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jaxviz import higher_order
from jaxviz.higher_order import Body, bodies, is_choice, is_scan, scan_length
from jaxviz.higher_order.shard_map import only_passes_a_scalar
from jaxviz.ir import compat
from jaxviz.ir.origin import Location, ancestors, definition, library_line, locate, own_line
from jaxviz.ir.own_code import package
from jaxviz.ir.primitives import operation_of
from jaxviz.ir.syntax import Atom, Equation, Program, Var
from jaxviz.report.tables import short_location


@dataclass(eq=False)  # not frozen, like Equation
class Reader:
    """An equation, those that contain its program, outermost first, and the operand that is read. It is immutable."""

    equation: Equation
    within: tuple[Equation, ...] = ()
    operand: int = 0

    # Several texts are about each of many thousands, so what they are about is computed once.

    @cached_property
    def derived(self) -> Equation:
        """The equation, or the one with a custom rule that contains it."""
        return next((e for e in self.within if higher_order.of(e).has_custom_rule), self.equation)

    @cached_property
    def source(self) -> Equation:
        """The user's operation whose derivative, or second computation, it is part of."""
        return primal_equation(self.derived)

    @cached_property
    def operation(self) -> str:
        """What people call that operation: `matrix product`, or the name of a function with a custom rule."""
        if name := higher_order.of(self.source).function_of_rule(self.source.operation):
            function = "the lambda" if name == "<lambda>" else "a function"
            return name if name.isidentifier() else f"{function}'s custom rule"
        return operation_of(self.source)

    @cached_property
    def location(self) -> Location | None:
        """The line of the program whose gradient it is part of, and not that of a custom rule."""
        inside = tuple(map(primal_equation, self.within))
        return location_of(primal_equation(self.equation), inside) or location_of(self.equation, self.within)

    @cached_property
    def roles(self) -> set[str]:
        """The roles of the equation, or of the one around it that has one; 'rule' if the function has no such
        operation, as the cosine that sin's derivative needs."""
        roles: set[str] = set()
        for e in (self.equation, *reversed(self.within)):
            for o in (a.origin for a in (e, *ancestors(e)) if a.origin is not None):
                roles |= {o.role, "rule"} if (o.transform, o.role) in _OF_RULE else {o.role}
            if roles & {"recomputation", "cotangent"}:
                break
        return roles

    @property
    def computes_again(self) -> bool:
        """Whether it recomputes a value, rather than being part of a derivative."""
        return "recomputation" in self.roles and "rule" not in self.roles


_OF_RULE = (("jvp", "tangent"), ("linearize", "residual"))


@dataclass(slots=True)  # not frozen, like Equation
class Source:
    """The source of a value. It is immutable.

    Args:
      equation: the innermost equation that computes it; None for an input, a constant or a literal.
      atom: its atom there.
      within: the equations that contain its program, outermost first.
      lengths: trip counts of the scans that stack it, outermost first.
      branches: the conds that contain it, each with the number of the branch.
      carry: if it is a carry, the loop, and its input in the body.
      passed_by: the outermost equation that only passes it on, if any.
    """

    equation: Equation | None
    atom: Atom
    within: tuple[Equation, ...] = ()
    lengths: tuple[int, ...] = ()
    branches: tuple[tuple[Equation, int], ...] = ()
    carry: tuple[Equation, Atom] | None = None
    passed_by: Equation | None = None

    @property
    def place(self) -> int:
        """Its index among the results of the equation."""
        return place_of(self.equation, self.atom) if self.equation is not None else 0

    @property
    def is_dummy(self) -> bool:
        """Whether it is a dummy for a residual that another branch saves."""
        return self.equation is not None and self.equation.origin is not None and self.equation.origin.role == "dummy"


@dataclass(frozen=True)
class _Scope:
    """A program, with the path of equations into it."""

    program: Program
    outer: _Scope | None = None
    holder: Equation | None = None
    body: Body | None = None
    passes: Callable[[Equation], bool] = only_passes_a_scalar

    @cached_property
    def producers(self) -> dict[Atom, Equation]:
        return {v: e for e in self.program.equations for v in e.outvars}

    @cached_property
    def inputs(self) -> dict[Atom, int]:
        return {v: i for i, v in enumerate(self.program.invars)}

    @cached_property
    def insides(self) -> dict[Equation, list[_Scope]]:
        """The scopes of nested programs whose results are the equations' results, found so far."""
        return {}

    def inside(self, equation: Equation) -> list[_Scope]:
        scopes = self.insides.get(equation)
        if scopes is None:
            of_results = (b for b in bodies(equation) if b.has_results)
            scopes = [_Scope(b.program, self, equation, b, self.passes) for b in of_results]
            self.insides[equation] = scopes
        return scopes

    @cached_property
    def within(self) -> tuple[Equation, ...]:
        return (*self.outer.within, self.holder) if self.outer is not None and self.holder is not None else ()


@dataclass
class SourceTracer:
    """Finds where values of one program come from.

    Args:
      program: the program.
      passes: whether an equation only passes its operands on, one per result, and is skipped.
    """

    program: Program
    passes: Callable[[Equation], bool] = only_passes_a_scalar
    _scope: _Scope = field(init=False)

    def __post_init__(self) -> None:
        self._scope = _Scope(self.program, passes=self.passes)

    def __call__(self, atom: Atom) -> tuple[Source, ...]:
        """The sources of a value: one, or one per branch if a cond returns it."""
        sources: list[Source] = []
        _find(sources, self._scope, atom, (), (), None, None, frozenset())
        return tuple(sources)


def _find(
    sources: list[Source],
    scope: _Scope,
    atom: Atom,
    lengths: tuple[int, ...],
    branches: tuple[tuple[Equation, int], ...],
    carry: tuple[Equation, Atom] | None,
    passed_by: Equation | None,
    seen: frozenset[Atom],
) -> None:
    equation = scope.producers.get(atom)
    if equation is None or atom in seen:
        _find_outside(sources, scope, atom, lengths, branches, carry, passed_by, seen)
        return
    place = place_of(equation, atom)
    if scope.passes(equation):
        _find(sources, scope, equation.invars[place], lengths, branches, carry, passed_by, seen)
        return
    inside = scope.inside(equation)
    if not inside:
        sources.append(Source(equation, atom, scope.within, lengths, branches, carry, passed_by))
    for inner in inside:
        stacked = higher_order.of(equation).is_stacked(equation.operation, place)
        longer = (*lengths, scan_length(equation)) if stacked else lengths
        branch = inner.body.branch if inner.body is not None else None
        chosen = branches if branch is None else (*branches, (equation, branch))
        _find(sources, inner, inner.program.outvars[place], longer, chosen, carry, passed_by, seen)


def _find_outside(
    sources: list[Source],
    scope: _Scope,
    atom: Atom,
    lengths: tuple[int, ...],
    branches: tuple[tuple[Equation, int], ...],
    carry: tuple[Equation, Atom] | None,
    passed_by: Equation | None,
    seen: frozenset[Atom],
) -> None:
    """The sources of an input of a body: the operand of the equation around it, or the previous iteration's carry."""
    place = scope.inputs.get(atom)
    holder = scope.holder
    if scope.outer is None or holder is None or scope.body is None or place is None:
        sources.append(Source(None, atom, scope.within, lengths, branches, carry, passed_by))
        return
    if is_scan(holder) and atom not in seen:
        n_before, n_carry = higher_order.of(holder).carry(holder.operation)
        if 0 <= place - n_before < n_carry:
            before = scope.program.outvars[place - n_before]
            _find(sources, scope, before, lengths, branches, carry or (holder, atom), passed_by, seen | {atom})
            return
    operand = holder.invars[scope.body.operands[place]]
    _find(sources, scope.outer, operand, lengths, branches, carry, passed_by or holder, seen)


def find_readers(program: Program, variables: Iterable[Var], is_linear: bool = False) -> dict[Var, list[Reader]]:
    """For each variable the innermost equations that read it; in a linear program also when transposed."""
    readers: dict[Var, list[Reader]] = {v: [] for v in variables}
    _collect(program, {v: [v] for v in readers}, (), readers, is_linear)
    return readers


def _collect(
    program: Program,
    stands_for: Mapping[Atom, Sequence[Var]],
    within: tuple[Equation, ...],
    readers: dict[Var, list[Reader]],
    is_linear: bool,
) -> None:
    stands_for = dict(stands_for)
    for equation in program.equations:
        for a in equation.invars:
            if a in stands_for:
                break
        else:
            continue
        if only_passes_a_scalar(equation):
            stands_for[equation.outvars[0]] = stands_for[a]
            continue
        read = {i: stands_for[a] for i, a in enumerate(equation.invars) if a in stands_for}
        if not equation.operation.programs:
            for i, variables in read.items():
                for v in variables:
                    of_variable = readers[v]
                    # Only the first operand counts. The same equation is read elsewhere only inside other equations.
                    if (
                        not of_variable
                        or of_variable[-1].equation is not equation
                        or of_variable[-1].within is not within
                    ):
                        of_variable.append(Reader(equation, within, i))
            continue
        inside = bodies(equation)
        for body in inside:
            inner: dict[Atom, list[Var]] = {}
            for v, i in zip(body.program.invars, body.operands, strict=True):
                if i in read:
                    inner.setdefault(v, []).extend(read[i])
            _collect(body.program, inner, (*within, equation), readers, is_linear)
        # Operands that no body takes choose a branch, or belong to programs that run instead when it is transposed.
        counts = not inside or is_choice(equation) or is_linear
        taken = {i for body in inside for i in body.operands}
        here = {i: variables for i, variables in read.items() if counts and i not in taken}
        operands = {v: i for i, variables in reversed(here.items()) for v in variables}
        for v in dict.fromkeys(v for variables in here.values() for v in variables):
            readers[v].append(Reader(equation, within, operands[v]))


def location_of(equation: Equation, within: Sequence[Equation] = ()) -> Location | None:
    """The user's line of an equation, or of a call around it; a library's, if none is on a line of the user's."""
    return own_location_of(equation, within) or _first(locate, equation, within)


def own_location_of(equation: Equation, within: Sequence[Equation] = ()) -> Location | None:
    """The same, but None if none of them is on a line of the user's own code."""
    return own_line(equation.source) or _first(own_line, equation, within)


def library_of(equation: Equation, within: Sequence[Equation] = ()) -> str:
    """`flax Dense.__call__, linear.py:287`: where an equation was created in a library that the user called; or ''."""
    at = library_location_of(equation, within)
    if at is None:
        return ""
    name = at.function.rpartition("<locals>.")[2]
    return f"{package(at.file)} {name}, {short_location(at)}".lstrip()


def library_location_of(equation: Equation, within: Sequence[Equation] = ()) -> Location | None:
    """The innermost line of a library, called by the user's line, that created an equation; None if there is none."""
    for candidate in (equation, *reversed(within)):
        for e in (candidate, *ancestors(candidate)):
            at = library_line(e.source)
            if at is not None or own_line(e.source) is not None:
                return at
    return None


def _first(line: Callable[[Any], Location | None], equation: Equation, within: Sequence[Equation]) -> Location | None:
    for candidate in (equation, *reversed(within)):
        for e in (candidate, *ancestors(candidate)):
            location = line(e.source)
            if location is not None:
                return location
    return None


def defined_at(program: Program) -> Location:
    """Where the user's function is defined; otherwise, the first line of the user's in it; never empty."""
    own = definition(program.debug_info)
    if own is not None and compat.is_user_file(own.file):
        return own
    for equation in program.equations:
        location = locate(equation.source)
        if location is not None:
            return location
    return Location("<unknown>", 0, program.name)


def place_of(equation: Equation, value: Atom | None) -> int:
    """The index of a value among an equation's results; 0 if it is none of them."""
    for i, v in enumerate(equation.outvars):
        if v is value:
            return i
    return 0


def programs_in(program: Program) -> dict[Program, None]:
    """A program and its nested programs, each once."""
    return {program: None} | {body: None for _, e in program.walk() for _, body in e.programs}


def tangents_of(linear: Program) -> dict[Atom, Atom]:
    """Maps each tangent in a linear program to the value that it is the tangent of."""
    return {t: s.values[0] for p in programs_in(linear) for t, s in p.tangents().items()}


def cotangents_of(backward: Program, tangents: Mapping[Atom, Atom]) -> dict[Atom, tuple[Atom, bool]]:
    """Maps variables of the backward program to the value whose cotangent they are, and whether they are all of it."""
    values: dict[Atom, tuple[Atom, bool]] = {}
    for program in programs_in(backward):
        for ct, relation, tangent in program.relations():
            if relation != "value" and tangent in tangents:
                values.setdefault(ct, (tangents[tangent], relation == "cotangent"))
    return values


def primal_equation(equation: Equation) -> Equation:
    """The equation of the user's program that a derived one came from."""
    while equation.origin is not None and equation.origin.equation is not None:
        equation = equation.origin.equation
    return equation


def way(holders: Sequence[Equation]) -> tuple[Equation, ...]:
    """The user's equations that lead into a program, without checkpoints, which the forward program replaces by their
    bodies."""
    sources = [([*ancestors(e)] or [e])[-1] for e in holders]
    return tuple(e for e in sources if not higher_order.of(e).is_checkpoint)


def running(program: Program) -> Iterator[Equation]:
    """The equations that a run of the program may reach: without those of programs that are there for derivatives, such
    as the transposed product of `custom_linear_solve`."""
    for e in program.equations:
        yield e
        for inner in [b.program for b in bodies(e)] or [p for _, p in e.programs]:
            yield from running(inner)


def with_holders(
    program: Program, within: tuple[Equation, ...] = ()
) -> Iterator[tuple[Equation, tuple[Equation, ...]]]:
    """The equations in the order of `Program.walk`, each with those that contain its program, outermost first."""
    for e in program.equations:
        yield e, within
        for _, nested in e.programs:
            yield from with_holders(nested, (*within, e))
