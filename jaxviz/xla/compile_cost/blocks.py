"""Identical blocks of a program, where they are written, and what one loop in their place would carry and iterate
over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxviz.analysis.grouping import alike as one_name
from jaxviz.analysis.grouping import grouped, pattern
from jaxviz.analysis.repeats import OUTER, Alike, Run, find_runs, literal_key
from jaxviz.analysis.walk import programs_in
from jaxviz.higher_order import of
from jaxviz.higher_order.jit import JIT
from jaxviz.ir.origin import Location, own_line
from jaxviz.ir.syntax import Atom, Equation, Literal, Program, Var
from jaxviz.report.tables import type_text
from jaxviz.transforms.inline import inlined_where
from jaxviz.xla.compile_cost.places import BlockPlace, place_of
from jaxviz.xla.compile_cost.rows import rows_of, with_rows_first

_FEWEST = 9
"""The minimum number of equations that a loop has to leave out for a run to be reported."""
_SHARE = 0.005
"""The minimum share of the program's equations that it has to leave out."""


def runs_of(program: Program, alike: Alike) -> list[Run]:
    """The runs of blocks among a program's own equations.

    Args:
      program: the program.
      alike: numbers that are equal for identical equations.
    """
    # An equation with an effect is in no block.
    numbers = [-1 - i if e.effects else alike.number(e.operation) for i, e in enumerate(program.equations)]
    sizes = [alike.size(e.operation) for e in program.equations]
    return find_runs(program.equations, numbers, sizes, max(_FEWEST, round(_SHARE * sum(sizes))))


def carry(run: Run) -> tuple[Var, ...]:
    """What the first block passes to the second, as often as a loop has to carry it: once for each value that the first
    block reads instead."""
    carried: dict[tuple[Var, Any], None] = {}
    for atom, (kind, *result) in zip(run.operands(0), run.wires, strict=True):
        if kind == 1:
            equation, place = result
            key = literal_key(atom) if isinstance(atom, Literal) else atom
            carried[run.block(0)[equation].outvars[place], key] = None
    return tuple(v for v, _ in carried)


def stacked(run: Run) -> tuple[tuple[Atom, ...], ...]:
    """What a loop iterates over: for each value that differs between blocks, its values, each once."""
    of_blocks = zip(*map(run.operands, range(run.count)), strict=True)
    outer = (atoms for atoms, wire in zip(of_blocks, run.wires, strict=True) if wire == OUTER)
    return tuple(dict.fromkeys(atoms for atoms in outer if len(set(atoms)) > 1))


@dataclass(frozen=True, eq=False)
class Blocks:
    """Identical blocks.

    Args:
      runs: the blocks in the program; several runs where other operations are between them.
      place: where they are written; None if unknown.
      size: the number of their equations, including nested ones.
      lines: the lines that are theirs alone.
    """

    runs: tuple[Run, ...]
    place: BlockPlace | None
    size: int
    lines: frozenset[tuple[str, int]]

    @property
    def count(self) -> int:
        """The number of blocks."""
        return max(run.count for run in self.runs)

    @property
    def is_chain(self) -> bool:
        """Whether a block reads results of the previous one."""
        return any(map(carry, self.runs))

    @property
    def carry(self) -> tuple[str, ...]:
        """The types of what is passed from block to block."""
        return tuple(type_text(v.aval) for v in carry(self.runs[0]))

    def stacked(self, names: Mapping[Atom, str]) -> tuple[str, ...]:
        """The arguments of which each block takes one: `params['layers'][0…11]['q']`.

        Args:
          names: the names of the arguments.
        """
        arguments: dict[frozenset[str], None] = {}
        for run in self.runs:
            array_of = {row: of.array for row, of in rows_of(run.body).items()}
            for atoms in stacked(run):
                paths = [names.get(array_of.get(a, a), "") for a in atoms]
                if all(paths) and len({pattern(p) for p in paths}) == 1:
                    arguments[frozenset(paths)] = None
        # Another pass may cover all but the first of these.
        widest = (paths for paths in arguments if not any(paths < others for others in arguments))
        return tuple(one_name(sorted(paths)) for paths in widest)

    def holds(self, lines: Sequence[Location]) -> bool:
        """Whether something that came through these lines, the innermost first, belongs to the blocks."""
        if self.place is not None and (self.place.is_loop or not self.lines):
            return any(map(self.place.holds, lines))
        return any((line.file, line.line) in self.lines for line in lines[:1])

    def overlaps(self, other: Blocks) -> bool:
        """Whether lines of theirs are also those of other blocks, or unknown."""
        if self.place is None or other.place is None:
            return True
        return self.place.holds(other.place.location) or other.place.holds(self.place.location)


def blocks_of(program: Program) -> list[Blocks]:
    """The identical blocks of a program, those with the most equations first.

    Args:
      program: as returned by `opened`.
    """
    alike = Alike()
    runs = [run for p in programs_in(program) for run in runs_of(p, alike)]
    place = {run: place_of([*run.block(0), *run.block(run.count - 1)]) for run in runs}
    outside = set(_lines_outside(program, runs))
    blocks = []
    for own in grouped(runs, lambda run: place[run] or run):
        equations = [e for run in own for e in run.equations]
        lines = frozenset(_lines_of(equations))
        blocks.append(Blocks(own, place[own[0]], sum(alike.size(e.operation) for e in equations), lines - outside))
    return sorted(blocks, key=lambda b: -b.size)


def opened(program: Program) -> Program:
    """The program with each jitted call that is the only one of its kind inlined, as XLA does, and rows of arrays taken
    first."""
    alike = Alike()
    while True:
        times = Counter(alike.number(e.operation) for _, e in program.walk() if of(e) is JIT)
        once = {number for number, n in times.items() if n == 1}
        opened = inlined_where(program, lambda e: of(e) is JIT and alike.number(e.operation) in once, own_sources=True)
        if opened is program or not once:
            return with_rows_first(program)
        program = opened


def _lines_of(equations: Sequence[Equation]) -> Iterator[tuple[str, int]]:
    return ((at.file, at.line) for e in equations if (at := own_line(e.source)) is not None)


def _lines_outside(program: Program, runs: Sequence[Run]) -> Iterator[tuple[str, int]]:
    """The lines of equations outside of all runs."""
    inside: set[Any] = {e for run in runs for e in run.equations}
    inside |= {nested for e in list(inside) for _, body in e.programs for _, nested in body.walk()}
    return _lines_of([e for _, e in program.walk() if e not in inside and not e.programs])
