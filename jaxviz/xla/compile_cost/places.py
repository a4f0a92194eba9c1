"""Source locations: the loop of repeated blocks, and the innermost line of the user's own code for stacks and
instructions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxviz.analysis.naming import written_at
from jaxviz.features.remat.regions import Frame, frames_of, is_called_in_loop
from jaxviz.ir.origin import Location, location_at, owners
from jaxviz.ir.syntax import Equation
from jaxviz.report.places import source_line
from jaxviz.xla.profile.sampling import Stack

_MOST = 0.95
"""The share of a block's equations that have to come through a line for the line to count as the block's."""


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """The lines that lead to a block.

    Args:
      location: the first line.
      last: the number of the last line.
      function: the function of the user's or of a library that the line calls, or ''.
      is_loop: whether they are in a loop.
    """

    location: Location
    last: int
    function: str = ""
    is_loop: bool = False

    def holds(self, line: Location) -> bool:
        """Whether a line is one of them."""
        return line.file == self.location.file and self.location.line <= line.line <= self.last

    @property
    def text(self) -> str:
        """`x = layer(p, x)`, or the lines of a loop's body: `lines 12 to 15 of loss`."""
        if self.last > self.location.line:
            return f"lines {self.location.line} to {self.last} of {self.location.function.rpartition('.')[2]}"
        return written_at(self.location) or source_line(self.location) or self.function


def place_of(equations: Sequence[Equation]) -> BlockPlace | None:
    """The lines of the innermost loop through which nearly all equations of some blocks come; for blocks written one
    after the other, their lines in the common function. None if unknown."""
    paths = [frames for e in equations if (frames := frames_of(e.source))]
    enough = _MOST * len(paths)
    outside: BlockPlace | None = None
    loop: BlockPlace | None = None
    for depth in range(max(map(len, paths), default=0)):
        here = Counter(p[depth][0] for p in paths if len(p) > depth)
        code, n = here.most_common(1)[0]
        if n < enough:
            break
        paths = [p for p in paths if len(p) > depth and p[depth][0] is code]
        instructions = list(dict.fromkeys(p[depth] for p in paths))
        called = Counter(p[depth + 1][0] for p in paths if len(p) > depth + 1)
        inner = called.most_common(1)[0] if called else (None, 0)
        lines = _lines(instructions, inner[0] if inner[1] >= enough else None)
        if all(is_called_in_loop(frame) for frame in instructions):
            loop = replace(lines, is_loop=True)
        elif loop is None:
            outside = lines
    return loop or outside


def _lines(frames: Sequence[Frame], called: Any) -> BlockPlace:
    lines = [location_at(*frame) for frame in frames]
    first = min(lines, key=lambda at: at.line)
    on_it = [at for at in lines if at.line == first.line]
    widest = max(on_it, key=lambda at: (at.end_line, at.end_column - at.column))
    return BlockPlace(widest, max(at.line for at in lines), called.co_name if called is not None else "")


def line_of_stack(stack: Stack) -> Location | None:
    """The innermost line of the user's own in a Python stack, or else of a library's. Library code that JAX calls by
    itself, such as NumPy, has no line, unlike the traced function."""
    library = None
    inward = stack[::-1]
    whose = owners([code for code, _ in inward])
    # A sample taken before the function is called, or after it has returned, has no frames.
    outward = [*whose[1:], "user"] if whose else []
    for (code, line), owner_here, outer in zip(inward, whose, outward, strict=True):
        if code.co_filename == "<string>" and outer != "user":
            continue  # code that Python, JAX or a library generates, such as the methods of a dataclass
        match owner_here:
            case "user":
                return Location(code.co_filename, line, getattr(code, "co_qualname", code.co_name))
            case "library":
                library = library or Location(code.co_filename, line, getattr(code, "co_qualname", code.co_name))
            case "jaxviz" if code.co_name == "call":  # the call of the function being measured
                return library
    return None
