"""The measures of answers to puzzles, from the reports. Less is better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from jaxviz.analysis.walk import location_of
from jaxviz.arguments import Argnums
from jaxviz.features.cost.parts import CostPart, parts
from jaxviz.features.cost.report import CostReport, cost
from jaxviz.features.memory.timeline import MemoryTimeline, memory, peak_text
from jaxviz.features.residuals.residual_set import ResidualSet, residuals
from jaxviz.ir.syntax import Program
from jaxviz.ir.trace import trace
from jaxviz.report.tables import counted, format_bytes, format_flops, short_location

Function = Callable[..., Any]

AXIS, DEVICES = "devices", 8
"""The axis of the puzzles on several devices, and the number of devices."""


@dataclass(frozen=True)
class Measure:
    """A measure of a function.

    Args:
      name: such as 'peak'.
      says: a sentence about an amount, such as 'Its gradient has a modelled peak of {}'.
      written: an amount as text.
      report: what is known of a function, from it, the types of its arguments and its argnums.
      amount: reads the amount from that.
      most: a sentence on the largest contribution.
    """

    name: str
    says: str
    written: Callable[[int], str]
    report: Callable[..., Any]
    amount: Callable[[Any], int]
    most: Callable[[Any], str]

    def of(self, f: Function, types: tuple[Any, ...], argnums: Argnums) -> int:
        """The amount for a function."""
        return self.amount(self.report(f, *types, argnums=argnums))


def _most_kept(saved: ResidualSet) -> str:
    largest = max((r for r in saved if r.kind != "argument"), key=lambda r: r.nbytes, default=None)
    return "" if largest is None else f"The largest value is {format_bytes(largest.nbytes)}: {largest.reason}."


def _most_at_peak(timeline: MemoryTimeline) -> str:
    largest = timeline.alive[0]
    return f"The {peak_text(timeline)}: most of it is `{largest.what}`, {format_bytes(largest.nbytes)}."


def _program(f: Function, *types: Any, argnums: Argnums) -> Program:
    return trace(f)(*types)


def _parts(program: Program) -> list[CostPart]:
    return [part for e in program.equations for part in parts(e)]


def _most_flops(program: Program) -> str:
    by_place: Counter[str] = Counter()
    for part in _parts(program):
        at = location_of(part.equation, part.within)
        by_place[f"`{part.equation.primitive.name}`{f' at {short_location(at)}' if at else ''}"] += part.cost.flops
    (place, n), *_ = by_place.most_common(1)
    return f"Most of them, {format_flops(n)}, are in {place}."


def _most_operations(report: CostReport) -> str:
    of_primitive: Counter[str] = Counter()
    for row in report.rows:
        of_primitive[row.primitive] += row.cost.flops + row.cost.transcendentals
    (name, n), *_ = of_primitive.most_common(1)
    return f"Most of them, {n:,}, are `{name}`; `jaxviz.cost` lists all."


def _most_equations(program: Program) -> str:
    (name, n), *_ = Counter(e.primitive.name for _, e in program.walk()).most_common(1)
    return f"{n} of them are `{name}`; `jaxviz.trace` shows all."


def on_devices(f: Function) -> Function:
    """A function of one device's part, run on eight abstract devices."""
    mesh = AbstractMesh((DEVICES,), (AXIS,), axis_types=(AxisType.Auto,))
    of_all = jax.shard_map(
        lambda *shares: f(*shares)[None], mesh=mesh, in_specs=PartitionSpec(AXIS), out_specs=PartitionSpec(AXIS)
    )
    return lambda *types: of_all(*types)


def _sending(f: Function, *types: Any, argnums: Argnums) -> list[CostPart]:
    global_types = (jax.ShapeDtypeStruct((DEVICES * t.shape[0], *t.shape[1:]), t.dtype) for t in types)
    return [part for part in _parts(trace(on_devices(f))(*global_types)) if part.cost.bytes_sent]


def _which_are_sent(parts: list[CostPart]) -> str:
    sent = (f"`{p.equation.primitive.name}` ({format_bytes(p.each.bytes_sent)})" for p in parts)
    return f"It has {', '.join(sent)}."


KEPT = Measure(
    "residual bytes", "Its gradient saves {} besides its arguments", format_bytes,
    residuals, attrgetter("nbytes_without_arguments"), _most_kept,
)  # fmt: skip
PEAK = Measure(
    "peak", "Its gradient has a modelled peak of {}", format_bytes, memory, attrgetter("peak_nbytes"), _most_at_peak
)
FLOPS = Measure(
    "FLOPs", "It takes {}", format_flops, _program, lambda p: sum(part.cost.flops for part in _parts(p)), _most_flops
)
OPERATIONS = Measure(
    "operations", "Its gradient takes {} (FLOPs and transcendentals)", lambda n: counted(n, "operation"),
    cost, lambda found: found.total.flops + found.total.transcendentals, _most_operations,
)  # fmt: skip
EQUATIONS = Measure(
    "equations", "It traces to {}", lambda n: counted(n, "equation"),
    _program, lambda program: sum(1 for _ in program.walk()), _most_equations,
)  # fmt: skip
COLLECTIVES = Measure(
    "collectives", "It has {}", lambda n: counted(n, "collective"),
    _sending, lambda found: sum(part.times for part in found) // DEVICES, _which_are_sent,
)  # fmt: skip
SENT = Measure(
    "bytes sent", "Each device sends {}", format_bytes,
    _sending, lambda found: sum(part.cost.bytes_sent for part in found) // DEVICES, _which_are_sent,
)  # fmt: skip
