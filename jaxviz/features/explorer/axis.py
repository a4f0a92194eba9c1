"""The time axis of a view, for drawings: the position of each step, the memory at each step, and the boxes of the
scopes.

`widgets/src/model/overview.ts` and `timeline.ts` compute the same for the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jaxviz.page.schema import MEMORY_KINDS, SCOPES, View
from jaxviz.report.kinds import STACKED

Measure = Literal["flops", "equations"]


@dataclass(frozen=True)
class Box:
    """A scope on the time axis.

    Args:
      scope: its row.
      start, end: its ends, as fractions of the axis.
      depth: the number of enclosing scopes.
    """

    scope: int
    start: float
    end: float
    depth: int


def measure_of(view: View) -> Measure:
    """What widths represent: FLOPs, or equations if there are no FLOPs."""
    return "flops" if (view.columns["scope_flops"] > 0).any() else "equations"


def boxes(view: View, measure: Measure) -> Iterator[Box]:
    """The scopes with widths proportional to their amounts; a repeated one shows one repetition, stretched."""
    columns = view.columns
    sizes = columns[f"scope_{measure}"].tolist()
    rest = (columns["scope_kind"] == SCOPES.index("rest")).tolist()
    children: dict[int, list[int]] = {}
    for scope, parent in enumerate(columns["scope_parent"].tolist()):
        children.setdefault(parent, []).append(scope)

    def lay(scopes: Sequence[int], start: float, end: float, depth: int, whole: float) -> Iterator[Box]:
        width = end - start
        for scope in scopes:
            after = start + width * sizes[scope] / whole if whole else start
            if not rest[scope]:
                yield Box(scope, start, after, depth)
            yield from lay(children.get(scope, ()), start, after, depth + 1, sizes[scope])
            start = after

    top = children.get(-1, [])
    return lay(top, 0.0, 1.0, 0, sum(sizes[scope] for scope in top))


def edges(view: View, measure: Measure) -> np.ndarray:
    """Where each step starts, and the end of the last one, as fractions of the axis."""
    rows = view.columns["step_row"]
    if measure == "flops":
        sizes = np.where(rows >= 0, view.columns["equation_flops"][rows], 0.0)
    else:
        sizes = view.columns["step_equations"].astype(float)
    sums = np.concatenate([[0.0], np.cumsum(sizes)])
    return sums / sums[-1] if sums[-1] > 0 else np.arange(len(sums)) / max(1, len(rows))


def n_forward(view: View) -> int:
    """The number of steps in the forward pass."""
    first, end = view.stage("backward").equations
    rows = view.columns["step_row"]
    backward = (first <= rows) & (rows < end)
    return int(backward.argmax()) if backward.any() else len(rows)


def memory_by_kind(view: View) -> np.ndarray:
    """For each kind in `STACKED`, the bytes at each step."""
    kind = view.columns["buffer_kind"]
    return np.stack([alive(view, kind == MEMORY_KINDS.index(name)) for name in STACKED])


def kept_alive(view: View, which: Any) -> np.ndarray:
    """The bytes at each step of the saved expressions with these numbers."""
    columns = view.columns
    holds = np.zeros(len(columns["buffer_nbytes"]), bool)
    buffers = columns["residual_buffer"][np.isin(columns["residual_kept"], which)]
    holds[buffers[buffers >= 0]] = True
    return alive(view, holds)


def alive(view: View, which: np.ndarray) -> np.ndarray:
    """The bytes at each step of the given buffers."""
    columns = view.columns
    n = len(columns["step_row"])
    nbytes, born, last = (columns[f"buffer_{name}"][which] for name in ("nbytes", "born", "last"))
    change = np.zeros(n + 2)
    np.add.at(change, np.minimum(born, n), nbytes)
    np.add.at(change, np.minimum(last + 1, n), -nbytes)
    sums: np.ndarray = np.cumsum(change)[:n]
    return sums
