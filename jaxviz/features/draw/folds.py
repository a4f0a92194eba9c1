"""Repeated layers: runs of equations from the same expressions, repeated several times, which do the same and are wired alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxviz.analysis.grouping import repetitions
from jaxviz.analysis.repeats import Alike, candidates
from jaxviz.ir.syntax import Equation, Literal, Var

_SPARED = 12
"""A run is folded if that hides at least this many equations, including nested ones."""

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


def find_folds(equations: Sequence[Equation], same: Alike, within: Sequence[Equation] = ()) -> list[Fold]:
    """The runs of repetitions among consecutive equations, without overlaps and in order.

    Args:
      equations: equations of one program.
      same: numbers those that do the same.
      within: the equations that contain the program, outermost first.
    """
    depth = len(within)
    groups = repetitions([*within, *equations], [*range(-1, depth - 1), *[depth - 1] * len(equations)])[depth:]
    numbered: dict[tuple[int, int], int] = {}
    pairs = zip((same.number(e.operation) for e in equations), groups, strict=True)
    numbers = np.asarray([numbered.setdefault(pair, len(numbered)) for pair in pairs], np.int64)
    sizes = np.asarray([0, *(same.size(e.operation) for e in equations)]).cumsum()
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
    spared = lambda fold: sizes[fold.stop] - sizes[fold.start + fold.length]
    runs = [
        (Fold(first + start, length, (stop - start) // length), first + stop)
        for start, stop, length in candidates(numbers[first:last])
    ]
    worthwhile = [run for run in runs if spared(run[0]) >= _SPARED]
    for run, stop in sorted(worthwhile, key=lambda run: (-spared(run[0]), run[0].length, run[0].start))[:_TRIED]:
        for fold in _phases(equations, makers, run, stop):
            checked = _wired_alike(equations, makers, fold)
            if checked is not None and spared(checked) >= _SPARED:
                return checked
    return None


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
