"""The style of pictures of programs: the colours of Okabe and Ito, widths of lines, and sizes of texts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from jaxviz.features.draw.graph import Box

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

MARGIN = 12.0
"""The margin around a picture, in points."""

SIZES: Mapping[str, tuple[float, float]] = {
    "equation": (11.0, 8.5), "group": (11.0, 8.5), "residual": (9.0, 8.0), "input": (9.5, 8.0), "constant": (9.0, 8.0),
    "literal": (9.5, 8.0), "result": (9.5, 8.0), "note": (11.0, 9.0),
}  # fmt: skip
"""Font sizes of the two lines of a box."""

_NARROW = re.compile(r"[ijlft.,:;'|!\[\]() ]")
_WIDE = re.compile(r"[mwMW@%…×A-Z]")


def text_width(text: str, size: float) -> float:
    """The width of a line of text, in points; a little more than most sans-serif fonts need."""
    narrow, wide = len(_NARROW.findall(text)), len(_WIDE.findall(text))
    return size * (0.4 * narrow + 0.82 * wide + 0.61 * (len(text) - narrow - wide))


def box_size(box: Box) -> tuple[float, float]:
    """The width and height of a box, in points."""
    big, small = SIZES[box.kind]
    width = max(text_width(box.title, big * (1.06 if box.kind == "group" else 1.0)), text_width(box.detail, small))
    if box.is_value and box.kind != "residual":
        return width + 4, big + (small + 5 if box.detail else 3)
    return max(width + 16, 34.0), (32.0 if box.kind != "residual" else 27.0) if box.detail else 22.0


def line_width(nbytes: int) -> float:
    """The width of a line: by the logarithm of the bytes, from a scalar to a gibibyte."""
    return min(4.0, 0.7 + 0.16 * max(0.0, math.log2(max(nbytes, 1)) - 4))
