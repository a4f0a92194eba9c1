"""Repeated layers: runs of equations from the same expressions, repeated several times, which do the same and are wired alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxviz.analysis.grouping import repetitions
from jaxviz.ir.syntax import Equation, Literal, Operation, Program, Var
from jaxviz.report.tables import type_text

_SPARED = 12
"""A run is folded if that hides at least this many equations, including nested ones."""

_LONGEST = 2000
"""The most equations in one repetition."""

_TRIED = 6

Wire = tuple[Any, ...]
"""Where an operand comes from: `("literal",)`, for any value; `("outside",)`, or `("inside", equation, result, repetitions ago)`."""


@dataclass(frozen=True, slots=True)
class Fold:
    """A run of repeated equations in a program: `count` times the same `length` equations, starting at index `start`."""

    start: int
    length: int
    count: int

    @property
    def stop(self) -> int:
        return self.start + self.length * self.count


class Kinds:
    """Numbers for equations: equal for equations that do the same to values of the same types, whatever programs they contain."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.of_operation: dict[Operation, int] = {}

    def __call__(self, equation: Equation) -> int:
        operation = equation.operation
        found = self.of_operation.get(operation)
        if found is None:
            # Lists, because generators would recurse through C, where Python 3.12 and later allow little depth.
            params = tuple([(name, self._param(value)) for name, value in sorted(operation.params.items())])
            types = tuple(map(type_text, operation.in_avals)), tuple(map(type_text, operation.out_avals))
            found = self.of_operation[operation] = self._number((operation.primitive.name, params, types))
        return found

    def _number(self, key: Any) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def _param(self, value: Any) -> Any:
        if isinstance(value, Program):
            return self._program(value)
        if isinstance(value, tuple):
            return tuple([self._param(item) for item in value])
        if callable(value):  # a rule is a new function each time it is created
            return getattr(value, "__qualname__", type(value).__name__)
        try:
            hash(value)
        except TypeError:
            return str(value)
        return value

    def _program(self, program: Program) -> int:
        places: dict[Var, int] = {}
        for v in (*program.constvars, *program.invars, *(v for e in program.equations for v in e.outvars)):
            places.setdefault(v, len(places))

        def atom(a: Any) -> Any:
            return literal_text(a) if isinstance(a, Literal) else places.get(a, -1)

        inputs = tuple(type_text(v.aval) for v in (*program.constvars, *program.invars))
        body = tuple([(self(e), tuple(map(atom, e.invars))) for e in program.equations])
        return self._number((inputs, body, tuple(map(atom, program.outvars))))


def literal_text(literal: Literal) -> str:
    """The value of a literal, as a jaxpr shows it."""
    try:
        return str(np.asarray(literal.val, getattr(literal.aval, "dtype", None))[()])
    except (TypeError, ValueError):
        return str(literal.val)


def find_folds(equations: Sequence[Equation], kinds: Kinds, within: Sequence[Equation] = ()) -> list[Fold]:
    """The runs of repetitions among consecutive equations, without overlaps and in order.

    Args:
      equations: equations of one program.
      kinds: what has been numbered so far.
      within: the equations that contain the program, outermost first.
    """
    depth = len(within)
    groups = repetitions([*within, *equations], [*range(-1, depth - 1), *[depth - 1] * len(equations)])[depth:]
    same: dict[tuple[int, int], int] = {}
    pairs = zip(map(kinds, equations), groups, strict=True)
    numbers = np.asarray([same.setdefault(pair, len(same)) for pair in pairs], np.int64)
    sizes = np.asarray([0, *(1 + sum(1 for _, p in e.programs for _ in p.walk()) for e in equations)]).cumsum()
    makers = {v: (i, place) for i, e in enumerate(equations) for place, v in enumerate(e.outvars)}
    found: list[Fold] = []
    parts = [(0, len(equations))]
    while parts:
        first, last = parts.pop()
        fold = _largest(equations, numbers, sizes, makers, first, last)
        if fold is not None:
            found.append(fold)
            parts += [(first, fold.start), (fold.stop, last)]
    return sorted(found, key=lambda f: f.start)


