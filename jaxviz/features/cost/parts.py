"""What one equation costs: the innermost equations that it runs, how often, and what each of them costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from jaxviz.features.cost.counts import COUNTS, Cost, estimate
from jaxviz.higher_order import bodies, is_choice, of, others
from jaxviz.ir.syntax import Equation, Program


@dataclass(frozen=True, slots=True)
class Part:
    """An equation that holds no program, as a part of one that does.

    Args:
      equation: the innermost equation.
      within: the equations that hold the program it stands in, outermost first.
      each: what it costs once, on one device.
      times: how often it runs in all: the trip counts of the scans and the numbers of devices of the `shard_map`s that it stands in.
      copies: how often it stands in the compiled program of one device, where a loop has its body once for each step of `unroll`.
      is_estimated: whether its primitive is not known; see `counts.estimate`.
    """

    equation: Equation
    within: tuple[Equation, ...]
    each: Cost
    times: int = 1
    copies: int = 1
    is_estimated: bool = False

    @property
    def cost(self) -> Cost:
        return self.each * self.times


def total_of(costs: Iterable[Cost]) -> Cost:
    """The sum of costs."""
    return sum(costs, Cost())


def cost_of(equation: Equation) -> Cost:
    """What one equation costs, with the programs that it holds.

    A scan costs its body times its length, a `shard_map` what one device does times the devices, a cond its most expensive branch, and a
    while loop one iteration, since nothing tells how many it takes. An equation whose primitive is not known counts one FLOP for each
    element of a result that is not of integers.
    """
    return total_of(part.cost for part in parts(equation))


def flops_of(equation: Equation, known: dict[int, Cost]) -> int:
    """The FLOPs of one equation, as `cost_of` has them, for many equations in turn.

    Args:
      equation: any.
      known: what operations cost that were met before, by identity; this adds to it. The operations must outlive it.
    """
    return _remembered(equation, known).flops


def _remembered(equation: Equation, known: dict[int, Cost]) -> Cost:
    key = id(equation.operation)
    if key not in known:
        programs = _programs(equation)
        inside = [total_of(_remembered(e, known) for e in program.equations) for program in programs]
        if not programs:
            known[key] = COUNTS.get(equation.primitive.name, estimate)(equation.operation)
        elif is_choice(equation):
            known[key] = max(inside, key=_weight)
        else:
            known[key] = total_of(inside) * repeats(equation)[0]
    return known[key]


def parts(equation: Equation) -> Iterator[Part]:
    """The innermost equations that an equation runs; its cost is the sum of theirs."""
    return _parts(equation, (), 1, 1)


def _parts(equation: Equation, within: tuple[Equation, ...], times: int, copies: int) -> Iterator[Part]:
    programs = _programs(equation)
    if not programs:
        count = COUNTS.get(equation.primitive.name)
        each = (count or estimate)(equation.operation)
        yield Part(equation, within, each, times, copies, count is None)
        return
    n_times, n_copies = repeats(equation)
    inside = [
        [p for e in program.equations for p in _parts(e, (*within, equation), times * n_times, copies * n_copies)]
        for program in programs
    ]
    if is_choice(equation):
        yield from max(inside, key=_expense)
    else:
        yield from chain.from_iterable(inside)


def _programs(equation: Equation) -> list[Program]:
    other = others.runs(equation)
    return [other] if other is not None else [b.program for b in bodies(equation)]


def repeats(equation: Equation) -> tuple[int, int]:
    """How often the programs of an equation run, and how often they stand in the compiled program of one device."""
    kind, operation = of(equation), equation.operation
    return (kind.trip_count(operation) or 1) * kind.n_devices(operation), kind.copies(operation)


def _expense(found: list[Part]) -> tuple[int, int]:
    return _weight(total_of(p.cost for p in found))


def _weight(cost: Cost) -> tuple[int, int]:
    return cost.flops + cost.transcendentals, cost.nbytes
