"""Adds probes to a program from outside: on the values of a source line, and with the iterations of loops."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxviz.features.probes.probes import ProbeSite, Spec, link_p, next_place, report_p
from jaxviz.higher_order.observing import Observer, PassedIn, Place, joined, observed_program, walk_observed
from jaxviz.ir import compat
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.origin import Location, definition, locate
from jaxviz.ir.own_code import is_of_program
from jaxviz.ir.syntax import Atom, DropVar, Equation, Program, Var
from jaxviz.transforms.driver import Builder

MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class WatchedLine:
    """A line of source, as requested.

    Args:
      file: the end of its file's path; '' for the file of the watched function.
      number: from 1.
    """

    file: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.file or 'line'}:{self.number}"

    def is_at(self, location: Location, own_file: str) -> bool:
        if location.line != self.number:
            return False
        file = self.file or own_file
        return location.file == file or location.file.endswith(os.sep + file)


def parse_line(line: Any) -> WatchedLine:
    """`'model.py:41'`, or a number for a line of the function's own file.

    Raises:
      ValueError: it is neither.
    """
    if isinstance(line, int) and not isinstance(line, bool):
        return WatchedLine("", line)
    file, _, number = str(line).rpartition(":")
    if not file or not number.isdigit():
        raise ValueError(
            f"{line!r} is not a line of source. Write it as 'model.py:41', or as 41 for the file of the function."
        )
    return WatchedLine(file, int(number))


def with_probes(program: Program, lines: Sequence[WatchedLine], spec: Spec) -> Program:
    """The program with the values of these lines reported, each with its position in loops; see `observed_program`.

    Raises:
      ValueError: a line computes no value that can be reported; the message lists lines that do.
    """
    chosen = chosen_values(program, lines)
    places = {v: next_place() for v in chosen}

    def observe(builder: Builder, place: Place, e: Equation, passed: PassedIn) -> tuple[Atom, None]:
        v, loop = place[1], passed.iterations
        site = ProbeSite(chosen[v], "value", spec, places[v])
        params = {"site": site, "axes": 0, "has_step": True}
        avals, context = (v.aval, loop.aval), e.operation.context
        report = make_operation(report_p, params, avals, (), frozenset([compat.report_effect]), context)
        builder.equations.append(Equation(report, (v, loop), (), e.source))
        if not spec.cotangents or not jnp.issubdtype(v.aval.dtype, jnp.inexact):
            return v, None
        params = {**params, "site": replace(site, kind="cotangent")}
        linked = Var(v.aval)
        link = make_operation(link_p, params, avals, (v.aval,), frozenset(), context)
        builder.equations.append(Equation(link, (v, loop), (linked,), e.source))
        return linked, None

    def has_use(e: Equation) -> bool:
        return e.primitive in (report_p, link_p) and e.params["site"].spec == spec and not e.params["has_step"]

    def extend(builder: Builder, e: Equation, loop: Atom) -> None:
        x, *index = e.invars
        if index and len(index[0].aval.shape) > 1:  # one per example
            builder.equations.append(e)
            return
        where = joined(builder, loop, index[0]) if index else loop
        op = e.operation
        extended = make_operation(
            op.primitive, {**op.params, "has_step": True}, (x.aval, where.aval), op.out_avals, op.effects, op.context
        )
        builder.equations.append(Equation(extended, (x, where), e.outvars, e.source, e.origin))

    is_chosen = lambda place: place[1] in chosen
    return observed_program(program, Observer(is_chosen, observe, has_use, extend))[0]


def chosen_values(program: Program, lines: Sequence[WatchedLine]) -> dict[Var, str]:
    """The values of each line that another line reads or that are results, with their names in the report."""
    own = definition(program.debug_info)
    own_file = own.file if own is not None else ""
    by_line: dict[WatchedLine, list[tuple[Var, str]]] = {line: [] for line in lines}
    there: set[str] = set()
    for nested in dict.fromkeys(nested for _, nested in walk_observed(program)):
        at = {e: _line_of(e) for e in nested.equations}
        there |= {str(place) for place in at.values() if place is not None}
        for line in lines:
            of_line = [e for e, place in at.items() if place is not None and line.is_at(place, own_file)]
            for e, v in _leaving(nested, of_line):
                by_line[line].append((v, str(e.params.get("name") or e.primitive.name)))
    for line, values in by_line.items():
        if not values:
            raise ValueError(_nothing_at(line, program, there))
    chosen: dict[Var, str] = {}
    for line, values in by_line.items():
        many = len({kind for _, kind in values}) > 1
        chosen.update((v, f"{line.name} {kind}" if many else line.name) for v, kind in values)
    return chosen


def _line_of(e: Equation) -> Location | None:
    """The user's line; None for equations created by differentiation inside the program."""
    return None if compat.is_differentiated(e.source) else locate(e.source)


def _leaving(program: Program, equations: Sequence[Equation]) -> list[tuple[Equation, Var]]:
    """The values that are used outside of a line, for each time that it runs."""
    if not equations:
        return []
    readers: dict[Atom, list[Equation | None]] = {a: [None] for a in program.outvars}
    for e in program.equations:
        for a in e.invars:
            readers.setdefault(a, []).append(e)
    leaving = []
    for run in _runs(equations):
        inside = set(run)
        leaving += [
            (e, v)
            for e in run
            for v in e.outvars
            if _is_reportable(v) and any(r not in inside for r in readers.get(v, ()))
        ]
    return leaving


def _runs(equations: Sequence[Equation]) -> list[list[Equation]]:
    """The equations of a line, for each time that Python ran it: it was called from somewhere else, or ran again."""
    runs: list[list[Equation]] = []
    caller: Any = None
    been: set[Any] = set()
    for e in equations:
        frames = compat.frames_of(e.source)
        user = next((i for i, (code, _) in enumerate(frames) if is_of_program(code.co_filename)), 0)
        outer, stack = tuple(frames[user + 1 :]), tuple(frames)
        if not runs or outer != caller or stack in been:
            runs.append([])
            been = set()
        caller = outer
        been.add(stack)
        runs[-1].append(e)
    return runs


def _is_reportable(v: Var) -> bool:
    dtype = getattr(v.aval, "dtype", None)
    return not isinstance(v, DropVar) and isinstance(dtype, np.dtype) and not compat.is_float0(v.aval)


def _nothing_at(line: WatchedLine, program: Program, there: set[str]) -> str:
    of_file = sorted((int(place.rpartition(":")[2]), place) for place in there if not line.file or line.file in place)
    near = [place for _, place in sorted(of_file, key=lambda p: abs(p[0] - line.number))[:MOST_NAMED]]
    hint = f"Lines that do, near it: {', '.join(near)}." if near else "No line of that file does."
    return (
        f"{line.name} makes no value of {program.name} that can be watched. {hint} Inside a function with a custom "
        "rule, or where the function differentiates, watch the function that is called there."
    )
