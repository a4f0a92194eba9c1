"""The scopes of a gradient: functions, modules, named scopes, loops and lines in execution order, with repetitions folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from jaxviz.analysis.grouping import alike, grouped, pattern
from jaxviz.features.cost.counts import Cost
from jaxviz.features.cost.parts import remembered, repeats, run_by, weight
from jaxviz.higher_order import is_choice, is_loop
from jaxviz.ir.syntax import Equation

_LEAST = 1 / 250
"""Scopes with a smaller share of a pass, both in FLOPs and in equations, get no box."""

_DEEPEST = 8
"""The deepest nesting of boxes."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop on the path to an equation: the group of its equation, its primitive, and how often it runs (1 if unknown)."""

    group: int
    name: str
    trips: int


Path = tuple[str | Loop, ...]


@dataclass(eq=False, slots=True)
class Kind:
    """The data that thousands of items share, and that determines their scope.

    Args:
      path: the functions, scopes and loops that contain them, outermost first.
      group: a number shared by one expression's equations in repeated layers and calls.
      line: the user's line, or -1.
    """

    path: Path
    group: int
    line: int

    def part(self, depth: int) -> str | Loop | None:
        """A part of the path; None past its end."""
        return self.path[depth] if depth < len(self.path) else None


@dataclass(eq=False, slots=True)
class Item:
    """An equation without nested programs, in one run of its program, or for a loop in all of them.

    Args:
      row: its row.
      flops: the FLOPs over all its runs.
      kind: what it shares with other items.
    """

    row: int
    flops: int
    kind: Kind


