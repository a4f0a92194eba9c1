"""What a gradient costs: FLOPs, transcendentals and bytes of each equation of the forward and the backward program, by source line."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from typing import Literal as OneOf

import jax
import jax.numpy as jnp

from jaxviz.analysis.devices import input_types, spans_devices
from jaxviz.analysis.walk import call_name, defined_at, location_of
from jaxviz.derivation import Derivation, derive, flat_arguments, in_bounds
from jaxviz.features.cost.counts import Cost
from jaxviz.features.cost.parts import Part, cost_of, parts, repeats, total_of
from jaxviz.features.residuals.notes import no_gradient_note
from jaxviz.higher_order import is_choice, is_loop, is_scan
from jaxviz.higher_order.others import RUNS
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.convert import one_equation
from jaxviz.ir.emit import as_function
from jaxviz.ir.errors import EquationError, JaxvizError
from jaxviz.ir.origin import Location
from jaxviz.ir.stack import deep_stack, usual_stack
from jaxviz.ir.syntax import Atom, Equation, Literal, Operation, Program
from jaxviz.progress import counting
from jaxviz.report.report import Report, Table, attributes, plain
from jaxviz.report.tables import format_bytes, short_location, shortened, type_text
from jaxviz.transforms.unopened import find_unopened, unopened_note

Pass = OneOf["forward", "backward"]

TOP = 12
"""How many lines and primitives a report shows."""


@dataclass(frozen=True, slots=True)
class Row:
    """An equation of the forward or the backward program that holds no program itself.

    Args:
      stage: 'forward' or 'backward'.
      part: the equation, what it stands in, and how often it runs.
      location: the user's line.
      place: what it stands in, such as 'cell ×20'; '' outside of any.
    """

    stage: Pass
    part: Part
    location: Location
    place: str = ""

    @property
    def equation(self) -> Equation:
        return self.part.equation

    @property
    def primitive(self) -> str:
        return str(self.equation.primitive.name)

    @property
    def type(self) -> str:
        """Of its first result, such as `f32[8,32]`."""
        avals = self.equation.operation.out_avals
        return type_text(avals[0]) if avals else ""

    @property
    def cost(self) -> Cost:
        """What it costs, all iterations and devices together."""
        return self.part.cost

    @property
    def trip_count_known(self) -> bool:
        """False inside of a while loop, which counts for one iteration."""
        return not any(is_loop(e) and not is_scan(e) for e in self.part.within)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for programs."""
        named = attributes(self, ("stage", "primitive", "type", "location", "place", "trip_count_known"))
        return {**named, "times": self.part.times, "estimated": self.part.is_estimated, **self.cost.to_dict()}


