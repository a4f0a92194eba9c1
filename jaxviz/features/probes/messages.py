"""What the plot of a watch is sent, as JSON. `python tests/page/wire_types.py` writes these types down for the page."""

from __future__ import annotations

from typing import Literal, TypedDict


class LiveLine(TypedDict):
    """A series; what is not finite is None in `y`."""

    name: str
    kind: Literal["value", "cotangent"]
    drawn: str
    x: list[float]
    y: list[float | None]
    count: int
    last: str


class Shown(TypedDict):
    """All that a plot draws."""

    lines: list[LiveLine]
    more: int
    note: str
    isRunning: bool
