"""Tracebacks that, like JAX's, show only the user's own frames."""

from __future__ import annotations

import functools
import os
import sysconfig
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from jaxviz.ir import compat
from jaxviz.ir.alone import inside
from jaxviz.ir.usage import say_what_to_write

F = TypeVar("F", bound=Callable[..., Any])

_LIBRARY = sysconfig.get_path("stdlib") + os.sep


def api_boundary(fun: F) -> F:
    """Marks a public function: tracebacks of errors raised inside it leave out jaxviz's and jax's frames, according to
    `jax_traceback_filtering`.

    >>> @api_boundary
    ... def derive(f, *args): ...

    Frames of the standard library are removed with those that called them: context managers, cached properties. If the
    call itself is invalid for any function, the error says what to write.
    """

    @functools.wraps(fun)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        try:
            with inside():
                return fun(*args, **kwargs)
        except Exception as error:
            if isinstance(error, TypeError):
                say_what_to_write(error, fun, args, kwargs)
            if compat.filters_tracebacks():
                error.__traceback__ = _without_library(error.__traceback__)
            raise

    wrapped: F = compat.api_boundary(bounded)
    return wrapped


def _without_library(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of the standard library that hidden frames call."""
    shown: list[TracebackType] = []
    is_hidden = True
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not (is_hidden and _is_library(file)):
            shown.append(traceback)
            is_hidden = compat.is_hidden(file)
        traceback = traceback.tb_next
    shortened = None
    for t in reversed(shown):
        shortened = TracebackType(shortened, t.tb_frame, t.tb_lasti, t.tb_lineno)
    return shortened


def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARY) and "-packages" not in file
