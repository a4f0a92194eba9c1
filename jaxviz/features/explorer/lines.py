"""The figures of each of the user's lines: bytes that the gradient saves, and FLOPs and moved bytes of both passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxviz.analysis.walk import defined_at
from jaxviz.derivation import Derivation
from jaxviz.features.cost.counts import Cost
from jaxviz.features.cost.parts import counted, repeats
from jaxviz.features.explorer.numbers import Numbers
from jaxviz.features.explorer.rows import Rows
from jaxviz.features.residuals.residual import Residual
from jaxviz.page.schema import ROLES, Stage

_RECOMPUTED = ROLES.index("recomputation")


def add_lines(
    columns: dict[str, Any],
    numbers: Numbers,
    rows: Rows,
    stages: Sequence[Stage],
    derivation: Derivation,
    residuals: Sequence[Residual],
) -> None:
    """Adds how often each row runs, and the totals by line: the same sums as in `CostReport` and `ResidualSet`, to the
    last FLOP and byte."""
    location, role = (np.asarray(columns[f"equation_{name}"], np.int64) for name in ("location", "role"))
    runs = _runs(rows)
    work, moved = (columns[f"equation_{name}"] * runs for name in ("flops", "moved"))
    rows_of = {stage.key: slice(*stage.equations) for stage in stages}
    passes = [rows_of[key] for key in ("forward", "backward")]
    # What comes from none of the user's lines counts for the line that defines the function.
    nowhere = -1
    if any((moved[here][location[here] < 0] > 0).any() for here in passes):
        nowhere = numbers.location(defined_at(derivation.primal))

    def summed(figure: np.ndarray, here: slice, only: np.ndarray | None = None) -> np.ndarray:
        """A figure of some rows by location."""
        at = np.where(location[here] < 0, nowhere, location[here])
        which = (at >= 0) if only is None else (at >= 0) & only[here]
        return np.bincount(at[which], figure[here][which], len(columns["location_file"]))

    kept = _saved(columns, numbers, residuals)
    columns["equation_runs"] = runs
    _add_by_line(
        columns,
        kept=kept,
        forward=summed(work, passes[0]),
        backward=summed(work, passes[1]),
        recomputed=summed(work, rows_of["backward"], role == _RECOMPUTED),
        moved=summed(moved, passes[0]) + summed(moved, passes[1]),
    )


def add_saved_lines(columns: dict[str, Any], numbers: Numbers, residuals: Sequence[Residual]) -> None:
    """Adds the bytes that the gradient saves by line, where no program is known, and no work."""
    kept = _saved(columns, numbers, residuals)
    none = np.zeros_like(kept)
    _add_by_line(columns, kept=kept, forward=none, backward=none, recomputed=none, moved=none)


def _saved(columns: dict[str, Any], numbers: Numbers, residuals: Sequence[Residual]) -> np.ndarray:
    """The bytes that the gradient saves by location, on one device."""
    saved = [r for r in residuals if r.is_saved]
    at = np.array([numbers.location(r.location) for r in saved], np.int64)
    return np.bincount(at, [r.nbytes_on_one for r in saved], len(columns["location_file"]))


def _add_by_line(columns: dict[str, Any], **by_location: np.ndarray) -> None:
    places = list(zip(columns["location_file"], columns["location_line"], strict=True))
    number = {place: i for i, place in enumerate(dict.fromkeys(places))}
    line_of = np.array([number[place] for place in places], np.int64)
    columns["line_file"], columns["line_number"] = ([place[k] for place in number] for k in range(2))
    for name, sums in by_location.items():
        columns[f"line_{name}"] = np.bincount(line_of, sums, len(number))


def _runs(rows: Rows) -> np.ndarray:
    """How often each row runs; 0 if its nested programs are counted, and in branches other than the most expensive
    one."""
    costs: dict[int, Cost] = {}
    nested: dict[int, list[int]] = {}
    for program, owner in enumerate(rows.owners):
        nested.setdefault(owner, []).append(program)
    times = [int(owner < 0) for owner in rows.owners]
    counts_inside = []
    # The nested programs of a row follow it.
    for row in sorted(nested.keys() - {-1}):
        equation = rows.equations[row]
        inside = [p for p in nested[row] if any(rows.programs[p] is run for run in counted(equation, costs))]
        for program in inside:
            times[program] = times[rows.program_of[row]] * repeats(equation)[0]
        if inside:
            counts_inside.append(row)
    runs: np.ndarray = np.array(times, np.float64)[rows.program_of]
    runs[counts_inside] = 0
    return runs
