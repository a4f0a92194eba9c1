"""The device of this process: what it is, its memory, and when it is used by nobody else."""

from __future__ import annotations

import fcntl
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np

MIB = 2**20
GIB = 2**30

LOCK = os.environ.get("JAXVIZ_DEVICE_LOCK", "")
"""A file that the processes of a check share; beside it is a folder with the ids of these processes."""

DEADLINE = float(os.environ.get("JAXVIZ_DEVICE_DEADLINE", "inf"))
"""When this part will be stopped, on the monotonic clock."""


def device() -> jax.Device:
    return jax.devices()[0]


def is_accelerator() -> bool:
    return device().platform != "cpu"


def size(small: Any, full: Any) -> Any:
    """A size for the CPU, or for an accelerator."""
    return full if is_accelerator() else small


def stats() -> dict[str, int]:
    """The device's memory statistics; empty if it reports none."""
    return device().memory_stats() or {}


def peak_nbytes() -> int:
    return stats().get("peak_bytes_in_use", 0)


def nbytes_in_use() -> int:
    return stats().get("bytes_in_use", 0)


def out_of_time(left: float = 10.0) -> bool:
    """Whether a part should say what it has found so far: it will be stopped in as many seconds."""
    return time.monotonic() > DEADLINE - left


def join() -> None:
    """Enters this process among those that share the device; waits while another one measures."""
    if LOCK:
        processes = Path(LOCK + ".processes")
        processes.mkdir(exist_ok=True)
        (processes / str(os.getpid())).touch()
        with open(LOCK, "a") as file:
            fcntl.flock(file, fcntl.LOCK_SH)


@contextmanager
def alone() -> Iterator[None]:
    """A context for measuring: the other processes of the check are paused."""
    if not LOCK:
        yield
        return
    with open(LOCK, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        others = [int(p.name) for p in Path(LOCK + ".processes").iterdir() if p.name != str(os.getpid())]
        try:
            _signal(others, signal.SIGSTOP)
            time.sleep(0.05)  # what they have sent to the device ends
            yield
        finally:
            _signal(others, signal.SIGCONT)


def _signal(processes: list[int], number: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process, number)


def seconds(work: Callable[[], Any], times: int = 5, before: int = 1) -> float:
    """The least time of some work until its results are ready, after it has run `before` times."""
    for _ in range(before):
        jax.block_until_ready(work())
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        jax.block_until_ready(work())
        taken.append(time.perf_counter() - start)
    return min(taken)


def median_seconds(work: Callable[[], Any], times: int = 5) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        jax.block_until_ready(work())
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def values(tree: Any, scale: float = 0.02) -> Any:
    """Arrays on the device for abstract arguments: scattered numbers around zero, and small integers.

    They are made in one kernel each, without temporaries: the peak of the device's memory is measured later.
    """

    def value(s: Any) -> Any:
        n = int(np.prod(s.shape))

        def scattered() -> Any:
            number = jax.lax.iota(np.uint32, n) * np.uint32(2654435761) >> 8
            if np.issubdtype(s.dtype, np.integer):
                return (number % 50).astype(s.dtype).reshape(s.shape)
            return ((number.astype(np.float32) / 2**23 - 1) * (scale * 3**0.5)).astype(s.dtype).reshape(s.shape)

        return jax.jit(scattered)()

    return jax.tree.map(value, tree)


def text_of_bytes(n: float) -> str:
    from jaxviz.report.tables import format_bytes

    return format_bytes(int(n))


def text_of_seconds(s: float) -> str:
    from jaxviz.report.tables import format_seconds

    return format_seconds(s)


def same_bits(a: Any, b: Any) -> bool:
    """Whether two trees of arrays have the same structure, types and bits."""
    of_a, tree_a = jax.tree.flatten(a)
    of_b, tree_b = jax.tree.flatten(b)
    return tree_a == tree_b and all(
        x.dtype == y.dtype and x.shape == y.shape and np.asarray(x).tobytes() == np.asarray(y).tobytes()
        for x, y in zip(of_a, of_b, strict=True)
    )


def distance(a: Any, b: Any) -> float:
    """The largest relative difference between the arrays of two trees, each relative to its norm."""
    found = 0.0
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if not jax.numpy.issubdtype(x.dtype, jax.numpy.inexact):
            continue
        wide = np.complex128 if jax.numpy.issubdtype(x.dtype, jax.numpy.complexfloating) else np.float64
        x, y = np.asarray(x).astype(wide), np.asarray(y).astype(wide)
        norm = float(np.linalg.norm(y)) or 1.0
        found = max(found, float(np.linalg.norm(x - y)) / norm)
    return found
