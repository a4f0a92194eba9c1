"""Options of public functions: an error names the option, what it takes, and what it got."""

from __future__ import annotations

import operator
from typing import Any


def whole_number(x: Any, name: str, least: int = 0) -> int:
    """An option that counts something.

    Raises:
      TypeError, ValueError: it is no whole number, or too small.
    """
    rule = f"{name} must be a whole number, at least {least}; got {x!r}"
    try:
        number = operator.index(x)
    except TypeError:
        raise TypeError(rule) from None
    if isinstance(x, bool):
        raise TypeError(rule)
    if number < least:
        raise ValueError(rule)
    return number


def flag(x: Any, name: str) -> bool:
    """An option that is on or off: text such as 'no' would be on.

    Raises:
      TypeError: it is neither True nor False.
    """
    if not hasattr(x, "__bool__"):  # numbers, also NumPy's, and None
        raise TypeError(f"{name} must be True or False; got {x!r}")
    return bool(x)
