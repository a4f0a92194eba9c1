"""Output of the command line."""

from __future__ import annotations

import os
import sys
from typing import Any

from jaxviz.report.places import linked, terminal_link
from jaxviz.report.tables import printable


def show(text: str, headed: bool = False) -> None:
    """Prints lines without escape sequences from their texts; recorded places become links where supported."""
    lines = [printable(line) for line in text.split("\n")]
    if _has_links(sys.stdout):
        lines = [linked(line, terminal_link) for line in lines]
    if headed and lines and _has_colours(sys.stdout):
        lines[0] = f"\x1b[1m{lines[0]}\x1b[0m"
    print("\n".join(lines))


_FOR_AGENTS = 12_000
"""The most characters of an answer for an agent: fewer than 4,000 tokens."""


def show_briefly(text: str) -> None:
    """Prints lines for a reader of few tokens: the first ones, and how many are left out."""
    lines, n = [printable(line) for line in text.split("\n")], 0
    for i, line in enumerate(lines):
        n += len(line) + 1
        if n > _FOR_AGENTS - 100:
            lines[i:] = [f"… {len(lines) - i:,} more lines; --json prints everything"]
            break
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


_WITH_LINKS = ("WT_SESSION", "KITTY_WINDOW_ID", "KONSOLE_VERSION", "DOMTERM", "WEZTERM_PANE", "ALACRITTY_WINDOW_ID")
_PROGRAMS_WITH_LINKS = ("iTerm.app", "WezTerm", "vscode", "ghostty", "Hyper", "rio", "Tabby")


def _has_links(stream: Any) -> bool:
    """Whether a terminal is known to support hyperlinks; others may print the escape codes."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return False
    vte = os.environ.get("VTE_VERSION", "")  # VTE: GNOME Terminal and others
    known = os.environ.get("TERM_PROGRAM") in _PROGRAMS_WITH_LINKS or any(name in os.environ for name in _WITH_LINKS)
    return known or (vte.isdecimal() and int(vte) >= 5000)
