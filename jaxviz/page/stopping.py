"""Stopping work that a page has asked for, where the kernel does it in a thread of its own beside the user's cells: no interrupt reaches that."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator

_at_work: dict[str, int] = {}
"""By name, in which thread what can be stopped is done."""
_lock = threading.Lock()


@contextlib.contextmanager
def stoppable(name: str) -> Iterator[str]:
    """Work that `stop` ends; gives the code that does, to be run by the kernel, or '' in the main thread, which an interrupt reaches.

    Raises:
      KeyboardInterrupt: it has been stopped.
    """
    if threading.current_thread() is threading.main_thread():
        yield ""
        return
    with _lock:
        _at_work[name] = threading.get_ident()
    try:
        yield f"__import__({__name__!r}, fromlist=['stop']).stop({name!r})"
    finally:
        with _lock:
            _at_work.pop(name, None)


def stop(name: str) -> None:
    """Has an interrupt raised in the thread in which work of that name is done; nothing where none is."""
    with _lock:
        thread = _at_work.pop(name, None)
        if thread is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt))