@dataclass(frozen=True, eq=False, repr=False)
class CostReport(Report):
    """What the gradient of a function costs. FLOPs and transcendentals are counted as XLA counts them: see `jaxviz.features.cost.counts`.

    Args:
      derivation: the programs.
      rows: the equations of the forward program, then those of the backward program, those inside loops and calls in their place.
      notes: what is worth knowing about the figures, a sentence each.
      has_backward: whether the function has a backward program; a while loop has none, and then only the forward pass counts.
      inputs: the flat arguments; None where the report is of a program without any.
    """

    derivation: Derivation
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    has_backward: bool
    inputs: tuple[Any, ...] | None = None

    @property
    def function(self) -> str:
        """The function's name."""
        return self.derivation.primal.name

    @cached_property
    def forward(self) -> Cost:
        """Of the forward program, which computes the results and what the backward one needs."""
        return total_of(r.cost for r in self.rows if r.stage == "forward")

    @cached_property
    def backward(self) -> Cost:
        return total_of(r.cost for r in self.rows if r.stage == "backward")

    @property
    def total(self) -> Cost:
        """Of both."""
        return self.forward + self.backward

    @cached_property
    def by_line(self) -> Mapping[Location, Cost]:
        """The cost of each line of the user's, forward and backward, the most expensive first."""
        return _grouped((r.location, r.cost) for r in self.rows)

    @cached_property
    def by_primitive(self) -> Mapping[str, Cost]:
        """The cost of each primitive, forward and backward, the most expensive first."""
        return _grouped((r.primitive, r.cost) for r in self.rows)

    @property
    def estimated(self) -> tuple[str, ...]:
        """The primitives that are not known, whose cost is estimated."""
        return tuple(dict.fromkeys(r.primitive for r in self.rows if r.part.is_estimated))

    @property
    def summary(self) -> str:
        """`cost of loss: 3.2 MFLOP, 41.0 k transcendentals, 2.1 MiB read, 0.9 MiB written: 1.0 FLOPs a byte`."""
        total = self.total
        sent = f", {format_bytes(total.bytes_sent)} sent between devices" if total.bytes_sent else ""
        return (
            f"cost of {self.function}: {format_flops(total.flops)}, {_number(total.transcendentals)} transcendentals, "
            f"{format_bytes(total.bytes_read)} read, {format_bytes(total.bytes_written)} written{sent}: "
            f"{total.intensity:.1f} FLOPs a byte"
        )

    def _parts(self) -> Iterator[str | Table]:
        yield self._passes
        ways = {stage: _grouped((r.location, r.cost) for r in self.rows if r.stage == stage) for stage in _PASSES}
        none = Cost()
        lines = [
            (
                _number(ways["forward"].get(at, none).flops), _number(ways["backward"].get(at, none).flops),
                _number(c.transcendentals), format_bytes(c.nbytes), _share(c, self.total), _at(at),
            )
            for at, c in self.by_line.items()
        ]  # fmt: skip
        counts = Counter(r.primitive for r in self.rows)
        primitives = [
            (
                f"{counts[name]:,}", _number(c.flops), _number(c.transcendentals), format_bytes(c.nbytes),
                f"{c.intensity:.1f}", _share(c, self.total), name,
            )
            for name, c in self.by_primitive.items()
        ]  # fmt: skip
        if self.rows:
            yield Table(_BY_LINE, lines, ">>>>><", shown=TOP)
            yield Table(_BY_PRIMITIVE, primitives, ">>>>>><", "by primitive", TOP)
        yield from self.notes

    @property
    def _passes(self) -> str:
        n = [sum(r.stage == stage for r in self.rows) for stage in _PASSES]
        forward = f"forward {format_flops(self.forward.flops)} in {n[0]:,} equations"
        return f"{forward}, backward {format_flops(self.backward.flops)} in {n[1]:,}" if self.has_backward else forward

    def to_dict(self) -> dict[str, Any]:
        return {
            **attributes(self, ("function", "total", "forward", "backward", "rows", "estimated", "notes")),
            "primitives": plain(self.by_primitive),
            "lines": [{**attributes(at, ("file", "line")), **c.to_dict()} for at, c in self.by_line.items()],
        }

    @cached_property
    def as_compiled(self) -> Cost:
        """What to hold against XLA's figures: the body of a scan counted once, or for each step of its `unroll`, and one device alone."""
        return total_of(r.part.each * r.part.copies for r in self.rows)

    def xla(self, optimized: bool = True) -> Cost:
        """What XLA says of the forward and the backward program, compiled together for the default backend or where arguments lie.

        XLA counts the body of a loop once, however often it runs, and tells what one device does: `as_compiled` is that count here. In a
        compiled program it counts as often as it is computed what a fusion computes again rather than read, which in small models is
        much; products of matrices are never computed again.

        Args:
          optimized: False for the program that JAX hands to XLA, which is not compiled then.

        Returns:
          its FLOPs, transcendentals and bytes.

        Raises:
          JaxvizError: the backend does not say what its programs cost.
          what compiling raises.
        """
        found = (self._compiled if optimized else self._lowered).cost_analysis()
        found = found[0] if isinstance(found, (list, tuple)) and found else found
        if not found:
            raise JaxvizError(f"the backend {jax.default_backend()} does not say what its programs cost")
        # A call into a library counts as -1.
        said = {key: max(0, int(found.get(key) or 0)) for key in ("flops", "transcendentals", _BYTES, _BYTES_OUT)}
        written = min(said[_BYTES_OUT], said[_BYTES])
        return Cost(said["flops"], said[_BYTES] - written, written, said["transcendentals"])

    @cached_property
    @usual_stack
    def _compiled(self) -> Any:
        with counting("compiling"):
            return self._lowered.compile()

    @cached_property
    @usual_stack
    def _lowered(self) -> Any:
        d = self.derivation
        forward = as_function(d.forward)
        if not self.has_backward:
            return jax.jit(forward).lower(*input_types(d))
        n_inputs, n_residuals = len(d.forward.invars), d.n_residuals
        backward, n_results = as_function(d.backward), len(d.forward.outvars) - n_residuals

        def gradient(*values: Any) -> Any:
            outs = forward(*values[:n_inputs])
            return outs[:n_results], backward(*outs[n_results:], *values[n_inputs:])

        cotangents = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in d.backward.invars[n_residuals:]]
        return jax.jit(gradient).lower(*input_types(d), *cotangents)

    def compare(self) -> str:
        """The ratio of these FLOPs to those of XLA, in a few sentences; compiles as `xla` does."""
        xla, given, ours = self.xla(), self.xla(optimized=False), self.as_compiled
        ratio = f"{ours.flops / xla.flops:.2f} times as many" if xla.flops else "so there is no ratio"
        text = (
            f"jaxviz counts {ours.flops:,} FLOPs; XLA on {jax.default_backend()} counts {xla.flops:,} in the compiled program, "
            f"{ratio}, and {given.flops:,} before it optimizes."
        )
        if ours.flops != self.total.flops:
            text += f" These count a loop's body once and one device alone; all that runs is {self.total.flops:,}."
        moves = f"{format_bytes(xla.nbytes)} where the equations by themselves move {format_bytes(ours.nbytes)}"
        return f"{text} Fused, it moves {moves}."

    def measure(self, repeat: int = 5) -> Timings:
        """Runs the forward and the backward program equation by equation and measures each; cotangents are ones.

        Each is compiled by itself, with what it holds, and runs once more to warm up. A call of a few microseconds is part of each time,
        and what XLA saves by fusing equations is not. Equations with effects have them each time.

        Args:
          repeat: how often each equation runs; the best time counts.

        Raises:
          TypeError: there are no values to run on: the report is of a program, or some argument is a ShapeDtypeStruct or is traced.
          ValueError: `repeat` is less than one.
        """
        if repeat < 1:
            raise ValueError(f"repeat is at least 1, not {repeat}")
        d = self.derivation
        if self.inputs is None:
            raise TypeError(
                "measure runs the equations, which takes arguments; call jaxviz.cost with a function and its arguments"
            )
        for x, name in zip(self.inputs, d.primal.arg_names, strict=True):
            if isinstance(x, jax.ShapeDtypeStruct) or compat.is_tracer(x):
                raise TypeError(
                    f"measure runs the equations, which takes arrays; argument {name or '?'} is {x}, which has no value"
                )
        n = len(d.forward.equations) + (len(d.backward.equations) if self.has_backward else 0)
        with counting("equations", n) as done:
            stopwatch = _Stopwatch(repeat, d, done)
            outs = stopwatch.run(
                "forward",
                d.forward,
                [jnp.asarray(x, v.aval.dtype) for x, v in zip(self.inputs, d.forward.invars, strict=True)],
            )
            if self.has_backward:
                residuals = outs[len(outs) - d.n_residuals :]
                cotangents = [jnp.ones(v.aval.shape, v.aval.dtype) for v in d.backward.invars[d.n_residuals :]]
                stopwatch.run("backward", d.backward, [*residuals, *cotangents])
        return Timings(self.function, tuple(stopwatch.rows))


