"""The lines of the small engine's equations: of the model, and of the rule that recorded an equation."""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from jaxviz.ir import compat
from jaxviz.ir.own_code import is_own

_FOLDER = Path(__file__).parent
_TABLES = ("push", "pull", "batch")
"""The engine's functions that call a rule."""
_RULES = ("partial", "transposed", "batched", "transpose")
_ENDS = ("_jvp", "_transpose", "_batched")


class Place(NamedTuple):
    """An expression in a file, and the function that it is in."""

    file: str
    function: str
    lines: tuple[int, int]
    columns: tuple[int, int]


class PlacedName(str):
    """The name of an operation, which equations made from an equation keep, with the places where it was recorded.

    `model` is an expression of the program that is differentiated, `rule` one of a rule; either may be None.
    """

    model: Place | None = None
    rule: Place | None = None


_models: list[Place | None] = []
"""The places in the model of the equations whose rules are running, outermost first."""


def placed(op: str) -> str:
    """The name of an operation with the places where it is being recorded; as it is, if it comes from an equation."""
    if isinstance(op, PlacedName):
        return op
    name = PlacedName(op)
    name.rule = _innermost() if _models else None
    name.model = _models[-1] if _models else _innermost()
    return name


@contextlib.contextmanager
def rule_for(op: str) -> Iterator[None]:
    """While the rule for an equation runs, what it records belongs to the place of the equation in the model."""
    _models.append(op.model if isinstance(op, PlacedName) else None)
    try:
        yield
    finally:
        _models.pop()


def _is_shown(code: CodeType) -> bool:
    """Whether a line of this function says why an operation is recorded: it is the reader's, or one of the engine's
    rules."""
    function = code.co_qualname.partition(".")[0]
    is_rule = _is_engine(code) and (function in _RULES or function.endswith(_ENDS))
    return is_rule or (code.co_name != "bind" and is_own(code.co_filename))


def _is_engine(code: CodeType) -> bool:
    return code.co_filename.startswith(str(_FOLDER / "small_engine"))


def _innermost() -> Place | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not (_models and _is_engine(frame.f_code) and frame.f_code.co_name in _TABLES):
        if _is_shown(frame.f_code):
            return _place(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return None


@functools.lru_cache(maxsize=4096)
def _place(code: CodeType, instruction: int) -> Place:
    first, last, start, end = list(code.co_positions())[instruction // 2]
    first = first or code.co_firstlineno
    file = code.co_filename
    if _is_engine(code):  # as a file of its own, since jaxviz's are not the reader's
        file = f"<{Path(file).name}>"
        text = "".join(linecache.getlines(code.co_filename))
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    return Place(file, code.co_name, (first, last or first), (start or 0, end or 0))


@functools.lru_cache(maxsize=4096)
def _caller(place: Place) -> Callable[[Callable[[], Any]], Any]:
    """A function `f(call)` that calls, at the place: tracebacks of what it calls go through the expression."""
    name = place.function if place.function.isidentifier() else "_"
    tree = ast.parse(f"def {name}(call):\n    return call()")
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            node.lineno, node.end_lineno = place.lines  # type: ignore[attr-defined]
            node.col_offset, node.end_col_offset = place.columns  # type: ignore[attr-defined]
    namespace: dict[str, Any] = {}
    exec(compile(tree, place.file, "exec"), namespace)
    return namespace[name]  # type: ignore[no-any-return]


def at_definition(f: Any, call: Callable[[], Any]) -> Any:
    """Calls a function from the line where another is defined."""
    code = getattr(f, "__code__", None)
    if code is None:
        return call()
    first = code.co_firstlineno
    return _caller(Place(code.co_filename, code.co_name, (first, first), (0, 0)))(call)


def replay(my: Any, program: Any, *inputs: Any) -> list[Any]:
    """Computes a program with JAX, each equation from the places where it was recorded: the model's, then the rule's.

    Args:
      my: the engine.
      program: a program of the engine.
      *inputs: its inputs.
    """
    env = dict(zip(program.inputs, inputs, strict=True))
    for e in program.equations:
        call = functools.partial(my.compute, e.op, [my.read(env, a) for a in e.inputs], e.params)
        for place in (getattr(e.op, "rule", None), getattr(e.op, "model", None)):
            call = call if place is None else functools.partial(_caller(place), call)
        env.update(zip(e.outputs, call(), strict=True))
    return [my.read(env, a) for a in program.outputs]


def replayed(my: Any, program: Any, inputs: Sequence[Any]) -> list[Any]:
    """The same, also for the bodies of its equations."""
    with my.trying("evaluate", functools.partial(replay, my)), compat.from_own_frames():
        return replay(my, program, *inputs)
