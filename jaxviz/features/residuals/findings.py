"""Residuals that could be avoided: values saved twice, in each iteration, or only because of a jit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from jaxviz.analysis.grouping import alike, grouped
from jaxviz.analysis.site import Site
from jaxviz.analysis.walk import Source, SourceTracer, location_of
from jaxviz.derivation import Derivation
from jaxviz.higher_order import Body, bodies, is_call, is_scan, of, scan_length
from jaxviz.higher_order.jit import JIT
from jaxviz.higher_order.shard_map import only_passes_a_scalar
from jaxviz.ir import compat
from jaxviz.ir.primitives import keeps_numbers
from jaxviz.ir.syntax import Atom, Equation, Literal, Operation, Program
from jaxviz.report.data import Data
from jaxviz.report.tables import format_bytes, nbytes, short_location, type_text
from jaxviz.transforms.driver import Mask, call_of
from jaxviz.transforms.inline import inlined, numbers_in_place
from jaxviz.transforms.linearize import Mode, linearize_program, mode_of, with_each_once

if TYPE_CHECKING:
    from jaxviz.features.residuals.residual import Residual


@dataclass(frozen=True, eq=False, slots=True)
class Finding(Data):
    """A finding about one residual, or several that belong together: the bytes at stake, their names and lines."""

    residuals: tuple[Residual, ...]
    nbytes: int
    text: str

    def __str__(self) -> str:
        return f"{self.text}, {format_bytes(self.nbytes)}"

    _data = ("residuals=_names", "nbytes", "text")

    @property
    def _names(self) -> list[str]:
        return [r.name for r in self.residuals]


def finding(residual: Residual, size: int) -> Finding:
    """A finding about one residual."""
    times = f"{residual.type} " if residual.lengths else ""
    return Finding((residual,), size, f"{times}`{residual.expression}` ({short_location(residual.location)})")


def texts_of(findings: Sequence[Finding]) -> list[str]:
    """The texts of findings, one for those about one expression in repeated layers, calls and iterations."""
    return [
        alike([f.text for f in same]) for same in grouped(findings, lambda f: tuple(r.repeats for r in f.residuals))
    ]


def largest_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda f: -f.nbytes))


# --- values saved twice -----------------------------------------------------------------------------------------------


def find_duplicates(residuals: Sequence[Residual]) -> tuple[Finding, ...]:
    """Residuals that are the same value in several types or layouts.

    The wasted bytes are those that could be recomputed from one of them.
    """
    alike: dict[Any, tuple[Source, list[Residual]]] = {}
    producers = _Producers()
    for r in residuals:
        root = None if r.dummies else _root(producers, r.forward, r.atom)
        if root is not None:
            alike.setdefault((root.atom, root.within), (root, []))[1].append(r)
    findings = []
    for root, copies in alike.values():
        size = nbytes(root.atom.aval) * math.prod(root.lengths)
        at_stake = sum(r.nbytes for r in copies) - size
        if len(copies) > 1 and at_stake > 0:
            findings.append(Finding(tuple(copies), at_stake, _types_of_copies(root, copies)))
    return largest_first(findings)


def _types_of_copies(root: Source, copies: Sequence[Residual]) -> str:
    where = location_of(root.equation, root.within) if root.equation is not None else None
    line = f" ({short_location(where)})" if where is not None else ""
    types = " and ".join(
        f"{n} times as {t}" if n > 1 else f"as {t}" for t, n in Counter(r.type for r in copies).items()
    )
    lines = dict.fromkeys(
        short_location(r.location) for r in copies if r.location != where and r.kind == "intermediate"
    )
    elsewhere = f" from {', '.join(lines)}" if lines else ""
    return f"`{copies[0].site.expression(root)}`{line} {types}{elsewhere}"


class _Producers:
    """For each program the equation that computes each value, None for an input, and the index of the value there; -1
    for a constant."""

    def __init__(self) -> None:
        self.of: dict[Program, dict[Atom, tuple[Equation | None, int]]] = {}

    def __call__(self, program: Program, atom: Atom) -> tuple[Equation | None, int]:
        if program not in self.of:
            self.of[program] = {v: (None, i) for i, v in enumerate(program.invars)}
            self.of[program].update((v, (e, i)) for e in program.equations for i, v in enumerate(e.outvars))
        return self.of[program].get(atom, (None, -1))


def _root(
    producers: _Producers, program: Program, atom: Atom, stops: Callable[[Equation], bool] = lambda _: False
) -> Source | None:
    """The value that another is a copy of, as far as no operation changes its numbers; None for a number in the source.

    With `stops` the search ends at the first equation for which that is true.
    """
    outside: list[tuple[Program, Equation]] = []  # the programs on the way in, and the equations entered
    lengths: tuple[int, ...] = ()
    while not isinstance(atom, Literal):
        within = tuple(e for _, e in outside)
        equation, place = producers(program, atom)
        if equation is None:
            if place < 0 or not outside or is_scan(outside[-1][1]):
                return Source(None, atom, within, lengths)
            program, holder = outside.pop()
            atom = holder.invars[_body(holder).operands[place]]
            continue
        if stops(equation):
            return Source(equation, atom, within, lengths)
        if _keeps_numbers(equation) or only_passes_a_scalar(equation):
            atom = equation.invars[0]
            continue
        is_stacked = of(equation).is_stacked(equation.operation, place)
        if not is_stacked and not is_call(equation):
            return Source(equation, atom, within, lengths)
        if is_stacked:
            lengths += (scan_length(equation),)
        outside.append((program, equation))
        program = _body(equation).program
        atom = program.outvars[place]
    return None


def _body(equation: Equation) -> Body:
    (body,) = bodies(equation)
    return body


def _keeps_numbers(equation: Equation) -> bool:
    if equation.primitive.name != "convert_element_type":
        return keeps_numbers(equation)
    old, new = (jnp.dtype(a.dtype) for a in (equation.invars[0].aval, equation.outvars[0].aval))
    # Converting float to integer loses the fraction, and complex to real half of the value.
    if all(jnp.issubdtype(t, jnp.floating) for t in (old, new)):
        return True
    try:
        return bool(jnp.result_type(old, new) == new)
    except ValueError:  # JAX does not promote 4-bit numbers
        return False


# --- values saved in a wider type than necessary ----------------------------------------------------------------------


def find_upcasts(residuals: Sequence[Residual]) -> tuple[Finding, ...]:
    """Residuals whose numbers fit into a narrower floating-point type.

    At stake are the bytes that saving only that type would free.
    """
    producers = _Producers()
    alike: dict[Any, list[tuple[Residual, Source | None]]] = {}
    for r in residuals:
        root = None if r.dummies else _root(producers, r.forward, r.atom)
        if root is not None:
            alike.setdefault((root.atom, root.within), []).append((r, _root(producers, r.forward, r.atom, _widens)))
    findings = []
    for copies in alike.values():
        wide = [(r, s) for r, s in copies if s is not None and s.equation is not None and _widens(s.equation)]
        if not wide:
            continue
        first, source = wide[0]
        assert source.equation is not None
        narrow = source.equation.invars[0].aval
        has_narrow = any(r.aval.dtype == narrow.dtype for r, _ in copies)
        at_stake = sum(r.nbytes for r, _ in wide) - (0 if has_narrow else nbytes(narrow) * math.prod(source.lengths))
        if at_stake > 0:
            also = ", which is saved too" if has_narrow else ""
            text = f"{first.type} of {type_text(narrow)}{also} ({short_location(first.location)})"
            findings.append(Finding(tuple(r for r, _ in wide), at_stake, text))
    return largest_first(findings)


def _widens(equation: Equation) -> bool:
    if equation.primitive.name != "convert_element_type":
        return False
    old, new = (jnp.dtype(a.dtype) for a in (equation.invars[0].aval, equation.outvars[0].aval))
    return all(jnp.issubdtype(t, jnp.floating) for t in (old, new)) and old.itemsize < new.itemsize


# --- one-hot rows -----------------------------------------------------------------------------------------------------


def find_one_hots(residuals: Sequence[Residual]) -> tuple[Finding, ...]:
    """One-hot residuals: integers compared with an `iota`, as numbers.

    At stake are the bytes that saving the integers would free.
    """
    producers, findings = _Producers(), []
    for r in residuals:
        root = None if r.dummies or r.aval.dtype == bool else _root(producers, r.forward, r.atom)
        integers = _compared_with_iota(producers, r.forward, root) if root is not None else None
        at_stake = r.nbytes - math.prod(root.lengths) * nbytes(integers.aval) if root and integers else 0
        if at_stake > 0:
            findings.append(finding(r, at_stake))
    return largest_first(findings)


def _compared_with_iota(producers: _Producers, program: Program, root: Source) -> Atom | None:
    """What a comparison compares with an `iota`, if it does."""
    if root.equation is None or root.equation.primitive.name != "eq":
        return None
    around = [program]
    for entered in root.within:
        around.append(_body(entered).program)
    sides = root.equation.invars
    others = [a for a in sides if not _is_iota(producers, around, root.within, a)]
    integers = _root(producers, around[-1], others[0]) if len(others) == 1 else None
    return integers.atom if integers is not None else None


def _is_iota(producers: _Producers, around: Sequence[Program], within: Sequence[Equation], atom: Atom) -> bool:
    """Whether a value is an iota, possibly computed outside of the bodies that read it, which `within` contains."""
    for depth in range(len(within), -1, -1):
        source = _root(producers, around[depth], atom)
        if source is None or source.equation is not None or not depth:
            break
        (_, place), holder = producers(around[depth], source.atom), within[depth - 1]
        if place < 0 or (is_scan(holder) and place >= of(holder).carry(holder.operation)[0]):
            break
        atom = holder.invars[place]
    return source is not None and source.equation is not None and source.equation.primitive.name == "iota"


# --- values that a scan stacks although they are equal in every iteration ---------------------------------------------


def find_invariants(residuals: Sequence[Residual]) -> tuple[Finding, ...]:
    """Residuals that a scan stacks although they depend neither on its carry nor on its xs.

    At stake are all copies but one.
    """
    producers, dependence = _Producers(), _Dependence()
    findings = []
    for r in residuals:
        times = math.prod(_times_alike(producers, dependence, r.forward, r.atom)) if r.lengths and not r.dummies else 1
        if times > 1:
            findings.append(finding(r, r.nbytes - r.nbytes // times))
    return largest_first(findings)


def _times_alike(producers: _Producers, dependence: _Dependence, program: Program, atom: Atom) -> Iterator[int]:
    """The trip counts of the scans in whose iterations a value is the same."""
    # For each enclosing scan, its length and what differs between its iterations.
    varying: list[tuple[int, set[Atom]]] = []
    equation, place = producers(program, atom)
    while equation is not None and (is_call(equation) or is_scan(equation)):
        body = _body(equation).program
        # What a call or inner scan receives that differs; an inner scan may add it to its carry.
        inner = [(n, dependence.dependents(body, dependence.differing_in(equation, v))) for n, v in varying]
        if is_scan(equation):
            n_consts, n_carry = of(equation).carry(equation.operation)
            if place < n_carry:
                break
            passed_on = zip(body.invars[n_consts : n_consts + n_carry], body.outvars[:n_carry], strict=True)
            differs = [False] * n_consts + [new is not old for old, new in passed_on]
            differs += [True] * (len(body.invars) - len(differs))
            inner.append((scan_length(equation), dependence.dependents(body, differs)))
        varying, program, atom = inner, body, body.outvars[place]
        equation, place = producers(program, atom)
    yield from (n for n, v in varying if atom not in v)


class _Dependence:
    """Which values depend on which inputs of a program. Each program is analysed once for each set of inputs."""

    def __init__(self) -> None:
        self.known: dict[tuple[Program, tuple[bool, ...]], set[Atom]] = {}

    def dependents(self, program: Program, differs: Sequence[bool]) -> set[Atom]:
        """The values of a program that depend on some of its inputs."""
        key = program, tuple(differs)
        if key not in self.known:
            self.known[key] = self._dependents(*key)
        return self.known[key]

    def _dependents(self, program: Program, differs: Sequence[bool]) -> set[Atom]:
        dependents: set[Atom] = {v for v, d in zip(program.invars, differs, strict=True) if d}
        for e in program.equations:
            if e.effects:
                dependents.update(e.outvars)
            elif not dependents.isdisjoint(e.invars):
                if is_call(e) or is_scan(e):
                    body = _body(e).program
                    inside = self.dependents(body, self.differing_in(e, dependents))
                    dependents.update(v for v, a in zip(e.outvars, body.outvars, strict=True) if a in inside)
                else:
                    dependents.update(e.outvars)
        return dependents

    def differing_in(self, equation: Equation, differing: set[Atom]) -> list[bool]:
        """Which inputs of an equation's body depend on some values outside; once a scan's carry does, it stays so."""
        taken = _body(equation)
        body = taken.program
        differs = [equation.invars[i] in differing for i in taken.operands]
        if is_scan(equation):
            n_consts, n_carry = of(equation).carry(equation.operation)
            grew = True
            while grew:
                inside = self.dependents(body, differs)
                now = [a in inside for a in body.outvars[:n_carry]]
                grew = any(new and not old for new, old in zip(now, differs[n_consts:], strict=False))
                for i, new in enumerate(now):
                    differs[n_consts + i] |= new
        return differs


# --- what the boundary of a jit forces to be saved --------------------------------------------------------------------


def find_forced(residuals: Sequence[Residual]) -> tuple[Finding, ...]:
    """Residuals that disappear when the program is derived with its jitted functions inlined."""
    if not residuals:
        return ()
    site = residuals[0].site
    derivation = site.derivation
    if not any(of(e) is JIT for _, e in derivation.primal.walk()) and all(r.kind != "literal" for r in residuals):
        return ()
    # An index into a reference is an array without any jit too.
    reads = lambda e: not e.programs and any(compat.is_ref(a.aval) for a in e.invars)
    program = numbers_in_place(inlined(derivation.primal, (JIT.primitive,)), keeps=reads)
    other = Derivation(program, derivation.nonzeros, derivation.reference, derivation.cond_residuals, derivation.placed)
    others = other.linearized.residuals
    had, has = (Counter(map(_type, of)) for of in ([r.atom for r in residuals], others))
    excess = had - has
    if not excess or has - had:  # nothing disappeared, or something else replaced it
        return ()
    there = replace(site, sources=SourceTracer(other.forward), derivation=other)
    places = Counter(origin_key(a, there) for a in others if excess[_type(a)])
    # Among values of one type, first take those whose line and operation have no residual left.
    unmatched: list[Residual] = []
    matched: list[Residual] = []
    for r in residuals:
        if excess[_type(r.atom)]:
            key = origin_key(r.atom, site)
            places[key] -= 1
            (unmatched if places[key] < 0 else matched).append(r)
    findings = []
    for r in (*unmatched, *matched):
        if excess[_type(r.atom)] > 0:
            excess[_type(r.atom)] -= 1
            findings.append(finding(r, r.nbytes))
    return largest_first(findings)


def most_forced(residuals: Sequence[Residual]) -> int:
    """At most how many bytes `find_forced` finds, which is told without deriving the function once more: those of
    numbers, if each jit saves the same when it is inlined."""
    if not residuals:
        return 0
    derivation = residuals[0].site.derivation
    mode = mode_of(derivation.cond_residuals)
    only_numbers = all(_saves_the_same(*call, mode) for call in derivation.linearized.calls)
    return sum(r.nbytes for r in residuals if not only_numbers or r.source_kind == "literal")


def _saves_the_same(operation: Operation, nonzeros: Mask, mode: Mode) -> bool:
    """Whether an operation with programs saves the same operands and results, and other values of the same types, when
    its jits are inlined, so that the same is saved of everything around it too."""
    call = call_of(operation)
    changes = lambda e: of(e) is JIT or any(isinstance(a, Literal) and a.held for a in e.invars)
    if not any(changes(e) for _, e in call.walk()):
        return True
    opened = numbers_in_place(inlined(call, (JIT.primitive,)))
    # One that is an operand, a constant or another result is another value when it is inlined.
    own = {v for e in opened.equations for v in e.outvars}
    if operation.effects or len(own.intersection(opened.outvars)) < len(opened.outvars):
        return False
    saved, opened_saved = (_saved(program, nonzeros, mode) for program in (call, opened))
    return saved == opened_saved


def _saved(program: Program, nonzeros: Mask, mode: Mode) -> tuple[Counter[Any], Mask]:
    """The inputs and results that a program saves, by place, and the types of other values; and which results have
    tangents."""
    parts = with_each_once(linearize_program(program, nonzeros, mode=mode))
    results = parts.forward.outvars[: len(program.outvars)]
    places = {a: i for i, a in enumerate((*program.invars, *results))}
    return Counter(places.get(a, _type(a)) for a in parts.residuals), parts.nonzeros_out


def _type(atom: Atom) -> tuple[Any, Any]:
    return getattr(atom.aval, "shape", None), getattr(atom.aval, "dtype", atom.aval)


def origin_key(atom: Atom, site: Site) -> tuple[Any, ...]:
    """A key to match residuals of two derivations of one function: the type, the operation and the line."""
    source = site.sources(atom)[0]
    if source.equation is None:
        return (_type(atom), isinstance(atom, Literal), source.atom in site.constants)
    return (_type(atom), source.equation.primitive, location_of(source.equation, source.within))