_PASSES: tuple[Pass, ...] = ("forward", "backward")
_BY_LINE = ("forward FLOPs", "backward FLOPs", "transcendentals", "bytes", "share", "line")
_BY_PRIMITIVE = ("equations", "FLOPs", "transcendentals", "bytes", "FLOPs/byte", "share", "primitive")
_BYTES, _BYTES_OUT = "bytes accessed", "bytes accessedout{}"


def _grouped(costs: Iterable[tuple[Any, Cost]]) -> dict[Any, Cost]:
    found: dict[Any, Cost] = {}
    for key, cost in costs:
        found[key] = found.get(key, Cost()) + cost
    return dict(
        sorted(found.items(), key=lambda item: (item[1].flops + item[1].transcendentals, item[1].nbytes), reverse=True)
    )


def _at(location: Location) -> str:
    """`model.py:12`, a long name by its end."""
    return shortened(short_location(location), 30, from_left=True)


def _share(cost: Cost, total: Cost) -> str:
    return f"{100 * cost.flops / total.flops:.0f}%" if total.flops else ""


def _number(n: float) -> str:
    """`12`, `1.2 k`, `3.4 M`."""
    for unit in ("", " k", " M", " G", " T"):
        if n < 1000:
            return f"{n:.0f}" if not unit else f"{n:.1f}{unit}"
        n /= 1000
    return f"{n:,.1f} P"


