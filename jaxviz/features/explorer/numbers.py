"""Tables of what columns refer to by number: strings, types, literals, and source locations, each stored once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jaxviz.features.residuals.totals import path_to
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
        number, setdefault = self.number, self.number.setdefault
        return [setdefault(text, len(number)) for text in texts]


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
        # Equations share source information, so each is looked up once, by identity.
        self.located: dict[int, int] = {}
        self.own: dict[int, int] = {}
        self.scoped: dict[int, int] = {}

    def literal(self, literal: Literal) -> int:
        key = (_literal_text(literal), self.type(literal.aval))
        found = self.of_literals.get(key)
        if found is None:
            found = self.of_literals[key] = len(self.of_literals)
            self.columns["literal_text"].append(self.string(key[0]))
            self.columns["literal_type"].append(key[1])
        return found

    def type(self, aval: Any) -> int:
        found = self.of_types.get(aval)
        if found is None:
            found = self.of_types[aval] = len(self.of_types)
            self.columns["type_text"].append(self.string(type_text(aval)))
            self.columns["type_nbytes"].append(nbytes(aval))
            self.columns["type_per_device"].append(nbytes_per_device(aval))
        return found

    def types(self, avals: list[Any]) -> list[int]:
        """The numbers of several types, each looked up once, by identity."""
        ids = list(map(id, avals))
        number = {i: self.type(aval) for i, aval in dict(zip(ids, avals, strict=True)).items()}
        return [number[i] for i in ids]

    def location(self, location: Location | None) -> int:
        if location is None:
            return -1
        # Locations that differ only in their columns are equal.
        shown = (location.column, location.end_line, location.end_column) if self.sources.embed else ()
        found = self.of_locations.get((location, shown))
        if found is None:
            found = self.of_locations[location, shown] = len(self.of_locations)
            expression = expression_of(location) if shown else (0, 0, 0, 0)
            self.columns["location_file"].append(self.sources.number(location))
            self.columns["location_line"].append(location.line)
            self.columns["location_function"].append(self.string(location.function))
            for name, number in zip(_EXPRESSION, expression, strict=True):
                self.columns[name].append(number)
        return found

    def own_lines_of(self, equations: Sequence[Equation]) -> list[int]:
        """For each equation the user's own line, or that of its nearest origin; -1 if none has one."""
        return _nearest(equations, self.own, lambda source: self.location(own_line(source)), -1)

    def locations_of(self, equations: Sequence[Equation]) -> list[int]:
        """The same, but with a library's line if there is no line of the user's."""
        return _nearest(equations, self.located, lambda source: self.location(locate(source)), -1)

    def paths_to(self, equations: Sequence[Equation]) -> list[int]:
        """The functions and scopes that lead to each equation, as in `call_path`."""
        return _nearest(equations, self.scoped, lambda source: self.string(path_to(source)), 0)


def _nearest(equations: Sequence[Equation], known: dict[int, int], find: Callable[[Any], int], none: int) -> list[int]:
    """The result for each equation's source, or else for its nearest origin with one, or `none`.

    Args:
      known: results for sources so far, by identity.
    """

    def look(source: Any) -> int:
        if id(source) not in known:
            known[id(source)] = find(source)
        return known[id(source)]

    ids = [id(e.source) for e in equations]
    for e in dict(zip(ids, equations, strict=True)).values():
        look(e.source)
    found = [known[i] for i in ids]
    for i in [i for i, number in enumerate(found) if number == none]:
        for e in ancestors(equations[i]):
            found[i] = look(e.source)
            if found[i] != none:
                break
    return found


def _literal_text(literal: Literal) -> str:
    try:
        return str(np.asarray(literal.val).item())
    except (TypeError, ValueError):
        return str(literal.val)
