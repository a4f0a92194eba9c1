"""Steps of a run, as far as it marks them with `jax.profiler.StepTraceAnnotation`, as for JAX's profiler."""

from __future__ import annotations

import itertools
import statistics
import time
from collections import deque
from typing import Any

import jax

from jaxviz.runs.facts import MarkedSteps

_LAST = 1000


class StepMarks:
    """Notes when each marked step begins; a microsecond a step."""

    def __init__(self) -> None:
        self.began = deque[float](maxlen=_LAST + 1)
        self.count = 0
        self.first: float | None = None

    def start(self) -> None:
        kind: Any = jax.profiler.StepTraceAnnotation
        init = kind.__init__

        def noted(annotation: Any, name: str, **about: Any) -> None:
            self.note()
            init(annotation, name, **about)

        noted.__wrapped__ = init  # type: ignore[attr-defined]
        kind.__init__ = noted
        self.kind, self.noted, self.init = kind, noted, init

    def stop(self) -> None:
        if self.kind.__init__ is self.noted:
            self.kind.__init__ = self.init

    def note(self) -> None:
        now = time.perf_counter()
        if self.count == 1:
            self.first = now - self.began[0]
        self.count += 1
        self.began.append(now)

    @property
    def seen(self) -> MarkedSteps | None:
        """What was marked so far; None if nothing was."""
        if not self.count:
            return None
        times = list(self.began)
        between = [b - a for a, b in itertools.pairwise(times)]
        later = between[1:] if self.count <= _LAST else between
        return MarkedSteps(self.count, self.first, statistics.median(later) if later else None)
