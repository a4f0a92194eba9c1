"""The contents of a picture: boxes for equations, frames for enclosing programs and scopes, lines for values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

ROLE_LABELS: Mapping[str, str] = {
    "primal": "primal",
    "tangent": "tangent",
    "residual": "residual",
    "cotangent": "cotangent",
    "accumulation": "sum of cotangents",
    "recomputation": "recomputed",
    "zero": "zeros filled in",
    "dummy": "dummy residual",
}


@dataclass(frozen=True, slots=True)
class GraphBox:
    """A box, or a word for a value from outside.

    Args:
      number: its index among the boxes.
      kind: 'equation'; 'group' for equations drawn as one; 'input', 'constant', 'literal' and 'result' for values;
        'residual' for one that goes from the forward to the backward program; 'note' for what is left out.
      title, detail: its two lines.
      role: of its equation; '' for a value.
      frame: the frame that contains it.
      tooltip: a few more lines.
      url: of the source line, or ''.
    """

    number: int
    kind: str
    title: str
    detail: str = ""
    role: str = ""
    frame: int = 0
    tooltip: str = ""
    url: str = ""

    @property
    def is_value(self) -> bool:
        return self.kind in ("input", "constant", "literal", "result", "residual")


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame around boxes and other frames: a stage, a call, a branch, a loop's body, a named scope, or a repeated
    layer.

    Args:
      number: its index among the frames; the first contains everything.
      parent: the frame around it; -1 for none.
      kind: 'picture', 'stage', 'call', 'scope' or 'fold'.
      title: its title.
    """

    number: int
    parent: int
    kind: str
    title: str
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line for a value between two boxes.

    Args:
      tail, head: the boxes.
      kind: 'value'; 'carry' where the next iteration or repetition reads it; 'residual' on its way between two stages.
      nbytes: the bytes of the value; of the largest if there are several.
      tooltip: a description of them.
    """

    tail: int
    head: int
    kind: str
    nbytes: int
    tooltip: str


@dataclass(frozen=True)
class ProgramGraph:
    """The content of a picture.

    Args:
      title: the title of the picture.
      boxes: the boxes in evaluation order, values after the equations.
      frames: the frames, each after the one that contains it.
      lines: the lines between the boxes.
      notes: what is folded or left out.
    """

    title: str
    boxes: tuple[GraphBox, ...]
    frames: tuple[Frame, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The roles that occur, in a fixed order."""
        there = {b.role for b in self.boxes}
        if any(b.kind == "residual" for b in self.boxes):
            there.add("residual")
        return tuple(r for r in ROLE_LABELS if r in there)

    @property
    def stages(self) -> tuple[Frame, ...]:
        return tuple(f for f in self.frames if f.parent == 0)


def enclosing(frames: Sequence[Frame], frame: int) -> list[int]:
    """The frame and those around it, innermost first."""
    path = []
    while frame >= 0:
        path.append(frame)
        frame = frames[frame].parent
    return path
