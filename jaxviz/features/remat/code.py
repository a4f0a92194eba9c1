"""Plans as code to paste: which expressions of the user's source can be given a name, and the edited lines."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from pathlib import PurePath
from typing import Any

import jax
import numpy as np

from jaxviz.higher_order import is_scan, of
from jaxviz.ir import compat
from jaxviz.ir.origin import is_own_code
from jaxviz.ir.sharing import cleared
from jaxviz.ir.syntax import Equation, Program, Var
from jaxviz.report.report import Data


@dataclass(frozen=True, slots=True)
class Place:
    """An expression in the source, by lines from 1 and columns in bytes from 0, as Python records them for what it runs."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True)
class CodeRow(Data):
    """An expression that gets a name.

    Args:
      name: that it gets.
      file, line: where `source` starts.
      expression: the operation that makes the value, such as `tanh`.
      type: of the value; several, where calls differ in that.
      count: how many values of a call of the function get the name.
      source: the lines that it stands in; '' where they are not known.
      start, end: where in `source` it starts and ends.
      target: for a statement such as `x += y`, the variable that is named in a line of its own after it; else ''.
    """

    name: str
    file: str
    line: int
    expression: str
    type: str
    count: int
    source: str = ""
    start: int = 0
    end: int = 0
    target: str = ""


def code_text(function: str, rows: Sequence[CodeRow], notes: Sequence[str], static_argnums: Sequence[int] = ()) -> str:
    """The lines to write for a plan: each line of the source with the names in it, and the checkpoint.

    Args:
      function: its name.
      rows: what gets a name, those of the same lines one after the other.
      notes: comments to start with, a line each.
      static_argnums: positional arguments that are part of the function.
    """
    lines = ["import jax", "from jax.ad_checkpoint import checkpoint_name", "", *(f"# {note}" for note in notes)]
    for _, group in groupby(rows, lambda r: (r.file, r.line, r.source)):
        together = list(group)
        lines.append("")
        for r in together:
            often = f", {r.count} values" if r.count > 1 else ""
            lines.append(f'# {r.file}:{r.line}: the result of {r.expression}, {r.type}{often}, is "{r.name}"')
        source = together[0].source
        if source:
            lines += [f"# was: {line}".rstrip() for line in source.split("\n")]
            lines += marked(source, together).split("\n")
        else:
            lines += [f'... = checkpoint_name(..., "{r.name}")' for r in together]
    shown = function if function.isidentifier() else "f"
    names = ", ".join(f'"{r.name}"' for r in rows)
    static = f", static_argnums={tuple(static_argnums)}" if static_argnums else ""
    if rows:
        lines += ["", f"policy = jax.checkpoint_policies.save_only_these_names({names})"]
        lines.append(f"{shown} = jax.checkpoint({shown}, policy=policy{static})")
    else:
        lines += ["", f"{shown} = jax.checkpoint({shown}{static})"]
    return "\n".join(lines)


def marked(source: str, rows: Sequence[CodeRow]) -> str:
    """Lines of source with `checkpoint_name` around expressions in them; of two that end together, the inner one is closed first."""
    edits = [(r.start, 1, 0, "checkpoint_name(") for r in rows if not r.target]
    edits += [(r.end, 0, -r.start, f', "{r.name}")') for r in rows if not r.target]
    for at, _, _, text in sorted(edits, reverse=True):
        source = source[:at] + text + source[at:]
    indent = source[: len(source) - len(source.lstrip())]
    return "\n".join(
        [source, *(f'{indent}{r.target} = checkpoint_name({r.target}, "{r.name}")' for r in rows if r.target)]
    )


def places_of_values(program: Program) -> dict[Place, tuple[Var, ...]]:
    """Expressions of the user's source that can be given a name, with the values that get it; in the bodies of scans too.

    An expression's value is known if of all that is computed while it is evaluated one value alone is read later. Expressions are left
    out that are evaluated where a name would mean something else, as in a branch of a cond or in a function that is differentiated;
    that may be evaluated several times in a row, which nothing tells apart; and those that are not found in the source.
    """
    found: dict[Place, list[Var]] = {}
    refused: set[Place] = set()
    _find(program, (), found, refused)
    taken: set[Var] = set()
    places = {}
    for place, values in found.items():  # inner ones come first
        if place not in refused and taken.isdisjoint(values) and _expression(place) is not None:
            places[place] = tuple(values)
            taken.update(values)
    return places


def _find(program: Program, outer: Sequence[Place], found: dict[Place, list[Var]], refused: set[Place]) -> None:
    equations = program.equations
    n = len(equations)
    first: dict[Any, int] = {}
    last: dict[Any, int] = {}
    for i, e in enumerate(equations):
        for a in e.invars:
            first.setdefault(a, i)
            last[a] = i
    last.update((a, n) for a in program.outvars)
    stacks = [_without(stack_of(e), outer) for e in equations]
    for e, stack in zip(equations, stacks, strict=True):
        if is_scan(e) or of(e).kind == "devices":
            _find(e.params["jaxpr"], stack, found, refused)
        else:
            refused.update(
                p for _, body in e.programs for _, inner in body.walk() for p in _without(stack_of(inner), stack)
            )
        if compat.is_differentiated(e.source):
            refused.update(stack)
    opened: list[int] = []
    for i in range(n + 1):
        stack = stacks[i] if i < n else ()
        before = stacks[i - 1] if i else ()
        shared = next(
            (k for k, (a, b) in enumerate(zip(before, stack, strict=False)) if a != b), min(len(before), len(stack))
        )
        while len(opened) > shared:
            start, place = opened.pop(), before[len(opened)]
            _close(place, equations[start:i], i, first, last, found, refused)
        opened += [i] * (len(stack) - shared)


