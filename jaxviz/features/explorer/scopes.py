"""The scopes of a gradient: the boxes of the function that each pass runs, in execution order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from jaxviz.analysis.grouping import grouped
from jaxviz.features.cost.counts import Cost
from jaxviz.features.cost.parts import counted, remembered, repeats, run_by
from jaxviz.features.explorer.boxes import Boxes, Path, ScopeBox
from jaxviz.ir.syntax import Equation

_LEAST = 1 / 250
"""Scopes with a smaller share of each pass, both in FLOPs and in equations, get no box."""

_DEEPEST = 8
"""The deepest nesting of boxes."""


@dataclass(eq=False, slots=True)
class Item:
    """An equation without nested programs, in one run of its program, or for a loop in all of them.

    Args:
      row: its row.
      flops: the FLOPs over all its runs.
      path: the boxes that contain it, outermost first.
    """

    row: int
    flops: int
    path: Path


@dataclass(slots=True)
class Scope:
    """A box of one pass.

    Args:
      box: the part of the function that it is.
      items: its equations, including those of nested scopes.
      children: the nested scopes in execution order; if it runs several times, those of one run.
      line: for a line, or a scope with only one, its number, or -1.
    """

    box: ScopeBox
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
      boxes: the boxes of the function.
      equations: the equation of each row.
      row_in: for a stage the row of each equation, by the row that contains its program and the equation.
      holder_of: for each row the one that contains its program, or -1.
      path_of: the functions and scopes that lead to an equation, by row.
      line_of: the line of an equation, by row.
    """

    boxes: Boxes
    equations: Sequence[Equation]
    row_in: Mapping[tuple[int, Equation], int]
    holder_of: Sequence[int]
    path_of: Callable[[int], Sequence[str]]
    line_of: Callable[[int], int]
    costs: dict[int, Cost] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=lambda: {-1: 0})
    """The place of what an equation runs, by row; see `Boxes`."""
    others: dict[tuple[Path, str, int], ScopeBox] = field(default_factory=dict)
    """Boxes that are not the function's, such as those of a custom rule."""

    def of_step(self, row: int, equation: Equation) -> list[Item]:
        """The items of one step of the gradient: itself, or the contents of the loop or branch that it is."""
        return list(self._inside(equation, row, 1))

    def _inside(self, e: Equation, row: int, times: int) -> Iterator[Item]:
        programs = run_by(e)
        if not programs or any((row, i) not in self.row_in for p in programs for i in p.equations[:1]):
            # An equation run by another library's rule has no rows for what it runs.
            yield Item(row, remembered(e, self.costs).flops * times, self._path_to(row))
            return
        n = repeats(e)[0]
        for program in counted(e, self.costs):
            for inner in program.equations:
                yield from self._inside(inner, self.row_in[row, inner], times * n)

    def _place(self, row: int) -> int:
        if row not in self.places:
            self.places[row] = self.boxes.place(self._place(self.holder_of[row]), self.equations[row])
        return self.places[row]

    def _path_to(self, row: int) -> Path:
        place = self._place(self.holder_of[row])
        own = self.boxes.around(place, self.equations[row])
        if own is not None:
            return own
        path, origin = self._path_into(self.holder_of[row]), self.equations[row].origin
        if origin is None or origin.equation is not None:
            around = [self.boxes.function, *(box.name for box in path)]
            for name in self.path_of(row):
                path = path if name in around else (*path, self._other(path, name))
        return (*path, self._other(path, "", self.line_of(row)))

    def _path_into(self, row: int) -> Path:
        """The boxes around what an equation runs."""
        if row < 0:
            return ()
        place, outer = self._place(row), self._place(self.holder_of[row])
        if place != outer:
            return self.boxes.inside(place)
        return self._path_into(self.holder_of[row])

    def _other(self, path: Path, name: str, line: int = -1) -> ScopeBox:
        kind = "scope" if name else "line" if line >= 0 else "rest"
        return self.others.setdefault((path, name, line), ScopeBox(name, kind, line=line))


def scopes_of(passes: Sequence[Sequence[Item]]) -> list[list[Scope]]:
    """The scopes of each pass, outermost first; those too small for a box in all passes are one without a name.

    Args:
      passes: the items of each pass, in execution order.
    """
    large = {box for items in passes for box in _large(items)}
    return [_scopes(items, large) for items in passes]


def _large(items: Sequence[Item]) -> Iterator[ScopeBox]:
    """The boxes that are large enough to be seen."""
    flops_of, n_of = Counter[Path](), Counter[Path]()
    for item in items:
        flops_of[item.path] += item.flops
        n_of[item.path] += 1
    flops, n = Counter[ScopeBox](), Counter[ScopeBox]()
    for path, times in n_of.items():
        for box in set(path):
            flops[box] += flops_of[path]
            n[box] += times
    least = _LEAST * sum(i.flops for i in items)
    return (box for box in n if flops[box] >= least or n[box] >= _LEAST * len(items))


def _scopes(items: Sequence[Item], large: Set[ScopeBox]) -> list[Scope]:
    def inside(items: Iterable[Item], depth: int) -> list[Scope]:
        if depth == _DEEPEST:
            return []
        scopes: list[Scope] = []
        parts = grouped(enumerate(items), lambda item: item[1].path[depth] if depth < len(item[1].path) else _REST)
        # What a loop does not change is computed before everything else.
        for part in sorted(parts, key=lambda part: sum(i for i, _ in part) / len(part)):
            of_part = [item for _, item in part]
            box = of_part[0].path[depth] if depth < len(of_part[0].path) else _REST
            scope = Scope(box, of_part, line=box.line)
            if box.kind in ("scope", "loop", "repeated"):
                scope.children = inside(of_part, depth + 1)
            if box.kind != "rest" and box in large:
                scopes.append(scope)
            elif scopes and scopes[-1].box is _REST:
                scopes[-1].items += scope.items
            else:
                scopes.append(Scope(_REST, scope.items))
            if box.kind == "scope" and [c.box.kind for c in scope.children if c.box is not _REST] in ([], ["line"]):
                scope.line = next((c.line for c in scope.children if c.box is not _REST), -1)
                scope.children = []
        return scopes

    return inside(items, 0)


_REST = ScopeBox("", "rest")
"""What is too small for a box."""
