"""The report of `gradient_flow`: which parameters the gradient of a loss reaches, and why it is zero in the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from jaxviz.analysis.walk import location_of
from jaxviz.features.flow.reasons import Ending
from jaxviz.features.flow.run import Count
from jaxviz.features.flow.structure import Carrier, Reach, StructuralStop
from jaxviz.ir.origin import Location
from jaxviz.report.charts import COUNTS, Axis, FlameGraph
from jaxviz.report.data import Data
from jaxviz.report.places import source_line
from jaxviz.report.report import Part, Report, Table
from jaxviz.report.tables import counted, format_count, listed, short_location, together

Status = Literal["reached", "stopped", "zero", "on purpose"]
"""Of the gradient in a parameter: it is not zero, or could be, where no values were looked at; it is zero for any
values; it is zero at these; it is zero because the user stopped it."""

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
      endings: where the derivative ends on the way from the loss; of one that is reached, where a part of it was
        stopped on purpose.
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
      code: its source, such as `h = jnp.tanh(x @ w)`; '' if it is not available.
    """

    location: Location
    code: str

    def __str__(self) -> str:
        return f"{short_location(self.location)}  {self.code}"

    _data = ("location", "code")


class FlowPaths(Mapping[str, tuple[PathLine, ...]]):
    """From each parameter the lines through which its derivative passes, and where it ends if it reaches no loss.

    A name may be written with dots, and without its first parts if that is unambiguous: `paths["decoder.w"]`.
    """

    def __init__(self, names: Sequence[str], places: Sequence[int], reach: Reach):
        self._places = dict(zip(names, places, strict=True))
        self._reach = reach

    def __getitem__(self, name: str) -> tuple[PathLine, ...]:
        bit = 1 << self._places[self._whole(name)]
        stops = [] if self._reach.reached & bit else self._reach.stops
        every: list[Carrier | StructuralStop] = [*self._reach.carriers, *stops]
        on_the_way = [e for e in every if e.leaves & bit]
        lines = dict.fromkeys(location_of(e.equation, e.within) for e in on_the_way)
        return tuple(PathLine(at, source_line(at)) for at in lines if at is not None)

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
    >>> flow.stopped, flow.zero, flow.paths["w"]

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
        which = which if n and n == reached else f"{reached:,} of {counted(n, 'parameter')}"
        return f"reaches {which}{'' if self.has_values else ' as far as types say; values may still make it zero'}"

    @property
    def summary(self) -> str:
        """The gradient in `params['prior']` is zero: its only path to the loss ends at `jnp.argmax(h)` an integer."""
        found = [*self._sentences()]
        if not found:
            return f"{self.title}: {'; '.join([self.reaches, *self._not_finite, *self._on_purpose])}"
        first = f"{found[0].removesuffix('.')}{self._others}."
        clauses = [*self._not_finite, *self._on_purpose]
        return " ".join([first, *(f"{text[0].upper()}{text[1:]}." for text in clauses)])

    @property
    def _others(self) -> str:
        """What the first sentence does not say: `; 4 more gradients are zero at these values`."""
        named = next((leaves for leaves, _ in self.findings), None)
        told = {id(leaf) for leaf in named or _by_update(self.not_updated)[0]}
        left = lambda leaves: sum(id(x) not in told for x in leaves)
        ways = [(left(self.stopped), "zero for any values"), (left(self.zero), "zero at these values")]
        texts = [f"{counted(n, 'more gradient')} {_are(n)} {how}" for n, how in ways if n]
        if n := left(self.not_updated):
            texts.append(f"{counted(n, 'parameter' if named else 'more parameter')} {_are(n)} not updated")
        return f"; {together(texts)}" if texts else ""

    @property
    def findings(self) -> list[tuple[list[LeafFlow], str]]:
        """The parameters whose gradient is zero for the same reason, each group with a sentence."""
        groups = (g for status in ("stopped", "zero") for g in _alike(self._with(status), lambda leaf: leaf.endings))
        return [(leaves, _sentence(leaves)) for leaves in groups]

    def _sentences(self) -> Iterator[str]:
        yield from (sentence for _, sentence in self.findings)
        for leaves in _by_update(self.not_updated):
            yield _update_sentence(leaves)

    @property
    def _not_finite(self) -> list[str]:
        """One clause on the gradients that are NaN or infinite somewhere."""
        leaves = [x for x in self.leaves if x.count is not None and x.count.not_finite]
        if not leaves:
            return []
        elements = counted(sum(x.count.not_finite for x in leaves if x.count is not None), "element")
        names = listed([f"`{x.name}`" for x in leaves], 3)
        return [f"the gradient is not finite in {elements} of {names}: jaxviz.find_nan finds where that begins"]

    @property
    def _on_purpose(self) -> list[str]:
        """One clause on what is stopped on purpose."""
        leaves, frozen = self.on_purpose, [x for x in self.leaves if x.update is not None and x.update.is_frozen]
        texts = []
        if leaves:
            places = listed([e.place for leaf in leaves for e in leaf.endings if e.kind == "asked"], 2)
            others = "other " if self else ""
            texts.append(f"{_number(leaves, others)} stopped on purpose at {places}")
        if frozen:
            texts.append(f"{_number(frozen, '')} frozen: the update does not depend on the gradient")
        return texts

    def _parts(self) -> Iterator[Part]:
        found = [*self._sentences()]
        if found:
            yield f"{self.title}: {self.reaches}."
            yield from (f"{text[0].upper()}{text[1:]}" for text in found[1:])
        in_part = dict.fromkeys(e.place for leaf in self.reached for e in leaf.endings)
        if in_part:
            yield f"Some paths from parameters that it reaches are stopped on purpose at {listed(in_part)}."
        order = ("stopped", "zero", "on purpose", "reached")
        places = {id(x): k for k, x in enumerate(x for g in _alike(self.leaves, _where) for x in g)}
        leaves = sorted(self.leaves, key=lambda leaf: (order.index(leaf.status), places[id(leaf)]))
        where = [_where(leaf) for leaf in leaves]
        again = [bool(text) and text == before for text, before in zip(where, ["", *where], strict=False)]
        rows = [
            (leaf.name, leaf.type, leaf.nonzero, self._word(leaf), "the same" if is_again else text)
            for leaf, text, is_again in zip(leaves, where, again, strict=True)
        ]
        heads = ("parameter", "type", "not zero", "gradient", "where it ends")
        shown = [0, 1, 2, 3, 4] if self.has_values else [0, 1, 3, 4]
        cells = [[row[k] for k in shown] for row in rows]
        yield Table([heads[k] for k in shown], cells, "<" * len(shown), "by parameter")
        yield from self.notes

    def _word(self, leaf: LeafFlow) -> str:
        return "may reach it" if leaf.status == "reached" and not self.has_values else _WORDS[leaf.status]

    def _chart(self) -> FlameGraph:
        axis = Axis("elements", COUNTS, format_count)
        title = f"parameters that the {self.title} reaches"
        return FlameGraph(_tree(self.leaves), _COLOURS, _WORDS, title, axis)

    _data = ("function", "title", "has_values", "leaves", "notes")


