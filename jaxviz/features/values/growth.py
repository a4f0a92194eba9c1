"""`growth`: how values and cotangents grow or shrink along a loop or over layers, and at which line."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxviz.arguments import Argnums
from jaxviz.features.values.recording import record
from jaxviz.features.values.records import ITERATION, REVERSED, Neighbour, Occurrence, Order, RunRecord
from jaxviz.features.values.summaries import BAD, MAX, NORM
from jaxviz.ir.boundary import api_boundary
from jaxviz.report.charts import NUMBERS, Axis, Curve, Curves
from jaxviz.report.report import SHOWN, Drawn, Part, Report, Table
from jaxviz.report.tables import counted

LEAST = 10.0
"""By which factor something has to grow, or shrink, in all steps together to be worth a sentence."""
FEWEST = 3
"""Steps, of which fewer are no series."""


@dataclass(frozen=True)
class Gain:
    """By which factor a value is larger than the largest of what it is computed from, on average.

    Args:
      factor: that factor.
      expression, line: the expression that does it; of a cotangent the one that is differentiated.
    """

    factor: float
    expression: str
    line: str


@dataclass(frozen=True)
class GrowthSeries:
    """A value, or its cotangent, in each iteration or layer.

    Args:
      expression, line: what computes it, and where.
      phase: 'forward' or 'cotangent'.
      norms: its Euclidean norms, in the order in which they were computed; infinite if an element is not finite.
      gain: how it compares with what it is computed from; None if that has no address.
      of_loop: whether the steps are iterations of a loop, and not layers in Python.
    """

    expression: str
    line: str
    phase: str
    norms: tuple[float, ...]
    gain: Gain | None
    of_loop: bool

    @property
    def factor(self) -> float:
        """By which factor it grows in a step, on average; 1 if that cannot be said."""
        positive = [n for n in self.norms if n > 0 and math.isfinite(n)]
        return (positive[-1] / positive[0]) ** (1 / (len(positive) - 1)) if len(positive) > 1 else 1.0

    @property
    def in_all(self) -> float:
        """How far it grows or shrinks in all steps, as a logarithm."""
        return abs(math.log(self.factor)) * (len(self.norms) - 1)

    @property
    def what(self) -> str:
        return f"the cotangent of `{self.expression}`" if self.phase == "cotangent" else f"`{self.expression}`"

    @property
    def step(self) -> str:
        """What a step is."""
        return "iteration" if self.of_loop else "layer"

    @property
    def each(self) -> str:
        return f"{'an' if self.of_loop else 'a'} {self.step}"

    def curve(self, is_main: bool) -> Curve:
        """The norms by the step of the forward pass, in which the backward pass goes back."""
        norms = self.norms if self.phase == "forward" else self.norms[::-1]
        kind, name = ("forward", "value") if self.phase == "forward" else ("backward", "cotangent")
        if not is_main:
            return Curve(tuple(enumerate(norms)), kind)
        label = f"×{self.factor:.3g} {self.each}, {self.line}: {self.what.replace('`', '')}"
        return Curve(tuple(enumerate(norms)), kind, name, label)


@dataclass(frozen=True)
class Extreme:
    """Where a value first leaves the range of its type.

    Args:
      expression, line, phase: as of `GrowthSeries`.
      number: in which step of the forward pass, from 0; the backward pass goes through them from the last one.
      kind: 'is not finite', 'is below the smallest normal number', or 'is zero', though it was not before.
      steps: how many steps there are.
    """

    expression: str
    line: str
    phase: str
    number: int
    kind: str
    steps: int


@dataclass(frozen=True, repr=False)
class Growth(Report, schema="growth"):
    """How values and cotangents grow; see `growth`.

    >>> found = jaxviz.growth(loss, params, x)
    >>> found.series, found.extremes

    Args:
      function: the name of the function.
      series: what there is several times, what grows or shrinks most first.
      extremes: where values leave the range of their type, in the order of the run.
      note: what was not looked at; '' if that is nothing.
    """

    function: str
    series: tuple[GrowthSeries, ...]
    extremes: tuple[Extreme, ...]
    note: str = ""

    @cached_property
    def steepest(self) -> GrowthSeries | None:
        """What grows or shrinks most, if that is worth a sentence; a cotangent before a value that does as much."""
        found = [s for s in self.series if s.in_all > math.log(LEAST)]
        return found[0] if found else None

    @property
    def summary(self) -> str:
        s = self.steepest
        if s is None:
            what = "grows or shrinks tenfold" if self.series else "that has an address is computed in steps"
            return f"`{self.function}`: nothing {what}"
        how = f"grows ×{s.factor:.3g}" if s.factor > 1 else f"shrinks ×{s.factor:.3g}"
        steps = f"from {s.norms[0]:.3g} to {s.norms[-1]:.3g} in {len(s.norms)}"
        most = self.amplifier
        by = f"; most by {_done_by(s, f'`{most.expression}`')} ({most.line}), ×{most.factor:.3g}" if most else ""
        return f"`{self.function}`: {s.what} ({s.line}) {how} {s.each}, {steps}{by}"

    @property
    def amplifier(self) -> Gain | None:
        """The line that does it: of the same pass the largest gain, or the least."""
        s = self.steepest
        if s is None:
            return None
        same = [
            q.gain for q in self.series if q.phase == s.phase and q.gain is not None and len(q.norms) == len(s.norms)
        ]
        most = (max if s.factor > 1 else min)(same, key=lambda gain: gain.factor, default=None)
        return most if most is not None and (most.factor > 1) == (s.factor > 1) else None

    def _chart(self) -> Curves | None:
        """What grows most and the same in the other pass, among all that has as many steps."""
        if not self.series:
            return None
        most = self.series[0]
        same = [s for s in self.series if (s.of_loop, len(s.norms)) == (most.of_loop, len(most.norms))]
        others = [s for s in same if s.phase != most.phase]
        twin = next((s for s in others if (s.expression, s.line) == (most.expression, most.line)), None)
        main = sorted(filter(None, (most, twin or next(iter(others), None))), key=lambda s: s.phase, reverse=True)
        thin = [s for s in same[:SHOWN] if s not in main]
        marks: dict[str, tuple[float, str]] = {}
        for e in self.extremes:
            if any((s.expression, s.line, s.phase) == (e.expression, e.line, e.phase) for s in same):
                what = "a cotangent" if e.phase == "cotangent" else "a value"
                marks.setdefault(what, (e.number, f"{what} {e.kind}"))
        by = self.amplifier
        notes = (
            f"most at {by.line}, ×{by.factor:.3g}: {_done_by(most, by.expression)}" if by else "",
            "← the backward pass goes from right to left" if others else "",
            f"thin: {counted(len(thin), 'other')}, in the colour of their pass" if thin else "",
        )
        return Curves(
            [*(s.curve(False) for s in thin), *(s.curve(True) for s in main)],
            f"norms in {self.function} by {most.step}", Axis(most.step, NUMBERS, str, whole=True), "norm",
            tuple(marks.values()), notes=tuple(filter(None, notes)),
        )  # fmt: skip

    def _parts(self) -> list[Part]:
        chart = self._chart()
        return [*([Drawn(chart.text())] if chart is not None else []), *self._html_parts()]

    def _html_parts(self) -> list[Part]:
        parts: list[Part] = [self.note] if self.note else []
        for e in self.extremes:
            what = f"the cotangent of `{e.expression}`" if e.phase == "cotangent" else f"`{e.expression}`"
            first = f", first in step {e.number} of {e.steps}" if e.steps > 1 else ""
            parts.append(f"{what} ({e.line}) {e.kind}{first}.")
        rows = [
            (
                s.what.replace("`", ""), s.line, str(len(s.norms)), f"{s.norms[0]:.3g}", f"{s.norms[-1]:.3g}",
                f"×{s.factor:.3g}", "" if s.gain is None else f"×{s.gain.factor:.3g}",
            )
            for s in self.series
        ]  # fmt: skip
        heads = ("value", "line", "steps", "first norm", "last norm", "a step", "of its operands")
        return [*parts, Table(heads, rows, "<<>>>>>")] if rows else parts


def _done_by(s: GrowthSeries, expression: str) -> str:
    return f"the derivative of {expression}" if s.phase == "cotangent" else expression


def growth_of(run: RunRecord) -> Growth:
    """The growth in a record."""
    series: list[GrowthSeries] = []
    steps: dict[Occurrence, tuple[int, int]] = {}
    for phase in ("cotangent", "forward"):
        # Of a step that takes its gradient in a loop, the first time.
        events = [o for o in run.events if o.value.phase == phase and not any(o.index[: o.value.n_outer])]
        by_key = {(o.value.order, o.index): o for o in events}
        reached = _Reached({o.value.order: o.value.neighbours for o in events})
        for key, group in _groups(events):
            in_order = group if phase == "forward" else group[::-1]
            steps.update((o, (i, len(group))) for i, o in enumerate(in_order))
            if len(group) >= FEWEST and reached.again(group):
                value = group[0].value
                norms = tuple(map(_norm, group))
                gain = _gain(group, by_key)
                series.append(GrowthSeries(value.expression, value.line, phase, norms, gain, key[1] > 1))
    series.sort(key=lambda s: (-round(s.in_all, 1), s.phase != "cotangent"))
    return Growth(run.function, tuple(series), tuple(_extremes(run, steps)), run.note)


def _groups(events: Sequence[Occurrence]) -> Iterator[tuple[tuple[str, int], list[Occurrence]]]:
    """What is one value in several iterations, or one expression in several layers."""
    groups: dict[tuple[str, int], list[Occurrence]] = {}
    for o in events:
        text = f"{o.value.expression} {o.value.line} {o.value.type}"
        groups.setdefault((text, o.value.n), []).append(o)
    yield from groups.items()


class _Reached:
    """What values are computed from, at any distance.

    Args:
      neighbours: of each value, by its order, the nearest.
    """

    def __init__(self, neighbours: Mapping[Order, Sequence[Neighbour]]):
        self._neighbours = neighbours

    def again(self, group: Sequence[Occurrence]) -> bool:
        """Whether one of them is computed from another one: otherwise they are side by side, and no steps."""
        wanted = {o.value.order for o in group}
        seen: set[Order] = set()
        last = group[-1].value.order
        ahead = [order for order, _ in self._neighbours[last]]
        while ahead:
            order = ahead.pop()
            if order in wanted:
                return True
            if order not in seen:
                seen.add(order)
                ahead += [o for o, _ in self._neighbours.get(order, ())]
        return False


def _norm(o: Occurrence) -> float:
    """That of the array, and not of its finite elements."""
    return math.inf if o.summary[BAD] else float(o.summary[NORM])


def _gain(group: Sequence[Occurrence], by_key: dict[Any, Occurrence]) -> Gain | None:
    gains, at = [], Counter[tuple[str, str]]()
    for o in group:
        before = [by_key.get((order, _before(o, steps))) for order, steps in o.value.neighbours]
        largest = max((b for b in before if b is not None), key=_norm, default=None)
        if largest is not None and 0 < _norm(largest) < math.inf and 0 < _norm(o) < math.inf:
            gains.append(math.log(_norm(o) / _norm(largest)))
            # A cotangent is multiplied by the derivative of what reads its value.
            by = largest.value if o.value.phase == "cotangent" else o.value
            at[by.expression, by.line] += 1
    return Gain(math.exp(float(np.mean(gains))), *at.most_common(1)[0][0]) if gains else None


def _before(o: Occurrence, steps: int) -> tuple[int, ...]:
    """The iterations of what is some iterations before, as the loop runs."""
    if not steps:
        return o.index
    signs = [part for part in o.value.order if isinstance(part, str)]
    last = max(i for i, sign in enumerate(signs) if sign in (ITERATION, REVERSED))
    moved = o.index[last] - (steps if signs[last] == ITERATION else -steps)
    return (*o.index[:last], moved, *o.index[last + 1 :])


def _extremes(run: RunRecord, steps: Mapping[Occurrence, tuple[int, int]]) -> Iterator[Extreme]:
    """Of each kind the first in the order of the run, forward and backward."""
    seen = set()
    was_positive = set()
    for o in run.events:
        name, value = o.value.type.partition("[")[0], (o.value.phase, o.value.order)
        known = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}.get(name)
        largest = float(o.summary[MAX])
        kind = "is not finite" if o.summary[BAD] else ""
        if not kind and known is not None and largest < float(jnp.finfo(known).tiny):
            kind = "is below the smallest normal number" if largest else "is zero" if value in was_positive else ""
        if largest:
            was_positive.add(value)
        if kind and (kind, o.value.phase) not in seen:
            seen.add((kind, o.value.phase))
            number, of = steps.get(o) or (o.number % o.value.n_inner, o.value.n_inner)
            yield Extreme(o.value.expression, o.value.line, o.value.phase, number, kind, of)


@api_boundary
def growth(
    fun: Callable[..., Any], *args: Any, argnums: Argnums = 0, has_aux: bool = False, **kwargs: Any
) -> Growth:  # fmt: skip
    """How values and cotangents grow or shrink along a loop or over layers, and at which line.

    >>> print(jaxviz.growth(loss, params, x))

    For an exploding or a vanishing gradient: the norm of each value and cotangent in each iteration of a scan, or each
    time that Python runs the same expression; the factor by which it grows in a step; and the line at which most of
    that happens. What first becomes non-finite, or too small for its type, is said.

    Args:
      fun: takes and returns arrays, or pytrees of them; for a function that returns one number, cotangents too.
      *args, **kwargs: its arguments.
      argnums: as in `record`: cotangents are of what depends on these.
      has_aux: whether it returns a pair, whose first part is that number.

    Returns:
      a report: `.series` has the norms, `.steepest` what grows or shrinks most.
    """
    return growth_of(record(fun, *args, argnums=argnums, has_aux=has_aux, **kwargs))
