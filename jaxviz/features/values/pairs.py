"""Which arrays of two runs are one."""

from __future__ import annotations

from collections.abc import Iterator

from jaxviz.features.values.records import Occurrence, RecordedArgument, RecordedValue, RunRecord
from jaxviz.report.tables import counted

_ByName = dict[tuple[str, str], list[Occurrence]]
"""The arrays of a run by phase and name."""


def _by_name(run: RunRecord) -> _ByName:
    found: _ByName = {}
    for e in run.events:
        for name in e.names:
            found.setdefault((e.value.phase, name), []).append(e)
    return found


def _counterparts(e: Occurrence, name: str, here: _ByName, there: _ByName) -> list[Occurrence]:
    """The arrays of one name; of a step that takes the same gradient several times, that of the same time."""
    ours, theirs = here[e.value.phase, name], there.get((e.value.phase, name), [])
    if e.value.around and len(ours) == len(theirs):
        return [theirs[ours.index(e)]]
    return theirs


def paired_values(a: RunRecord, b: RunRecord) -> dict[Occurrence, Occurrence]:
    """The values and cotangents of both that have a name in common, and are of one kind."""
    here, there = _by_name(a), _by_name(b)
    pairs, used = dict[Occurrence, Occurrence](), set[Occurrence]()
    for e in a.events:
        found = {id(o): o for name in e.names for o in _counterparts(e, name, here, there)}
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
