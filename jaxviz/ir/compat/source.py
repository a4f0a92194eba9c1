"""The user's lines and named scopes."""

from __future__ import annotations

import contextlib
import functools
import opcode
import os
from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend import source_info_util

from jaxviz.ir.compat.jaxprs import is_user_file
from jaxviz.ir.compat.private import _config, _source, _traceback_util
from jaxviz.ir.sharing import on_clearing

# An operation's innermost frame is in our tracing code, which JAX would report as the user's line.
source_info_util.register_exclusion(os.path.dirname(os.path.abspath(__file__)) + os.sep)


# Tracebacks that omit JAX's frames also omit those of this package.
_traceback_util.register_exclusion(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def api_boundary(fun: Any) -> Any:
    """The function as one that tracebacks are filtered at; see `jaxviz.ir.boundary`."""
    return _traceback_util.api_boundary(fun)


def filters_tracebacks() -> bool:
    """Whether the user lets JAX leave frames out of tracebacks."""
    return bool(_config.traceback_filtering.value != "off")


@functools.cache
def is_hidden(file: str) -> bool:
    """Whether the frames of a file are removed from tracebacks."""
    return not _traceback_util.include_filename(file)


def user_frames(traceback: Any) -> Iterator[Any]:
    """The frames of a traceback outside jax and the standard library, innermost first."""
    frames: Iterator[Any] = _source.user_frames(traceback)
    return frames


def frame_at(code: Any, instruction: int) -> Any:
    """A frame of a traceback, with the lines and columns of its expression."""
    return _source.raw_frame_to_frame(code, instruction)


def frames_of(source: Any) -> list[tuple[Any, int]]:
    """The whole call stack of an equation, innermost first: code objects, with the instruction that each was
    executing."""
    if source is None or source.traceback is None:
        return []
    return list(zip(*raw_frames(source.traceback), strict=True))


def raw_frames(traceback: Any) -> tuple[Sequence[Any], Sequence[int]]:
    """The code objects of a call stack, innermost first, and the instruction that each was executing: the same for each
    execution of a call."""
    codes, instructions = traceback.raw_frames()
    if _PRECALL is None:
        return codes, instructions
    return codes, [i + _TO_CALL * (i in _precalls(code)) for code, i in zip(codes, instructions, strict=True)]


_PRECALL = opcode.opmap.get("PRECALL")
"""In Python 3.11 a call consists of two instructions, and is executed by the first once it has been specialized."""
_TO_CALL = 4
"""The bytes from the first to the second."""

_of_code: dict[int, tuple[Any, frozenset[int]]] = {}
"""By a code object's id, since hashing it takes time; it is kept alive, so that its id stays its own."""
_MOST = 16_384
on_clearing(_of_code.clear)


def _precalls(code: Any) -> frozenset[int]:
    known = _of_code.get(id(code))
    if known is None:
        if len(_of_code) >= _MOST:
            _of_code.clear()
        bytecode = code.co_code  # made anew each time
        places = frozenset(i for i in range(0, len(bytecode), 2) if bytecode[i] == _PRECALL)
        known = _of_code[id(code)] = code, places
    return known[1]


_LIBRARY = tuple(f"/jax/_src/{name}" for name in ("nn/", "numpy/", "scipy/", "ops/", "lax/", "random.py"))
_OPERATORS = frozenset(
    "add subtract multiply true_divide floor_divide power remainder negative matmul rewriting_take".split()
)
"""The functions that run for operators and for `x[i]`."""


def library_call(source: Any) -> str:
    """The public function of jax's that the user's line called to create an equation: 'gelu'; '' for an operator, or if
    none is found."""
    called: list[Any] = []
    for frame in source.traceback.frames if source is not None and source.traceback is not None else ():
        if is_user_file(frame.file_name):
            break
        called.append(frame)
    for frame in reversed(called):
        name = frame.function_name
        if name.isidentifier() and not name.startswith("_") and any(part in frame.file_name for part in _LIBRARY):
            return "" if name in _OPERATORS else str(name)
    return ""


def is_of_custom_rule(source: Any) -> bool:
    """Whether an equation was created by the rule of a user's function with custom derivatives.

    JAX's transposition gives equations of `bwd` the line that calls the function.
    """
    frames = source.traceback.frames if source is not None and source.traceback is not None else ()
    inner = False  # whether the previous frame belongs to JAX's custom derivatives
    was_user = False
    for frame in frames:
        is_custom = frame.file_name.endswith("/jax/_src/custom_derivatives.py")
        is_user = is_user_file(frame.file_name)
        if (is_user and inner) or (is_custom and was_user):
            return True
        if was_user and is_user:
            return False
        if frame.file_name.endswith(
            ("/jax/_src/traceback_util.py", "/jax/_src/linear_util.py", "/jax/_src/api_util.py")
        ):
            continue
        inner, was_user = is_custom, was_user or is_user
    return False


def scopes(source: Any) -> tuple[str, ...]:
    """The names that `jax.named_scope` and libraries left on an equation, outermost first, without transforms such as
    `vmap(...)`."""
    if source is None or not source.name_stack.stack:  # the usual case
        return ()
    path: list[str] = []
    part: list[str] = []
    for item in (*source.name_stack.stack, _source.Transform("transpose")):
        if isinstance(item, _source.Scope):
            if item.name != RECOMPUTED:
                part.append(item.name)
        elif item.name in ("jvp", "transpose"):
            # Differentiation within a scope repeats the scope's name.
            path = part if part[: len(path)] == path else path + part
            part = []
    return tuple(path)


def is_differentiated(source: Any) -> bool:
    """Whether an equation was created by differentiation inside the traced function."""
    stack = source.name_stack.stack if source is not None else ()
    return any(isinstance(item, _source.Transform) and item.name in ("jvp", "transpose") for item in stack)


def is_transposed(source: Any) -> bool:
    """Whether an equation was created by JAX's transposition inside the traced function."""
    stack = source.name_stack.stack if source is not None else ()
    return any(isinstance(item, _source.Transform) and item.name == "transpose" for item in stack)


def in_transpose() -> Any:
    """Within it JAX traces equations as those of a backward pass, which `is_transposed` then finds in a function that
    it has traced."""
    return _source.transform_name_stack("transpose")


@contextlib.contextmanager
def from_own_frames() -> Iterator[None]:
    """Within it, equations have the lines of the code that runs, even if JAX evaluates them as an equation's, as it
    does the backward rule of a function with custom derivatives."""
    before = _source._source_info_context.context
    _source._source_info_context.context = _source.new_source_info().replace(name_stack=before.name_stack)
    try:
        yield
    finally:
        _source._source_info_context.context = before


def within_scopes(source: Any, outer: Any) -> Any:
    """The source of an equation that is taken out of an enclosing one, with that one's scopes added.

    If it only has a scope, its line is that of the enclosing equation.
    """
    if source is None or outer is None:
        return source
    if source.traceback is None:
        return outer.replace(name_stack=outer.name_stack + source.name_stack)
    return source.replace(name_stack=outer.name_stack + source.name_stack) if outer.name_stack.stack else source


def scope_alone(source: Any) -> Any:
    """The scopes of an equation of one of JAX's rules, whose line is where the rule was traced; None if it has none."""
    return source.replace(traceback=None) if source is not None and source.name_stack.stack else None


RECOMPUTED = "rematted_computation"
"""JAX's scope for what a checkpoint recomputes, under which profiles show it."""


def in_scope(source: Any, name: str) -> Any:
    """An equation's source within one more scope."""
    if source is None:
        return named_source(name)
    return source.replace(name_stack=_source.NameStack((_source.Scope(name),)) + source.name_stack)


def named_source(name: str) -> Any:
    """The `source` of an equation that has no line, with only a scope with this name, which the programs compiled from
    it keep."""
    return _source.new_source_info().replace(name_stack=_source.NameStack((_source.Scope(name),)), traceback=None)
