"""The places for checkpoints in a function: bodies of its scans, and calls in it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import groupby
from typing import Any, TypeVar

from jaxviz.analysis.bytecode import is_in_loop
from jaxviz.analysis.grouping import grouped
from jaxviz.higher_order import is_scan, of
from jaxviz.higher_order.scan import SCAN
from jaxviz.higher_order.shard_map import SHARD_MAP
from jaxviz.ir import compat
from jaxviz.ir.origin import Location, location_at, owners
from jaxviz.ir.own_code import is_own
from jaxviz.ir.sharing import cleared
from jaxviz.ir.syntax import Equation, Program, Var
from jaxviz.report.tables import short_location
from jaxviz.transforms.inline import Made

K = TypeVar("K")

BODIES = (SCAN, SHARD_MAP)
"""Equations whose bodies are planned together with their surroundings."""
AROUND_CALLS = ("BoundMethod.__call__", "wrap_method.<locals>.wrapped", "run_interceptors")
"""Functions that libraries run at each call of a method: their calls belong to many functions."""
MOST_NESTED = 6
"""Each region is derived, and what that takes grows with the square of the loops in it."""


def with_nested(equations: Iterable[Equation]) -> Iterator[Equation]:
    """Some equations, each followed by those nested in it."""
    for e in equations:
        yield e
        yield from (inner for _, p in e.programs for _, inner in p.walk())


@dataclass(frozen=True, slots=True)
class Spot:
    """A place for a checkpoint: consecutive equations of a program, or the body of a scan.

    Args:
      program: the program that contains them.
      start, end: the range of equations.
      is_body: whether it is the body of the one equation in the range.
    """

    program: Program
    start: int
    end: int
    is_body: bool = False

    @property
    def equations(self) -> tuple[Equation, ...]:
        """The equations in the checkpoint."""
        equations = self.program.equations[self.start : self.end]
        return equations[0].params["jaxpr"].equations if self.is_body else equations

    @property
    def scan(self) -> Equation:
        """The scan whose body it is."""
        return self.program.equations[self.start]

    def walk(self) -> Iterator[Equation]:
        """The equations, including nested ones."""
        return with_nested(self.equations)


@dataclass(frozen=True, eq=False, slots=True)
class Region:
    """The places of one checkpoint in the source: all calls of a function, or the body of a scan.

    Args:
      name: the name of the function.
      code: the function's code; None for the body of a scan, and if unknown.
      location: where it is called.
      alike: its spots, grouped by equal equations.
      stacks: for each spot the frames that led there, outermost first.
      is_written: whether it is a checkpoint that the function has.
      others: code of functions that only call it, or that it only calls.
      defined: for a checkpoint that the function has, where the checkpointed function is defined.
    """

    name: str
    code: Any
    location: Location | None
    alike: tuple[tuple[Spot, ...], ...]
    stacks: Mapping[Spot, tuple[Frame, ...]] = field(default_factory=dict, repr=False)
    is_written: bool = False
    others: tuple[Any, ...] = ()
    defined: Location | None = None

    @property
    def is_body(self) -> bool:
        """Whether it is the body of a scan."""
        return self.alike[0][0].is_body

    @property
    def is_in_pieces(self) -> bool:
        """Whether the function takes a gradient in it: each call has spots in the inner backward pass then, so spots do
        not count calls."""
        return any(compat.is_transposed(e.source) for s in self.spots for e in s.equations)

    @property
    def described(self) -> str:
        """`32 calls of block`, `the body of the scan at model.py:27`."""
        if self.is_body:
            return f"the body of the scan at {short_location(self.location)}"
        n = sum(map(len, self.alike))
        if self.is_in_pieces:
            return f"{n} pieces of {self.name} and of its inner gradient"
        if self.is_written:
            return f"{f'{n} calls of ' if n > 1 else ''}{self.name}, where there is one now"
        return self.name if self.code is None else f"the call of {self.name}" if n == 1 else f"{n} calls of {self.name}"

    @property
    def spots(self) -> Iterator[Spot]:
        return (spot for spots in self.alike for spot in spots)

    def covers(self, other: Region) -> bool:
        """Whether both contain the same equations."""
        return self is other or {e for s in self.spots for e in s.equations} == {
            e for s in other.spots for e in s.equations
        }

    def overlaps(self, other: Region) -> bool:
        """Whether an equation, possibly nested, is in both."""
        return not {e for s in self.spots for e in s.walk()}.isdisjoint(e for s in other.spots for e in s.walk())

    def is_inside(self, other: Region) -> bool:
        """Whether all of this one is contained in another, larger one."""
        return {e for s in self.spots for e in s.walk()} < {e for s in other.spots for e in s.walk()}


def bound_in(spot: Spot) -> tuple[Var, ...]:
    """The values computed in a spot, including loops, in equation order: corresponding ones have the same index in
    equal spots."""
    return tuple(v for e in spot.walk() for v in e.outvars)


Frame = tuple[Any, int]
"""A code object, and the instruction that it was executing."""
Stacks = Mapping[Equation, tuple[Frame, ...]]
"""The frames of each equation, outermost first."""


def own_frames(frames: Sequence[Frame]) -> list[Frame]:
    """Those of the user's code."""
    return [frame for frame in frames if is_own(frame[0].co_filename)]