def _largest(
    equations: Sequence[Equation], numbers: np.ndarray, sizes: np.ndarray, makers: dict[Var, tuple[int, int]], first: int,
    last: int,
) -> Fold | None:  # fmt: skip
    for _, length, start, stop in _runs(numbers[first:last], sizes[first : last + 1])[:_TRIED]:
        for fold in _phases(equations, makers, Fold(first + start, length, (stop - start) // length), first + stop):
            checked = _wired_alike(equations, makers, fold)
            if checked is not None and sizes[checked.stop] - sizes[checked.start + checked.length] >= _SPARED:
                return checked
    return None


def _runs(numbers: np.ndarray, sizes: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Repeating runs as `(-equations hidden, length, start, stop)`, the largest first.

    Args:
      numbers: a number for each equation, equal for equations that are alike.
      sizes: how many equations precede each, including nested ones; and the total.
    """
    found = []
    for length in range(1, min(len(numbers) // 2, _LONGEST) + 1):
        same = numbers[length:] == numbers[:-length]
        if int(same.sum()) < length:
            continue
        edges = np.flatnonzero(np.diff(np.concatenate(([0], same.view(np.int8), [0]))))
        for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            spared = (
                int(sizes[start + (stop - start) // length * length] - sizes[start]) if stop - start >= length else 0
            )
            if spared >= _SPARED:
                found.append((-spared, length, start, stop + length))
    return sorted(found)


def _phases(equations: Sequence[Equation], makers: dict[Var, tuple[int, int]], run: Fold, stop: int) -> list[Fold]:
    """The same run starting at other equations of the first repetition; first where the fewest values cross from one repetition to the
    next."""
    crossing = np.zeros(stop - run.start + 1, np.int64)
    last_read: dict[int, int] = {}
    for i in range(run.start, stop):
        for a in equations[i].invars:
            maker = makers.get(a) if isinstance(a, Var) else None
            if maker is not None and maker[0] >= run.start:
                last_read[maker[0]] = i
    for made, read in last_read.items():
        crossing[made + 1 - run.start] += 1
        crossing[read + 1 - run.start] -= 1
    crossing = crossing.cumsum()
    spare = stop - run.start - run.length * run.count
    offsets = sorted(range(spare + 1), key=lambda o: (int(crossing[o + run.length]), o))
    return [Fold(run.start + o, run.length, run.count) for o in offsets[:_TRIED]]


def _wired_alike(equations: Sequence[Equation], makers: dict[Var, tuple[int, int]], fold: Fold) -> Fold | None:
    """The longest part of a run whose repetitions read alike: each from itself, from the previous one, or from outside."""
    while True:
        wires = [_wires(equations, makers, fold, r) for r in range(fold.count)]
        starts = [r for r in range(fold.count) if r == 0 or not _follows(wires[r - 1], wires[r], r == 1)]
        if starts == [0]:
            return fold
        lengths = [(b - a, -a) for a, b in zip(starts, [*starts[1:], fold.count], strict=True)]
        count, first = max(lengths)
        fold = Fold(fold.start - first * fold.length, fold.length, count)
        if fold.count < 2:
            return None


def _wires(
    equations: Sequence[Equation], makers: dict[Var, tuple[int, int]], fold: Fold, repetition: int
) -> list[Wire]:
    begin = fold.start + repetition * fold.length
    return [_wire(a, makers, fold, begin) for e in equations[begin : begin + fold.length] for a in e.invars]


def _wire(atom: Any, makers: dict[Var, tuple[int, int]], fold: Fold, begin: int) -> Wire:
    if isinstance(atom, Literal):
        return ("literal",)
    maker = makers.get(atom)
    if maker is None or not fold.start <= maker[0] < fold.stop:
        return ("outside",)
    ago, place = divmod(maker[0] - begin, fold.length)
    return ("inside", place, maker[1], -ago)


def _follows(before: list[Wire], wires: list[Wire], is_second: bool) -> bool:
    """Whether a repetition reads like the previous one; the first one reads from outside what the others read from the previous one."""
    return all(
        w == b or (is_second and b == ("outside",) and w[0] == "inside" and w[3] == 1)
        for b, w in zip(before, wires, strict=True)
    ) and all(w[0] != "inside" or w[3] <= 1 for w in wires)
