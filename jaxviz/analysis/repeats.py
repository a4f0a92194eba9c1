"""Operations that compile to the same, and blocks of equations that repeat, as a Python loop leaves them.

In a run of blocks each does the same operations in the same order, reads the results of the previous block at the same
positions, and otherwise only values from before the first block: that is what the body of a `jax.lax.scan` can do.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxviz.ir import compat
from jaxviz.ir.sharing import exact
from jaxviz.ir.syntax import Atom, Equation, Literal, Operation, Program

_PERIODS = 60
"""How many block lengths are tried."""
_IN_A_BLOCK = 8
"""How often even the rarest operation of a block may occur in it."""
_OFFSETS = 8
"""At how many equations the first block of a run may begin; those over which the fewest values pass are tried."""

Wire = tuple[Any, ...]
"""Where an operand comes from: `("literal", key)`, `OUTER`, or `(blocks ago, equation, result)`."""
OUTER: Wire = ("outer",)
"""From before the first block."""


class Alike:
    """Numbers for equations, equal for those that compile to the same, regardless of their values."""

    def __init__(self) -> None:
        self._operations: dict[Operation, int] = {}
        self._programs: dict[Program, Hashable] = {}
        self._numbers: dict[Hashable, int] = {}
        self._sizes: dict[Operation, int] = {}

    def number(self, operation: Operation) -> int:
        """The number for what an operation does."""
        if operation not in self._operations:
            self._operations[operation] = self._numbers.setdefault(self._key(operation), len(self._numbers))
        return self._operations[operation]

    def size(self, operation: Operation) -> int:
        """The number of its equations, including nested ones."""
        if operation not in self._sizes:
            self._sizes[operation] = 1 + sum(self.size(e.operation) for _, p in operation.programs for e in p.equations)
        return self._sizes[operation]

    def _key(self, operation: Operation) -> Hashable:
        if not operation.programs:
            return id(operation)  # equal ones are one object
        nested = {id(p) for _, p in operation.programs}
        params = []
        for name, value in operation.params.items():
            if id(value) in nested or (isinstance(value, tuple) and any(id(x) in nested for x in value)):
                continue
            params.append((name, _key_of_param(value)))
        programs = tuple(self._key_of_program(p) for _, p in operation.programs)
        return operation.primitive, tuple(params), programs, operation.in_avals, operation.out_avals, operation.effects

    def _key_of_program(self, program: Program) -> Hashable:
        if program not in self._programs:
            names: dict[Atom, int] = {}
            bind = lambda atoms: [names.setdefault(v, len(names)) for v in atoms]
            bind((*program.constvars, *program.invars))
            read = lambda a: literal_key(a) if isinstance(a, Literal) else names.get(a, -1)
            equations = []
            for e in program.equations:
                equations.append((self.number(e.operation), *map(read, e.invars)))
                bind(e.outvars)
            self._programs[program] = (
                tuple(map(id, program.consts)), program.in_avals, tuple(equations), tuple(map(read, program.outvars)),
            )  # fmt: skip
        return self._programs[program]


def _key_of_param(value: Any) -> Hashable:
    """A param that is not a program.

    A function, such as a custom rule, is not compiled, and its code identifies it well enough.
    """
    if (code := compat.code_of_rule(value)) is not None:
        return code
    if callable(value) and not isinstance(value, type):
        return id(getattr(value, "__code__", None) or type(value))
    try:
        key = exact(value)
        hash(key)
    except TypeError:
        return id(value)
    return key


def literal_key(literal: Literal) -> Hashable:
    """A key that literals share whose values are the same."""
    value = np.asarray(literal.val) if not isinstance(literal.val, jax.Array) else literal.val
    return "literal", literal.aval, value.tobytes() if isinstance(value, np.ndarray) else id(value)


def candidates(numbers: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Where the same operations repeat: start, end, and period; the ones that cover most first."""
    # An operation may occur several times in a block, so the previous occurrence may be in the same block.
    last: dict[int, deque[int]] = {}
    gaps: Counter[int] = Counter()
    for i, number in enumerate(numbers.tolist()):
        before = last.setdefault(number, deque(maxlen=_IN_A_BLOCK))
        gaps.update(i - j for j in before)
        before.append(i)
    places = []
    for period, _ in sorted(gaps.items(), key=lambda item: -item[0] * item[1])[:_PERIODS]:
        same = np.concatenate([[False], numbers[:-period] == numbers[period:], [False]])
        (turns,) = np.nonzero(same[1:] != same[:-1])
        for first, past in turns.reshape(-1, 2).tolist():
            if past - first >= period:
                places.append((first, past + period, period))
    yield from sorted(places, key=lambda c: -((c[1] - c[0]) // c[2] - 1) * c[2])


@dataclass(frozen=True, eq=False, slots=True)
class Run:
    """Consecutive blocks of equations.

    Args:
      body: all equations of the program.
      start: the first equation of the first block.
      length: the number of equations per block.
      count: the number of blocks.
      wires: where each operand of a block comes from; in the first block, those from the block before are from outside.
    """

    body: Sequence[Equation]
    start: int
    length: int
    count: int
    wires: tuple[Wire, ...]

    @property
    def stop(self) -> int:
        """The first equation after them."""
        return self.start + self.length * self.count

    @property
    def equations(self) -> Sequence[Equation]:
        """The equations of all blocks."""
        return self.body[self.start : self.stop]

    def block(self, k: int) -> Sequence[Equation]:
        """The equations of a block."""
        first = self.start + k * self.length
        return self.body[first : first + self.length]

    def operands(self, k: int) -> list[Atom]:
        """The operands of a block, in the order of `wires`."""
        return [a for e in self.block(k) for a in e.invars]


def find_runs(
    equations: Sequence[Equation],
    numbers: Sequence[int],
    sizes: Sequence[int],
    least: int,
    literal: Callable[[Literal], Hashable] = literal_key,
) -> list[Run]:
    """The runs among the equations of a program that leave out most equations, without overlaps and in order.

    Args:
      equations: equations of one program.
      numbers: for each, a number that those at the same position of a block share.
      sizes: how many equations each is, including nested ones.
      least: how many a loop has to leave out for a run to be listed.
      literal: a key that literals at the same position of a block share.
    """
    search = _Search(equations, np.asarray(numbers, np.int64), np.asarray([0, *sizes]).cumsum(), literal)
    runs: list[Run] = []
    parts = [(0, len(equations))]
    while parts:
        first, last = parts.pop()
        largest = search.largest(first, last, least)
        if largest is not None:
            runs.append(largest)
            parts += [(first, largest.start), (largest.stop, last)]
    return sorted(runs, key=lambda run: run.start)


class _Search:
    """Where the values of a program are computed, and where its blocks read them."""

    def __init__(
        self,
        equations: Sequence[Equation],
        numbers: np.ndarray,
        before: np.ndarray,
        literal: Callable[[Literal], Hashable],
    ):
        self.equations, self.numbers, self.before, self.literal = equations, numbers, before, literal
        self.makers: dict[Atom, tuple[int, int]] = {
            v: (i, k) for i, e in enumerate(equations) for k, v in enumerate(e.outvars)
        }

    def left_out(self, start: int, stop: int, length: int) -> int:
        """How many equations a loop leaves out."""
        return int(self.before[stop] - self.before[start + length])

    def largest(self, first: int, last: int, least: int) -> Run | None:
        """The run between two equations that leaves out most, and at least so many."""
        best, most = None, least - 1
        places = [(first + i, first + j, length) for i, j, length in candidates(self.numbers[first:last])]
        for place in sorted(places, key=lambda place: (-self.left_out(*place), place[2])):
            if self.left_out(*place) <= most:
                break
            run = self.longest(*place)
            if run is not None and (n := self.left_out(run.start, run.stop, run.length)) > most:
                best, most = run, n
        return best

    def longest(self, start: int, stop: int, length: int) -> Run | None:
        """The longest run that begins at any possible start of a block; of several, the one with the smallest carry."""
        spare = (stop - start) % length
        best: Run | None = None
        for at in sorted(range(start, start + spare + 1), key=lambda at: self.crossing(at + length, length))[:_OFFSETS]:
            while (stop - at) // length >= 2:
                run = self.run(at, length, (stop - at) // length)
                if run is not None and (best is None or run.count > best.count):
                    best = run
                at = at + length if run is None else run.stop
        return best

    def crossing(self, at: int, length: int) -> int:
        """How many values of the previous block are read in the one that begins here."""
        read = (self.makers.get(a, (-1, 0)) for e in self.equations[at : at + length] for a in e.invars)
        return len({maker for maker in read if at - length <= maker[0] < at})

    def run(self, start: int, length: int, most: int) -> Run | None:
        """The blocks from here on that are wired alike; None if there are fewer than two."""
        first, second = (self.wires(start, length, k) for k in (0, 1))
        if not all(b == a or (a == OUTER and b[0] == 1) for a, b in zip(first, second, strict=True)):
            return None
        count = 2
        while count < most and self.wires(start, length, count) == second:
            count += 1
        return Run(self.equations, start, length, count, second)

    def wires(self, start: int, length: int, k: int) -> tuple[Wire, ...]:
        begin = start + k * length
        block = self.equations[begin : begin + length]
        return tuple([self.wire(a, start, begin, length) for e in block for a in e.invars])

    def wire(self, atom: Atom, start: int, begin: int, length: int) -> Wire:
        if isinstance(atom, Literal):
            return "literal", self.literal(atom)
        i, place = self.makers.get(atom, (-1, 0))
        if i < start:
            return OUTER
        blocks, equation = divmod(i - begin, length)
        return -blocks, equation, place
