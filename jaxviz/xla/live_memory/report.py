"""The report of what a process holds between calls."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from jaxviz.analysis.grouping import grouped
from jaxviz.ir.boundary import api_boundary
from jaxviz.report.charts import Bars
from jaxviz.report.data import Data
from jaxviz.report.report import Listed, Part, Report, Table
from jaxviz.report.tables import counted, format_bytes, repeated
from jaxviz.runtime.compilations import unwatched
from jaxviz.xla.live_memory.holders import holders

_NAMED = 200
"""Of how many groups of arrays, those with most bytes, it is looked up who holds them."""
_MANY = 20
"""So many programs of one name are worth a sentence."""


@dataclass(frozen=True, slots=True)
class LiveArrays(Data):
    """Arrays of one type.

    Args:
      type: such as `f32[8,16]`.
      count: how many there are.
      nbytes: of all of them, on all devices of this process.
      holder: who holds one of them, such as "`history`, a list of 1,000, in train.py"; '' if that was not found, or not
        looked up.
      more: how many more there are than in the report that it is compared with; None if it is compared with none.
    """

    type: str
    count: int
    nbytes: int
    holder: str
    more: int | None = None


@dataclass(frozen=True, slots=True)
class LivePrograms(Data):
    """Compiled programs of one name.

    Args:
      name: of the function.
      count: how many of them are in memory.
      nbytes: of their code, as far as the backend reports it; 0 if it does not.
      more: see `LiveArrays`.
    """

    name: str
    count: int
    nbytes: int
    more: int | None = None


@dataclass(frozen=True, eq=False, repr=False)
class LiveMemory(Report, schema="live"):
    """What a process holds between calls. See `jaxviz.live`.

    >>> before = jaxviz.live()
    >>> for batch in batches:
    ...     params = train_step(params, batch)
    >>> print(jaxviz.live().since(before))

    Args:
      arrays: the arrays, by type, the most bytes first.
      programs: the compiled programs, by function, the most first.
      process_nbytes: of the process, as the operating system counts them; None if it does not say.
      is_compared: whether it is compared with an earlier report.
      references: to the arrays, as long as something else keeps them.
    """

    arrays: tuple[LiveArrays, ...]
    programs: tuple[LivePrograms, ...]
    process_nbytes: int | None
    is_compared: bool = False
    references: tuple[weakref.ref[Any], ...] = field(default=(), repr=False)

    def since(self, before: LiveMemory) -> LiveMemory:
        """What there is more of than in an earlier report.

        >>> assert not jaxviz.live().since(jaxviz.live()).arrays
        """
        n_arrays = {a.type: a.count for a in before.arrays}
        n_programs = {p.name: p.count for p in before.programs}
        held = self._held_since(before, sys._getframe(1))
        arrays = [
            replace(a, more=a.count - n_arrays.get(a.type, 0), holder=held.get(a.type, a.holder)) for a in self.arrays
        ]
        programs = [replace(p, more=p.count - n_programs.get(p.name, 0)) for p in self.programs]
        grown = None
        if self.process_nbytes is not None and before.process_nbytes is not None:
            grown = self.process_nbytes - before.process_nbytes
        by_more = lambda a: -(a.more or 0) * a.nbytes // a.count
        return LiveMemory(
            tuple(sorted((a for a in arrays if a.more), key=by_more)),
            tuple(sorted((p for p in programs if p.more), key=lambda p: -(p.more or 0))), grown, is_compared=True,
        )  # fmt: skip

    def _held_since(self, before: LiveMemory, frame: Any) -> dict[str, str]:
        """By type, who holds an array that was not there before."""
        known = {id(x) for reference in before.references if (x := reference()) is not None}
        new = [x for reference in self.references if (x := reference()) is not None and id(x) not in known]
        groups = grouped(new, type_of)[:_NAMED]
        del new
        names = holders([g[len(g) // 2] for g in groups], frame)
        return {type_of(g[0]): name for g, name in zip(groups, names, strict=True)}

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays, on all devices of this process."""
        return sum(a.nbytes for a in self.arrays)

    @property
    def summary(self) -> str:
        """live: 1.2 GiB in 213 arrays, 121 compiled programs; most are 50 × f32[4096,4096], held by `history`."""
        n, m = sum(a.count for a in self.arrays), sum(p.count for p in self.programs)
        if self.is_compared:
            more = sum(a.more or 0 for a in self.arrays), sum(p.more or 0 for p in self.programs)
            bytes_more = sum((a.more or 0) * (a.nbytes // a.count) for a in self.arrays)
            grown = self.process_nbytes or 0
            rss = f"; the process grew by {format_bytes(grown)}" if grown > 0 else ""
            arrays = (
                f"{counted(more[0], 'array')} more, {format_bytes(bytes_more)}" if self.arrays else "no more arrays"
            )
            return f"live since then: {arrays}; {counted(more[1], 'compiled program')} more{rss}{self._most}"
        return (
            f"live: {format_bytes(self.nbytes)} in {counted(n, 'array')}, {counted(m, 'compiled program')}{self._most}"
        )

    @property
    def _most(self) -> str:
        if not self.arrays:
            return ""
        a = self.arrays[0]
        held = f", held by {a.holder}" if a.holder else ""
        n = a.count if a.more is None else a.more
        return f"; most are {repeated(n, a.type)}{held}"

    def _chart(self) -> Bars:
        rows = [(repeated(a.count, a.type), a.nbytes, "arrays") for a in self.arrays[:20]]
        return Bars(rows, "bytes of live arrays")

    def _parts(self) -> Iterator[Part]:
        more = lambda n: () if n is None else (f"{n:+,}",)
        heads = ("type", "arrays", *(("more",) * self.is_compared), "bytes", "held by")
        rows = [(a.type, f"{a.count:,}", *more(a.more), format_bytes(a.nbytes), a.holder) for a in self.arrays]
        yield Table(heads, rows, "<>>>" + "<" * (1 + self.is_compared) if self.is_compared else "<>><")
        heads = ("compiled programs of", "in memory", *(("more",) * self.is_compared))
        yield Table(heads, [(p.name, f"{p.count:,}", *more(p.more)) for p in self.programs], "<>>"[: len(heads)])
        yield Listed(self.advice)

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do."""
        return tuple(
            f"{p.count:,} programs of `{p.name}` are in memory: jaxviz.explain_recompile says why it is compiled again."
            for p in self.programs
            if p.count >= _MANY
        )

    _data = ("arrays", "programs", "process_nbytes", "is_compared", "nbytes", "advice")


@api_boundary
def live() -> LiveMemory:
    """What this process holds between calls: arrays, by type and by who holds them, and compiled programs, by function.

    >>> print(jaxviz.live())
    live: 1.2 GiB in 213 arrays, 121 compiled programs; most are 50 × f32[4096,4096], held by `history`, a list …

    Two of them show what a loop leaves behind: `jaxviz.live().since(before)`. What cannot be reached any more is
    collected first. Python is asked who refers to the largest arrays, a few levels up.
    """
    frame = sys._getframe(1)
    with unwatched():
        gc.collect()
        every = jax.live_arrays()
        groups = sorted(grouped(every, type_of), key=lambda g: -sum(map(_nbytes, g)))
        names = holders([g[len(g) // 2] for g in groups[:_NAMED]], frame)  # the last one has its variable too
        names += [""] * (len(groups) - len(names))
        arrays = [
            LiveArrays(type_of(g[0]), len(g), sum(map(_nbytes, g)), name) for g, name in zip(groups, names, strict=True)
        ]
        references = tuple(map(weakref.ref, every))
        return LiveMemory(tuple(arrays), tuple(_programs()), process_nbytes(), references=references)


def type_of(x: Any) -> str:
    """`f32[8,16]`."""
    return str(jax.typeof(x).str_short(short_dtypes=True))


def _nbytes(x: Any) -> int:
    return sum(shard.data.nbytes for shard in x.addressable_shards) if len(x.devices()) > 1 else int(x.nbytes)


def _programs() -> Iterator[LivePrograms]:
    counts, code = Counter[str](), Counter[str]()
    for backend in {id(d.client): d.client for d in jax.local_devices()}.values():
        for executable in backend.live_executables():
            name = executable.hlo_modules()[0].name.removeprefix("jit_")
            counts[name] += 1
            code[name] += executable.size_of_generated_code_in_bytes()
    for name, n in counts.most_common():
        yield LivePrograms(name, n, code[name])


def process_nbytes() -> int | None:
    """The bytes of this process in memory, as Linux counts them; None elsewhere."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None
