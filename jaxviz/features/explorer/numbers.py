"""Tables of what columns refer to by number: strings, types, literals, and source locations, each stored once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

import numpy as np

from jaxviz.analysis.modules import path_to
from jaxviz.ir.origin import Location, ancestors, locate, own_line
from jaxviz.ir.syntax import Equation, Literal
from jaxviz.page.params import nbytes_per_device
from jaxviz.page.sources import SourceTable, expression_of
from jaxviz.report.tables import nbytes, type_text

_EXPRESSION = ("location_start_line", "location_start", "location_end_line", "location_end")
"""The columns with the result of `expression_of`."""


class Strings:
    """Numbers strings, equal strings alike."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {"": 0}

    def __call__(self, text: str) -> int:
        return self.number.setdefault(text, len(self.number))

    def all(self, texts: Iterable[str]) -> list[int]:
        """The numbers of several strings."""
        texts, number = list(texts), self.number
        for text in dict.fromkeys(texts):
            number.setdefault(text, len(number))
        return list(map(number.__getitem__, texts))


class Numbers:
    """Numbers everything that is stored once, in order of first occurrence.

    Args:
      columns: where it is stored.
      source: whether the user's own source lines are included.
    """

    def __init__(self, columns: dict[str, Any], source: bool):
        self.columns = columns
        self.string = Strings()
        self.sources = SourceTable(source)
        self.of_literals: dict[tuple[str, int], int] = {}
        self.of_types: dict[Any, int] = {}
        self.of_locations: dict[tuple[Location, tuple[int, ...]], int] = {}

    def literal(self, literal: Literal) -> int:
        key = (_literal_text(literal), self.type(literal.aval))
        number = self.of_literals.get(key)
        if number is None:
            number = self.of_literals[key] = len(self.of_literals)
            self.columns["literal_text"].append(self.string(key[0]))
            self.columns["literal_type"].append(key[1])
        return number

    def type(self, aval: Any) -> int:
        number = self.of_types.get(aval)
        if number is None:
            number = self.of_types[aval] = len(self.of_types)
            self.columns["type_text"].append(self.string(type_text(aval)))
            self.columns["type_nbytes"].append(nbytes(aval))
            self.columns["type_per_device"].append(nbytes_per_device(aval))
        return number

    def types(self, avals: list[Any]) -> list[int]:
        """The numbers of several types, each looked up once, by identity."""
        different, which = shared(avals)
        numbers = [self.type(aval) for aval in different]
        return [numbers[i] for i in which.tolist()]

    def location(self, location: Location | None) -> int:
        if location is None:
            return -1
        # Locations that differ only in their columns are equal.
        shown = (location.column, location.end_line, location.end_column) if self.sources.embed else ()
        place = self.of_locations.get((location, shown))
        if place is None:
            place = self.of_locations[location, shown] = len(self.of_locations)
            expression = expression_of(location) if shown else (0, 0, 0, 0)
            self.columns["location_file"].append(self.sources.number(location))
            self.columns["location_line"].append(location.line)
            self.columns["location_function"].append(self.string(location.function))
            for name, number in zip(_EXPRESSION, expression, strict=True):
                self.columns[name].append(number)
        return place

    def own_lines_of(self, equations: Sequence[Equation]) -> np.ndarray:
        """For each equation the user's own line, or that of its nearest origin; -1 if none has one."""
        return _nearest(equations, lambda source: self.location(own_line(source)), -1)

    def locations_of(self, equations: Sequence[Equation]) -> np.ndarray:
        """The same, but with a library's line if there is no line of the user's."""
        return _nearest(equations, lambda source: self.location(locate(source)), -1)

    def paths_to(self, equations: Sequence[Equation]) -> np.ndarray:
        """The functions and scopes that lead to each equation, as in `call_path`."""
        return _nearest(equations, lambda source: self.string(path_to(source)), 0)


Shared = tuple[list[Any], np.ndarray]


def shared(objects: Sequence[Any]) -> Shared:
    """The distinct objects, by identity and in order of first appearance; and for each object its index among them."""
    ids = list(map(id, objects))
    different = dict(zip(ids, objects, strict=True))
    number = dict(zip(different, count()))
    return list(different.values()), np.fromiter(map(number.__getitem__, ids), np.int64, len(ids))


def _nearest(equations: Sequence[Equation], find: Callable[[Any], int], none: int) -> np.ndarray:
    """What is found of the source of each, or else of the nearest that it came from, or `none`."""
    different, which = shared([e.source for e in equations])
    known = {id(source): find(source) for source in different}
    nearest: np.ndarray = np.fromiter(known.values(), np.int64, len(known))[which]
    for i in np.flatnonzero(nearest == none).tolist():
        for e in ancestors(equations[i]):
            if id(e.source) not in known:
                known[id(e.source)] = find(e.source)
            if known[id(e.source)] != none:
                nearest[i] = known[id(e.source)]
                break
    return nearest


def _literal_text(literal: Literal) -> str:
    try:
        return str(np.asarray(literal.val).item())
    except (TypeError, ValueError):
        return str(literal.val)
