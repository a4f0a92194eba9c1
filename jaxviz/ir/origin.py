"""From an equation to the user's line, and along the chain of equations that it came from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from jaxviz.ir import compat
from jaxviz.ir.sharing import cleared
from jaxviz.ir.syntax import Equation, Origin

_OWN_CODE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

__all__ = [
    "Location",
    "Origin",
    "ancestors",
    "call_stack",
    "definition",
    "is_framework",
    "is_inside_own_code",
    "is_own_code",
    "locate",
]


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the user's source; `str()` gives `file:line`, and `cell:line` in a notebook.

    Args:
      file: path of the file, or IPython's name for a cell.
      line: line number, from 1.
      function: qualified name of the function.
      column: column of the call, from 0, where Python recorded one.
    """

    file: str
    line: int
    function: str
    column: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"{file_label(self.file)}:{self.line}"


def file_label(file: str) -> str:
    """A file's name as reports give it: those that IPython makes up for cells tell nobody anything."""
    return "cell" if is_cell(file) else file


def is_cell(file: str) -> bool:
    """Whether the name of a file is one that IPython gives to a cell."""
    return "ipykernel_" in file or file.startswith("<ipython-input")


def is_own_code(filename: str) -> bool:
    """Whether a file is part of jaxviz."""
    return filename.startswith(_OWN_CODE)


def locate(source: Any) -> Location | None:
    """The innermost line of the user's that led to an equation, or None where it has none of its own.

    Args:
      source: an equation's `source`. Frames inside jax, jaxviz and the standard library are passed over.
    """
    traceback = source.traceback if source is not None else None
    return None if traceback is None else _locate(traceback)


@cleared
@lru_cache(maxsize=65536)
def _locate(traceback: Any) -> Location | None:
    for frame in compat.user_frames(traceback):
        if not is_own_code(frame.file_name):
            return Location(frame.file_name, frame.start_line, frame.function_name, frame.start_column)
    return None


_FRAMEWORKS = tuple(
    f"{os.sep}site-packages{os.sep}{name}{os.sep}" for name in "flax haiku equinox optax einops numpyro diffrax".split()
)
"""Libraries that models are written with: their users would not change a line of them."""


def is_framework(filename: str) -> bool:
    """Whether a file is part of a library that models are written with."""
    return any(name in filename for name in _FRAMEWORKS)


@cleared
@lru_cache(maxsize=65536)
def _call_stack(traceback: Any) -> tuple[Location, ...]:
    frames = [
        Location(f.file_name, f.start_line, f.function_name, f.start_column)
        for f in compat.user_frames(traceback)
        if not is_own_code(f.file_name)
    ]
    return tuple(f for f in frames if not is_framework(f.file)) or tuple(frames)


def call_stack(source: Any) -> tuple[Location, ...]:
    """The user's lines that led to an equation, innermost first, without those of libraries that models are written with.

    Args:
      source: an equation's `source`.
    """
    traceback = source.traceback if source is not None else None
    return () if traceback is None else _call_stack(traceback)


def is_inside_own_code(source: Any) -> bool:
    """Whether an equation was written by a user's function that jaxviz called: a custom rule, say, and not a rule of JAX's."""
    traceback = source.traceback if source is not None else None
    if traceback is None:
        return False
    frame = next(compat.user_frames(traceback), None)
    return frame is not None and not is_own_code(frame.file_name)


def definition(debug_info: Any) -> Location | None:
    """Where the traced function is defined, from its debug info; None for a builtin."""
    if debug_info is None or debug_info.func_filename is None or debug_info.func_lineno is None:
        return None
    return Location(debug_info.func_filename, debug_info.func_lineno, debug_info.func_name)


def ancestors(equation: Equation) -> Iterator[Equation]:
    """The equation it came from, the one that came from, and so on to the user's program."""
    while equation.origin is not None and equation.origin.equation is not None:
        equation = equation.origin.equation
        yield equation
