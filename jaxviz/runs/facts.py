"""What a run leaves behind, as plain data in files: of each process, of each compilation, of each program.

No values, arguments of the command line or environment variables are in them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxviz.environments.facts import Environment, ModelledPeak, NotKnown, ProgramFacts
from jaxviz.ir.origin import Location
from jaxviz.report.data import Data
from jaxviz.report.stored import Format, from_plain
from jaxviz.xla.collectives.exchanges import MovedByLine
from jaxviz.xla.compilations.report import FunctionCompilations, KeyChange, Recompilation
from jaxviz.xla.live_memory.report import LiveMemory
from jaxviz.xla.out_of_memory.reading import OomText

_WRITTEN_BY = "jaxviz run writes such files"
PROCESS = Format("process of a jaxviz run", 1, "process", "process of a run", _WRITTEN_BY)
PROGRAM = Format("program of a jaxviz run", 1, "program", "program of a run", _WRITTEN_BY)

PROCESS_FILE, COMPILATIONS, PROGRAMS = "process.json", "compilations.jsonl", "programs"
"""The files of a process's folder, and the folder of its programs."""
EXPLORER, MEMORY = ".explorer", ".compiled"
"""The ends of the files with what the page shows of a program: its gradient, and its memory as compiled."""


@dataclass(frozen=True, slots=True)
class MarkedSteps(Data):
    """Steps that a run marks with `jax.profiler.StepTraceAnnotation`.

    Args:
      count: how many began.
      first: seconds from the first to the second, which the first compiles; None if there is no second.
      median: seconds from one to the next, of the last thousand after the first; None if there are none.
      left: the types of arrays of which each step leaves some behind, with how many in a step.
    """

    count: int
    first: float | None
    median: float | None
    left: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessFacts(Data):
    """A process of a run.

    Args:
      script: the name of the script or module.
      pid: of the process.
      began: when it imported JAX, in seconds since the epoch.
      environment: the versions, and the flags of JAX.
      index, count: its number among the processes of JAX, and how many they are; None before JAX has devices.
      backend, device: such as 'cpu', and the device's kind; '' before JAX has devices.
      n_devices: of all processes.
      seconds: how long it took; None if it has not ended, or was killed.
      budget: the seconds that the analysis may take.
      analysis: those that it took, all together; None before the end.
      problems: what was not seen, and why.
      steps: those that it marks; None if it marks none.
      live: what the process held at its end; None before that.
      ran_out: what the error says that ended the process, if it ran out of memory.
    """

    script: str
    pid: int
    began: float
    environment: Environment
    index: int | None = None
    count: int | None = None
    backend: str = ""
    device: str = ""
    n_devices: int = 0
    seconds: float | None = None
    budget: float = 0.0
    analysis: float | None = None
    problems: tuple[str, ...] = ()
    steps: MarkedSteps | None = None
    live: LiveMemory | None = None
    ran_out: OomText | None = None


@dataclass(frozen=True, slots=True)
class CallSite(Data):
    """The user's line that called a function."""

    location: Location | None


@dataclass(frozen=True, slots=True)
class KeyChanged(Data):
    """A change of the cache key; see `KeyChange`. The values of static arguments and of closures are left out."""

    kind: str
    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class XlaBytes(Data):
    """The memory of a compiled program on one device, as XLA reports it: bytes of arguments, of results, of
    temporaries; and of arguments whose memory results reuse."""

    arguments: int
    results: int
    temporaries: int
    reused: int

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return self.arguments + self.results + self.temporaries - self.reused


@dataclass(frozen=True, slots=True)
class CompiledOnce(Data):
    """One compilation.

    Args:
      function: the name.
      location: where it is defined.
      owner: 'program', 'jax' or 'jaxviz'.
      kind: see `Compilation`.
      identity: the number of the function object, from 1, within the process.
      call: the line that called it.
      since: which earlier compilation of the function it differs least from, from 1; None for the first.
      changes: what differs from that one.
      trace, lower, compile: seconds; None for a phase that was skipped.
      ended: when it was over, in seconds since the process began.
      memory: XLA's; None if the backend does not report it.
      program: the number of the program in which it is analysed; None if it is not.
      grew: the bytes by which the process grew while it was lowered and compiled; None if that is not known.
    """

    function: str
    location: Location | None
    owner: str
    kind: str
    identity: int
    call: CallSite
    since: int | None
    changes: tuple[KeyChanged, ...]
    trace: float | None
    lower: float | None
    compile: float | None
    ended: float
    memory: XlaBytes | None = None
    program: int | None = None
    grew: int | None = None

    @property
    def seconds(self) -> float:
        return sum(x for x in (self.trace, self.lower, self.compile) if x is not None)


@dataclass(frozen=True, slots=True)
class GradientTaken(Data):
    """A gradient that a function takes: "gradient of `loss` in `params`", the bytes that it saves, and the types of the
    arguments that it is taken in, by how many there are."""

    about: str
    nbytes: int
    types: dict[str, int]


@dataclass(frozen=True, slots=True)
class AdviceFound(Data):
    """What `jaxviz.lint` advises; see `Advice`."""

    rule: str
    text: str
    fix: str
    location: Location | None
    nbytes: int


