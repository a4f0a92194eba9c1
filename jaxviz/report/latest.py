"""What the latest reports were made of, so that one can go on from them."""

import weakref
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """Keeps the last few of something. A notebook keeps every report that it has shown, and with it all its arrays.

    Args:
      n: how many.
    """

    def __init__(self, n: int):
        self._kept: deque[T] = deque(maxlen=n)

    def keep(self, one: T) -> weakref.ref[T]:
        """A reference to it, which is alive as long as it is one of the latest."""
        self._kept.append(one)
        return weakref.ref(one)
