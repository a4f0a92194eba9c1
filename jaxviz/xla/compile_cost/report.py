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
      after: instructions of the compiled program, including those of fusions and loops; None if the backend does not expose it.
    """

    equations: int
    before: int
    after: int | None


@dataclass(frozen=True, slots=True)
class LeftOut(Data):
    """What a program with a loop in place of blocks leaves out, as fractions of the whole; negative if it has more.

    Args:
      equations: of the traced program.
      instructions: the fraction of the instructions for XLA.
    """

    equations: float
    instructions: float

    def __str__(self) -> str:
        return (
            f"{_percent(self.equations)} of the equations and {_percent(self.instructions)} of the instructions for XLA"
        )


@dataclass(frozen=True, slots=True)
class Saving(Data):
    """The predicted savings of a loop in place of blocks, in seconds of CPU time; negative if the loop takes longer.

    Args:
      tracing, lowering: proportional to the equations that it leaves out.
      compiling: XLA's time, measured by compiling with the loop and without it.
    """

    tracing: float
    lowering: float
    compiling: float

    @property
    def cpu(self) -> float:
        """Of all three."""
        return self.tracing + self.lowering + self.compiling

    _data = ("tracing", "lowering", "compiling", "cpu")


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
      left_out: what the program with the loop leaves out; None if the loop was not tried.
      saving: what the loop would save; None if it was not measured.
      seconds: XLA's time for the blocks, measured by compiling with only one of them; None if it was not measured.
      note: why a loop was not tried.
    """

    count: int
    text: str
    location: Location | None
    loop: str
    carry: tuple[str, ...]
    stacked: tuple[str, ...]
    counts: Counts
    left_out: LeftOut | None = None
    saving: Saving | None = None
    seconds: float | None = None
    note: str = ""

    @property
    def advice(self) -> str:
        """`These 24 blocks are identical, `x = layer(p, x)` (model.py:12): a jax.lax.scan would trace and compile only one`."""
        written = f", `{self.text}`" if self.text else ""
        at = f" ({short_location(self.location)})" if self.location is not None else ""
        head = (
            f"These {self.count:,} blocks are identical{written}{at}: a `{self.loop}` would trace and compile only one"
        )
        if self.saving is not None:
            if self.saving.cpu > 0:
                return f"{head}, and save about {format_seconds(self.saving.cpu)}"
            return f"{head}, but for {self.count:,} of them it would save no time"
        if self.left_out is not None:
            more = -self.left_out.instructions
            if more > 0:
                return f"{head}, but have {_percent(more)} more instructions for XLA: for {self.count:,} of them it does not pay"
            return f"{head}, and leave out {self.left_out}"
        return f"{head}{f'; {self.note}' if self.note else ''}"

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
class Part(Data):
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
      left_out, saving: what loops in place of all of them would leave out and save, as for one of `repeated`; None if there are none.
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
    lines: tuple[Part, ...]
    functions: tuple[Part, ...]
    repeated: tuple[Repeated, ...]
    left_out: LeftOut | None
    saving: Saving | None
    times: int
    unattributed: Counts
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """compiling the gradient of `loss` in `params` takes 21.5 s of CPU time on cpu: XLA 20.9 s, …"""
        p = self.phases
        wall = p.tracing.wall + p.lowering.wall + p.compiling.wall
        head = (
            f"compiling the {self.about} takes {format_seconds(p.cpu)} of CPU time on {self.backend}, {format_seconds(wall)} of wall time: "
            f"tracing {format_seconds(p.tracing.cpu)}, lowering {format_seconds(p.lowering.cpu)}, XLA {format_seconds(p.compiling.cpu)}"
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
            yield Listed(
                text for r in self.repeated[:3] for text in (*((r.advice,) if r is not self.repeated[0] else ()), r.how) if text
            )  # fmt: skip
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
        measured = any(r.seconds is not None for r in self.repeated)
        saves = lambda left, saving: (
            _signed(saving.cpu)
            if saving is not None
            else ""
            if left is None or measured
            else _left_out(left.instructions)
        )
        rows = [
            (
                repeated(r.count, r.text or "block"), *_cells(r.counts), *((_seconds(r.seconds),) if measured else ()),
                saves(r.left_out, r.saving), _place(r.location),
            )
            for r in self.repeated
        ]  # fmt: skip
        if len(self.repeated) > 1:
            rows.append(
                ("all together", "", "", "", *(("",) if measured else ()), saves(self.left_out, self.saving), "")
            )
        heads = (
            "blocks",
            "equations",
            "for XLA",
            "compiled",
            *(("XLA", "a loop saves") if measured else ("a loop leaves out",)),
            "line",
        )
        return Table(heads, rows, f"<{'>' * (len(heads) - 2)}<", "identical blocks", _SHOWN)

    def _table(self, what: str, parts: tuple[Part, ...]) -> Table:
        rows = [
            (_place(p.location), *_cells(p.counts), format_seconds(p.tracing) if p.tracing else "", p.label)
            for p in parts
        ]
        rest = self.unattributed
        if what == "line" and (rest.before or rest.after):
            rows = [
                *rows[:_SHOWN],
                ("no line", *_cells(rest), "", "arguments, JAX's own, and XLA's own"),
                *rows[_SHOWN:],
            ]
        heads = (
            "line" if what == "line" else "in",
            "equations",
            "for XLA",
            "compiled",
            "tracing",
            what if what == "function" else "",
        )
        extra = len(rows) - len(parts)
        equations = lambda n: sum(p.counts.equations for p in parts[n - extra :])
        instructions = lambda n: f"{sum(p.counts.before for p in parts[n - extra :]):,} instructions for XLA"
        more = lambda n: more_rows(len(rows) - n, equations(n), "equation", instructions(n))
        return Table(heads, rows, "<>>>><", f"by {what}", _SHOWN + 1, more)


def _cells(counts: Counts) -> tuple[str, str, str]:
    return f"{counts.equations:,}", f"{counts.before:,}", "?" if counts.after is None else f"{counts.after:,}"


def _signed(seconds: float) -> str:
    return format_seconds(seconds) if seconds > 0 else "nothing"


def _left_out(share: float) -> str:
    return _percent(share) if share >= 0 else f"nothing, {_percent(-share)} more"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else format_seconds(seconds)


def _place(location: Location | None) -> str:
    return narrow_location(location) if location is not None else ""


def label_of(location: Location) -> str:
    """The text of a line, without its location."""
    return line_label(location).partition(" ")[2]
