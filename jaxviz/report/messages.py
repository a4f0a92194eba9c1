"""Short error messages for notebooks: the kind of error, the user's own line, and what to do."""

from __future__ import annotations

import re
import traceback

from jaxviz.ir.errors import message_of
from jaxviz.ir.origin import file_label
from jaxviz.ir.own_code import is_own
from jaxviz.ir.trace import CALLED

_CELL = re.compile(r"<ipython-input[^>]*>|\S*ipykernel_\S*?\.py")


def short_message(error: BaseException, what: str, more: str = "(`%tb` shows the whole traceback)") -> str:
    """An error in two to four lines.

    Args:
      error: the exception.
      what: what was being done, such as 'tracing f'.
      more: where to read more.

    Returns:
      the kind of error and the first paragraph of its message, the user's line where it was raised, and the arguments
      of their function.
    """
    message = message_of(error).strip().split("\n\n")[0]
    head = [_CELL.sub(lambda match: file_label(match[0]), line) for line in message.splitlines()[:4]] or ["no message"]
    lines = [f"{type(error).__name__} while {what}: {head[0]}", *head[1:]]
    line = user_line(error)
    if line is not None:
        lines.append(f"  at {line}")
    lines += [f"  {note}" for note in getattr(error, "__notes__", ()) if note.startswith(CALLED)]
    lines.append(f"  {more}")
    return "\n".join(lines)


def user_line(error: BaseException) -> str | None:
    """`file:line: text` of the innermost frame outside jax, jaxviz and the libraries below them."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_own(frame.filename) and not frame.name.startswith("%"):
            where = file_label(frame.filename)
            return f"{where}:{frame.lineno}: {frame.line}" if frame.line else f"{where}:{frame.lineno}"
    return None
