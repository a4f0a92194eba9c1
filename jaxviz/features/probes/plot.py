"""A plot of recorded values over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxviz.report.figures import CellFigure
from jaxviz.report.tables import printable

if TYPE_CHECKING:
    from jaxviz.features.probes.series import Series


def plot_series(series: Sequence[Series], axes: Axes | None, log: bool) -> Figure:
    """See `Watch.plot`."""
    if axes is None:
        axes = CellFigure(figsize=(7, 3.6), layout="constrained").add_subplot()
    names = list(dict.fromkeys(s.name for s in series))
    for s in series:
        steps, ys, drawn = s.line()
        label = f"{s.name}, {drawn}" if s.kind == "value" else f"{s.name}, {drawn} of its cotangent"
        colour = f"C{names.index(s.name) % 10}"
        style = "-" if s.kind == "value" else "--"
        # A single point draws no line. Names from programs are not math text.
        axes.plot(
            steps,
            ys,
            style,
            color=colour,
            linewidth=1.2,
            marker="." if len(ys) < 2 else "",
            label=printable(label, 60).replace("$", r"\$"),
        )
    axes.set_xlabel("step")
    if log:
        axes.set_yscale("log")
    axes.spines[["top", "right"]].set_visible(False)
    if 0 < len(series) <= 20:
        axes.legend(frameon=False, fontsize=8)
    return cast(Figure, axes.figure)
