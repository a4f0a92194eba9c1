"""Charts as matplotlib figures, and `CellFigure`: a figure that a notebook displays."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import singledispatch
from io import BytesIO
from typing import Any, cast

import numpy as np
from matplotlib import rc_context, rcParams
from matplotlib.axes import Axes
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.spines import Spine
from matplotlib.text import Text

from jaxviz.report.charts import TIME, Axis, Bars, Chain, Chart, Curves, FlameGraph, Lanes, OverTime, TradeOff
from jaxviz.report.inks import INK, ON_ANY_PAGE
from jaxviz.report.kinds import COLOURS
from jaxviz.report.tables import format_bytes, printable

_INKED: tuple[tuple[Any, str], ...] = (
    (Text, "color"), (Spine, "edgecolor"), (Line2D, "color"), (Line2D, "markeredgecolor"), (Line2D, "markerfacecolor"),
)  # fmt: skip


class CellFigure(Figure):
    """A figure that displays itself as the output of a cell.

    IPython can do that once pyplot is imported, which jaxviz does not do.

    It has the colours of matplotlib's style. On a page, which may be light or dark, a figure in a white style gets a
    transparent background, and ink that is readable on both; saved to a file it stays unchanged.
    """

    def _repr_png_(self) -> bytes:
        out = BytesIO()
        with for_any_page(self):
            self.savefig(out, format="png", bbox_inches="tight", facecolor="auto")
        return out.getvalue()


@contextmanager
def for_any_page(figure: Figure) -> Iterator[None]:
    """While drawing, removes the style's white background and replaces its ink; other colours stay."""
    if not same_color(rcParams["figure.facecolor"], "white"):
        yield
        return
    before: list[tuple[Any, str, Any]] = []

    def change(artist: Any, name: str, colours: list[Any], to: str) -> None:
        old = getattr(artist, f"get_{name}")()
        if any(same_color(old, colour) for colour in colours):
            before.append((artist, name, old))
            getattr(artist, f"set_{name}")(to)

    figure.draw_without_rendering()  # ticks are only computed when drawing
    inks = [
        rcParams["text.color"], rcParams["axes.labelcolor"], rcParams["axes.edgecolor"], rcParams["xtick.color"],
        rcParams["ytick.color"],
    ]  # fmt: skip
    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        change(patch, "facecolor", ["white"], "none")
    for kind, name in _INKED:
        for artist in figure.findobj(kind):
            change(artist, name, inks, ON_ANY_PAGE)
    try:
        yield
    finally:
        for artist, name, old in before:
            getattr(artist, f"set_{name}")(old)


@contextmanager
def editable_text() -> Iterator[None]:
    """Makes matplotlib write text as text, since journals do not accept fonts of type 3."""
    with rc_context({"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none"}):
        yield


@singledispatch
def plot(chart: Chart, axes: Axes | None = None) -> Figure:
    """A chart as a figure, in these axes or in its own."""
    raise TypeError(f"no figure for a chart {type(chart).__name__}")


def _own(axes: Axes | None, width: float, height: float) -> Axes:
    return CellFigure(figsize=(width, height), layout="constrained").subplots() if axes is None else axes


