"""What differs between two versions, in every report of a change: figures before and after, and what came, went, grew
or shrank."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from jaxviz.ir.origin import Location
from jaxviz.report.data import Data
from jaxviz.report.report import Table
from jaxviz.report.tables import counted, format_bytes, format_flops, format_seconds, short_location

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figure(Data):
    """A figure of both versions.

    Args:
      name: what it is, such as 'saved bytes'.
      before, after: its values for the first and the second version.
      unit: such as 'equations', 'values', 'bytes', 'FLOPs' or 'ms'.
    """

    name: str
    before: int
    after: int
    unit: str

    @property
    def change(self) -> int:
        return self.after - self.before

    @property
    def share(self) -> str:
        """`-53%`; '' if there is nothing to compare with, or less than half a percent."""
        return share(self.before, self.after)

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """The name, both values, and the change: `+12.0 KiB (+20%)`, or `same`."""
        more = f" ({self.share})" if self.share else ""
        change = f"{signed(self.change, self.unit)}{more}" if self.change else "same"
        return self.name, amount(self.before, self.unit), amount(self.after, self.unit), change

    def __str__(self) -> str:
        """`peak 1.7 MiB → 2.7 MiB, +1.0 MiB (+59%)`, or `peak 1.7 MiB in both`."""
        name, before, after, change = self.cells
        return f"{name} {before} → {after}, {change}" if self.change else f"{name} {before} in both"


@dataclass(frozen=True, slots=True)
class Difference(Data):
    """Something that one version has more of than the other.

    Args:
      change: how much more the second version has, in `unit`.
      what: what it is, with code in backticks.
      types: its type, and how many there are.
      location: the user's line.
      kind: what kind of thing it is; '' if that is clear.
      why: why it differs, or how; '' if that is not known.
      unit: 'bytes', or what is counted.
    """

    change: int
    what: str
    types: str
    location: Location | None
    kind: str = ""
    why: str = ""
    unit: str = "bytes"

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """The cells below `HEADS`."""
        said = f"{self.what}: {self.why}" if self.why else self.what
        return signed(self.change, self.unit), self.kind, self.types, short_location(self.location), said


HEADS = ("change", "kind", "type", "line", "what, and why")


def figure_table(figures: Sequence[Figure], first: str, second: str) -> Table:
    """The figures of two versions with these names."""
    return Table(("", first, second, "change"), [f.cells for f in figures], "<>>>")


def difference_table(differences: Sequence[Difference], caption: str) -> Table:
    """What differs, in this order; without kinds if there are none."""
    columns = [i for i, head in enumerate(HEADS) if head != "kind" or any(d.kind for d in differences)]
    only = lambda cells: [cells[i] for i in columns]

    def more(shown: int) -> str:
        rest = differences[shown:]
        return f"and {counted(len(rest), 'more row')}, {signed(sum(d.change for d in rest), rest[0].unit)}"

    return Table(only(HEADS), [only(d.cells) for d in differences], "".join(only("><<<<")), caption, more=more)


def share(before: int, after: int) -> str:
    """`-53%`; '' if there is nothing to compare with, or less than half a percent."""
    percent = round(100 * (after - before) / before) if before else 0
    return f"{percent:+,}%" if percent else ""


def amount(n: int, unit: str) -> str:
    """`1.5 KiB`, `1.2 MFLOP`, `310 ms`, `1,200`."""
    return _AMOUNTS[unit](n) if unit in _AMOUNTS else f"{n:,}"


_AMOUNTS: dict[str, Callable[[int], str]] = {
    "bytes": format_bytes,
    "FLOPs": format_flops,
    "ms": lambda n: format_seconds(n / 1000),
}


def signed(n: int, unit: str) -> str:
    """`+1.5 KiB`, `-12`."""
    return f"{'-' if n < 0 else '+' * (n > 0)}{amount(abs(n), unit)}"


def part_of_change(part: int, total: int, unit: str) -> str:
    """`most of it +1.5 KiB`, or `the largest part +0.5 KiB`: the largest part of a change, in words."""
    return f"{'most of it' if 2 * abs(part) > abs(total) else 'the largest part'} {signed(part, unit)}"


def most_of_it(differences: Sequence[Difference]) -> str:
    """``most of it +1.5 KiB for `jnp.tanh(x @ w)` (model.py:12)``: the largest of them in the direction of the whole
    change; '' if there is none."""
    total = sum(d.change for d in differences)
    up = 1 if total >= 0 else -1
    most = max(differences, key=lambda d: up * d.change, default=None)
    if most is None or up * most.change <= 0:
        return ""
    where = f" ({short_location(most.location)})" if most.location is not None else ""
    return f"{part_of_change(most.change, total, most.unit)} for {most.what}{where}"


def paired_by(
    keys: Sequence[Callable[[T], Hashable]], before: Sequence[T], after: Sequence[T]
) -> Iterator[tuple[T | None, T | None]]:
    """The rows of two versions, with those about the same thing paired; the others with None.

    Args:
      keys: keys by which rows are matched, the most specific first; one of None matches nothing.
      before, after: the rows.
    """
    left, right = list(before), list(after)
    for key in keys:
        places: dict[Hashable, list[T]] = {}
        for row in left:
            places.setdefault(key(row), []).append(row)
        rest, taken = [], set[int]()
        for row in right:
            same = places.get(key(row)) if key(row) is not None else None
            if same:
                other = same.pop(0)
                taken.add(id(other))
                yield other, row
            else:
                rest.append(row)
        left, right = [row for row in left if id(row) not in taken], rest
    yield from ((row, None) for row in left)
    yield from ((None, row) for row in right)
