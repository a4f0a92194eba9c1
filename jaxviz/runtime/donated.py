"""Records where donated arrays went, for the error raised when one is read again. Nothing is recorded before
`watch_donations`."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax

from jaxviz.ir import compat
from jaxviz.ir.origin import Location, locate
from jaxviz.runtime import compilations
from jaxviz.runtime.cache import function_name

_SHARE = 0.005
"""The share of elapsed time that recording the arrays of calls may take."""

_CREDIT = 2e-4
"""Seconds of it that may be accumulated while nothing is called."""

_ALWAYS = 2
"""How many calls of a function at a line are always recorded, whatever that costs: the mistake is usually in the
first."""

_KEPT = 1000
"""How many functions and places are kept before those of deleted functions are dropped."""


@dataclass(eq=False, slots=True)
class _DonatingCall:
    """A donating call, without its arrays.

    Args:
      name: the name of the function.
      tree: the structure of the donated arguments, a dict by name.
      source: where it was called, as an equation's `source`; or the line.
      arrays: weak references to the arrays that it took.
      places: the leaf that each of these was.
    """

    name: str
    tree: Any
    source: Any
    arrays: list[weakref.ref[Any]]
    places: list[int]

    def text(self, place: int) -> str:
        """`to step as params['w'] at train.py:30`, for the leaf at an index."""
        path, _ = jax.tree_util.tree_leaves_with_path(self.tree.unflatten(range(self.tree.num_leaves)))[place]
        at = self.source if isinstance(self.source, Location) else locate(self.source)
        where = f" at {at}" if at is not None else ""
        return f"to {self.name} as {path[0].key}{jax.tree_util.keystr(path[1:])}{where}"


@dataclass(eq=False, slots=True)
class _Repeated:
    """Calls of a function from one place in the code, of which only some are recorded.

    Args:
      function: a reference to it.
      first: the first of them.
      types: the types of the arrays that it donated.
      times: how many were recorded.
      is_complete: whether all were.
    """

    function: weakref.ref[Any]
    first: _DonatingCall
    types: list[Any]
    times: int = 0
    is_complete: bool = True


class _Calls:
    """The calls whose arrays are still referenced."""

    def __init__(self) -> None:
        self.calls: list[_DonatingCall] = []
        self._most = 64

    def add(self, call: _DonatingCall) -> None:
        self.calls.append(call)
        if len(self.calls) > self._most:
            self.calls = [c for c in self.calls if any(r() is not None for r in c.arrays)]
            self._most = 64 + 2 * len(self.calls)

    def find(self, x: Any) -> str:
        """The first of them that took an array; '' if none did."""
        for call in self.calls:
            for place, reference in zip(call.places, call.arrays, strict=True):
                if reference() is x:
                    return call.text(place)
        return ""


@dataclass(eq=False)
class _Watch:
    """The calls that took arrays; those that were offered arrays, but may not have taken them; calls by the identity of
    the function and their position in the code; and the seconds that recording may take, at a time."""

    went: _Calls = field(default_factory=_Calls)
    offered: _Calls = field(default_factory=_Calls)
    repeated: dict[Any, _Repeated] = field(default_factory=dict)
    credit: float = 0.0
    at: float = field(default_factory=time.perf_counter)

    def hear(self, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        """Records which arguments of a call that has just returned were deleted."""
        info = compat.donating(f)
        if info is None:
            return
        now = time.perf_counter()
        self.credit = min(_CREDIT, self.credit + _SHARE * (now - self.at))
        self.at = now
        frame = sys._getframe(1)
        if frame.f_code.co_filename == compat.HOOKS_FILE:  # keep a hook that was there before
            frame = frame.f_back or frame
        here = (id(f), frame.f_code, frame.f_lasti)
        repeated = self.repeated.get(here)
        if repeated is not None and repeated.function() is not f:
            repeated = None
        if repeated is not None and repeated.times >= _ALWAYS and self.credit <= 0:
            repeated.is_complete = False
            return
        leaves, call = _donated(f._fun, info, args, kwargs, compat.current_source(), is_deleted)
        if repeated is None:
            types = [jax.typeof(x) for x in leaves]
            if len(self.repeated) > _KEPT:
                self.repeated = {k: r for k, r in self.repeated.items() if r.function() is not None}
            repeated = self.repeated[here] = _Repeated(weakref.ref(f), call, types)
        repeated.times += 1
        self.went.add(call)
        self.credit -= time.perf_counter() - now

    def hear_compiled(self, call: compat.JitCall, at: Location | None) -> None:
        """Records what a call donates; when this runs, the array is deleted. JAX's hook is for calls that need no
        compilation."""
        is_array = lambda x: isinstance(x, jax.Array) and not compat.is_tracer(x)
        _, noted = _donated(call.fun, call.info, call.args, call.kwargs, at, is_array)
        self.offered.add(noted)

    def where(self, x: Any) -> str:
        """`to step as params['w'] at train.py:30`, for a deleted array; '' if unknown."""
        place = self.went.find(x) or self.offered.find(x)
        if place:
            return place
        for repeated in self.repeated.values():
            if not repeated.is_complete and x.aval in repeated.types:
                return f"probably {repeated.first.text(repeated.types.index(x.aval))}"
        return ""

    def tell(self, x: Any) -> str:
        """The end of the error for reading an array."""
        where = self.where(x)
        return f"It was donated {where}. Use what that call returned, or do not donate it." if where else ""


_watch: _Watch | None = None


def _donated(
    fun: Any, info: Any, args: Sequence[Any], kwargs: Mapping[str, Any], source: Any, is_taken: Callable[[Any], bool]
) -> tuple[list[Any], _DonatingCall]:
    """The leaves of the arguments that a call donates, and the call with the deleted ones among them."""
    leaves, tree = jax.tree.flatten(compat.donated_arguments(fun, info, args, kwargs))
    taken = [(i, x) for i, x in enumerate(leaves) if is_taken(x)]
    taken += [(i, compat.key_data(x)) for i, x in taken if type(x) is not compat.ArrayImpl]
    arrays = [weakref.ref(x) for _, x in taken]
    return leaves, _DonatingCall(function_name(fun), tree, source, arrays, [i for i, _ in taken])


def donated_to(x: Any) -> str | None:
    """Says which call a donated array was donated to: `to step as params['w'] at train.py:30`.

    >>> jaxviz.watch_donations()
    >>> new = step(params, grads)  # which donates params
    >>> jaxviz.donated_to(params["w"])

    It returns None for an array that was not donated, or that was donated to an unknown call. Call `watch_donations`
    first.

    Raises:
      RuntimeError: the array is deleted, but donations are not watched.
    """
    if _watch is None and is_deleted(x):
        unknown = "Donations are not watched, so jaxviz does not know where this array went"
        raise RuntimeError(f"{unknown}: call jaxviz.watch_donations() first.")
    return (_watch.where(x) or None) if _watch is not None else None


def watch_donations(on: bool = True) -> None:
    """Makes the error for reading a donated array name the call that it was donated to, from now on.

    >>> jaxviz.watch_donations()
    >>> step(params, batch)  # jax.jit(step, donate_argnums=0)
    >>> params["w"] + 1
    RuntimeError: Array has been deleted with shape=float32[3]. It was donated to step as params['w'] at train.py:30.
    Use what that call returned, or do not donate it.

    A call that donates takes microseconds more; recording its arrays takes at most 0.5 % of the time. If calls that
    donate many arrays follow each other faster than that, the first two at each line are recorded, and then as many as
    there is time for; for an array whose call was not recorded, the error says "probably".

    Before JAX 0.12 an operation that was already compiled for such arrays raises XLA's own error instead ("Buffer has
    been deleted or donated"), which names nothing; call `jaxviz.donated_to(x)` then.

    If the call is not known, JAX's error is unchanged. This happens after `jax_debug_nans` or `jax_debug_infs` was
    switched on or off, since JAX has one hook for both (call `watch_donations` again then), and for a call that JAX
    neither compiled nor ran by its fast path, such as the first one after `jax.jit` was applied to the same function
    again.

    Args:
      on: False ends the watch, drops what was recorded, and restores JAX's array class.
    """
    global _watch
    _watch = (_watch or _Watch()) if on else None
    compat.on_jit_calls(_watch.hear if _watch is not None else None)
    compat.explain_deleted(_watch.tell if _watch is not None else None)
    compilations.hear_calls(_watch.hear_compiled if _watch is not None else None)


def check_not_donated(
    fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], cause: Exception | None = None
) -> None:
    """Raises jax's error for the first deleted argument, with its path, and where it was donated if that is known.

    Raises:
      RuntimeError: see above.
    """
    for path, x in _gone(fun, args, kwargs):
        is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        where = _watch.where(x) if _watch is not None else ""
        unknown = "to a jitted function, or deleted; call jaxviz.watch_donations() beforehand to learn by which call"
        what = f"It was donated {where or unknown}."
        advice = "Split a key before you donate it." if is_key else "Use what that call returned, or do not donate it."
        raise RuntimeError(
            f"{'Random key' if is_key else 'Array'} has been deleted with shape={x.aval.str_short()}. It is the "
            f"argument {path or '(unnamed)'} of {function_name(fun)}. {what} {advice}"
        ) from cause


def is_deleted(x: Any) -> bool:
    """Whether a value is an array that was donated or deleted."""
    return (type(x) is compat.ArrayImpl or (isinstance(x, jax.Array) and not compat.is_tracer(x))) and x.is_deleted()


def _gone(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """The deleted arguments, each with its path, '' if it has none."""
    leaves = jax.tree.leaves((args, kwargs))
    deleted = [is_deleted(x) for x in leaves]
    if not any(deleted):
        return []
    names = compat.function_debug_info(fun, args, kwargs).arg_names or ()
    paths = names if len(names) == len(leaves) else [""] * len(leaves)
    return [(path, x) for path, x, is_gone in zip(paths, leaves, deleted, strict=True) if is_gone]


@contextmanager
def calls_heard(heard: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]) -> Iterator[None]:
    """Calls a function after each call of a jitted one that JAX need not compile, within the context; see
    `compat.on_jit_calls`."""
    compat.on_jit_calls(heard)
    try:
        yield
    finally:
        compat.on_jit_calls(_watch.hear if _watch is not None else None)
