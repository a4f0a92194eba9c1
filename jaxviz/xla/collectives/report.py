"""The report of which lines communicate, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from jaxviz.analysis.grouping import alike, grouped, pattern
from jaxviz.ir.origin import Location
from jaxviz.report.data import Data
from jaxviz.report.report import Listed, Part, Report, Table
from jaxviz.report.tables import counted, format_bytes, more_rows, repeated, short_location
from jaxviz.xla.compiled_memory.report import Compiler

Stage = Literal["forward", "backward", "outside"]
CauseKind = Literal["written", "cotangent", "sum", "asked", "move", ""]


@dataclass(frozen=True, slots=True)
class Collective(Data):
    """A collective of the compiled program, or one that types imply, or several equal ones of one expression in
    repeated layers.

    Args:
      kind: 'all-reduce', 'reduce-scatter', 'all-gather', 'all-to-all', 'collective-permute', 'collective-broadcast' or
        'ragged-all-to-all'; '' if types imply that XLA may exchange values, and not how.
      axes: the mesh axes along which devices exchange values; () if they are along none.
      group_size: the number of devices that exchange values.
      type: the type of one device's operand, such as `f32[8,64]`.
      nbytes: bytes of the exchanged array on one device: the result of an all-gather, the operand otherwise.
      sent_nbytes: the minimum number of bytes that each device sends, each time.
      count: how many there are in the program.
      trips: how often each runs in one run of the program; None if unknown.
      stage: the pass of its equation; 'outside' if there are no passes.
      what: the expression that it is for.
      operation: the equation's, such as 'dot_general'.
      location: its line in the user's code; None if unknown.
      cause: why it is there; '' if unknown.
      cause_kind: 'written' for a collective of the function itself, or its transpose; 'cotangent' for a cotangent that
        is summed; 'sum' for a sum over a split dimension; 'asked' for a layout that the function asks for; 'move' for
        one that an operation needs.
      advice: what would defer, merge or avoid it; '' if nothing is known.
      instructions: the names of the compiled program's instructions; () for what types imply.
      equations: the numbers of the equations that they are for, as `Tags` numbers them.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    type: str
    nbytes: int
    sent_nbytes: int
    count: int
    trips: int | None
    stage: Stage
    what: str
    operation: str
    location: Location | None
    cause: str
    cause_kind: CauseKind
    advice: str
    instructions: tuple[str, ...]
    equations: tuple[int, ...] = ()

    _data = (
        "kind", "axes", "group_size", "type", "nbytes", "sent_nbytes", "count", "trips", "stage", "what", "operation",
        "location", "cause", "cause_kind", "advice", "instructions",
    )  # fmt: skip

    @property
    def total_nbytes(self) -> int:
        """Bytes of all of them in one run; an unknown number of trips counts as one."""
        return self.nbytes * self.count * (self.trips or 1)

    @property
    def times(self) -> str:
        """How often it runs: `2 × 6` for two collectives in a loop of six trips."""
        return _times(self.count, self.trips)

    @property
    def total_sent_nbytes(self) -> int:
        """The minimum number of bytes that each device sends in one run; an unknown number of trips counts as one."""
        return self.sent_nbytes * self.count * (self.trips or 1)


@dataclass(frozen=True, slots=True)
class WrittenCollective(Data):
    """A collective, or a requested layout, of the function itself or its gradient, before XLA partitions it.

    Args:
      operation: such as 'psum', 'ppermute', 'reshard' or 'sharding_constraint'.
      axes: the axes that it names.
      type: the type of one device's operand; for a layout, of the whole value.
      nbytes: the bytes of that type.
      count: how many of them there are.
      trips: how often each runs in one run of the program; None if unknown.
      stage: its pass.
      what: the expression.
      location: the user's line.
      is_transpose: whether it is the transpose of a collective of the forward pass.
      became: the kinds of the compiled collectives; () if it needs no communication, or XLA merged it with another.
    """

    operation: str
    axes: tuple[str, ...]
    type: str
    nbytes: int
    count: int
    trips: int | None
    stage: Stage
    what: str
    location: Location | None
    is_transpose: bool
    became: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Replicated(Data):
    """A value that is replicated without being asked for.

    Args:
      what: the argument, result or expression.
      type: of it.
      axes: the axes over which it is replicated.
      nbytes: bytes on one device.
      split_nbytes: bytes on one device if it were split over these axes too.
      location: the line.
      why: the cause.
      advice: what to write.
    """

    what: str
    type: str
    axes: tuple[str, ...]
    nbytes: int
    split_nbytes: int
    location: Location | None
    why: str
    advice: str