def find_regions(program: Program, stacks: Stacks) -> list[Region]:
    """The regions of a function whose calls are inlined, bodies of scans first, and functions before those that they
    call; those in more than `MOST_NESTED` loops are left out.

    Args:
      program: the function.
      stacks: see `stacks_of`.
    """
    scans: dict[Spot, tuple[Frame, ...]] = {}
    calls: dict[Any, dict[Spot, tuple[Frame, ...]]] = {}
    seen: set[int] = set()

    def look(p: Program, depth: int, n_loops: int) -> None:
        if n_loops > MOST_NESTED or id(p) in seen:  # a body that two loops share
            return
        seen.add(id(p))
        here = [stacks[e] for e in p.equations]
        _find_calls(p, [stack[depth:] for stack in here], [stack[:depth] for stack in here], calls)
        for i, e in enumerate(p.equations):
            if is_scan(e):
                scans[Spot(p, i, i + 1, True)] = here[i]
            if of(e) in BODIES:
                look(e.params["jaxpr"], len(here[i]), n_loops + 1)

    look(program, 0, 0)
    regions = [
        Region(spot.scan.params["jaxpr"].name, None, spot.scan.location, ((spot,),), {spot: stack})
        for spot, stack in scans.items()
        if sum(1 for _ in spot.walk()) > 1
    ]
    covering: dict[frozenset[tuple[int, int, int]], list[Any]] = {}
    for code, spots in calls.items():
        if code.co_qualname in AROUND_CALLS:
            continue
        covering.setdefault(frozenset((id(s.program), s.start, s.end) for s in spots), []).append(code)
    for codes in covering.values():
        # If a function only calls another one, the user's own is meant, or for a library's, the wrapped one.
        own = [code for code in codes if is_own(code.co_filename)]
        code = own[0] if own else codes[-1]
        at = _called_at(code, *next(iter(calls[code].items())))
        name = str(code.co_qualname).rpartition("<locals>.")[2]
        others = tuple(c for c in codes if c is not code)
        regions.append(Region(name, code, at, alike_spots(list(calls[code])), calls[code], others=others))
    return regions


def _called_at(code: Any, spot: Spot, stack: Sequence[Frame]) -> Location | None:
    """The user's line that calls a function, directly or indirectly; or else the line of its first equation."""
    level = next((i for i, (c, _) in enumerate(stack) if c is code), 0)
    callers = own_frames(stack[:level])
    return location_at(*callers[-1]) if callers else spot.equations[0].location


def stacks_of(made: Mapping[Equation, Made]) -> Stacks:
    """The frames that led to each equation of a function whose calls are inlined; in a loop, JAX starts with those of
    the loop's body.

    A jitted function is traced once, and its equations have the frames of its first call: the frames of the actual call
    are put before the function's own.

    Args:
      made: see `originals`.
    """

    @cache
    def stack_of(*nested: Equation) -> tuple[Frame, ...]:
        return _called(stack_of(*nested[:-1]), frames_of(nested[-1].source)) if nested else ()

    return {e: stack_of(*within, as_written) for e, (as_written, within) in made.items()}


