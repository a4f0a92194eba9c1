"""The table of programs: a function for each, which makes the loss and its arguments when it is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

AREAS = "language images physics probability learning numerics modules".split()
"""The modules that the programs are in."""

Made = tuple[Callable[..., Any], tuple[Any, ...]]
"""A loss, and what to call it with; the first argument is differentiated."""


@dataclass(frozen=True)
class LibraryProgram:
    """A program written with a library.

    Args:
      name: of the function that makes it.
      library: as its distribution is named.
      make: makes the loss and its arguments.
      is_abstract: whether the arguments are ShapeDtypeStructs, since the program is too large to run.
      expected_failures: why a tool fails on it today, by the tool's name.
      modules: some that the residuals are summed up by.
    """

    name: str
    library: str
    make: Callable[[], Made]
    is_abstract: bool
    expected_failures: dict[str, str]
    modules: tuple[str, ...] = ()


PROGRAMS: dict[str, LibraryProgram] = {}


def program(
    library: str, is_abstract: bool = False, modules: tuple[str, ...] = (), **expected_failures: str
) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    """Enters a program into the table: `@program("mctx", plan="why it fails today")`."""

    def enter(make: Callable[[], Made]) -> Callable[[], Made]:
        name = make.__name__
        PROGRAMS[name] = LibraryProgram(name, library, make, is_abstract, expected_failures, modules)
        return make

    return enter


def load() -> dict[str, LibraryProgram]:
    """The table, filled. The libraries themselves are imported where a program is made."""
    for area in AREAS:
        import_module(area)
    return PROGRAMS
