"""Groups of repeated blocks that one loop would replace: the forward pass of layers, their backward pass, and the use of their gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxviz.analysis.grouping import alike as one_name
from jaxviz.analysis.grouping import grouped, pattern
from jaxviz.analysis.repeats import Alike
from jaxviz.higher_order import of
from jaxviz.higher_order.jit import JIT
from jaxviz.ir.origin import Location, own_line
from jaxviz.ir.syntax import Atom, Program, Var
from jaxviz.report.tables import type_text
from jaxviz.transforms.inline import inlined_where
from jaxviz.xla.compile_cost.instructions import Instruction
from jaxviz.xla.compile_cost.parts import rows_of, set_apart
from jaxviz.xla.compile_cost.places import Place, place_of
from jaxviz.xla.compile_cost.repeats import Run, find_runs

_AS_MANY = 0.7
"""The least share of blocks that a second pass has to have in common with the first: at either end some may be missing or differ."""


@dataclass(frozen=True, eq=False)
class Group:
    """Runs with equally many blocks, which read each other's results, or the same arguments.

    Args:
      runs: the runs in order, those of inner programs last.
      places: where they are written.
      equations: their total number of equations, including nested ones.
      lines: the lines that are theirs alone.
    """

    runs: tuple[Run, ...]
    places: tuple[Place, ...]
    equations: int
    lines: frozenset[tuple[str, int]]

    @property
    def count(self) -> int:
        """The number of blocks. The backward pass may have fewer identical ones, for example if the first one's input has no gradient."""
        return max(run.count for run in self.runs)

    @property
    def place(self) -> Place | None:
        """Where the blocks are written: the loop, if there is one."""
        return next((p for p in self.places if p.is_loop), self.places[0] if self.places else None)

    @property
    def is_chain(self) -> bool:
        """Whether a block reads results of the previous one."""
        return any(run.carry for run in self.runs)

    @cached_property
    def carry(self) -> tuple[str, ...]:
        """The types of what is passed from block to block in the first run that has any."""
        run = next((r for r in self.runs if r.carry), None)
        return () if run is None else tuple(type_text(run.result(0, result).aval) for _, result in run.carry)

    def stacked(self, names: dict[Atom, str]) -> tuple[str, ...]:
        """The arguments of which each block takes one: `params['layers'][0…11]['q']`.

        Args:
          names: the names of the arguments.
        """
        found: dict[tuple[str, ...], None] = {}
        for run in self.runs:
            rows = rows_of(run.program)
            for atoms in run.stacked:
                arrays = {rows[a].array for a in atoms if a in rows}
                if all(a in rows for a in atoms) and len(arrays) == 1:
                    name = names.get(arrays.pop(), "")
                    found.update({(name,): None} if name else {})
                    continue
                paths = tuple(names[a] for a in atoms if names.get(a))
                if len(paths) == run.count and len({pattern(p) for p in paths}) == 1:
                    found.setdefault(tuple(sorted(paths)), None)
        # Another pass may cover all but the first of these.
        widest = [paths for paths in found if not any(set(paths) < set(others) for others in found)]
        return tuple(dict.fromkeys(one_name(paths) for paths in widest))

    def holds(self, instruction: Instruction) -> bool:
        """Whether an instruction belongs to its blocks, by the lines that JAX recorded for it."""
        lines = instruction.lines
        return any(place.holds(line) for place in self.places for line in lines if place.is_loop) or any(
            (line.file, line.line) in self.lines for line in lines[:1]
        )


def groups_of(program: Program, alike: Alike) -> list[Group]:
    """The groups of a program, those with the most equations first."""
    runs = find_runs(program, alike)
    seen = {program}
    for _, e in program.walk():
        for _, nested in e.programs:
            if nested not in seen:
                seen.add(nested)
                runs += find_runs(nested, alike)
    places = [place_of([*run.block(0), *run.block(run.count - 1)]) for run in runs]
    joined = _joined(runs, places)
    in_groups = [grouped(range(len(runs)), lambda i: joined[i])][0]
    outside = _lines_outside(program, runs)
    found = []
    for numbers in in_groups:
        own = tuple(runs[i] for i in numbers)
        equations = sum(alike.size(e.operation) for run in own for e in run.equations)
        at = tuple(dict.fromkeys(p for i in numbers if (p := places[i]) is not None))
        lines = {(at.file, at.line) for run in own for at in _lines_of(run.block(0))}
        found.append(Group(own, at, equations, frozenset(lines - outside)))
    return sorted(found, key=lambda g: -g.equations)


def opened(program: Program, alike: Alike) -> Program:
    """The program with each jitted call that is the only one of its kind inlined, as XLA does."""
    while True:
        times = Counter(alike.number(e.operation) for _, e in program.walk() if of(e) is JIT)
        once = {number for number, n in times.items() if n == 1}
        opened = inlined_where(program, lambda e: of(e) is JIT and alike.number(e.operation) in once, own_sources=True)
        if opened is program or not once:
            return set_apart(program)
        program = opened


def _joined(runs: Sequence[Run], places: Sequence[Place | None]) -> list[int]:
    """For each run the index of its group."""
    group = list(range(len(runs)))
    of_value: dict[Atom, set[int]] = {}
    for i, run in enumerate(runs):
        for atoms in run.stacked:
            for a in atoms:
                if isinstance(a, Var):
                    of_value.setdefault(a, set()).add(i)
        for k in range(run.count):
            for e in run.block(k):
                for v in e.outvars:
                    of_value.setdefault(v, set()).add(i)

    def join(i: int, j: int) -> None:
        few, many = sorted((runs[i].count, runs[j].count))
        if group[i] != group[j] and few >= _AS_MANY * many:
            old, new = max(group[i], group[j]), min(group[i], group[j])
            group[:] = [new if g == old else g for g in group]

    for i, run in enumerate(runs):
        for atoms in run.stacked:
            shared = [of_value.get(a, set()) - {i} for a in atoms]
            for j in set.intersection(*shared) if shared else ():
                join(i, j)
            # In a shorter pass, all but a few.
            for j in set.union(*shared) if len(shared) > 2 else ():
                if sum(j in s for s in shared) >= _AS_MANY * len(shared):
                    join(i, j)
        for j in range(i):
            here, there = places[i], places[j]
            if here is not None and there is not None and (here.location, here.last) == (there.location, there.last):
                join(i, j)
    return group


def _lines_of(equations: Iterable[Any]) -> Iterable[Location]:
    return (at for e in equations if (at := own_line(e.source)) is not None)


def _lines_outside(program: Program, runs: Sequence[Run]) -> set[tuple[str, int]]:
    """The lines of equations outside of all runs."""
    of_runs = {id(e) for run in runs for e in run.equations}
    inside = {id(inner) for run in runs for e in run.equations for _, p in e.programs for _, inner in p.walk()}
    rest = (e for _, e in program.walk() if id(e) not in of_runs and id(e) not in inside and not e.programs)
    return {(at.file, at.line) for at in _lines_of(rest)}
