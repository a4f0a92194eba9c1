"""Charts as data, which are drawn in several ways: in words, as SVG in a notebook (`pictures.py`), and with matplotlib
(`figures.py`).

Each has a `title`, and a `sentence` for those who do not see it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from jaxviz.report.tables import counted, format_bytes, format_seconds

Units = tuple[tuple[str, float], ...]

BYTES: Units = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
FLOPS: Units = (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3), ("FLOP", 1))
COUNTS: Units = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1))
NUMBERS: Units = (("", 1),)
SECONDS: Units = (("s", 1), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a chart.

    Args:
      label: what it shows, such as 'modelled peak of the gradient'.
      units: the units of its numbers, the largest first, with their sizes.
      written: formats one of them exactly.
      whole: whether it counts something, so that there is nothing between its ticks 0 and 1.
    """

    label: str
    units: Units
    written: Callable[..., str]
    whole: bool = False

    def ticks(self, top: float, most: int) -> list[tuple[float, str]]:
        """Round numbers from 0 to `top`, with their texts: at most `most` of them above 0, in one unit."""
        unit, size = next(((u, s) for u, s in self.units if top >= s), self.units[-1])
        step = max(_round_step(top / size, most), 1 / size if self.whole else 0)
        n = int(top / size / step + 1e-9)
        return [(i * step * size, f"{i * step:g} {unit}".rstrip() if i else "0") for i in range(n + 1)]


SIZE = Axis("bytes", BYTES, format_bytes)
TIME = Axis("time", SECONDS, format_seconds)


def _round_step(top: float, most: int) -> float:
    """The smallest of 1, 2, 5, 10, 20, … of which at most `most` are within `top`."""
    if top <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(top / most))
    return next(step for m in (1, 2, 5, 10, 20) if top / (step := m * power) < most + 1)


@dataclass(frozen=True, slots=True)
class OverlaidLine:
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


