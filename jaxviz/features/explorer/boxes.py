"""The boxes of a function, in which both passes of its gradient are shown: its calls, scopes, loops and lines, with
repetitions folded."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from jaxviz.analysis.bytecode import is_resumed
from jaxviz.analysis.calls import Frame, FunctionCall, begin, calls_of, frames_inside
from jaxviz.analysis.grouping import alike, pattern
from jaxviz.analysis.repeats import Alike, candidates
from jaxviz.analysis.walk import primal_equation
from jaxviz.features.cost.parts import repeats, run_by
from jaxviz.higher_order import is_choice, is_loop
from jaxviz.ir import compat
from jaxviz.ir.origin import owners
from jaxviz.ir.syntax import Equation, Program


@dataclass(eq=False, slots=True)
class ScopeBox:
    """Something of the function that is shown as one box.

    Args:
      name: the name of the function, module, scope or loop; for several that differ in numbers, one name for all; ''
        for a line.
      kind: one of `SCOPES` of the wire format.
      count: how often it is called in that box per run of the enclosing one, for a loop its iterations; 1 if that is
        not certain.
      line: for a line its number, or -1.
    """

    name: str
    kind: str
    count: int = 1
    line: int = -1


Path = tuple[ScopeBox, ...]
"""The boxes around an equation, outermost first."""

_Key = tuple[str, FunctionCall | None]
"""The name of a function and its call, or the name of a scope."""


class _Named(NamedTuple):
    """A function or a scope around an equation.

    Args:
      level: the number of its frame; for a scope that of the first frame in it.
    """

    level: int
    name: str
    is_scope: bool


_Names = tuple[_Named, ...]
"""Outermost first."""


@dataclass(eq=False, slots=True)
class _WayIn:
    """The frames that led to equations, and the functions and scopes around these. Equal layers share one."""

    stack: Sequence[Frame]
    names: _Names


@dataclass(eq=False, slots=True)
class _Leaf:
    """An equation of the function without a body of its own, or one that runs its bodies as loop or by choice.

    Args:
      place: the number of the program that contains it; see `Boxes`.
      keys: the functions and scopes that contain it.
      bodies: for a loop or a choice its programs.
    """

    equation: Equation
    place: int
    way: _WayIn
    line: int
    keys: tuple[_Key, ...] = ()
    bodies: list[list[_Leaf]] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Section:
    """A part of the function, before repetitions are folded. Those that do the same have the same `number`."""

    name: str
    kind: str
    number: int
    leaves: list[_Leaf] = field(default_factory=list)
    children: list[_Section] = field(default_factory=list)
    trips: int = 1
    call: FunctionCall | None = None


class Boxes:
    """Finds the boxes around each equation of a function, and around those that are derived from it.

    The calls and scopes of the function are a tree. Parts of it that do the same, one after the other, share their
    boxes.

    Args:
      program: the function.
      path_to: the functions and scopes that lead to an equation, outermost first.
      line_of: the number of the line of an equation, or -1.
    """

    def __init__(
        self, program: Program, path_to: Callable[[Equation], Sequence[str]], line_of: Callable[[Equation], int]
    ):
        self._path_to, self._line_of = path_to, line_of
        self.function = program.name
        self._places: dict[tuple[int, Equation], int] = {}
        """A number for each program that an equation in a place runs; 0 is the function."""
        self._any_place: dict[Equation, int] = {}
        """One of the places of an equation that is run in several, which is then the same box."""
        self._in_place: list[list[_Leaf]] = []
        """For each place what is in it."""
        self._paths: dict[tuple[int, Equation], Path] = {}
        self._any: dict[Equation, Path] = {}
        self._ways: dict[tuple[_WayIn, Program, Hashable, tuple[str, ...]], _WayIn] = {}
        """By the way to a program, the program, and the frames and the path of an equation of it."""
        self._alike = Alike()
        self._met: set[FunctionCall] = set()
        self._numbers: dict[Hashable, int] = {}
        self._put([self._nodes(self._told_apart(self._leaves(program, _WayIn((), ()))), 0)], ())

    def place(self, holder: int, equation: Equation) -> int:
        """The place of what an equation runs, given that of its own program. Equations may be derived ones."""
        primal = primal_equation(equation)
        return self._places.get((holder, primal), self._any_place.get(primal, holder))

    def around(self, place: int, equation: Equation) -> Path | None:
        """The boxes around an equation; None for one that comes from no equation of the function, as in a custom
        rule."""
        primal = primal_equation(equation)
        # One that was moved out of its program is also found.
        path = self._paths.get((place, primal)) or self._any.get(primal)
        if path is None and primal in self._any_place:
            return self.inside(self.place(place, primal))
        return path

    def inside(self, place: int) -> Path:
        """The boxes around everything in a place."""
        paths = [self._paths[leaf.place, leaf.equation] for leaf in self._in_place[place]]
        return tuple(boxes[0] for boxes in takewhile(lambda boxes: len(set(boxes)) == 1, zip(*paths, strict=False)))

    # --- the tree -----------------------------------------------------------------------------------------------------

    def _leaves(self, program: Program, outer: _WayIn) -> list[_Leaf]:
        """The equations of a program to which this way leads, those of calls in place of the call."""
        content: list[_Leaf] = []
        place = len(self._in_place)
        self._in_place.append(content)
        for e in program.equations:
            path = tuple(self._path_to(e))
            same = outer, program, getattr(e.source, "traceback", None), path
            if (way := self._ways.get(same)) is None:
                way = self._ways[same] = _led_to(frames_inside(compat.frames_of(e.source)), path, program, outer)
            inside = []
            for body in run_by(e):
                self._any_place.setdefault(e, self._places.setdefault((place, e), len(self._in_place)))
                inside.append(self._leaves(body, way))
            if not inside or is_loop(e) or is_choice(e):
                leaf = _Leaf(e, place, way, self._line_of(e))
                leaf.bodies = [self._told_apart(leaves, leaf) for leaves in inside]
                content.append(leaf)
            else:
                content += [leaf for leaves in inside for leaf in leaves]
        return content

    def _told_apart(self, leaves: list[_Leaf], holder: _Leaf | None = None) -> list[_Leaf]:
        """The same, with the calls and scopes within their holder that they belong to."""
        outer, begins = (len(holder.way.names), len(holder.way.stack)) if holder is not None else (0, 0)
        of_leaf = calls_of([leaf.equation for leaf in leaves], [leaf.way.stack for leaf in leaves], begins)
        # Equations in a library's scope are not named after its methods, though these may be around them.
        names = {
            calls[n.level]: n.name
            for leaf, calls in zip(leaves, of_leaf, strict=True)
            for n in leaf.way.names
            if not n.is_scope and n.level < len(calls)
        }
        for leaf, calls in zip(leaves, of_leaf, strict=True):
            scopes = [n for n in leaf.way.names[outer:] if n.is_scope]
            around = [(i, (names[c], c)) for i, c in enumerate(calls) if i >= begins and c in names]
            around_leaf = sorted([*((n.level, (n.name, None)) for n in scopes), *around], key=itemgetter(0))
            leaf.keys = tuple(key for _, key in around_leaf)
            if holder is None and leaf.keys and leaf.keys[0][0] == self.function:
                leaf.keys = leaf.keys[1:]
        return leaves

    def _nodes(self, leaves: Sequence[_Leaf], depth: int) -> list[_Section]:
        """The parts of the equations of a function or scope, in order."""
        sections: list[_Section] = []
        for key, run in groupby(leaves, lambda leaf: leaf.keys[depth] if depth < len(leaf.keys) else None):
            part = [*run]
            if key is None:
                sections += self._lines(part)
                continue
            name, call = key
            inside = self._nodes(part, depth + 1)
            if call is not None:
                call.is_certain &= call not in self._met  # otherwise it is shown in parts
                self._met.add(call)
            number = self._number(_without_digits(name), inside)
            sections.append(_Section(name, "scope", number, children=inside, call=call))
        return sections

    def _lines(self, leaves: Sequence[_Leaf]) -> Iterator[_Section]:
        for (line, with_bodies), run in groupby(leaves, lambda leaf: (leaf.line, leaf if leaf.bodies else None)):
            if with_bodies is None:
                part = [*run]
                kinds = tuple(self._alike.number(leaf.equation.operation) for leaf in part)
                yield _Section("", "line", self._number((line, *kinds), ()), part)
                continue
            inside = [self._nodes(leaves, 0) for leaves in with_bodies.bodies]
            of_branches = [_Section("", "branch", self._number("branch", nodes), children=nodes) for nodes in inside]
            kind, e = "loop" if is_loop(with_bodies.equation) else "choice", with_bodies.equation
            trips = repeats(e)[0] if kind == "loop" else 1
            name = str(e.primitive.name)
            yield _Section(name, kind, self._number((name, trips), of_branches), [with_bodies], of_branches, trips)

    def _number(self, what: Hashable, inside: Sequence[_Section]) -> int:
        return self._numbers.setdefault((what, *(n.number for n in inside)), len(self._numbers))

    # --- the boxes ----------------------------------------------------------------------------------------------------

    def _put(self, runs: Sequence[Sequence[_Section]], outer: Path, is_certain: bool = True) -> None:
        """Puts several runs of the same parts into the same boxes. If it is not certain how often, no calls share a
        box."""
        numbers = [
            nodes[0].number if nodes[0].kind == "line" or (is_certain and _are_certain(nodes)) else -1 - i
            for i, nodes in enumerate(zip(*runs, strict=True))
        ]
        for start, period, count in _folded(np.array(numbers)):
            parts = [run[start + period * k : start + period * (k + 1)] for run in runs for k in range(count)]
            if period == 1:
                self._box([node for (node,) in parts], count, outer, is_certain)
                continue
            has_calls = any(node.kind in ("scope", "loop") for node in parts[0])
            self._put(parts, (*outer, ScopeBox("", "repeated", count)) if has_calls else outer, is_certain)

    def _box(self, nodes: Sequence[_Section], count: int, outer: Path, is_certain: bool) -> None:
        first = nodes[0]
        match first.kind:
            case "line":
                line = first.leaves[0].line
                path = (*outer, ScopeBox("", "line" if line >= 0 else "rest", line=line))
            case "loop":
                path = (*outer, ScopeBox(first.name, "loop", first.trips * count))
                is_certain = True
            case "scope":
                path = (*outer, ScopeBox(_name_of_all([node.name for node in nodes]), "scope", count))
                is_certain &= _are_certain(nodes)
            case _:
                path = outer
        for leaf in (leaf for node in nodes for leaf in node.leaves):
            self._paths[leaf.place, leaf.equation] = path
            self._any.setdefault(leaf.equation, path)
        if first.children:
            self._put([node.children for node in nodes], path, is_certain)


def _without_digits(name: str) -> str:
    """A name without numbers: parts with the same operations on the same lines are told apart by nothing else."""
    return _DIGITS.sub("", pattern(name))


_DIGITS = re.compile(r"\d+")


def _name_of_all(names: Sequence[str]) -> str:
    """`LinenBlock_0…3`, and `block` for `block0`, `block1` and so on."""
    return alike(names) if len(set(map(pattern, names))) == 1 else _without_digits(names[0])


def _are_certain(nodes: Iterable[_Section]) -> bool:
    return all(node.call is None or node.call.is_certain for node in nodes)


def _led_to(own: Sequence[Frame], path: Sequence[str], program: Program, outer: _WayIn) -> _WayIn:
    """The way to an equation.

    Args:
      own: the frames of the equation.
      path: the functions and scopes that lead to it.
      program: the program that contains it.
      outer: the way to what runs the program.
    """
    call = outer.stack
    begins = begin(own, program, len(call))
    functions = []
    rest = [*path]
    whose = owners([code for code, _ in reversed(own)])[::-1]
    for i, (code, _) in enumerate(own):
        if rest and whose[i] in ("user", "library") and _name(code) == rest[0]:
            name = rest.pop(0)
            # What a generator does, it does between what reads its values.
            functions += [] if is_resumed(code) else [(i, name)]
    scopes = [n.name for n in outer.names if n.is_scope]
    rest = rest[len(scopes) :] if rest[: len(scopes)] == scopes else rest
    shift = len(call) - begins
    stack = (*call, *own[begins:])
    named = [_Named(i + shift, name, False) for i, name in functions if i >= begins or not call]
    return _WayIn(stack, (*outer.names, *named, *(_Named(len(stack), name, True) for name in rest)))


def _name(code: object) -> str:
    name: str = code.co_qualname  # type: ignore[attr-defined]
    return name.split("<locals>.")[-1].removesuffix(".__call__")


def _folded(numbers: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Divides numbers where some of them repeat, one after the other: start, length, and how often; those that leave
    out most first."""
    at, past, period = next(candidates(numbers), (0, 0, 1)) if len(numbers) > 1 else (0, 0, 1)
    n = (past - at) // period
    if n < 2:
        yield from ((i, 1, 1) for i in range(len(numbers)))
        return
    yield from _folded(numbers[:at])
    yield at, period, n
    end = at + n * period
    yield from ((end + start, period, count) for start, period, count in _folded(numbers[end:]))
