"""The report of how long a program takes to trace, lower and compile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxviz.ir.origin import Location
from jaxviz.report.charts import TIME, Bars
from jaxviz.report.data import Data
from jaxviz.report.report import Listed, Report, Table
from jaxviz.report.tables import (
    counted,
    format_seconds,
    line_label,
    listed,
    more_rows,
    narrow_location,
    repeated,
    short_location,
)
from jaxviz.xla.compile_cost.stages import Phases, Seconds

_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Counts(Data):
    """The size of something.

    Args:
      equations: equations of the traced program, including nested ones.
      before: instructions of the program that JAX passes to XLA.
      after: instructions of the compiled program, including those of fusions and loops; None if the backend does not
        expose it.
    """

    equations: int
    before: int
    after: int | None


@dataclass(frozen=True, slots=True)
class Saving(Data):
    """What is saved with only one of some identical blocks, in seconds of CPU time; negative if that takes longer.

    Args:
      tracing: proportional to the equations.
      lowering, compiling: JAX's and XLA's time, measured with all blocks and with one.
      rest: what all three take with only one.
    """

    tracing: float
    lowering: float
    compiling: float
    rest: float

    @property
    def cpu(self) -> float:
        """Of all three."""
        return self.tracing + self.lowering + self.compiling

    @property
    def pays(self) -> bool:
        """Whether it is more than a loop costs: those that `benchmarks.compile_cost` measures take 1 to 3.3 times as
        long as one block."""
        return self.cpu > 2 * self.rest

    _data = ("tracing", "lowering", "compiling", "cpu", "rest")


@dataclass(frozen=True, slots=True)
class Repeated(Data):
    """Identical blocks, of which a loop would trace and compile only one.

    Args:
      count: how many blocks.
      text: their source, such as `x = layer(p, x)`; '' if unknown.
      location: their line.
      loop: 'jax.lax.scan', or 'jax.vmap' if no block reads results of another.
      carry: the types of the values passed from block to block.
      stacked: the arguments of which each block takes one, such as `params['layers'][0…11]['q']`.
      counts: the sizes of all blocks, in the forward and the backward pass.
      saving: what compiling takes less with only one of them; None if it was not measured. A loop costs some of it
        again.
      note: why it was not measured.
    """

    count: int
    text: str
    location: Location | None
    loop: str
    carry: tuple[str, ...]
    stacked: tuple[str, ...]
    counts: Counts
    saving: Saving | None = None
    note: str = ""

    @property
    def advice(self) -> str:
        """These 24 blocks are identical, `x = layer(p, x)` (model.py:12), and with only one of them compiling takes
        19.6 s less: a `jax.lax.scan` would trace and compile only one."""
        written = f", `{self.text}`" if self.text else ""
        at = f" ({short_location(self.location)})" if self.location is not None else ""
        head = f"These {self.count:,} blocks are identical{written}{at}"
        loop = f"a `{self.loop}` would trace and compile only one"
        if self.saving is None:
            return f"{head}: {loop}{f'; {self.note}' if self.note else ''}"
        if self.saving.cpu <= 0:
            return (
                f"{head}, but with only one of them compiling takes no less: for {self.count:,} of them a "
                f"`{self.loop}` does not pay"
            )
        less = f"with only one of them compiling takes {format_seconds(self.saving.cpu)} less"
        if not self.saving.pays:
            return f"{head}, but {less}, which a `{self.loop}` may cost again"
        return f"{head}, and {less}: {loop}"

    @property
    def how(self) -> str:
        """What the loop carries and iterates over."""
        parts = []
        if self.carry:
            parts.append(f"carries {listed(self.carry)}")
        if self.stacked:
            parts.append(f"iterates over {listed(f'`{name}`' for name in self.stacked)}, stacked")
        return f"The loop {' and '.join(parts)}." if parts else ""


@dataclass(frozen=True, slots=True)
class SourcePart(Data):
    """A line of the source, or a function.

    Args:
      label: the text of the line, or the name of the function.
      location: the line; for a function, its first line in the program.
      counts: the sizes of what it led to; for a function, of its own lines without the functions that it calls.
      tracing: seconds of CPU time in which it was being traced, sampled every millisecond.
    """

    label: str
    location: Location | None
    counts: Counts
    tracing: float


@dataclass(frozen=True, eq=False, repr=False)
class CompileCost(Report, schema="compile_cost"):
    """Where tracing, lowering and compiling take their time.

    >>> found = jaxviz.compile_cost(loss, params, x)
    >>> found.phases, found.repeated

    Args:
      function: the name of the function.
      about: what is compiled, in words.
      backend: what it is compiled for.
      phases: the seconds of each phase; medians if they were measured more than once.
      alone: seconds of tracing the function without its gradient; None where nothing is differentiated.
      counts: of the whole program.
      lines, functions: of the user's source, those with the most instructions first.
      repeated: identical blocks, those with the most equations first.
      times: how often it was traced, lowered and compiled.
      unattributed: instructions without a line: XLA's own, and arguments.
      notes: further remarks.
    """

    function: str
    about: str
    backend: str
    phases: Phases
    alone: Seconds | None
    counts: Counts
    lines: tuple[SourcePart, ...]
    functions: tuple[SourcePart, ...]
    repeated: tuple[Repeated, ...]
    times: int
    unattributed: Counts
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """compiling the gradient of `loss` in `params` takes 21.5 s of CPU time on cpu: XLA 20.9 s, …"""
        p = self.phases
        wall = p.tracing.wall + p.lowering.wall + p.compiling.wall
        head = (
            f"compiling the {self.about} takes {format_seconds(p.cpu)} of CPU time on {self.backend}, "
            f"{format_seconds(wall)} of wall time: "
            f"tracing {format_seconds(p.tracing.cpu)}, lowering {format_seconds(p.lowering.cpu)}, XLA "
            f"{format_seconds(p.compiling.cpu)}"
        )
        return f"{head}. {self.repeated[0].advice}" if self.repeated else head

    def _chart(self) -> Bars:
        p = self.phases
        rows = [
            ("tracing", p.tracing.cpu, "trace"),
            ("lowering", p.lowering.cpu, "lower"),
            ("XLA", p.compiling.cpu, "compile"),
        ]
        return Bars(rows, f"CPU time of compiling {self.function}", TIME)

    def _parts(self) -> Iterator[Table | Listed | str]:
        yield self._phases()
        if self.repeated:
            yield self._blocks()
            first, *others = self.repeated[:3]
            yield Listed(filter(None, [first.how, *(text for r in others for text in (r.advice, r.how))]))
        yield self._table("line", self.lines)
        yield self._table("function", self.functions)
        yield Listed(self.notes)

    def _phases(self) -> Table:
        p, c = self.phases, self.counts
        alone = f"; {format_seconds(self.alone.cpu)} of it without the gradient" if self.alone is not None else ""
        after = "the backend does not show the compiled program"
        if c.after is not None:
            after = f"{counted(c.after, 'instruction')} after optimisation"
        row = lambda name, s, what: (name, format_seconds(s.cpu), format_seconds(s.wall), what)
        caption = f"medians of {self.times} times" if self.times > 1 else ""
        rows = [
            row("tracing", p.tracing, f"{counted(c.equations, 'equation')}{alone}"),
            row("lowering", p.lowering, f"{counted(c.before, 'instruction')} for XLA"),
            row("XLA", p.compiling, after),
        ]
        return Table(("phase", "CPU time", "wall time", "result"), rows, "<>><", caption)

    def _blocks(self) -> Table:
        rows = [
            (repeated(r.count, r.text or "block"), *_cells(r.counts), _saved(r.saving), _place(r.location))
            for r in self.repeated
        ]
        heads = ("blocks", "equations", "for XLA", "compiled", "one alone saves", "line")
        return Table(heads, rows, "<>>>><", "identical blocks", _SHOWN)

    def _table(self, what: str, parts: tuple[SourcePart, ...]) -> Table:
        seconds = lambda p: format_seconds(p.tracing) if p.tracing else ""
        rows = [(_place(p.location), *_cells(p.counts), seconds(p), p.label) for p in parts]
        rest = self.unattributed
        is_line = what == "line"
        if is_line and (rest.before or rest.after):
            rows.insert(_SHOWN, ("no line", *_cells(rest), "", "arguments, JAX's own, and XLA's own"))

        def more(n: int) -> str:
            hidden = parts[n - (len(rows) - len(parts)) :]
            instructions = f"{sum(p.counts.before for p in hidden):,} instructions for XLA"
            return more_rows(len(rows) - n, sum(p.counts.equations for p in hidden), "equation", instructions)

        heads = ("line" if is_line else "in", "equations", "for XLA", "compiled", "tracing", "" if is_line else what)
        return Table(heads, rows, "<>>>><", f"by {what}", _SHOWN + 1, more)


def _cells(counts: Counts) -> tuple[str, str, str]:
    return f"{counts.equations:,}", f"{counts.before:,}", "?" if counts.after is None else f"{counts.after:,}"


def _saved(saving: Saving | None) -> str:
    if saving is None:
        return ""
    return format_seconds(saving.cpu) if saving.cpu > 0 else "nothing"


def _place(location: Location | None) -> str:
    return narrow_location(location) if location is not None else ""


def label_of(location: Location) -> str:
    """The text of a line, without its location."""
    return line_label(location).partition(" ")[2]
