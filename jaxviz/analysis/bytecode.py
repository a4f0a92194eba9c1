"""In which order Python may execute the instructions of some code."""

from __future__ import annotations

import dis
import inspect
from bisect import bisect_right
from collections.abc import Container, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

_IN_PIECES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


class Callee(NamedTuple):
    """What an instruction calls.

    Args:
      name: the name of a function in the code, without what it is an attribute of; None if there is none.
      is_fixed: whether it is the same each time: an operator, or something global.
    """

    name: str | None
    is_fixed: bool


class Flow:
    """What may follow each instruction of some code, whether it returns or raises an error."""

    def __init__(self, code: Any):
        self.following: dict[int, tuple[int, ...]] = {}
        self.returns: set[int] = set()
        bytecode = dis.Bytecode(code)
        self.instructions = instructions = [*bytecode]
        self._offsets: list[int] = [i.offset for i in instructions]
        self.start = (self._offsets[0],)
        self._after: dict[int, set[int]] = {}
        self._handlers: dict[int, list[int]] = {at: [] for at in self._offsets}
        for start, end, target, *_ in bytecode.exception_entries:  # type: ignore[attr-defined]
            for at in self._offsets[bisect_right(self._offsets, start - 1) : bisect_right(self._offsets, end - 1)]:
                self._handlers[at].append(target)
        for i, instruction in enumerate(instructions):
            name, at = instruction.opname, instruction.offset
            targets = [*self._handlers[at]]
            if name.startswith(("RETURN_VALUE", "RETURN_CONST")):
                self.returns.add(at)
            elif not name.startswith(("RAISE", "RERAISE")) and not (name.startswith("JUMP") and "_IF_" not in name):
                targets += self._offsets[i + 1 : i + 2]
            if instruction.opcode in _JUMPS:
                targets.append(int(instruction.argval))
            self.following[at] = tuple(targets)

    def started(self, instruction: int) -> int:
        """Where an instruction starts; a call may have been noted at its end."""
        return self._offsets[bisect_right(self._offsets, instruction) - 1]

    def after(self, instruction: int) -> set[int]:
        """The instructions that may be executed after one, given where it starts."""
        if instruction not in self._after:
            self._after[instruction] = self.reached(self.following[instruction])
        return self._after[instruction]

    def reached(self, first: Iterable[int], avoiding: Container[int] = ()) -> set[int]:
        """The instructions that may be executed from some on.

        Args:
          first: the first ones.
          avoiding: those after which the search does not go on.
        """
        seen: set[int] = set()
        pending = [*first]
        while pending:
            at = pending.pop()
            if at not in seen:
                seen.add(at)
                pending += () if at in avoiding else self.following[at]
        return seen

    def called(self, instruction: int) -> Callee:
        """What an instruction calls, given where it starts."""
        i = bisect_right(self._offsets, instruction) - 1
        call = self.instructions[i]
        if not call.opname.startswith(("CALL", "PRECALL")):
            return Callee(None, call.opname.startswith(("BINARY_OP", "UNARY_", "COMPARE_OP")))
        begin, end = _extent(call)
        # A call begins where the expression of its function does, which has been evaluated.
        extents = ((part, _extent(part)) for part in self.instructions[:i] if part.opname != "PUSH_NULL")
        parts = [part for part, extent in extents if extent[0] == begin and extent[1] < end]
        if not parts or not parts[-1].opname.startswith("LOAD_"):
            return Callee(None, False)
        return Callee(str(parts[-1].argval), parts[0].opname in ("LOAD_GLOBAL", "LOAD_NAME"))

    def catches(self, instruction: int) -> bool:
        """Whether the code may go on after an error there."""
        return not self.returns.isdisjoint(self.reached(self._handlers[instruction]))


def _extent(instruction: dis.Instruction) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where its expression begins and ends in the source; nowhere if Python did not record it."""
    at = instruction.positions
    if at is None or at.lineno is None or at.col_offset is None or at.end_lineno is None or at.end_col_offset is None:
        return (0, 0), (0, 0)
    return (at.lineno, at.col_offset), (at.end_lineno, at.end_col_offset)


def is_resumed(code: Any) -> bool:
    """Whether some code runs in pieces, as that of a generator or a coroutine does, and not when it is called."""
    return bool(code.co_flags & _IN_PIECES)


@lru_cache(maxsize=4096)
def flow(code: Any) -> Flow:
    """The flow of some code."""
    return Flow(code)


def is_in_loop(code: Any, instructions: Iterable[int]) -> bool:
    """Whether one loop of some code contains these instructions."""
    of_code = flow(code)
    starts = {of_code.started(i) for i in instructions}
    return all(starts <= of_code.after(i) for i in starts)


@lru_cache(maxsize=4096)
def are_in_the_same_loops(code: Any, first: int, second: int) -> bool:
    """Whether no loop of some code, nor a part of one that may be skipped, contains only one of two instructions."""
    of_code = flow(code)
    pair = of_code.started(first), of_code.started(second)
    return pair[0] == pair[1] or not any(at in of_code.reached(of_code.following[at], pair) for at in pair)
