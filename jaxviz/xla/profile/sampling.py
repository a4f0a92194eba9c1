"""Samples Python's stack every millisecond from another thread, for a flame graph and shares of the time.

A thread that looks at `sys._current_frames` slows the program by less than a run differs from the next; `cProfile`,
which hears of each call, takes as long again in tracing, and knows no lines.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType

from jaxviz.ir.collector import collector_paused

_SWITCH = 5e-4

Stack = tuple[tuple[CodeType, int], ...]
"""Code and line of each frame, outermost first, inside the function that is profiled."""


@dataclass
class Samples:
    """Stacks, each with the seconds until the next; and the total wall time."""

    stacks: list[tuple[Stack, float]] = field(default_factory=list)
    seconds: float = 0.0


@contextmanager
def sampled(interval: float = 1e-3) -> Iterator[Samples]:
    """Samples this thread's Python frames from another thread, while the context is active.

    Python exposes a frame only between two of its operations, so a long call of C is seen once, with its time.

    Args:
      interval: seconds between two samples; no less than the operating system allows.
    """
    samples, done = Samples(), threading.Event()
    here, outer = threading.get_ident(), sys._getframe(2)

    def look() -> None:
        last = time.perf_counter()
        while not done.wait(interval):
            # Before 3.12, Python may collect garbage while it creates a frame object and switch to the other thread,
            # whose frame is then gone.
            with collector_paused():
                stack = _stack(sys._current_frames().get(here), outer)
            now = time.perf_counter()
            samples.stacks.append((stack, now - last))
            last = now

    thread, switch = threading.Thread(target=look, daemon=True), sys.getswitchinterval()
    sys.setswitchinterval(min(switch, _SWITCH))
    thread.start()
    started = time.perf_counter()
    try:
        yield samples
    finally:
        samples.seconds = time.perf_counter() - started
        done.set()
        thread.join()
        sys.setswitchinterval(switch)


def _stack(frame: object, outer: object) -> Stack:
    frames: list[tuple[CodeType, int]] = []
    while frame is not None and frame is not outer:
        frames.append((frame.f_code, frame.f_lineno or 0))  # type: ignore[attr-defined]
        frame = frame.f_back  # type: ignore[attr-defined]
    return tuple(reversed(frames))