def _called(call: tuple[Frame, ...], own: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The frames within a call; these may be shared with another call, or begin with the body of a loop."""
    if call and own and own[0][0] is not call[0][0]:
        return (*call, *own)
    same = len(own) >= len(call) and all(a is b for (a, _), (b, _) in zip(call, own, strict=False))
    return (*call, *own[len(call) :]) if same else call


def alike_spots(spots: Sequence[Spot]) -> tuple[tuple[Spot, ...], ...]:
    """Groups spots with the same equations."""
    return tuple(grouped(spots, lambda s: tuple(map(_kind, s.equations))))


def _find_calls(
    program: Program, stacks: Sequence[tuple[Frame, ...]], outer: Sequence[tuple[Frame, ...]],
    calls: dict[Any, dict[Spot, tuple[Frame, ...]]],
) -> None:  # fmt: skip
    """Records the calls of each function in the equations of one program, outer calls before the calls they make."""
    equations = program.equations
    anew = [range(0), *map(_called_anew, stacks, stacks[1:])]

    def look(start: int, end: int, level: int, inside: frozenset[Any]) -> None:
        for code, begin, stop in runs(start, end, lambda i: stacks[i][level][0] if level < len(stacks[i]) else None):
            if code is None:
                continue
            in_a_row = _calls_in_a_row(stacks, anew, equations, begin, stop, level)
            for first, last in in_a_row:
                is_whole = first == 0 and last == len(equations)
                if last - first > 1 and not is_whole and code not in inside:
                    calls.setdefault(code, {})[Spot(program, first, last)] = outer[first] + stacks[first]
            for first, last in in_a_row or [(begin, stop)]:
                for _, at, same in runs(first, last, lambda i: stacks[i][level]):  # calls from different lines
                    look(at, same, level + 1, inside | {code})

    look(0, len(equations), 0, frozenset())


def runs(start: int, end: int, key: Callable[[int], K]) -> Iterator[tuple[K, int, int]]:
    """The ranges of consecutive positions with the same key."""
    first = start
    for same, positions in groupby(range(start, end), key):
        last = first + sum(1 for _ in positions)
        yield same, first, last
        first = last


def _calls_in_a_row(
    stacks: Sequence[Sequence[Frame]], anew: Sequence[range], equations: Sequence[Equation],
    start: int, end: int, level: int,
) -> list[tuple[int, int]]:  # fmt: skip
    """Consecutive calls of one function, separated where its Python code goes backwards, or repeats.

    None if it could also be a loop within the function.
    """
    new = [i for i in range(start + 1, end) if level in anew[i]]
    if new:
        return list(zip([start, *new], [*new, end], strict=True))
    key = [(stacks[i][level], _kind(equations[i])) for i in range(start, end)]
    n = len(key)
    for k in range(1, n // 2 + 1):
        if n % k == 0 and key[k] == key[0] and key[k:] == key[:-k]:
            if not _loops_inside(stacks[start : start + k], level):
                return [(start + at, start + at + k) for at in range(0, n, k)]
            is_in_a_loop = any(map(is_called_in_loop, stacks[start][:level]))
            return [] if is_in_a_loop else [(start, end)]
    return [(start, end)]


def _called_anew(before: Sequence[Frame], after: Sequence[Frame]) -> range:
    """The levels of the stack at which a function was called again between two equations, as far as its instructions
    tell."""
    differs = next((k for k, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None)
    if differs is None:
        return range(0)
    (code, was), (same, now) = before[differs], after[differs]
    if code is not same or now >= was or is_in_loop(code, (now, was)):
        return range(0)
    in_loops = [k for k, frame in enumerate(before[:differs]) if is_called_in_loop(frame)]
    return range(max(in_loops, default=-1) + 1, differs + 1)


def _loops_inside(stacks: Sequence[Sequence[Frame]], level: int) -> bool:
    """Whether a loop in a function, or in what it calls, contains everything that some equations have frames for."""
    while all(level < len(stack) and stack[level][0] is stacks[0][level][0] for stack in stacks):
        at = {stack[level][1] for stack in stacks}
        if is_in_loop(stacks[0][level][0], at):
            return True
        if len(at) > 1:
            return False
        level += 1
    return False


def is_called_in_loop(frame: Frame) -> bool:
    """Whether a frame is executing code inside a loop."""
    return is_in_loop(frame[0], frame[1:])


@cleared
@lru_cache(maxsize=65536)
def _frames_of(traceback: Any) -> tuple[tuple[Any, int], ...]:
    frames: list[tuple[Any, int]] = []
    codes, instructions = compat.raw_frames(traceback)
    for code, instruction, whose in zip(codes, instructions, owners(codes), strict=True):
        if whose == "jaxviz":
            break
        if whose in ("user", "library"):
            frames.append((code, instruction))
    return tuple(reversed(frames))


def frames_of(source: Any) -> tuple[tuple[Any, int], ...]:
    """The frames of the user's and of libraries' code that led to an equation, outermost first."""
    traceback = source.traceback if source is not None else None
    return () if traceback is None else _frames_of(traceback)


@cleared
@lru_cache(maxsize=65536)
def type_of(aval: Any) -> str:
    return str(aval.str_short(short_dtypes=True))


def _kind(equation: Equation) -> Hashable:
    """A key shared by equations that do the same."""
    operation = equation.operation
    if not operation.programs:
        return operation if not operation.has_user_data else (equation.primitive, *map(type_of, operation.out_avals))
    inside = tuple(_kind(e) for _, p in operation.programs for e in p.equations)
    return (equation.primitive, inside, *map(type_of, operation.out_avals))
