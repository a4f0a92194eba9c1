"""The animation of a gradient as a file: what runs, what is saved and read again, and the memory.

`widgets/src/panes/motion.ts` shows the same on the page, with controls.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from jaxviz.features.explorer.axis import alive, kept_alive, memory_by_kind, n_forward
from jaxviz.features.explorer.pen import ImagePen, font
from jaxviz.features.explorer.picture import kept_rows, line_of
from jaxviz.features.explorer.still import place
from jaxviz.page.schema import MEMORY_KINDS, ROLES, View
from jaxviz.report.kinds import ON_PAGE, STACKED
from jaxviz.report.tables import format_bytes

FORMATS = (".gif", ".png", ".webp")
_WIDTH, _HEIGHT = 900, 470
_SHARP = 1.25
_FRAMES = 120
_LEAST_MS = 40
_TOP, _BINS, _GROUND, _CHART = 104, 250, 316, 118
_PALE, _INK, _DIM = "#ffffff", "#1d232b", "#5b6470"
_MARK = "#1666aa"
_AGAIN = "#a3691f"
_ABOVE = 0.17
"""The room above the letters of a line, in units of the text's size."""


@dataclass(frozen=True)
class _Bin:
    """A group of values in memory.

    Args:
      label: the text below it.
      bytes: the bytes at each step.
      colour: the colour of its content.
      is_code: whether the label is code.
    """

    label: str
    bytes: np.ndarray
    colour: str
    is_code: bool = False


