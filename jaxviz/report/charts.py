"""Charts as data, for reports that draw one in several ways: as text, as SVG in a notebook (`pictures.py`), or with matplotlib (`figures.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from jaxviz.report.tables import format_bytes, format_seconds

Units = tuple[tuple[str, float], ...]

BYTES: Units = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
FLOPS: Units = (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3), ("FLOP", 1))
SECONDS: Units = (("s", 1), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a chart.

    Args:
      label: what it shows, such as 'modelled peak of the gradient'.
      units: the units of its numbers, the largest first, with their sizes.
      written: formats one of them exactly.
    """

    label: str
    units: Units
    written: Callable[..., str]

    def ticks(self, top: float, most: int) -> list[tuple[float, str]]:
        """Round numbers from 0 to `top`, with their texts: at most `most` of them above 0, in one unit."""
        unit, size = next(((u, s) for u, s in self.units if top >= s), self.units[-1])
        step = _round_step(top / size, most)
        n = int(top / size / step + 1e-9)
        return [(i * step * size, f"{i * step:g} {unit}" if i else "0") for i in range(n + 1)]


def _round_step(top: float, most: int) -> float:
    """The smallest of 1, 2, 5, 10, 20, … of which at most `most` are within `top`."""
    if top <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(top / most))
    return next(step for m in (1, 2, 5, 10, 20) if top / (step := m * power) < most + 1)


@dataclass(frozen=True, slots=True)
class Line:
    """The bytes of another program over its own steps, drawn as a line.

    Args:
      totals: the bytes at each step.
      passes: as of `OverTime`.
      label: what it is.
      name: the same in a word.
    """

    totals: Sequence[float]
    passes: Sequence[tuple[str, int]]
    label: str
    name: str


@dataclass(frozen=True, slots=True)
class OverTime:
    """Bytes alive over the steps of a program, stacked by kind, with the highest step marked.

    Args:
      steps: the bytes of each kind at each step.
      kinds: their names.
      passes: the parts of the program, each with its first step: `(("forward", 0), ("backward", 12))`.
      title: what is shown.
      peak: what is said at the highest step.
      notes: further lines.
      other: another program to compare with; each of its passes is as wide as the one of that name here.
      name: what the program is, in a word, beside the other.
      step: what a step is.
    """

    steps: Sequence[Sequence[float]]
    kinds: Sequence[str]
    passes: Sequence[tuple[str, int]]
    title: str
    peak: str
    notes: Sequence[str] = ()
    other: Line | None = None
    name: str = ""
    step: str = "equation"

    @property
    def totals(self) -> list[float]:
        """The bytes at each step."""
        return [sum(s) for s in self.steps]

    @property
    def top(self) -> float:
        """The most bytes of both programs."""
        return max([*self.totals, *(self.other.totals if self.other else ()), 0])

    @property
    def axis(self) -> Axis:
        return Axis("bytes alive", BYTES, format_bytes)

    def spans(self) -> list[tuple[str, int, int]]:
        """The passes, each with its first step and the one after its last."""
        return _spans(self.passes, len(self.steps))

    def other_spans(self) -> list[tuple[str, int, int]]:
        """The same of the other program."""
        return _spans(self.other.passes, len(self.other.totals)) if self.other else []

    def text(self, width: int = 72, top: float | None = None) -> str:
        """The chart in one line of text, or one for each program, as high as `top` bytes.

        Args:
          width: the number of columns of the bars.
          top: the bytes of the highest bar; by default the peak.
        """
        top, totals, spans = self.top if top is None else top, self.totals, self.spans()
        wide = [max(1, round(width * (end - start) / len(totals))) for _, start, end in spans]
        if self.other is None:
            bars = [_bars(totals[a:b], min(n, b - a), top) for (_, a, b), n in zip(spans, wide, strict=True)]
            return "  ".join(f"{name} {drawn}" for (name, _, _), drawn in zip(spans, bars, strict=True))
        mine = [_bars(totals[a:b], n, top) for (_, a, b), n in zip(spans, wide, strict=True)]
        wide_of = {name: n for (name, _, _), n in zip(spans, wide, strict=True)}
        theirs = [_bars(self.other.totals[a:b], wide_of.get(name, 1), top) for name, a, b in self.other_spans()]
        room = max(len(self.name), len(self.other.name)) + 1
        rows = ((self.name, mine), (self.other.name, theirs))
        return "\n".join(f"{name:{room}}{' '.join(parts)}" for name, parts in rows)


def _spans(passes: Sequence[tuple[str, int]], n: int) -> list[tuple[str, int, int]]:
    return [(name, first, end) for (name, first), (_, end) in pairwise([*passes, ("", n)]) if end > first]


def _bars(totals: Sequence[float], columns: int, top: float) -> str:
    """Numbers in so many columns, each as high as the highest of its own."""
    edges = [i * len(totals) // columns for i in range(columns + 1)]
    highest = (max(totals[a : max(b, a + 1)]) for a, b in pairwise(edges))
    return "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * n / (top + 1)))] for n in highest)


@dataclass(frozen=True, slots=True)
class TradeOff:
    """Points that trade one amount for another, with names, and the best trades as a line.

    Args:
      marks: x, y, a name and a kind for each.
      line: the best trades, the smallest x first; empty for no line.
      title: what is shown.
      x, y: the axes.
      note: what the line is.
    """

    marks: Sequence[tuple[float, float, str, str]]
    line: Sequence[tuple[float, float]]
    title: str
    x: Axis
    y: Axis
    note: str = ""

    @property
    def most(self) -> tuple[float, float]:
        """The largest x, and the largest y."""
        points = [*((x, y) for x, y, _, _ in self.marks), *self.line]
        return max([1, *(x for x, _ in points)]), max([1, *(y for _, y in points)])


@dataclass(frozen=True, slots=True)
class FlameGraph:
    """Bars below the bars that contain them.

    Args:
      rows: the name, kind, start and duration in seconds, and depth of each bar. The first is the whole.
      colours: the colours of the kinds, light enough for dark text.
      names: the names of the kinds in the legend.
      title: what is shown.
    """

    rows: Sequence[tuple[str, str, float, float, int]]
    colours: Mapping[str, str]
    names: Mapping[str, str]
    title: str

    @property
    def axis(self) -> Axis:
        return Axis("time", SECONDS, format_seconds)

    @property
    def seconds(self) -> float:
        """The whole."""
        return self.rows[0][3] if self.rows else 0.0

    @property
    def depth(self) -> int:
        """How many bars are below each other."""
        return 1 + max((depth for *_, depth in self.rows), default=0)

    @property
    def kinds(self) -> list[str]:
        """The kinds that occur, in the order of the legend."""
        return [k for k in self.names if any(kind == k for _, kind, *_ in self.rows)]


Chart = OverTime | TradeOff | FlameGraph
