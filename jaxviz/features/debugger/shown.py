"""A value at a stop, and its display in a notebook."""

from __future__ import annotations

import base64
import html
import struct
import zlib
from dataclasses import dataclass

from jaxviz.features.debugger.summaries import ArrayPicture, Summary
from jaxviz.report.data import Data
from jaxviz.report.tables import printable


@dataclass(frozen=True, slots=True)
class ValueAtStop(Data):
    """A value at a stop.

    Args:
      name: of its variable.
      summary: its summary.
      cotangent: the value that it is the cotangent of; '' for a value of the program itself.
    """

    name: str
    summary: Summary
    cotangent: str = ""

    _data = ("name", "cotangent", "*summary")


def html_row(value: ValueAtStop) -> str:
    """A row of a table: the name, the summary, a histogram, a picture."""
    of = f" (cotangent of {value.cotangent})" if value.cotangent else ""
    picture = f'<img alt="" style="{_IMAGE}" src="{png(value.summary.picture)}">' if value.summary.picture else ""
    text = html.escape(printable(str(value.summary)))
    name = html.escape(printable(value.name + of))
    return f"<tr><td>{name}</td><td>{text}</td><td>{_bars(value.summary)}</td><td>{picture}</td></tr>"


_IMAGE = "image-rendering:pixelated;width:96px;max-height:96px;min-height:8px"


def _bars(summary: Summary) -> str:
    most = max(summary.histogram, default=0)
    if summary.size < 2 or not most:
        return ""
    bars = "".join(
        f'<rect x="{3 * i}" y="{32 - 32 * n / most:.1f}" width="2" height="{32 * n / most:.1f}"/>'
        for i, n in enumerate(summary.histogram)
    )
    size = f'width="{3 * len(summary.histogram)}" height="32"'
    return f'<svg {size} fill="currentColor" role="img"><title>histogram</title>{bars}</svg>'


def png(picture: ArrayPicture) -> str:
    """A picture as a data URL of a PNG: shades of grey, and red where there are non-finite elements."""
    grey = b"".join(bytes((i, i, i)) for i in range(255)) + b"\xd0\x10\x10"
    rows = b"".join(
        b"\0" + picture.shades[r * picture.columns : (r + 1) * picture.columns] for r in range(picture.rows)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", picture.columns, picture.rows, 8, 3, 0, 0, 0)
    image = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"PLTE", grey)
    image += chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"