def _close(
    place: Place, equations: Sequence[Equation], end: int, first: Mapping[Any, int], last: Mapping[Any, int],
    found: dict[Place, list[Var]], refused: set[Place],
) -> None:  # fmt: skip
    """Notes what a place comes to in one evaluation, whose equations end before number `end`."""
    leaving = [v for e in equations for v in e.outvars if last.get(v, -1) >= end]
    if not leaving:
        return
    value = leaving[0]
    aval = value.aval
    can_be_saved = hasattr(aval, "shape") and not jax.dtypes.issubdtype(aval.dtype, np.complexfloating)
    if (
        len(leaving) > 1
        or first.get(value, end) < end
        or not can_be_saved
        or _repeats([e.primitive for e in equations])
    ):
        refused.add(place)
        return
    found.setdefault(place, []).append(value)


def _repeats(primitives: Sequence[Any]) -> bool:
    """Whether a sequence is a shorter one several times over."""
    n = len(primitives)
    return any(n % k == 0 and list(primitives[:k]) * (n // k) == list(primitives) for k in range(1, n // 2 + 1))


def _without(stack: tuple[Place, ...], outer: Sequence[Place]) -> tuple[Place, ...]:
    """Of a stack in the body of an equation what lies in the body; most often JAX notes no more."""
    return stack[len(outer) :] if stack[: len(outer)] == tuple(outer) else stack


def stack_of(equation: Equation) -> tuple[Place, ...]:
    """The user's expressions that were being evaluated when an equation was made, outermost first; not those of installed libraries."""
    traceback = equation.source.traceback if equation.source is not None else None
    return () if traceback is None else _stack(traceback)


@cleared
@lru_cache(maxsize=65536)
def _stack(traceback: Any) -> tuple[Place, ...]:
    places: list[Place] = []
    for frame in compat.user_frames(traceback):
        if is_own_code(frame.file_name):
            break
        if not {"site-packages", "dist-packages"}.intersection(PurePath(frame.file_name).parts):
            places.append(
                Place(frame.file_name, frame.start_line, frame.start_column, frame.end_line, frame.end_column)
            )
    return tuple(reversed(places))


@dataclass(frozen=True, slots=True)
class _Found:
    """An expression or a statement in the source, by lines from 1 and columns in bytes from 0."""

    line: int
    column: int
    end_line: int
    end_column: int
    target: str = ""


def _expression(place: Place) -> _Found | None:
    """Where an expression starts and ends, such that it can be put into a call."""
    return _expressions(place.file, tuple(linecache.getlines(place.file))).get(place)


@lru_cache(maxsize=256)
def _expressions(file: str, lines: tuple[str, ...]) -> dict[Place, _Found]:
    """The expressions of a file, by the places that Python records for evaluating them."""
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return {}
    iterated = {id(n.iter) for n in ast.walk(tree) if isinstance(n, (ast.For, ast.comprehension))}
    quoted = {id(n) for text in ast.walk(tree) if isinstance(text, ast.JoinedStr) for n in ast.walk(text)}
    found: dict[Place, _Found] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and _stands_alone(node, lines):
            at = (node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)
            found[Place(file, *at)] = _Found(*at, node.target.id)
        if not isinstance(node, (ast.Call, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Subscript, ast.Attribute)):
            continue
        if id(node) in iterated or id(node) in quoted or not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            continue
        start, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
        found[Place(file, *start, *end)] = _Found(*start, *end)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            # Where a method is called on another line than its object starts on, Python records the name of the method as the start.
            line, column = node.func.end_lineno or 0, (node.func.end_col_offset or 0) - len(node.func.attr.encode())
            found.setdefault(Place(file, line, column, *end), _Found(*start, *end))
    return found


def _stands_alone(node: ast.stmt, lines: Sequence[str]) -> bool:
    """Whether a statement has its lines to itself, so that another can follow it."""
    before = lines[node.lineno - 1].encode()[: node.col_offset]
    after = lines[(node.end_lineno or 0) - 1].encode()[node.end_col_offset :].decode().strip()
    return not before.strip() and (not after or after.startswith("#"))


def with_source(rows: Sequence[CodeRow], places: Sequence[Place]) -> list[CodeRow]:
    """The rows, in the order of the source, with the lines that their places stand in; places that share a line share their lines."""
    order = sorted(range(len(rows)), key=lambda i: (places[i].file, _found(places[i]).line))
    made: list[CodeRow] = []
    together: list[int] = []

    def write() -> None:
        spans = [_found(places[i]) for i in together]
        if not spans:
            return
        top, bottom = min(s.line for s in spans), max(s.end_line for s in spans)
        file = places[together[0]].file
        lines = linecache.getlines(file)[top - 1 : bottom]
        source = "".join(lines).rstrip("\n")
        at = lambda line, column: sum(map(len, lines[: line - top])) + len(lines[line - top].encode()[:column].decode())
        for i, s in zip(together, spans, strict=True):
            made.append(
                replace(
                    rows[i], line=top, source=source, start=at(s.line, s.column), end=at(s.end_line, s.end_column),
                    target=s.target,
                )
            )  # fmt: skip

    for i in order:
        if together:
            bottom = max(_found(places[k]).end_line for k in together)
            if places[i].file != places[together[0]].file or _found(places[i]).line > bottom:
                write()
                together = []
        together.append(i)
    write()
    return made


def _found(place: Place) -> _Found:
    found = _expression(place)
    assert found is not None
    return found
