"""Python's garbage collector, paused while programs are made."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_pauses: set[object] = set()
"""Those that are open, in any thread: the collector is the whole process's, so the last one to end resumes it."""
_was_enabled = False


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Where programs are traced and derived, the garbage collector does not run. A context and a decorator.

    A derivation makes some ten objects for each equation, nearly all of which stay. The collector runs after every few hundred
    of them, and looks through all that there are again and again: for large programs it takes most of the time. When the last pause ends it
    is as it was before the first; what became garbage meanwhile is young, and so goes with the next few objects that are made.

    >>> @collector_paused()
    ... def derive(program): ...
    """
    global _was_enabled
    pause = object()
    try:
        with _lock:
            if not _pauses:
                _was_enabled = gc.isenabled()
            _pauses.add(pause)
            gc.disable()
        yield
    finally:
        with _lock:
            _pauses.discard(pause)
            if not _pauses and _was_enabled:
                gc.enable()
