"""The report of a run: which functions were compiled, the gradients that they take, and what to do, the most at stake
first."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from jaxviz.analysis.grouping import grouped
from jaxviz.features.lint.report import MAY_BE_WRONG
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.origin import Location
from jaxviz.report.charts import Lanes
from jaxviz.report.data import Data
from jaxviz.report.report import Listed, Part, Report, Table
from jaxviz.report.tables import counted, format_bytes, format_seconds, listed, short_location
from jaxviz.runs.facts import PROCESS_FILE, CompiledOnce, ProcessFacts, ProcessOfRun, RunProgram
from jaxviz.xla.compilations.report import FunctionCompilations
from jaxviz.xla.out_of_memory.reading import OomText
from jaxviz.xla.out_of_memory.report import OomRow, OutOfMemory
from jaxviz.xla.out_of_memory.start import explained, function_of

_MUCH = 64 << 20
"""The bytes from which it is said that a process grew."""
_IDLE = "donation-without-effect"
_ROWS = 8
"""How many of the values that a gradient saves are listed where memory ran out."""
_LONG = 0.02
"""The share of a run's time from which recompilations, and operations outside of jit, are worth a finding; and of a
peak or of the largest value, from which others are."""


@dataclass(frozen=True, slots=True)
class RunFinding(Data):
    """What a run shows, and what to do about it.

    >>> for finding in jaxviz.show("jaxviz-run").findings:
    ...     print(finding.location, finding.text, finding.fix)

    Args:
      kind: the rule of `jaxviz.lint`; or 'out-of-memory', 'donation', 'compilation', 'outside-of-jit', 'leak' or
        'process'.
      text: what was found.
      fix: what to do; '' if that is not known.
      location: the user's line.
      share: the bytes or seconds at stake, as a share of the function's peak or of the run's time; 1 where a result may
        be wrong.
      at_stake: the same, such as "192.0 KiB"; '' if it is neither.
      function: the name of the function that it is about; '' for none.
      program: the number of its program, if it is about one.
    """

    kind: str
    text: str
    fix: str
    location: Location | None
    share: float
    at_stake: str
    function: str
    program: int | None = None


@dataclass(frozen=True, slots=True)
class RunFunction(Data):
    """A function of the user's that a run compiled.

    Args:
      name, location: of the function.
      gradient: the largest that it takes; '' for none.
      nbytes: bytes that this saves, without its arguments; None if it takes none, or that is not known.
      peak: its modelled peak in bytes, on one device; None if it is not known.
      peak_at: what is computed then, and on which line.
      xla: the peak of the compiled program, or else all bytes that XLA takes for arguments, results and temporaries, on
        one device; None if the backend does not report them.
      count: how often it was compiled.
      seconds: the seconds of that.
      not_known: why nothing is known of it; '' if something is.
      program: the number of the program that these figures are of; None if nothing is known.
    """

    name: str
    location: Location | None
    gradient: str
    nbytes: int | None
    peak: int | None
    peak_at: str
    xla: int | None
    count: int
    seconds: float
    not_known: str = ""
    program: int | None = None


@dataclass(frozen=True, eq=False, repr=False)
class RunReport(Report, schema="show"):
    """What a run left behind. See `jaxviz.show`.

    >>> found = jaxviz.show("jaxviz-run")
    >>> found.functions, found.findings

    Args:
      processes: the processes, in the order in which they began.
    """

    processes: tuple[ProcessOfRun, ...]

    @property
    def first(self) -> ProcessOfRun:
        """The process that the report begins with: JAX's first."""
        return min(self.processes, key=lambda p: p.process.index or 0)

    @cached_property
    def functions(self) -> tuple[RunFunction, ...]:
        """The functions of the first process: those that take gradients first, and of these the one with the highest
        peak, since a gradient outside of the step saves as much as the same one in it."""
        rows = map(self._row, grouped(self.first.of_program, self._named))
        return tuple(sorted(rows, key=lambda f: (f.nbytes is None, -(f.peak or f.nbytes or 0), -f.seconds)))

    def _named(self, c: CompiledOnce) -> tuple[str, Location | None]:
        """The function of a compilation: that of the program, since a loop outside of jit is compiled as an
        operation."""
        of = self.first.programs.get(c.program or 0, c)
        return of.function, of.location

    def _row(self, group: Sequence[CompiledOnce]) -> RunFunction:
        programs = self.first.programs
        analysed = [programs[c.program] for c in group if c.program in programs]
        best = max(analysed, key=_size, default=None)
        totals = [c.memory.total for c in group if c.memory is not None]
        xla = max((p.compiled.nbytes for p in analysed if p.compiled is not None), default=max(totals, default=None))
        n, seconds = len(group), sum(c.seconds for c in group)
        if best is None:
            return RunFunction(*self._named(group[0]), "", None, None, "", xla, n, seconds, _NOT_YET)
        name, facts = best.function.rpartition("<locals>.")[2], best.facts
        about, nbytes = (best.gradients[0].about, best.gradients[0].nbytes) if best.gradients else ("", None)
        missing = [n.why for n in best.not_known if facts is None or "gradient" in n.what]
        why = missing[0] if missing and not about else ""
        peak, at = None, ""
        if facts is not None and facts.peak is not None:
            peak, where = facts.peak.nbytes, facts.peak.location
            at = f"`{facts.peak.what}`{f' ({short_location(where)})' if where else ''}"
        return RunFunction(name, best.location, about, nbytes, peak, at, xla, n, seconds, why, best.number)

    @property
    def largest(self) -> RunFunction | None:
        """The function that takes the largest gradient; None if none takes any."""
        return next((f for f in self.functions if f.gradient), None)

    @property
    def seconds(self) -> float:
        """How long the first process took, or has taken until its last compilation."""
        p = self.first
        return p.process.seconds or max((c.ended for c in p.compilations), default=0.0)

    @property
    def first_step(self) -> float | None:
        """The seconds until the function with the largest gradient had been compiled; None if there is none."""
        of = self.largest
        if of is None:
            return None
        named = self.first.programs[of.program or 0]
        return min(c.ended for c in self.first.of_program if self._named(c) == (named.function, named.location))

    @cached_property
    def out_of_memory(self) -> OutOfMemory | None:
        """The error that ended the first process, explained as `jaxviz.oom` does, if it ran out of memory."""
        read = self.first.process.ran_out
        if read is None:
            return None
        compiled, program = self._ran_out
        if compiled is None:
            return explained(read)
        if not read.sums and compiled.memory is not None:
            read = replace(read, sums=compiled.memory.to_dict())
        if program is None or program.facts is None:
            return explained(read, compiled.function)
        saved = sorted(program.facts.saved if program.gradients else (), key=lambda r: -r.nbytes)[:_ROWS]
        saved = [r for r in saved if r.nbytes > _LONG * saved[0].nbytes]
        rows = (OomRow(r.label, "forward", r.type, r.count, r.nbytes, 0, r.location, r.why) for r in saved)
        return explained(read, compiled.function, tuple(rows))

    @property
    def _ran_out(self) -> tuple[CompiledOnce | None, RunProgram | None]:
        """The compilation that did not fit, the last one that the error may be about, and its program; None for what
        is not known."""
        p, read = self.first, self.first.process.ran_out
        for c in reversed(p.of_program):
            if read is not None and _may_be_about(read, c):
                return c, p.programs.get(c.program or 0)
        return None, None

    @cached_property
    def findings(self) -> tuple[RunFinding, ...]:
        """What to do, the most at stake first; once for a line, for the largest of the functions that it is in."""
        found = sorted(self._findings(), key=lambda f: -f.share)
        return tuple(same[0] for same in grouped(found, lambda f: (f.kind, f.location)))

    def _findings(self) -> Iterator[RunFinding]:
        p, error = self.first, self.out_of_memory
        if error is not None:
            program, text = self._ran_out[1], f"the run ended {error.summary}"
            tried = "Given this function and the types of its arguments, jaxviz.oom tries checkpoints and donation"
            advice = " ".join(map(_whole, (*error.advice, *([tried] if error.function else []))))
            number = None if program is None else program.number
            yield RunFinding("out-of-memory", text, advice, error.raised, 1.0, "", error.function, number)
        of_functions = grouped(p.programs.values(), lambda program: (program.function, program.location))
        for same in of_functions:
            yield from _of_program(max(same, key=_size))
        programs = {(f.name, f.location): f.program for f in self.functions}
        for f in p.functions:
            grew = sum(c.grew or 0 for c in p.compilations if (c.function, c.location) == (f.name, f.definition))
            yield from _of_compilations(f, self.seconds, grew, programs.get((f.name, f.definition)))
        yield from self._outside_of_jit()
        yield from _left_behind(p.process)
        yield from self._apart()

    def _outside_of_jit(self) -> Iterator[RunFinding]:
        """What was compiled operation by operation."""
        single = [c for c in self.first.compilations if c.owner == "jax"]
        seconds = sum(c.seconds for c in single)
        if seconds > _LONG * self.seconds:
            sites = Counter(c.call.location for c in single if c.call.location is not None).most_common(1)
            most = f", most at {short_location(sites[0][0])}" if sites else ""
            text = f"{counted(len(single), 'operation')} outside of jit took {format_seconds(seconds)} to compile{most}"
            fix = "Put what runs there into a function under jax.jit; JAX then compiles one program."
            at = sites[0][0] if sites else None
            share = seconds / max(self.seconds, 1e-9)
            yield RunFinding("outside-of-jit", text, fix, at, share, format_seconds(seconds), "")

    def _apart(self) -> Iterator[RunFinding]:
        """Processes that compiled something else than the first one."""
        own = Counter(map(_compared, self.first.of_program))
        for p in self.processes:
            if p is not self.first:
                others = Counter(map(_compared, p.of_program))
                who = f"process {p.process.index if (p.process.count or 1) > 1 else p.folder}"
                for more, less, only, other in (
                    (others, own, who, "the first one"),
                    (own, others, "the first process", who),
                ):
                    for name, at, _ in [*(more - less)][:1]:
                        where = f" ({at})" if at else ""
                        text = f"{only} compiled `{name}`{where}, and {other} did not, or for other arguments"
                        fix = "All processes have to run the same programs in the same order, or collectives hang."
                        yield RunFinding("process", text, fix, None, 1.0, "", name)

    # --- text ---------------------------------------------------------------------------------------------------------

    @property
    def summary(self) -> str:
        """run of train.py, 41 s: `train_step` takes the gradient of `loss` in `params`, which saves 18.3 GiB; …."""
        process, of = self.first.process, self.largest
        state = "" if process.seconds is not None else ", not ended"
        head = f"run of {process.script}, {format_seconds(self.seconds)}{state}"
        if of is None:
            return f"{head}: {counted(len(self.functions), 'function')} compiled, none with a gradient that is known"
        at = f" ({short_location(of.location)})" if of.location else ""
        takes = f"`{of.name}`{at} takes the {of.gradient}" if of.gradient != f"gradient of `{of.name}`" else of.gradient
        parts = [f"{takes}, which saves {format_bytes(of.nbytes or 0)}"]
        parts += [f"the peak of the whole is {format_bytes(of.peak)}, at {of.peak_at}"] if of.peak is not None else []
        parts += [f"compiled after {format_seconds(self.first_step)}"] if self.first_step is not None else []
        steps = self.first.process.steps
        if steps is not None and steps.median is not None:
            parts.append(f"{counted(steps.count, 'step')} of {format_seconds(steps.median)}")
        return f"{head}: {'; '.join(parts)}"

    def _chart(self) -> Lanes:
        began = self.first.process.began
        rows = []
        for c in self.first.of_program[:40]:
            phases = [(n, s) for n in ("trace", "lower", "compile") if (s := getattr(c, n)) is not None]
            rows.append((c.function, began + c.ended - c.seconds, phases))
        return Lanes(rows, "when each function was compiled")

    @property
    def table_of_functions(self) -> Table:
        heads = ("function", "defined at", "gradient", "it saves", "modelled peak", "XLA", "compiled", "in")
        return Table(heads, [_cells(f) for f in self.functions], "<<<>>>>>")

    @property
    def table_of_exchanges(self) -> Table:
        """What devices exchange, of the largest functions."""
        rows = []
        for f in self.functions:
            program = self.first.programs.get(f.program or 0)
            for row in program.exchanged if program is not None else ():
                at = short_location(row.location) if row.location else "no line"
                sent = f"{'' if row.is_known else 'at least '}{format_bytes(row.sent)}"
                rows.append((f.name, row.kind, at, f"{row.count:,} ×", sent))
        heads = ("function", "collective", "line", "times", "a device sends")
        return Table(heads, rows, "<<<>>", "what devices exchange, as compiled, in one call:" if rows else "")

    def picture(self) -> str:
        """When each function was compiled, as a drawing."""
        return self._picture()

    def _parts(self) -> Iterator[Part]:
        yield self.table_of_functions
        if self.out_of_memory is not None:
            yield self.out_of_memory.table_of_buffers
        if self.findings:
            yield "What to do, the most at stake first:"
            yield Listed(map(sentence, self.findings))
        yield self.table_of_exchanges
        yield from self.notes

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not looked at, and how it was found."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        p = self.first
        if len(self.processes) > 1:
            yield f"{counted(len(self.processes), 'process')}; the tables are about the first."
        for program in p.programs.values():
            for n in program.not_known:
                yield f"Not known of `{program.function}`: {n.what}, since {n.why.rstrip('.')}."
        if p.pending:
            names = listed(dict.fromkeys(f"`{c.function}`" for c in p.pending), 4)
            yield f"Not analysed: {names}, {_NOT_YET}."
        if p.process.live is not None:
            yield f"At its end, {p.process.live.summary.removeprefix('live: ')}."
        for f in self.functions:
            donated = p.programs[f.program].donated if f.program is not None else ()
            reused = [d for d in donated if d.is_reused]
            if reused:
                arrays, size = sum(d.count for d in donated), format_bytes(sum(d.nbytes for d in reused))
                spared = f"results reuse the memory of {sum(d.count for d in reused):,}, {size}"
                yield f"`{f.name}` donates {counted(arrays, 'array')}; {spared}."
        if self.table_of_exchanges.rows:
            yield "jaxviz.collectives says why devices exchange values, and what would avoid it."
        if p.process.analysis is not None:
            took = f"Analysed in {format_seconds(p.process.analysis)}, beside the run and after it"
            yield f"{took}, of the {p.process.budget:g} s that `--budget` allows."
        yield "The model's peak has every value; XLA fuses some away."
        yield from (f"Some compilations were not seen: {problem}" for problem in p.process.problems[-1:])

    _data = (
        "seconds", "first_step", "functions", "findings", "out_of_memory",
        ("processes", ("folder", "*process", "compilations")), "notes",
    )  # fmt: skip