@plot.register
def _(chart: OverTime, axes: Axes | None = None) -> Figure:
    """A chart of memory as a stacked area, its peak marked, and the other program as a line."""
    axes = _own(axes, 9, 4)
    edges, picked = chart.columns(2000)
    picked = [*picked, *picked[-1:]]
    of_kinds = np.asarray([chart.steps[i] for i in picked], float).reshape(len(picked), len(chart.kinds))
    shown = [i for i in range(len(chart.kinds)) if of_kinds[:, i].any()]
    if shown:
        at_peak = dict(chart.at_peak)
        axes.stackplot(
            edges, of_kinds[:, shown].T, step="post", colors=[COLOURS[chart.kinds[i]] for i in shown], linewidth=0,
            labels=[f"{chart.kinds[i]} {format_bytes(int(at_peak.get(chart.kinds[i], 0)))}" for i in shown],
        )  # fmt: skip
    at = chart.positions
    for _, start, _ in chart.spans()[1:]:
        axes.axvline(at[start], color=rcParams["axes.edgecolor"], linewidth=0.8, linestyle=":")
    highest, width = max(chart.totals, default=0.0), at[-1] or 1
    peak = sum(at[chart.highest : chart.highest + 2]) / 2
    axes.plot(peak, highest, ".", color=rcParams["text.color"], markersize=6)
    axes.annotate(
        f"peak {format_bytes(int(highest))}", (peak, highest), xytext=(0, 5), textcoords="offset points", fontsize=8,
        ha="left" if peak < 0.1 * width else "right" if peak > 0.9 * width else "center",
    )  # fmt: skip
    if chart.other is not None:
        places = {name: (at[start], at[end]) for name, start, end in chart.spans()}
        x: list[float] = []
        heights: list[float] = []
        for name, start, end in chart.other_spans():
            if name in places:
                x += np.linspace(*places[name], end - start, endpoint=False).tolist()
                heights += chart.other.totals[start:end]
        axes.step(
            x, heights, where="post", color=rcParams["text.color"], linewidth=1.2, label=chart.other.label,
        )  # fmt: skip
    axes.set_xlim(0, width)
    axes.set_ylim(0, 1.12 * max(chart.top, 1e-9))
    _ticks(axes.set_yticks, chart.axis, chart.top)
    x_label = chart.step
    if chart.x is not None:
        x_label = chart.x.label
        _ticks(axes.set_xticks, chart.x, width)
    axes.set_xlabel(f"{x_label}: {', then '.join(name for name, _, _ in chart.spans())}")
    axes.set_ylabel(chart.axis.label)
    if shown or chart.other is not None:
        axes.legend(**_BESIDE, reverse=True)
    return _titled(axes, chart.title)


@plot.register
def _(chart: TradeOff, axes: Axes | None = None) -> Figure:
    """Points with names, and the best trades as a line."""
    axes = _own(axes, 8, 4.5)
    most_x, most_y = chart.most
    if chart.line:
        axes.step(
            [x for x, _ in chart.line], [y for _, y in chart.line], "-o", where="post", color=COLOURS["argument"],
            linewidth=1.2, markersize=3, label=chart.note,
        )  # fmt: skip
        if chart.note:
            axes.legend(loc="best", frameon=False, fontsize=9)
    places: dict[tuple[float, float], list[tuple[str, str]]] = {}
    for x, y, name, kind in chart.marks:
        places.setdefault((x, y), []).append((name, kind))
    for (x, y), there in places.items():
        axes.plot(x, y, "o", color=COLOURS[there[-1][1]], markersize=8)
        to_left = x > 0.6 * most_x
        axes.annotate(
            printable(", ".join(dict.fromkeys(name for name, _ in there)), 44), (x, y),
            xytext=(-8 if to_left else 8, 6),
            textcoords="offset points", ha="right" if to_left else "left", fontsize=9, parse_math=False,
        )  # fmt: skip
    axes.set_xlim(0, 1.05 * most_x)
    axes.set_ylim(-0.04 * most_y, 1.15 * most_y)
    _ticks(axes.set_xticks, chart.x, most_x)
    _ticks(axes.set_yticks, chart.y, most_y)
    axes.set_xlabel(chart.x.label)
    axes.set_ylabel(chart.y.label)
    return _titled(axes, chart.title)


