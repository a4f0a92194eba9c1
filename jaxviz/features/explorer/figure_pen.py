"""A pen that draws on a matplotlib figure, with the methods of `ImagePen`."""

from __future__ import annotations

import numpy as np
from matplotlib.collections import PolyCollection

from jaxviz.features.explorer.pen import At
from jaxviz.report.figures import Picture

_DPI = 100
_ALIGNED: dict[At, str] = {"left": "left", "middle": "center", "right": "right"}


class FigurePen:
    """Draws on a new figure in CSS pixels, from the top.

    Args:
      width, height: the size of the figure.
      sharp: how many of its pixels are one CSS pixel.
    """

    def __init__(self, width: float, height: float, sharp: float):
        self.figure = Picture(figsize=(width / _DPI, height / _DPI), dpi=_DPI * sharp, facecolor="none")
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, width), ylim=(height, 0))
        self.axes.set_axis_off()

    def box(self, left: float, top: float, right: float, bottom: float, colour: str) -> None:
        corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
        self.axes.add_collection(PolyCollection([corners], facecolors=[colour], linewidths=0))

    def area(self, left: float, lower: np.ndarray, upper: np.ndarray, colour: str) -> None:
        x = left + np.arange(len(lower) + 1)
        below, above = (np.append(line, line[-1]) for line in (lower, upper))
        self.axes.fill_between(x, below, above, step="post", color=colour, lw=0)

    def dashed(self, x: float, top: float, bottom: float, colour: str) -> None:
        self.axes.plot([x, x], [top, bottom], color=colour, lw=0.8, ls=(0, (4, 3)), zorder=0)

    def dot(self, x: float, y: float, colour: str) -> None:
        self.axes.plot([x], [y], "o", ms=4.5, color=colour, clip_on=False)

    def text(
        self, x: float, y: float, text: str, colour: str, size: float, *, mono: bool = False, bold: bool = False, at: At = "left",
    ) -> None:  # fmt: skip
        self.axes.text(
            x, y, text, fontsize=size * 72 / _DPI, family="DejaVu Sans Mono" if mono else "DejaVu Sans",
            weight="bold" if bold else "normal", color=colour, ha=_ALIGNED[at], va="top", parse_math=False, usetex=False,
        )  # fmt: skip
