"""`watch`: what probes tell while a program runs, as series by name."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import numpy as np

from jaxviz.analysis.tables import format_bytes, html_table, printable, text_table
from jaxviz.ir import compat
from jaxviz.ir.syntax import Program
from jaxviz.runtime import probes
from jaxviz.runtime.evaluate import evaluate
from jaxviz.runtime.probe_lines import parse_line, with_probes
from jaxviz.runtime.probes import STATISTICS, Kind, Report, Spec, What
from jaxviz.trace import trace_call

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]
T = TypeVar("T")

KEEP = 2000
"""How many records a series keeps, unless a watch says otherwise."""

MOST_BYTES = 64 * 2**20
"""How much a series of whole values keeps."""

_owners = itertools.count(1)


@dataclass(frozen=True, eq=False, slots=True)
class Record:
    """One value, as it was told.

    Args:
      step: its step: see `Watch.step`; where none is marked, how many came before it.
      place: the number of the place in the program that told of it, in the order in which places were traced.
      position: how many came before it in the same step from the same place, on the same device.
      index: the integers that the program gave with it, such as iterations of loops, outermost first; None where it gave none.
      device: in a `shard_map`, the number of the device in its mesh.
      axes: how many of the leading dimensions are examples that `vmap` maps over.
      size: how many elements the value has, for one example.
      values: the value, or its statistics as they travel.
    """

    step: int
    place: int
    position: int
    index: tuple[int, ...] | Array | None
    device: int | None
    axes: int
    size: int
    values: Array


class Series:
    """What was told of one name: the values, or else their cotangents. Records stand in the order in which they were told.

    >>> w["hidden"].norm
    array([5.31, 5.29, 5.24], dtype=float32)
    >>> w["hidden"].cotangents.norm
    array([0.12, 0.11, 0.11], dtype=float32)

    Only so many records are kept: when there are too many, every second step of those kept goes. `count` counts all.

    Args:
      name: of the probe.
      kind: 'value' or 'cotangent'.
      what: 'summary' or 'value'.
      every: which steps are asked for.
      keep: how many records at most.
    """

    def __init__(self, name: str, kind: Kind, what: What, every: int, keep: int):
        self.name, self.kind, self.what = name, kind, what
        self.count = 0
        self.last: Record | None = None
        self._every, self._keep = every, keep
        self._stride = self._within = 1
        self._records: list[Record] = []
        self._nbytes = 0
        self._begun: dict[tuple[int, int | None], tuple[int, int]] = {}
        self._cotangents: Series | None = None

    def _add(self, report: Report, step: int | None) -> None:
        number = self.count if step is None else step
        at = report.site.place, report.device
        before, n = self._begun.get(at, (number, 0))
        position = n if before == number else 0
        self._begun[at] = number, position + 1
        self.count += 1
        if step is None and number % self._every:
            return
        index: Any = report.index
        if index is not None:
            index = tuple(map(int, index)) if index.ndim == 1 else index
        self.last = Record(
            number,
            report.site.place,
            position,
            index if report.index is not None and len(report.index) else None,
            report.device,
            report.axes,
            report.size,
            report.values,
        )
        if self._keeps(self.last):
            self._records.append(self.last)
            self._nbytes += self.last.values.nbytes
            while len(self._records) > self._keep or (self._nbytes > MOST_BYTES and len(self._records) > 1):
                self._thin()

    def _keeps(self, record: Record) -> bool:
        return record.step // self._every % self._stride == 0 and record.position % self._within == 0

    def _thin(self) -> None:
        if len({r.step for r in self._records}) > 1:
            self._stride *= 2
        else:  # all of one step, as of a long loop
            self._within *= 2
        self._records = [r for r in self._records if self._keeps(r)]
        self._nbytes = sum(r.values.nbytes for r in self._records)

    @property
    def cotangents(self) -> Series:
        """The cotangents of the same name; empty where nothing was differentiated."""
        if self._cotangents is None:
            raise AttributeError(f"{self!r} is of cotangents itself")
        return self._cotangents

    @property
    def records(self) -> tuple[Record, ...]:
        return tuple(self._records)

    @property
    def steps(self) -> Array:
        return np.array([r.step for r in self.records], int)

    @property
    def positions(self) -> Array:
        """How many records came before it in the same step from the same place: in a scan the iteration, for cotangents from the last one."""
        return np.array([r.position for r in self.records], int)

    @property
    def places(self) -> Array:
        """Which of the places that share the name it is from: 0 for the first that was traced. Which of them XLA runs first is XLA's choice."""
        return np.unique([r.place for r in self.records], return_inverse=True)[1]

    @property
    def index(self) -> Any:
        """The integers that the program gave with each record, as an array where there are equally many; None where it gave none."""
        found = [r.index for r in self.records]
        return _stacked([np.asarray(i) for i in found]) if found and all(i is not None for i in found) else None

    @property
    def devices(self) -> tuple[int | None, ...]:
        return tuple(r.device for r in self.records)

    @property
    def values(self) -> Any:
        """The values, one after the other along the first dimension; a list where their shapes differ.

        Raises:
          AttributeError: only summaries are collected.
        """
        if self.what != "value":
            raise AttributeError(
                f"of {self.name!r} summaries are collected: {', '.join(STATISTICS)}. Watch it with what='value'."
            )
        return _stacked([r.values for r in self.records])

    def statistic(self, name: str) -> Any:
        """One of 'norm', 'mean', 'min', 'max', 'nans' and 'infs' for each record, and along further dimensions for each example."""
        return _stacked([_statistics(r, self.what)[name] for r in self.records])

    @property
    def norm(self) -> Any:
        return self.statistic("norm")

    @property
    def mean(self) -> Any:
        return self.statistic("mean")

    @property
    def min(self) -> Any:
        return self.statistic("min")

    @property
    def max(self) -> Any:
        return self.statistic("max")

    @property
    def nans(self) -> Any:
        return self.statistic("nans")

    @property
    def infs(self) -> Any:
        return self.statistic("infs")

    def line(self) -> tuple[Array, Array, str]:
        """What a plot of it shows: steps, with fractions for several records of a step; what is drawn; and its name.

        A number is drawn as it is, anything larger as its norm; examples are averaged.
        """
        records = sorted(self.records, key=lambda r: (r.step, r.place, r.position, r.device or 0))
        statistic = "mean" if all(r.size == 1 for r in records) else "norm"
        xs: list[float] = []
        for step, group in itertools.groupby(r.step for r in records):
            n = len(list(group))
            xs += [step + i / n for i in range(n)]
        ys = [float(np.mean(_statistics(r, self.what)[statistic])) for r in records]
        return np.array(xs), np.array(ys), "value" if statistic == "mean" else "norm"

    def __len__(self) -> int:
        return len(self._records)

    def to_dict(self) -> dict[str, Any]:
        """NumPy arrays by name, for a data frame or a file: steps, positions, and the statistics or the values."""
        found = {"steps": self.steps, "places": self.places, "positions": self.positions}
        if self.index is not None:
            found["index"] = self.index
        names = STATISTICS if self.what == "summary" else ()
        return {**found, **{n: self.statistic(n) for n in names}, **({"values": self.values} if not names else {})}

    def __repr__(self) -> str:
        return f"Series({printable(self.name, 60)!r}, {self.kind}, {self.count:,} record{'s' * (self.count != 1)})"


