"""Which equations of a program belong to one call of a function, as far as their call stacks tell."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, takewhile, zip_longest
from typing import Any

from jaxviz.analysis.bytecode import Callee, Flow, flow, is_resumed
from jaxviz.ir import compat
from jaxviz.ir.origin import definition
from jaxviz.ir.own_code import owner
from jaxviz.ir.primitives import plain
from jaxviz.ir.syntax import Equation, Program

Frame = tuple[Any, int]
"""A code object, and the instruction that it was executing."""


_CALL_SEVERAL_TIMES = frozenset(("reduce", *dir(builtins)))


@dataclass(eq=False, slots=True)
class FunctionCall:
    """One call of a function; or perhaps several, if it is not certain."""

    is_certain: bool = True


def frames_inside(frames: Sequence[Frame]) -> list[Frame]:
    """The frames that led to an equation, outermost first, without those that called jaxviz.

    Args:
      frames: as `compat.frames_of` gives them, innermost first.
    """
    return [*takewhile(lambda frame: owner(frame[0].co_filename) != "jaxviz", frames)][::-1]


def begin(own: Sequence[Frame], program: Program, outer: int) -> int:
    """The number of frames of an equation that led to its program rather than to the equation within it.

    Args:
      own: the frames of the equation, outermost first.
      program: the program that contains it.
      outer: the number of frames of the equation that runs the program; 0 if none does.
    """
    if not outer:
        return 0
    at = definition(program.debug_info)
    # A jitted function is traced once, and its equations have the frames of its first call.
    is_start = lambda code: at is not None and (code.co_filename, code.co_firstlineno) == (at.file, at.line)
    return next((i for i, (code, _) in enumerate(own) if is_start(code)), min(outer, len(own)))


def calls_once(frame: Frame, inner: Frame) -> bool:
    """Whether an instruction calls a function itself, not several times as in `functools.reduce` or `map`."""
    outer, called = (_Place(code, flow(code), flow(code).started(at), set()) for code, at in (frame, inner))
    return not outer.may_repeat(called)


def calls_of(
    equations: Sequence[Equation], stacks: Sequence[Sequence[Frame]], outer: int = 0
) -> list[Sequence[FunctionCall]]:
    """For each equation of one trace, also of a gradient that it takes, the calls that its frames belong to; see
    `calls_in_order`."""
    # What JAX transposes has the frames of what it transposes, in another order.
    in_order = [i for i, e in enumerate(equations) if not compat.is_transposed(e.source)]
    found = calls_in_order([stacks[i] for i in in_order], [_is_sure(equations[i]) for i in in_order], outer)
    if len(in_order) == len(equations):  # the usual case: hashing stacks takes time
        return [*found]
    calls = dict(zip(in_order, found, strict=True))
    last: dict[tuple[Frame, ...], Sequence[FunctionCall]] = {}
    of_each: list[Sequence[FunctionCall]] = []
    for i in range(len(equations)):
        stack = tuple(stacks[i])
        if i in calls:
            last[stack] = calls[i]
        elif stack not in last:
            shared = takewhile(lambda pair: pair[0] == pair[1], zip(stacks[i - 1], stack, strict=False)) if i else ()
            last[stack] = of_each[-1][: sum(1 for _ in shared)] if of_each else ()
        of_each.append(last[stack])
    return of_each


def _is_sure(e: Equation) -> bool:
    """Whether JAX never leaves out the operation because its result would be the operand."""
    return plain(e.primitive.name).same in ("", "operand", "bits")


def calls_in_order(
    stacks: Sequence[Sequence[Frame]], are_sure: Sequence[bool], outer: int = 0
) -> list[list[FunctionCall]]:
    """For each equation of one trace the calls that its frames belong to.

    From one equation to the next, one frame goes on to another instruction, or in a loop to the same one, and what is
    further in is called anew. Meanwhile no instruction is passed that leaves an equation: not by that frame, not by the
    old calls until they return, and not by the new ones until they come to theirs. One that has left an equation is
    taken to leave one whenever it is executed, unless the trace contradicts that. If several frames may be the one that
    goes on, the innermost is taken, and calls that may be others are not certain.

    Args:
      stacks: the frames of the equations, outermost first, in the order of the trace.
      are_sure: for each equation whether the operation is never left out, whatever its operands are.
      outer: the number of frames that are those of one call for all equations.
    """
    return _CallTrace(stacks, are_sure, outer).calls()


@dataclass(eq=False)
class _Place:
    """A frame at the start of its instruction.

    Args:
      sure: the instructions of the code that leave an equation whenever they are executed.
    """

    code: Any
    flow: Flow
    at: int
    sure: set[int]

    def __post_init__(self) -> None:
        self.is_of_jax = owner(self.code.co_filename) == "jax"
        # What JAX leaves depends on the operands, and a generator goes on where it was.
        self.is_free = self.is_of_jax or is_resumed(self.code)
        self.is_repeated = False
        """Whether the instruction is known to call several functions."""

    @cached_property
    def catches(self) -> bool:
        """Whether its code may go on after an error; JAX passes errors on."""
        return not self.is_of_jax and self.flow.catches(self.at)

    @cached_property
    def called(self) -> Callee:
        return self.flow.called(self.at)

    def may_repeat(self, inner: _Place) -> bool:
        """Whether its instruction may call this function several times, by `functools.reduce` or a builtin function."""
        return self.called.name in _CALL_SEVERAL_TIMES and self.called.name != inner.code.co_name

    @cached_property
    def after(self) -> set[int]:
        """The instructions that its code may execute next without leaving an equation before."""
        return self.flow.reached(self.flow.following[self.at], self.sure)

    @cached_property
    def is_last(self) -> bool:
        """Whether its call may return without leaving another equation."""
        return self.is_free or not self.flow.returns.isdisjoint(self.after)

    @cached_property
    def is_first(self) -> bool:
        """Whether a call may come to it without leaving an equation."""
        return self.is_free or self.at in self.flow.reached(self.flow.start, self.sure)

    def forget(self) -> None:
        """Forgets what depends on the instructions that are sure."""
        self.sure.clear()
        for name in ("after", "is_last", "is_first"):
            self.__dict__.pop(name, None)


_Stack = tuple[_Place, ...]


class _CallTrace:
    def __init__(self, stacks: Sequence[Sequence[Frame]], are_sure: Sequence[bool], outer: int):
        self._outer = outer
        self._of_code: dict[int, tuple[Flow, set[int]]] = {}
        self._places: dict[tuple[int, int], _Place] = {}
        # Equal layers have equal stacks, and those of equal frames are given as one object.
        made = {id(stack): stack for stack in stacks}
        places = {number: tuple(self._place(*frame) for frame in stack) for number, stack in made.items()}
        self._stacks = [places[id(stack)] for stack in stacks]
        self._are_sure = are_sure
        self._doubted: set[int] = set()
        """The codes, by identity, of which no instruction is sure, since that would contradict the trace."""

    def _place(self, code: Any, instruction: int) -> _Place:
        key = id(code), instruction
        if key not in self._places:
            if id(code) not in self._of_code:
                self._of_code[id(code)] = flow(code), set()
            of_code, sure = self._of_code[id(code)]
            at = of_code.started(instruction)
            self._places[key] = self._places.setdefault((id(code), at), _Place(code, of_code, at, sure))
        return self._places[key]

    def _find_sure(self) -> None:
        """Finds the instructions that call JAX, and those that call a function which always executes one of them."""
        for place in self._places.values():
            place.forget()
        called: dict[_Place, set[int | None]] = {}
        for stack, is_sure in set(zip(self._stacks, self._are_sure, strict=True)):
            own = [place for place in stack if not place.is_of_jax]
            for place, inner in zip_longest(own, own[1:]):
                if (inner or is_sure) and place.called.is_fixed and id(place.code) not in self._doubted:
                    called.setdefault(place, set()).add(id(inner.code) if inner else None)
        always: set[int | None] = {None}
        while certain := [place for place, codes in called.items() if codes <= always]:
            for place in certain:
                del called[place]
                place.sure.add(place.at)
            for place in certain:
                if not place.is_free and place.flow.returns.isdisjoint(
                    place.flow.reached(place.flow.start, place.sure)
                ):
                    always.add(id(place.code))

    def calls(self) -> list[list[FunctionCall]]:
        """The calls of each equation."""
        while True:
            self._find_sure()
            calls: list[list[FunctionCall]] = []
            has_learned = False
            known: dict[tuple[int, int], list[int]] = {}
            for before, stack in pairwise([(), *self._stacks]):
                pair = id(before), id(stack)
                moved = known[pair] if pair in known else known.setdefault(pair, self._moved(before, stack))
                if not moved and self._learn(before, stack):
                    has_learned = True
                    known.clear()
                same = calls[-1][: moved[0] + 1 if moved else self._outer] if calls else []
                for call in same[moved[-1] + 1 :] if moved else ():
                    call.is_certain = False
                calls.append([*same, *(FunctionCall() for _ in stack[len(same) :])])
            if not has_learned:
                return calls

    def _moved(self, before: _Stack, stack: _Stack, repeats: bool = False, trusts: bool = True) -> list[int]:
        """The frames that may be the one that goes on, innermost first.

        Args:
          repeats: whether any instruction may call a function several times.
          trusts: whether instructions that are sure are not passed.
        """
        n = min(len(before), len(stack))
        differs = next((i for i in range(n) if before[i] is not stack[i]), None)
        innermost = n - 1 if differs is None else differs
        has_returned = True
        frames = []
        for i in range(max(len(before), len(stack)) - 1, self._outer - 1, -1):
            has_returned = has_returned or before[i].catches
            if has_returned and i <= innermost:
                a, b = before[i], stack[i]
                # A function of JAX may leave several equations by one instruction.
                stays = (differs is None and i == innermost) or (
                    a is b and (repeats or self._repeats(before, stack, i))
                )
                if stays or (a.code is b.code and b.at in (a.after if trusts else a.flow.after(a.at))):
                    frames.append(i)
            if trusts:
                has_returned = has_returned and (i >= len(before) or before[i].is_last)
                if i < len(stack) and not stack[i].is_first:
                    break
        return frames

    def _repeats(self, before: _Stack, stack: _Stack, i: int) -> bool:
        """Whether a frame may have called what is further in again by the same instruction."""
        inner = (*before[i + 1 : i + 2], *stack[i + 1 : i + 2])
        return before[i].is_repeated or (len(inner) == 2 and all(map(before[i].may_repeat, inner)))

    def _learn(self, before: _Stack, stack: _Stack) -> bool:
        """Finds what explains an equation, if no frame can have gone on; returns whether something new was found."""
        known = len(self._doubted)
        moved = self._moved(before, stack, trusts=False)
        repeated = [] if moved else self._moved(before, stack, True) or self._moved(before, stack, True, False)
        if repeated:
            before[repeated[0]].is_repeated = True
        self._doubted |= {id(place.code) for i in moved[:1] for place in (*before[i:], *stack[i:])}
        return bool(repeated) or len(self._doubted) > known
