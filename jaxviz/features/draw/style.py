"""The style of pictures of programs: the colours of Okabe and Ito, widths of lines, and sizes of texts; on white, and
on a page."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

INK = "#1b1f24"
PALE = "#5b6470"

BORDERS: Mapping[str, str] = {
    "primal": "#6b7480", "tangent": "#0072b2", "residual": "#d55e00", "cotangent": "#009e73", "accumulation": "#cc79a7",
    "recomputation": "#e69f00", "zero": "#999999", "dummy": "#a08c00",
}  # fmt: skip
"""The edge of a box, by the role of its equation."""

FILLS: Mapping[str, str] = {
    "primal": "#ffffff", "tangent": "#dcedf8", "residual": "#fde5d4", "cotangent": "#d8f1e8", "accumulation": "#f8e3ee",
    "recomputation": "#fdf0d0", "zero": "#eeeeee", "dummy": "#fcf8cf",
}  # fmt: skip

LINES: Mapping[str, tuple[str, str]] = {
    "value": ("#8a929c", ""),
    "carry": ("#7b6bb0", "4 3"),
    "residual": ("#d55e00", ""),
}
"""Colour and dashes of a line."""

FRAMES: Mapping[str, tuple[str, str, str]] = {
    "stage": ("#fbfcfd", "#b6bec8", ""),
    "call": ("#f4f6f8", "#98a4b1", ""),
    "scope": ("none", "#98a4b1", "4 3"),
    "fold": ("#f3f1fa", "#7b6bb0", ""),
}
"""Fill, edge and dashes of a frame."""

ON_PAGE: Mapping[str, tuple[str, float]] = {
    INK: ("currentColor", 1.0),
    PALE: ("currentColor", 0.75),
    "black": ("currentColor", 1.0),
    "white": ("none", 1.0),
    **{fill: (BORDERS[role], 0.18) for role, fill in FILLS.items()},
    FILLS["primal"]: ("none", 1.0),
    FRAMES["stage"][0]: ("currentColor", 0.02),
    FRAMES["call"][0]: ("currentColor", 0.05),
    FRAMES["fold"][0]: (FRAMES["fold"][1], 0.12),
}
"""For a picture's colour on white: its colour on a page, light or dark, and its opacity there."""

SIZES: Mapping[str, tuple[float, float]] = {
    "equation": (11.0, 8.5), "group": (11.0, 8.5), "residual": (9.0, 8.0), "input": (9.5, 8.0), "constant": (9.0, 8.0),
    "literal": (9.5, 8.0), "result": (9.5, 8.0), "note": (11.0, 9.0),
}  # fmt: skip
"""Font sizes of the two lines of a box."""


def line_width(nbytes: int) -> float:
    """The width of a line: by the logarithm of the bytes, from a scalar to a gibibyte."""
    return min(4.0, 0.7 + 0.16 * max(0.0, math.log2(max(nbytes, 1)) - 4))


def on_page(svg: str) -> str:
    """A picture for inclusion in a page, light or dark: with the page's ink and background, and without ids, which
    might clash."""
    shown = re.sub(r"<[^<>]+>", lambda tag: _COLOUR.sub(_on_page, _ID.sub("", tag[0])), svg[svg.index("<svg") :])
    return shown.replace("<svg ", '<svg fill="currentColor" style="max-width:100%;height:auto" ', 1)


_ID = re.compile(r' (id|class)="[^"]*"')
_COLOUR = re.compile(r'\b(fill|stroke)="([^"]+)"')


def _on_page(attribute: re.Match[str]) -> str:
    what, colour = attribute.groups()
    there, covers = ON_PAGE.get(colour, (colour, 1.0))
    return f'{what}="{there}"' + (f' {what}-opacity="{covers:g}"' if covers < 1 else "")
