"""Values as results of calls: `h` and `own(x, w)` mean what `own` returns in `h = own(x, w)`.

JAX records a call only as a frame of what was computed in it. So a value is what the call returned if, of all that was
computed in it, this one alone is read after it, and the function returns what has its name; or if that is one part of
the tuple, list, dictionary or object that is returned.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import takewhile
from typing import Any

from jaxviz.analysis.calls import Frame, FunctionCall, begin, calls_of, calls_once, frames_inside
from jaxviz.analysis.naming import Naming
from jaxviz.analysis.walk import own_location_of
from jaxviz.ir import compat
from jaxviz.ir.expressions import assigned_at, assigned_whole, expression_at, returned_by
from jaxviz.ir.origin import Location, location_at, owners
from jaxviz.ir.syntax import Equation, Literal, Program, Var
from jaxviz.report.tables import short_location


@dataclass(frozen=True, eq=False, kw_only=True)
class WrittenValue:
    """Where the source has an expression of a value.

    Args:
      text: the expression; '' if there is none.
      assigned: the variable that it is assigned to; '' if it is part of an expression.
      function: the qualified name of the function that it is in.
      module: the path of the module that it is in; '' if it is in none.
      location: its line.
    """

    text: str
    assigned: str
    function: str
    module: str
    location: Location | None

    @property
    def name(self) -> str:
        """What it is called in a sentence."""
        return self.text

    @property
    def line(self) -> str:
        return short_location(self.location) if self.location is not None else ""

    @property
    def container(self) -> str:
        """The function, as an address names it: `__call__` of `make.<locals>.Block.__call__.<locals>.<lambda>`."""
        own = [part for part in re.split(r"\.<locals>\.|\.", self.function) if part and "<" not in part]
        return ".".join(own[-1:])


def returned_values(
    program: Program, path: Sequence[Equation], modules: Sequence[str], naming: Naming
) -> dict[Var, tuple[WrittenValue, ...]]:
    """The values of a program that calls of the user's own functions return, with these calls, innermost first.

    Args:
      program: the program.
      path: the equations around it, outermost first.
      modules: the module of each of its equations.
      naming: the names of its values.
    """
    returned = _Returned(program, path, modules, naming)
    found = {v: tuple(filter(None, map(partial(returned.by, v), returned.levels(v)))) for v in returned.made}
    return {v: by for v, by in found.items() if by}


class _Returned:
    """Finds what the calls in a program return; the arguments are those of `returned_values`."""

    def __init__(self, program: Program, path: Sequence[Equation], modules: Sequence[str], naming: Naming):
        self._path, self._naming = path, naming
        stacks = _stacks(program, len(frames_inside(compat.frames_of(path[-1].source))) if path else 0)
        self._calls = calls_of(program.equations, stacks)
        self._stacks = stacks
        self.made = {v: (i, place) for i, e in enumerate(program.equations) for place, v in enumerate(e.outvars)}
        """The number of the equation that computes a value, and which of its results it is."""
        self._equations = program.equations
        self._modules = _modules(self._calls, modules)
        self._results = self._read_outside(program)
        self._levels: dict[int, list[int]] = {}
        self._ways = cache(returned_by)
        # A call that returns many values asks for the name of each of them, for each of them.
        self.by, self._names = cache(self._by), cache(self._names_of)

    def levels(self, v: Var) -> list[int]:
        """The frames of a value in which the user's own code calls something that is also the user's, innermost
        first."""
        return self._own(v)[1:]

    def _own(self, v: Var) -> list[int]:
        """The frames of a value that are of the user's own code, innermost first."""
        stack = self._stacks[self.made[v][0]]
        if id(stack) not in self._levels:
            whose = owners([code for code, _ in reversed(stack)])[::-1]
            self._levels[id(stack)] = [i for i, o in enumerate(whose) if o == "user"][::-1]
        return self._levels[id(stack)]

    def _by(self, v: Var, level: int) -> WrittenValue | None:
        """A value as the result of the call by this frame; None if it is not known to be that."""
        equation, _ = self.made[v]
        stack, calls = self._stacks[equation], self._calls[equation]
        if level + 1 >= len(calls):  # in a gradient that the function takes
            return None
        call, results = calls[level + 1], self._results.get(calls[level + 1], ())
        if v not in results or not call.is_certain:
            return None
        if not calls_once(stack[level], stack[level + 1]):
            return None
        at = location_at(*stack[level])
        text, assigned = expression_at(at), assigned_at(at)
        inside = self._own(v)[self._own(v).index(level) - 1]  # perhaps through a library, as by `jax.vmap`
        ways = self._ways(stack[inside][0])
        alike = {(part, w) for way in ways for part, e in way.items() for w in results if e in self._names(w, inside)}
        own = [part for part, w in alike if w is v]
        if len(own) != 1 or sum(part == own[0] for part, _ in alike) != 1 or not all(ways):
            return None
        if own[0] and inside == level + 1:
            parts = next(way for way in ways if own[0] in way)
            place, whole = [*parts].index(own[0]), text and text + own[0]
            together = target_of(assigned, place, len(parts))
            alone = assigned + own[0] if assigned else assigned_whole(at, whole)
            text, assigned = whole, alone if together == assigned else together
        elif own[0] or len(results) != 1:
            return None
        if not text or "," in assigned:
            return None
        # The module of the call around it is what the modules of all that is computed in that call have in common.
        module = "/".join(_common(*(m.split("/") for m in self._modules[calls[level]])))
        return WrittenValue(text=text, assigned=assigned, function=at.function, module=module, location=at)

    def _names_of(self, v: Var, level: int) -> tuple[str, ...]:
        """What a value is called by the function of this frame."""
        equation, place = self.made[v]
        if level == self._own(v)[0]:
            e = self._equations[equation]
            names = variable_of(self._naming, e, self._path, place), expression_at(own_location_of(e, self._path))
        else:
            by = self.by(v, level) if level in self._own(v) else None
            names = (by.assigned, by.text) if by is not None else ("", "")
        return tuple(filter(None, names))

    def _read_outside(self, program: Program) -> dict[FunctionCall, set[Var]]:
        """For each call the values computed in it that something after it reads."""
        # How many of the calls around it all its readers are in, too.
        depth = {a: 0 for a in program.outvars if not isinstance(a, Literal) and a in self.made}
        for i, e in enumerate(program.equations):
            for a in e.invars:
                if not isinstance(a, Literal) and a in self.made:
                    shared = len(_common(self._calls[self.made[a][0]], self._calls[i]))
                    depth[a] = min(shared, depth.get(a, shared))
        results: dict[FunctionCall, set[Var]] = {}
        for v, n in depth.items():
            for call in self._calls[self.made[v][0]][n:]:
                results.setdefault(call, set()).add(v)
        return results


