"""A pen that draws on an image, in CSS pixels, without importing matplotlib, which takes longer than the drawing."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw, ImageFont

At = Literal["left", "middle", "right"]
"""The part of a text that is at its position."""

_ANCHORS: dict[At, str] = {"left": "ls", "middle": "ms", "right": "rs"}
_ASCENDER = 0.76
"""The height of an `l` in the font, in units of its size."""


class ImagePen:
    """Draws on an image.

    Args:
      image: the image.
      sharp: how many of its pixels are one CSS pixel.
    """

    def __init__(self, image: Image.Image, sharp: float):
        self.image = image
        self.sharp = sharp
        self.draw = ImageDraw.Draw(image)

    def box(self, left: float, top: float, right: float, bottom: float, colour: str) -> None:
        x, y, to_x, to_y = (round(self.sharp * v) for v in (left, top, right, bottom))
        if to_x > x and to_y > y:
            self.draw.rectangle((x, y, to_x - 1, to_y - 1), fill=colour)

    def area(self, left: float, lower: np.ndarray, upper: np.ndarray, colour: str) -> None:
        """An area between two lines with a value per CSS pixel, from a left end on; y points down, so `upper` is less."""
        changes = np.flatnonzero((np.diff(lower) != 0) | (np.diff(upper) != 0)) + 1
        for start, end in pairwise([0, *changes.tolist(), len(lower)]):
            self.box(left + start, float(upper[start]), left + end, float(lower[start]), colour)

    def dashed(self, x: float, top: float, bottom: float, colour: str) -> None:
        """A dashed vertical line."""
        for y in np.arange(top, bottom, 8):
            self.box(x - 0.5, y, x + 0.5, min(y + 4.5, bottom), colour)

    def dot(self, x: float, y: float, colour: str) -> None:
        # The glyph has smooth edges, which PIL's circles do not have.
        at = (self.sharp * x, self.sharp * y)
        self.draw.text(at, "●", fill=colour, font=font(False, False, 9 * self.sharp), anchor="mm")

    def text(
        self, x: float, y: float, text: str, colour: str, size: float, *, mono: bool = False, bold: bool = False, at: At = "left",
    ) -> None:  # fmt: skip
        """A text whose letters reach up to y."""
        place = (self.sharp * x, self.sharp * (y + _ASCENDER * size))
        self.draw.text(place, text, fill=colour, font=font(mono, bold, size * self.sharp), anchor=_ANCHORS[at])


@cache
def font(mono: bool, bold: bool, size: float) -> ImageFont.FreeTypeFont:
    """A font that is included in matplotlib."""
    spec = find_spec("matplotlib")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the picture needs matplotlib's fonts; install matplotlib")
    name = f"DejaVuSans{'Mono' * mono}{'-Bold' * bold}.ttf"
    return ImageFont.truetype(str(Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf" / name), round(size))
