"""Breakpoints: places and values at which a run stops."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxviz.analysis.addresses import Address, address
from jaxviz.analysis.phases import ValuePhases
from jaxviz.analysis.probed import resolve_in
from jaxviz.derivation import Derivation
from jaxviz.features.debugger.positions import Position, SteppingError, described, enterable
from jaxviz.features.debugger.programs import CotangentPlaces, EquationSite, StageText
from jaxviz.features.debugger.stepping import Machine
from jaxviz.features.debugger.summaries import is_finite
from jaxviz.ir import compat
from jaxviz.ir.origin import call_stack, locate
from jaxviz.ir.syntax import Equation, Var


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A condition that stops a run. If several arguments are given, all must hold.

    >>> s = jaxviz.step(loss, params, x)
    >>> s.run(primitive="tanh")  # or s.breakpoints, for all runs that follow

    The run stops at a line or a primitive before it runs, so that you can step into it, and at a name or a condition on
    a value once the value has been computed. It stops at a line when it reaches the line, and not at each of its
    equations.

    Args:
      line: a line of the user's source, such as 41 or 'model.py:41', in any function on the call stack of the equation.
      primitive: the name of an operation, such as 'tanh'.
      name: a variable, as the program prints it.
      when: a predicate on the value. It is not called on random keys or on arrays without elements.
      non_finite: stop when a value has a NaN or an Inf.
      equation: an equation of a program, such as `s.following`; the run stops before it, each time that it runs.
      at: an address of the function's values, see `at`: the run stops once that value has been computed, forward or in
        a checkpoint again; for the phase 'recomputed' only in a checkpoint, for 'cotangent' once its cotangent has
        been; in one iteration, if the address has one.
    """

    line: int | str | None = None
    primitive: str | None = None
    name: str | None = None
    when: Callable[[Any], Any] | None = None
    non_finite: bool = False
    equation: Equation | None = None
    at: Any = None

    def __post_init__(self) -> None:
        given = (self.line, self.primitive, self.name, self.when, self.equation, self.at)
        if given == (None,) * 6 and not self.non_finite:
            raise SteppingError(
                "A breakpoint needs a line, a primitive, a name, an equation, an address, a predicate `when` or "
                "non_finite=True."
            )
        if self.when is not None and not callable(self.when):
            raise SteppingError(f"`when` is a predicate such as `lambda v: abs(v).max() > 1e3`, not {self.when!r}.")

    @property
    def on_value(self) -> bool:
        """Whether it is checked after the value has been computed."""
        return self.when is not None or self.non_finite or self.name is not None or self.at is not None

    def __str__(self) -> str:
        parts = [
            f"{what} {x}" for what in ("line", "primitive", "name", "at") if (x := getattr(self, what)) is not None
        ]
        if self.equation is not None:
            parts.append(described(self.equation))
        if self.when is not None:
            parts.append("when " + getattr(self.when, "__name__", repr(self.when)))
        return ", ".join([*parts, *(["not finite"] if self.non_finite else [])])


@dataclass(frozen=True, slots=True)
class Hit:
    """A breakpoint at which the run has stopped, with the variable that satisfies its condition."""

    breakpoint: Breakpoint
    position: Position
    variable: Var | None = None


