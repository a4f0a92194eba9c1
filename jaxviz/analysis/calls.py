"""Which equations of a program belong to one call of a function, as far as the instructions of their call stacks tell."""

from __future__ import annotations

import dis
from bisect import bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

Frame = tuple[Any, int]
"""A code object, and the instruction that it was executing."""


@dataclass(eq=False, slots=True)
class Call:
    """One call of a function; or perhaps several, if it is not certain.

    Args:
      first: the frames of its first equation.
    """

    first: Sequence[Frame]
    is_certain: bool = True


class Calls:
    """Tells the calls apart that consecutive equations of one trace were made by."""

    def __init__(self) -> None:
        self._next: dict[int, dict[int, tuple[int, ...]]] = {}
        """For each code, by identity, the instructions that may follow each instruction."""
        self._after: dict[tuple[int, int], set[int]] = {}
        self._starts: dict[tuple[int, int], Frame] = {}

    def of(self, stacks: Sequence[Sequence[Frame]], kinds: Sequence[Hashable]) -> list[list[Call]]:
        """For each equation the calls that its frames belong to.

        Two equations share the calls up to the first frame that differs, if its code leads from the one instruction to the other.
        Otherwise a loop further out has called it again, and if a call between the two begins as the second equation does, it is not
        known whether it is another one.

        Args:
          stacks: the frames of the equations, in the order of the trace, outermost first.
          kinds: what they do.
        """
        found: list[list[Call]] = []
        before: Sequence[Frame] = ()
        old: list[Call] = []
        started = (tuple(map(self._started, frames)) for frames in stacks)
        for stack, run in groupby(zip(started, kinds, strict=True), key=itemgetter(0)):
            differs = next((i for i, (a, b) in enumerate(zip(before, stack, strict=False)) if a != b), None)
            n = min(len(before), len(stack)) if differs is None else differs
            if differs is not None and self._goes_on(before[n], stack[n]):
                n += 1
            else:
                self._doubt(old[:n], stack)
            old = [*old[:n], *(Call(stack) for _ in range(n, len(stack)))]
            # A function of JAX may leave several equations with one stack.
            of_run = [kind for _, kind in run]
            if _repeats(of_run):
                self._doubt(old, stack)
            found += [old] * len(of_run)
            before = stack
        return found

    def _doubt(self, calls: Sequence[Call], stack: Sequence[Frame]) -> None:
        """Marks the calls that may not be one: a loop around them may have called them again, to begin as they have begun."""
        begun = next((i for i, call in enumerate(calls) if call.first == stack), len(calls))
        loop = next((i for i in range(max(0, begun - 1), len(calls)) if self._leads(stack[i], stack[i])), len(calls))
        for call in calls[loop + 1 :]:
            call.is_certain = False

    def _started(self, frame: Frame) -> Frame:
        """The same with the start of the instruction; a call may have been noted at its end."""
        if (key := (id(frame[0]), frame[1])) not in self._starts:
            offsets = [*self._following(frame[0])]
            self._starts[key] = frame[0], offsets[bisect_right(offsets, frame[1]) - 1]
        return self._starts[key]

    def _goes_on(self, before: Frame, after: Frame) -> bool:
        return before[0] is after[0] and self._leads(before, after)

    def _leads(self, before: Frame, after: Frame) -> bool:
        """Whether the code may execute the one instruction after the other, within one call."""
        (code, first), (_, second) = before, after
        key = id(code), first
        if key not in self._after:
            following = self._following(code)
            seen: set[int] = set()
            pending = [*following.get(first, ())]
            while pending:
                at = pending.pop()
                if at not in seen:
                    seen.add(at)
                    pending += following.get(at, ())
            self._after[key] = seen
        return second in self._after[key]

    def _following(self, code: Any) -> dict[int, tuple[int, ...]]:
        if id(code) not in self._next:
            instructions = list(dis.get_instructions(code))
            found = {}
            for i, instruction in enumerate(instructions):
                name = instruction.opname
                ends = name.startswith(("RETURN_VALUE", "RETURN_CONST", "RAISE", "RERAISE"))
                jumps = name.startswith("JUMP") and "_IF_" not in name
                following = [x.offset for x in instructions[i + 1 : i + 2] if not ends and not jumps]
                if instruction.opcode in _JUMPS:
                    following.append(int(instruction.argval))
                found[instruction.offset] = tuple(following)
            self._next[id(code)] = found
        return self._next[id(code)]


def _repeats(kinds: Sequence[Hashable]) -> bool:
    n = len(kinds)
    return any(n % k == 0 and kinds[k:] == kinds[:-k] for k in range(1, n // 2 + 1))


_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