@plot.register
def _(chart: FlameGraph, axes: Axes | None = None) -> Figure:
    """A flame graph, from the whole at the top down."""
    axes = _own(axes, 8.5, 0.8 + 0.24 * chart.depth)
    total = chart.total or 1.0
    axes.set_xlim(0, total)
    axes.set_ylim(chart.depth, 0)
    characters = axes.get_window_extent().width * 72 / axes.figure.dpi / 5  # at 8 points
    for name, kind, left, long, depth in chart.rows:
        colour = chart.colours[kind]
        bar = axes.add_patch(Rectangle((left, depth), long, 0.94, facecolor=colour, edgecolor="white", linewidth=0.5))
        room = int(characters * long / total) - 1
        if room > 2:
            axes.text(
                left + 0.002 * total, depth + 0.5, printable(name, room), va="center", fontsize=8, color=INK,
                parse_math=False,
            ).set_clip_path(bar)  # fmt: skip
    axes.set_yticks([])
    _ticks(axes.set_xticks, chart.axis, total)
    if chart.names:
        axes.legend(handles=[Patch(color=chart.colours[k], label=chart.names[k]) for k in chart.kinds], **_BESIDE)
    return _titled(axes, chart.title)


@plot.register
def _(chart: Bars, axes: Axes | None = None) -> Figure:
    """Bars with their amounts, from the top down."""
    bars = chart.bars[: chart.most]
    tall = [len(amounts) if chart.beside else 1 for _, amounts in bars]
    axes = _own(axes, 8, 1.2 + 0.28 * sum(tall))
    longest = chart.length(bars[0][1]) if bars else 1.0
    middles, top = [], 0.0
    for (_, amounts), n in zip(bars, tall, strict=True):
        left, texts = 0.0, chart.texts(amounts)
        for i, (kind, amount) in enumerate(amounts.items()):
            at = top + i if chart.beside else top
            axes.barh(at, amount, 0.8, left=0.0 if chart.beside else left, color=COLOURS[kind])
            left += amount
            if chart.beside or i == len(amounts) - 1:
                _write(axes, amount if chart.beside else left, at, texts[i if chart.beside else 0])
        middles.append(top + (n - 1) / 2)
        top += n + 0.4
    axes.set_yticks(middles, [printable(label, 40) for label, _ in bars], fontsize=8, parse_math=False)
    axes.tick_params("y", length=0)
    axes.set_ylim(top - 0.5, -0.9)
    axes.set_xlim(0, 1.18 * longest)  # with room for the amount of the longest
    _ticks(axes.set_xticks, chart.axis, longest)
    axes.set_xlabel(", ".join(filter(None, (chart.axis.label, chart.left_out))))
    if bars:
        axes.legend(handles=[Patch(color=COLOURS[kind], label=text) for text, kind in chart.legend], **_BESIDE)
    return _titled(axes, chart.title)


@plot.register
def _(chart: Lanes, axes: Axes | None = None) -> Figure:
    """Lanes with boxes for phases, over seconds."""
    lanes, (first, last) = chart.lanes, chart.span
    axes = _own(axes, 8, 1.2 + 0.28 * len(lanes))
    for i, (_, rows) in enumerate(lanes):
        for _, start, phases in rows:
            left = start - first
            for kind, seconds in phases:
                axes.barh(i, seconds, 0.7, left=left, color=COLOURS[kind])
                left += seconds
    names = [f"{printable(name, 40)}  {chart.text(rows)}" for name, rows in lanes]
    axes.set_yticks(range(len(lanes)), names, fontsize=8, parse_math=False)
    axes.tick_params("y", length=0)
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_xlim(0, 1.02 * last or 1)
    _ticks(axes.set_xticks, TIME, last)
    axes.set_xlabel(TIME.label)
    if lanes:
        axes.legend(handles=[Patch(color=COLOURS[kind], label=text) for text, kind in chart.legend], **_BESIDE)
    return _titled(axes, chart.title)


