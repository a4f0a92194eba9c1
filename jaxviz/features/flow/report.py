"""The report of `gradient_flow`: which parameters the gradient of a loss reaches, and why it is zero in the others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from jaxviz.analysis.naming import written_at
from jaxviz.analysis.walk import location_of
from jaxviz.features.flow.reasons import Ending
from jaxviz.features.flow.run import Count
from jaxviz.features.flow.structure import Reach
from jaxviz.ir.origin import Location
from jaxviz.report.charts import COUNTS, Axis, FlameGraph
from jaxviz.report.data import Data
from jaxviz.report.kinds import COLOURS
from jaxviz.report.report import Part, Report, Table
from jaxviz.report.tables import counted, format_count, listed, short_location, together

Status = Literal["reached", "stopped", "zero", "on purpose"]
"""Of the gradient in a parameter: it is not zero, or could be, where no values were looked at; it is zero for any values;
it is zero at these; it is zero because the user stopped it."""

ENDINGS = 3
"""How many endings a sentence names."""


@dataclass(frozen=True, slots=True)
class Update(Data):
    """What a training step does to a parameter.

    Args:
      changed: how many elements it changes.
      lost: how many elements with a gradient that is not zero it leaves as they are.
      size: how many elements there are.
      text: why it changes none of these, as the end of a sentence; '' if it changes some.
      is_frozen: whether the update does not depend on the gradient, as that of a frozen parameter.
      location: the line of the update, if it is known.
    """

    changed: int
    lost: int
    size: int
    text: str = ""
    is_frozen: bool = False
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class LeafFlow(Data):
    """The gradient in one parameter.

    Args:
      name: its path, such as `params['w']`.
      type: its type, such as `f32[8,16]`.
      size: the number of its elements.
      status: whether the gradient reaches it.
      endings: where the derivative ends on the way from the loss; of one that is reached, where a part of it was stopped
        on purpose.
      count: how many elements of the gradient are not zero; None if no values were looked at.
      update: what a training step does to it; None if it was not compared.
    """

    name: str
    type: str
    size: int
    status: Status
    endings: tuple[Ending, ...] = ()
    count: Count | None = None
    update: Update | None = None

    @property
    def is_reached(self) -> bool:
        return self.status == "reached"

    @property
    def nonzero(self) -> str:
        """`1,024 of 4,096, in 4 of 512 rows`."""
        c = self.count
        if c is None:
            return ""
        rows = f", in {c.nonzero_rows:,} of {counted(c.rows, 'row')}" if c.rows and c.nonzero_rows < c.rows else ""
        return f"{c.nonzero:,} of {c.size:,}{rows}"

    _data = ("name", "type", "size", "status", "endings", "count", "update")


@dataclass(frozen=True, slots=True)
class PathLine(Data):
    """A line on the way from a parameter to the loss.

    Args:
      location: the line.
      code: what it evaluates, such as `h = jnp.tanh(x @ w)`.
    """

    location: Location
    code: str

    def __str__(self) -> str:
        return f"{short_location(self.location)}  {self.code}"

    _data = ("location", "code")


class FlowPaths(Mapping[str, tuple[PathLine, ...]]):
    """From each parameter the lines through which its derivative passes, as far as it goes.

    A name may be written with dots, and without its first parts if that is unambiguous: `paths["decoder.w"]`.
    """

    def __init__(self, names: Sequence[str], places: Sequence[int], reach: Reach):
        self._places = dict(zip(names, places, strict=True))
        self._reach = reach

    def __getitem__(self, name: str) -> tuple[PathLine, ...]:
        bit = 1 << self._places[self._whole(name)]
        lines: dict[Location, None] = {}
        for carrier in self._reach.carriers:
            if carrier.leaves & bit and (at := location_of(carrier.equation, carrier.within)) is not None:
                lines.setdefault(at)
        return tuple(PathLine(at, written_at(at)) for at in lines)

    def _whole(self, name: str) -> str:
        if name in self._places:
            return name
        parts = _PARTS.findall(name)
        alike = [n for n in self._places if parts and _PARTS.findall(n)[-len(parts) :] == parts]
        if len(alike) != 1:
            raise KeyError(f"{'several parameters are' if alike else 'no parameter is'} named {name!r}; there are "
                           f"{listed(alike or self._places, 8)}")  # fmt: skip
        return alike[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


_PARTS = re.compile(r"\w+")


@dataclass(frozen=True, eq=False, repr=False)
class GradientFlow(Report, schema="gradient_flow"):
    """Which parameters the gradient of a loss reaches, and where it ends on the way to the others.

    >>> flow = jaxviz.gradient_flow(loss, params, x)
    >>> flow.stopped, flow.zero, flow.paths["decoder.w"]

    Args:
      function: the name of the function.
      title: which gradient, such as "gradient of `loss` in `params`".
      leaves: the parameters, in the order of the arguments.
      has_values: whether the gradient was computed, and not only its structure.
      notes: what was not looked at.
      paths: from each parameter the lines on the way to the loss.
    """

    function: str
    title: str
    leaves: tuple[LeafFlow, ...]
    has_values: bool
    notes: tuple[str, ...]
    paths: FlowPaths

    def _with(self, status: Status) -> tuple[LeafFlow, ...]:
        return tuple(leaf for leaf in self.leaves if leaf.status == status)

    @cached_property
    def reached(self) -> tuple[LeafFlow, ...]:
        """The parameters whose gradient is not zero; without values, those that a derivative reaches."""
        return self._with("reached")

    @cached_property
    def stopped(self) -> tuple[LeafFlow, ...]:
        """Those whose gradient is zero for any values, and not because a user stopped it."""
        return self._with("stopped")

    @cached_property
    def zero(self) -> tuple[LeafFlow, ...]:
        """Those whose gradient is zero at these values."""
        return self._with("zero")

    @cached_property
    def on_purpose(self) -> tuple[LeafFlow, ...]:
        """Those whose gradient a user stopped."""
        return self._with("on purpose")

    @cached_property
    def not_updated(self) -> tuple[LeafFlow, ...]:
        """Those that a training step leaves as they are, although their gradient is not zero."""
        return tuple(x for x in self.reached if x.update is not None and x.update.text and not x.update.is_frozen)

    def __bool__(self) -> bool:
        """Whether a gradient or an update is zero that no user has stopped."""
        return bool(self.stopped or self.zero or self.not_updated)

    @property
    def reaches(self) -> str:
        """`reaches 37 of 40 parameters`."""
        n, reached = len(self.leaves), len(self.reached)
        which = "the only parameter" if n == 1 else f"all {n:,} parameters"
        return f"reaches {which}" if n and n == reached else f"reaches {reached:,} of {counted(n, 'parameter')}"

    @property
    def summary(self) -> str:
        """The gradient in `params['prior']` is zero: its only path to the loss ends at `jnp.argmax(h)` (model.py:41)…"""
        found = [*self._sentences()]
        if not found:
            return f"{self.title}: {' '.join([self.reaches, *self._on_purpose]).replace('parameters ', 'parameters; ', 1)}"
        return " ".join([found[0], *(f"{text[0].upper()}{text[1:]}." for text in self._on_purpose)])

    def _sentences(self) -> Iterator[str]:
        for status in ("stopped", "zero"):
            for leaves in _alike(self._with(status), lambda leaf: leaf.endings):
                yield _sentence(leaves)
        for leaves in _alike(self.not_updated, lambda leaf: leaf.update and (leaf.update.text, leaf.update.location)):
            update = leaves[0].update
            assert update is not None
            one = len(leaves) == 1
            at = f" at {short_location(update.location)}" if update.location is not None else ""
            yield f"{_named(leaves)} {'is' if one else 'are'} not updated{at}, although {'its gradient is' if one else 'their gradients are'} not zero: {update.text}."  # noqa: E501

    @property
    def _on_purpose(self) -> list[str]:
        """One clause on what is stopped on purpose."""
        leaves, frozen = self.on_purpose, [x for x in self.leaves if x.update is not None and x.update.is_frozen]
        texts = []
        if leaves:
            places = together(listed([e.place for leaf in leaves for e in leaf.endings if e.kind == "asked"], 2).split(", "))
            others = "other " if self else ""
            texts.append(f"{_number(leaves, others)} stopped on purpose at {places}")
        if frozen:
            texts.append(f"{_number(frozen, '')} frozen: the update does not depend on the gradient")
        return texts

    def _parts(self) -> Iterator[Part]:
        found = [*self._sentences()]
        if found:
            yield f"{self.title}: {self.reaches}."
            yield from found[1:]
        in_part = dict.fromkeys(e.place for leaf in self.reached for e in leaf.endings)
        if in_part:
            yield f"Stopped on purpose on some ways to parameters that it reaches on others: {listed(in_part)}."
        order = ("stopped", "zero", "on purpose", "reached")
        leaves = sorted(self.leaves, key=lambda leaf: order.index(leaf.status))
        rows = [(leaf.name, leaf.type, leaf.nonzero, _WORDS[leaf.status], _where(leaf)) for leaf in leaves]
        heads = ("parameter", "type", "not zero", "gradient", "where it ends")
        if not self.has_values:
            rows, heads = [(*r[:2], *r[3:]) for r in rows], (*heads[:2], *heads[3:])
        yield Table(heads, rows, "<<<<<"[: len(heads)], "by parameter")
        yield from self.notes

    def _chart(self) -> FlameGraph:
        rows = _tree(self.leaves)
        colours = {status: COLOURS[status] for status in _WORDS}
        axis = Axis("elements", COUNTS, format_count)
        return FlameGraph(rows, {**colours, "": COLOURS["branch of a tree"]}, _WORDS, f"parameters that the {self.title} reaches", axis)

    _data = ("function", "title", "has_values", "leaves", "notes")


_WORDS: dict[str, str] = {
    "reached": "reaches it", "stopped": "stopped", "zero": "zero here", "on purpose": "stopped on purpose",
}  # fmt: skip


def _alike(leaves: Sequence[LeafFlow], key) -> list[list[LeafFlow]]:  # type: ignore[no-untyped-def]
    groups: dict[object, list[LeafFlow]] = {}
    for leaf in leaves:
        groups.setdefault(key(leaf), []).append(leaf)
    return sorted(groups.values(), key=len, reverse=True)


def _named(leaves: Sequence[LeafFlow]) -> str:
    """`params['w']`, or 12 parameters (`params['a']`, `params['b']` and 10 more)."""
    names = [f"`{leaf.name}`" for leaf in leaves]
    if len(names) <= ENDINGS:
        return together(names)
    return f"{len(names):,} parameters ({listed(names, 2)})"


def _number(leaves: Sequence[LeafFlow], others: str) -> str:
    n = len(leaves)
    return f"{n:,} {others}parameter{'s are' if n != 1 else ' is'}"


def _sentence(leaves: Sequence[LeafFlow]) -> str:
    """Why the gradient in some parameters is zero, which end at the same places."""
    one, leaf = len(leaves) == 1, leaves[0]
    what = f"the gradient in {_named(leaves)} is zero" + (" at these values" if leaf.status == "zero" else "")
    its = "its" if one else "their"
    endings = leaf.endings
    if not endings:
        return f"{what}: where {'it' if one else 'they'} became zero was not found."
    if len(endings) == 1 and endings[0].kind in ("unread", "static"):
        return f"{what}: {'it is' if one else 'they are'} {endings[0].text}."
    texts = together(map(str, endings[:ENDINGS]))
    more = f", and at {len(endings) - ENDINGS:,} more" if len(endings) > ENDINGS else ""
    ends = "only path to the loss ends" if len(endings) == 1 else "paths to the loss end"
    return f"{what}: {its} {ends} at {texts}{more}."


def _where(leaf: LeafFlow) -> str:
    if leaf.update is not None and leaf.update.text and leaf.is_reached:
        return f"not updated: {leaf.update.text}"
    if leaf.is_reached:
        return ""
    return "; ".join(str(e) if e.expression or e.location else e.text for e in leaf.endings[:ENDINGS])


def _tree(leaves: Sequence[LeafFlow]) -> list[tuple[str, str, float, float, int]]:
    """The bars of a tree of parameters, as wide as they have elements: name, kind, start, length and depth."""
    rows: list[tuple[str, str, float, float, int]] = []
    start = 0.0
    under_way: list[tuple[str, float]] = []
    close = lambda keep: [
        rows.append((under_way[k][0], "", under_way[k][1], start - under_way[k][1], k))
        for k in range(len(under_way) - 1, keep - 1, -1)
    ]
    for leaf in leaves:
        *around, last = _PARTS.findall(leaf.name) or [leaf.name]
        same = 0
        while same < min(len(around), len(under_way)) and under_way[same][0] == around[same]:
            same += 1
        close(same)
        del under_way[same:]
        under_way += [(name, start) for name in around[same:]]
        rows.append((last, leaf.status, start, float(max(leaf.size, 1)), len(around)))
        start += max(leaf.size, 1)
    close(0)
    return sorted(rows, key=lambda row: (row[2], row[4]))
