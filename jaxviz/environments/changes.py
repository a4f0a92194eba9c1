"""What differs between the facts of two environments: figures, rows, values, and which of them got worse."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

import numpy as np

from jaxviz.analysis.checkpoints import effect_rows, effects_apart, in_short
from jaxviz.analysis.grouping import pattern
from jaxviz.environments.facts import Facts, LeafValues, LineWork, PolicyDecisions, SavedRow
from jaxviz.environments.values import distance
from jaxviz.ir.origin import Location
from jaxviz.report.data import Data
from jaxviz.report.differences import Difference, Figure, most_of_it, paired_by, signed
from jaxviz.report.tables import counted, listed, repeated, short_location
from jaxviz.xla.collectives.report import Collective, in_words
from jaxviz.xla.compile_cost.stages import Phases
from jaxviz.xla.compiled_memory.change import MemoryChange

ROUNDINGS = 10
"""How many times their noise values may differ and still agree: a program rounds each value many times, and the noise
is that of rounding its arguments once."""
SLOWER = 1.5
"""How many times as long compiling has to take to count as slower, in the median; each of the times also has to be
longer than all of the other environment."""
SMALL = 0.005
"""A figure that grows by a smaller share is not a headline."""


def _place(location: Location | None) -> Hashable:
    """A line, whatever the folder that an environment has it in."""
    return None if location is None else (location.file.rpartition("/")[2], location.line)


# --- rows -------------------------------------------------------------------------------------------------------------

_SAVED_KEYS: tuple[Callable[[SavedRow], Hashable], ...] = (
    lambda r: (pattern(r.label), r.type, r.count, _place(r.location), r.why),
    lambda r: (pattern(r.label), r.type, _place(r.location)),
    lambda r: (r.type, r.nbytes, _place(r.location)),
    lambda r: (pattern(r.label), _place(r.location)),
    lambda r: (r.type, _place(r.location)),
    lambda r: (pattern(r.label), r.type),
)
"""Keys by which saved values are matched: the words for one may differ between versions, and a library's lines move."""


def saved_differences(
    before: Sequence[SavedRow], after: Sequence[SavedRow], keys: Sequence[Callable[[SavedRow], Hashable]] = _SAVED_KEYS
) -> tuple[Difference, ...]:
    """What the gradient saves more or less of, the most bytes first; `keys` are those by which rows are matched."""
    rows = (_saved_difference(a, b) for a, b in paired_by(keys, before, after))
    return _largest_first(d for d in rows if d.change)


def _saved_difference(a: SavedRow | None, b: SavedRow | None) -> Difference:
    row = b or a
    assert row is not None
    if a is None:
        why = f"it is saved now; {row.why}"
    elif b is None:
        why = "it is no longer saved"
    else:
        types = [f"{b.type} now, {a.type} before"] * (a.type != b.type)
        why = "; ".join([*types, *[f"{b.count:,} now, {a.count:,} before"] * (a.count != b.count)])
    change = (b.nbytes if b else 0) - (a.nbytes if a else 0)
    return Difference(change, f"`{row.label}`", repeated(row.count, row.type), row.location, why=why)


_WORK_KEYS: tuple[Callable[[LineWork], Hashable], ...] = (
    lambda line: (_place(line.location), line.text),
    lambda line: line.text or None,
    lambda line: _place(line.location),
)


def work_differences(before: Sequence[LineWork], after: Sequence[LineWork]) -> tuple[Difference, ...]:
    """The lines that compute more or less in one of the passes, the most FLOPs of both together first."""
    flops = lambda w: 0 if w is None else w.forward + w.backward
    rows = []
    for a, b in paired_by(_WORK_KEYS, before, after):
        line = b or a
        assert line is not None
        parts = {name: getattr(b, name, 0) - getattr(a, name, 0) for name in _PARTS}
        if any(parts.values()):
            what = f"{_operation(a, b)}`{line.text}`" if line.text else "a line without source"
            why = ", ".join(f"{name} {signed(n, 'FLOPs')}" for name, n in parts.items() if n)
            rows.append(Difference(flops(b) - flops(a), what, "", line.location, why=why, unit="FLOPs"))
    return _largest_first(rows)


