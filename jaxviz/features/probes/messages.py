"""The JSON messages to the plot of a watch. `python tests/page/wire_types.py` generates their TypeScript types."""

from __future__ import annotations

from typing import Literal, TypedDict


class LiveLine(TypedDict):
    """A series; non-finite values are None in `y`."""

    name: str
    kind: Literal["value", "cotangent"]
    drawn: str
    x: list[float]
    y: list[float | None]
    count: int
    last: str


class Shown(TypedDict):
    """Everything that a plot draws."""

    lines: list[LiveLine]
    more: int
    note: str
    isRunning: bool
