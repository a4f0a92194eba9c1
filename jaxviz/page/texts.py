"""Makes texts from programs and errors safe to display."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import Any

from jaxviz.ir.errors import message_of
from jaxviz.page.sources import without_folders
from jaxviz.report.tables import printable

_LONGEST = 2000
"""The longest line in characters, so that a name cannot fill the page."""


def fit(value: Any, limit: int = _LONGEST) -> Any:
    """The value with control and bidirectional characters escaped in its texts, and very long lines cut.

    >>> fit({"name": "a\\u202eb"})
    {'name': 'a<U+202E>b'}

    Args:
      value: dicts, lists, tuples, dataclasses, texts and numbers. Line breaks and tabs are kept; keys are not changed.
      limit: the longest line in characters.
    """
    if isinstance(value, str):
        if len(value) <= limit and value.isprintable():  # the usual case
            return value
        return "".join(part if part in "\n\t" else printable(part, limit) for part in re.split(r"([\n\t])", value))
    if isinstance(value, dict):
        return {key: fit(inner, limit) for key, inner in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: fit(getattr(value, f.name), limit) for f in fields(value)})
    if isinstance(value, (list, tuple)):
        items = [fit(inner, limit) for inner in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def first_line(error: BaseException) -> str:
    """`NoRuleError: ...`, the first paragraph of the message on one line, with file paths replaced by file names."""
    if isinstance(error, RecursionError):
        return (
            "RecursionError: programs are nested too deep here for Python's recursion limit; "
            "sys.setrecursionlimit raises it"
        )
    message = message_of(error).strip().split("\n\n")[0].replace("\n", " ")
    text: str = fit(f"{type(error).__name__}: {without_folders(message)}")
    return text
