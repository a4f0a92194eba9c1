"""The cost of a gradient by source line: FLOPs, transcendentals and bytes of the equations of both passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from jaxviz.analysis.devices import spans_devices
from jaxviz.analysis.grouping import evaluation, grouped
from jaxviz.analysis.lowering import gradient_function
from jaxviz.analysis.naming import ROOM_IN_SENTENCE, Naming
from jaxviz.analysis.site import call_name
from jaxviz.analysis.training_step import is_backward, is_loss, takes_gradient
from jaxviz.analysis.walk import defined_at, location_of
from jaxviz.arguments import Argnums, flat_arguments, positions
from jaxviz.derivation import Derivation, derive
from jaxviz.features.cost.counts import Cost
from jaxviz.features.cost.parts import (
    PASSES,
    CostGroup,
    CostOfRows,
    CostPart,
    CostRow,
    Pass,
    parts,
    repeats,
    total_of,
    weight,
)
from jaxviz.features.cost.timings import Stopwatch, Timings
from jaxviz.features.residuals.notes import gradient_note
from jaxviz.higher_order import is_choice, is_loop, is_scan
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.errors import EquationError, JaxvizError
from jaxviz.ir.origin import Location
from jaxviz.ir.stack import deep_stack, usual_stack
from jaxviz.ir.syntax import Equation, Program
from jaxviz.progress import counting
from jaxviz.report.charts import FLOPS, Axis, Bars
from jaxviz.report.data import Data
from jaxviz.report.report import SHOWN, Report, Table
from jaxviz.report.tables import (
    format_bytes,
    format_count,
    format_flops,
    in_library,
    line_label,
    more_of,
    narrow_location,
    repeated,
    short_location,
)
from jaxviz.runtime.references import on_copies
from jaxviz.runtime.stoppable import compiled_by_jax
from jaxviz.transforms.driver import select
from jaxviz.transforms.unopened import find_unopened, unopened_note

_TOP = 12
"""How many primitives a report shows."""


@dataclass(frozen=True, slots=True)
class _Line(Data):
    file: str
    line: int
    cost: Cost

    _data = ("file", "line", "*cost")


@dataclass(frozen=True, eq=False, repr=False)
class CostReport(CostOfRows, Report, schema="cost"):
    """The cost of the gradient of a function, counted as XLA counts it: see `jaxviz.features.cost.counts`.

    >>> cost = jaxviz.cost(loss, params, x)
    >>> cost.total.flops, cost.by_line

    Args:
      derivation: the programs.
      rows: the equations of the forward, then of the backward program, those inside loops and calls in place.
      notes: remarks on the figures, a sentence each.
      has_backward: whether there is a backward program; with a while loop only the forward pass is counted.
      inputs: the flat arguments; None if the report is about a program without arguments.
      is_step: whether it is about a training step, which computes a gradient itself and is not differentiated.
    """

    derivation: Derivation
    rows: tuple[CostRow, ...]
    notes: tuple[str, ...]
    has_backward: bool
    inputs: tuple[Any, ...] | None = None
    is_step: bool = False

    @property
    def about(self) -> str:
        """What the report is about: "gradient of `loss` in `params`", or "training step `train`"."""
        return f"training step `{self.function}`" if self.is_step else self.derivation.gradient

    @property
    def function(self) -> str:
        """The function's name."""
        return self.derivation.primal.name

    @cached_property
    def groups(self) -> tuple[CostGroup, ...]:
        """The equations, grouped by expression, the most expensive first."""
        groups = grouped(self.rows, lambda r: (r.location, evaluation(r.part.equation, r.part.within)))
        return tuple(sorted(map(CostGroup, groups), key=lambda g: weight(g.total), reverse=True))

    @cached_property
    def by_line(self) -> Mapping[Location, Cost]:
        """The cost of each of the user's lines, forward and backward, the most expensive first."""
        return _grouped((r.location, r.cost) for r in self.rows)

    @cached_property
    def by_primitive(self) -> Mapping[str, Cost]:
        """The cost of each primitive, forward and backward, the most expensive first."""
        return _grouped((r.primitive, r.cost) for r in self.rows)

    @property
    def estimated(self) -> tuple[str, ...]:
        """The unknown primitives, whose cost is estimated."""
        return tuple(dict.fromkeys(r.primitive for r in self.rows if r.part.is_estimated))

    @property
    def summary(self) -> str:
        """cost of the gradient of `loss` in `params`: 3.2 MFLOP, 41.0 k transcendentals, 2.1 MiB read, …"""
        total = self.total
        sent = f", {format_bytes(total.bytes_sent)} sent between devices" if total.bytes_sent else ""
        plural = "s" * (total.transcendentals != 1)
        return (
            f"cost of the {self.about}: {format_flops(total.flops)}, {format_count(total.transcendentals)} "
            f"transcendental{plural}, {format_bytes(total.bytes_read)} read, {format_bytes(total.bytes_written)} "
            f"written{sent}: {total.intensity:.1f} FLOPs per byte"
        )

    def _chart(self) -> Bars:
        rows = [(line_label(r.location), r.cost.flops, r.stage) for r in self.rows]
        of = "training step" if self.is_step else "gradient of"
        return Bars(rows, f"FLOPs of the {of} {self.function}, by line", Axis("FLOPs", FLOPS, format_flops))

    def _parts(self) -> Iterator[str | Table]:
        yield self._passes
        groups = [
            (
                format_count(g.forward.flops), format_count(g.backward.flops), format_count(g.total.transcendentals),
                format_bytes(g.total.nbytes),
                _share(g.total, self.total), f"{narrow_location(g.location)}  {_called(g)}",
            )
            for g in self.groups
        ]  # fmt: skip
        counts, costs = Counter(r.primitive for r in self.rows), list(self.by_primitive.items())
        primitives = [
            (
                f"{counts[name]:,}", format_count(c.flops), format_count(c.transcendentals), format_bytes(c.nbytes),
                f"{c.intensity:.1f}", _share(c, self.total), name,
            )
            for name, c in costs
        ]  # fmt: skip
        share = lambda costs: _share(total_of(costs), self.total) or "0%"
        more_groups = more_of(self.groups, lambda g: len(g.rows), "equation", lambda rest: share(g.total for g in rest))
        more = more_of(costs, lambda item: counts[item[0]], "equation", lambda rest: share(c for _, c in rest))
        if self.rows:
            yield Table(_BY_EXPRESSION, groups, ">>>>><", shown=SHOWN, more=more_groups)
            yield Table(_BY_PRIMITIVE, primitives, ">>>>>><", "by primitive", _TOP, more)
        yield from self.notes

    @property
    def _passes(self) -> str:
        n = [sum(r.stage == stage for r in self.rows) for stage in PASSES]
        forward = f"forward {format_flops(self.forward.flops)} in {n[0]:,} equations"
        return (
            f"{forward}, backward {format_flops(self.backward.flops)} in {n[1]:,}"
            if n[1] or self.has_backward
            else forward
        )

    _data = (
        "function", "total", "forward", "backward", "groups", "rows", "estimated", "notes", "primitives=by_primitive",
        "lines=_lines",
    )  # fmt: skip

    @property
    def _lines(self) -> list[_Line]:
        return [_Line(at.file, at.line, cost) for at, cost in self.by_line.items()]

    @cached_property
    def as_compiled(self) -> Cost:
        """The cost to compare with XLA's figures: of one device, with the body of a scan counted `unroll` times."""
        return total_of(r.part.each * r.part.copies for r in self.rows)

    def xla(self, optimized: bool = True) -> Cost:
        """XLA's figures for the forward and the backward program, compiled together for the default backend or for the
        devices of the arguments.

        XLA counts the body of a loop once, however often it runs, and reports the work of one device: `as_compiled`
        counts in the same way. In a compiled program XLA counts a value each time that a fusion recomputes it, which
        adds up in small models; matrix products are never recomputed.

        Args:
          optimized: False for the program that JAX passes to XLA, which is then not compiled.

        Returns:
          the FLOPs, transcendentals and bytes.

        Raises:
          JaxvizError: the backend does not report the cost of its programs.
          the errors of compiling.
        """
        analysis = (self._compiled if optimized else self._lowered).cost_analysis()
        analysis = analysis[0] if isinstance(analysis, (list, tuple)) and analysis else analysis
        if not analysis:
            raise JaxvizError(f"the backend {jax.default_backend()} does not report the cost of its programs")
        # XLA counts a call into a library as -1.
        counts = {key: max(0, int(analysis.get(key) or 0)) for key in ("flops", "transcendentals", _BYTES, _BYTES_OUT)}
        written = min(counts[_BYTES_OUT], counts[_BYTES])
        return Cost(counts["flops"], counts[_BYTES] - written, written, counts["transcendentals"])

    @cached_property
    @usual_stack
    def _compiled(self) -> Any:
        return compiled_by_jax(self._lowered)

    @cached_property
    @usual_stack
    def _lowered(self) -> Any:
        fun, types = gradient_function(self.derivation, self.has_backward)
        return jax.jit(fun).lower(*types)

    def compare(self) -> str:
        """Compares these FLOPs with those of XLA, in a few sentences; it compiles as `xla` does."""
        xla, lowered, ours = self.xla(), self.xla(optimized=False), self.as_compiled
        ratio = f"{ours.flops / xla.flops:.2f} times as many" if xla.flops else "so there is no ratio"
        text = (
            f"jaxviz counts {ours.flops:,} FLOPs; XLA on {jax.default_backend()} counts {xla.flops:,} in the "
            f"compiled program, {ratio}, and {lowered.flops:,} before it optimizes."
        )
        if ours.flops != self.total.flops:
            text += f" These count a loop's body once and only one device; the total is {self.total.flops:,}."
        moves = f"{format_bytes(xla.nbytes)} where the equations by themselves move {format_bytes(ours.nbytes)}"
        return f"{text} Fused, it moves {moves}."

    def measure(self, repeat: int = 5) -> Timings:
        """Runs the forward and the backward program, with cotangents of one, and measures each equation.

        Each equation is compiled separately, with the programs that it holds, and runs once before to warm up. Each
        time includes a call of a few microseconds, and does not include what XLA saves by fusing equations. Equations
        with effects have them in each run.

        Args:
          repeat: how often each equation runs; the best time counts.

        Raises:
          TypeError: there are no values to run on, but a program, a ShapeDtypeStruct or a tracer.
          ValueError: `repeat` is less than one.
        """
        if repeat < 1:
            raise ValueError(f"repeat must be at least 1; got {repeat}")
        d = self.derivation
        if self.inputs is None:
            raise TypeError(
                "measure runs the equations and needs arguments: call jaxviz.cost with a function and its arguments"
            )
        for x, name in zip(self.inputs, d.primal.arg_names, strict=True):
            if isinstance(x, jax.ShapeDtypeStruct) or compat.is_tracer(x):
                raise TypeError(
                    f"measure runs the equations and needs arrays; argument {name or '?'} is {x}, which has no value"
                )
        n = len(d.forward.equations) + (len(d.backward.equations) if self.has_backward else 0)
        with counting("equations", n) as done:
            stopwatch = Stopwatch(repeat, d, done)
            inputs = [compat.as_array(x, v.aval) for x, v in zip(self.inputs, d.forward.invars, strict=True)]
            outs = stopwatch.run("forward", *on_copies(d.forward, inputs))
            if self.has_backward:
                residuals = outs[len(outs) - d.n_residuals :]
                cotangents = [jnp.ones(v.aval.shape, v.aval.dtype) for v in d.backward.invars[d.n_residuals :]]
                stopwatch.run("backward", *on_copies(d.backward, [*residuals, *cotangents]))
        return Timings(self.function, tuple(stopwatch.rows))