_WORDS: dict[str, str] = {
    "reached": "reaches it", "stopped": "stopped", "zero": "zero here", "on purpose": "stopped on purpose",
}  # fmt: skip


_COLOURS = {"reached": "#8cc5a0", "stopped": "#b0b6bf", "zero": "#f0a35e", "on purpose": "#d5d9de", "": "#eeeeee"}
"""Of the bars in the tree of parameters; what the gradient does not reach is grey."""


def _alike(leaves: Sequence[LeafFlow], key: Callable[[LeafFlow], object]) -> list[list[LeafFlow]]:
    groups: dict[object, list[LeafFlow]] = {}
    for leaf in leaves:
        groups.setdefault(key(leaf), []).append(leaf)
    return sorted(groups.values(), key=len, reverse=True)


def _by_update(leaves: Sequence[LeafFlow]) -> list[list[LeafFlow]]:
    return _alike(leaves, lambda leaf: leaf.update and (leaf.update.text, leaf.update.location))


def _named(leaves: Sequence[LeafFlow]) -> str:
    """`params['w']`, or 12 parameters (`params['a']`, `params['b']` and 10 more)."""
    names = [f"`{leaf.name}`" for leaf in leaves]
    if len(names) <= ENDINGS:
        return together(names)
    return f"{len(names):,} parameters ({listed(names, 2)})"


def _are(n: int) -> str:
    return "is" if n == 1 else "are"


def _number(leaves: Sequence[LeafFlow], others: str) -> str:
    n = len(leaves)
    return f"{n:,} {others}parameter{'s are' if n != 1 else ' is'}"


def _sentence(leaves: Sequence[LeafFlow]) -> str:
    """Why the gradient in some parameters is zero, which end at the same places."""
    one, leaf = len(leaves) == 1, leaves[0]
    here = " at these values" if leaf.status == "zero" else ""
    what = f"the gradient{'s' * (not one)} in {_named(leaves)} {'is' if one else 'are'} zero{here}"
    its = "its" if one else "their"
    endings = leaf.endings
    if not endings:
        return f"{what}; where {'it' if one else 'they'} became zero was not found."
    if len(endings) == 1 and endings[0].kind in ("unread", "static"):
        text = endings[0].text if one else endings[0].text.replace("depend on it", "depend on them")
        return f"{what}: {text}."
    each = [*map(str, endings[:ENDINGS])]
    texts = "; at ".join(each) if any(", " in text for text in each) else together(each)
    more = f", and at {len(endings) - ENDINGS:,} more" if len(endings) > ENDINGS else ""
    ends = "only path to the loss ends" if len(endings) == 1 else "paths to the loss end"
    return f"{what}: {its} {ends} at {texts}{more}."


def _update_sentence(leaves: Sequence[LeafFlow]) -> str:
    one, update = len(leaves) == 1, leaves[0].update
    assert update is not None
    at = f" at {short_location(update.location)}" if update.location is not None else ""
    zero = "its gradient is" if one else "their gradients are"
    return f"{_named(leaves)} {'is' if one else 'are'} not updated{at}, although {zero} not zero: {update.text}."


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

    def close(keep: int) -> None:
        while len(under_way) > keep:
            name, since = under_way.pop()
            rows.append((name, "", since, start - since, len(under_way)))

    for leaf in leaves:
        *around, last = _PARTS.findall(leaf.name) or [leaf.name]
        same = 0
        while same < min(len(around), len(under_way)) and under_way[same][0] == around[same]:
            same += 1
        close(same)
        under_way += [(name, start) for name in around[same:]]
        rows.append((last, leaf.status, start, float(max(leaf.size, 1)), len(around)))
        start += max(leaf.size, 1)
    close(0)
    return sorted(rows, key=lambda row: (row[2], row[4]))
