"""From an equation to the user's line, and to its origins."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

from jaxviz.ir import compat
from jaxviz.ir.own_code import Owner, owner, package
from jaxviz.ir.sharing import cleared
from jaxviz.ir.syntax import Equation, Origin

__all__ = [
    "Location",
    "Origin",
    "ancestors",
    "call_stack",
    "caller_in_library",
    "definition",
    "evaluated_by",
    "innermost_line",
    "is_inside_own_code",
    "library_line",
    "locate",
    "location_at",
    "own_line",
    "owners",
    "path_of_calls",
    "written_by",
]


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the user's source; `str()` gives `file:line`, and `In[3]:5` in a notebook.

    Args:
      file: path of the file, or IPython's name for a cell.
      line: line number, from 1.
      function: qualified name of the function.
      column: column of the expression, from 0, in bytes of UTF-8, where Python recorded one.
      end_line, end_column: where the expression ends; 0 where Python did not record it.
    """

    file: str
    line: int
    function: str
    column: int = field(default=0, compare=False)
    end_line: int = field(default=0, compare=False)
    end_column: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"{file_label(self.file)}:{self.line}"


_CELL_OF_TERMINAL = re.compile(r"<ipython-input-(\d+)-")


def file_label(file: str) -> str:
    """A file's name in reports: a cell is `In[3]`, by IPython's number, since the file names that it generates are
    meaningless to readers."""
    if not is_cell(file):
        return file
    in_terminal = _CELL_OF_TERMINAL.match(file)
    if in_terminal:
        return f"In[{in_terminal[1]}]"
    # If IPython is not imported, no cell has run.
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = (
        shell.compile.format_code_name(file) if hasattr(getattr(shell, "compile", None), "format_code_name") else None
    )
    return named[1] if named else "cell"


def is_cell(file: str) -> bool:
    """Whether a file name is one that IPython gives to a cell."""
    return "ipykernel_" in file or file.startswith("<ipython-input")


def locate(source: Any) -> Location | None:
    """The user's line that led to an equation, or None if it has none.

    The innermost line of the user's own code, as defined by `own_code`; for a library's function, the innermost line of
    the library; otherwise the line that called jaxviz.

    Args:
      source: an equation's `source`. Frames of jax, jaxviz and the standard library are skipped.
    """
    lines = _lines(source)
    return lines.own or lines.library or lines.caller


def own_line(source: Any) -> Location | None:
    """The innermost line of the user's own code that led to an equation; None if there is none, as in a library's
    jitted function."""
    return _lines(source).own


def library_line(source: Any) -> Location | None:
    """The innermost line of a library (other than JAX) that led to an equation, if the user's own line called one."""
    return _lines(source).library


def written_by(source: Any) -> Instructions | None:
    """A key for equations created by one expression, at different times: the instructions from the user's own down to
    JAX's."""
    return _lines(source).written


@dataclass(frozen=True, eq=False, slots=True)
class Instructions:
    """The instructions of a stack, each with its code; equal stacks share one object, since comparing code objects
    takes time.

    Args:
      outermost: the last of them, the user's own if there is one.
    """

    outermost: tuple[Any, int]


@cleared
@cache
def _instructions(*passed: tuple[Any, int]) -> Instructions:
    return Instructions(passed[-1])


def evaluated_by(source: Any) -> Instructions | None:
    """A key for equations computed for one expression, and by one of a library's expressions if the user's own called a
    library."""
    return _lines(source).evaluated


@dataclass(frozen=True, slots=True)
class _Lines:
    own: Location | None = None
    library: Location | None = None
    caller: Location | None = None
    written: Instructions | None = None
    evaluated: Instructions | None = None


def _lines(source: Any) -> _Lines:
    traceback = source.traceback if source is not None else None
    return _NO_LINES if traceback is None else _lines_of(traceback)


_NO_LINES = _Lines()


@cleared
@lru_cache(maxsize=65536)
def _lines_of(traceback: Any) -> _Lines:
    library = None
    passed: list[tuple[Any, int]] = []
    evaluated: list[tuple[Any, int]] = []
    by_jaxviz = False  # whether the frames so far were called by jaxviz
    codes, instructions = compat.raw_frames(traceback)
    frames = zip(codes, instructions, owners(codes), strict=True)
    for code, instruction, whose in frames:
        passed.append((code, instruction))
        match whose:
            case "user":
                here = location_at(code, instruction)
                evaluated.append((code, instruction))
                # The caller of jaxviz is not part of the function, but better than no line at all.
                if by_jaxviz and not any(o == "jaxviz" for _, _, o in frames):
                    return _Lines(None, library, here, _instructions(*passed), _instructions(*evaluated))
                return _Lines(here, library, None, _instructions(*passed), _instructions(*evaluated))
            case "library":
                library = library or location_at(code, instruction)
                evaluated.append((code, instruction))
            case "jaxviz":
                by_jaxviz = True
    same = _instructions(*evaluated) if evaluated else None
    return _Lines(None, library, None, _instructions(*passed) if passed else None, same)