_BY_EXPRESSION = (
    "forward FLOPs", "backward FLOPs", "transcendentals", "bytes", "share", "line, and what is computed there",
)  # fmt: skip
_BY_PRIMITIVE = ("equations", "FLOPs", "transcendentals", "bytes", "FLOPs/byte", "share", "primitive")
_BYTES, _BYTES_OUT = "bytes accessed", "bytes accessedout{}"


def _grouped(costs: Iterable[tuple[Any, Cost]]) -> dict[Any, Cost]:
    totals: dict[Any, Cost] = {}
    for key, cost in costs:
        totals[key] = totals.get(key, Cost()) + cost
    return dict(sorted(totals.items(), key=lambda item: weight(item[1]), reverse=True))


def _called(group: CostGroup) -> str:
    """`12 × h = jnp.tanh(x @ w)` as code, and the library location if there is one."""
    return repeated(group.count, in_library(f"`{group.named(ROOM_IN_SENTENCE)}`", group.library))


def _share(cost: Cost, total: Cost) -> str:
    return f"{100 * cost.flops / total.flops:.0f}%" if total.flops else ""


@api_boundary
@counting("cost")
@deep_stack
def cost(f: Any, *args: Any, argnums: Argnums = 0, **kwargs: Any) -> CostReport:
    """Counts the FLOPs, transcendentals and bytes of a function's gradient, by equation, source line and primitive.

    It runs and compiles nothing; `CostReport.xla` and `.compare` compile, and `.measure` runs.

    >>> print(jaxviz.cost(loss, params, x))
    cost of the gradient of `loss` in `params`: 3.2 MFLOP, 41.0 k transcendentals, 2.1 MiB read, 0.9 MiB written: …
    forward 1.1 MFLOP in 26 equations, backward 2.1 MFLOP in 31
    ...

    For a training step, which computes a gradient itself and returns more than one number, it is the step's cost.

    Args:
      f: a function; or a Derivation, Program or ClosedJaxpr, without further arguments.
      *args, **kwargs: its arguments, as for `derive`.
      argnums: the positional argument or arguments to differentiate with respect to (for a Program: its flat inputs).

    Raises:
      the errors of `derive`.
    """
    d = derive(f, *args, argnums=argnums, **kwargs)
    if isinstance(f, (Derivation, Program)) or not callable(f):
        return _report(d, None)
    leaves, _, _, is_input = flat_arguments(args, kwargs, positions(f, args, argnums))
    inputs = select(is_input, leaves)
    if not is_loss(d.primal) and takes_gradient(d.primal):
        return _report(derive(f, *args, argnums=(), **kwargs), inputs, is_step=True)
    return _report(d, inputs)