_NOT_YET = "its analysis was not over when the run was, or was killed"


def _compared(c: CompiledOnce) -> tuple[str, str, tuple[str, ...]]:
    """What should be the same of a compilation in all processes; on which device its arguments are, may differ."""
    at = "" if c.location is None else short_location(c.location)
    return c.function, at, tuple(str(change) for change in c.changes if change.kind != "place")


def _may_be_about(read: OomText, c: CompiledOnce) -> bool:
    """Whether an error of running out of memory names a compiled function, or asks for what it needs, or was raised
    where it is called. A call that runs asynchronously fails on a later line."""
    if name := function_of(read.buffers):
        return c.function == name
    sizes = (c.memory.arguments, c.memory.results, c.memory.temporaries) if c.memory is not None else ()
    if read.asked and any(read.asked <= n <= 1.01 * read.asked or n <= read.asked <= 1.01 * n for n in sizes):
        return True
    place = lambda at: None if at is None else (at.file, at.line)
    return read.location is not None and place(c.call.location) == place(read.location)


def _size(program: RunProgram) -> tuple[int, int]:
    """What to compare programs of one function by."""
    facts = program.facts
    return sum(g.nbytes for g in program.gradients), facts.peak.nbytes if facts is not None and facts.peak else -1


def _of_program(program: RunProgram) -> Iterator[RunFinding]:
    facts = program.facts
    peak = facts.peak.nbytes if facts is not None and facts.peak is not None else 0
    share = lambda n: min(n / peak, 1.0) if peak else 0.0
    for text in program.leaks:
        fix = "That is a tracer, which has no value when the trace has ended: return the value instead of storing it."
        yield RunFinding("leak", text, fix, program.location, 1.0, "", program.function, program.number)
    unused = [d for d in program.donated if not d.is_reused]
    if unused:
        nbytes = sum(d.nbytes for d in unused)
        named = lambda same: listed([f"`{d.names}`" for d in same], 4)
        each = [f"{named(same)}: {same[0].why}" for same in grouped(unused, lambda d: d.why)]
        text = f"`{program.function}` donates without effect {'; and '.join(each)}"
        fix, at = "Do not donate that, or return a result of its type.", program.location
        size = format_bytes(nbytes)
        yield RunFinding(_IDLE, text, fix, at, share(nbytes), size, program.function, program.number)
    for a in program.advice:
        if unused and a.rule == _IDLE and a.text.startswith(f"`{program.function}`"):
            continue  # lint does not know what XLA has made of it
        size = format_bytes(a.nbytes) if a.nbytes else ""
        of = 1.0 if a.rule in MAY_BE_WRONG else share(a.nbytes)
        yield RunFinding(a.rule, a.text, a.fix, a.location, of, size, program.function, program.number)
    nbytes = sum(program.could_donate.values())
    if share(nbytes) > _LONG:
        names = listed(f"`{name}`" for name in program.could_donate)
        text = f"`{program.function}` donates none of its arguments, and results could take the memory of {names}"
        fix = f"Where the caller does not read them again, jit it with donate_argnames={tuple(program.could_donate)!r}"
        of, size = share(nbytes), format_bytes(nbytes)
        yield RunFinding("donation", text, f"{fix}.", program.location, of, size, program.function, program.number)


