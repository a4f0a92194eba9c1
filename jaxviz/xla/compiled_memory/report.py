"""The memory of a compiled gradient over its schedule, and what is alive at its peak: values with their reasons, and
XLA's own memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxviz.analysis.unreported import NOTHING, Unreported
from jaxviz.ir.origin import Location
from jaxviz.report import pictures
from jaxviz.report.charts import OverTime
from jaxviz.report.data import Data
from jaxviz.report.kinds import PLURALS
from jaxviz.report.report import Drawn, Part, Report, Table
from jaxviz.report.tables import format_bytes, listed, more_rows, repeated, short_location
from jaxviz.xla.compiled_memory.attribution import KINDS, OWN, Kind

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from jaxviz.arguments import Argnums
    from jaxviz.xla.compiled_memory.change import MemoryChange


@dataclass(frozen=True, slots=True)
class Held(Data):
    """What is in memory at the peak: the values of one kind and expression, over repeated layers and calls.

    Args:
      kind: one of `KINDS`: a value of the gradient, or XLA's own.
      what: the expression that makes it, the path of an argument, or whose cotangent it is.
      type: the type of each, on one device.
      nbytes: the bytes of all of them, on one device.
      count: how many there are.
      location: the user's line; None if unknown.
      why: why it is there: a residual's reason, or what XLA needs it for; '' for values that are being computed.
      donated_to: for a donated argument, the result that reuses its memory; otherwise ''.
      expression: the expression that first computes the value, if `what` is another name, such as that of a
        `checkpoint_name`; otherwise ''.
    """

    kind: Kind
    what: str
    type: str
    nbytes: int
    count: int = 1
    location: Location | None = None
    why: str = ""
    donated_to: str = ""
    expression: str = ""

    @property
    def is_own(self) -> bool:
        """Whether it is XLA's own memory, and not a value of the gradient."""
        return self.kind in OWN


@dataclass(frozen=True, slots=True)
class Moment(Data):
    """The time of one instruction.

    Args:
      instruction: its name in the compiled program.
      opcode: its operation.
      is_backward: whether it is part of the backward pass.
      nbytes: bytes of temporaries alive while it runs, by kind, in the order of `KINDS`.
    """

    instruction: str
    opcode: str
    is_backward: bool
    nbytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Compiler(Data):
    """The compiler of a program.

    Args:
      jax, jaxlib: the versions; '' if unknown.
      backend: such as 'cpu'.
      device: its kind, as the backend names it.
      flags: XLA's flags, from the environment.
    """

    jax: str
    jaxlib: str
    backend: str
    device: str
    flags: str = ""

    def __str__(self) -> str:
        return f"JAX {self.jax} on {self.backend}" if self.jax else self.backend