@dataclass(slots=True)
class Scope:
    """A box of the picture.

    Args:
      name: the name of the function, module, scope or loop; for several that differ in numbers, one name for all; '' for a line.
      kind: one of `SCOPES` of the wire format.
      count: how often it runs per run of the enclosing scope.
      items: its equations, including those of nested scopes.
      children: the nested scopes in execution order; if it runs several times, those of one run.
      line: for a line its number, or -1.
    """

    name: str
    kind: str
    count: int
    items: list[Item]
    children: list[Scope] = field(default_factory=list)
    line: int = -1

    @property
    def flops(self) -> int:
        return sum(i.flops for i in self.items)

    def walk(self) -> Iterator[Scope]:
        """This scope and all nested ones, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass
class Items:
    """The innermost equations of the steps of a gradient.

    Args:
      row_in: for a stage the row of each equation, by the row that contains its program and the equation.
      holder_of: for each row the one that contains its program, or -1.
      path_of: the functions and scopes that contain an equation within its program, by row.
      group_of, line_of: the group and line of an item, by row.
      function: the name of the function, which contains everything.
    """

    row_in: Mapping[tuple[int, Equation], int]
    holder_of: Sequence[int]
    path_of: Callable[[int], tuple[str, ...]]
    group_of: Sequence[int]
    line_of: Callable[[int], int]
    function: str
    costs: dict[int, Cost] = field(default_factory=dict)
    paths: dict[int, Path] = field(default_factory=dict)
    """The path to the equations within a row, by row."""
    kinds: dict[tuple[Path, Path, int, int], Kind] = field(default_factory=dict)

    def of_step(self, row: int, equation: Equation) -> list[Item]:
        """The items of one step of the gradient: itself, or the contents of the loop or branch that it is."""
        return list(self._inside(equation, self._path_into(self.holder_of[row]), row, 1))

    def _path_into(self, row: int) -> Path:
        if row < 0:
            return ()
        if row not in self.paths:
            self.paths[row] = _joined(self._path_into(self.holder_of[row]), self.path_of(row))
        return self.paths[row]

    def _inside(self, e: Equation, path: Path, row: int, times: int) -> Iterator[Item]:
        programs = run_by(e)
        if not programs or any((row, i) not in self.row_in for p in programs for i in p.equations[:1]):
            # An equation run by another library's rule has no rows for what it runs.
            yield Item(row, remembered(e, self.costs).flops * times, self._kind(path, row))
            return
        if is_choice(e):
            cost = lambda p: weight(sum((remembered(i, self.costs) for i in p.equations), Cost()))
            programs = [max(programs, key=cost)]
        n = repeats(e)[0]
        here = _joined(path, self.path_of(row))
        if is_loop(e):
            here = (*here, Loop(self.group_of[row], str(e.primitive.name), n))
        for program in programs:
            for inner in program.equations:
                yield from self._inside(inner, here, self.row_in[row, inner], times * n)

    def _kind(self, outer: Path, row: int) -> Kind:
        key = outer, own, group, line = outer, self.path_of(row), self.group_of[row], self.line_of(row)
        if key not in self.kinds:
            path = _joined(outer, own)
            self.kinds[key] = Kind(path[1:] if path and path[0] == self.function else path, group, line)
        return self.kinds[key]


def _joined(outer: Path, own: Path) -> Path:
    """The path to an equation, including that of the equation that contains its program; some equations have the complete path themselves."""
    named = tuple(part for part in outer if isinstance(part, str))
    return (*outer, *(own[len(named) :] if named and own[: len(named)] == named else own))


def scopes_of(items: Sequence[Item], n_equations: int) -> list[Scope]:
    """The scopes of one pass, outermost first; those too small for a box are combined in one without a name.

    Args:
      items: the items of the pass, in execution order.
      n_equations: their number.
    """
    flops = sum(i.flops for i in items)

    def is_small(scope: Scope) -> bool:
        return scope.flops < _LEAST * flops and len(scope.items) < _LEAST * n_equations

    return _Builder(is_small).inside(items, 0, 1, False)


@dataclass
class _Builder:
    is_small: Callable[[Scope], bool]

    def inside(self, items: Sequence[Item], depth: int, times: int, repeated: bool, level: int = 0) -> list[Scope]:
        """The scopes of items whose paths start alike.

        Args:
          depth: the number of common parts.
          times: how often the enclosing scope is written out.
          repeated: whether the items are those of several runs, which are shown as one.
        """
        if level == _DEEPEST:
            return []
        if not items:
            return []
        keys = _keys(_counted(items), depth)
        key = lambda item: keys[item.kind]
        if repeated:
            return self._shown([self._scope(list(run), depth, times, level) for run in grouped(items, key)])
        runs = [(k, list(run)) for k, run in groupby(items, key)]
        found: list[Scope] = []
        at = 0
        for first, last in _stretches(runs, depth):
            found += [self._scope(run, depth, times, level) for _, run in runs[at:first]]
            every = [item for _, run in runs[first:last] for item in run]
            if len({k for k, _ in runs[first:last] if k[0] != ""}) == 1:
                found.append(self._scope(every, depth, times, level))
            else:
                count = _evaluations(_counted(every), depth)
                inside = self.inside(every, depth, count, True, level + 1)
                found.append(Scope("", "repeated", max(1, count // times), every, inside))
            at = last
        found += [self._scope(run, depth, times, level) for _, run in runs[at:]]
        return self._shown(found)

    def _scope(self, items: list[Item], depth: int, times: int, level: int) -> Scope:
        kinds = _counted(items)
        part = next((p for k in kinds if (p := k.part(depth)) is not None), None)
        evaluations = max(times, _evaluations(kinds, depth if part is None else depth + 1))
        count = max(1, round(evaluations / times))
        if part is None:
            line = items[0].kind.line
            return Scope("", "line" if line >= 0 else "rest", count, items, line=line)
        if isinstance(part, Loop):
            inside = self.inside(items, depth + 1, evaluations, evaluations > 1, level + 1)
            loop = Scope(part.name, "loop", part.trips * count, items, inside)
            return _without_middle(loop)
        name = alike([p for k in kinds if isinstance(p := k.part(depth), str)])
        if len(names := {k.part(depth + 1) for k in kinds}) == 1 and None not in names:
            evaluations, count = times, 1  # the loop around everything that it calls counts as part of it
        inside = self.inside(items, depth + 1, evaluations, evaluations > 1, level + 1)
        scope = Scope(name, "scope", count, items, inside)
        if [child.kind for child in inside if child.kind != "rest"] in ([], ["line"]):
            scope.line = next((child.line for child in inside if child.kind == "line"), -1)
            scope.children = []
        return scope

    def _shown(self, scopes: Iterable[Scope]) -> list[Scope]:
        """The scopes that get a box, and what is between them."""
        found: list[Scope] = []
        for scope in scopes:
            if scope.kind != "rest" and not self.is_small(scope):
                found.append(scope)
            elif found and found[-1].kind == "rest":
                found[-1].items += scope.items
            else:
                found.append(Scope("", "rest", 1, list(scope.items)))
        return found


def _counted(items: Iterable[Item]) -> Counter[Kind]:
    """The number of items of each kind, in order of first appearance."""
    return Counter(i.kind for i in items)


def _keys(kinds: Iterable[Kind], depth: int) -> dict[Kind, tuple[Hashable, ...]]:
    """The common key of items in one scope: its name without the number of a layer; for items in no scope, the line."""
    groups: dict[str, set[int]] = {}
    for kind in kinds:
        part = kind.part(depth)
        if isinstance(part, str):
            groups.setdefault(part, set()).add(kind.group)
    names: dict[str, str] = {}
    for same in grouped(groups, pattern):
        for name in same:
            # `block_0` and `block_1` do the same thing; `Dense_0` and `Dense_1` of one block do not.
            like = (names[n] for n in same if n in names and _are_alike(groups[n], groups[name]))
            names[name] = next(like, name)

    def key(kind: Kind) -> tuple[Hashable, ...]:
        part = kind.part(depth)
        if isinstance(part, str):
            return ("scope", names[part])
        return ("", kind.line) if part is None else ("loop", part.group)

    return {kind: key(kind) for kind in kinds}


def _are_alike(first: set[int], second: set[int]) -> bool:
    return 2 * len(first & second) > max(len(first), len(second))


def _evaluations(kinds: Mapping[Kind, int], depth: int) -> int:
    """The repetitions of a scope with so many items of each kind, which share these first parts: as many as most of its contents have.

    The most common count of the functions in it, or of all its contents, whichever is lower: a function may be called twice each time, and
      of one product the backward pass computes two.
    """
    parts = grouped(kinds, _keys(kinds, depth).__getitem__)
    if len(parts) == 1 and parts[0][0].part(depth) is None:
        of_group: Counter[int] = Counter()
        for kind, n in kinds.items():
            of_group[kind.group] += n
        return _most(of_group.values())
    times = [_times_called({kind: kinds[kind] for kind in part}, depth) for part in parts]
    of_functions = [n for n, part in zip(times, parts, strict=True) if part[0].part(depth) is not None]
    return min(_most(each) for each in (times, of_functions) if each)


def _times_called(kinds: Mapping[Kind, int], depth: int) -> int:
    names = {kind.part(depth) for kind in kinds}
    # `block_0` and `block_1` are called once each.
    return max(1, _evaluations(kinds, depth if None in names else depth + 1) // len(names))


def _most(numbers: Iterable[int]) -> int:
    """The most frequent number; if two are equally frequent, the smaller."""
    times = Counter(numbers)
    return min(times, key=lambda n: (-times[n], n))


def _stretches(runs: Sequence[tuple[tuple[Hashable, ...], list[Item]]], depth: int) -> Iterator[tuple[int, int]]:
    """Repeating sequences, such as `attention` and `mlp`, which a loop calls in turn."""
    places: dict[Hashable, list[int]] = {}
    for i, (key, _) in enumerate(runs):
        places.setdefault(key, []).append(i)
    again = {
        key: at
        for key, at in places.items()
        if len(at) > 1 and _evaluations(_counted(item for i in at for item in runs[i][1]), depth) > 1
    }
    start = 0
    while start < len(runs):
        last = start
        i = start
        # As long as everything in between repeats as well.
        while i <= last and runs[i][0] in again:
            last = max(last, again[runs[i][0]][-1])
            i += 1
        if i > last > start:
            yield start, last + 1
        start = max(i, start + 1)


def _without_middle(loop: Scope) -> Scope:
    """Merges a loop whose body is a single call with that call."""
    most = max((c for c in loop.children if c.kind == "scope"), key=lambda c: len(c.items), default=None)
    if most is None or len(most.items) < 0.8 * len(loop.items) or most.flops < 0.8 * loop.flops:
        return loop
    return Scope(most.name, "scope", loop.count * most.count, loop.items, most.children, most.line)
