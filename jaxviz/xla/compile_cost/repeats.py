"""Finds repeated blocks in a program, as a Python loop leaves them.

In a run of blocks each does the same operations in the same order, reads the results of the previous block at the same positions, and
otherwise only values from before the first block: that is what the body of a `jax.lax.scan` can do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxviz.analysis.repeats import Alike, candidates, literal_key
from jaxviz.ir.syntax import Atom, Equation, Literal, Program, Var

_FEWEST = 8
"""The minimum number of equations that a loop would leave out for a run to be reported."""
_SHARE = 0.005
"""The minimum share of the program's equations that it would leave out."""
_MOST = 24
"""How many runs are searched for in one program."""

Slot = tuple[int, int]
"""An equation of a block, and the index of one of its operands or results."""


@dataclass(frozen=True, eq=False)
class Run:
    """Consecutive blocks in one program.

    Args:
      program: the program.
      start: the first equation of the first block.
      period: the number of equations per block.
      count: the number of blocks.
      carried: for each operand of a block that reads a result of the previous block, that result.
      given: the operands that read a different earlier value in each block.
    """

    program: Program
    start: int
    period: int
    count: int
    carried: dict[Slot, Slot]
    given: tuple[Slot, ...]

    @property
    def end(self) -> int:
        """The first equation after them."""
        return self.start + self.period * self.count

    def block(self, k: int) -> tuple[Equation, ...]:
        """The equations of a block."""
        first = self.start + k * self.period
        return self.program.equations[first : first + self.period]

    @property
    def equations(self) -> tuple[Equation, ...]:
        """The equations of all blocks."""
        return self.program.equations[self.start : self.end]

    def operand(self, k: int, slot: Slot) -> Atom:
        """The operand in a given block."""
        return self.program.equations[self.start + k * self.period + slot[0]].invars[slot[1]]

    def result(self, k: int, slot: Slot) -> Var:
        """The result in a given block."""
        return self.program.equations[self.start + k * self.period + slot[0]].outvars[slot[1]]

    @property
    def carry(self) -> tuple[Var, ...]:
        """What the first block passes to the second, as often as a loop has to carry it: once for each value that the first block reads instead."""
        found: dict[tuple[Var, Any], None] = {}
        for operand, result in self.carried.items():
            first = self.operand(0, operand)
            found[self.result(0, result), literal_key(first) if isinstance(first, Literal) else first] = None
        return tuple(result for result, _ in found)

    @property
    def stacked(self) -> tuple[tuple[Atom, ...], ...]:
        """What a loop iterates over: for each value that differs between blocks, its values, each once."""
        return tuple({tuple(self.operand(k, slot) for k in range(self.count)): None for slot in self.given})


def find_runs(program: Program, alike: Alike) -> list[Run]:
    """The runs among a program's own equations that leave out most equations, in program order.

    Args:
      program: the program.
      alike: numbers that are equal for identical equations.
    """
    n = len(program.equations)
    if n < 2 * 2:
        return []
    numbers = np.array([alike.number(e.operation) for e in program.equations])
    sizes = np.array([alike.size(e.operation) for e in program.equations])
    least = max(_FEWEST, _SHARE * sizes.sum())
    weights = np.concatenate([[0], np.cumsum(sizes)])
    values = _Values(program)
    found: list[Run] = []
    for _ in range(_MOST):
        best: Run | None = None
        saved = least
        for start, end, period in candidates(numbers):
            if weights[end] - weights[start] - (weights[start + period] - weights[start]) <= saved:
                continue
            for run in values.runs(start, end, period):
                leaves_out = weights[run.end] - weights[run.start + run.period]
                if leaves_out > saved or (best is not None and leaves_out == saved and run.period < best.period):
                    best, saved = run, leaves_out
        if best is None:
            break
        found.append(best)
        numbers[best.start : best.end] = -1 - np.arange(best.start, best.end)
    return sorted(found, key=lambda run: run.start)


class _Values:
    """Where the values of a program are computed, and who reads them."""

    def __init__(self, program: Program):
        self.program = program
        self.made = {v: (i, k) for i, e in enumerate(program.equations) for k, v in enumerate(e.outvars)}

    def runs(self, start: int, end: int, period: int) -> Iterator[Run]:
        """The longest run that begins at each possible start of a block; of several, the one with the smallest carry."""
        slack = (end - start) % period
        offsets = sorted(range(slack + 1), key=lambda o: self._crossing(start + o + period, period))
        best: Run | None = None
        for offset in offsets[:8]:
            at = start + offset
            while (end - at) // period >= 2:
                run = self._run(at, period, (end - at) // period)
                if run is not None and (best is None or run.count * run.period > best.count * best.period):
                    best = run
                at = at + period if run is None else run.end
        if best is not None:
            yield best

    def _crossing(self, at: int, period: int) -> int:
        """How many values of the previous block are read in the one that begins here."""
        equations = self.program.equations[at : at + period]
        places = (self.made.get(a, (-1, 0))[0] for e in equations for a in e.invars if not isinstance(a, Literal))
        return len({p for p in places if at - period <= p < at})

    def _run(self, start: int, period: int, most: int) -> Run | None:
        """The blocks from here on that read the same places; None if there are fewer than two."""
        first, second = self._reads(start, period, 0), self._reads(start, period, 1)
        if first is None or second is None:
            return None
        for slot, kind in second.items():
            outer = kind[0] == "before"
            if outer and (first[slot][0] != "outer" or not self._fits(start, period, slot, kind)):
                return None
            if not outer and first[slot] != kind:
                return None
        count = 2
        while count < most and self._reads(start, period, count) == second:
            count += 1
        carried = {slot: (kind[1], kind[2]) for slot, kind in second.items() if kind[0] == "before"}
        outer_slots = [slot for slot, kind in second.items() if kind[0] == "outer"]
        at = lambda k, slot: self.program.equations[start + k * period + slot[0]].invars[slot[1]]
        given = (slot for slot in outer_slots if any(at(k, slot) is not at(0, slot) for k in range(1, count)))
        return Run(self.program, start, period, count, carried, tuple(given))

    def _fits(self, start: int, period: int, slot: Slot, kind: tuple[Any, ...]) -> bool:
        """Whether the values that the first block reads have the types of those that the others read instead."""
        first = self.program.equations[start + slot[0]].invars[slot[1]]
        carried = self.program.equations[start + kind[1]].outvars[kind[2]]
        return bool(first.aval.shape == carried.aval.shape and first.aval.dtype == carried.aval.dtype)

    def _reads(self, start: int, period: int, k: int) -> dict[Slot, tuple[Any, ...]] | None:
        """What each operand of a block is: a literal, a value of the block, one of the previous block, or one from before the run."""
        begin = start + k * period
        found: dict[Slot, tuple[Any, ...]] = {}
        for j, e in enumerate(self.program.equations[begin : begin + period]):
            if e.effects:
                return None
            for o, a in enumerate(e.invars):
                if isinstance(a, Literal):
                    found[j, o] = ("literal", literal_key(a))
                    continue
                i, place = self.made.get(a, (-1, 0))
                if i >= begin:
                    found[j, o] = ("own", i - begin, place)
                elif i >= begin - period and k > 0:
                    found[j, o] = ("before", i - begin + period, place)
                elif i >= start:
                    return None
                else:
                    found[j, o] = ("outer",)
        return found