@dataclass(frozen=True, eq=False, repr=False)
class CompiledMemory(Report, schema="compiled_memory"):
    """The memory of a compiled program over its schedule, on one device. See `jaxviz.compiled_memory`.

    >>> before = jaxviz.compiled_memory(loss, params, x)
    >>> before.peak_nbytes, before.at_peak[:3]
    >>> print(before.compare(jaxviz.compiled_memory(faster_loss, params, x)))

    Args:
      function: the name of the function.
      about: what the report is about, such as "gradient of `loss` in `params`".
      compiler: the compiler.
      temp_nbytes: the bytes that XLA allocates for temporaries.
      argument_nbytes, result_nbytes, constant_nbytes: the bytes of arguments, of results that do not reuse their
        memory, and of constants.
      reused_nbytes: the bytes of results that reuse the memory of donated arguments.
      timeline: one entry for each instruction, in the order in which they run; the body of a loop is there once, at the
        place of the loop.
      at_peak: what is in memory at the peak, largest first.
      peak_at: the expression that is computed at the peak, such as `x * w`; its operation if it is unknown.
      location: its line in the user's code; None if it is not known.
      n_devices: the number of devices that it runs on.
      notes: remarks on the whole program.
      values: all temporaries that have memory at some time, those of each group when most of its bytes are alive.
      fused: values that XLA computes inside fusions, where it gives them no buffer.
      on_host: values in the memory of the host, which no other figure counts.
      unreported: what XLA's CPU kernels may allocate besides, which no other figure counts.
    """

    function: str
    about: str
    compiler: Compiler
    temp_nbytes: int
    argument_nbytes: int
    result_nbytes: int
    constant_nbytes: int
    reused_nbytes: int
    timeline: tuple[Moment, ...] = field(repr=False)
    at_peak: tuple[Held, ...] = field(repr=False)
    peak_at: str
    location: Location | None
    n_devices: int = 1
    notes: tuple[str, ...] = ()
    values: tuple[Held, ...] = field(default=(), repr=False)
    fused: tuple[Held, ...] = field(default=(), repr=False)
    on_host: tuple[Held, ...] = field(default=(), repr=False)
    unreported: Unreported = NOTHING

    @cached_property
    def peak(self) -> int:
        """The index of the instruction at which most bytes are alive."""
        return int(np.argmax([sum(m.nbytes) for m in self.timeline])) if self.timeline else 0

    @property
    def beside_nbytes(self) -> int:
        """Bytes of arguments, results and constants, which are allocated all the time: XLA allocates results before the
        program runs."""
        return self.argument_nbytes + self.result_nbytes + self.constant_nbytes

    @property
    def peak_nbytes(self) -> int:
        """Bytes in memory at the peak: arguments, results, constants, and the temporaries that are alive then."""
        return self.beside_nbytes + (sum(self.timeline[self.peak].nbytes) if self.timeline else 0)

    @property
    def reserved_nbytes(self) -> int:
        """Bytes that a run needs: XLA allocates temporaries as a whole, gaps included."""
        return self.beside_nbytes + self.temp_nbytes

    @property
    def host_nbytes(self) -> int:
        """Bytes in the memory of the host."""
        return sum(h.nbytes for h in self.on_host)

    @property
    def attributed(self) -> float:
        """The fraction of the memory for temporaries whose contents at the peak, and their lines, are known."""
        known = sum(h.nbytes for h in self.temporaries if h.location is not None)
        return known / self.temp_nbytes if self.temp_nbytes else 1.0

    @property
    def temporaries(self) -> tuple[Held, ...]:
        """The contents of the memory for temporaries at the peak; the bytes add up to `temp_nbytes`."""
        return tuple(h for h in self.at_peak if h.kind not in ("argument", "constant", "result"))

    def by_kind(self) -> dict[Kind, int]:
        """The bytes in memory at the peak, by kind, largest first."""
        sums: dict[Kind, int] = {}
        for h in self.at_peak:
            sums[h.kind] = sums.get(h.kind, 0) + h.nbytes
        return dict(sorted(sums.items(), key=lambda pair: -pair[1]))

    @property
    def summary(self) -> str:
        """compiled gradient of `loss` in `params` on cpu: peak 1.2 MiB, at `x * w` (model.py:12): 0.8 MiB residuals,
        …; XLA's own 12 KiB."""
        on = f", on each of {self.n_devices:,} devices" if self.n_devices > 1 else ""
        return f"compiled {self.about} on {self.compiler.backend}{on}: {self.peak_text}: {_together(self.by_kind())}"

    @property
    def peak_text(self) -> str:
        """``peak 1.2 MiB in the backward pass, at `x * w` (model.py:12)``."""
        in_pass = ""
        if self.timeline and any(m.is_backward for m in self.timeline):
            in_pass = f" in the {'backward' if self.timeline[self.peak].is_backward else 'forward'} pass"
        return f"peak {format_bytes(self.peak_nbytes)}{in_pass}, {self.peak_place}"

    @property
    def peak_place(self) -> str:
        """``at `x * w` (model.py:12)``, as the modelled memory says it."""
        return f"at `{self.peak_at}`" + (f" ({short_location(self.location)})" if self.location is not None else "")

    @property
    def allocated(self) -> str:
        """`XLA allocates 1.2 MiB for temporaries, besides 64 KiB of arguments and 4 B of results`."""
        sizes = map(format_bytes, (self.temp_nbytes, self.argument_nbytes, self.result_nbytes))
        text = "XLA allocates {} for temporaries, besides {} of arguments and {} of results".format(*sizes)
        return f"{text}, for the value and the gradient" if self.about.startswith("gradient of") else text

    @property
    def turn(self) -> int:
        """The index at which the backward pass begins; the number of instructions if there is none.

        XLA schedules some instructions of each pass during the other, and shares some between them. So this is the
        point where instructions of the backward pass become frequent: the split of the schedule in two parts that
        explains most of the variance of their share.
        """
        n = len(self.timeline)
        if not any(m.is_backward for m in self.timeline):
            return n
        is_backward = np.array([m.is_backward for m in self.timeline])
        before = np.concatenate([[0], np.cumsum(is_backward)[:-1]])
        k = np.arange(n)
        rise = (before[-1] + is_backward[-1] - before) / (n - k) - before / np.maximum(k, 1)
        return int(np.argmax(np.where(is_backward, k * (n - k) * np.maximum(rise, 0) ** 2, -1)))

    def _chart(self) -> OverTime:
        kinds = ("argument", "constant", "result", *KINDS[3:])
        beside = self.argument_nbytes, self.constant_nbytes, self.result_nbytes
        largest = [f"{format_bytes(h.nbytes)} {h.what} {_at(h.location)}".rstrip() for h in self.at_peak[:3]]
        return OverTime(
            [(*beside, *m.nbytes[3:]) for m in self.timeline], kinds, (("forward", 0), ("backward", self.turn)),
            f"bytes alive in the compiled {self.about}", self.peak_text,
            (pictures.as_many(largest, "largest at the peak: "),), step="instruction",
        )  # fmt: skip

    def _parts(self) -> Iterator[Part]:
        if self.timeline:
            yield Drawn(self._chart().text())
        rows = [
            (
                h.kind, repeated(h.count, h.type) if h.type else "", format_bytes(h.nbytes), short_location(h.location),
                f"{as_code(h)}: {h.why}" if h.why else as_code(h),
            )
            for h in self.at_peak
        ]  # fmt: skip
        heads = ("kind", "type", "bytes", "line", "what, and why it is there")
        yield Table(heads, rows, "<<><<", "in memory at the peak:", more=self._more)
        yield from self._sentences

    def _html_parts(self) -> Iterator[Part]:
        return (part for part in self._parts() if not isinstance(part, Drawn))  # the picture has the curve

    @property
    def _sentences(self) -> Iterator[str]:
        yield f"{self.allocated}; {self.attributed:.1%} of the temporaries have a line."
        if self.on_host:
            values = listed(f"{repeated(h.count, h.type)} of {h.what} {_at(h.location)}".rstrip() for h in self.on_host)
            yield f"Besides, {format_bytes(self.host_nbytes)} are in the memory of the host: {values}."
        yield from self.unreported.notes(self.peak_nbytes)
        yield from self.notes

    def _more(self, shown: int) -> str:
        rest = self.at_peak[shown:]
        return more_rows(len(rest), sum(h.count for h in rest), "value", format_bytes(sum(h.nbytes for h in rest)))

    _data = (
        "function", "about", "compiler", "temp_nbytes", "argument_nbytes", "result_nbytes", "constant_nbytes",
        "reused_nbytes", "peak_nbytes", "reserved_nbytes", "attributed", "peak", "peak_at", "n_devices", "notes",
        "at_peak", "values", "fused", "on_host", "host_nbytes", "unreported",
        ("location=", ("location",)), "kinds",
        ("timeline", ("instruction", "opcode", "is_backward", "nbytes")),
    )  # fmt: skip

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of bytes in the order of the numbers of each moment."""
        return KINDS

    def compare(self, after: CompiledMemory) -> MemoryChange:
        """Compares this program's memory with another's: the bytes that appeared and disappeared, by group and kind,
        with the cause.

        >>> before = jaxviz.CompiledMemory.load("before.json")
        >>> print(before.compare(jaxviz.compiled_memory(loss, params, x)))
        compiled gradient of `loss` in `params` on cpu: peak 1.2 MiB → 2.0 MiB, +0.8 MiB: most of it …

        Args:
          after: the other report, such as that of a new version.
        """
        from jaxviz.xla.compiled_memory.change import MemoryChange

        return MemoryChange(self, after)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the report to a file as JSON, with the versions, the flags and the device; `load` reads it, for
        `compare`.

        Args:
          path: of the file.
        """
        from jaxviz.xla.compiled_memory.saved import save

        return save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CompiledMemory:
        """Reads a file that `save` wrote.

        Args:
          path: of the file.

        Raises:
          ValueError: the file is not of this kind, is damaged, or was written by a later version of jaxviz.
        """
        from jaxviz.xla.compiled_memory.saved import load

        return load(path)

    @classmethod
    def from_dump(cls, folder: str | os.PathLike[str], module: str = "") -> CompiledMemory:
        """Reads the memory of a program that XLA compiled elsewhere, such as on a cluster, and dumped to a folder.

        Run there with `XLA_FLAGS="--xla_dump_to=folder --xla_dump_hlo_as_proto"`; text dumps can be read too. Values
        are named by the operations and lines that JAX recorded on the instructions, and by expressions if the source is
        available under the same path.

        >>> print(jaxviz.CompiledMemory.from_dump("dump", "jit_train_step"))
        compiled program `train_step` on gpu: peak 53.1 GiB in the backward pass at dot_general (model.py:12): …

        Args:
          folder: the folder of the dump.
          module: a part of the program's name, such as 'jit_train_step' or 'module_0012'; if several match, the one
            with the most memory is read.

        Raises:
          ValueError: the folder has no such program, or one that is damaged or incomplete; the error names the file and
            what is missing.
        """
        from jaxviz.xla.compiled_memory.dumps import read_dump

        return read_dump(folder, module)

    def explain(self, f: Any, *args: Any, argnums: Argnums = 0, **kwargs: Any) -> CompiledMemory:
        """Adds the reasons why a function's gradient saves its residuals, for a program that was read without the
        function.

        The function is derived here, and nothing is compiled: a laptop can explain what a cluster ran.

        >>> elsewhere = jaxviz.CompiledMemory.from_dump("dump", "jit_train_step")
        >>> print(elsewhere.explain(train_step, params, batch))

        A residual gets a reason if all residuals of the gradient with its line, operation and size have the same
        reason. The others stay as they are, and a note says how many bytes have a reason.

        Args:
          f: the function that was compiled, or whose gradient was; or a training step, or a Derivation.
          *args, **kwargs: its arguments, as for `derive`.
          argnums: the positional arguments to differentiate with respect to.

        Raises:
          the errors of `derive`.
        """
        from jaxviz.xla.compiled_memory.reading import explained

        return explained(self, f, args, kwargs, argnums)


def _together(sums: dict[Kind, int]) -> str:
    """`1.2 MiB residuals, 4.0 KiB arguments; XLA's own 12 B`."""
    of_program = [f"{format_bytes(n)} {PLURALS.get(kind, kind)}" for kind, n in sums.items() if kind not in OWN and n]
    own = sum(n for kind, n in sums.items() if kind in OWN and kind != "not attributed")
    unknown = sums.get("not attributed", 0)
    parts = [", ".join(of_program)] if of_program else []
    parts += [f"XLA's own {format_bytes(own)}"] if own else []
    parts += [f"not attributed {format_bytes(unknown)}"] if unknown else []
    return "; ".join(parts)


def as_code(occupant: Held) -> str:
    """An expression or a path is put in backticks; a phrase, such as "the gradient in w", is not."""
    is_code = occupant.kind in ("argument", "residual") and "`" not in occupant.what
    return f"`{occupant.what}`" if is_code else occupant.what


def _at(location: Location | None) -> str:
    return "" if location is None else f"({short_location(location)}) "


def largest_first(occupants: Sequence[Held]) -> tuple[Held, ...]:
    """The same, the largest first."""
    return tuple(sorted(occupants, key=lambda h: -h.nbytes))
