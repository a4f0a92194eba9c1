"""Values computed from arrays, once per array."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import jax

T = TypeVar("T")


class PerArray(Generic[T]):
    """A function of values that is called once per array, and whose result is kept as long as the array exists.

    Args:
      function: the function.
    """

    def __init__(self, function: Callable[[Any], T]):
        self._function = function
        self._by_id: dict[int, tuple[weakref.ref[Any], T]] = {}

    def __call__(self, value: Any) -> T:
        if not isinstance(value, jax.Array):
            return self._function(value)
        key = id(value)
        known = self._by_id.get(key)
        if known is not None and known[0]() is value:
            return known[1]
        computed = self._function(value)
        self._by_id[key] = weakref.ref(value, lambda _: self._by_id.pop(key, None)), computed
        return computed
