"""The progress of work that takes longer than a second: a `tqdm` bar, or a callback.

A thread draws the bar, so that it costs the work nothing, and goes on where the work stays in XLA's compiler or in a
solver. An interrupt (`Ctrl-C`, or the notebook's stop button) ends both.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_DELAY = 1.0
"""How many seconds work takes before a bar appears."""
_BETWEEN = 0.5
_WIDTH = 80
"""How many characters a bar has in a notebook."""
_NOTHING = {"text/plain": "", "text/html": ""}
"""An output without text: what notebooks are converted with warns of one without a type."""

Listener = Callable[[str, int, "int | None"], None]
"""Is called with what is being done, the number of units done, and their total; None if that is unknown."""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_is_inside: ContextVar[bool] = ContextVar("is_inside", default=False)
_setting: list[bool | None] = [None]


def show_progress(wanted: bool | None = True) -> None:
    """Sets whether a progress bar is shown for work that takes longer than a second.

    >>> jaxviz.show_progress(False)

    Args:
      wanted: True for always, False for never; None, the default, for a notebook or if standard error is a
        terminal.
    """
    _setting[0] = wanted


@contextlib.contextmanager
def counting(what: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Shows the progress of the work inside; yields a function to call after each unit of it.

    >>> with counting("policies", len(policies)) as done:
    ...     for policy in policies:
    ...         outcomes.append(outcome_of(policy))
    ...         done()

    Nested progress is not shown. Also a decorator for functions.

    Args:
      what: what is being done, in a word or two.
      total: the number of units; None if unknown, which shows only the elapsed time.
    """
    listener = _listener.get()
    if _is_inside.get() or (listener is None and not _is_shown()):
        yield lambda: None
        return
    n = 0

    def done() -> None:
        nonlocal n
        n += 1
        if listener is not None:
            listener(what, n, total)

    token = _is_inside.set(True)
    try:
        with contextlib.nullcontext() if listener is not None else _bar(what, total, lambda: n):
            if listener is not None:
                listener(what, 0, total)
            yield done
    finally:
        _is_inside.reset(token)


def each(work: Callable[[T], R], units: Iterable[T], what: str) -> list[R]:
    """The result for each unit, with progress shown like `counting`.

    >>> each(outcome_of, policies, "policies")
    """
    units = list(units)
    results = []
    with counting(what, len(units)) as done:
        for unit in units:
            results.append(work(unit))
            done()
    return results


@contextlib.contextmanager
def report_progress_to(listener: Listener) -> Iterator[None]:
    """Reports progress inside to a listener, immediately and instead of a bar."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def _is_shown() -> bool:
    if _setting[0] is not None:
        return _setting[0]
    return _notebook() is not None or (sys.stderr is not None and sys.stderr.isatty())


def _notebook() -> Any:
    """IPython if it runs a notebook; it is already imported then, and nothing here imports it."""
    ipython = sys.modules.get("IPython")
    shell = getattr(ipython, "get_ipython", lambda: None)()  # another thread may be importing it
    return ipython if shell is not None and "IPKernelApp" in shell.config else None


@contextlib.contextmanager
def _bar(what: str, total: int | None, done: Callable[[], int]) -> Iterator[None]:
    over, is_drawn = threading.Event(), threading.Event()
    of = (what, total, done, over, is_drawn)
    thread = threading.Thread(target=_draw, args=of, name="jaxviz progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        if is_drawn.is_set():
            thread.join()


def _draw(
    what: str, total: int | None, done: Callable[[], int], over: threading.Event, is_drawn: threading.Event
) -> None:
    if over.wait(_DELAY):
        return
    is_drawn.set()
    if over.is_set():  # finished in the meantime, so that nobody waits for the bar to disappear
        return
    from tqdm import tqdm  # slow to import

    of: dict[str, Any] = {} if total else {"bar_format": "{desc}: {elapsed}"}
    shown_by = _notebook()
    if shown_by is not None:
        of |= {"file": io.StringIO(), "ncols": _WIDTH, "ascii": False}
    with tqdm(total=total, desc=what, leave=False, **of) as bar, _shown(bar, shown_by) as show:
        bar.start_t -= _DELAY
        while True:
            bar.n = done()
            show()
            if over.wait(_BETWEEN):
                return


@contextlib.contextmanager
def _shown(bar: Any, ipython: Any) -> Iterator[Callable[[], None]]:
    """What draws a bar: on standard error, or as an output of a notebook's cell, which is emptied afterwards, since an
    output cannot be removed. It is text: a widget would stay in a saved notebook, without what it shows."""
    if ipython is None:
        yield bar.refresh
        return
    text = lambda: {"text/plain": str(bar)}
    shown = ipython.display.display(text(), raw=True, display_id=True)
    try:
        yield lambda: shown.update(text(), raw=True)
    finally:
        shown.update(_NOTHING, raw=True)
