"""A laid-out graph as a matplotlib figure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch, Polygon
from matplotlib.path import Path as MplPath

from jaxviz.features.draw.graph import Graph
from jaxviz.features.draw.layout import Layout, Rectangle
from jaxviz.features.draw.style import FRAMES, INK, LINES, MARGIN, PALE, SIZES, line_width, text_width
from jaxviz.features.draw.svg import arrow, colours, curves, legend_of, legend_width
from jaxviz.report.figures import Picture


def draw_figure(graph: Graph, layout: Layout, width: float | None) -> Figure:
    head, legend = [graph.title, *graph.notes], legend_of(graph)
    top = 6.0 + 15 * len(head)
    total_w = max(layout.width, legend_width(legend), *(text_width(x, 11) for x in head)) + 2 * MARGIN
    total_h = top + layout.height + 2 * MARGIN + (24 if legend else 0)
    scale = (width * 72 / total_w) if width else min(0.7, 600 * 72 / max(total_w, total_h))
    figure = Picture(figsize=(total_w * scale / 72, total_h * scale / 72), facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0, total_w)
    axes.set_ylim(total_h, 0)
    axes.axis("off")

    def write(
        x: float, y: float, text: str, size: float, colour: str, anchor: str = "left", bold: bool = False
    ) -> None:
        axes.text(
            x, y, text, fontsize=size * scale, color=colour, ha=anchor, va="center", parse_math=False,
            fontweight="bold" if bold else "normal", clip_on=True,
        )  # fmt: skip

    def rectangle(
        r: Rectangle, fill: str, edge: str, thick: float, round_: float, dashes: str = "", z: float = 1
    ) -> None:
        axes.add_patch(
            FancyBboxPatch(
                (r.x + round_, r.y + round_),
                max(r.width - 2 * round_, 0.1),
                max(r.height - 2 * round_, 0.1),
                boxstyle=f"round,pad={round_}",
                facecolor=fill,
                edgecolor=edge,
                linewidth=thick * scale,
                zorder=z,
                linestyle=(0, tuple(map(float, dashes.split()))) if dashes else "-",
            )
        )

    for i, text in enumerate(head):
        write(MARGIN, 12 + 15 * i, text, 11 if i == 0 else 9, INK if i == 0 else PALE, bold=i == 0)
    dx, dy = MARGIN, top + MARGIN / 2
    for frame in graph.frames[1:]:
        r = layout.frames[frame.number].moved(dx, dy)
        fill, edge, dashes = FRAMES[frame.kind]
        rectangle(r, fill, edge, 1, 4, dashes, 0.5)
        write(r.x + 8, r.y + 10, frame.title, 9, INK, bold=frame.kind in ("stage", "fold"))
    for i, line in enumerate(graph.lines):
        colour, dashes = LINES[line.kind]
        path, is_sideways = tuple((x + dx, y + dy) for x, y in layout.paths[i]), i in layout.sideways
        points = curves(path, is_sideways)
        codes = [MplPath.MOVETO] + [MplPath.CURVE4] * (3 * (len(points) - 1))
        axes.add_patch(
            PathPatch(
                MplPath([p for group in points for p in group], codes),
                facecolor="none",
                edgecolor=colour,
                linewidth=line_width(line.nbytes) * scale,
                zorder=1 if line.kind == "residual" else 1.5,
                alpha=0.6 if line.kind == "residual" else 1.0,
                linestyle=(0, tuple(map(float, dashes.split()))) if dashes else "-",
            )
        )
        axes.add_patch(
            Polygon(arrow(path, is_sideways, line_width(line.nbytes)), facecolor=colour, linewidth=0, zorder=1.6)
        )
    for box, place in zip(graph.boxes, layout.boxes, strict=True):
        r = place.moved(dx, dy)
        fill, edge = colours(box)
        big, small = SIZES[box.kind]
        if box.kind in ("equation", "group", "residual"):
            rectangle(r, fill, edge, 1.2, 8 if box.kind == "residual" else 3, z=2)
        if box.kind == "group":
            inner = Rectangle(r.x + 2.5, r.y + 2.5, r.width - 5, r.height - 5)
            rectangle(inner, "none", edge, 0.7, 2, z=2)
        x, y = r.x + r.width / 2, r.y + r.height / 2
        ink = PALE if box.kind in ("constant", "literal", "note") else INK
        lift = 0.55 * big if box.detail else 0.0
        write(x, y - lift, box.title, big * 0.93, ink, "center", box.kind == "group")
        if box.detail:
            write(x, y + 0.6 * small, box.detail, small * 0.93, PALE, "center")
    x = MARGIN
    for fill, edge, label in legend:
        rectangle(Rectangle(x, total_h - 22, 12, 12), fill, edge, 1.2, 2)
        write(x + 17, total_h - 16, label, 9, INK)
        x += text_width(label, 10) + 34
    return figure


@contextmanager
def editable_text() -> Iterator[None]:
    """Makes matplotlib write text as text, since journals do not accept fonts of type 3."""
    with rc_context({"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none"}):
        yield