def _operation(a: LineWork | None, b: LineWork | None) -> str:
    """``"`lgamma` in "``: the operation that makes most of the change of a line; '' if there is none, or if others
    change in the other direction, as where one takes the place of several."""
    if a is None or b is None:
        return ""
    names = a.operations | b.operations
    changes = {name: b.operations.get(name, 0) - a.operations.get(name, 0) for name in names}
    total = sum(changes.values())
    if any(n * total < 0 for n in changes.values()):
        return ""
    most = max(changes, key=lambda name: abs(changes[name]), default="")
    return f"`{most}` in " if total and 2 * abs(changes[most]) > abs(total) else ""


_PARTS = ("forward", "backward", "recomputed")
"""The parts of the work of a line; what is recomputed is also part of the backward pass."""


_COLLECTIVE_KEYS: tuple[Callable[[Collective], Hashable], ...] = (
    lambda c: (c.kind, c.axes, c.type, _place(c.location), pattern(c.what)),
    lambda c: (c.kind, c.axes, _place(c.location)),
    lambda c: (c.axes, _place(c.location), pattern(c.what)),
    lambda c: (c.kind, c.axes, c.type),
)


def collective_differences(before: Sequence[Collective], after: Sequence[Collective]) -> tuple[Difference, ...]:
    """The collectives by which each device sends more or less, the most bytes first."""
    rows = []
    for a, b in paired_by(_COLLECTIVE_KEYS, before, after):
        row = b or a
        assert row is not None
        change = (b.total_sent_nbytes if b else 0) - (a.total_sent_nbytes if a else 0)
        if a is None or b is None:
            why = row.cause if b else "it is no longer there"
        else:
            kinds = [f"{b.kind} now, {a.kind} before"] * (a.kind != b.kind)
            why = "; ".join([*kinds, *[f"{b.times} now, {a.times} before"] * (a.times != b.times)])
        over = f"{row.kind} over {', '.join(row.axes) or counted(row.group_size, 'device')}"
        types = repeated(row.count, row.type)
        if change:
            rows.append(Difference(change, in_words(row.what), types, row.location, over, why))
    return _largest_first(rows)


_DECISION_KEYS: tuple[Callable[[PolicyDecisions], Hashable], ...] = (
    lambda p: (p.function, p.policy, _place(p.location)),
    lambda p: (p.function, _place(p.location)),
    lambda p: (p.function, p.policy),
)


def decision_differences(before: Sequence[PolicyDecisions], after: Sequence[PolicyDecisions]) -> tuple[Difference, ...]:
    """The checkpoints whose policies save other numbers of values."""
    rows = []
    for a, b in paired_by(_DECISION_KEYS, before, after):
        p = b or a
        assert p is not None
        counts = lambda q: (0, 0, 0) if q is None else (q.saved, q.offloaded, q.recomputed)
        if counts(a) == counts(b):
            continue
        fates = zip(("saved", "offloaded", "recomputed"), counts(a), counts(b), strict=True)
        why = ", ".join(f"{n:,} {fate} now, {m:,} before" for fate, m, n in fates if m != n)
        change = counts(b)[0] - counts(a)[0]
        what = f"the policy {p.policy} of the checkpoint of `{p.function}`"
        rows.append(Difference(change, what, "", p.location, why=why, unit="values"))
    return tuple(rows)


def _largest_first(rows: Iterable[Difference]) -> tuple[Difference, ...]:
    return tuple(sorted(rows, key=lambda d: -abs(d.change)))


Verdict = Literal["worse", "better", "same"]

