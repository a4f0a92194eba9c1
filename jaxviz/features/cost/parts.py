"""The cost of one equation: the innermost equations that it runs, how often, and the cost of each; and the rows of a
report, which are such equations, and groups of those of one expression."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any
from typing import Literal as OneOf

from jaxviz.analysis.grouping import alike, repetition
from jaxviz.analysis.naming import ROOM, of_module, written_at
from jaxviz.analysis.walk import library_of
from jaxviz.features.cost.counts import COUNTS, Cost, estimate
from jaxviz.higher_order import bodies, is_choice, is_loop, is_scan, of
from jaxviz.ir.origin import Location
from jaxviz.ir.syntax import Equation, Program
from jaxviz.report.data import Data
from jaxviz.report.tables import listed, type_text


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
      known: the costs of operations so far, by identity; this adds to it. The operations must outlive it.
      free: a primitive that counts nothing.
    """
    return remembered(equation, known, free).flops


def remembered(equation: Equation, known: dict[int, Cost], free: Any = None) -> Cost:
    """The cost of one equation, as in `cost_of`; the arguments are those of `flops_of`."""
    key = id(equation.operation)
    if key not in known:
        programs = run_by(equation)
        inside = [sum_of(program.equations, known, free) for program in programs]
        if equation.primitive is free:
            known[key] = total_of(())
        elif not programs:
            known[key] = COUNTS.get(equation.primitive.name, estimate)(equation.operation)
        elif is_choice(equation):
            known[key] = max(inside, key=weight)
        else:
            known[key] = total_of(inside) * repeats(equation)[0]
    return known[key]


def sum_of(equations: Sequence[Equation], known: dict[int, Cost], free: Any = None) -> Cost:
    """The cost of some equations, of which many share few operations; the other arguments are those of `flops_of`."""
    times = Counter(e.operation for e in equations)
    one_of_each = {e.operation: e for e in equations}
    return total_of(remembered(e, known, free) * times[operation] for operation, e in one_of_each.items())


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
        yield from max(inside, key=lambda branch: weight(total_of(p.cost for p in branch)))
    else:
        yield from chain.from_iterable(inside)


def run_by(equation: Equation) -> list[Program]:
    """The programs that an equation runs; for a choice, all that it may run."""
    if not equation.operation.programs:  # the usual case
        return []
    run = of(equation).runs(equation.operation)
    return [b.program for b in ([run] if run is not None else bodies(equation))]


def repeats(equation: Equation) -> tuple[int, int]:
    """How often the programs of an equation run, and how often they occur in the compiled program of one device."""
    kind, operation = of(equation), equation.operation
    return (kind.trip_count(operation) or 1) * kind.n_devices(operation), kind.copies(operation)


def counted(equation: Equation, known: dict[int, Cost]) -> list[Program]:
    """The programs that count as the work of an equation: all that it runs, or for a choice the most expensive one."""
    programs = run_by(equation)
    if not is_choice(equation) or not programs:
        return programs
    return [max(programs, key=lambda p: weight(sum_of(p.equations, known)))]


def weight(cost: Cost) -> tuple[int, int]:
    """The sort key of costs: operations, then bytes."""
    return cost.flops + cost.transcendentals, cost.nbytes


# --- rows of a report -------------------------------------------------------------------------------------------------

Pass = OneOf["forward", "backward"]
PASSES: tuple[Pass, ...] = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class CostRow(Data):
    """An equation of the forward or the backward program without nested programs.

    Args:
      part: the equation, what encloses it, and how often it runs.
      place: what encloses it, such as 'cell ×20'; '' if nothing does.
    """

    stage: Pass
    part: CostPart
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
        """The type of its first result, such as `f32[8,32]`."""
        avals = self.equation.operation.out_avals
        return type_text(avals[0]) if avals else ""

    @property
    def cost(self) -> Cost:
        """The cost, over all iterations and devices."""
        return self.part.cost

    @property
    def trip_count_known(self) -> bool:
        """False inside of a while loop, which counts for one iteration."""
        return not any(is_loop(e) and not is_scan(e) for e in self.part.within)

    _data = (
        "stage", "primitive", "type", "location", "place", "trip_count_known", "times=part.times",
        "estimated=part.is_estimated", "*cost",
    )  # fmt: skip


class CostOfRows:
    """The cost of rows: by pass, and in total."""

    rows: tuple[CostRow, ...]

    @cached_property
    def forward(self) -> Cost:
        """The cost of the forward program, which computes the results and the residuals."""
        return total_of(r.cost for r in self.rows if r.stage == "forward")

    @cached_property
    def backward(self) -> Cost:
        """The cost of the backward program."""
        return total_of(r.cost for r in self.rows if r.stage == "backward")

    @property
    def total(self) -> Cost:
        """The cost of both."""
        return self.forward + self.backward


@dataclass(frozen=True, eq=False)
class CostGroup(CostOfRows, Data):
    """The cost of one expression, over all its evaluations, from its equations in both programs."""

    rows: tuple[CostRow, ...]

    @property
    def label(self) -> str:
        """The expression, such as `h = jnp.tanh(x @ w)`, with its module if any; without source the primitives."""
        return self.named()

    def named(self, room: int = ROOM) -> str:
        """The same with an expression of at most this length."""
        in_module = alike([of_module(r.part.equation, r.part.within, room) for r in self.rows])
        return in_module or written_at(self.rows[0].location, room) or listed(r.primitive for r in self.rows)

    @property
    def location(self) -> Location:
        """The user's line."""
        return self.rows[0].location

    @cached_property
    def library(self) -> str:
        """Where in a library, called by the user's line, it is computed; '' if in none."""
        part = self.rows[0].part
        return library_of(part.equation, part.within)

    @cached_property
    def count(self) -> int:
        """How often it is evaluated: in layers, calls and iterations of scans, as most of its operations are."""
        times: Counter[Hashable] = Counter()
        for r in self.rows:
            times[r.stage, repetition(r.part.equation, r.part.within)] += r.part.times
        ((n, _),) = Counter(times.values()).most_common(1)
        return n

    _data = ("label", "location", "library", "count", "forward", "backward")
