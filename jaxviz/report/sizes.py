"""Reads sizes such as '512MiB'."""

from __future__ import annotations

import math
import re
from typing import Any

FORMS = "a number of bytes, or a size such as '512MiB' or '1.5GB'"
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(e[+-]?\d+)?\s*([kmgt]i?b|b)?", re.IGNORECASE)
_UNITS = {
    "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4, "kib": 2**10, "mib": 2**20, "gib": 2**30,
    "tib": 2**40,
}  # fmt: skip


def read_size(size: Any, what: str = "a size", forms: str = FORMS) -> float:
    """Reads a size in bytes.

    >>> read_size("1.5GB"), read_size("512 MiB")
    (1500000000.0, 536870912.0)

    Args:
      size: a number, or text such as '512MiB' (of 1024 by 1024 bytes) or '512MB' (of a thousand thousand).
      what: how an error names it.
      forms: the accepted forms, for an error.

    Raises:
      ValueError: text in another form, or a negative number.
      TypeError: neither a number nor text.
    """
    if isinstance(size, str):
        match = _SIZE.fullmatch(size.strip())
        if match is None:
            raise ValueError(f"{what} must be {forms}{at_least_zero(size)}; got {size!r}")
        digits, exponent, unit = match.groups()
        number = float(digits + (exponent or "")) * _UNITS[(unit or "b").lower()]
        if number == math.inf:
            raise ValueError(f"{what} must be {forms}; {size!r} is too large")
        return number
    if isinstance(size, bool) or not hasattr(size, "__float__") or getattr(size, "shape", ()) != ():
        raise TypeError(f"{what} must be {forms}; got {type(size).__name__}")
    try:
        number = float(size)
    except OverflowError:
        number = math.inf
    if not 0 <= number < math.inf:
        raise ValueError(f"{what} must be {forms}, and at least 0; got {number:g}")
    return number


def at_least_zero(text: str) -> str:
    """What an error adds if a size has a minus sign."""
    return ", and at least 0" if text.strip().startswith("-") else ""