def format_flops(n: int) -> str:
    """`1.2 MFLOP`, `12 FLOP`."""
    number, _, unit = _number(n).partition(" ")
    return f"{number} {unit}FLOP"


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one equation took.

    Args:
      stage: 'forward' or 'backward'.
      equation: of that program, with all that it holds.
      location: the user's line.
      seconds: the best time of a run.
      cost: what it costs.
    """

    stage: Pass
    equation: Equation
    location: Location
    seconds: float
    cost: Cost

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for programs."""
        primitive = str(self.equation.primitive.name)
        return {**attributes(self, ("stage", "location", "seconds")), "primitive": primitive, **self.cost.to_dict()}


@dataclass(frozen=True, eq=False, repr=False)
class Timings(Report):
    """The measured time of each equation, in the order in which they run. See `CostReport.measure`.

    Args:
      function: its name.
      rows: the equations.
    """

    function: str
    rows: tuple[Timing, ...]

    @property
    def seconds(self) -> float:
        """Of all of them, one after the other."""
        return sum(r.seconds for r in self.rows)

    @property
    def summary(self) -> str:
        """`time of loss, equation by equation: 1.20 ms, forward 0.40 ms, backward 0.80 ms`."""
        by_pass = (f"{p} {_milliseconds(sum(r.seconds for r in self.rows if r.stage == p))}" for p in _PASSES)
        return f"time of {self.function}, equation by equation: {_milliseconds(self.seconds)}, {', '.join(by_pass)}"

    def _parts(self) -> Iterator[Table]:
        rows = [
            (
                r.stage, call_name(r.equation), _milliseconds(r.seconds), _number(r.cost.flops),
                f"{r.cost.flops / r.seconds / 1e9:.2f}" if r.seconds else "", _at(r.location),
            )
            for r in sorted(self.rows, key=lambda r: r.seconds, reverse=True)
        ]  # fmt: skip
        yield Table(("pass", "equation", "time", "FLOPs", "GFLOP/s", "line"), rows, "<<>>><", shown=TOP)

    _data = ("function", "seconds", "rows")


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f} ms"


class _Stopwatch:
    """Runs programs equation by equation, each compiled once for all that do the same."""

    def __init__(self, repeat: int, derivation: Derivation, done: Callable[[], None]):
        self.repeat = repeat
        self.done = done
        self.definition = defined_at(derivation.primal)
        self.compiled: dict[Operation, Callable[..., Any]] = {}
        self.rows: list[Timing] = []

    def run(self, stage: Pass, program: Program, inputs: Sequence[Any]) -> list[Any]:
        values: dict[Atom, Any] = dict(zip(program.constvars, program.consts, strict=True))
        values |= zip(program.invars, inputs, strict=True)
        last = {a: e for e in program.equations for a in e.invars} | dict.fromkeys(program.outvars)

        def read(a: Atom) -> Any:
            return jnp.asarray(a.val, a.aval.dtype) if isinstance(a, Literal) else values[a]

        for e in program.equations:
            if e.operation not in self.compiled:
                self.compiled[e.operation] = jax.jit(compat.jaxpr_as_fun(one_equation(e.operation)))
            outs, seconds = self.time(self.compiled[e.operation], [read(a) for a in e.invars])
            values.update(zip(e.outvars, outs, strict=True))
            for a in (*e.invars, *e.outvars):
                if a in values and last.get(a, e) is e:
                    del values[a]
            self.rows.append(Timing(stage, e, location_of(e) or self.definition, seconds, cost_of(e)))
            self.done()
        return [read(a) for a in program.outvars]

    def time(self, fun: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, float]:
        outs, best = jax.block_until_ready(fun(*args)), float("inf")
        for _ in range(self.repeat):
            start = time.perf_counter()
            jax.block_until_ready(fun(*args))
            best = min(best, time.perf_counter() - start)
        return outs, best