def _stacked(arrays: Sequence[Array]) -> Any:
    return np.stack(arrays) if len({a.shape for a in arrays}) == 1 else (np.empty(0) if not arrays else list(arrays))


def _statistics(record: Record, what: What) -> Mapping[str, Array]:
    if what == "summary":
        return probes.statistics(record.values)
    x = np.reshape(record.values, (*record.values.shape[: record.axes], record.size))
    is_inexact = jax.numpy.issubdtype(x.dtype, np.inexact)
    bad = (
        {"nans": np.isnan(x).sum(-1), "infs": np.isinf(x).sum(-1)}
        if is_inexact
        else {n: np.zeros(x.shape[:-1], int) for n in STATISTICS[4:]}
    )
    x = np.abs(x) if np.iscomplexobj(x) else x
    x = x.astype(np.promote_types(np.float32, x.dtype) if x.dtype.kind in "fiub" else np.float32)
    nan = np.full(x.shape[:-1], np.nan)
    ends = (
        {"mean": x.mean(-1), "min": x.min(-1), "max": x.max(-1)}
        if record.size
        else {"mean": nan, "min": nan, "max": nan}
    )
    return {"norm": np.sqrt((x * x).sum(-1)), **ends, **bad}


@dataclass(frozen=True, slots=True)
class WatchCost:
    """What watching has taken in Python; on the device the summaries come to it, which this does not measure.

    Args:
      reports: how many have arrived.
      seconds: spent on them in callbacks, during which what reports is held up.
      nbytes: that came from the device with them.
    """

    reports: int
    seconds: float
    nbytes: int

    def __str__(self) -> str:
        each = f", {self.seconds / self.reports * 1e6:,.0f} µs each" if self.reports else ""
        return f"{self.reports:,} reports took {self.seconds * 1e3:,.1f} ms in Python{each}, and moved {format_bytes(self.nbytes)}"

    __repr__ = __str__


