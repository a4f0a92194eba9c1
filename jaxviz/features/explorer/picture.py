"""The overview as a picture: the scopes that run, how long values are saved, and the memory, over one axis."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import Any, Literal

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from jaxviz.features.explorer.still import headline, place
from jaxviz.page.schema import MEMORY_KINDS, SCOPES, View
from jaxviz.report.charts import FLOPS, Axis, FlameGraph, OverTime, columns
from jaxviz.report.figures import CellFigure, for_any_page, plot
from jaxviz.report.kinds import COLOURS, STACKED
from jaxviz.report.pictures import fitted
from jaxviz.report.tables import counted, format_bytes, format_flops, repeated

WIDTH = 900
"""In CSS pixels; the file has `_SHARP` times as many."""

_SHARP = 2
_DPI = 100
LEFT, RIGHT = 296, WIDTH - 8
"""The left and right end of the axis; labels are to the left."""
_LINE = 19
_BAND = 38
_MEMORY = 130
_ROWS = 6
"""The number of saved expressions with a band; the rest share one more."""
_DEPTHS = 4
_COLUMNS = 600
_SEEN = 3
"""The minimum width of a band, in columns."""

_PASSES = {"forward": "#a9c8ea", "backward": "#a6d8bb", "line forward": "#d6e4f2", "line backward": "#d8ecdf"}
"""The colours of the passes and of their scopes, and of the lines in them."""


@dataclass(frozen=True)
class SavedBand:
    """A saved expression, or several.

    Args:
      label: its text, or how many there are.
      about: its bytes, and where it is.
      is_code: whether the label is code.
      nbytes: the bytes in memory at each step.
    """

    label: str
    about: str
    is_code: bool
    nbytes: np.ndarray


class Overview:
    """What the overview of a complete view shows, as charts over one axis: FLOPs, or equations if there are none.

    Raises:
      ValueError: there is no backward pass, so there is nothing to draw.
    """

    def __init__(self, view: View):
        if not len(view.columns["scope_parent"]):
            why = view.no_memory or next((stage.error for stage in view.stages if stage.error), "")
            raise ValueError(f"the {view.title} has no overview{f': {why}' * bool(why)}")
        self.view = view
        self.headline = [said.replace("`", "") for said in headline(view)]
        measure = measure_of(view)
        self.axis = (
            Axis("FLOPs", FLOPS, format_flops) if measure == "flops" else Axis("equations", (("", 1),), _equations)
        )
        self.total = float(view.columns[f"scope_{measure}"][view.columns["scope_parent"] < 0].sum())
        self.edges = (edges(view, measure) * self.total).tolist()
        self.turn = n_forward(view)
        seen = lambda b: b.depth < _DEPTHS and (b.end - b.start) * (RIGHT - LEFT) >= 2
        self.boxes = list(filter(seen, boxes(view, measure)))

    @cached_property
    def runs(self) -> FlameGraph:
        """The passes, and below them the scopes that they run."""
        rows = []
        for name, start, end in (
            ("forward", 0.0, self.edges[self.turn]),
            ("backward", self.edges[self.turn], self.total),
        ):
            rows.append((f"{name}, {self.axis.written(end - start)}", name, start, end - start, 0))
        for b in self.boxes:
            start, long = b.start * self.total, (b.end - b.start) * self.total
            rows.append((self.title(b.scope), self.kind(b.scope), start, long, b.depth + 1))
        return FlameGraph(rows, _PASSES, {}, "", self.axis)

    @cached_property
    def memory(self) -> OverTime:
        """The bytes of each kind."""
        passes = (("forward", 0), ("backward", self.turn))
        steps = memory_by_kind(self.view).T.tolist()
        return OverTime(steps, STACKED, passes, "", "", edges=self.edges, x=self.axis)

    @cached_property
    def saved(self) -> list[SavedBand]:
        """The largest saved expressions, and the others together."""
        of, strings = self.view.columns, self.view.strings
        sizes = of["kept_nbytes"].tolist()
        n = _ROWS - 1 if len(sizes) > _ROWS else len(sizes)
        rows = []
        for i in range(n):
            values = repeated(int(of["kept_times"][i]), counted(int(of["kept_values"][i]), "value"))
            about = (format_bytes(int(sizes[i])), values, place(self.view, int(of["kept_location"][i])))
            label = strings[of["kept_label"][i]]
            rows.append(SavedBand(label, " · ".join(filter(None, about)), True, kept_alive(self.view, [i])))
        if rest := sizes[n:]:
            others = kept_alive(self.view, range(n, len(sizes)))
            rows.append(SavedBand(counted(len(rest), "other expression"), format_bytes(int(sum(rest))), False, others))
        return rows

    def kind(self, scope: int) -> str:
        """A key of the colours."""
        of = self.view.columns
        is_line = of["scope_kind"][scope] == SCOPES.index("line")
        return f"{'line ' * bool(is_line)}{'backward' if of['scope_backward'][scope] else 'forward'}"

    def title(self, scope: int) -> str:
        """The title of a box: its name, or the text of its line."""
        of = self.view.columns
        name = self.view.strings[int(of["scope_name"][scope])]
        if not name and of["scope_kind"][scope] == SCOPES.index("repeated"):
            inner = [
                int(i)
                for i in np.flatnonzero(of["scope_parent"] == scope)
                if of["scope_kind"][i] != SCOPES.index("rest")
            ]
            name = ", ".join(map(self.title, inner[:3])) + ", …" * (len(inner) > 3)
        name = name or line_of(self.view, int(of["scope_location"][scope]))
        times = int(of["scope_count"][scope])
        return f"{name} × {times:,}" if times > 1 else name


def overview_figure(view: View) -> CellFigure:
    """The overview of a complete view as a matplotlib figure, without a background.

    Raises:
      ValueError: there is no backward pass, so there is nothing to draw.
    """
    return drawn(Overview(view))


def overview_png(view: View) -> bytes:
    """The same as a file, legible on white and on black."""
    figure, out = overview_figure(view), BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # of a name in a script that the font does not have
        with for_any_page(figure):
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
    # A palette takes a third of the bytes, and the picture has about a dozen colours and their edges.
    Image.fromarray(np.asarray(canvas.buffer_rgba())).quantize(32, Image.Quantize.FASTOCTREE).save(
        out, "PNG", optimize=True
    )
    return out.getvalue()


def drawn(overview: Overview) -> CellFigure:
    """An overview as a figure, with three axes below its headline: what runs, what is saved, and the memory."""
    runs, saved, memory = overview.runs, overview.saved, overview.memory
    heights = {"runs": _LINE * runs.depth, "saved": _BAND * max(1, len(saved)), "memory": _MEMORY}
    y = 14 + _LINE * len(overview.headline)
    figure = CellFigure(
        figsize=(WIDTH / _DPI, (y + sum(heights.values()) + 122) / _DPI), dpi=_SHARP * _DPI, facecolor="none"
    )
    tall = figure.get_figheight() * _DPI

    def write(x: float, y: float, text: str, size: float = 8.5, **how: Any) -> None:
        figure.text(x / WIDTH, 1 - y / tall, text, fontsize=size, va="top", parse_math=False, **how)

    for i, said in enumerate(overview.headline):
        write(8, 8 + _LINE * i, fitted(said, 125), 9 + (i == 0), weight="bold" if i == 0 else "normal")
    places = {}
    for name, height in heights.items():
        y += 18 if name == "runs" else 26
        box = (LEFT / WIDTH, 1 - (y + height) / tall, (RIGHT - LEFT) / WIDTH, height / tall)
        places[name] = figure.add_axes(box, facecolor="none"), y
        y += height
    axes, y = places["runs"]
    write(8, y + 4, f"what runs, as wide as its {overview.axis.label}")
    plot(runs, axes)
    axes.set_axis_off()
    axes, y = places["saved"]
    write(8, y - 20, "saved for the backward pass")
    bands(axes, saved, overview.edges)
    write(8, y, "" if saved else "nothing", 8)
    for i, row in enumerate(saved):
        write(8, y + _BAND * i, fitted(row.label, 38), 8, family="DejaVu Sans Mono" if row.is_code else "DejaVu Sans")
        write(8, y + _BAND * i + 15, fitted(row.about, 48), 7.5)
    axes, y = places["memory"]
    write(8, y - 4, "memory at the peak")
    plot(memory, axes)
    axes.set_ylabel("")
    axes.xaxis.label.set_fontsize(8.5)
    axes.tick_params(labelsize=8)
    legend = axes.get_legend()
    if legend is not None:
        legend.set_loc("upper left")
        legend.set_bbox_to_anchor((8 / WIDTH, 1 - (y + 8) / tall), figure.transFigure)
    for axes, _ in places.values():
        axes.axvline(overview.edges[overview.turn], color=rcParams["axes.edgecolor"], linewidth=0.8, linestyle=":")
    return figure


def bands(axes: Axes, saved: Sequence[SavedBand], positions: Sequence[float]) -> None:
    """Draws the saved expressions below each other, each as thick as its bytes in memory."""
    edges, steps = columns(positions, _COLUMNS)
    thick = [np.array([row.nbytes[of].max() for of in steps]) for row in saved]
    most = max((float(t.max()) for t in thick), default=0.0) or 1.0
    for i, nbytes in enumerate(thick):
        half = np.where(nbytes > 0, np.maximum(0.03, 0.36 * nbytes / most), 0)
        seen = np.flatnonzero(half)
        if 0 < len(seen) < _SEEN:  # very short lifetimes
            half[max(0, seen[-1] + 1 - _SEEN) : seen[-1] + 1] = half.max()
        half = np.append(half, half[-1:])
        axes.fill_between(edges, i - half, i + half, step="post", color=COLOURS["residual"], linewidth=0)
    axes.set_ylim(max(1, len(saved)) - 0.5, -0.5)
    axes.set_xlim(0, positions[-1] or 1)
    axes.set_axis_off()


def _equations(n: float) -> str:
    return counted(int(n), "equation")


def line_of(view: View, location: int) -> str:
    """The text of a line, or its number if the source is not included."""
    if location < 0:
        return ""
    columns = view.columns
    number = int(columns["location_line"][location])
    for excerpt in view.files[int(columns["location_file"][location])].excerpts:
        if excerpt.first <= number < excerpt.first + len(excerpt.lines):
            return excerpt.lines[number - excerpt.first].strip()
    return place(view, location)


# --- the axis ---------------------------------------------------------------------------------------------------------
# `widgets/src/model/overview.ts` and `timeline.ts` compute the same for the page.

Measure = Literal["flops", "equations"]


@dataclass(frozen=True)
class PlacedScope:
    """A scope on the time axis: its row, its ends as fractions of the axis, and the number of enclosing scopes."""

    scope: int
    start: float
    end: float
    depth: int


def measure_of(view: View) -> Measure:
    """What widths represent: FLOPs, or equations if there are no FLOPs."""
    return "flops" if (view.columns["scope_flops"] > 0).any() else "equations"


def boxes(view: View, measure: Measure) -> Iterator[PlacedScope]:
    """The scopes with widths proportional to their amounts; a repeated one shows one repetition, stretched."""
    columns = view.columns
    sizes = columns[f"scope_{measure}"].tolist()
    rest = (columns["scope_kind"] == SCOPES.index("rest")).tolist()
    children: dict[int, list[int]] = {}
    for scope, parent in enumerate(columns["scope_parent"].tolist()):
        children.setdefault(parent, []).append(scope)

    def lay(scopes: Sequence[int], start: float, end: float, depth: int, extent: float) -> Iterator[PlacedScope]:
        width = end - start
        for scope in scopes:
            after = start + width * sizes[scope] / extent if extent else start
            if not rest[scope]:
                yield PlacedScope(scope, start, after, depth)
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
