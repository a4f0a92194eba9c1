"""Pauses Python's garbage collector while programs are traced and derived."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator

_MANY = 100_000
"""With more new objects than this, the collector takes long enough to be noticed."""

_lock = threading.Lock()
_pauses: dict[object, int] = {}
"""The active pauses, and the thread of each: the collector belongs to the process, so the last one to end resumes
it."""
_was_enabled = False


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses the garbage collector while programs are traced and derived. A context manager and a decorator.

    A derivation creates about ten objects per equation, nearly all of which are kept. The collector runs after every
    few hundred of them and scans them again and again: for large programs this takes most of the time. When the last
    pause ends, the collector's state is as before the first. Garbage created meanwhile is young, and is collected with
    the next few objects; after many objects, which are kept, with the oldest.

    >>> @collector_paused()
    ... def derive(program): ...
    """
    global _was_enabled
    pause = object()
    try:
        with _lock:
            if not _pauses:
                _was_enabled = gc.isenabled()
            _pauses[pause] = threading.get_ident()
            gc.disable()
        yield
    finally:
        with _lock:
            _pauses.pop(pause, None)
            if not _pauses and _was_enabled:
                if gc.get_count()[0] > _MANY and not gc.get_freeze_count():
                    gc.freeze()  # makes them the oldest, without the two scans that the collector would take for it
                    gc.unfreeze()
                gc.enable()


def _forked() -> None:
    """In a forked process, which has only the thread that forked it."""
    global _lock
    _lock = threading.Lock()
    here = threading.get_ident()
    for pause in [p for p, thread in _pauses.items() if thread != here]:
        del _pauses[pause]
        if not _pauses and _was_enabled:
            gc.enable()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forked)
