"""A plot of the residuals: a treemap by module, and the lines that save most."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from jaxviz.analysis.grouping import grouped
from jaxviz.features.residuals.totals import merged_paths
from jaxviz.report.figures import CellFigure
from jaxviz.report.inks import INK
from jaxviz.report.kinds import COLOURS
from jaxviz.report.pictures import fitted
from jaxviz.report.tables import format_bytes

if TYPE_CHECKING:
    from jaxviz.features.residuals.residual import Residual, ResidualGroup
    from jaxviz.features.residuals.residual_set import ResidualSet

Box = tuple[float, float, float, float]
"""Left, top, width and height, downwards from the top."""

_KINDS = ("intermediate", "constant", "literal", "dummy")
_MAX_LINES = 12
_LEAST_LABEL = 4
_POINT = 1 / 72
_SMALLEST = 0.5 * _POINT  # the smallest box that is drawn separately, in inches
_FONT = 7.5
_CHARACTER = 0.63 * _POINT
"""The average width of a character at font size 1, in matplotlib's default font."""
_LINE = 1.25 * _FONT * _POINT


def plot_residuals(saved: ResidualSet, width: float) -> Figure:
    """See `ResidualSet.plot`."""
    lines = saved.by_line()
    bars = lines[:_MAX_LINES]
    map_height, bar_height = (0.5 * width, 0.24 * len(bars)) if saved.saved.nbytes else (0.0, 0.0)
    height = 0.75 + (map_height + bar_height + 0.5 if saved.saved.nbytes else 0.0)
    figure = CellFigure(figsize=(width, height))
    left = 0.02 * width

    def axes(top: float, tall: float, from_left: float = left) -> Axes:
        """Axes at a position in inches."""
        axes_: Axes = figure.add_axes(
            (from_left / width, 1 - (top + tall) / height, (width - left - from_left) / width, tall / height),
        )
        return axes_

    figure.text(
        left / width,
        1 - 0.12 / height,
        saved.summary.split(";")[0],
        fontsize=12,
        va="top",
        parse_math=False,
    )
    if not saved.saved.nbytes:
        return figure
    _draw_map(axes(0.7, map_height), saved, width - 2 * left, map_height)
    kinds = [k for k in _KINDS if any(r.kind == k for r in saved)]
    figure.legend(
        handles=[Patch(color=COLOURS[k], label=_of_kind(saved, k)) for k in kinds], loc="upper left", frameon=False,
        bbox_to_anchor=(left / width, 1 - 0.36 / height), ncols=max(1, len(kinds)), fontsize=9, borderpad=0,
        handlelength=1.0, handleheight=1.0, columnspacing=1.5, borderaxespad=0,
    )  # fmt: skip
    names = [f"{fitted(_own_name(t.location.function), 28)}  {t.name}" for t in bars]
    label_room = max(map(len, names)) * 8.5 * _CHARACTER + 0.25
    below = axes(0.7 + map_height + 0.25, bar_height, label_room)
    _draw_bars(below, [t.nbytes for t in bars], names)
    if len(lines) > len(bars):
        rest = lines[len(bars) :]
        text = f"and {len(rest):,} more line{'s' if len(rest) > 1 else ''}, {format_bytes(sum(t.nbytes for t in rest))}"
        below.annotate(text, (1, 0), xycoords="axes fraction", ha="right", va="top", fontsize=8.5)
    return figure


def _of_kind(residuals: Sequence[Residual], kind: str) -> str:
    return f"{kind} {format_bytes(sum(r.nbytes for r in residuals if r.kind == kind))}"


def _draw_bars(axes: Axes, sizes: Sequence[int], names: Sequence[str]) -> None:
    axes.barh(range(len(sizes)), sizes, color=COLOURS["argument"], height=0.72)
    axes.set_yticks(range(len(sizes)), names, fontsize=8.5)
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.set_xlim(0, max([*sizes, 1]) * 1.12)
    axes.tick_params(length=0)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
    for i, n in enumerate(sizes):
        axes.annotate(format_bytes(n), (n, i), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8.5)


