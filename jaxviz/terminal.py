"""What the command line prints."""

from __future__ import annotations

import os
import sys
from typing import Any

from jaxviz.report.tables import printable


def show(text: str, headed: bool = False) -> None:
    """Prints lines in which nothing can command the terminal."""
    lines = [printable(line) for line in text.split("\n")]
    if headed and lines and _has_colours(sys.stdout):
        lines[0] = f"\x1b[1m{lines[0]}\x1b[0m"
    print("\n".join(lines))


def note(text: str) -> None:
    print("\n".join(map(printable, text.split("\n"))), file=sys.stderr)


def complain(text: str) -> None:
    first, *rest = (printable(line) for line in text.rstrip().split("\n"))
    if _has_colours(sys.stderr):
        first = f"\x1b[31m{first}\x1b[0m"
    print("\n".join([first, *rest]), file=sys.stderr)


def _has_colours(stream: Any) -> bool:
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
