"""`Series`: the records of one name."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxviz.features.probes import probes
from jaxviz.features.probes.probes import STATISTICS, Kind, ProbedValue, What
from jaxviz.report.tables import counted, printable

Array = np.ndarray[Any, Any]

MOST_BYTES = 64 * 2**20
"""The largest number of bytes that a series of whole values keeps."""


@dataclass(frozen=True, eq=False, slots=True)
class Record:
    """One recorded value.

    Args:
      step: its step, see `Watch.step`; if no steps are marked, the number of earlier records.
      place: the number of the place in the program that recorded it, in the order in which places were traced.
      position: the number of earlier records in the same step, place and device.
      index: the integers that the program recorded with it, such as iterations of loops, outermost first; or None.
      device: in a `shard_map`, the number of the device in its mesh.
      axes: the number of leading dimensions that `vmap` maps over.
      size: the number of elements of the value, for one example.
      values: the value, or its packed statistics.
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
    """The records of one name: its values or its cotangents, in the order in which they arrived.

    >>> w["hidden"].norm
    array([5.31, 5.29, 5.24], dtype=float32)
    >>> w["hidden"].cotangents.norm
    array([0.12, 0.11, 0.11], dtype=float32)

    The number of records is limited: when there are too many, every second step is dropped. `count` counts all of them.

    Args:
      name: the name of the probe.
      kind: 'value' or 'cotangent'.
      what: 'summary' or 'value'.
      every: every how many steps the probe is recorded.
      keep: the largest number of records.
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

    def _add(self, report: ProbedValue, step: int | None) -> None:
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
            index = (tuple(map(int, index)) if index.ndim == 1 else index) if len(index) else None
        self.last = Record(
            number, report.site.place, position, index, report.device, report.axes, report.size, report.values
        )
        if self._is_recorded(self.last):
            self._records.append(self.last)
            self._nbytes += self.last.values.nbytes
            while len(self._records) > self._keep or (self._nbytes > MOST_BYTES and len(self._records) > 1):
                self._thin()

    def _is_recorded(self, record: Record) -> bool:
        return record.step // self._every % self._stride == 0 and record.position % self._within == 0

    def _thin(self) -> None:
        if len({r.step for r in self._records}) > 1:
            self._stride *= 2
        else:  # all from one step, such as a long loop
            self._within *= 2
        self._records = [r for r in self._records if self._is_recorded(r)]
        self._nbytes = sum(r.values.nbytes for r in self._records)

    @property
    def cotangents(self) -> Series:
        """The cotangents of the same name; empty if nothing was differentiated."""
        if self._cotangents is None:
            raise AttributeError(f"{self!r} is already a series of cotangents")
        return self._cotangents

    @property
    def records(self) -> tuple[Record, ...]:
        return tuple(self._records)

    @property
    def steps(self) -> Array:
        return np.array([r.step for r in self.records], int)

    @property
    def positions(self) -> Array:
        """For each record, the number of earlier ones of its step and place: in a scan the iteration."""
        return np.array([r.position for r in self.records], int)

    @property
    def places(self) -> Array:
        """For each record, which place with its name it is from, by the order of tracing; they may run in another."""
        return np.unique([r.place for r in self.records], return_inverse=True)[1]

    @property
    def index(self) -> Any:
        """The integers recorded with each record, as an array if each has equally many; None if there are none."""
        indices = [r.index for r in self.records]
        return _stacked([np.asarray(i) for i in indices]) if indices and all(i is not None for i in indices) else None

    @property
    def devices(self) -> tuple[int | None, ...]:
        return tuple(r.device for r in self.records)

    @property
    def values(self) -> Any:
        """The values, one after the other along the first dimension; a list if their shapes differ.

        Raises:
          AttributeError: only summaries are collected.
        """
        if self.what != "value":
            raise AttributeError(
                f"only summaries of {self.name!r} are collected: {', '.join(STATISTICS)}. Watch it with what='value'."
            )
        return _stacked([r.values for r in self.records])

    def statistic(self, name: str) -> Any:
        """'norm', 'mean', 'min', 'max', 'nans' or 'infs' of each record; along further dimensions of each example."""
        return _stacked([statistics_of(r, self.what)[name] for r in self.records])

    norm = property(lambda self: self.statistic("norm"))
    mean = property(lambda self: self.statistic("mean"))
    min = property(lambda self: self.statistic("min"))
    max = property(lambda self: self.statistic("max"))
    nans = property(lambda self: self.statistic("nans"))
    infs = property(lambda self: self.statistic("infs"))

    def line(self) -> tuple[Array, Array, str]:
        """The data of a plot: steps, with fractions for several records of a step; the plotted numbers; and their name.

        A number is plotted itself, anything larger by its norm; examples are averaged.
        """
        records = sorted(self.records, key=lambda r: (r.step, r.place, r.position, r.device or 0))
        statistic = "mean" if all(r.size == 1 for r in records) else "norm"
        xs: list[float] = []
        for step, group in itertools.groupby(r.step for r in records):
            n = len(list(group))
            xs += [step + i / n for i in range(n)]
        ys = [float(np.mean(statistics_of(r, self.what)[statistic])) for r in records]
        return np.array(xs), np.array(ys), "value" if statistic == "mean" else "norm"

    def __len__(self) -> int:
        return len(self._records)

    def to_dict(self) -> dict[str, Any]:
        """NumPy arrays by name, for a data frame or a file: steps, positions, and the statistics or the values."""
        columns = {"steps": self.steps, "places": self.places, "positions": self.positions}
        if self.index is not None:
            columns["index"] = self.index
        names = STATISTICS if self.what == "summary" else ()
        return {**columns, **{n: self.statistic(n) for n in names}, **({"values": self.values} if not names else {})}

    def __repr__(self) -> str:
        return f"Series({printable(self.name, 60)!r}, {self.kind}, {counted(self.count, 'record')})"


def _stacked(arrays: Sequence[Array]) -> Any:
    return np.stack(arrays) if len({a.shape for a in arrays}) == 1 else (np.empty(0) if not arrays else list(arrays))


def statistics_of(record: Record, what: What) -> Mapping[str, Array]:
    if what == "summary":
        return probes.statistics(record.values)
    x = np.reshape(record.values, (*record.values.shape[: record.axes], record.size))
    is_inexact = jax.numpy.issubdtype(x.dtype, np.inexact)
    count = lambda is_bad: is_bad(x).sum(-1) if is_inexact else np.zeros(x.shape[:-1], int)
    bad = {"nans": count(np.isnan), "infs": count(np.isinf)}
    x = np.abs(x) if np.iscomplexobj(x) else x
    x = x.astype(np.promote_types(np.float32, x.dtype) if x.dtype.kind in "fiub" else np.float32)
    nan = np.full(x.shape[:-1], np.nan)
    mean, least, most = (x.mean(-1), x.min(-1), x.max(-1)) if record.size else (nan, nan, nan)
    return {"norm": np.sqrt((x * x).sum(-1)), "mean": mean, "min": least, "max": most, **bad}
