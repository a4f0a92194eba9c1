"""The plot of a watch, which follows a training run in the kernel.

The cell that trains keeps the kernel busy, but messages from the kernel still get through: the plot has a thread that
sends new records, at most ten times a second, and ends when none have come for some time. All that is drawn is in one
trait, so it is saved with the notebook.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import traitlets

from jaxviz.features.probes.messages import LiveLine, Shown
from jaxviz.features.probes.series import Series
from jaxviz.features.probes.watching import Watch
from jaxviz.page.bundle import MISSING_BUNDLE, OneWay
from jaxviz.report.tables import printable

_SCRIPT = Path(__file__).parents[2] / "static" / "live.js"
_BETWEEN = 0.1
_IDLE = 2.0
"""Seconds without a report after which the sending thread ends; the next report starts another."""

MOST_LINES = 16
MOST_POINTS = 400


class LivePlot(OneWay, anywidget.AnyWidget):  # type: ignore[misc]
    """Shows the series of a watch as lines, with their last values as text. Made by `Watch.live`.

    Traits:
      shown: what is drawn, as JSON; see `messages.Shown`.
    """

    shown = traitlets.Unicode("").tag(sync=True)
    _shows = traitlets.Unicode("live").tag(sync=True)  # by which a page knows what to save with the notebook

    def __init__(self, watch: Watch):
        try:
            self._esm = _SCRIPT.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise FileNotFoundError(MISSING_BUNDLE) from None
        self._watch = watch
        self._has_news = threading.Event()
        self._sender: threading.Thread | None = None
        self._lock, self._sends = threading.Lock(), threading.Lock()
        super().__init__(shown=shown_of(watch))
        reference = weakref.ref(self)

        def listen(is_over: bool) -> None:
            plot = reference()
            if plot is not None:
                (plot.update if is_over else plot.notify)()

        watch.listen(listen)

    def notify(self) -> None:
        """Requests that new records be sent soon. Called by any thread."""
        self._has_news.set()
        if self._sender is None:
            with self._lock:
                if self._sender is None:
                    self._sender = threading.Thread(target=_send, args=(weakref.ref(self),), daemon=True)
                    self._sender.start()

    def update(self) -> None:
        """Sends the current records."""
        with self._sends:
            self._has_news.clear()
            self.shown = shown_of(self._watch)


def _send(reference: Any) -> None:
    """Sends updates to a plot as long as there are any, and as long as it exists."""
    quiet = time.monotonic() + _IDLE
    while True:
        plot = reference()
        if plot is None:
            return
        if plot._has_news.is_set():
            # When the kernel shuts down, its connection is already closed.
            with contextlib.suppress(Exception):
                plot.update()
            quiet = time.monotonic() + _IDLE
        elif time.monotonic() > quiet:
            with plot._lock:
                if not plot._has_news.is_set():
                    plot._sender = None
                    return
        del plot
        time.sleep(_BETWEEN)


def shown_of(watch: Watch) -> str:
    """What the plot of a watch draws, as JSON."""
    series = watch.lines()
    shown: Shown = {
        "lines": [_line(s) for s in series[:MOST_LINES]],
        "more": max(0, len(series) - MOST_LINES),
        "note": " ".join(printable(note, 300) for note in watch._notes()) if series else "",
        "isRunning": watch.is_open or watch.spec.owner != 0,
    }
    return json.dumps(shown)


def _line(series: Series) -> LiveLine:
    xs, ys, drawn = series.line()
    keep = thinned(ys, MOST_POINTS)
    return {
        "name": printable(series.name, 60),
        "kind": series.kind,
        "drawn": drawn,
        "x": [round(float(x), 4) for x in xs[keep]],
        "y": [float(f"{y:.6g}") if math.isfinite(y) else None for y in ys[keep]],
        "count": series.count,
        "last": f"{ys[-1]:.4g} at step {int(xs[-1]):,}" if len(ys) else "",
    }


def thinned(ys: np.ndarray[Any, Any], most: int) -> np.ndarray[Any, Any]:
    """At most `most` points to draw: of each interval the minimum and the maximum, or the first non-finite one."""
    if len(ys) <= most:
        return np.arange(len(ys))
    keep = {0, len(ys) - 1}
    for stretch in np.array_split(np.arange(len(ys)), max(1, most // 2 - 1)):
        part = ys[stretch]
        bad = stretch[~np.isfinite(part)]
        keep |= {int(bad[0])} if len(bad) else {int(stretch[part.argmin()]), int(stretch[part.argmax()])}
    return np.array(sorted(keep))
