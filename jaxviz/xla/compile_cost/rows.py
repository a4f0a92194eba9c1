"""Rows of stacked arrays, `ws[i]`, as a loop in Python takes them one by one.

Each is another operation, and would tell blocks apart that are the same. So all rows are taken before the blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from jaxviz.ir.syntax import Atom, Equation, Program


@dataclass(frozen=True, slots=True)
class Row:
    """A row of an array, with or without its first dimension."""

    array: Atom
    number: int
    keeps_dimension: bool


def row_of(equation: Equation) -> int | None:
    """Which row of its operand an equation takes, with its first dimension; None if it takes no row."""
    if equation.primitive.name != "slice":
        return None
    starts, limits, strides = (equation.params[name] for name in ("start_indices", "limit_indices", "strides"))
    shape = equation.invars[0].aval.shape
    is_full = all(s == 0 and e == n for s, e, n in zip(starts[1:], limits[1:], shape[1:], strict=True))
    plain = strides is None or all(s == 1 for s in strides)
    return int(starts[0]) if shape and is_full and plain and limits[0] - starts[0] == 1 else None


def rows_of(equations: Iterable[Equation]) -> dict[Atom, Row]:
    """The results of a program's equations that are rows of others."""
    rows: dict[Atom, Row] = {}
    for e in equations:
        number = row_of(e)
        if number is not None:
            rows[e.outvars[0]] = Row(e.invars[0], number, True)
        elif e.primitive.name == "squeeze" and tuple(e.params["dimensions"]) == (0,):
            row = rows.get(e.invars[0])
            if row is not None and row.keeps_dimension:
                rows[e.outvars[0]] = replace(row, keeps_dimension=False)
    return rows


def with_rows_first(program: Program) -> Program:
    """The program with each row taken as soon as its array is computed."""
    rows = rows_of(program.equations)
    if not rows:
        return program
    taken: dict[Atom, list[Equation]] = {}
    for e in program.equations:
        if e.outvars and e.outvars[0] in rows:
            taken.setdefault(rows[e.outvars[0]].array, []).append(e)

    def taken_from(array: Atom) -> Iterator[Equation]:
        for e in taken.get(array, ()):
            yield e
            yield from taken_from(e.outvars[0])  # a row may be an array of rows

    equations = [e for v in (*program.constvars, *program.invars) for e in taken_from(v)]
    for e in program.equations:
        if not e.outvars or e.outvars[0] not in rows:
            equations += [e, *(row for v in e.outvars for row in taken_from(v))]
    return replace(program, equations=tuple(equations))
