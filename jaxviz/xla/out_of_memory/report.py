"""The report of an error of running out of memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from jaxviz.analysis.unreported import NOTHING, Unreported
from jaxviz.ir.origin import Location
from jaxviz.report.charts import Bars
from jaxviz.report.data import Data
from jaxviz.report.report import Drawn, Listed, Part, Report, Table
from jaxviz.report.tables import counted, format_bytes, repeated, short_location

When = Literal["argument", "forward", "backward", "recomputed", "outside", ""]


@dataclass(frozen=True, slots=True)
class OomRow(Data):
    """Buffers of one line and operation, of repeated layers too.

    Args:
      what: the operation and its scope, or the expression.
      when: the pass that computes it; 'argument' for an argument; '' if that is not known.
      type: of each.
      count: how many the text lists.
      nbytes: of all of them.
      padding: how many of these bytes are padding.
      location: the line.
      why: why it is in memory; '' if that is not known.
    """

    what: str
    when: When
    type: str
    count: int
    nbytes: int
    padding: int
    location: Location | None
    why: str


@dataclass(frozen=True, slots=True)
class OomChange(Data):
    """A change that would lower the memory.

    Args:
      text: what to do.
      before, after: the peak in bytes, without it and with it.
      fits: whether that is within the limit, with all that `unreported` may take.
      compiled: whether XLA compiled both, on this machine's backend; otherwise the peaks are modelled.
      code: the lines to write, as a diff; '' if there are none.
      unreported: what XLA's CPU kernels may allocate besides `after`.
    """

    text: str
    before: int
    after: int
    fits: bool
    compiled: bool
    code: str = ""
    unreported: Unreported = NOTHING


@dataclass(frozen=True, eq=False, repr=False)
class OutOfMemory(Report, schema="oom"):
    """What ran out of memory, and what to do. See `jaxviz.oom`.

    >>> found = jaxviz.oom(error)
    >>> found.rows, found.advice

    Args:
      function: the name of the program; '' if it is not known.
      asked: bytes of the allocation that failed; None if the program was refused as a whole.
      limit: bytes that there are; None if it is not known.
      used: bytes that the program needs; None likewise.
      space: the memory that ran out, such as 'hbm'; '' if the text does not say.
      sums: bytes by what they are for, as the text says.
      rows: what it lists, the most bytes first.
      raised: the user's line that raised the error: that of the call, or where its result is waited for.
      advice: what follows from the text alone.
      changes: what would make it fit, of the program that was given.
      is_modelled: whether the rows are what the gradient saves, since the text lists nothing.
      notes: what is not known.
      ran_out: whether an error says so; otherwise it is about a program that XLA dumped.
    """

    function: str
    asked: int | None
    limit: int | None
    used: int | None
    space: str
    sums: dict[str, int]
    rows: tuple[OomRow, ...]
    raised: Location | None
    advice: tuple[str, ...]
    changes: tuple[OomChange, ...] = ()
    is_modelled: bool = False
    notes: tuple[str, ...] = ()
    ran_out: bool = True

    @property
    def is_within_limit(self) -> bool:
        """Whether what the program needs, as far as it is known, is within what there is."""
        return self.needs is not None and self.limit is not None and self.needs <= self.limit

    @property
    def needs(self) -> int | None:
        """The bytes that the program needs in all, as far as the text says."""
        return self.used or self.sums.get("in all") or sum(self.sums.values()) or None

    @property
    def summary(self) -> str:
        """out of memory in hbm: `train_step` needs 41.7 GiB of 16.0 GiB; 32.0 GiB of it is `FloorMod` at step.py:12."""
        where = f" in {self.space}" if self.space else ""
        name = f"`{self.function}`" if self.function else "the program"
        at = f" (raised at {short_location(self.raised)})" if self.raised is not None else ""
        needs = self.needs
        if needs is not None:
            of = f" of {format_bytes(self.limit)}" if self.limit is not None else ""
            says = f"{name}{at} needs {format_bytes(needs)}{of}"
        elif self.asked is not None:
            says = f"{name}{at} asks for {format_bytes(self.asked)}"
            says += f", and there are {format_bytes(self.limit)}" if self.limit is not None else ""
        else:
            says = f"{name}{at} does not fit"
        most = self.rows[0] if self.rows and not self.is_modelled else None
        of_it = "" if most is None else f"; {format_bytes(most.nbytes)} of it is {_called(most)}"
        return f"out of memory{where}: {says}{of_it}" if self.ran_out else f"{says}{of_it}"

    def _chart(self) -> Bars | None:
        rows = [
            (f"{r.what} {short_location(r.location) if r.location else ''}".strip(), r.nbytes, r.when or "not known")
            for r in self.rows[:20]
        ]
        return (
            Bars(rows, self._caption.removesuffix(":").replace("largest that", "largest buffers that"))
            if rows
            else None
        )

    @property
    def table_of_buffers(self) -> Table:
        """The rows."""
        heads = ("what", "of", "line", "type", "bytes", "why")
        return Table(heads, list(map(_cells, self.rows)), "<<<<><", self._caption if self.rows else "")

    def _parts(self) -> Iterator[Part]:
        if self.sums:
            yield f"{'; '.join(f'{format_bytes(n)} {name}' for name, n in self.sums.items())}."
        yield self.table_of_buffers
        if self.changes:
            yield self._heading
            for c in self.changes:
                yield Listed([_sentence(c, self.limit)])
                yield Drawn(c.code)
        yield Listed(self.advice)
        yield from self.notes

    @property
    def _heading(self) -> str:
        if self.limit is None:
            return "What would take less:"
        if any(c.fits for c in self.changes):
            return "What would make it fit:"
        if any(c.after <= self.limit for c in self.changes):
            return "What may make it fit:"
        return "Nothing that was tried makes it fit; the most that each does:"

    _data = (
        "function", "asked", "limit", "used", "space", "sums", "rows", "raised=_raised", "advice", "changes",
        "is_modelled", "notes", "ran_out",
    )  # fmt: skip

    @property
    def _caption(self) -> str:
        if not self.ran_out:
            return "in memory at the peak:"
        return "what the gradient saves:" if self.is_modelled else "the largest that the error lists:"

    @property
    def _raised(self) -> str:
        return "" if self.raised is None else str(self.raised)


def _called(r: OomRow) -> str:
    at = f" at {short_location(r.location)}" if r.location is not None else ""
    return f"{counted(r.count, 'buffer')} of `{r.what}`{at}" if r.count > 1 else f"`{r.what}`{at}"


def _cells(r: OomRow) -> tuple[str, ...]:
    at = short_location(r.location) if r.location is not None else ""
    when = {
        "forward": "the forward pass",
        "backward": "the backward pass",
        "recomputed": "the backward pass, recomputed",
        "argument": "the arguments",
    }.get(r.when, "")
    return r.what, when, at, repeated(r.count, r.type), format_bytes(r.nbytes), r.why


def _sentence(c: OomChange, limit: int | None) -> str:
    how = "as compiled here" if c.compiled else "as modelled"
    text = f"{c.text}: the peak goes from {format_bytes(c.before)} to {format_bytes(c.after)}, {how}"
    if limit is not None and (c.fits or c.after > limit):
        return f"{text}; that {'fits' if c.fits else 'does not fit'}."
    notes = " ".join(c.unreported.notes(c.after if limit is None else 0))
    return f"{text}{'' if limit is None else '; whether that fits is not known'}.{notes and f' {notes}'}"