@dataclass(frozen=True, slots=True)
class Rematerialized(Data):
    """A value that XLA gathers whole on each device and splits again, for want of a direct way between two layouts.

    Args:
      what: the expression that it is for.
      type: the type of one device's part before.
      before, after: the layouts.
      location: its line; None if XLA's message names no instruction of the program.
      cause: why it needs another layout; '' if unknown.
    """

    what: str
    type: str
    before: str
    after: str
    location: Location | None
    cause: str


@dataclass(frozen=True, eq=False, repr=False)
class Collectives(Report, schema="collectives"):
    """What devices exchange in a gradient or training step, compiled or as its types imply. See `jaxviz.collectives`.

    >>> found = jaxviz.collectives(loss, params, x)
    >>> found.sent_nbytes, [(c.primitive, c.location) for c in found.compiled]

    Args:
      function: the name of the function.
      about: what the report is about, such as "gradient of `loss` in `params`".
      compiler: the compiler; None if nothing was compiled.
      n_devices: the number of devices that it runs on.
      mesh: the axes of its mesh, each with its size.
      compiled: the collectives of the compiled program, those that send most first; () if nothing was compiled.
      written: those of the function and of its gradient before XLA partitions them.
      replicated: values that are replicated without being asked for, largest first.
      rematerialized: values that XLA gathers whole only to reshard them; None if XLA's log could not be read, or
        nothing was compiled.
      implied: those that the types imply, in the same order.
      notes: remarks on the whole program.
    """

    function: str
    about: str
    compiler: Compiler | None
    n_devices: int
    mesh: dict[str, int]
    compiled: tuple[Collective, ...] = field(repr=False)
    written: tuple[WrittenCollective, ...] = field(repr=False)
    replicated: tuple[Replicated, ...] = field(repr=False)
    rematerialized: tuple[Rematerialized, ...] | None = field(repr=False)
    implied: tuple[Collective, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()

    _data = (
        "function", "about", "compiler", "n_devices", "mesh", "nbytes", "sent_nbytes", "explained", "compiled",
        "implied", "written", "replicated", "rematerialized", "notes",
    )  # fmt: skip

    @property
    def rows(self) -> tuple[Collective, ...]:
        """Those of the compiled program, or if nothing was compiled, those that the types imply."""
        return self.implied if self.compiler is None else self.compiled

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the arrays that are exchanged in one run, on one device."""
        return sum(c.total_nbytes for c in self.rows)

    @cached_property
    def sent_nbytes(self) -> int:
        """The minimum number of bytes that each device sends in one run."""
        return sum(c.total_sent_nbytes for c in self.rows)

    @cached_property
    def explained(self) -> float:
        """The fraction of the exchanged bytes whose cause is known."""
        known = sum(c.total_nbytes for c in self.rows if c.cause)
        return known / self.nbytes if self.nbytes else 1.0

    @property
    def summary(self) -> str:
        """gradient of `loss` on 8 devices (data=8), compiled on cpu: each device sends at least 61.4 KiB a run in …"""
        on = ", ".join(f"{axis}={n}" for axis, n in self.mesh.items())
        on = f"{counted(self.n_devices, 'device')}{f' ({on})' if on else ''}"
        how = "not compiled" if self.compiler is None else f"compiled on {self.compiler.backend}"
        rows = [c for c in self.rows if c.kind]
        if not rows:
            implied = "the types imply " if self.compiler is None else ""
            return f"{self.about} on {on}, {how}: {implied}no collectives"
        first = rows[0]
        where = f" ({short_location(first.location)})" if first.location is not None else ""
        n = sum(c.count for c in rows)
        most = f", most of it in the {first.kind} for {in_words(_OPERATION.sub('', first.what))}"
        more = f"{most if len(rows) > 1 else ''}{where}"
        implied = "the types imply that " if self.compiler is None else ""
        remat = len(self.rematerialized or ())
        them = "it" if remat == 1 else "them"
        also = f"; XLA replicates {counted(remat, 'value')} only to reshard {them}" if remat else ""
        return (
            f"{self.about} on {on}, {how}: {implied}each device sends at least "
            f"{format_bytes(self.sent_nbytes)} a run in {counted(n, 'collective')}{more}{also}"
        )

    def _parts(self) -> Iterator[Part]:
        yield Table(
            ("kind", "over", "sent", "bytes", "times", "pass", "line", "why"),
            [_row(c) for c in self.rows], "<<>>><<<", self._title if self.rows else "", more=self._more,
        )  # fmt: skip
        advice = grouped((c for c in self.rows if c.advice), lambda c: _QUOTED.sub("`…`", c.advice))
        if advice:
            yield "What would defer, merge or avoid them:"
            yield Listed(map(_advice, advice))
        yield Table(
            ("type", "line", "what"), list(map(_row_of_rematerialized, self.rematerialized or ())), "<<<",
            "gathered whole, only to be resharded (involuntary full rematerialization):" if self.rematerialized else "",
        )  # fmt: skip
        alone = grouped(self.replicated, lambda r: (pattern(r.what), pattern(r.why), r.type, r.axes, r.location))
        yield Table(
            ("type", "bytes", "if split", "over", "line", "what, and why"), list(map(_row_of_replicated, alone)),
            "<>><<<", "replicated, though you did not ask for it:" if self.replicated else "",
        )  # fmt: skip
        yield Listed(dict.fromkeys(r.advice for r in self.replicated if r.advice))
        yield Table(
            ("operation", "over", "bytes", "times", "pass", "line", "what, and what XLA compiles it to"),
            list(map(_row_of_written, self.written)),
            "<<>><<<", "before partitioning, in the function and its gradient:" if self.written else "",
        )  # fmt: skip
        if self.compiled:
            yield (
                f"{self.explained:.1%} of the bytes have a known cause; `sent` is the minimum for each kind of "
                "collective."
            )
        yield from self.notes

    @property
    def _title(self) -> str:
        if self.compiler is None:
            return "implied by the types, on each device:"
        return "after partitioning, on each device:"

    def _more(self, shown: int) -> str:
        rest = self.rows[shown:]
        return more_rows(
            len(rest), sum(c.count for c in rest), "collective", format_bytes(sum(c.total_sent_nbytes for c in rest))
        )


_OPERATION = re.compile(r"^\S+ for (?=the cotangent of )")
_GRADIENT = re.compile(r"the gradient in (.*)")
_QUOTED = re.compile(r"`[^`]*`")


def _advice(same: Sequence[Collective]) -> str:
    """One piece of advice for several collectives, for which it differs only in names."""
    text, *others = dict.fromkeys(c.advice for c in same)
    at = ", ".join(dict.fromkeys(short_location(c.location) for c in same if c.location is not None))
    more = f" ({len(others)} more like it)" if others else ""
    return f"{f'{at}: ' if same[0].location is not None else ''}{text}{more}"


def _row(c: Collective) -> tuple[str, ...]:
    over = ", ".join(c.axes) or f"{c.group_size} devices"
    cause = c.cause or f"{in_words(c.what)}: no cause found"
    sizes = (format_bytes(c.total_sent_nbytes), format_bytes(c.nbytes)) if c.kind else ("?", "?")
    return (
        c.kind or "?", over, *sizes, c.times, c.stage,
        short_location(c.location), cause,
    )  # fmt: skip


def _row_of_rematerialized(r: Rematerialized) -> tuple[str, ...]:
    why = f"; {r.cause}" if r.cause else ""
    return r.type, short_location(r.location), f"{in_words(r.what)}: from {r.before} to {r.after}{why}"


def _row_of_replicated(same: Sequence[Replicated]) -> tuple[str, ...]:
    """One row for values that differ only in the numbers of their layers."""
    first = same[0]
    what = alike([r.what for r in same])
    gradient = _GRADIENT.fullmatch(what)
    name = f"the gradient in `{gradient[1]}`" if gradient is not None else in_words(what)
    return (
        repeated(len(same), first.type), format_bytes(sum(r.nbytes for r in same)),
        format_bytes(sum(r.split_nbytes for r in same)), ", ".join(first.axes), short_location(first.location),
        f"{name}: {alike([r.why for r in same])}",
    )  # fmt: skip


def _row_of_written(w: WrittenCollective) -> tuple[str, ...]:
    return (
        w.operation, ", ".join(w.axes), format_bytes(w.nbytes), _times(w.count, w.trips), w.stage,
        short_location(w.location), f"{in_words(w.what)}{_became(w)}",
    )  # fmt: skip


def _times(count: int, trips: int | None) -> str:
    """`2 × 6`: the number of collectives, and how often each runs."""
    if trips is None:
        return f"{count:,} × ?"
    return repeated(count, f"{trips:,}") if trips > 1 else f"{count:,}"


def _became(w: WrittenCollective) -> str:
    parts = ["the transpose of the one in the forward pass"] if w.is_transpose else []
    parts += [", ".join(w.became)] if w.became else ["no communication"]
    return f": {'; '.join(parts)}"


def in_words(name: str) -> str:
    """`` `x @ w` ``; in "the cotangent of x @ w" or "exp in jax.nn.softmax(x)", only the expression is code."""
    phrase = re.match(
        r"(the cotangent of |a part of the cotangent of |\S+ (?:in|for) (?:the (?:cotangent|derivative) of )?)(.+)",
        name,
    )
    if not name or "`" in name:
        return name
    return f"{phrase[1]}`{phrase[2]}`" if phrase else f"`{name}`"
