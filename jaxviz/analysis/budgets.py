"""Reads budgets: sizes such as '512MiB', shares, and the free memory of the default device."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from jaxviz.analysis.devices import default_device
from jaxviz.report.sizes import at_least_zero, read_size

_AMOUNTS = "a size such as '512MiB' or '1.5GB', a share such as 0.5 or '50%'"
_PERCENT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*%")
_SHOWN = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def read_amount(amount: Any, total: int, what: str, forms: str = _AMOUNTS) -> int:
    """Reads bytes: a size, or a share, which is a number up to 1.0 or a text such as '50%'.

    >>> read_amount("50%", 1000, "a budget"), read_amount(0.5, 1000, "a budget"), read_amount("2 kB", 1000, "a budget")
    (500, 500, 2000)

    Args:
      amount: what was given.
      total: the bytes of which a share is taken.
      what, forms: as for `read_size`.

    Raises:
      ValueError, TypeError: as `read_size`.
    """
    if isinstance(amount, str) and (percent := _PERCENT.fullmatch(amount.strip())):
        return int(float(percent[1]) * total / 100)
    number = read_size(amount, what, forms)
    is_share = number <= 1.0 and not (isinstance(amount, str) and amount.strip()[-1:] in "bB")
    return int(number * total if is_share else number)


def read_budget(budget: Any, all_nbytes: int, what: str = "a budget") -> int:
    """Reads the bytes that residuals may take: a size, or a share of what they take without a plan.

    Args:
      budget: what was given.
      all_nbytes: the bytes that they take without a plan.
      what: as for `read_size`.

    Raises:
      ValueError: text in another form.
      TypeError: neither a number nor text.
    """
    return read_amount(budget, all_nbytes, what, _AMOUNTS)


def read_share(share: Any, what: str) -> float:
    """Reads a share: a number such as 0.1, or text such as '10%', which may exceed 100 %.

    Raises:
      ValueError: text that is not a share, a negative number, or one above 1, which may be meant as percent.
      TypeError: neither a number nor text.
    """
    forms = "a share, such as 0.1 or '10%'"
    if isinstance(share, str):
        if percent := _PERCENT.fullmatch(share.strip()):
            return float(percent[1]) / 100
        if share.strip()[-1:] in "bB":
            raise ValueError(f"{what} must be {forms}{at_least_zero(share)}; got {share!r}")
    number = read_size(share, what, forms)
    if number > 1:
        raise ValueError(f"{what} must be {forms}; got {number:g}: write '{number:g}%' or {number / 100:g}")
    return number


def least_size(least: int, below: int) -> str:
    """`17.2 KiB`: a short size to type, the smallest that is at least some bytes."""
    sizes = (f"{math.ceil(least / unit * 10) / 10:g} {name}" for name, unit in _SHOWN if least >= unit)
    return next((s for s in sizes if least <= read_size(s) < below), f"{least} B")


def least_budget(least: int, total: int, argument: str = "budget") -> str:
    """What to type for a budget of at least some bytes: `budget="1.7 KiB" or budget=0.53`."""
    ways = [f'"{least_size(least, total)}"']
    percent = math.ceil(100 * least / total)
    share = next(n / 100 for n in (percent, percent + 1) if int(n / 100 * total) >= least)
    if share < 1:
        ways.append(f"{share:g}")
    return " or ".join(f"{argument}={way}" for way in ways)


def free_memory(arguments: Sequence[Any]) -> int:
    """The bytes that a program may take on the default device: what is free, and what its arguments already take.

    On a CPU this is the free memory of the machine, or what its control group allows the process.

    Args:
      arguments: arguments of the program that are already on the device.

    Raises:
      ValueError: the device does not report its memory.
    """
    device = default_device()
    stats = device.memory_stats()
    if stats is not None and "bytes_limit" in stats:
        free = int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))
    else:
        on_machine = _machine_memory() if device.platform == "cpu" else None
        if on_machine is None:
            raise ValueError(f"the device {device} does not report its memory; give a size, such as memory='16GiB'")
        free = on_machine
    there = {id(x): x for x in arguments if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)}
    taken: int = sum(s.data.nbytes for x in there.values() for s in x.addressable_shards if s.device == device)
    return free + taken


def _machine_memory() -> int | None:
    """The bytes that the process may still allocate; None if the system does not report them."""
    of_group = _left("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current")
    amounts = [n for n in (_available("/proc/meminfo"), of_group) if n is not None]
    if amounts:
        return min(amounts)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _available(path: str) -> int | None:
    try:
        match = re.search(r"^MemAvailable:\s*(\d+) kB", Path(path).read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None


def _left(limit: str, used: str) -> int | None:
    """The remaining bytes of a control group's limit, which is 'max' if there is none."""
    try:
        return max(0, int(Path(limit).read_text()) - int(Path(used).read_text()))
    except (OSError, ValueError):
        return None


def evenly(low: int, high: int, n: int) -> list[int]:
    """Evenly spaced integers from one budget to another, of any size.

    >>> evenly(0, 10, 4)
    [0, 3, 6, 10]
    """
    step = (high - low) / max(n - 1, 1)
    return [*(int(low + i * step) for i in range(n - 1)), high]