@dataclass(frozen=True, slots=True)
class DonatedArguments(Data):
    """Arguments that a jitted function donates: their names, such as `params['w0'] to params['w9']`, how many there
    are, their bytes, whether results reuse their memory in the compiled program, and why not."""

    names: str
    count: int
    nbytes: int
    is_reused: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class RunProgram(Data):
    """A function of a run, analysed for the types that it was compiled for.

    Args:
      number: its number in the process, from 1.
      function: its name.
      location: where it is defined.
      gradients: those that it takes, the largest first.
      facts: of the largest, or of the function if it takes none; None if it could not be analysed.
      advice: see `AdviceFound`.
      donated: what XLA has made of the arguments that it donates.
      could_donate: the arguments whose memory results could reuse, with the bytes, if it donates none.
      compiled: the peak of the compiled program; None if the backend does not report it.
      exchanged: what devices exchange in the compiled program, by line.
      leaks: where it stores tracers that outlive its trace, in a sentence each.
      not_known: what could not be found out, each with the reason.
    """

    number: int
    function: str
    location: Location | None
    gradients: tuple[GradientTaken, ...] = ()
    facts: ProgramFacts | None = None
    advice: tuple[AdviceFound, ...] = ()
    donated: tuple[DonatedArguments, ...] = ()
    could_donate: dict[str, int] = field(default_factory=dict)
    compiled: ModelledPeak | None = None
    exchanged: tuple[MovedByLine, ...] = ()
    leaks: tuple[str, ...] = ()
    not_known: tuple[NotKnown, ...] = ()


@dataclass(frozen=True, eq=False)
class ProcessOfRun(Data):
    """All that a process has left behind.

    Args:
      folder: the name of its folder.
      process: see `ProcessFacts`.
      compilations: in order.
      programs: by number; one that is noted in a compilation may be missing.
    """

    folder: str
    process: ProcessFacts
    compilations: tuple[CompiledOnce, ...]
    programs: dict[int, RunProgram]

    @staticmethod
    def load(folder: Path) -> ProcessOfRun:
        """Reads the folder of a process, also while it runs or after it was killed.

        Raises:
          OSError, ValueError: its facts cannot be read.
        """
        process = PROCESS.read(folder / PROCESS_FILE, lambda data: from_plain(ProcessFacts, data))
        found = [PROGRAM.read(path, lambda data: from_plain(RunProgram, data)) for path in program_files(folder)]
        programs = {p.number: p for p in sorted(found, key=lambda p: p.number)}
        return ProcessOfRun(folder.name, process, tuple(_compilations(folder / COMPILATIONS)), programs)

    @cached_property
    def functions(self) -> tuple[FunctionCompilations, ...]:
        """The compilations of the user's functions, by function, the longest time first."""
        groups: dict[Any, list[CompiledOnce]] = {}
        for c in self.compilations:
            if c.owner == "program":
                groups.setdefault((c.kind == "part", c.function, c.location or c.identity), []).append(c)
        return tuple(sorted((self._function(group) for group in groups.values()), key=lambda f: -f.seconds))

    def _function(self, group: Sequence[CompiledOnce]) -> FunctionCompilations:
        began, first = self.process.began, group[0]
        compiled = tuple(
            Recompilation(
                number, c.call.location, c.since, tuple(KeyChange(x.kind, x.path, x.before, x.after)
                for x in c.changes), c.trace, c.lower, c.compile, c.kind == "ahead", began + c.ended - c.seconds,
            )
            for number, c in enumerate(group, 1)
        )  # fmt: skip
        n = len({c.identity for c in group})
        return FunctionCompilations(first.function, first.location, compiled, n, is_part=first.kind == "part")

    @property
    def of_program(self) -> tuple[CompiledOnce, ...]:
        """The compilations of what the program calls: its functions, and gradients and loops outside of jit."""
        return tuple(
            c for c in self.compilations if (c.owner == "program" and c.kind != "part") or c.program is not None
        )

    @property
    def pending(self) -> tuple[CompiledOnce, ...]:
        """The first compilations of programs that are not analysed."""
        return tuple(c for c in self.compilations if c.program is not None and c.program not in self.programs)


def program_files(folder: Path) -> Iterator[Path]:
    return (folder / PROGRAMS).glob("*.json")


def _compilations(path: Path) -> Iterator[CompiledOnce]:
    """The lines of a file; the last one of a process that was killed may be incomplete."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield from_plain(CompiledOnce, json.loads(line))


def append(path: Path, compiled: CompiledOnce) -> None:
    """Adds a line to a file, in one write."""
    text = json.dumps(compiled.to_dict()) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def changed(change: KeyChange) -> KeyChanged:
    """A change without the values of the user's program."""
    before, after = change.before, change.after
    if change.kind.startswith("static") or change.kind == "closure":
        looks_same = after.startswith("another ")
        before, after = "one value", "another that looks the same" if looks_same else "another"
    elif change.kind == "tree":
        before, after = (re.sub(r" with .*", "", text, flags=re.DOTALL) for text in (before, after))
    return KeyChanged(change.kind, change.path, before, after)
