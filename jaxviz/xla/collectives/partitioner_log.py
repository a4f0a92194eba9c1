"""What XLA's partitioner logs while it compiles: the reshards for which it fully replicates a value."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_WARNING = re.compile(
    r"\[spmd\] involuntary full rematerialization\..*?from sharding (?P<before>\{.*?\}) to (?P<after>\{.*?\}) "
    r"(?:efficiently|without)"
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


@dataclass(eq=False)
class PartitionerLog:
    """The warnings about such reshards, if the log could be read."""

    is_read: bool = True
    lines: list[str] = field(default_factory=list)

    @property
    def warned(self) -> tuple[Warned, ...]:
        """The reshards, each once."""
        return tuple(dict.fromkeys(reshard for line in self.lines if (reshard := read_warning(line)) is not None))


def read_warning(line: str) -> Warned | None:
    """The reshard in a line of XLA's log; None if there is none."""
    match = _WARNING.search(line)
    if match is None:
        return None
    text = match["text"] or ""  # older versions name no instruction
    path, shape = _PATH.search(text), _SHAPE.search(text)
    return Warned(
        match["before"], match["after"], match["name"] or "a value", path[1] if path else "", shape[1] if shape else "",
    )  # fmt: skip


class _Redirection:
    """Of the process's standard error: there is one for all logs that are read at the same time.

    The first log begins it and the last one ends it, in whatever order they are closed. Another process may have
    inherited the pipe, so its end cannot be waited for: a mark in it says that all that was written before has been
    read, and the thread reads on as long as somebody can write.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.logs: tuple[PartitionerLog, ...] = ()
        self.usual = self.pipe = -1
        self.is_read = threading.Event()

    def open(self, log: PartitionerLog) -> None:
        """
        Raises:
          OSError: the process has no standard error.
        """
        with self.lock:
            if not self.logs:
                self._begin()
            self.logs = (*self.logs, log)

    def close(self, log: PartitionerLog) -> None:
        with self.lock:
            if log not in self.logs:  # it was opened before this process was forked
                return
            if len(self.logs) == 1:
                os.dup2(self.usual, 2)
            os.write(self.pipe, _MARK)
            self.is_read.wait()
            self.is_read.clear()
            self.logs = tuple(other for other in self.logs if other is not log)
            if not self.logs:
                self.restore()

    def restore(self) -> None:
        """Makes standard error what it was, and lets go of the pipe."""
        os.dup2(self.usual, 2)
        os.close(self.usual)
        os.close(self.pipe)

    def _begin(self) -> None:
        self.usual = os.dup(2)
        with contextlib.suppress(Exception):  # the stream of a notebook or a test may be closed
            sys.stderr.flush()
        reads, self.pipe = os.pipe()
        threading.Thread(target=self._pass_on, args=(reads, os.dup(2)), name="jaxviz log", daemon=True).start()
        os.dup2(self.pipe, 2)

    def _pass_on(self, reads: int, usual: int) -> None:
        rest = b""
        while chunk := os.read(reads, 65536):
            rest += chunk
            while _MARK in rest:
                before, _, rest = rest.partition(_MARK)
                self._sort(before.splitlines(keepends=True), usual)
                self.is_read.set()
            *lines, rest = rest.split(b"\n")
            self._sort([line + b"\n" for line in lines], usual)
            # A progress bar does not end its line.
            if rest and not rest[:1].isalnum() and _MARK[:1] not in rest:
                _write(rest, usual)
                rest = b""
        self._sort([rest], usual)
        os.close(reads)
        os.close(usual)

    def _sort(self, lines: Iterable[bytes], usual: int) -> None:
        for line in lines:
            text = line.decode(errors="replace")
            logs = self.logs if read_warning(text) is not None else ()
            for log in logs:
                log.lines.append(text)
            if not logs:
                _write(line, usual)


_MARK = b"\0jaxviz\0"
_redirection = _Redirection()


def _write(line: bytes, usual: int) -> None:
    with contextlib.suppress(OSError):  # nobody reads it, or the disk is full; XLA must not wait for us
        os.write(usual, line)


def _forked() -> None:
    """In a forked process: no thread reads the pipe for it."""
    global _redirection
    if _redirection.logs:
        _redirection.restore()
    _redirection = _Redirection()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forked)


@contextlib.contextmanager
def reading_log() -> Iterator[PartitionerLog]:
    """Within it, removes these warnings from the process's standard error; everything else is passed on.

    XLA does not log through Python's `sys.stderr`, so the file descriptor has to be read.
    """
    log = PartitionerLog()
    try:
        _redirection.open(log)
    except OSError:
        log.is_read = False
        yield log
        return
    try:
        yield log
    finally:
        _redirection.close(log)
