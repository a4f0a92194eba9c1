"""The cost of one equation: the innermost equations that it runs, how often, and the cost of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from jaxviz.features.cost.counts import COUNTS, Cost, estimate
from jaxviz.higher_order import bodies, is_choice, of
from jaxviz.ir.syntax import Equation, Program


@dataclass(frozen=True, slots=True)
class CostPart:
    """An equation without nested programs, as a part of one with them.

    Args:
      equation: the innermost equation.
      within: the equations that enclose its program, outermost first.
      each: the cost of one run, on one device.
      times: how often it runs in total: the enclosing scans' trip counts times the `shard_map`s' devices.
      copies: how often it occurs in the compiled program of one device, where a loop has its body `unroll` times.
      is_estimated: whether its primitive is unknown; see `counts.estimate`.
    """

    equation: Equation
    within: tuple[Equation, ...]
    each: Cost
    times: int = 1
    copies: int = 1
    is_estimated: bool = False

    @property
    def cost(self) -> Cost:
        return self.each * self.times if self.times != 1 else self.each


def total_of(costs: Iterable[Cost]) -> Cost:
    """The sum of costs."""
    return sum(costs, Cost())


def cost_of(equation: Equation) -> Cost:
    """Returns the cost of one equation, including the programs that it holds.

    >>> program = jaxviz.trace(loss)(params, x)
    >>> [jaxviz.cost_of(equation).flops for equation in program.equations]

    A scan costs its body times its length, a `shard_map` the work of one device times the number of devices, a cond its
    most expensive branch, and a while loop one iteration, because its trip count is unknown. An unknown primitive costs
    one FLOP for each element of its non-integer results.
    """
    if not isinstance(equation, Equation):
        raise TypeError(
            "cost_of takes an equation of a program, such as jaxviz.trace(f)(x).equations[0]; got "
            f"{type(equation).__name__}"
        )
    return total_of(part.cost for part in parts(equation))


def flops_of(equation: Equation, known: dict[int, Cost], free: Any = None) -> int:
    """The FLOPs of one equation, as in `cost_of`, for many equations in turn.

    Args:
      equation: any equation.
      known: the costs of operations so far, by identity; this adds to it. The operations must outlive it.
      free: a primitive that counts nothing.
    """
    return remembered(equation, known, free).flops


def remembered(equation: Equation, known: dict[int, Cost], free: Any = None) -> Cost:
    """The cost of one equation, as in `cost_of`; the arguments are those of `flops_of`."""
    key = id(equation.operation)
    if key not in known:
        programs = run_by(equation)
        inside = [total_of(remembered(e, known, free) for e in program.equations) for program in programs]
        if equation.primitive is free:
            known[key] = total_of(())
        elif not programs:
            known[key] = COUNTS.get(equation.primitive.name, estimate)(equation.operation)
        elif is_choice(equation):
            known[key] = max(inside, key=weight)
        else:
            known[key] = total_of(inside) * repeats(equation)[0]
    return known[key]


def parts(equation: Equation) -> Iterator[CostPart]:
    """The innermost equations that an equation runs; its cost is the sum of theirs."""
    return _parts(equation, (), 1, 1)


def _parts(equation: Equation, within: tuple[Equation, ...], times: int, copies: int) -> Iterator[CostPart]:
    programs = run_by(equation)
    if not programs:
        count = COUNTS.get(equation.primitive.name)
        each = (count or estimate)(equation.operation)
        yield CostPart(equation, within, each, times, copies, count is None)
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


def run_by(equation: Equation) -> list[Program]:
    """The programs that an equation runs; for a choice, all that it may run."""
    if not equation.operation.programs:  # the usual case
        return []
    whole = of(equation).runs(equation.operation)
    return [b.program for b in ([whole] if whole is not None else bodies(equation))]


def repeats(equation: Equation) -> tuple[int, int]:
    """How often the programs of an equation run, and how often they occur in the compiled program of one device."""
    kind, operation = of(equation), equation.operation
    return (kind.trip_count(operation) or 1) * kind.n_devices(operation), kind.copies(operation)


def counted(equation: Equation, known: dict[int, Cost]) -> list[Program]:
    """The programs that count as the work of an equation: all that it runs, or for a choice the most expensive one."""
    programs = run_by(equation)
    if not is_choice(equation) or not programs:
        return programs
    return [max(programs, key=lambda p: weight(total_of(remembered(e, known) for e in p.equations)))]


def _expense(branch: list[CostPart]) -> tuple[int, int]:
    return weight(total_of(p.cost for p in branch))


def weight(cost: Cost) -> tuple[int, int]:
    """The sort key of costs: operations, then bytes."""
    return cost.flops + cost.transcendentals, cost.nbytes
