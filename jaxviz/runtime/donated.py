"""Arrays that were donated: where they went, for the error that reading one again raises."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

from jaxviz.ir import compat
from jaxviz.ir.origin import Location, locate
from jaxviz.runtime import compilations
from jaxviz.runtime.cache import function_name

_went: dict[int, tuple[Any, str]] = {}
"""Identity of a donated array -> a weak reference to it, and where it went."""

_given: dict[int, tuple[Any, str]] = {}
"""The same of arrays that a call was given to donate; it may not have."""


def note_donated(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Notes which arguments of a call that has just returned are no more."""
    gone = [(path, x) for path, x in _gone(fun, args, kwargs) if id(x) not in _went]
    if not gone:
        return
    _note(_went, fun, gone, locate(compat.current_source()))


def _note(
    notes: dict[int, tuple[Any, str]], fun: Callable[..., Any], arrays: Iterable[tuple[str, Any]], at: Location | None
) -> None:
    compat.explain_deleted(_told)
    where = f" at {at}" if at is not None else ""
    for path, x in arrays:
        for array in {id(a): a for a in (x, compat.key_data(x))}.values():
            identity = id(array)
            reference = weakref.ref(array, lambda _, identity=identity: notes.pop(identity, None))  # type: ignore[misc]
            notes[identity] = (reference, f"to {function_name(fun)}{f' as {path}' if path else ''}{where}")


def _told(x: Any) -> str:
    """What the error for reading an array ends in."""
    where = _where(x)
    return f"It was donated {where}. Use what that call returned, or do not donate it." if where else ""


def donated_to(x: Any) -> str | None:
    """Where an array went that was donated, with the call that took it: `to step as params['w'] at train.py:30`.

    It is None of an array that was not donated, or by a call that is not known; see `watch_donations`.
    """
    return _where(x) or None


def _where(x: Any) -> str:
    """`to step as params['w'] at train.py:30`, of an array that is no more; '' where it is not known."""
    for notes in (_went, _given):
        reference, where = notes.get(id(x), (None, ""))
        if reference is not None and reference() is x:
            return where
    return ""


def watch_donations(on: bool = True) -> None:
    """Has the error for reading an array that was donated name the call that took it, also of functions of `jax.jit`.

    >>> jaxviz.watch_donations()
    >>> step(params, batch)  # jax.jit(step, donate_argnums=0)
    >>> params["w"] + 1
    RuntimeError: Array has been deleted with shape=float32[3]. It was donated to step as params['w'] at train.py:30. Use what that call
    returned, or do not donate it.

    Functions of `jaxviz.jit` say so without it. It takes about a microsecond of each call of a jitted function. `%load_ext jaxviz` calls it.
    Before JAX 0.12 an operation that was compiled before for such arrays raises XLA's own error instead ("Buffer has been deleted or
    donated"), which names nothing; `jaxviz.donated_to(x)` tells then.

    Where the call is not known, JAX's error stands as it is: when `jax_debug_nans` or `jax_debug_infs` was switched on or off after it,
    since JAX has one place for both (call it again then), and of a call that JAX neither compiled nor took its fast path for, such as the first one after `jax.jit` was
    applied to the same function again.

    Args:
      on: False to leave off.
    """
    compat.on_jit_calls(_note_call if on else None)
    compilations.on_compiled_call[:] = [_note_compiled_call] if on else []


def _note_compiled_call(call: compat.JitCall, at: Location | None) -> None:
    """Notes what a call is given to donate; when this is asked for, the array is no more. JAX's hook is for calls that it need not compile."""
    given = compat.donated_arguments(call)
    _note(
        _given, call.fun, [(path, x) for path, x in given if isinstance(x, jax.Array) and not compat.is_tracer(x)], at
    )


def _note_call(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if compat.donates(f):
        note_donated(f, args, kwargs)


def check_not_donated(
    fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], cause: Exception | None = None
) -> None:
    """Raises jax's error for the first argument that is no more, with its path, and where it went if that is known.

    Raises:
      RuntimeError: see above.
    """
    for path, x in _gone(fun, args, kwargs):
        is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        where = _where(x)
        told = f"It was donated {where}." if where else "It was donated to a jitted function, or deleted."
        advice = "Split a key before it is donated." if is_key else "Use what that call returned, or do not donate it."
        raise RuntimeError(
            f"{'Random key' if is_key else 'Array'} has been deleted with shape={x.aval.str_short()}. It is the argument "
            f"{path or '(unnamed)'} of {function_name(fun)}. {told} {advice}"
        ) from cause


def is_deleted(x: Any) -> bool:
    """Whether a value is an array that was donated or deleted."""
    return isinstance(x, jax.Array) and not compat.is_tracer(x) and x.is_deleted()


def _gone(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """The arguments that are no more, each with its path, '' where it has none."""
    leaves = jax.tree.leaves((args, kwargs))
    deleted = [is_deleted(x) for x in leaves]
    if not any(deleted):
        return []
    names = compat.function_debug_info(fun, args, kwargs).arg_names or ()
    paths = names if len(names) == len(leaves) else [""] * len(leaves)
    return [(path, x) for path, x, is_gone in zip(paths, leaves, deleted, strict=True) if is_gone]


@contextmanager
def calls_heard(heard: Callable[[Any, tuple[Any, ...], dict[str, Any]], None]) -> Iterator[None]:
    """Calls a function after each call of a jitted one that JAX need not compile, with that and its arguments, while the context lasts."""
    is_watching = bool(compilations.on_compiled_call)
    compat.on_jit_calls(heard)
    try:
        yield
    finally:
        watch_donations(is_watching)