@dataclass(frozen=True)
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
      edges: where each step begins and the last one ends, on the axis `x`; by default all are as wide.
      x: that axis.
    """

    steps: Sequence[Sequence[float]]
    kinds: Sequence[str]
    passes: Sequence[tuple[str, int]]
    title: str
    peak: str
    notes: Sequence[str] = ()
    other: OverlaidLine | None = None
    name: str = ""
    step: str = "equation"
    edges: Sequence[float] = ()
    x: Axis | None = None

    @property
    def positions(self) -> Sequence[float]:
        """Where each step begins, and the last one ends."""
        return self.edges if len(self.edges) else range(len(self.steps) + 1)

    def columns(self, most: int) -> tuple[list[float], list[int]]:
        """At most so many columns that show the steps: their edges, and for each the step with the most bytes of those
        that it shows."""
        edges, steps = columns(self.positions, most)
        totals = self.totals
        return edges, [max(range(of.start, of.stop), key=totals.__getitem__) for of in steps]

    @cached_property
    def totals(self) -> list[float]:
        """The bytes at each step."""
        return [sum(s) for s in self.steps]

    @cached_property
    def top(self) -> float:
        """The most bytes of both programs."""
        return max([*self.totals, *(self.other.totals if self.other else ()), 0])

    @property
    def axis(self) -> Axis:
        return Axis("bytes alive", BYTES, format_bytes)

    @cached_property
    def highest(self) -> int:
        """The step with the most bytes."""
        return max(range(len(self.steps)), key=self.totals.__getitem__, default=0)

    @property
    def at_peak(self) -> list[tuple[str, float]]:
        """The kinds at the highest step, each with its bytes."""
        return [(k, n) for k, n in zip(self.kinds, self.steps[self.highest], strict=True) if n] if self.steps else []

    @property
    def sentence(self) -> str:
        there = ", ".join(f"{kind} {format_bytes(int(n))}" for kind, n in self.at_peak)
        including = f", including {there}" if there else ""
        return f"{self.title}, over {counted(len(self.steps), 'step')}: {self.peak}{including}"

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


def columns(positions: Sequence[float], most: int) -> tuple[list[float], list[slice]]:
    """At most so many columns that show steps: their edges, and the steps that each shows, at least in part.

    Args:
      positions: where each step begins, and the last one ends.
      most: the number of columns, which have the same width; steps of the same width, if they are no more, have a
        column each.
    """
    at = np.asarray(positions, float)
    n = len(at) - 1
    if n <= most and np.allclose(np.diff(at), at[-1] / max(n, 1)):
        return at.tolist(), [slice(i, i + 1) for i in range(n)]
    edges = at[-1] * np.arange(most + 1) / most
    first = np.minimum(np.searchsorted(at[1:], edges[:-1]), n - 1)
    after = np.maximum(first + 1, np.searchsorted(at[:-1], edges[1:]))
    after[-1] = n  # steps of zero width at the end belong to the last column
    return edges.tolist(), [slice(i, j) for i, j in zip(first.tolist(), after.tolist(), strict=True)]


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

    @property
    def texts(self) -> list[str]:
        """The amounts of each mark."""
        return [f"{self.x.written(int(x))}, {self.y.written(int(y))}" for x, y, _, _ in self.marks]

    @property
    def sentence(self) -> str:
        said = "; ".join(f"{name} {text}" for (_, _, name, _), text in zip(self.marks, self.texts, strict=True))
        return f"{self.title}, {self.x.label} against {self.y.label}: {said or 'nothing'}"


@dataclass(frozen=True, slots=True)
class FlameGraph:
    """Bars below the bars that contain them.

    Args:
      rows: the name, kind, start, length, and depth of each bar.
      colours: the colours of the kinds, light enough for dark text.
      names: the names of the kinds in the legend.
      title: what is shown.
      axis: what is drawn along the bars.
    """

    rows: Sequence[tuple[str, str, float, float, int]]
    colours: Mapping[str, str]
    names: Mapping[str, str]
    title: str
    axis: Axis = TIME

    @property
    def sentence(self) -> str:
        if not self.rows:
            return f"{self.title}: nothing"
        parts = ", ".join(f"{name} {self.axis.written(long)}" for name, _, _, long, depth in self.rows if depth == 1)
        return f"{self.title}: {self.rows[0][0]}{f', including {parts}' * bool(parts)}"

    @property
    def total(self) -> float:
        """Where the last bar ends."""
        return max((start + long for _, _, start, long, _ in self.rows), default=0.0)

    @property
    def depth(self) -> int:
        """How many bars are below each other."""
        return 1 + max((depth for *_, depth in self.rows), default=0)

    @property
    def kinds(self) -> list[str]:
        """The kinds that occur, in the order of the legend."""
        return [k for k in self.names if any(kind == k for _, kind, *_ in self.rows)]


@dataclass(frozen=True, slots=True)
class Bars:
    """Amounts by label, the largest first.

    Args:
      rows: label, amount and kind. Those with one label are stacked in one bar.
      title: what the amounts are, such as `bytes saved for the backward pass, by line`.
      axis: what is drawn along the bars.
      beside: whether the kinds of a label are separate bars below each other instead, to compare them.
      most: how many labels are shown; the others are summed up.
      adds_up: whether sums of the amounts mean something, and are written.
    """

    rows: Sequence[tuple[str, float, str]]
    title: str
    axis: Axis = SIZE
    beside: bool = False
    most: int = 8
    adds_up: bool = True

    @property
    def bars(self) -> list[tuple[str, Mapping[str, float]]]:
        """The labels, each with the amount of each kind."""
        by_label: dict[str, dict[str, float]] = {}
        for label, amount, kind in self.rows:
            amounts = by_label.setdefault(label, {})
            amounts[kind] = amounts.get(kind, 0) + amount
        bars = [(label, amounts) for label, amounts in by_label.items() if self.length(amounts) > 0]
        return sorted(bars, key=lambda bar: -self.length(bar[1]))

    def length(self, amounts: Mapping[str, float]) -> float:
        """The length of a bar, or of the longest one of a label."""
        return max(amounts.values()) if self.beside else sum(amounts.values())

    def texts(self, amounts: Mapping[str, float]) -> list[str]:
        """What is written at the end of the bar, or of each bar, of a label."""
        return [self.axis.written(n) for n in (amounts.values() if self.beside else (sum(amounts.values()),))]

    @property
    def legend(self) -> list[tuple[str, str]]:
        """A text for each kind, with its amount if that means something; and the kind."""
        totals: dict[str, float] = {}
        for _, amounts in self.bars:
            for kind, n in amounts.items():
                totals[kind] = totals.get(kind, 0) + n
        return [(f"{kind} {self.axis.written(n)}" if self.adds_up else kind, kind) for kind, n in totals.items() if n]

    @property
    def left_out(self) -> str:
        """What is not shown: `and 12 more, 3.0 MiB`."""
        rest = self.bars[self.most :]
        size = sum(sum(amounts.values()) for _, amounts in rest)
        more = f", {self.axis.written(size)}" if self.adds_up and not self.beside else ""
        return f"and {len(rest):,} more{more}" if rest else ""

    @property
    def sentence(self) -> str:
        bars = self.bars
        if not bars:
            return f"{self.title}: nothing"
        label, amounts = bars[0]
        return f"{self.title}: the longest of {len(bars):,} is {label} {' and '.join(self.texts(amounts))}"


Span = tuple[str, float, Sequence[tuple[str, float]]]
"""A name, its start in seconds, and its phases in order, each with its seconds."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """What took how long and when, one lane per name.

    Args:
      rows: what happened; without phases it is left out.
      title: what is shown.
      most: the number of lanes, for those that took longest; the others share the last.
    """

    rows: Sequence[Span]
    title: str
    most: int = 8

    @property
    def lanes(self) -> list[tuple[str, list[Span]]]:
        """The lanes in the order of their start, each with its name."""
        by_name: dict[str, list[Span]] = {}
        for row in self.rows:
            if _seconds([row]):
                by_name.setdefault(row[0], []).append(row)
        longest = sorted(by_name, key=lambda name: -_seconds(by_name[name]))
        rest = longest[self.most - 1 :] if len(longest) > self.most else []
        lanes = [(name, rows) for name, rows in by_name.items() if name not in rest]
        return [*lanes, (f"{len(rest):,} others", [row for name in rest for row in by_name[name]])] if rest else lanes

    def text(self, rows: Sequence[Span]) -> str:
        """`1.20 s, 3 times`: how long in all, and how often."""
        return f"{format_seconds(_seconds(rows))}{f', {len(rows):,} times' * (len(rows) > 1)}"

    @property
    def span(self) -> tuple[float, float]:
        """When the first of them starts, and how long it takes until the last one ends, in seconds."""
        rows = [row for _, rows in self.lanes for row in rows]
        start = min((row[1] for row in rows), default=0.0)
        return start, max((row[1] + _seconds([row]) for row in rows), default=start) - start

    @property
    def legend(self) -> list[tuple[str, str]]:
        """A text for each kind of phase, with its seconds; and the kind."""
        totals: dict[str, float] = {}
        for _, _, phases in self.rows:
            for kind, s in phases:
                totals[kind] = totals.get(kind, 0.0) + s
        return [(f"{kind} {format_seconds(s)}", kind) for kind, s in totals.items() if s]

    @property
    def sentence(self) -> str:
        lanes, n = self.lanes, sum(len(rows) for _, rows in self.lanes)
        if not lanes:
            return f"{self.title}: nothing"
        name, rows = max(lanes, key=lambda lane: _seconds(lane[1]))
        took = f"{name} took longest, {format_seconds(_seconds(rows))}"
        return f"{self.title}: {n:,} in {format_seconds(self.span[1])}, in {counted(len(lanes), 'lane')}; {took}"


def _seconds(rows: Sequence[Span]) -> float:
    return sum(s for _, _, phases in rows for _, s in phases)


@dataclass(frozen=True, slots=True)
class ChainLink:
    """A place in a chain.

    Args:
      place: such as `model.py:12`.
      text: the line of source there; '' if unavailable.
      what: the operations, and the value.
      kind: a key of `kinds.COLOURS`.
    """

    place: str
    text: str
    what: str
    kind: str


@dataclass(frozen=True, slots=True)
class Chain:
    """The places that a value passes through, from top to bottom.

    Args:
      stops: the places.
      title: what passes through them.
      most: how many are shown; if there are more, the first and the last ones.
    """

    stops: Sequence[ChainLink]
    title: str
    most: int = 10

    @property
    def shown(self) -> list[ChainLink | str]:
        """The places that are shown, with a text in place of those that are not."""
        if len(self.stops) <= self.most:
            return list(self.stops)
        first, last = self.most // 2, self.most - self.most // 2
        more = f"… {len(self.stops) - self.most:,} more …"
        return [*self.stops[:first], more, *self.stops[-last:]]

    @property
    def sentence(self) -> str:
        stops = self.stops if len(self.stops) < 4 else (self.stops[0], self.stops[-1])
        way = ", then ".join(f"{s.place} {s.what}" for s in stops)
        return f"{self.title}, in {counted(len(self.stops), 'step')}: {way or 'nothing'}"


@dataclass(frozen=True)
class Curve:
    """Amounts along a run.

    Args:
      points: places and amounts. Of 0 the place is the lowest line; what is not finite is left out.
      kind: a key of `kinds.COLOURS`.
      name: what it is in a word, in text; '' for one that is drawn thin, to compare with.
      label: what it is, in the legend.
      is_line: whether the points are joined.
    """

    points: Sequence[tuple[float, float]]
    kind: str
    name: str = ""
    label: str = ""
    is_line: bool = True

    @cached_property
    def finite(self) -> list[tuple[float, float]]:
        return [(x, y) for x, y in self.points if math.isfinite(y)]


@dataclass(frozen=True)
class Curves:
    """Amounts along a run, on a logarithmic axis.

    Args:
      curves: the amounts.
      title: what is shown.
      x: the axis along the run.
      y: what the amounts are.
      marks: places with a line across, each with a text.
      level: an amount with a line across, with a text.
      notes: further lines.
    """

    curves: Sequence[Curve]
    title: str
    x: Axis
    y: str
    marks: Sequence[tuple[float, str]] = ()
    level: tuple[float, str] | None = None
    notes: Sequence[str] = ()

    @cached_property
    def _amounts(self) -> list[float]:
        beside = [self.level[0] / 10, self.level[0] * 10] if self.level else []  # room for its text
        return [*(y for c in self.curves for _, y in c.finite), *beside]

    @cached_property
    def _has_zero(self) -> bool:
        return 0 in self._amounts

    @property
    def named(self) -> list[Curve]:
        """The curves that are not only there to compare with."""
        return [c for c in self.curves if c.name]

    @cached_property
    def width(self) -> float:
        """The last place; 0 is the first."""
        return max((x for c in self.curves for x, _ in c.points), default=0)

    @cached_property
    def decades(self) -> tuple[int, int]:
        """The powers of ten between which all amounts but 0 are."""
        logs = [math.log10(y) for y in self._amounts if y > 0]
        low = math.floor(min(logs, default=0) + 1e-9)
        return low, max(math.ceil(max(logs, default=0) - 1e-9), low + 1)

    @property
    def is_empty(self) -> bool:
        return not any(c.finite for c in self.curves)

    def height(self, amount: float) -> float:
        """Where an amount is, from 0 at the bottom to 1."""
        low, high = self.decades
        below = (high - low) / 8 if self._has_zero else 0.0
        at = math.log10(amount) if amount > 0 else low - below
        return (at - low + below) / (high - low + below)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Powers of ten with their texts, at most so many, and 0 if that occurs."""
        low, high = self.decades
        step = next(n for n in (1, 2, 3, 5, 10, 20, 50) if (high - low) // n < most)
        powers = [n for n in range(low, high + 1) if n % step == 0]
        return [*([(0.0, "0")] if self._has_zero else []), *((10.0**n, _power(n)) for n in powers)]

    @property
    def sentence(self) -> str:
        if self.is_empty:
            return f"{self.title}: nothing"
        ranges = [(c, [y for _, y in c.finite]) for c in self.named if c.finite]
        said = [f"{c.label or c.name} from {min(ys):.3g} to {max(ys):.3g}" for c, ys in ranges]
        return "; ".join([f"{self.title}, {self.y}: {', '.join(said)}", *(text for _, text in self.marks)])

    def text(self, width: int = 60) -> str:
        """A line of text for each curve that has a name, and what the heights mean."""
        room = max((len(c.name) for c in self.named), default=0) + 2
        n = min(width, int(self.width) + 1)
        lines = []
        for c in self.named:
            heights = [-1.0] * n
            for x, y in c.finite:
                column = int(x * n / (self.width + 1))
                heights[column] = max(heights[column], self.height(y))
            bars = "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * h))] if h >= 0 else " " for h in heights)
            lines.append(f"{c.name:{room}}{bars}".rstrip())
        least = "0" if 0 in self._amounts else _power(self.decades[0])
        return "\n".join([*lines, f"{'':{room}}▁ {least} to █ {_power(self.decades[1])}, {self.y}"])


def _power(n: int) -> str:
    """A power of ten."""
    if -3 < n < 4:
        return f"{10.0**n:,g}"
    return "10" + str(n).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


Chart = OverTime | TradeOff | FlameGraph | Bars | Lanes | Chain | Curves
