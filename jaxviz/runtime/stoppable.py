"""Compiles the programs of reports: interruptibly, and once for each program and flags.

XLA cannot be interrupted, so a compilation has a thread of its own, and whoever requests it waits for that. It is
requested, then running, then over, with a result or an error. An interrupt ends only the waiting: XLA finishes, and the
result is used when it is requested again. If nobody waits any more when its turn comes, it does not begin.

Compilations run beside each other, except for those that need the process for themselves, because they are timed or
their log is read. Turns are in the order of the requests. Python waits at its end for what is running, since a thread
that is still in XLA would abort the process; and a process that was forked from this one has no threads, so it begins
without what was not over.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Generic, TypeVar

import jax

from jaxviz.ir import compat
from jaxviz.ir.sharing import on_clearing
from jaxviz.progress import counting
from jaxviz.runtime.compilations import unwatched

T = TypeVar("T")

_KEPT = 8
"""How many compiled programs are kept."""
_GLANCE = 0.05
"""How often to check whether the user wants to stop, in seconds."""
_INTERRUPTED = 130

GOES_ON = (
    "XLA cannot be interrupted: it finishes in the background. The next request waits for it, and so does the end of "
    "Python."
)


class _Turns:
    """The compilations that are requested or running, in the order of their requests."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.line: list[_Compilation[Any]] = []

    def take(self, of: _Compilation[Any]) -> bool:
        """Waits until a compilation may run; False if it need not, because another thread runs it, or because nobody
        waits for it."""
        with self.changed:
            if of in self.line or of.over.is_set():
                return False
            self.line.append(of)
            self.changed.wait_for(lambda: self._may_run(of))
            if of.waiting:
                return True
            self._remove(of)
            return False

    def end(self, of: _Compilation[Any]) -> None:
        with self.changed:
            of.over.set()
            self._remove(of)

    def _may_run(self, of: _Compilation[Any]) -> bool:
        before = self.line[: self.line.index(of)]
        return not before if of.is_alone else not any(c.is_alone for c in before)

    def _remove(self, of: _Compilation[Any]) -> None:
        self.line.remove(of)
        self.changed.notify_all()


_turns = _Turns()


class _Compilation(Generic[T]):
    """A compilation, which begins when it is first waited for.

    Args:
      work: compiles.
      is_alone: whether nothing else may be compiled meanwhile.
    """

    def __init__(self, work: Callable[[], T], is_alone: bool):
        self.is_alone = is_alone
        self.over = threading.Event()
        self.error: BaseException | None = None
        self.waiting: set[object] = set()
        """One entry for each call that waits; a number could be wrong after an interrupt."""
        self._results: list[T] = []
        self._work: Callable[[], T] | None = work

    def result(self) -> T:
        """The result, which is waited for.

        Raises:
          KeyboardInterrupt: the user interrupts the waiting.
          the error of the work.
        """
        waits = object()
        try:
            self.waiting.add(waits)
            if not self.over.is_set():
                # The thread itself finds out whether another one does the work: here, an interrupt may occur between
                # any two steps.
                threading.Thread(target=self._run, name="jaxviz compiling", daemon=False).start()
            while not self.over.wait(_GLANCE):
                pass
        except KeyboardInterrupt as error:
            if not self.over.is_set():
                error.add_note(GOES_ON)
            raise
        finally:
            self.waiting.discard(waits)
        if self.error is not None:
            raise self.error
        return self._results[0]

    def _run(self) -> None:
        if not _turns.take(self):
            return
        try:
            with unwatched():
                self._results.append(self._work())  # type: ignore[misc]
        except BaseException as error:
            self.error = error
        finally:
            self._work = None  # it may refer to large data
            _turns.end(self)


_known: OrderedDict[str, _Compilation[Any]] = OrderedDict()
"""The compilations by program, way and flags: all that are not over, and the latest with results."""
_lock = threading.Lock()


def forget_compiled() -> None:
    """Drops what was compiled."""
    with _lock:
        _known.clear()


on_clearing(forget_compiled)


def compiled_once(lowered: Any, how: str, work: Callable[[], T], is_alone: bool = False) -> T:
    """The result of compiling a lowered program: a cached one with the same flags, or a new one.

    Args:
      lowered: the result of `jax.jit(f).lower(...)`.
      how: identifies the way in which it is compiled, if there are several.
      work: compiles it; it runs in another thread.
      is_alone: whether nothing else may be compiled meanwhile, as when it reads XLA's log.

    Raises:
      KeyboardInterrupt: the user interrupts it. Requested again, a compilation that is under way is waited for instead
      of restarted. the errors of compiling.
    """
    return _result(key_of(lowered, how), work, is_alone, is_kept=True)


def compiled_by_jax(lowered: Any) -> Any:
    """Compiles a lowered program as JAX does, and returns its `jax.stages.Compiled`.

    Raises:
      as for `compiled_once`.
    """
    return compiled_once(lowered, as_called(lowered), lowered.compile)


def as_called(lowered: Any) -> str:
    """What else distinguishes the results for lowered programs with the same text: their lines, arguments and results.
    An argument that nothing reads is not in the text."""
    return f"{lowered.as_text(debug_info=True)}\n{lowered.args_info}\n{lowered.out_tree}"


def compiled_alone(key: str, work: Callable[[], T]) -> T:
    """The result of work that is timed: nothing else is compiled meanwhile, and the result is not kept.

    Args:
      key: identifies the work, which is done once for all who request it meanwhile.
      work: compiles; it runs in another thread.

    Raises:
      KeyboardInterrupt: the user interrupts it.
      what the work raises.
    """
    return _result(key, work, is_alone=True, is_kept=False)


def _result(key: str, work: Callable[[], T], is_alone: bool, is_kept: bool) -> T:
    with _lock:
        of: _Compilation[T] = _known.setdefault(key, _Compilation(work, is_alone))
        _known.move_to_end(key)
        ended = [k for k, c in _known.items() if c.over.is_set() and k != key]
        for k in ended[: len(_known) - _KEPT]:
            del _known[k]
    with counting("compiling"):
        try:
            result = of.result()
        finally:
            if of.over.is_set() and (of.error is not None or not is_kept):
                _forget(key, of)
    return result


def _forget(key: str, of: _Compilation[Any]) -> None:
    with _lock:
        if _known.get(key) is of:
            del _known[key]


def key_of(lowered: Any, how: str = "") -> str:
    """A key that is equal for programs with the same compiled result: by what JAX passes to XLA, and by flags."""
    flags = os.environ.get("XLA_FLAGS", ""), os.environ.get("LIBTPU_INIT_ARGS", "")
    backend = jax.default_backend(), jax.devices()[0].device_kind, version("jaxlib")
    settings = repr(sorted((k, v) for k, v in jax.config.values.items() if "compil" in k or "shardy" in k))
    text = "\n".join([compat.told_of(lowered), how, *flags, *backend, settings])
    return hashlib.sha256(text.encode()).hexdigest()


def _forked() -> None:
    """In a forked process: the threads are gone, and a lock may have been held by one of them."""
    global _lock, _turns
    _lock, _turns = threading.Lock(), _Turns()
    for key in [k for k, c in _known.items() if not c.over.is_set()]:
        del _known[key]


def _leave() -> None:
    """At the end of Python, which has waited for all threads, unless the user has interrupted that too."""
    if _turns.line:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(_INTERRUPTED)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forked)
atexit.register(_leave)
