"""Lets one thread be the only one that runs jaxviz for a moment, while calls in other threads wait."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator

_PATIENCE = 30.0
"""How many seconds a thread waits until it is alone, or until another one no longer is."""


class BusyError(Exception):
    """Calls in other threads have not ended in time."""


class _Threads:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.inside: Counter[int] = Counter()
        """How many calls of each thread have not ended."""
        self.waiting: set[int] = set()
        self.alone: int | None = None

    def may_enter(self, me: int) -> bool:
        return self.alone in (None, me) or me in self.inside

    def may_be_alone(self, me: int) -> bool:
        """The threads that wait for the same stay where they are, so they do not count."""
        return self.alone is None and all(thread == me or thread in self.waiting for thread in self.inside)


_threads = _Threads()


@contextlib.contextmanager
def inside() -> Iterator[None]:
    """A call of a public function."""
    threads, me = _threads, threading.get_ident()
    with threads.changed:
        # Not for ever: what is traced alone may itself wait for a thread that calls jaxviz.
        threads.changed.wait_for(lambda: threads.may_enter(me), _PATIENCE)
        threads.inside[me] += 1
    try:
        yield
    finally:
        with threads.changed:
            threads.inside[me] -= 1
            if not threads.inside[me]:
                del threads.inside[me]
                threads.changed.notify_all()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """While this is entered, no other thread is in a public function, except to wait for the same.

    Raises:
      BusyError: calls in other threads have not ended in time.
    """
    threads, me = _threads, threading.get_ident()
    if threads.alone == me:
        yield
        return
    with threads.changed:
        threads.waiting.add(me)
        threads.changed.notify_all()
        try:
            if not threads.changed.wait_for(lambda: threads.may_be_alone(me), _PATIENCE):
                raise BusyError
            threads.alone = me
        finally:
            threads.waiting.discard(me)
    try:
        yield
    finally:
        with threads.changed:
            threads.alone = None
            threads.changed.notify_all()


def _forked() -> None:
    """A forked process has only the thread that forked it, which is in no call that others wait for."""
    global _threads
    _threads = _Threads()


os.register_at_fork(after_in_child=_forked)
