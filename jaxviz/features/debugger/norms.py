"""The norms of the values that source lines computed in a run, and the lines on which a NaN first occurred."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.analysis.walk import location_of
from jaxviz.features.debugger.history import ProgramRun
from jaxviz.features.debugger.stepper import Stepper
from jaxviz.features.debugger.summaries import FEW, fingerprint
from jaxviz.ir import compat
from jaxviz.ir.origin import Location
from jaxviz.ir.syntax import Atom, Equation, Literal, Program, Var

T = TypeVar("T")


class PerArray(Generic[T]):
    """A function of values that is called once per array, and whose result is kept as long as the array exists."""

    def __init__(self, function: Callable[[Any], T]):
        self._function = function
        self._by_id: dict[int, tuple[weakref.ref[Any], T]] = {}

    def __call__(self, value: Any) -> T:
        if not isinstance(value, jax.Array):
            return self._function(value)
        key = id(value)
        known = self._by_id.get(key)
        if known is not None and known[0]() is value:
            return known[1]
        computed = self._function(value)
        self._by_id[key] = weakref.ref(value, lambda _: self._by_id.pop(key, None)), computed
        return computed


class Norm(NamedTuple):
    """The norm of an array.

    Args:
      norm: the square root of the sum of the squares of the finite elements.
      worst: 'NaN', 'Inf', or '' if everything is finite; for a value that is no longer kept, 'not finite'.
    """

    norm: float
    worst: str


@dataclass
class OfLine:
    """The figures of a line: its latest value, and the cotangent of the last of its values that has one; and the names
    of both."""

    value: Norm | None = None
    name: str = ""
    cotangent: Norm | None = None
    of: str = ""
    born: str = ""
    """'value', 'cotangent' or 'both', if an equation of this line computed a NaN from operands without any, forward or
    backward."""


class Norms:
    """The norms in a run. Only values that are kept are used, each once: nothing is run for this."""

    def __init__(self, stepper: Stepper):
        self.stepper = stepper
        self.of = PerArray(_measure)
        """The norm of an array; None if it has none."""
        self._lines: dict[tuple[Program, tuple[Equation, ...]], list[Location | None]] = {}

    def by_line(self) -> dict[Location, OfLine]:
        """The norms by line, for lines that have run: in the current program, in enclosing ones, and in the stages
        before."""
        lines: defaultdict[Location, OfLine] = defaultdict(OfLine)
        latest: dict[Location, int] = {}
        for stage, frame, limit, holders in self._frames():
            what = "cotangent" if stage == "backward" else "value"
            names = self.stepper._texts[stage].names
            for e, at in zip(frame.program.equations[:limit], self._located(frame.program, holders), strict=False):
                norms = [(v, norm) for v in e.outvars if (norm := self._in(frame, v)) is not None]
                if not norms or at is None:
                    continue
                if any(norm.worst == "NaN" for _, norm in norms) and not self._reads_nan(frame, e):
                    lines[at].born = what if lines[at].born in ("", what) else "both"
                own = [(v, norm) for v, norm in norms if what == "value" and v in _own(e)]
                if own:
                    v, norm = own[-1]
                    lines[at].value, lines[at].name = norm, names.get(v, "")
                for v, norm in norms if what == "cotangent" else ():
                    for number, place, name in self._cotangents.get(v, ()):
                        if latest.get(place, -1) <= number:
                            latest[place] = number
                            lines[place].cotangent, lines[place].of = norm, name
        return lines

    def _located(self, program: Program, holders: Sequence[Equation]) -> list[Location | None]:
        """The line of each equation of a program."""
        key = (program, tuple(holders))
        if key not in self._lines:
            self._lines[key] = [location_of(e, holders) for e in program.equations]
        return self._lines[key]

    def _frames(self) -> Iterator[tuple[str, ProgramRun, int, Sequence[Equation]]]:
        """The values kept from earlier stages and from enclosing programs, with the number of equations that count in
        each, and its enclosing equations."""
        machine = self.stepper.machine
        p, frames = machine.position, machine.history.frames
        for stage in machine.order[: machine.order.index(p.stage)]:
            frame = frames.get((stage, ()))
            if frame is not None:
                yield stage, frame, frame.reached, ()
        holders = machine.holders(p)
        for depth in range(len(p.path) + 1):
            frame = frames.get((p.stage, p.path[:depth]))
            if frame is not None:
                limit = p.path[depth].index if depth < len(p.path) else p.index
                yield p.stage, frame, limit, holders[:depth]

    def _in(self, frame: ProgramRun, v: Var) -> Norm | None:
        """The norm of a value of a program, or of its summary."""
        if v in frame.env:
            return self.of(frame.env[v])
        known = frame.prints.get(v)
        if known is None or not _has_norm(v.aval):
            return None
        return Norm(float(known[1]), _UNKNOWN if known[0] else "")

    def _reads_nan(self, frame: ProgramRun, e: Equation) -> bool:
        """Whether an operand has a NaN, or may have had one."""
        for a in e.invars:
            norm = self.of(a.val) if isinstance(a, Literal) else self._in(frame, a)
            if norm is not None and norm.worst in ("NaN", _UNKNOWN):
                return True
        return False

    @cached_property
    def _cotangents(self) -> dict[Atom, list[tuple[int, Location, str]]]:
        """For variables of the backward program, the values whose cotangents they are: the number of each, its line and
        its name."""
        cotangents: dict[Atom, list[tuple[int, Location, str]]] = {}
        text = self.stepper._texts.get("forward")
        if text is None or "backward" not in self.stepper._texts:
            return cotangents
        number = 0
        for program, path, holders in text.programs:
            for i, e in enumerate(program.equations):
                number += 1
                at = location_of(e, holders)
                for v in e.outvars if at is not None else ():
                    for site in text.sites.get(v, ()):
                        if site.path != path or site.index != i + 1:
                            continue
                        place = self.stepper._places.place(site, v)
                        if place is not None and len(place[1]) == 1 and at is not None:
                            cotangents.setdefault(place[1][0], []).append((number, at, text.names.get(v, "")))
        return cotangents


_UNKNOWN = "not finite"
"""What is wrong with a value that is no longer kept."""


def _own(e: Equation) -> Sequence[Var]:
    """The results of an equation that belong to the function, without those that only derivatives need, which come
    last."""
    if e.origin is None or e.origin.equation is None:
        return e.outvars
    return e.outvars[: len(e.origin.equation.outvars)] if e.origin.role == "primal" else ()


def _has_norm(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and not compat.is_float0(aval) and bool(jnp.issubdtype(dtype, jnp.inexact))


def _measure(value: Any) -> Norm | None:
    if not _has_norm(compat.aval_of(value)):
        return None
    if isinstance(value, jax.Array) and (value.is_deleted() or not value.is_fully_addressable):
        return None
    if value.size > FEW:
        bad, norm, _ = fingerprint(value)
        worst = "" if not bad else "NaN" if bool(jnp.isnan(value).any()) else "Inf"
        return Norm(float(norm), worst)
    x = np.abs(np.asarray(value)).astype(np.float64)
    finite = np.isfinite(x)
    worst = "" if finite.all() else "NaN" if np.isnan(x).any() else "Inf"
    return Norm(float(np.linalg.norm(x[finite])), worst)