@dataclass(frozen=True)
class Addressed:
    """Where a run computes what an address means.

    Args:
      sites: after which equation, by the stage.
      equations: these.
      iteration: of the innermost loop; None for any.
    """

    sites: tuple[tuple[str, EquationSite], ...]
    equations: frozenset[Equation]
    iteration: int | None

    @staticmethod
    def of(
        given: Address,
        derivation: Derivation,
        texts: Mapping[str, StageText],
        phases: ValuePhases,
        places: CotangentPlaces,
    ) -> Addressed:
        """
        Raises:
          AddressError: the address means nothing, or several values.
        """
        meant = resolve_in(derivation, given)
        chosen = {v.place for v in meant.values}

        def computing(*wanted: str) -> list[tuple[str, EquationSite, Var]]:
            return [
                (text.stage, EquationSite(path, i + 1, holders), v)
                for text in texts.values()
                for program, path, holders in text.programs
                for i, e in enumerate(program.equations)
                for k, v in enumerate(e.outvars)
                if any(w.value.place in chosen and w.phase in wanted for w in phases.all_of(e, holders, k))
            ]

        found = computing(*(("forward", "recomputed") if given.phase == "forward" else (given.phase,)))
        sites = [(stage, site) for stage, site, _ in found]
        if given.phase == "cotangent" and not sites and "backward" in texts:  # a sum that no equation computes
            there = [places.place(site, v) for _, site, v in computing("forward")]
            sites = [("backward", place[0]) for place in there if place is not None]
        programs = {(s, path): program for s, text in texts.items() for program, path, _ in text.programs}
        equations = (programs[stage, s.path].equations[s.index - 1] for stage, s in sites if s.index)
        return Addressed(tuple(sites), frozenset(equations), meant.iteration)

    def is_at(self, p: Position) -> bool:
        here = p.stage, tuple((level.index, level.body) for level in p.path), p.index
        if here not in [(stage, site.path, site.index) for stage, site in self.sites]:
            return False
        innermost = next((level.iteration for level in reversed(p.path) if level.iteration is not None), None)
        return self.iteration is None or innermost == self.iteration


@dataclass(frozen=True)
class Armed:
    """A breakpoint, and the equations and inputs of the stages that it may stop at."""

    breakpoint: Breakpoint
    texts: Mapping[str, StageText]
    equations: frozenset[Equation]
    inputs: frozenset[Var]
    addressed: Addressed | None = None

    @staticmethod
    def of(
        b: Breakpoint,
        derivation: Derivation,
        texts: Mapping[str, StageText],
        phases: ValuePhases,
        places: CotangentPlaces,
    ) -> Armed:
        """Finds where a breakpoint may stop, in the stages of a function.

        Args:
          derivation: of the function.
          phases: which values of the function their equations compute.
          places: where cotangents are computed.

        Raises:
          SteppingError: it can never stop anywhere.
          AddressError: its address means nothing, or several values.
        """
        reached = [(text, e) for text in texts.values() for p, _, _ in text.programs for e in p.equations]
        sites = reached
        if b.equation is not None:
            sites = [(s, e) for s, e in sites if e is b.equation]
            if not sites:
                raise SteppingError(f"The run never reaches {described(b.equation)}.")
        if b.line is not None:
            file, line = _place(b.line)
            sites = [(s, e) for s, e in sites if _is_on(e, file, line)]
            if not sites:
                raise SteppingError(f"No equation comes from line {b.line}. {_lines(e for _, e in reached)}")
        if b.primitive is not None:
            has = sorted({e.primitive.name for _, e in sites})
            sites = [(s, e) for s, e in sites if e.primitive.name == b.primitive]
            if not sites:
                where = f"On line {b.line}" if b.line is not None else f"In {' and '.join(texts)}"
                inside = _only_inside((e for _, e in reached), b.primitive)
                raise SteppingError(f"{where} there is no `{b.primitive}`, only {', '.join(has)}.{inside}")
        addressed = None if b.at is None else Addressed.of(address(b.at), derivation, texts, phases, places)
        if addressed is not None:
            sites = [(s, e) for s, e in sites if e in addressed.equations]
            if not sites:
                raise SteppingError(f"The run stops at no equation that computes {b.at}; it may be inside of one step.")
        inputs: set[Var] = set()
        if (b.line, b.primitive, b.equation, b.at) == (None,) * 4:
            inputs = {v for t in texts.values() for v in t.program.invars if b.name is None or t.names.get(v) == b.name}
        if b.name is not None:
            sites = [(t, e) for t, e in sites if any(t.names.get(v) == b.name for v in e.outvars)]
            if not sites and not inputs:
                raise SteppingError(f"No equation that the run can stop at makes a variable `{b.name}`.")
        return Armed(b, texts, frozenset(e for _, e in sites), frozenset(inputs), addressed)

    def is_after(self, equation: Equation, p: Position) -> bool:
        """Whether it may stop once an equation has run, at the position after it."""
        return equation in self.equations and (self.addressed is None or self.addressed.is_at(p))

    def hit(self, position: Position, values: Iterable[tuple[Var, Any]]) -> Hit | None:
        """The hit by the first of some values that satisfies its condition."""
        names = self.texts[position.stage].names
        hits = (Hit(self.breakpoint, position, v) for v, x in values if self._holds(v, x, names.get(v, "_")))
        return next(hits, None)

    def _holds(self, variable: Var, value: Any, name: str) -> bool:
        b = self.breakpoint
        if b.name is not None and name != b.name:
            return False
        if b.non_finite and is_finite(value):
            return False
        if b.when is None:
            return True
        dtype = getattr(variable.aval, "dtype", None)
        if dtype is None or jax.dtypes.issubdtype(dtype, jax.dtypes.extended) or compat.is_float0(variable.aval):
            return False
        if np.size(value) == 0:
            return False
        try:
            return bool(b.when(value))
        except Exception as error:
            kind = variable.aval.str_short(short_dtypes=True)
            error.add_note(f"Raised by the predicate of a breakpoint, on `{name}`, {kind}. It must return one bool.")
            raise


