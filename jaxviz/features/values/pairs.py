"""Which arrays of two runs are one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from jaxviz.features.values.records import Occurrence, RecordedArgument, RecordedValue, RunRecord
from jaxviz.report.tables import counted


@dataclass(frozen=True)
class _NamedArrays:
    """The arrays of a run by phase and name."""

    run: RunRecord

    @cached_property
    def arrays(self) -> dict[tuple[str, str], list[Occurrence]]:
        found: dict[tuple[str, str], list[Occurrence]] = {}
        for e in self.run.events:
            for name in self.names(e):
                found.setdefault((e.value.phase, name), []).append(e)
        return found

    def names(self, e: Occurrence) -> list[str]:
        return [self._in_order.get(name, name) for name in e.names]

    @cached_property
    def _in_order(self) -> dict[str, str]:
        """From names to those with the numbers that the run gives them. Addresses count what is outside of a loop
        before what is inside; where another run has no loop, that is not the order."""
        seen: dict[tuple[str, str], dict[str, None]] = {}
        for e in self.run.events:
            if e.value.phase != "cotangent":
                for name in e.names:
                    body, _, which = name.rpartition("#")
                    number, _, total = which.partition("/")
                    seen.setdefault((body, total), {})[number] = None
        return {
            f"{body}#{number}/{total}": f"{body}#{k}/{total}"
            for (body, total), numbers in seen.items()
            if str(len(numbers)) == total
            for k, number in enumerate(numbers, 1)
        }


def _counterparts(e: Occurrence, name: str, here: _NamedArrays, there: _NamedArrays) -> list[Occurrence]:
    """The arrays of one name; of a step that takes the same gradient several times, that of the same time."""
    key = e.value.phase, name
    ours, theirs = here.arrays[key], there.arrays.get(key, [])
    if e.value.around and len(ours) == len(theirs):
        return [theirs[ours.index(e)]]
    return theirs


def paired_values(a: RunRecord, b: RunRecord) -> dict[Occurrence, Occurrence]:
    """The values and cotangents of both that have a name in common, and are of one kind."""
    here, there = _NamedArrays(a), _NamedArrays(b)
    pairs, used = dict[Occurrence, Occurrence](), set[Occurrence]()
    for e in a.events:
        found = {id(o): o for name in here.names(e) for o in _counterparts(e, name, here, there)}
        same = [o for o in found.values() if _are_of_one_kind(e.value, o.value)]
        if len(same) == 1 and same[0] not in used:
            pairs[e] = same[0]
            used.add(same[0])
    return pairs


def _are_of_one_kind(a: RecordedValue, b: RecordedValue) -> bool:
    """Whether two values may be one: by their operation, and their number of elements. What each device computes of its
    part, such as a sum, is not what is computed of the whole, or of fewer parts, though it may be as large."""
    return (a.operation, a.size, a.devices) == (b.operation, b.size, b.devices)


def paired_results(
    a: RunRecord, b: RunRecord, names: tuple[str, str]
) -> tuple[list[tuple[Occurrence, Occurrence]], str]:
    """The results of both by their place, whatever computes them; and why not all are compared."""
    if len(a.results) != len(b.results):
        many = counted(len(a.results), "array"), str(len(b.results))
        return [], f"`{names[0]}` returns {many[0]}, and `{names[1]}` {many[1]}"
    pairs = list(zip(a.results, b.results, strict=True))
    others = (
        f"{x.operation} is {x.type} in `{names[0]}`, and {y.type} in `{names[1]}`" for x, y in pairs if x.size != y.size
    )
    return [_first(x, y) for x, y in pairs if x.size == y.size], next(others, "")


def paired_gradients(a: RunRecord, b: RunRecord) -> list[tuple[Occurrence, Occurrence]]:
    """The gradients of both: by place if these have the same sizes, and otherwise by the names of the arguments."""
    if [x.size for x in a.gradient] == [y.size for y in b.gradient]:
        return [_first(x, y) for x, y in zip(a.gradient, b.gradient, strict=True)]
    named = {y.operation: y for y in b.gradient}
    pairs = ((x, named.get(x.operation)) for x in a.gradient)
    return [_first(x, y) for x, y in pairs if y is not None and x.size == y.size]


def _first(a: RecordedValue, b: RecordedValue) -> tuple[Occurrence, Occurrence]:
    return next(a.events()), next(b.events())


def paired_arguments(a: RunRecord, b: RunRecord) -> Iterator[tuple[RecordedArgument, RecordedArgument]]:
    """The arguments of both: those of one name, and then of one place if each has as many."""
    left = {y.name: y for y in b.arguments}
    named = {x: left.pop(x.name) for x in a.arguments if x.name in left}
    placed = {y.number: y for y in left.values()}
    for x in a.arguments:
        y = named.get(x) or placed.get(x.number)
        if y is not None and x.size == y.size:
            yield x, y
