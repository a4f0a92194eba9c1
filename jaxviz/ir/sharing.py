"""Shared caches: equal parts are built once, and a user's data is never kept alive.

Parts are the same if nothing can distinguish them. Python's `==` is not enough: `1 == 1.0 == True == np.int32(1)` and
`0.0 == -0.0`, and an attribute of a third-party function, or a param of a user's primitive, may treat each of them
differently. So keys are created by `exact`.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import jax
import numpy as np

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_AS_THEY_ARE = frozenset((int, str, bytes, type(None)))
"""Types whose values are their own keys; values of other types that may equal one of them have their type in the
key."""


_BOOL = {bool}

_ALONE = (bool, enum.Enum, np.dtype)
"""Types whose values are compared as they are, together with their type."""


def exact(x: Any) -> Hashable:
    """A key that is equal only for values of equal type, also within tuples, mappings and dataclasses.

    >>> exact(1) == exact(1.0), exact((0.0, 1)) == exact((-0.0, 1))
    (False, False)

    For unhashable values the key is unhashable too.
    """
    kind: Any = type(x)
    if kind in _AS_THEY_ARE:
        return x  # type: ignore[no-any-return]
    if kind is tuple:
        kinds = set(map(type, x))
        if kinds <= _AS_THEY_ARE:
            return x  # type: ignore[no-any-return]
        if kinds == _BOOL:
            return bool, x
    if kind.__hash__ is object.__hash__ or isinstance(x, _ALONE):  # programs and functions are compared by identity
        return kind, x
    if isinstance(x, tuple):
        return kind, *map(exact, x)
    if isinstance(x, float):
        return kind, x.hex()
    if isinstance(x, complex):
        return kind, x.real.hex(), x.imag.hex()
    if isinstance(x, np.generic):
        return kind, x.dtype, x.tobytes()
    if isinstance(x, frozenset):
        return kind, frozenset(map(exact, x))
    if isinstance(x, Mapping) and kind.__hash__ is not None:
        return kind, frozenset([(exact(k), exact(v)) for k, v in x.items()])
    if dataclasses.is_dataclass(kind):
        return kind, x, *[exact(getattr(x, f.name)) for f in dataclasses.fields(kind) if f.compare]
    return kind, x


def exact_params(params: Mapping[str, Any]) -> tuple[Hashable, ...]:
    """The same for an operation's params, in their order."""
    if not params:
        return ()
    return *params, *[x if type(x) in _AS_THEY_ARE else exact(x) for x in params.values()]


_DATA = (
    int, float, complex, str, bytes, type(None), enum.Enum, np.generic, np.dtype,
    jax.sharding.Sharding, jax.sharding.PartitionSpec, jax.sharding.Mesh, jax.sharding.AbstractMesh,
)  # fmt: skip


def is_data(x: Any) -> bool:
    """Whether a param is a number, a name, a type or a layout, or consists of these, and so contains no function or
    array of a user's."""
    if isinstance(x, _DATA):
        return True
    if isinstance(x, (tuple, frozenset)):
        return all(map(is_data, x))
    if isinstance(x, Mapping):
        return all(map(is_data, x.values()))
    if dataclasses.is_dataclass(x) and not callable(x) and type(x).__hash__ is not object.__hash__:
        return all(is_data(getattr(x, f.name)) for f in dataclasses.fields(x))
    return False


_clear: list[Callable[[], None]] = []


class SharedTable(Generic[T]):
    """A cache of objects by the parts from which they were built.

    Key: created by `exact`, from everything that the object depends on. Look-up order: strongly held objects; then
    weakly held ones, which
      exist as long as somebody else refers to them. On a miss, None.

    Args:
      size: an object is certainly kept until this many others have been used since its last use; after twice as many it
        is dropped.
    """

    def __init__(self, size: int):
        self.size = size
        self._recent: dict[Any, T] = {}
        self._earlier: dict[Any, T] = {}
        self._weak: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
        _clear.append(self.clear)

    def get(self, key: Any) -> T | None:
        """The object for a key.

        Raises:
          TypeError: the key is not hashable.
        """
        value = self._recent.get(key)
        if value is None:
            if self._earlier and (value := self._earlier.get(key)) is not None:
                self.keep(key, value)
            elif self._weak:
                value = self._weak.get(key)
        return value

    def keep(self, key: Any, value: T, weakly: bool = False) -> T:
        """Stores an object, with `weakly` only by a weak reference; and returns it."""
        if weakly:
            self._weak[key] = value
            return value
        if len(self._recent) >= self.size:  # two generations, so that a hit costs no more than a lookup
            self._recent, self._earlier = {}, self._recent
        self._recent[key] = value
        return value

    def values(self) -> Iterator[T]:
        """The strongly held objects."""
        return iter({**self._earlier, **self._recent}.values())

    def __len__(self) -> int:
        return len({**self._earlier, **self._recent})

    def clear(self) -> None:
        """Drops everything; objects that others refer to stay alive."""
        self._recent, self._earlier = {}, {}
        self._weak.clear()


def cleared(cached: F) -> F:
    """Makes `clear_shared` also clear the `lru_cache` of a function: for arguments that `==` compares correctly, such
    as types."""
    _clear.append(cached.cache_clear)  # type: ignore[attr-defined]
    return cached


def on_clearing(clear: Callable[[], None]) -> None:
    """Makes `clear_shared` also call a function, which clears a table of another kind."""
    _clear.append(clear)


def clear_shared() -> None:
    """Clears all shared caches."""
    for clear in _clear:
        clear()


def kept_with(find: Callable[[Any], T]) -> Callable[[Any], T]:
    """A function of one object that runs once for each. What it finds is kept in the object, and is freed with it,
    although it may refer to it; in a weak dictionary it would keep its key alive."""

    @functools.wraps(find)
    def found(of: Any) -> T:
        known: dict[Any, T] = vars(of).setdefault("_found", {})
        if find not in known:
            known[find] = find(of)
        return known[find]

    return found
