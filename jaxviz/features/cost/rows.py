"""The rows of a cost report: equations, and groups of equations of one expression."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal as OneOf

from jaxviz.analysis.grouping import alike, repetition
from jaxviz.analysis.naming import ROOM, of_module, written_at
from jaxviz.analysis.walk import library_of
from jaxviz.features.cost.counts import Cost
from jaxviz.features.cost.parts import CostPart, total_of
from jaxviz.higher_order import is_loop, is_scan
from jaxviz.ir.origin import Location
from jaxviz.ir.syntax import Equation
from jaxviz.report.data import Data
from jaxviz.report.tables import listed, type_text

Pass = OneOf["forward", "backward"]
PASSES: tuple[Pass, ...] = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class CostRow(Data):
    """An equation of the forward or the backward program without nested programs.

    Args:
      stage: 'forward' or 'backward'.
      part: the equation, what encloses it, and how often it runs.
      location: the user's line.
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
    """The cost of one expression, over all its evaluations.

    Args:
      rows: its equations in the forward and the backward program.
    """

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
