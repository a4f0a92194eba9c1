"""What a page needs to zoom a drawing along its horizontal axis: data in an attribute of the drawing, which is a still
picture where there are no scripts. `python tests/page/wire_types.py` generates their TypeScript types."""

from __future__ import annotations

import base64
import gzip
import json
from typing import TypedDict

import numpy as np

from jaxviz.report.charts import Axis, Curves, OverTime
from jaxviz.report.kinds import COLOURS

MOST_POINTS = 400
"""A curve with more points is read at every second one, or every third, and so on."""
MOST_BYTES = 150_000
"""A drawing with more data stays still, so that no report is too large for a notebook."""


class Areas(TypedDict):
    """Stacked amounts at each step.

    Args:
      step: what a step is.
      kinds: the name and the colour of each kind, from below.
      passes: the name of each part of the program, and its first step.
      changes: for each kind, by how much each step differs from the one before.
      top, base, scale: the highest amount, where 0 is, and the height of the highest in units of the drawing.
    """

    step: str
    kinds: list[tuple[str, str]]
    passes: list[tuple[str, int]]
    changes: list[list[float]]
    top: float
    base: float
    scale: float


class Read(TypedDict):
    """A curve, to be read at the pointer."""

    name: str
    x: list[float]
    y: list[float]


class Along(TypedDict):
    """The horizontal axis of a drawing.

    Args:
      left, right: where it begins and ends, in units of the drawing.
      last: what is at its end; 0 is at its beginning.
      units: the units of its numbers, the largest first, with their sizes.
      label: what it shows.
      whole: whether there is nothing between its ticks 0 and 1.
      ticks: where its ticks begin, from the top; -1 if it has none.
    """

    left: float
    right: float
    last: float
    units: list[tuple[str, float]]
    label: str
    whole: bool
    ticks: float


class Zoomable(TypedDict):
    """What a page draws of a part of the axis, and says at the pointer."""

    along: Along
    areas: Areas | None
    curves: list[Read]


def along(axis: Axis, left: float, right: float, last: float, ticks: float = -1.0) -> Along:
    """An axis from 0 to `last` between two places of a drawing."""
    return {
        "left": left, "right": right, "last": last, "units": list(axis.units), "label": axis.label,
        "whole": axis.whole, "ticks": ticks,
    }  # fmt: skip


def areas_of(chart: OverTime, base: float, scale: float) -> Areas:
    """The steps of a chart."""
    amounts = np.asarray(chart.steps, float).T
    changes = np.diff(amounts, axis=1, prepend=0.0)
    kinds = [(kind, COLOURS[kind]) for kind in chart.kinds]
    rows = [[_short(n) for n in row.tolist()] for row in changes]
    return {
        "step": chart.step, "kinds": kinds, "passes": [(name, first) for name, first, _ in chart.spans()],
        "changes": rows, "top": chart.top, "base": base, "scale": scale,
    }  # fmt: skip


def curves_of(chart: Curves) -> list[Read]:
    """The curves that have a name."""
    found: list[Read] = []
    for c in chart.named:
        points = sorted(c.finite)[:: -(-len(c.finite) // MOST_POINTS) or 1]
        found.append({"name": c.name, "x": [_short(x) for x, _ in points], "y": [float(f"{y:.3g}") for _, y in points]})
    return found


def attribute(axis: Along, areas: Areas | None = None, curves: list[Read] | None = None) -> str:
    """The attribute of a drawing that has them: JSON, gzipped, in base64; '' if that is too much."""
    data: Zoomable = {"along": axis, "areas": areas, "curves": curves or []}
    packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), 9, mtime=0)
    return f' data-zoom="{base64.b64encode(packed).decode()}"' if len(packed) <= MOST_BYTES else ""


def moving(drawn: list[str], what: str = "") -> str:
    """Elements that move with the axis: its `ticks`, `bars` with their names, or others."""
    return f'<g data-moves="{what}">{"".join(drawn)}</g>' if drawn else ""


def _short(n: float) -> float:
    n = float(n)
    return int(n) if n.is_integer() else n