def variable_of(naming: Naming, e: Equation, path: Sequence[Equation], index: int) -> str:
    """The variable that a value is assigned to; of `q, k, v = …` the one in its place."""
    return target_of(naming.assigned(e, path, index), index, len(e.outvars))


def target_of(assigned: str, index: int, n: int) -> str:
    """What the value in a place is assigned to, of `n` that are assigned together; all of them if that is not known."""
    several = [t.strip(" ()[]") for t in assigned.split(",")]
    named = [t for t in several if t != "_"] if len(several) != n else several
    return named[index] if len(several) > 1 and len(named) == n else assigned


def _stacks(program: Program, outer: int) -> list[Sequence[Frame]]:
    """The frames of each equation inside of its program, outermost first; equal ones are one object."""
    known: dict[Any, Sequence[Frame]] = {}
    stacks = []
    for e in program.equations:
        frames = compat.frames_of(e.source)
        key = tuple([(id(code), at) for code, at in frames])
        if key not in known:
            inside = frames_inside(frames)
            known[key] = inside[begin(inside, program, outer) :]
        stacks.append(known[key])
    return stacks


def _modules(calls: Sequence[Sequence[FunctionCall]], modules: Sequence[str]) -> dict[FunctionCall, set[str]]:
    """The modules of all that is computed in each call."""
    found: dict[FunctionCall, set[str]] = {}
    for own, module in zip(calls, modules, strict=True):
        for call in own:
            found.setdefault(call, set()).add(module)
    return found


def _common(*sequences: Sequence[Any]) -> list[Any]:
    """What all sequences begin with."""
    return [same[0] for same in takewhile(lambda same: len(set(same)) == 1, zip(*sequences, strict=False))]
