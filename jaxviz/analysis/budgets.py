"""Budgets as people give them: sizes such as '512MiB', shares, and the memory that the default device has left."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

FASTEST = "fastest that fits"
_FORMS = "a number, or a size such as '512MiB' or '1.5GB'"
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(e[+-]?\d+)?\s*([kmgt]i?b|b)?", re.IGNORECASE)
_UNITS = {
    "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def read_size(size: Any, what: str = "a size") -> float:
    """Bytes, or a share, as a number.

    >>> read_size("1.5GB"), read_size("512 MiB"), read_size(0.5)
    (1500000000.0, 536870912.0, 0.5)

    Args:
      size: a number, or text such as '512MiB' (of 1024 by 1024 bytes) or '512MB' (of a thousand thousand).
      what: how an error names it.

    Raises:
      ValueError: text that is none of these, or a negative number.
      TypeError: neither a number nor text.
    """
    if isinstance(size, str):
        found = _SIZE.fullmatch(size.strip())
        if found is None:
            raise ValueError(f"{what} is {_FORMS}; got {size!r}")
        number, exponent, unit = found.groups()
        return float(number + (exponent or "")) * _UNITS[(unit or "b").lower()]
    if isinstance(size, bool) or not hasattr(size, "__float__") or getattr(size, "shape", ()) != ():
        raise TypeError(f"{what} is {_FORMS}; got {type(size).__name__}")
    number = float(size)
    if not 0 <= number < math.inf:
        raise ValueError(f"{what} is a number from 0 up; got {number:g}")
    return number


def read_budget(budget: Any, all_nbytes: int) -> int:
    """Bytes that residuals may take: of a size, or of a share of what they take without a plan.

    Raises:
      ValueError: text that is neither a size nor `FASTEST`.
    """
    try:
        number = read_size(budget, "a budget")
    except ValueError as error:
        raise ValueError(str(error).replace(_FORMS, f"{_FORMS}, or {FASTEST!r}")) from None
    is_share = number <= 1.0 and not (isinstance(budget, str) and budget.strip()[-1:] in "bB")
    return int(number * all_nbytes if is_share else number)


def free_memory(held: Sequence[Any]) -> int:
    """Bytes that a program may take on the default device: what is free there, and what its own arguments take already.

    On a CPU, which has no memory of its own, that is what the machine has left, or what its control group lets the process have.

    Args:
      held: arrays that the program gets, which are on the device already.

    Raises:
      ValueError: the device does not say how much it has.
    """
    device = _default_device()
    stats = device.memory_stats()
    if stats is not None and "bytes_limit" in stats:
        free = int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))
    else:
        found = _machine_memory() if device.platform == "cpu" else None
        if found is None:
            raise ValueError(
                f"the device {device} does not say how much memory it has; say how much there is, such as memory='16GiB'"
            )
        free = found
    there = {id(x): x for x in held if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)}
    taken: int = sum(s.data.nbytes for x in there.values() for s in x.addressable_shards if s.device == device)
    return free + taken


def _default_device() -> Any:
    given = jax.config.jax_default_device  # type: ignore[attr-defined]
    if given is None or isinstance(given, str):
        return jax.local_devices(backend=given)[0]
    return given


def _machine_memory() -> int | None:
    """Bytes that a process may still take of the machine's memory; None where the system does not tell."""
    found = [
        n
        for n in (_available("/proc/meminfo"), _left("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"))
        if n is not None
    ]
    if found:
        return min(found)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _available(path: str) -> int | None:
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB", Path(path).read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _left(limit: str, used: str) -> int | None:
    """What is left of a control group's limit, which is 'max' where there is none."""
    try:
        return max(0, int(Path(limit).read_text()) - int(Path(used).read_text()))
    except (OSError, ValueError):
        return None


def evenly(low: int, high: int, n: int) -> list[int]:
    """So many budgets from one to another, as evenly as whole numbers go, and however large they are.

    >>> evenly(0, 10, 4)
    [0, 3, 6, 10]
    """
    step = (high - low) / (n - 1)
    return [*(int(low + i * step) for i in range(n - 1)), high]
