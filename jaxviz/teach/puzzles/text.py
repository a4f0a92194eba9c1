"""`code_of`: the source of a puzzle's function or of a known answer, with everything it needs, as written in a cell."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

from jaxviz.teach.puzzles.puzzle import Puzzle


def code_of(puzzle: Puzzle, answer: Any) -> str:
    """The source of something in a puzzle's module: its definition, its rules, and everything that these read.

    Args:
      puzzle: the puzzle.
      answer: its function, or a known answer.
    """
    module = sys.modules[puzzle.function.__module__]
    name = next(n for n, value in vars(module).items() if value is answer)
    body = ast.parse(inspect.getsource(module)).body
    defined = {n for statement in body for n in _defines(statement)}
    needed, size = {name}, 0
    while len(needed) > size:
        size = len(needed)
        for statement in body:
            if needed & {*_defines(statement), *_extends(statement)}:
                needed |= _names(statement) & defined
    given = puzzle.function.__name__
    parts = [s for s in body if {*_defines(s), *_extends(s)} & (needed - ({given} - {name}))]
    lines = inspect.getsource(module).splitlines()
    text = "\n\n".join("\n".join(lines[_first_line(s) - 1 : s.end_lineno]) for s in parts)
    return re.sub(r"\b_(?=[A-Za-z])", "", text)  # a module's private names are not private in a cell


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(d.lineno for d in decorators)])


def _defines(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef) and not list(_extends(statement)):
        yield statement.name
    if isinstance(statement, ast.Assign):
        yield from (t.id for t in statement.targets if isinstance(t, ast.Name))


def _extends(statement: ast.stmt) -> Iterator[str]:
    """The function for which a statement defines a rule: `f.defvjp(…)`, or a function under `@f.defjvp`."""
    calls: list[ast.expr] = []
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        calls = [statement.value.func]
    if isinstance(statement, ast.FunctionDef):
        calls = statement.decorator_list
    for call in calls:
        if isinstance(call, ast.Attribute) and call.attr.startswith("def") and isinstance(call.value, ast.Name):
            yield call.value.id


def _names(statement: ast.stmt) -> set[str]:
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
