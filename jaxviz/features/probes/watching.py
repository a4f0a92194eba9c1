"""`watch`: the records of probes while a program runs, as series by name."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import numpy as np

from jaxviz.displays import display
from jaxviz.features.probes import probes
from jaxviz.features.probes.probe_lines import watched_address, with_probes
from jaxviz.features.probes.probes import STATISTICS, ProbedValue, Spec, What
from jaxviz.features.probes.series import Series, statistics_of
from jaxviz.ir import compat
from jaxviz.ir.syntax import Program
from jaxviz.ir.trace import trace_call
from jaxviz.report.needs import needs
from jaxviz.report.tables import format_bytes, html_table, printable, text_table
from jaxviz.runtime.evaluate import evaluate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

T = TypeVar("T")

KEEP = 2000
"""The number of records that a series keeps by default."""

_owners = itertools.count(1)


@dataclass(frozen=True, slots=True)
class WatchCost:
    """The cost of watching in Python; the cost of the summaries on the device is not measured.

    Args:
      reports: the number of records that have arrived.
      seconds: the time spent in callbacks, during which the program waits.
      nbytes: the bytes transferred from the device.
    """

    reports: int
    seconds: float
    nbytes: int

    def __str__(self) -> str:
        each = f", {self.seconds / self.reports * 1e6:,.0f} µs each" if self.reports else ""
        return (
            f"{self.reports:,} reports took {self.seconds * 1e3:,.1f} ms in Python{each}, and moved "
            f"{format_bytes(self.nbytes)}"
        )

    __repr__ = __str__


class Watch:
    """Collects the records of probes. Made by `watch`.

    >>> with jaxviz.watch("loss", "layer1.*") as w:
    ...     for batch in w.steps(batches):
    ...         params = train_step(params, batch)
    >>> w["loss"].mean

    It is a mapping with a `Series` for each name, and can be read while the program runs. A notebook shows it as a plot
    that follows the program; see `live`.
    """

    def __init__(self, names: Sequence[str], what: What, every: int, keep: int, cotangents: bool, owner: int = 0):
        self.spec = Spec(tuple(names), what, cotangents, owner)
        self.every, self.keep = every, keep
        self.errors: list[Exception] = []
        """Errors in collecting records; they do not affect the watched program."""
        self.is_open = False
        self._is_listening = False
        self._step: int | None = None
        self._series: dict[str, Series] = {}
        self._lock = threading.RLock()
        self._reports = self._nbytes = 0
        self._seconds = 0.0
        self._listens: list[Callable[[bool], None]] = []

    # as a context

    def __enter__(self) -> Watch:
        if self.is_open:
            raise RuntimeError("this Watch is already active; make a second one for the nested block")
        self.is_open = True
        self._listen(True)
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if error is None:
                jax.effects_barrier()
            elif isinstance(error, Exception):
                with contextlib.suppress(Exception):  # the pending error is the one to report
                    jax.effects_barrier()
        finally:
            self._listen(False)
            self.is_open = False
            self._notify(is_over=True)

    def step(self, number: int | None = None) -> int:
        """Begins the next step, or the one with this number, to which records now belong, and returns the number.

        It waits for all records under way. If the watch records only every n-th step, the steps in between run the
        program without probes.
        """
        jax.effects_barrier()
        self._step = number if number is not None else 0 if self._step is None else self._step + 1
        if self.is_open:
            self._listen(self._step % self.every == 0)
        return self._step

    def _listen(self, listens: bool) -> None:
        if listens != self._is_listening:
            self._is_listening = listens
            (probes.begin if listens else probes.end)(self)

    def steps(self, items: Iterable[T]) -> Iterator[T]:
        """Yields the items, and begins a step before each: `for batch in w.steps(batches): ...`."""
        for item in items:
            self.step()
            yield item

    # as a receiver of reports

    def receive(self, report: ProbedValue) -> None:
        """Called by the threads that run the program; see `probes.Receiver`."""
        began = time.perf_counter()
        with self._lock:
            series = self._of(report.site.name)
            of_kind = series if report.site.kind == "value" else series.cotangents
            of_kind._add(report, report.step if report.step is not None else self._step)
            self._reports += 1
            self._nbytes += report.values.nbytes
            self._seconds += report.seconds + time.perf_counter() - began
        self._notify()

    def fail(self, error: Exception) -> None:
        if len(self.errors) < 10:
            self.errors.append(error)

    def _of(self, name: str) -> Series:
        if name not in self._series:
            series = Series(name, "value", self.spec.what, self.every, self.keep)
            series._cotangents = Series(name, "cotangent", self.spec.what, self.every, self.keep)
            self._series[name] = series
        return self._series[name]

    def _notify(self, is_over: bool = False) -> None:
        for listen in self._listens:
            listen(is_over)

    # as a report

    @property
    def names(self) -> tuple[str, ...]:
        """The names that have records, sorted with layer2 before layer10."""
        by_number = lambda name: [(len(n), n) if n.isdigit() else (0, n) for n in re.split(r"(\d+)", name)]
        return tuple(sorted(self._series, key=by_number))

    def __getitem__(self, name: str) -> Series:
        try:
            return self._series[name]
        except KeyError:
            none = "none yet; a function that is compiled ahead of time, or has no such probe, records nothing"
            recorded = ", ".join(self.names) or none
            raise KeyError(f"no values recorded for {name!r}; recorded: {recorded}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self._series)

    def __contains__(self, name: object) -> bool:
        return name in self._series

    @property
    def cost(self) -> WatchCost:
        """The time that watching has taken so far, as far as it can be measured from within."""
        return WatchCost(self._reports, self._seconds, self._nbytes)

    def lines(self) -> list[Series]:
        """All series with records, values first."""
        with self._lock:
            both = [s for name in self.names for s in (self._series[name], self._series[name].cotangents)]
        return [s for s in both if s.count]

    def to_dict(self) -> dict[str, Any]:
        """NumPy arrays by name and kind, and the cost."""
        series: dict[str, Any] = {}
        for s in self.lines():
            series.setdefault(s.name, {})[s.kind] = s.to_dict()
        return {"series": series, "cost": asdict(self.cost)}

    def plot(self, ax: Axes | None = None, log: bool = False) -> Figure:
        """Plots numbers, and the norms of arrays, over the steps; cotangents are dashed.

        Args:
          ax: the matplotlib axes to draw in; by default those of a new figure.
          log: whether the value axis is logarithmic.
        """
        with needs("A figure", "matplotlib"):
            from jaxviz.features.probes.plot import plot_series

        return plot_series(self.lines(), ax, log)

    def live(self) -> Any:
        """A widget that plots the records as the program runs, even in its own cell, and stays in the saved notebook.

        A notebook shows this widget for the watch: call `display(w)` before the training begins.
        """
        return display("plot of a watch")(self)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        shown = self.live()._repr_mimebundle_(**kwargs)
        if shown is not None:
            (shown[0] if isinstance(shown, tuple) else shown)["text/plain"] = str(self)
        return shown

    def listen(self, listener: Callable[[bool], None]) -> None:
        """Calls a function, quick and without errors, after each record in its thread, and with True at the end."""
        self._listens.append(listener)

    def _rows(self) -> list[tuple[str, ...]]:
        rows = []
        for s in self.lines():
            if s.last is None:
                continue
            last = {n: np.asarray(v) for n, v in statistics_of(s.last, s.what).items()}
            steps = s.steps
            span = f"{steps[0]:,}–{steps[-1]:,}" if len(steps) > 1 else str(s.last.step)
            numbers = (f"{float(np.mean(last[n])):.4g}" for n in STATISTICS[:4])
            bad = (f"{int(last[n].sum()):,}" for n in STATISTICS[4:])
            rows.append((printable(s.name, 60), s.kind, f"{s.count:,}", span, *numbers, *bad))
        return rows

    def __str__(self) -> str:
        rows = self._rows()
        if not rows:
            return f"no values recorded for {', '.join(self.spec.names) or 'its lines'} yet"
        return "\n".join([text_table(_HEADS, rows, _ALIGN), "", *self._notes()])

    def _notes(self) -> list[str]:
        errors = [f"{len(self.errors)} records could not be collected: {self.errors[0]}"] if self.errors else []
        return [f"{self.cost}.", *errors]

    def __repr__(self) -> str:
        return f"Watch({', '.join(map(repr, self.spec.names))}: {len(self)} recorded, {self._reports:,} reports)"

    def _repr_html_(self) -> str:
        table = html_table("Recorded values, the latest of each", _HEADS, self._rows(), [a == ">" for a in _ALIGN])
        return table + "".join(f"<p>{printable(note)}</p>" for note in self._notes())


class WatchedFunction(Watch):
    """A watched function with its records. Made by `watch(f, ...)`; it replaces `f`, also under jax's transforms.

    It is traced as with `jax.jit`: once for each combination of argument types. Each call is a step, and records in a
    scan or a while loop have the iterations in their `index`. In a compiled program, as under `jax.jit`, it cannot see
    calls; steps are then those marked by `step`, or else records are counted.
    """

    def __init__(self, fun: Callable[..., Any], lines: Sequence[Any], **options: Any):
        super().__init__(**options, owner=next(_owners))
        functools.update_wrapper(self, fun)
        self._fun = fun
        self._lines = tuple(map(watched_address, lines))
        self._calls = itertools.count()
        self._programs: dict[Any, tuple[Program, Any]] = {}
        probes.own(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        is_staged = compat.is_staged()
        call = -1 if is_staged else self._step if self._step is not None else next(self._calls)
        if call >= 0 and call % self.every:
            return self._fun(*args, **kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs))
        program, out_tree = self._program(args, kwargs, leaves, tree)
        outs = evaluate(program, [*leaves, np.array([call], np.int32)])
        return jax.tree.unflatten(out_tree, outs)

    def _program(self, args: Any, kwargs: Any, leaves: Sequence[Any], tree: Any) -> tuple[Program, Any]:
        try:
            key = tree, tuple(compat.aval_of(compat.canonicalize(x)) for x in leaves), probes.active_specs()
            if key in self._programs:
                return self._programs[key]
        except TypeError:  # an argument is not an array: tracing reports which
            key = None
        with probes.tracing_for(self.spec):
            traced = trace_call(self._fun, args, kwargs)
        entry = with_probes(traced.program, self._lines, self.spec), traced.out_tree
        if key is not None and not traced.program.is_path:  # a recorded path is valid only for these values
            self._programs[key] = entry
        return entry

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)


_HEADS = ("name", "of", "records", "steps", "norm", "mean", "min", "max", "NaNs", "infs")
_ALIGN = "<<>>>>>>>>"


def watch(
    *names: Any,
    lines: Sequence[str | int] = (),
    what: What = "summary",
    every: int = 1,
    keep: int = KEEP,
    cotangents: bool = True,
) -> Any:
    """Records values, or summaries of them, and cotangents while a program runs: those of probes or of a line.

    >>> with jaxviz.watch("loss", "layer1.*") as w:
    ...     for batch in w.steps(batches):
    ...         params = train_step(params, batch)
    >>> w["loss"].mean, w["layer1.h"].norm, w["layer1.h"].cotangents.max
    >>> w.plot()

    Within the `with` block, jitted functions are traced once more, with the watched probes in them. Watches that ask
    for the same share the compiled programs, so entering one again costs nothing.

    If the first argument is a function, `watch` returns a function to use in its place; its source needs no probes:

    >>> loss = jaxviz.watch(loss, lines=["model.py:41"])
    >>> step = jax.jit(jax.value_and_grad(loss))
    >>> loss["model.py:41"].cotangents.norm

    Args:
      *names: names of probes, or patterns such as 'layer?.*'; by default all. A function to watch comes first.
      lines: with a function, what to watch in it: lines of source, such as 'model.py:41', or 41 for a line of its own
        file, of which each value is recorded that another line reads or that is a result; or any address, see `at`.
      what: 'summary' (norm, mean, min, max, and the number of NaNs and infinities, computed on the device) or 'value'.
      every: record every n-th step, see `Watch.step`; if no steps are marked, every n-th record.
      keep: how many records a series keeps.
      cotangents: whether to record cotangents too, where the program is differentiated.

    Returns:
      a `Watch`, which records within a `with` block; for a function a `WatchedFunction`, which always records.

    Raises:
      ValueError, TypeError: an argument is invalid; raised by the function's call if a line computes nothing.
    """
    fun = names[0] if names and callable(names[0]) else None
    names = names[fun is not None :]
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"watch takes the names of probes, as str; got {type(name).__name__}")
    if what not in ("summary", "value"):
        raise ValueError(f"what={what!r}; it must be 'summary' or 'value'")
    if every < 1 or keep < 2:
        raise ValueError(f"every={every}, keep={keep}; `every` must be at least 1, and `keep` at least 2")
    if fun is None and lines:
        raise ValueError(
            f"lines={list(lines)} need a function: write watch(f, lines=...), and call the function that it returns"
        )
    options: dict[str, Any] = {"what": what, "every": every, "keep": keep, "cotangents": cotangents}
    if fun is None:
        return Watch(names or ("*",), **options)
    return WatchedFunction(
        fun, [lines] if isinstance(lines, str) else lines, names=names or (() if lines else ("*",)), **options
    )