def run(machine: Machine, armed: Sequence[Armed]) -> Hit | None:
    """Runs until a breakpoint is hit, or to the end: bodies without possible hits at once, others equation by
    equation."""
    inside: dict[Equation, bool] = {}

    def may_stop_in(e: Equation) -> bool:
        if e not in inside:
            within = [i for _, p in enumerable(e) for i in p.equations]
            inside[e] = any(i in a.equations for a in armed for i in within) or any(map(may_stop_in, within))
        return inside[e]

    enumerable = lambda e: tuple(enterable(e)) if e.operation.programs else ()
    while not machine.is_done:
        p = machine.position
        equation = machine.next_equation()
        entry = machine.entry(p) if equation is not None and may_stop_in(equation) else None
        if entry is not None:
            machine.goto(entry)
        else:
            machine.next()
        if hit := _hit(machine, armed, entered=entry is not None):
            return hit
    return None


def hit_at_start(machine: Machine, armed: Sequence[Armed]) -> Hit | None:
    """The breakpoint that is hit before anything has run: by an input, or by the first equation."""
    p = machine.position
    frame = machine.frame(p.stage, p.path)
    for a in armed:
        inputs = [(v, frame.env[v]) for v in frame.program.invars if v in a.inputs]
        if a.breakpoint.on_value and (hit := a.hit(p, inputs)):
            return hit
    return _hit(machine, armed, entered=True)


def _hit(machine: Machine, armed: Sequence[Armed], entered: bool) -> Hit | None:
    p = machine.position
    program = machine.program_at(p)
    before: Any = program.equations[p.index - 1] if p.index and not entered else None
    after = program.equations[p.index] if p.index < len(program.equations) else None
    for a in armed:
        if a.breakpoint.on_value:
            if a.is_after(before, p) and (hit := a.hit(p, zip(before.outvars, machine.results_before(p), strict=True))):
                return hit
        elif after in a.equations:
            is_new = a.breakpoint.line is None or a.breakpoint.primitive is not None or before not in a.equations
            if is_new:
                return Hit(a.breakpoint, p)
    return None


def _place(line: int | str) -> tuple[str, int]:
    file, _, number = str(line).rpartition(":")
    if not number.isdigit():
        raise SteppingError(f"A line must be a number or a place such as 'model.py:41'; got {line!r}.")
    return file, int(number)


def _is_on(equation: Equation, file: str, line: int) -> bool:
    """Whether an equation, or a call that leads to it, is on a line; without a file, in the file of the function."""
    here = locate(equation.source)
    file = file or (here.file if here is not None else "")
    return any(
        at.line == line and (at.file == file or at.file.endswith(os.sep + file)) for at in call_stack(equation.source)
    )


def _lines(equations: Iterable[Equation]) -> str:
    places = sorted({(at.file, at.line) for e in equations if (at := locate(e.source)) is not None})
    if not places:
        return "None has a line."
    shown = [f"{os.path.basename(file)}:{line}" for file, line in places[:12]]
    return f"There are some from {', '.join(shown)}{' and more' if len(places) > 12 else ''}."


def _only_inside(equations: Iterable[Equation], primitive: str) -> str:
    """Says what contains an equation that the run does not reach, such as a shard_map."""
    for e in equations:
        if not dict(enterable(e)) and any(i.primitive.name == primitive for _, p in e.programs for _, i in p.walk()):
            return f" There is one in {described(e)}, which runs as one step."
    return ""