@api_boundary
@counting("cost")
@deep_stack
def cost(f: Any, *args: Any, argnums: int | Sequence[int] = 0, **kwargs: Any) -> CostReport:
    """What the gradient of a function costs: FLOPs, transcendentals and bytes, by equation, source line and primitive.

    Nothing is run or compiled; `CostReport.xla` and `.compare` compile, and `.measure` runs.

    >>> print(jaxviz.cost(loss, params, x))
    cost of loss: 3.2 MFLOP, 41.0 k transcendentals, 2.1 MiB read, 0.9 MiB written: 1.0 FLOPs a byte
    forward 1.1 MFLOP in 26 equations, backward 2.1 MFLOP in 31
    ...

    Args:
      f: a function; or a Derivation, Program or ClosedJaxpr, and then no args.
      *args, **kwargs: what to call it with, as for `derive`.
      argnums: the positional argument or arguments to differentiate in (of a Program: its flat inputs).

    Raises:
      what `derive` raises.
    """
    d = derive(f, *args, argnums=argnums, **kwargs)
    if isinstance(f, (Derivation, Program)) or not callable(f):
        return _report(d, None)
    leaves, _, _, is_input = flat_arguments(args, kwargs, in_bounds(argnums, len(args)))
    return _report(d, tuple(x for x, given in zip(leaves, is_input, strict=True) if given))


def _report(d: Derivation, inputs: tuple[Any, ...] | None) -> CostReport:
    programs: list[tuple[Pass, Program]] = [("forward", d.forward)]
    notes = [*no_gradient_note(d)]
    try:
        programs.append(("backward", d.backward))
    except EquationError as error:
        notes.append(f"There is no backward program, so only the forward pass counts: {error}")
    notes += unopened_note(find_unopened(d.derivable, opened=RUNS))
    definition = defined_at(d.primal)
    rows = tuple(
        Row(stage, p, location_of(p.equation, p.within) or definition, _place(p))
        for stage, program in programs
        for e in program.equations
        for p in parts(e)
    )
    return CostReport(d, rows, (*notes, *_notes(d, rows)), len(programs) == 2, inputs)


def _place(part: Part) -> str:
    """`cell ×20 in shard_map ×8`, innermost first."""
    names = []
    for e in reversed(part.within):
        n, _ = repeats(e)
        names.append(f"{call_name(e)} ×{n:,}" if n != 1 else call_name(e))
    return " in ".join(names)


def _notes(d: Derivation, rows: Sequence[Row]) -> Iterator[str]:
    holders: dict[Equation, tuple[Equation, ...]] = {
        e: r.part.within[:i] for r in rows for i, e in enumerate(r.part.within)
    }
    for concerns, what in (
        (
            lambda e: is_loop(e) and not is_scan(e),
            "a while loop counts for one iteration, since nothing tells how many it takes",
        ),
        (is_choice, "of a cond the most expensive branch counts"),
    ):
        at = dict.fromkeys(location_of(e, within) for e, within in holders.items() if concerns(e))
        lines = ", ".join(short_location(x) for x in at if x is not None)
        if at:
            yield f"{what[0].upper()}{what[1:]}{f': {lines}' if lines else ''}."
    estimated = dict.fromkeys(r.primitive for r in rows if r.part.is_estimated)
    if estimated:
        yield f"Estimated, at one FLOP for each element of a result that is not of integers: {', '.join(estimated)}."
    if spans_devices(d):
        yield "It is the cost on all devices together."