def _draw_map(axes: Axes, saved: ResidualSet, width: float, height: float) -> None:
    """Modules with their residuals; lengths are in inches, so that text can be compared with the available space."""
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    groups = [g for g in saved.groups if g.nbytes and g.residuals[0].is_saved]
    # Repeated layers are one module, and their repeated parts one box.
    names = merged_paths([g.residuals for g in groups], lambda r: r.module)
    modules = grouped(groups, lambda g: names[g.residuals[0]])
    size = lambda module: sum(g.nbytes for g in module)
    modules.sort(key=size, reverse=True)
    for module, box in zip(modules, squarify([size(m) for m in modules], (0, 0, width, height)), strict=True):
        _draw_module(axes, names[module[0].residuals[0]], size(module), module, box)


def _draw_module(axes: Axes, name: str, size: int, groups: Sequence[ResidualGroup], box: Box) -> None:
    x, y, w, h = box
    gap = min(0.02, 0.1 * w, 0.1 * h)
    head = 0.17 if h > 0.5 and w > 0.5 else 0.0
    room = _room(w, _FONT) - len(format_bytes(size)) - 2
    if head and room >= min(6, len(_own_name(name))):
        _write(axes, f"{_end_of(_own_name(name), room)}  {format_bytes(size)}", x, y)
    inner = (x + gap, y + head + gap, w - 2 * gap, h - head - 2 * gap)
    for g, (left, top, wide, tall) in zip(groups, squarify([g.nbytes for g in groups], inner), strict=True):
        # Omit the white line between boxes that it would hide.
        line = 0.6 if min(wide, tall) > 6 * _SMALLEST else 0.0
        axes.add_patch(Rectangle((left, top), wide, tall, facecolor=COLOURS[g.kind], edgecolor="white", linewidth=line))
        for i, text in enumerate(_labels(g, _room(wide, _FONT), int((tall - 0.06) / _LINE))):
            _write(axes, text, left, top + i * _LINE, INK)


def _labels(g: ResidualGroup, columns: int, rows: int) -> list[str]:
    """The text of a box within its room: a long name is cut after a token, and a type or a size that does not fit is
    omitted."""
    name = re.search(r"^[^ (]+", g.label)  # 'mul' from mul(a, b)
    label = g.label if columns >= min(12, len(g.label)) or name is None else name[0]
    if columns < min(len(label), _LEAST_LABEL):
        return []
    labels = [fitted(label, columns)]
    labels += [text for text in (g.type, format_bytes(g.nbytes)) if len(text) <= columns]
    return labels[: max(0, rows)]


def _write(axes: Axes, text: str, x: float, y: float, colour: str | None = None) -> None:
    """A line of text in a box, given its left and top edges."""
    axes.text(x + 0.04, y + 0.03, text, fontsize=_FONT, color=colour, va="top", parse_math=False)


def _room(width: float, size: float) -> int:
    """How many characters of a font size fit."""
    return int((width - 0.08) / (size * _CHARACTER))


def _end_of(path: str, room: int) -> str:
    """`…/Dense_1` for the path of a module, since its end distinguishes it from its siblings."""
    end, cut = path, ""
    while len(cut + end) > room and "/" in end:
        end, cut = end.partition("/")[2], "…/"
    return fitted(cut + end, room)


def _own_name(function: str) -> str:
    """`Block.__call__` of `make.<locals>.Block.__call__`."""
    return function.rsplit("<locals>.", 1)[-1]


def squarify(sizes: Sequence[float], box: Box) -> list[Box]:
    """Boxes for these sizes, largest first, that fill a box and are as square as possible (Bruls, Huizing and van
    Wijk)."""
    x, y, w, h = box
    total = sum(sizes)
    areas = [s * w * h / total for s in sizes] if total else []
    boxes: list[Box] = []
    start = 0
    while start < len(areas):
        side = min(w, h)
        end = start + 1
        while end < len(areas) and _worst(areas[start : end + 1], side) <= _worst(areas[start:end], side):
            end += 1
        row = areas[start:end]
        thick = sum(row) / side if side else 0.0
        along = y if w >= h else x
        for area in row:
            long = area / thick if thick else 0.0
            boxes.append((x, along, thick, long) if w >= h else (along, y, long, thick))
            along += long
        x, y, w, h = (x + thick, y, w - thick, h) if w >= h else (x, y + thick, w, h - thick)
        w, h = max(w, 0.0), max(h, 0.0)
        start = end
    return boxes


def _worst(row: Sequence[float], side: float) -> float:
    """The largest aspect ratio of the boxes of a row along a side."""
    thick = sum(row) / side if side else 0.0
    return max(max(thick * thick / a, a / (thick * thick)) if a and thick else float("inf") for a in row)
