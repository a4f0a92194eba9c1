"""Repeated layers: runs of equations from the same expressions, repeated several times, which do the same and are wired
alike."""

from __future__ import annotations

from collections.abc import Sequence

from jaxviz.analysis.grouping import repetitions
from jaxviz.analysis.kinds import Kinds
from jaxviz.analysis.repeats import Alike, Run, find_runs
from jaxviz.ir.syntax import Equation

_LEFT_OUT = 12
"""A run is folded if that hides at least this many equations, including nested ones."""


def find_folds(equations: Sequence[Equation], same: Alike, within: Sequence[Equation] = ()) -> list[Run]:
    """The runs of repetitions among consecutive equations, without overlaps and in order.

    Args:
      equations: equations of one program.
      same: numbers those that do the same.
      within: the equations that contain the program, outermost first.
    """
    depth = len(within)
    holders = [*range(-1, depth - 1), *[depth - 1] * len(equations)]
    groups = repetitions([*within, *equations], holders, Kinds())[depth:]
    numbered: dict[tuple[int, int], int] = {}
    pairs = zip((same.number(e.operation) for e in equations), groups, strict=True)
    numbers = [numbered.setdefault(pair, len(numbered)) for pair in pairs]
    sizes = [same.size(e.operation) for e in equations]
    # The numbers that a loop uses, such as its index, may differ.
    return find_runs(equations, numbers, sizes, _LEFT_OUT, literal=lambda _: None)
