"""Operations that compile to the same, and where they repeat."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator
from typing import Any

import jax
import numpy as np

from jaxviz.ir.sharing import exact
from jaxviz.ir.syntax import Atom, Literal, Operation, Program

_PERIODS = 60
"""How many block lengths are tried."""
_IN_A_BLOCK = 8
"""How often even the rarest operation of a block may occur in it."""


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
        held = {id(p) for _, p in operation.programs}
        params = []
        for name, value in operation.params.items():
            if id(value) in held or (isinstance(value, tuple) and any(id(x) in held for x in value)):
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
    found = []
    for period, _ in sorted(gaps.items(), key=lambda item: -item[0] * item[1])[:_PERIODS]:
        same = np.concatenate([[False], numbers[:-period] == numbers[period:], [False]])
        (turns,) = np.nonzero(same[1:] != same[:-1])
        for first, past in turns.reshape(-1, 2).tolist():
            if past - first >= period:
                found.append((first, past + period, period))
    yield from sorted(found, key=lambda c: -((c[1] - c[0]) // c[2] - 1) * c[2])
