"""Source locations in reports: as links in notebooks and terminals, and with the text of the line."""

from __future__ import annotations

import json
import linecache
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from jaxviz.ir.origin import Location

Places = dict[str, "Location | None"]
"""A place as written -> its position; None if two files have the same text."""

_NAMED: ContextVar[Places | None] = ContextVar("jaxviz_places", default=None)


@contextmanager
def noting_places() -> Iterator[Places]:
    """Records the places that are written within the context, for what links them."""
    places: Places = {}
    before = _NAMED.set(places)
    try:
        yield places
    finally:
        _NAMED.reset(before)


def noted(text: str, location: Location) -> str:
    """A place as written, which is recorded."""
    places = _NAMED.get()
    if places is not None:
        for written in (text, str(location)):
            known = places.setdefault(written, location)
            if known is not None and known.file != location.file:
                places[written] = None
    return text


def linked(text: str, link: Callable[[Location, str], str], spelt: Callable[[str], str] = str) -> str:
    """A text in which recorded places are links.

    Args:
      text: text of a report.
      link: formats a link from a place and its text.
      spelt: how a place is written in this text, such as escaped.
    """
    places = {spelt(written): at for written, at in (_NAMED.get() or {}).items() if at is not None}
    if not places:
        return text
    names = "|".join(map(re.escape, sorted(places, key=len, reverse=True)))
    return re.sub(rf"(?<![\w./\\-])(?:{names})(?!\d)", lambda match: link(places[match[0]], match[0]), text)


def href(location: Location) -> str:
    """A link from a notebook's page to a line: of a file in the notebook's folder or below it, or of a cell as last
    saved; otherwise ''."""
    # Imported here: `jaxviz doctor` prints tables even if the engine cannot run.
    from jaxviz.ir.origin import is_cell

    if is_cell(location.file):
        return _cell_anchor("".join(linecache.getlines(location.file)))
    path = os.path.relpath(os.path.realpath(location.file), os.path.realpath(os.getcwd()))
    if path.startswith(os.pardir + os.sep) or os.path.isabs(path) or not os.path.isfile(location.file):
        return ""
    return f"{quote(path.replace(os.sep, '/'))}#line={location.line - 1}"


def _cell_anchor(text: str) -> str:
    """JupyterLab scrolls to a cell by its id, which the kernel does not know: it is in the notebook's file."""
    try:
        cells = json.loads(Path(os.environ["JPY_SESSION_NAME"]).read_text(encoding="utf-8"))["cells"]
        of_text = [cell["id"] for cell in cells if "".join(cell["source"]).rstrip() == text.rstrip()]
    except (OSError, ValueError, LookupError, TypeError):  # not a notebook, or never saved
        return ""
    return f"#cell-id={quote(of_text[0])}" if len(of_text) == 1 and text.strip() else ""


def terminal_link(location: Location, text: str) -> str:
    """A text that opens the file in terminals that support it,
    https://gist.github.com/egmontkob/eb114294efbcd5adb1944c9f3cb5feda."""
    path = os.path.abspath(location.file)
    if not os.path.isfile(path):
        return text
    return f"\x1b]8;;file://{socket.gethostname()}{quote(path)}\x1b\\{text}\x1b]8;;\x1b\\"


def source_line(location: Location | None) -> str:
    """The text of a line, also of a notebook's cell; '' if unavailable."""
    return "" if location is None else linecache.getline(location.file, location.line).strip()