def save_animation(view: View, path: str | Path, seconds: float) -> Path:
    """Writes a gradient in motion; see `Explorer.save_animation`."""
    path = Path(path)
    if path.suffix not in FORMATS:
        raise ValueError(f"an animation is written as {', '.join(FORMATS[:-1])} or {FORMATS[-1]}; got {path.name!r}")
    if not seconds > 0:
        raise ValueError(f"seconds is a number above 0; got {seconds}")
    if not len(view.columns["scope_parent"]):
        why = view.no_memory or next((stage.error for stage in view.stages if stage.error), "")
        raise ValueError(f"the {view.title} has nothing to animate{f': {why}' * bool(why)}")
    scene = _Scene(view)
    frames = [scene.frame(step) for step in scene.steps]
    if path.suffix == ".gif":
        # All frames share the palette of a middle one, which has every colour, so that unchanged parts take no bytes.
        colours = frames[len(frames) // 2].quantize(192)
        frames = [frame.quantize(palette=colours, dither=Image.Dither.NONE) for frame in frames]
    stays = max(_LEAST_MS, round(1000 * seconds / len(frames)))
    # Pause at the end before it loops.
    stay = [stays] * (len(frames) - 1) + [max(stays, 1500)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=stay, loop=0)
    return path


class _Scene:
    """What is drawn at each step, in CSS pixels.

    Args:
      view: the view to draw.
    """

    def __init__(self, view: View):
        self.view = view
        self.memory = memory_by_kind(view)
        self.total = self.memory.sum(0)
        self.turn = n_forward(view)
        self.bins = _bins(view)
        n = len(self.total)
        changes = {0, n - 1, int(self.total.argmax())}
        for b in self.bins:
            changes.update(np.flatnonzero(np.diff(b.bytes)).tolist() if b.is_code else ())
        even = np.linspace(0, n - 1, min(n, _FRAMES)).round().astype(int).tolist()
        self.steps = sorted({*even, *(changes if len(changes) < _FRAMES else ())})
        self.chart = self.draw_chart()

    def frame(self, step: int) -> Image.Image:
        image = self.chart.copy()
        pen = _Pen(image)
        self.runs(pen, step)
        most = max((b.bytes.max() for b in self.bins), default=0) or 1
        room = (_WIDTH - 40) / max(1, len(self.bins))
        before = max((s for s in self.steps if s < step), default=step)
        for i, b in enumerate(self.bins):
            left, right = 20 + i * room + 6, 20 + (i + 1) * room - 6
            size = max(8.0, (_BINS - _TOP) * b.bytes.max() / most)
            held = size * b.bytes[step] / (b.bytes.max() or 1)
            pen.box(left, _BINS - held, right, _BINS, b.colour)
            pen.line((left, _BINS - size), (left, _BINS), (right, _BINS), (right, _BINS - size), colour="#c4ccd4")
            if b.bytes[step] != b.bytes[before]:
                pen.line((left - 3, _BINS + 48), (right + 3, _BINS + 48), colour=_MARK, width=2)
            nbytes = format_bytes(int(b.bytes[step])) if b.bytes[step] else "–"
            pen.write((left + right) / 2, _BINS + 5, nbytes, right - left + 10, bold=True, middle=True)
            pen.write(
                (left + right) / 2, _BINS + 24, b.label, right - left, mono=b.is_code, colour=_DIM, middle=True, size=11
            )
        self.mark(pen, step)
        return image

    def runs(self, pen: _Pen, step: int) -> None:
        """The expression that runs."""
        columns, strings = self.view.columns, self.view.strings
        row = int(columns["step_row"][step])
        is_again = row >= 0 and ROLES[int(columns["equation_role"][row])] == "recomputation"
        is_backward = step >= self.turn
        passing = (
            "backward pass, recomputed for a checkpoint"
            if is_again
            else "backward pass"
            if is_backward
            else "forward pass"
        )
        kind = "cotangent" if is_backward else "temporary"
        pen.box(20, 14, _WIDTH - 20, 86, "#f4f6f8")
        pen.box(20, 14, 25, 86, _AGAIN if is_again else ON_PAGE[kind])
        pen.write(36, 20, passing, 500, colour=_AGAIN if is_again else _DIM)
        at = int(columns["equation_location"][row]) if row >= 0 else -1
        pen.write(36, 40, line_of(self.view, at), _WIDTH - 80, mono=True, bold=True, size=15)
        name = strings[int(columns["equation_primitive"][row])] if row >= 0 else ""
        said = [name, place(self.view, at), f"step {step + 1:,} of {len(self.total):,}"]
        pen.write(36, 64, " · ".join(filter(None, said)), _WIDTH - 80, colour=_DIM)

    def x(self, step: float) -> float:
        return 20 + (_WIDTH - 40) * step / len(self.total)

    def y(self, nbytes: float) -> float:
        return _GROUND + 18 + _CHART * (1 - nbytes / (self.total.max() or 1))

    def draw_chart(self) -> Image.Image:
        """The memory by kind over all steps; frames cover the part that is still to come."""
        image = Image.new("RGB", (round(_WIDTH * _SHARP), round(_HEIGHT * _SHARP)), _PALE)
        pen = _Pen(image)
        level = np.zeros(len(self.total))
        n = len(level)
        for kind, nbytes in zip(STACKED, self.memory, strict=True):
            upper = level + nbytes
            if nbytes.any():
                above = [(self.x(s + e), self.y(upper[s])) for s in range(n) for e in (0, 1)]
                below = [(self.x(s + e), self.y(level[s])) for s in reversed(range(n)) for e in (1, 0)]
                pen.shape([*above, *below], ON_PAGE[kind])
            level = upper
        return image

    def mark(self, pen: _Pen, step: int) -> None:
        """Marks the current step: later ones are paler, and the peak is labelled once it is reached."""
        x, bottom = self.x(step + 1), self.y(0)
        pen.cover(x, _GROUND, _WIDTH - 18, bottom + 1)
        for start, end, name in ((0, self.turn, "forward"), (self.turn, len(self.total), "backward")):
            pen.write(
                (self.x(start) + self.x(end)) / 2,
                bottom + 4,
                name,
                self.x(end) - self.x(start),
                colour=_DIM,
                middle=True,
                size=11,
            )
        pen.line((self.x(self.turn), _GROUND + 10), (self.x(self.turn), bottom), colour="#8a939d")
        pen.line((20, bottom), (_WIDTH - 20, bottom), colour="#8a939d")
        pen.line((x, _GROUND + 6), (x, bottom), colour=_INK, width=2)
        pen.write(24, _GROUND, f"{format_bytes(int(self.total[step]))} in memory", 240, bold=True)
        peak = int(self.total.argmax())
        if step >= peak:
            said, at = f"peak {format_bytes(int(self.total[peak]))}", self.x(peak + 0.5)
            pen.write(min(_WIDTH - 90, max(330, at)), _GROUND, said, 160, bold=True, middle=True)


def _bins(view: View) -> list[_Bin]:
    columns = view.columns
    kept = [
        _Bin(label, kept_alive(view, which), ON_PAGE["residual"], is_code)
        for which, label, _, is_code in kept_rows(view)
    ]
    rows = columns["buffer_row"]
    again = (rows >= 0) & (columns["equation_role"][rows] == ROLES.index("recomputation"))
    of = lambda kind: columns["buffer_kind"] == MEMORY_KINDS.index(kind)
    others = [
        _Bin("temporary", alive(view, of("temporary") & ~again), ON_PAGE["temporary"]),
        *kept,
        _Bin("recomputed", alive(view, of("temporary") & again), _AGAIN),
        _Bin("cotangents", alive(view, of("cotangent")), ON_PAGE["cotangent"]),
    ]
    return [b for b in others if b.bytes.any()]


class _Pen(ImagePen):
    """Draws on a picture, in CSS pixels.

    Args:
      image: the picture, with `_SHARP` times as many pixels.
    """

    def __init__(self, image: Image.Image):
        super().__init__(image, _SHARP)

    def cover(self, left: float, top: float, right: float, bottom: float) -> None:
        """Makes a rectangle paler."""
        x, y, to_x, to_y = (round(_SHARP * v) for v in (left, top, right, bottom))
        if to_x > x:
            part = self.image.crop((x, y, to_x, to_y))
            self.image.paste(Image.blend(part, Image.new("RGB", part.size, _PALE), 0.72), (x, y))

    def line(self, *points: tuple[float, float], colour: str, width: int = 1) -> None:
        self.draw.line([(_SHARP * x, _SHARP * y) for x, y in points], fill=colour, width=round(width * _SHARP))

    def shape(self, points: list[tuple[float, float]], colour: str) -> None:
        self.draw.polygon([(_SHARP * x, _SHARP * y) for x, y in points], fill=colour)

    def write(
        self, x: float, y: float, text: str, room: float, *, size: int = 13, mono: bool = False, bold: bool = False,
        colour: str = _INK, middle: bool = False,
    ) -> None:  # fmt: skip
        """A text, cut to the available width."""
        width = font(mono, bold, size * _SHARP).getlength
        if width(text) > _SHARP * room:
            while text and width(f"{text}…") > _SHARP * room:
                text = text[:-1]
            text = f"{text}…"
        self.text(x, y + _ABOVE * size, text, colour, size, mono=mono, bold=bold, at="middle" if middle else "left")
