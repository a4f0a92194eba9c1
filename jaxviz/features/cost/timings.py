"""The time of each equation of a gradient, run separately."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxviz.analysis.grouping import grouped, repetition
from jaxviz.analysis.naming import ROOM_IN_SENTENCE
from jaxviz.analysis.site import call_name
from jaxviz.analysis.walk import defined_at, location_of
from jaxviz.derivation import Derivation
from jaxviz.features.cost.counts import Cost
from jaxviz.features.cost.parts import PASSES, Pass, cost_of
from jaxviz.ir import compat
from jaxviz.ir.convert import one_equation
from jaxviz.ir.expressions import expression_at, shortened_expression
from jaxviz.ir.origin import Location
from jaxviz.ir.syntax import Atom, Equation, Literal, Operation, Program
from jaxviz.report.charts import TIME, Bars
from jaxviz.report.data import Data
from jaxviz.report.report import Report, Table
from jaxviz.report.tables import format_count, line_label, more_of, narrow_location, repeated


@dataclass(frozen=True, slots=True)
class Timing(Data):
    """The time of one equation.

    Args:
      equation: the equation, with all programs that it holds.
      seconds: the best time of a run.
    """

    stage: Pass
    equation: Equation
    location: Location
    seconds: float
    cost: Cost

    _data = ("stage", "location", "seconds", "primitive", "*cost")

    @property
    def primitive(self) -> str:
        return str(self.equation.primitive.name)


@dataclass(frozen=True, eq=False, repr=False)
class Timings(Report, schema="cost.measure"):
    """The measured time of each equation, in the order in which they run. See `CostReport.measure`."""

    function: str
    rows: tuple[Timing, ...]

    @property
    def seconds(self) -> float:
        """The sum over all equations."""
        return sum(r.seconds for r in self.rows)

    @property
    def summary(self) -> str:
        """`time of loss, equation by equation: 1.20 ms, forward 0.40 ms, backward 0.80 ms`."""
        by_pass = (f"{p} {_milliseconds(sum(r.seconds for r in self.rows if r.stage == p))}" for p in PASSES)
        return f"time of {self.function}, equation by equation: {_milliseconds(self.seconds)}, {', '.join(by_pass)}"

    def _chart(self) -> Bars:
        rows = [(line_label(r.location), r.seconds, r.stage) for r in self.rows]
        return Bars(rows, f"time of {self.function}, by line", TIME)

    def _parts(self) -> Iterator[Table]:
        groups = grouped(self.rows, lambda r: (r.stage, r.location, call_name(r.equation), repetition(r.equation)))
        seconds = lambda group: sum(r.seconds for r in group)
        groups.sort(key=seconds, reverse=True)
        rows = [
            (
                g[0].stage, repeated(len(g), call_name(g[0].equation)), _milliseconds(seconds(g)),
                format_count(flops := sum(r.cost.flops for r in g)),
                f"{flops / seconds(g) / 1e9:.2f}" if seconds(g) else "",
                f"{narrow_location(g[0].location)}  {_written(g[0])}".rstrip(),
            )
            for g in groups
        ]  # fmt: skip
        more = more_of(groups, len, "equation", lambda rest: _milliseconds(sum(map(seconds, rest))))
        heads = ("pass", "equation", "time", "FLOPs", "GFLOP/s", "line, and what is computed there")
        yield Table(heads, rows, "<<>>><", more=more)

    _data = ("function", "seconds", "rows")


def _written(row: Timing) -> str:
    """The expression of an equation, as code."""
    text = shortened_expression(expression_at(row.location), ROOM_IN_SENTENCE)
    return f"`{text}`" if text else ""


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f} ms"


class Stopwatch:
    """Runs programs equation by equation, compiling equal operations once."""

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