def _of_compilations(f: FunctionCompilations, seconds: float, grew: int, program: int | None) -> Iterator[RunFinding]:
    """Why a function was compiled more than once."""
    again = [r for r in f.compiled if r.since is not None or f.is_part]
    lost = sum(x for r in again for x in (r.trace, r.lower, r.compile) if x is not None)
    share = lost / max(seconds, 1e-9)
    if again and share > _LONG:
        times = {1: "once", 2: "twice"}.get(f.count, f"{f.count:,} times")
        changed = f"; what changed: {f.cause}" if f.cause else ""
        first = f", {format_seconds(lost)} of it after the first time" if lost < f.seconds else ""
        text = f"`{f.name}` was compiled {times} in {format_seconds(f.seconds)}{first}{changed}"
        if grew > _MUCH:
            text += f"; the process grew by {format_bytes(grew)} meanwhile"
        fix, size = " ".join(f.advice), format_seconds(lost)
        yield RunFinding("compilation", text, fix, f.definition, min(share, 1.0), size, f.name, program)


def _left_behind(process: ProcessFacts) -> Iterator[RunFinding]:
    """Arrays of which each step leaves some in memory."""
    for kind, rate in process.steps.left.items() if process.steps is not None else ():
        held = next((a for a in process.live.arrays if a.type == kind), None) if process.live is not None else None
        holder = f", held by {held.holder}" if held is not None and held.holder else ""
        text = f"Each step leaves {rate:.2g} {kind} in memory{holder}"
        fix = "Keep numbers, float(loss), and not arrays; or what is only needed of the last step, in place of a list."
        yield RunFinding("leak", text, fix, None, 1.0, "", "")


