"""Interruptible compilation, once for each program and flags.

XLA itself cannot be interrupted. It compiles in a separate thread; an interrupt ends the wait, XLA finishes, and the result is used when it
is requested again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Generic, TypeVar

import jax

from jaxviz.ir import compat
from jaxviz.ir.sharing import on_clearing
from jaxviz.progress import counting

T = TypeVar("T")

_KEPT = 8
"""How many compiled programs are kept."""
_GLANCE = 0.05
"""How often to check whether the user wants to stop, in seconds."""


class _Work(Generic[T]):
    """Work in a thread, started when it is first waited for, and its result."""

    def __init__(self, work: Callable[[], T]):
        self.made: list[T] = []
        self.raised: BaseException | None = None
        self._work: Callable[[], T] | None = work
        self._thread = threading.Thread(target=self._run, name="jaxviz compiling", daemon=True)

    def _run(self) -> None:
        assert self._work is not None
        try:
            self.made.append(self._work())
        except BaseException as error:
            self.raised = error
        finally:
            self._work = None  # it may refer to large data

    def wait(self) -> None:
        if self._thread.ident is None:
            with contextlib.suppress(RuntimeError):  # interrupted while it was starting
                self._thread.start()
        while self._thread.is_alive():
            self._thread.join(_GLANCE)

    @property
    def result(self) -> T:
        """The result, once the work has been waited for.

        Raises:
          the error of the work.
        """
        if self.raised is not None:
            raise self.raised
        return self.made[0]


_kept: OrderedDict[str, _Work[Any]] = OrderedDict()
_alone: list[_Work[Any]] = []
"""Held by measurements, so that only one runs at a time."""


def forget_compiled() -> None:
    """Drops what was compiled."""
    _kept.clear()


on_clearing(forget_compiled)


def compiled_once(lowered: Any, how: str, work: Callable[[], T]) -> T:
    """The result of compiling a lowered program: a cached one with the same flags, or a new one.

    Args:
      lowered: the result of `jax.jit(f).lower(...)`.
      how: identifies the way in which it is compiled, if there are several.
      work: compiles it; it runs in another thread.

    Raises:
      KeyboardInterrupt: the user interrupts it. Requested again, a compilation that is under way is waited for instead of restarted.
      the errors of compiling.
    """
    key = key_of(lowered, how)
    of: _Work[T] | None = _kept.get(key)
    if of is None:
        of = _kept[key] = _Work(work)
        while len(_kept) > _KEPT:
            _kept.popitem(last=False)
    _kept.move_to_end(key)
    with counting("compiling"):
        of.wait()
    if of.raised is not None:
        _kept.pop(key, None)
    return of.result


def compiled_alone(work: Callable[[], T]) -> T:
    """The result of work that is timed: it begins when interrupted work has finished.

    Raises:
      KeyboardInterrupt: the user interrupts it.
      what the work raises.
    """
    while _alone:
        _alone[-1].wait()
        _alone.pop()
    of = _Work(work)
    _alone.append(of)
    of.wait()
    _alone.remove(of)
    return of.result


def key_of(lowered: Any, how: str = "") -> str:
    """A key that is equal for programs with the same compiled result: by what JAX passes to XLA, and by flags."""
    flags = os.environ.get("XLA_FLAGS", ""), os.environ.get("LIBTPU_INIT_ARGS", "")
    backend = jax.default_backend(), jax.devices()[0].device_kind, version("jaxlib")
    settings = repr(sorted((k, v) for k, v in jax.config.values.items() if "compil" in k or "shardy" in k))
    told = "\n".join([compat.told_of(lowered), how, *flags, *backend, settings])
    return hashlib.sha256(told.encode()).hexdigest()
