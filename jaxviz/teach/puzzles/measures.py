"""The measures of answers to puzzles, from the reports. Less is better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from jaxviz.analysis.walk import location_of
from jaxviz.arguments import Argnums
from jaxviz.features.cost.parts import CostPart, parts
from jaxviz.features.cost.report import cost
from jaxviz.features.memory.timeline import memory, peak_text
from jaxviz.features.residuals.residual_set import residuals
from jaxviz.ir.trace import trace
from jaxviz.report.tables import counted, format_bytes, format_flops, short_location
from jaxviz.teach.rule import Check

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
      of: maps a function, the types of its arguments and its argnums to the amount.
      most: maps the same to a sentence on the largest contribution.
    """

    name: str
    says: str
    written: Callable[[int], str]
    of: Callable[[Function, tuple[Any, ...], Argnums], int]
    most: Callable[[Function, tuple[Any, ...], Argnums], str]


def _kept(f: Function, types: tuple[Any, ...], argnums: Argnums) -> int:
    return residuals(f, *types, argnums=argnums).nbytes_without_arguments


def _most_kept(f: Function, types: tuple[Any, ...], argnums: Argnums) -> str:
    found = (r for r in residuals(f, *types, argnums=argnums) if r.kind != "argument")
    largest = max(found, key=lambda r: r.nbytes, default=None)
    return "" if largest is None else f"The largest value is {format_bytes(largest.nbytes)}: {largest.reason}."


def _peak(f: Function, types: tuple[Any, ...], argnums: Argnums) -> int:
    return memory(f, *types, argnums=argnums).peak_nbytes


def _most_at_peak(f: Function, types: tuple[Any, ...], argnums: Argnums) -> str:
    found = memory(f, *types, argnums=argnums)
    largest = found.alive[0]
    return f"The {peak_text(found)}: most of it is `{largest.what}`, {format_bytes(largest.nbytes)}."


def _parts(f: Function, types: tuple[Any, ...]) -> Iterator[CostPart]:
    return (part for e in trace(f)(*types).equations for part in parts(e))


def _flops(f: Function, types: tuple[Any, ...], argnums: Argnums) -> int:
    return sum(part.cost.flops for part in _parts(f, types))


def _most_flops(f: Function, types: tuple[Any, ...], argnums: Argnums) -> str:
    by_place: Counter[str] = Counter()
    for part in _parts(f, types):
        at = location_of(part.equation, part.within)
        by_place[f"`{part.equation.primitive.name}`{f' at {short_location(at)}' if at else ''}"] += part.cost.flops
    (place, n), *_ = by_place.most_common(1)
    return f"Most of them, {format_flops(n)}, are in {place}."


def _operations(f: Function, types: tuple[Any, ...], argnums: Argnums) -> int:
    total = cost(f, *types, argnums=argnums).total
    return total.flops + total.transcendentals


def _most_operations(f: Function, types: tuple[Any, ...], argnums: Argnums) -> str:
    of_primitive: Counter[str] = Counter()
    for row in cost(f, *types, argnums=argnums).rows:
        of_primitive[row.primitive] += row.cost.flops + row.cost.transcendentals
    (name, n), *_ = of_primitive.most_common(1)
    return f"Most of them, {n:,}, are `{name}`; `jaxviz.cost` lists all."


def _equations(f: Function, types: tuple[Any, ...], argnums: Argnums) -> int:
    return sum(1 for _ in trace(f)(*types).walk())


def _most_equations(f: Function, types: tuple[Any, ...], argnums: Argnums) -> str:
    (name, n), *_ = Counter(e.primitive.name for _, e in trace(f)(*types).walk()).most_common(1)
    return f"{n} of them are `{name}`; `jaxviz.trace` shows all."


def on_devices(f: Function) -> Function:
    """A function of one device's part, run on eight abstract devices."""
    mesh = AbstractMesh((DEVICES,), (AXIS,), axis_types=(AxisType.Auto,))
    of_all = jax.shard_map(
        lambda *shares: f(*shares)[None], mesh=mesh, in_specs=PartitionSpec(AXIS), out_specs=PartitionSpec(AXIS)
    )
    return lambda *types: of_all(*types)


def _sending(f: Function, types: tuple[Any, ...]) -> list[CostPart]:
    whole = (jax.ShapeDtypeStruct((DEVICES * t.shape[0], *t.shape[1:]), t.dtype) for t in types)
    return [part for part in _parts(on_devices(f), tuple(whole)) if part.cost.bytes_sent]


def _collectives(f: Function, types: tuple[Any, ...], argnums: Argnums) -> int:
    return sum(part.times for part in _sending(f, types)) // DEVICES


def _sent(f: Function, types: tuple[Any, ...], argnums: Argnums) -> int:
    return sum(part.cost.bytes_sent for part in _sending(f, types)) // DEVICES


def _which_are_sent(f: Function, types: tuple[Any, ...], argnums: Argnums) -> str:
    sent = (f"`{p.equation.primitive.name}` ({format_bytes(p.each.bytes_sent)})" for p in _sending(f, types))
    return f"It has {', '.join(sent)}."


KEPT = Measure("residual bytes", "Its gradient saves {} besides its arguments", format_bytes, _kept, _most_kept)
PEAK = Measure("peak", "Its gradient has a modelled peak of {}", format_bytes, _peak, _most_at_peak)
FLOPS = Measure("FLOPs", "It takes {}", format_flops, _flops, _most_flops)
OPERATIONS = Measure(
    "operations",
    "Its gradient takes {} (FLOPs and transcendentals)",
    lambda n: counted(n, "operation"),
    _operations,
    _most_operations,
)
EQUATIONS = Measure("equations", "It traces to {}", lambda n: counted(n, "equation"), _equations, _most_equations)
COLLECTIVES = Measure("collectives", "It has {}", lambda n: counted(n, "collective"), _collectives, _which_are_sent)
SENT = Measure("bytes sent", "Each device sends {}", format_bytes, _sent, _which_are_sent)


def at_most(share: float, more_than: Function, *types: Any, argnums: Argnums = 0) -> Check:
    """Checks that the gradient of an answer takes few more FLOPs than the gradient of a function.

    Args:
      share: the allowed excess, such as 0.1.
      more_than: the function.
      *types: what both are called with.
      argnums: what both are differentiated in.
    """

    def fails(written: Function) -> str:
        given = cost(more_than, *types, argnums=argnums).total.flops
        found = cost(written, *types, argnums=argnums).total.flops
        return "" if found <= (1 + share) * given else f"It takes {100 * (found / given - 1):.1f} % more."

    return Check(f"its gradient takes at most {100 * share:g} % more FLOPs than as given", fails)
