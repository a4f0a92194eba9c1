"""Steps of a run, as far as it marks them with `jax.profiler.StepTraceAnnotation`, as for JAX's profiler."""

from __future__ import annotations

import itertools
import statistics
import time
from collections import Counter, deque
from typing import Any

import jax

from jaxviz.runs.facts import MarkedSteps
from jaxviz.xla.live_memory.report import type_of

_LAST = 1000
_SAMPLED = 8
"""The first step at which live arrays are counted."""


class StepMarks:
    """Notes when each marked step begins; a microsecond a step."""

    def __init__(self) -> None:
        self.began = deque[float](maxlen=_LAST + 1)
        self.count = 0
        self.first: float | None = None
        self._live: list[tuple[int, Counter[str]]] = []

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
        if self.count >= _SAMPLED and self.count & (self.count - 1) == 0:  # 8, 16, 32, …: seldom, since it looks at all
            self._live = [*self._live[-2:], (self.count, Counter(map(type_of, jax.live_arrays())))]
            now = time.perf_counter()
        self.began.append(now)

    @property
    def seen(self) -> MarkedSteps | None:
        """What was marked so far; None if nothing was."""
        if not self.count:
            return None
        times = list(self.began)
        between = [b - a for a, b in itertools.pairwise(times)]
        later = between[1:] if self.count <= _LAST else between
        return MarkedSteps(self.count, self.first, statistics.median(later) if later else None, self._left)

    @property
    def _left(self) -> dict[str, float]:
        """The types of arrays of which there were more at each of the last three samples, by at least one in two
        steps."""
        if len(self._live) < 3:
            return {}
        pairs = list(itertools.pairwise(self._live))
        rates = {t: [(b[t] - a[t]) / (n - m) for (m, a), (n, b) in pairs] for t in self._live[-1][1]}
        return {t: of[-1] for t, of in rates.items() if min(of) >= 0.5}
