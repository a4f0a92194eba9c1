"""Raises Python's recursion limit for deeply nested programs."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import Counter
from types import TracebackType

from jaxviz.ir.errors import message_of

FRAMES = 5_000
"""Python's recursion limit while programs are processed, if it is lower. Two hundred nested checkpoints take JAX some
4,000 frames; at twice this limit JAX's own recursion, which goes through C++, takes half of the 8 MiB of a thread's
stack."""

_ADVICE = (
    f"jaxviz works with a recursion limit of at least {FRAMES:,}. If this is not an endless recursion but a deeply "
    "nested "
    "program, raise the limit with sys.setrecursionlimit; calls that go through C have a separate limit since Python "
    "3.12."
)

_lock = threading.Lock()
_inside: Counter[int] = Counter()
"""How many contexts of `deep_stack` are open in each thread. All threads share one limit, so the last context to exit
restores it."""
_before = 0


def _set_limit(limit: int) -> None:
    with contextlib.suppress(RecursionError):  # the stack is already deeper than that
        sys.setrecursionlimit(limit)


def _restore() -> None:
    # Keep a limit that somebody else has set in the meantime.
    if not _inside and _before and sys.getrecursionlimit() == FRAMES:
        _set_limit(_before)


class _DeepStack(contextlib.ContextDecorator):
    @property
    def is_entered(self) -> bool:
        """Whether the limit is raised now, for all threads."""
        return bool(_inside) and sys.getrecursionlimit() >= FRAMES

    def __enter__(self) -> None:
        global _before
        with _lock:
            if sys.getrecursionlimit() < FRAMES:
                _before = sys.getrecursionlimit()
                _set_limit(FRAMES)
            elif not _inside:
                _before = 0
            _inside[threading.get_ident()] += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _lock:
            here = threading.get_ident()
            _inside[here] -= 1
            if not _inside[here]:
                del _inside[here]
            _restore()
        # JAX has its own error for a jitted function that calls itself.
        is_too_deep = isinstance(error, RecursionError) and message_of(error).startswith("maximum recursion depth")
        if error is not None and is_too_deep and _ADVICE not in getattr(error, "__notes__", ()):
            error.add_note(_ADVICE)


class _UsualStack(contextlib.ContextDecorator):
    def __enter__(self) -> None:
        with _lock:
            if _inside and _before and sys.getrecursionlimit() == FRAMES:
                _set_limit(_before)

    def __exit__(self, *error: object) -> None:
        with _lock:
            if _inside and _before and sys.getrecursionlimit() == _before:
                _set_limit(FRAMES)


deep_stack = _DeepStack()
"""Raises Python's recursion limit enough for some hundreds of levels, where programs are traced, derived, reported on
and printed.

A reentrant context manager for any thread, and a decorator.

>>> with deep_stack:
...     text = str(program.jaxpr)
"""

usual_stack = _UsualStack()
"""Restores the user's own recursion limit where XLA compiles or runs a program. It stops JAX before XLA, which has been
seen to end the process on two hundred nested jits."""


def _forked() -> None:
    """In a forked process, which has only the thread that forked it."""
    global _lock
    _lock = threading.Lock()
    for thread in _inside.keys() - {threading.get_ident()}:
        del _inside[thread]
    _restore()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forked)