class Watch:
    """Collects what probes tell. Made by `watch`.

    >>> with jaxviz.watch("loss", "layer1.*") as w:
    ...     for batch in w.steps(batches):
    ...         params = train_step(params, batch)
    >>> w["loss"].mean

    As a mapping it has a `Series` for each name, and it may be read while the program runs. Shown in a notebook it is a plot that goes on
    as the program runs; see `live`.
    """

    def __init__(self, names: Sequence[str], what: What, every: int, keep: int, cotangents: bool, owner: int = 0):
        self.spec = Spec(tuple(names), what, cotangents, owner)
        self.every, self.keep = every, keep
        self.errors: list[Exception] = []
        """What went wrong in collecting; the program that is watched does not hear of it."""
        self.is_open = False
        self._is_listening = False
        self._step: int | None = None
        self._series: dict[str, Series] = {}
        self._lock = threading.RLock()
        self._reports = self._nbytes = 0
        self._seconds = 0.0
        self._listens: list[Callable[[bool], None]] = []

    # --- as a context

    def __enter__(self) -> Watch:
        if self.is_open:
            raise RuntimeError("this watch is open already; make another one for what is within")
        self.is_open = True
        self._listen(True)
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if error is None:
                jax.effects_barrier()
            elif isinstance(error, Exception):
                with contextlib.suppress(Exception):  # the error under way is the one to see
                    jax.effects_barrier()
        finally:
            self._listen(False)
            self.is_open = False
            self._tell(is_over=True)

    def step(self, number: int | None = None) -> int:
        """Begins the next step, or the one of this number; returns the number. What arrives before the next begins belongs to it.

        It waits until all that is under way has reported. Only every n-th step is watched, if the watch says so; in between the program is
        the one that it is when nothing is watched.
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
        """The items, with a step begun before each: `for batch in w.steps(batches): ...`."""
        for item in items:
            self.step()
            yield item

    # --- as what reports are handed to

    def receive(self, report: Report) -> None:
        """Called by the threads that run the program; see `probes.Receiver`."""
        began = time.perf_counter()
        with self._lock:
            series = self._of(report.site.name)
            of_kind = series if report.site.kind == "value" else series.cotangents
            of_kind._add(report, report.step if report.step is not None else self._step)
            self._reports += 1
            self._nbytes += report.values.nbytes
            self._seconds += report.seconds + time.perf_counter() - began
        self._tell()

    def fail(self, error: Exception) -> None:
        if len(self.errors) < 10:
            self.errors.append(error)

    def _of(self, name: str) -> Series:
        if name not in self._series:
            series = Series(name, "value", self.spec.what, self.every, self.keep)
            series._cotangents = Series(name, "cotangent", self.spec.what, self.every, self.keep)
            self._series[name] = series
        return self._series[name]

    def _tell(self, is_over: bool = False) -> None:
        for listen in self._listens:
            listen(is_over)

    # --- as a report

    @property
    def names(self) -> tuple[str, ...]:
        """What has been told of, by name: layer2 before layer10."""
        return tuple(
            sorted(
                self._series,
                key=lambda name: [(len(n), n) if n.isdigit() else (0, n) for n in re.split(r"(\d+)", name)],
            )
        )

    def __getitem__(self, name: str) -> Series:
        try:
            return self._series[name]
        except KeyError:
            told = (
                ", ".join(self.names) or "none yet; what is compiled ahead of time, or has no such probe, tells nothing"
            )
            raise KeyError(f"nothing was told of {name!r}. Names told of: {told}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self._series)

    def __contains__(self, name: object) -> bool:
        return name in self._series

    @property
    def cost(self) -> WatchCost:
        """What watching has taken so far, as far as it can be told from within."""
        return WatchCost(self._reports, self._seconds, self._nbytes)

    def lines(self) -> list[Series]:
        """All series that have something in them, values first."""
        with self._lock:
            both = [s for name in self.names for s in (self._series[name], self._series[name].cotangents)]
        return [s for s in both if s.count]

    def to_dict(self) -> dict[str, Any]:
        """NumPy arrays by name and kind, and the cost."""
        found: dict[str, Any] = {}
        for s in self.lines():
            found.setdefault(s.name, {})[s.kind] = s.to_dict()
        return {"series": found, "cost": asdict(self.cost)}

    def plot(self, ax: Axes | None = None, log: bool = False) -> Figure:
        """A figure: numbers as they are, arrays as their norms, over the steps; cotangents are dashed.

        Args:
          ax: where to draw, else in a figure of its own.
          log: whether the axis of values is logarithmic.
        """
        from jaxviz.analysis.plots import plot_series

        return plot_series(self.lines(), ax, log)

    def live(self) -> Any:
        """A widget that plots what is told as the program runs, in the cell that is running too, and that stays in the notebook that is saved.

        It is what a notebook shows of the watch itself: `display(w)` before the training begins.
        """
        from jaxviz.notebook.live import LivePlot

        return LivePlot(self)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        shown = self.live()._repr_mimebundle_(**kwargs)
        if shown is not None:
            (shown[0] if isinstance(shown, tuple) else shown)["text/plain"] = str(self)
        return shown

    def listen(self, listener: Callable[[bool], None]) -> None:
        """Has a function called after each report, by the thread that brought it, and at the end, with True. It must be quick and not raise."""
        self._listens.append(listener)

    def _rows(self) -> list[tuple[str, ...]]:
        rows = []
        for s in self.lines():
            if s.last is None:
                continue
            last = {n: np.asarray(v) for n, v in _statistics(s.last, s.what).items()}
            steps = s.steps
            span = f"{steps[0]:,}–{steps[-1]:,}" if len(steps) > 1 else str(s.last.step)
            numbers = (f"{float(np.mean(last[n])):.4g}" for n in STATISTICS[:4])
            bad = (f"{int(last[n].sum()):,}" for n in STATISTICS[4:])
            rows.append((printable(s.name, 60), s.kind, f"{s.count:,}", span, *numbers, *bad))
        return rows

    def __str__(self) -> str:
        rows = self._rows()
        if not rows:
            return f"nothing told of {', '.join(self.spec.names) or 'its lines'} yet"
        return "\n".join([text_table(_HEADS, rows, _ALIGN), "", *self._notes()])

    def _notes(self) -> list[str]:
        errors = [f"{len(self.errors)} reports could not be taken: {self.errors[0]}"] if self.errors else []
        return [f"{self.cost}.", *errors]

    def __repr__(self) -> str:
        return f"Watch({', '.join(map(repr, self.spec.names))}: {len(self)} told of, {self._reports:,} reports)"

    def _repr_html_(self) -> str:
        table = html_table("What was told, with the last values", _HEADS, self._rows(), [a == ">" for a in _ALIGN])
        return table + "".join(f"<p>{printable(note)}</p>" for note in self._notes())


class WatchedFunction(Watch):
    """A function that is watched, and what it tells. Made by `watch(f, ...)`; it stands for `f`, also under jax's transforms.

    It is traced as `jax.jit` traces: once for the types of its arguments. Each call is a step, and what is in a scan or a while loop tells of
    the iterations in its `index`. Called by a program that is compiled, as under `jax.jit`, it does not hear of calls; steps are then
    those marked by `step`, or else records are counted.
    """

    def __init__(self, fun: Callable[..., Any], lines: Sequence[Any], **options: Any):
        super().__init__(**options, owner=next(_owners))
        functools.update_wrapper(self, fun)
        self._fun = fun
        self._lines = tuple(map(parse_line, lines))
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
            key = tree, tuple(compat.aval_of(compat.canonicalize(x)) for x in leaves), probes.asked()
            if key in self._programs:
                return self._programs[key]
        except TypeError:  # an argument is no array: tracing says which
            key = None
        with probes.asking(self.spec):
            traced = trace_call(self._fun, args, kwargs)
        made = with_probes(traced.program, self._lines, self.spec), traced.out_tree
        if key is not None and not traced.program.is_path:  # a path holds for these values alone
            self._programs[key] = made
        return made

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
    """Watches values while a program runs, or summaries of them, and their cotangents: those of probes, or those that a line makes.

    >>> with jaxviz.watch("loss", "layer1.*") as w:
    ...     for batch in w.steps(batches):
    ...         params = train_step(params, batch)
    >>> w["loss"].mean, w["layer1.h"].norm, w["layer1.h"].cotangents.max
    >>> w.plot()

    Within it, functions that are jitted are traced once more, with what is watched in them. Watches that ask for the same share what is
    compiled, so to enter one again costs nothing; and outside, the programs are what they were.

    Given a function first, it returns one that stands for it, whose source need have no probes:

    >>> loss = jaxviz.watch(loss, lines=["model.py:41"])
    >>> step = jax.jit(jax.value_and_grad(loss))
    >>> loss["model.py:41"].cotangents.norm

    Args:
      *names: of probes, or patterns such as 'layer?.*'; without any, all. Before them, it may be the function to watch.
      lines: with a function, lines of source, such as 'model.py:41', or 41 for a line of its own file. What is told of is each value of that line
        which another line reads, or which is a result.
      what: 'summary' (norm, mean, min, max, and the number of NaNs and infinities, computed on the device) or 'value'.
      every: of which steps: see `Watch.step`. Where no steps are marked, of which records.
      keep: how many records a series keeps.
      cotangents: whether cotangents are reported too, where the program is differentiated.

    Returns:
      a `Watch`, which collects within a `with`; or with a function a `WatchedFunction`, which collects whenever it runs.

    Raises:
      ValueError, TypeError: an argument that means nothing. For a line that makes nothing, the call of the function raises it.
    """
    fun = names[0] if names and callable(names[0]) else None
    names = names[fun is not None :]
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"watch takes names of probes, as str; got {type(name).__name__}")
    if what not in ("summary", "value"):
        raise ValueError(f"what={what!r}; it may be 'summary' or 'value'")
    if every < 1 or keep < 2:
        raise ValueError(f"every={every}, keep={keep}; at least every=1 and keep=2 make sense")
    if fun is None and lines:
        raise ValueError(
            f"lines={list(lines)} need the function that has them: write watch(f, lines=...), and call what it returns"
        )
    options: dict[str, Any] = {"what": what, "every": every, "keep": keep, "cotangents": cotangents}
    if fun is None:
        return Watch(names or ("*",), **options)
    return WatchedFunction(
        fun, [lines] if isinstance(lines, str) else lines, names=names or (() if lines else ("*",)), **options
    )