@plot.register
def _(chart: Curves, axes: Axes | None = None) -> Figure:
    """Lines or points along a run, with the texts of marks above them and the legend below."""
    axes = _own(axes, 8, 4.4)
    for c in chart.curves:
        axes.plot(
            [x for x, _ in c.points], [chart.height(y) if math.isfinite(y) else math.nan for _, y in c.points],
            ".-" if c.is_line else ".", color=COLOURS[c.kind], linewidth=1.8 if c.name else 0.8,
            markersize=0 if not c.name else 3 if c.is_line else 5, alpha=1 if c.name else 0.4,
            label=printable(c.label, 90) or None,
        )  # fmt: skip
    if chart.level is not None:
        value, said = chart.level
        axes.axhline(chart.height(value), color=rcParams["axes.edgecolor"], linewidth=0.8, linestyle=":")
        axes.annotate(
            said, (1, chart.height(value)), (0, 3), axes.get_yaxis_transform(), "offset points", ha="right", fontsize=8,
        )  # fmt: skip
    width = chart.width or 1
    for row, (x, said) in enumerate(reversed(chart.marks)):
        axes.axvline(x, color=rcParams["axes.edgecolor"], linewidth=0.8)
        axes.annotate(
            printable(said, 90), (x, 1), (0, 4 + 12 * row), axes.get_xaxis_transform(), "offset points",
            ha="left" if x < 0.3 * width else "right" if x > 0.7 * width else "center", fontsize=8, parse_math=False,
        )  # fmt: skip
    axes.set_xlim(-0.02 * width, 1.02 * width)
    axes.set_ylim(-0.02, 1.04)
    axes.set_yticks(*zip(*((chart.height(value), text) for value, text in chart.ticks(7)), strict=True))
    axes.grid(axis="y", alpha=0.25)
    _ticks(axes.set_xticks, chart.x, chart.width)
    axes.set_xlabel(chart.x.label)
    axes.set_ylabel(chart.y)
    for note in chart.notes:
        axes.plot([], [], " ", label=printable(note, 90))
    if any(c.label for c in chart.named) or chart.notes:
        below = {"loc": "upper left", "bbox_to_anchor": (0, -0.16), "frameon": False, "fontsize": 8}
        for text in axes.legend(**below).get_texts():
            text.set_parse_math(False)
    return _titled(axes, chart.title, 6 + 12 * len(chart.marks))


@plot.register
def _(chart: Chain, axes: Axes | None = None) -> Figure:
    """Places below each other, joined by a line."""
    shown = chart.shown
    axes = _own(axes, 8, 0.6 + 0.45 * len(shown))
    axes.plot([0, 0], [0, max(len(shown) - 1, 0)], color=rcParams["axes.edgecolor"], linewidth=0.8, zorder=1)
    for i, stop in enumerate(shown):
        if isinstance(stop, str):
            _write(axes, 0.0, i, stop, 12)
            continue
        axes.plot(0, i, "o", color=COLOURS[stop.kind], markersize=8, zorder=2)
        lines = ("  ".join(filter(None, (stop.place, stop.text))), stop.what)
        _write(axes, 0.0, i, "\n".join(printable(line, 90) for line in lines if line), 12)
    axes.set_xlim(-0.2, 10)
    axes.set_ylim(max(len(shown), 1) - 0.5, -0.5)
    axes.axis("off")
    return _titled(axes, chart.title)


_BESIDE: Any = {"loc": "upper left", "bbox_to_anchor": (1, 1), "frameon": False, "fontsize": 8}
"""A legend beside the axes."""


def _write(axes: Axes, x: float, y: float, text: str, right: float = 4) -> None:
    """A text to the right of a place, by so many points."""
    axes.annotate(
        text, (x, y), xytext=(right, 0), textcoords="offset points", va="center", fontsize=8, parse_math=False
    )


def _ticks(set_ticks: Callable[..., Any], axis: Axis, top: float) -> None:
    values, texts = zip(*axis.ticks(top, 5), strict=True)
    set_ticks(values, texts)


def _titled(axes: Axes, title: str, pad: float | None = None) -> Figure:
    axes.set_title(title, loc="left", fontsize=10, parse_math=False, pad=pad)
    axes.spines[["top", "right"]].set_visible(False)
    return cast("Figure", axes.figure)