def sentence(f: RunFinding) -> str:
    """`train.py:6: 192.0 KiB in 4 values of `gelu` are saved … Call `gelu` through jax.checkpoint there.`."""
    place = "" if f.location is None or short_location(f.location) in f.text else short_location(f.location)
    head = ", ".join(filter(None, (place, f.at_stake if f.kind == "donation" else "")))
    return " ".join(filter(None, (f"{head}:" if head else "", _whole(f.text), _whole(f.fix))))


def _whole(text: str) -> str:
    """A sentence with its capital and its full stop; what stands in backticks stays as it is."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}" if text else ""


def _cells(f: RunFunction) -> tuple[str, ...]:
    size = lambda n: "" if n is None else format_bytes(n)
    at = short_location(f.location) if f.location else ""
    what = f.gradient or ("not known: see below" if f.not_known else "none")
    return (
        f.name, at, what, size(f.nbytes), size(f.peak), size(f.xla), f"{f.count:,} ×", format_seconds(f.seconds)
    )  # fmt: skip


@api_boundary
def show(folder: str | os.PathLike[str] = "jaxviz-run") -> RunReport:
    """What a run under `jaxviz run`, or with `import jaxviz.auto`, left behind; also while it runs, or after it was
    killed.

    >>> print(jaxviz.show("jaxviz-run"))
    run of train.py, 41 s: `train_step` (train.py:12) takes the gradient of `loss` in `params`, which saves 18.3 GiB; …

    Args:
      folder: that the run wrote; see `--out`.

    Raises:
      OSError: there is no such folder, or it cannot be read.
      ValueError: it has no run, or a damaged one.
    """
    folder = Path(folder)
    found = sorted(folder.glob(f"*/{PROCESS_FILE}"))
    if not found:
        raise FileNotFoundError(f"{folder} has no run; `jaxviz run train.py` leaves one, in jaxviz-run or in its --out")
    processes = [ProcessOfRun.load(path.parent) for path in found]
    return RunReport(tuple(sorted(processes, key=lambda p: p.process.began)))
