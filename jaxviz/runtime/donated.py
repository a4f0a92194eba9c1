"""Arrays that were donated: where they went, for the error that reading one again raises."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import jax

from jaxviz.ir import compat
from jaxviz.ir.origin import locate
from jaxviz.runtime.cache import function_name

_went: dict[int, tuple[Any, str]] = {}
"""Identity of a donated array -> a weak reference to it, and where it went."""


def note_donated(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Notes which arguments of a call that has just returned are no more."""
    gone = [(path, x) for path, x in _gone(fun, args, kwargs) if id(x) not in _went]
    if not gone:
        return
    at = locate(compat.current_source())
    for path, x in gone:
        identity = id(x)
        reference = weakref.ref(x, lambda _, identity=identity: _went.pop(identity, None))  # type: ignore[misc]
        where = f" at {at}" if at is not None else ""
        _went[identity] = (reference, f"to {function_name(fun)}{f' as {path}' if path else ''}{where}")


def check_not_donated(
    fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], cause: Exception | None = None
) -> None:
    """Raises jax's error for the first argument that is no more, with its path, and where it went if that is known.

    Raises:
      RuntimeError: see above.
    """
    for path, x in _gone(fun, args, kwargs):
        is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        went = _went.get(id(x))
        told = "It was donated to a jitted function, or deleted." if went is None else f"It was donated {went[1]}."
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
