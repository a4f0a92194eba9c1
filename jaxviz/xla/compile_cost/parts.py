"""Rows of stacked arrays, `ws[i]`, as a loop in Python takes them one by one, and their cotangents, which JAX pads with zeros and adds up.

Each is another operation for each row, and would tell blocks apart that are the same. So the rows are taken before the blocks, and added up
behind them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from jaxviz.ir.syntax import Atom, Equation, Literal, Program


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
    whole = all(s == 0 and e == n for s, e, n in zip(starts[1:], limits[1:], shape[1:], strict=True))
    plain = strides is None or all(s == 1 for s in strides)
    return int(starts[0]) if shape and whole and plain and limits[0] - starts[0] == 1 else None


def padded_row(equation: Equation) -> int | None:
    """At which row of zeros an equation puts its single-row operand; None if it does something else."""
    if equation.primitive.name != "pad" or not isinstance(equation.invars[1], Literal) or equation.invars[1].val != 0:
        return None
    shape, (first, *others) = equation.invars[0].aval.shape, equation.params["padding_config"]
    row = int(first[0])
    fits = shape[0] == 1 and first[2] == 0 and row >= 0 and first[1] >= 0
    return row if fits and all(tuple(map(int, c)) == (0, 0, 0) for c in others) else None


def rows_of(program: Program) -> dict[Atom, Row]:
    """The values of a program that are rows of others."""
    found: dict[Atom, Row] = {}
    for e in program.equations:
        number = row_of(e)
        if number is not None:
            found[e.outvars[0]] = Row(e.invars[0], number, True)
        elif e.primitive.name == "squeeze" and tuple(e.params["dimensions"]) == (0,):
            row = found.get(e.invars[0])
            if row is not None and row.keeps_dimension:
                found[e.outvars[0]] = replace(row, keeps_dimension=False)
    return found


@dataclass(frozen=True, eq=False)
class Sum:
    """A sum of padded rows and other values.

    Args:
      rows: the value of each row.
      others: the values that are added as they are.
    """

    rows: tuple[tuple[int, Atom], ...]
    others: tuple[Atom, ...]


def sums_of(program: Program) -> dict[Atom, Sum]:
    """The values of a program that are padded rows, or sums of those."""
    found: dict[Atom, Sum] = {}
    for e in program.equations:
        number = padded_row(e)
        if number is not None:
            found[e.outvars[0]] = Sum(((number, e.invars[0]),), ())
        elif e.primitive.name == "add_any" and any(a in found for a in e.invars):
            terms = [found.get(a, Sum((), (a,))) for a in e.invars]
            found[e.outvars[0]] = Sum(
                tuple(r for t in terms for r in t.rows), tuple(o for t in terms for o in t.others)
            )
    return found


def set_apart(program: Program) -> Program:
    """The program with its rows taken as early, and summed as late, as possible."""
    rows, sums = rows_of(program), sums_of(program)
    if not rows and not sums:
        return program
    made_at: dict[Atom, int] = {v: i for i, e in enumerate(program.equations) for v in e.outvars}
    early: dict[int, list[Equation]] = {}
    for e in program.equations:
        if e.outvars and e.outvars[0] in rows:
            early.setdefault(made_at.get(rows[e.outvars[0]].array, -1), []).append(e)
    equations = list(_ordered(program, rows, sums, early))
    return replace(program, equations=tuple(equations))


def _ordered(
    program: Program, rows: dict[Atom, Row], sums: dict[Atom, Sum], early: dict[int, list[Equation]]
) -> Iterator[Equation]:
    yield from early.get(-1, ())
    waiting: list[Equation] = []
    results: set[Any] = set()
    for i, e in enumerate(program.equations):
        first = e.outvars[0] if e.outvars else None
        if first in rows:
            continue
        if first in sums:
            waiting.append(e)
            results.update(e.outvars)
            continue
        if results and any(a in results for a in e.invars):
            yield from waiting
            waiting, results = [], set()
        yield e
        yield from early.get(i, ())
    yield from waiting
