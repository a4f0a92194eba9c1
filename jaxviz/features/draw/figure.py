"""A picture as a matplotlib figure, from what `dot` says that it draws.

Source: the operations `_draw_`, `_ldraw_` and the others of Graphviz's output format `json`,
https://graphviz.org/docs/outputs/xdot/.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.textpath import text_to_path

from jaxviz.report.figures import CellFigure

_PARTS = ("_draw_", "_hdraw_", "_tdraw_", "_ldraw_")
_MIDDLE = {"l": 0.5, "c": 0.0, "r": -0.5}
"""Where the middle of a text is, from where it is placed, in widths."""
_MARGIN = 4.0
_BOLD = 1
"""The bit of a text's characteristics that says that it is bold."""


def draw_figure(drawn: Mapping[str, Any], width: float | None) -> CellFigure:
    """A figure of a picture.

    Args:
      drawn: the picture in Graphviz's format `json`.
      width: in inches; by default such that the text has seven points.
    """
    _, _, right, top = map(float, drawn["bb"].split(","))
    wide, tall = right + 2 * _MARGIN, top + 2 * _MARGIN
    scale = width * 72 / wide if width else min(0.7, 600 * 72 / max(wide, tall))
    figure = CellFigure(figsize=(wide * scale / 72, tall * scale / 72), facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(-_MARGIN, right + _MARGIN)
    axes.set_ylim(-_MARGIN, top + _MARGIN)
    axes.axis("off")
    for part in (drawn, *drawn.get("objects", ()), *drawn.get("edges", ())):
        for name in _PARTS:
            _draw(axes, part.get(name, ()), float(part.get("penwidth", 1)), scale)
    return figure


def _draw(axes: Axes, operations: Sequence[Mapping[str, Any]], thick: float, scale: float) -> None:
    """Draws one part: a frame, a box, a line or its arrow, or their label."""
    ink, fill, dashes, size, bold = "black", "none", "solid", 10.0, False
    for operation in operations:
        match operation["op"]:
            case "c":
                ink = operation["color"]
            case "C":
                fill = operation["color"]
            case "S" if operation["style"] in ("solid", "dashed"):
                dashes = operation["style"]
            case "F":
                size = operation["size"]
            case "t":
                bold = bool(operation["fontchar"] & _BOLD)
            case "p" | "P" | "L" | "b" | "B" as shape:
                # Versions of Graphviz disagree on which letter is a filled curve; a line is never closed.
                points, is_curve = np.asarray(operation["points"], float), shape in "bB"
                is_filled = (points[0] == points[-1]).all() if is_curve else shape == "P"
                codes = [Path.MOVETO, *[Path.CURVE4 if is_curve else Path.LINETO] * (len(points) - 1)]
                if shape in "pP":
                    points, codes = np.vstack([points, points[:1]]), [*codes, Path.CLOSEPOLY]
                patch = PathPatch(
                    Path(points, codes), facecolor=fill if is_filled else "none", edgecolor=ink,
                    linewidth=thick * scale, linestyle=dashes, zorder=1,  # in the order in which `dot` draws
                )  # fmt: skip
                axes.add_patch(patch)
            case "T":
                # Centred in the room that `dot` has for it, and smaller where matplotlib's font is wider.
                weight, room = "bold" if bold else "normal", operation["width"]
                text, (x, y) = operation["text"], operation["pt"]
                fits = min(1.0, room / max(_width(text, size, weight), 1e-9))
                axes.text(
                    x + _MIDDLE[operation["align"]] * room, y, text, fontsize=fits * size * scale, color=ink, zorder=1,
                    ha="center", va="baseline", fontweight=weight, parse_math=False, clip_on=True,
                )  # fmt: skip


def _width(text: str, size: float, weight: str) -> float:
    """The width of a text in matplotlib's font, which is wider than most of those that `dot` takes."""
    properties = FontProperties(size=size, weight=weight)
    return float(text_to_path.get_text_width_height_descent(text, properties, ismath=False)[0])
