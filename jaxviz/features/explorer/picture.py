"""The overview as a picture: the scopes that run, how long values are saved, and the memory, over time."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from jaxviz.features.explorer.axis import (
    Box,
    Measure,
    boxes,
    edges,
    kept_alive,
    measure_of,
    memory_by_kind,
    n_forward,
    steps_by_column,
)
from jaxviz.features.explorer.pen import At, ImagePen
from jaxviz.features.explorer.still import headline, place
from jaxviz.page.schema import SCOPES, View
from jaxviz.report.inks import INK, ON_ANY_PAGE
from jaxviz.report.kinds import ON_PAGE, PLURALS, STACKED
from jaxviz.report.pictures import fitted
from jaxviz.report.tables import counted, format_bytes, format_count, repeated

if TYPE_CHECKING:
    from jaxviz.features.explorer.figure_pen import FigurePen
    from jaxviz.report.figures import Picture

WIDTH = 900
"""In CSS pixels; the file has `_SHARP` times as many."""

_SHARP = 2
_LEFT, _RIGHT = 296, WIDTH - 8
"""The left and right end of the time axis; labels are to the left."""
_TEXT, _SMALL = 12.5, 11.5
_LINE = 19
_BOX = 19
_BAND = 26
_MEMORY = 112
_SEEN = 3
"""The minimum width of a band."""
_ROWS = 6
"""The number of saved expressions with a band; the rest share one more."""
_DEPTHS = 4

_PASSES = (("forward", "#a9c8ea", "#d6e4f2"), ("backward", "#a6d8bb", "#d8ecdf"))
"""For each pass the colours of its scopes, and of the lines in them."""


def overview_png(view: View) -> bytes:
    """The picture as a file. It has a transparent background, and is legible on white and on black.

    Args:
      view: a complete view with scopes.
    """
    # Transparent in the colour of the text, so that the smooth edges of letters have no other.
    empty = Image.new("RGBA", (1, 1), ON_ANY_PAGE)
    empty.putalpha(0)
    drawing = _Drawing(view)
    image = empty.resize((_SHARP * WIDTH, round(_SHARP * drawing.height)))
    drawing.draw(ImagePen(image, _SHARP))
    out = BytesIO()
    # A palette of 256 colours takes a third of the bytes, and the picture has about a dozen.
    image.quantize(256, Image.Quantize.FASTOCTREE).save(out, "PNG")
    return out.getvalue()


def overview_figure(view: View) -> Picture:
    """The same as a matplotlib figure.

    Raises:
      ValueError: there is no backward pass, so there is nothing to draw.
    """
    # Imported here, since matplotlib takes a third of a second.
    from jaxviz.features.explorer.figure_pen import FigurePen

    if not len(view.columns["scope_parent"]):
        why = view.no_memory or next((stage.error for stage in view.stages if stage.error), "")
        raise ValueError(f"the {view.title} has no overview{f': {why}' * bool(why)}")
    drawing = _Drawing(view)
    pen = FigurePen(WIDTH, drawing.height, _SHARP)
    drawing.draw(pen)
    return pen.figure


class _Drawing:
    """Draws in CSS pixels, from the top.

    Args:
      view: the view to draw.
    """

    pen: ImagePen | FigurePen

    def __init__(self, view: View):
        self.view = view
        self.measure: Measure = measure_of(view)
        self.edges = edges(view, self.measure)
        self.memory = memory_by_kind(view)
        self.total = self.memory.sum(0)
        self.columns = steps_by_column(self.edges, _RIGHT - _LEFT)
        # Of several steps in a column, use the one with the most bytes in memory.
        self.largest = [steps.start + int(self.total[steps].argmax()) for steps in self.columns]
        self.turn = self.x(self.edges[n_forward(view)])
        self.drawn = [b for b in boxes(view, self.measure) if b.depth < _DEPTHS and self.width(b) >= 2]
        self.kept = kept_rows(view)
        self.depths = 1 + max(b.depth for b in self.drawn)
        self.said = headline(view)
        self.below = 24 + len(self.kept) * (_BAND + 12) + 34 + _MEMORY
        self.height = len(self.said) * _LINE + 50 + self.depths * _BOX + self.below + 8

    def draw(self, pen: ImagePen | FigurePen) -> None:
        self.pen = pen
        y = 8.0
        for i, text in enumerate(self.said):
            self.write(8, y, text.replace("`", ""), bold=i == 0, size=_TEXT + (i == 0))
            y += _LINE
        y = self.scopes(y + 14)
        pen.dashed(self.turn, y - self.depths * _BOX - 22, y + self.below, ON_ANY_PAGE)
        y = self.kept_bands(y + 24)
        self.memory_areas(y + 34)

    def x(self, share: float) -> float:
        return float(_LEFT + share * (_RIGHT - _LEFT))

    def width(self, box: Box) -> float:
        return self.x(box.end) - self.x(box.start)

    def write(
        self, x: float, y: float, text: str, *, room: float = WIDTH - 16, size: float = _TEXT, bold: bool = False,
        mono: bool = False, at: At = "left", colour: str = ON_ANY_PAGE,
    ) -> None:  # fmt: skip
        """A text whose top left or top right is at a position, cut to the available width."""
        letter = size * (0.605 if mono else 0.6 if bold else 0.55)
        self.pen.text(x, y, fitted(text, max(1, int(room / letter))), colour, size, mono=mono, bold=bold, at=at)

    def scopes(self, y: float) -> float:
        """Draws what runs; returns the lower end."""
        unit = "FLOPs" if self.measure == "flops" else "equations"
        self.write(8, y, f"what runs, as wide as its {unit}", size=_SMALL)
        columns = self.view.columns
        amounts = columns[f"scope_{self.measure}"]
        backward = columns["scope_backward"] == 1
        top = columns["scope_parent"] < 0
        for (name, *_), of_pass, start, end in zip(
            _PASSES, (~backward, backward), (_LEFT, self.turn), (self.turn, _RIGHT), strict=True
        ):
            amount = amounts[top & of_pass].sum()
            cost = _flops(float(amount)) if self.measure == "flops" else counted(int(amount), "equation")
            self.write(start + (5 if start > _LEFT else 1), y, f"{name}, {cost}", room=end - start - 8, size=_SMALL)
        y += 18
        for box in self.drawn:
            left, above = self.x(box.start), y + box.depth * _BOX
            right, lower = max(left + 1, self.x(box.end) - 1), above + _BOX - 1
            is_line = columns["scope_kind"][box.scope] == SCOPES.index("line")
            self.pen.box(left, above, right, lower, _PASSES[int(backward[box.scope])][2 if is_line else 1])
            room = right - left - 8
            if room > 14:
                title = self.title(box.scope)
                self.write(left + 4, above + 3, title, room=room, size=10.5, mono=bool(is_line), colour=INK)
        return y + self.depths * _BOX

    def title(self, scope: int) -> str:
        """The title of a box: its name, or the text of its line."""
        columns = self.view.columns
        name = self.view.strings[int(columns["scope_name"][scope])]
        if not name and columns["scope_kind"][scope] == SCOPES.index("repeated"):
            inner = [
                int(i)
                for i in np.flatnonzero(columns["scope_parent"] == scope)
                if columns["scope_kind"][i] != SCOPES.index("rest")
            ]
            name = ", ".join(map(self.title, inner[:3])) + ", …" * (len(inner) > 3)
        name = name or line_of(self.view, int(columns["scope_location"][scope]))
        times = int(columns["scope_count"][scope])
        return f"{name} × {times:,}" if times > 1 else name

    def kept_bands(self, y: float) -> float:
        """Draws the saved expressions, each as thick as its bytes in memory; returns the lower end."""
        self.write(8, y - 18, "saved for the backward pass", size=_SMALL)
        bytes = [kept_alive(self.view, which) for which, *_ in self.kept]
        alive = [np.array([b[steps].max() for steps in self.columns]) for b in bytes]
        most = max((float(a.max()) for a in alive), default=0.0) or 1.0
        for (_, label, about, is_code), nbytes in zip(self.kept, alive, strict=True):
            self.write(8, y, label, room=_LEFT - 20, mono=is_code, size=_SMALL)
            self.write(8, y + 16, about, room=_LEFT - 20, size=10.5)
            half = np.where(nbytes > 0, np.maximum(1, nbytes * _BAND / 2 / most), 0)
            seen = np.flatnonzero(half)
            if 0 < len(seen) < _SEEN:  # very short lifetimes
                half[max(0, seen[-1] + 1 - _SEEN) : seen[-1] + 1] = half.max()
            middle = y + 15
            self.pen.area(_LEFT, middle + half, middle - half, ON_PAGE["residual"])
            y += _BAND + 12
        return y

    def memory_areas(self, y: float) -> None:
        """Draws the memory by kind, with its peak labelled."""
        bottom = y + _MEMORY
        peak = int(self.total.argmax()) if self.total.size else 0
        most = float(self.total[peak]) or 1.0
        level = np.zeros(len(self.columns))
        self.write(8, y, "memory at the peak", size=_SMALL)
        self.write(_LEFT - 16, y, format_bytes(int(most)), size=_SMALL, bold=True, at="right")
        present = [kind for kind, bytes in zip(STACKED, self.memory, strict=True) if bytes.any()]
        for kind, bytes in zip(STACKED, self.memory, strict=True):
            if kind not in present:
                continue
            name, colour = "saved" if kind == "residual" else PLURALS[kind], ON_PAGE[kind]
            upper = level + bytes[self.largest]
            below, above = (bottom - _MEMORY * line / most for line in (level, upper))
            self.pen.area(_LEFT, below, above, colour)
            level = upper
            line = y + 18 * (len(present) - present.index(kind))
            self.pen.box(9, line + 2, 18, line + 11, colour)
            self.write(24, line, name, size=_SMALL)
            self.write(_LEFT - 16, line, format_bytes(int(bytes[peak])), size=_SMALL, at="right")
        at = self.x((self.edges[peak] + self.edges[peak + 1]) / 2)
        self.pen.dot(at, y, ON_ANY_PAGE)
        said = f"peak {format_bytes(int(most))}"
        if at > (_LEFT + _RIGHT) / 2:
            self.write(at - 7, y - 17, said, bold=True, size=_SMALL, at="right")
        else:
            self.write(at + 7, y - 17, said, bold=True, size=_SMALL)


def kept_rows(view: View) -> list[tuple[list[int], str, str, bool]]:
    """The saved expressions of each band, its label, and whether that is code."""
    columns = view.columns
    sizes = columns["kept_nbytes"].tolist()
    n = _ROWS - 1 if len(sizes) > _ROWS else len(sizes)
    rows: list[tuple[list[int], str, str, bool]] = []
    for i in range(n):
        values = repeated(int(columns["kept_times"][i]), counted(int(columns["kept_values"][i]), "value"))
        about = [format_bytes(int(sizes[i])), values, place(view, int(columns["kept_location"][i]))]
        rows.append(([i], view.strings[columns["kept_label"][i]], " · ".join(filter(None, about)), True))
    rest = sizes[n:]
    if rest:
        which = list(range(n, len(sizes)))
        rows.append((which, counted(len(rest), "other expression"), format_bytes(int(sum(rest))), False))
    return rows


def _flops(n: float) -> str:
    """`12 FLOP`, `3.4 MFLOP`."""
    text = format_count(n)
    return f"{text}{' ' * text[-1].isdigit()}FLOP"


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
