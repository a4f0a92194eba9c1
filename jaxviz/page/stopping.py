"""Stops work requested by a page that the kernel does in a separate thread, which interrupts do not reach."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
from collections.abc import Iterator

_at_work: dict[int, int] = {}
"""The thread of each stoppable work, by number."""
_numbers = itertools.count()
_lock = threading.Lock()


@contextlib.contextmanager
def stoppable() -> Iterator[str]:
    """A context for work that `stop` can end; yields the code that does so, to be run by the kernel, or '' in the main
    thread, where an interrupt suffices.

    Raises:
      KeyboardInterrupt: it has been stopped.
    """
    if threading.current_thread() is threading.main_thread():
        yield ""
        return
    number = next(_numbers)
    with _lock:
        _at_work[number] = threading.get_ident()
    try:
        yield f"__import__({__name__!r}, fromlist=['stop']).stop({number})"
    finally:
        with _lock:
            _at_work.pop(number, None)


def stop(number: int) -> None:
    """Raises an interrupt in the thread that does the work with that number, if there is one."""
    with _lock:
        thread = _at_work.pop(number, None)
        if thread is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt))