def _report(d: Derivation, inputs: tuple[Any, ...] | None, is_step: bool = False) -> CostReport:
    programs: list[tuple[Pass, Program]] = [("forward", d.forward)]
    notes = [] if is_step else [*gradient_note(d)]
    try:
        if not is_step:
            programs.append(("backward", d.backward))
    except EquationError as error:
        notes.append(
            "Only the forward pass is counted."
            if d.no_reverse_mode is not None
            else f"There is no backward program, so only the forward pass is counted: {error}"
        )
    notes += unopened_note(find_unopened([d.primal] if is_step else d.derivable, costs=True))
    definition, naming = defined_at(d.primal), Naming(d.primal)
    in_backward = lambda p: is_step and any(map(is_backward, (p.equation, *p.within)))
    rows = tuple(
        CostRow(
            "backward" if in_backward(p) else stage, p, naming.location(p.equation, p.within) or definition, _place(p)
        )
        for stage, program in programs
        for e in program.equations
        for p in parts(e)
    )
    return CostReport(d, rows, (*notes, *_notes(d, rows)), len(programs) == 2, inputs, is_step)


def _place(part: CostPart) -> str:
    """`cell ×20 in shard_map ×8`, innermost first."""
    names = []
    for e in reversed(part.within):
        n, _ = repeats(e)
        names.append(f"{call_name(e)} ×{n:,}" if n != 1 else call_name(e))
    return " in ".join(names)


def _notes(d: Derivation, rows: Sequence[CostRow]) -> Iterator[str]:
    holders: dict[Equation, tuple[Equation, ...]] = {
        e: r.part.within[:i] for r in rows for i, e in enumerate(r.part.within)
    }
    for concerns, what in (
        (
            lambda e: is_loop(e) and not is_scan(e),
            "a while loop is counted as one iteration, since its trip count is not known",
        ),
        (is_choice, "for a cond, the most expensive branch is counted"),
    ):
        at = dict.fromkeys(location_of(e, within) for e, within in holders.items() if concerns(e))
        lines = ", ".join(short_location(x) for x in at if x is not None)
        if at:
            yield f"{what[0].upper()}{what[1:]}{f': {lines}' if lines else ''}."
    estimated = dict.fromkeys(r.primitive for r in rows if r.part.is_estimated)
    if estimated:
        yield f"Estimated, at one FLOP for each element of a result that is not an integer: {', '.join(estimated)}."
    if spans_devices(d):
        yield "The cost is that of all devices together."
