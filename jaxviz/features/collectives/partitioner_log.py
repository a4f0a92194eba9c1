"""What XLA's partitioner logs while it compiles: the reshards for which it fully replicates a value."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

_WARNING = re.compile(
    r"\[spmd\] involuntary full rematerialization\..*?from sharding (?P<before>\{.*?\}) to (?P<after>\{.*?\}) (?:efficiently|without)"
    r"(?:.*?HLO operation:? (?P<text>%?(?P<name>[\w.-]+) = .*))?",
    re.IGNORECASE,
)
_PATH = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_SHAPE = re.compile(r"= (\w+\[[\d,]*\])")


@dataclass(frozen=True, slots=True)
class Warned:
    """A reshard that the partitioner warned about.

    Args:
      before, after: the shardings in XLA's notation.
      name: the instruction that needs it.
      path: JAX's name for that; '' if the message has none.
      type: the type of one device's part of the value, such as `f32[32,32]`.
    """

    before: str
    after: str
    name: str
    path: str
    type: str


@dataclass
class Log:
    """What was logged.

    Args:
      is_read: whether the log could be read.
      lines: the warnings about such reshards.
    """

    is_read: bool = True
    lines: list[str] = field(default_factory=list)

    @property
    def warned(self) -> tuple[Warned, ...]:
        """The reshards, each once."""
        return tuple(dict.fromkeys(found for line in self.lines if (found := read_warning(line)) is not None))


def read_warning(line: str) -> Warned | None:
    """The reshard in a line of XLA's log; None if there is none."""
    found = _WARNING.search(line)
    if found is None:
        return None
    text = found["text"] or ""  # older versions name no instruction
    path, shape = _PATH.search(text), _SHAPE.search(text)
    return Warned(
        found["before"], found["after"], found["name"] or "a value", path[1] if path else "", shape[1] if shape else "",
    )  # fmt: skip


@contextlib.contextmanager
def reading_log() -> Iterator[Log]:
    """Within it, removes these warnings from the process's standard error; everything else is passed on.

    XLA does not log through Python's `sys.stderr`, so the file descriptor has to be read.
    """
    log = Log()
    try:
        kept = os.dup(2)
    except OSError:  # a process without stderr
        log.is_read = False
        yield log
        return
    with contextlib.suppress(Exception):  # the stream of a notebook or a test may be closed
        sys.stderr.flush()
    reads, writes = os.pipe()
    os.dup2(writes, 2)
    os.close(writes)
    thread = threading.Thread(target=_pass_on, args=(reads, kept, log), name="jaxviz log", daemon=True)
    thread.start()
    try:
        yield log
    finally:
        os.dup2(kept, 2)  # closes the pipe's last writing end
        thread.join()
        os.close(reads)
        os.close(kept)


def _pass_on(reads: int, kept: int, log: Log) -> None:
    rest = b""
    while True:
        got = os.read(reads, 65536)
        if not got:
            break
        *lines, rest = (rest + got).split(b"\n")
        for line in lines:
            _sort(line + b"\n", kept, log)
        if rest and not rest[:1].isalnum():  # a progress bar, which does not end the line
            os.write(kept, rest)
            rest = b""
    if rest:
        _sort(rest, kept, log)


def _sort(line: bytes, kept: int, log: Log) -> None:
    text = line.decode(errors="replace")
    if read_warning(text) is not None:
        log.lines.append(text)
    else:
        os.write(kept, line)
