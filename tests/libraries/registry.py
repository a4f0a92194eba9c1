"""The table of programs: functions that create the loss and its arguments when called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

AREAS = "language images physics probability learning numerics modules".split()
"""The modules with the programs."""

Made = tuple[Callable[..., Any], tuple[Any, ...]]
"""A loss or a training step, and its arguments; the first argument is differentiated."""


@dataclass(frozen=True)
class LibraryProgram:
    """A program written with a library.

    Args:
      name: the name of the function that creates it.
      library: the name of the library's distribution.
      make: creates the loss and its arguments.
      is_abstract: whether the arguments are ShapeDtypeStructs, since the program is too large to run.
      expected_failures: why a tool currently fails on it, by the tool's name.
      modules: some modules that the residuals are grouped by.
      step_of: of a training step, the name of the program with its loss.
      unbounded: of a loss that JAX cannot differentiate in reverse mode, what is written in its line with the loop.
    """

    name: str
    library: str
    make: Callable[[], Made]
    is_abstract: bool
    expected_failures: dict[str, str]
    modules: tuple[str, ...] = ()
    step_of: str = ""
    unbounded: str = ""

    @property
    def kind(self) -> str:
        return "step" if self.step_of else "unbounded" if self.unbounded else "loss"


PROGRAMS: dict[str, LibraryProgram] = {}


def program(
    library: str, is_abstract: bool = False, modules: tuple[str, ...] = (), step_of: str = "", unbounded: str = "",
    **expected_failures: str,
) -> Callable[[Callable[[], Made]], Callable[[], Made]]:  # fmt: skip
    """Adds a program to the table: `@program("mctx", plan="why it fails today")`."""

    def enter(make: Callable[[], Made]) -> Callable[[], Made]:
        name = make.__name__
        PROGRAMS[name] = LibraryProgram(
            name, library, make, is_abstract, expected_failures, modules, step_of, unbounded
        )
        return make

    return enter


def load() -> dict[str, LibraryProgram]:
    """The complete table. The libraries themselves are imported when a program is created."""
    for area in AREAS:
        import_module(area)
    return PROGRAMS