# --- figures, and which got worse -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Judged(Data):
    """A figure of both environments, of which less is better.

    Args:
      figure: the figure.
      where: what contributes most to its change, with the line; '' if that is not known.
      verdict: 'worse' or 'better'; 'same' if it is the same, or if the difference says nothing.
    """

    figure: Figure
    where: str
    verdict: Verdict

    @property
    def is_small(self) -> bool:
        """Whether it changes by less than half a percent."""
        f = self.figure
        return bool(f.before) and abs(f.change) < SMALL * f.before

    @property
    def text(self) -> str:
        """`saved bytes 18.3 MiB → 19.8 MiB, +1.5 MiB (+8%), most of it …`."""
        return ", ".join(filter(None, [str(self.figure), self.where]))


def judged_figures(a: Facts, b: Facts) -> Iterator[Judged]:
    """The figures that both have, the most reliable first: from types, from the compiled program, measured."""
    p, q = a.program, b.program
    saved = saved_differences(p.saved, q.saved)
    yield _shown(_sums("saved values", "values", p.saved, q.saved, lambda r: r.count))
    yield _judged(_sums("saved bytes", "bytes", p.saved, q.saved, lambda r: r.nbytes), most_of_it(saved))
    if p.peak is not None and q.peak is not None:
        at = f" ({short_location(q.peak.location)})" if q.peak.location is not None else ""
        yield _judged(Figure("modelled peak", p.peak.nbytes, q.peak.nbytes, "bytes"), f"at `{q.peak.what}`{at}")
    if p.work is not None and q.work is not None:
        most = most_of_it(work_differences(p.work, q.work))
        yield _judged(_sums("FLOPs", "FLOPs", p.work, q.work, lambda w: w.forward + w.backward), most)
        for part in _PARTS:
            yield _shown(_sums(f"{part} FLOPs", "FLOPs", p.work, q.work, attrgetter(part)))
    yield from _judged_compiled(a, b)


def _sums(name: str, unit: str, before: Iterable[Any], after: Iterable[Any], amount: Callable[[Any], int]) -> Figure:
    return Figure(name, sum(map(amount, before)), sum(map(amount, after)), unit)


def _judged(figure: Figure, where: str) -> Judged:
    verdict: Verdict = "worse" if figure.change > 0 else "better" if figure.change < 0 else "same"
    return Judged(figure, where * bool(figure.change), verdict)


def _shown(figure: Figure) -> Judged:
    """A figure that is part of another one, and not judged itself."""
    return Judged(figure, "", "same")


def _judged_compiled(a: Facts, b: Facts) -> Iterator[Judged]:
    x, y = a.compiled, b.compiled
    if x.memory is not None and y.memory is not None:
        peak = Figure("compiled peak", x.memory.peak_nbytes, y.memory.peak_nbytes, "bytes")
        yield _judged(peak, MemoryChange(x.memory, y.memory).most_of_it)
        yield _shown(Figure("XLA's temporaries", x.memory.temp_nbytes, y.memory.temp_nbytes, "bytes"))
    if x.collectives is not None and y.collectives is not None and (x.collectives or y.collectives):
        rows = collective_differences(x.collectives, y.collectives)
        sent = _sums("sent by each device", "bytes", x.collectives, y.collectives, lambda c: c.total_sent_nbytes)
        yield _judged(sent, most_of_it(rows))
        yield _shown(_sums("collectives", "collectives", x.collectives, y.collectives, lambda c: c.count))
    if x.compilations and y.compilations:
        yield _compile_time(x.compilations, y.compilations)


def _compile_time(before: Sequence[Phases], after: Sequence[Phases]) -> Judged:
    """The CPU time of tracing, lowering and compiling, which other work on the machine disturbs least."""
    ms = lambda phases: [round(1000 * p.cpu) for p in phases]
    a, b = ms(before), ms(after)
    figure = Figure("compile time", round(statistics.median(a)), round(statistics.median(b)), "ms")
    slower = min(b) > max(a) and figure.after > SLOWER * figure.before
    faster = min(a) > max(b) and figure.before > SLOWER * figure.after
    if not slower and not faster:
        return Judged(figure, "", "same")
    of = lambda phases, name: statistics.median(getattr(p, name).cpu for p in phases)
    names = {"tracing": "tracing", "lowering": "lowering", "compiling": "XLA"}
    most = max(names, key=lambda name: (1 if slower else -1) * (of(after, name) - of(before, name)))
    return Judged(figure, f"most of it in {names[most]}", "worse" if slower else "better")