def owners(codes: Sequence[Any]) -> list[Owner]:
    """The owner of each code of a stack, innermost first. Code that a library generates, compiles and calls, as type
    checkers do, counts as Python's; and so does what a library's own `jax.core.Trace` runs for an operation, since the
    operation was not written there."""
    owner_of_each: list[Owner] = []
    in_library = in_trace = False
    for code in reversed(codes):
        whose = owner(code.co_filename)
        if in_library and code.co_filename == "<string>":
            whose = "python"
        else:
            in_library = whose == "library"
            in_trace = (in_trace or (in_library and code.co_name == "process_primitive")) and whose != "user"
        owner_of_each.append("python" if in_trace and whose == "library" else whose)
    return owner_of_each[::-1]


def location_at(code: Any, instruction: int) -> Location:
    """The expression that an instruction evaluates."""
    frame = compat.frame_at(code, instruction)
    return Location(
        frame.file_name, frame.start_line, frame.function_name, frame.start_column, frame.end_line, frame.end_column
    )


@cleared
@lru_cache(maxsize=65536)
def _call_stack(traceback: Any) -> tuple[Location, ...]:
    codes, instructions = compat.raw_frames(traceback)
    frames = list(zip(codes, instructions, owners(codes), strict=True))
    # What called jaxviz, from further out, is not part of the function.
    last = max((n for n, (_, _, o) in enumerate(frames, 1) if o == "jaxviz"), default=len(frames))
    frames = frames[:last]
    for whose in ("user", "library"):
        locations = tuple(location_at(code, i) for code, i, o in frames if o == whose)
        if locations:
            return locations
    return ()


def call_stack(source: Any) -> tuple[Location, ...]:
    """The user's own lines that led to an equation, innermost first; those of libraries if there are no others. Those
    that called jaxviz are not among them.

    Args:
      source: an equation's `source`.
    """
    traceback = source.traceback if source is not None else None
    return () if traceback is None else _call_stack(traceback)


@cleared
@lru_cache(maxsize=65536)
def path_of_calls(traceback: Any) -> tuple[Location, ...]:
    """The lines of the user and of libraries that led to an equation, innermost first; without those that called
    jaxviz."""
    codes, instructions = compat.raw_frames(traceback)
    inside = itertools.takewhile(
        lambda frame: frame[2] != "jaxviz", zip(codes, instructions, owners(codes), strict=True)
    )
    return tuple(location_at(code, i) for code, i, whose in inside if whose in ("user", "library"))


def innermost_line(lines: Iterable[Location]) -> Location | None:
    """The innermost of some lines that is the user's own; otherwise the innermost of a library."""
    library = None
    for line in lines:
        match owner(line.file):
            case "user":
                return line
            case "library":
                library = library or line
    return library


def is_inside_own_code(source: Any) -> bool:
    """Whether an equation was created by a user's function that jaxviz called, such as a custom rule, rather than by a
    rule of JAX's."""
    traceback = source.traceback if source is not None else None
    if traceback is None:
        return False
    # flax excludes its frames from the user's.
    whose = owners(traceback.raw_frames()[0])
    return next((o in ("user", "library") for o in whose if o not in ("jax", "python")), False)


def caller_in_library(source: Any, function: str) -> str:
    """`JAX`, or the package whose code calls the function of JAX to which an equation is due; '' if the user's own code
    does, or passes the function on, as in `jax.tree.map(lax.stop_gradient, x)`.

    Args:
      source: an equation's `source`.
      function: such as `stop_gradient`.
    """
    traceback = source.traceback if source is not None else None
    return _caller_in_library(traceback, function) if traceback is not None else ""


@cleared
@lru_cache(maxsize=65536)
def _caller_in_library(traceback: Any, function: str) -> str:
    codes = compat.raw_frames(traceback)[0]
    for code, whose in zip(codes, owners(codes), strict=True):
        if whose in ("user", "jaxviz"):
            return ""
        if whose != "python" and function in code.co_names and function not in code.co_name:
            return "JAX" if whose == "jax" else package(code.co_filename) or "a library"
    return ""


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