# --- effects and values -----------------------------------------------------------------------------------------------


def effects(a: Facts, b: Facts) -> tuple[tuple[Difference, ...], str, str]:
    """What has no effect in one environment only, as rows; in short, what has no effect now, and what has one now."""
    before, after = a.program.without_effect, b.program.without_effect
    if before is None or after is None:
        return (), "", ""
    gone, new = effects_apart(before, after)
    return effect_rows(gone, new), in_short(new), in_short(gone)


@dataclass(frozen=True, slots=True)
class LeafChange(Data):
    """An array that both environments compute.

    Args:
      before, after: what is known of it in each.
      difference: the norm of the difference of its elements that are finite in both.
    """

    before: LeafValues
    after: LeafValues
    difference: float

    @property
    def noise(self) -> float:
        """The larger noise of both."""
        return max(self.before.noise, self.after.noise)

    @property
    def not_finite(self) -> tuple[int, int]:
        """The number of elements that are not finite, in each."""
        return self.before.nans + self.before.infinities, self.after.nans + self.after.infinities

    @property
    def agrees(self) -> bool:
        """Whether the elements that are not finite are as many, and the others differ within their noise."""
        same = (self.before.nans, self.before.infinities) == (self.after.nans, self.after.infinities)
        return same and self.difference <= ROUNDINGS * self.noise

    @property
    def times_noise(self) -> float:
        """The difference as a multiple of the noise."""
        return self.difference / self.noise if self.noise else float("inf") if self.difference else 0.0

    @property
    def name(self) -> str:
        """`the gradient in `params['w']``, or the result."""
        name = self.after.name
        return f"the gradient in `{name}`" if self.after.kind == "gradient" else name

    @property
    def text(self) -> str:
        """``the gradient in `w` differs by 0.12% of its norm, 240 times its noise``."""
        m, n = self.not_finite
        if m != n or (self.before.nans, self.before.infinities) != (self.after.nans, self.after.infinities):
            is_nan = self.after.nans != self.before.nans
            what, m, n = ("NaN", self.before.nans, self.after.nans) if is_nan else (
                "infinite", self.before.infinities, self.after.infinities)  # fmt: skip
            return f"{self.name} has {n:,} {what} elements, {m:,} before"
        share = f"{100 * self.difference / self.before.norm:.2g}% of its norm" if self.before.norm else "all of it"
        times = f", {self.times_noise:,.0f} times its noise" if self.noise else ""
        return f"{self.name} differs by {share}{times}"


def leaf_changes(
    a: Facts, b: Facts, arrays: tuple[Sequence[np.ndarray[Any, Any]], Sequence[np.ndarray[Any, Any]]]
) -> tuple[LeafChange, ...] | str:
    """What both compute, the largest differences first; or why it cannot be compared.

    Args:
      a, b: the facts.
      arrays: what each has computed.
    """
    before, after = (() if f.values is None else f.values.leaves for f in (a, b))
    if len(before) != len(after):
        return f"{len(before)} arrays are computed before, and {len(after)} now"
    other = [(x, y) for x, y, p, q in zip(before, after, *arrays, strict=True) if p.shape != q.shape]
    if other:
        return listed(f"{y.name} has the type {y.type} now, {x.type} before" for x, y in other)
    rows = [LeafChange(x, y, distance(p, q)) for x, y, p, q in zip(before, after, *arrays, strict=True)]
    return tuple(sorted(rows, key=lambda c: (c.agrees, -abs(c.not_finite[1] - c.not_finite[0]), -c.times_noise)))
