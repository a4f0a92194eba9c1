"""Where the values of a run are, and what each is computed from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jaxviz.analysis.addressed import AddressedValue
from jaxviz.features.values.records import ITERATION, OTHER, REVERSED, Neighbour, Order
from jaxviz.higher_order import bodies, is_scan, of
from jaxviz.higher_order.observing import Path, observed_inside, walk_observed
from jaxviz.higher_order.shard_map import axes_of_devices
from jaxviz.ir.syntax import Equation, Program


def orders_of(program: Program, places: Sequence[tuple[Path, Equation, Any]]) -> list[Order]:
    """Where equations are in a run, given those around each, and the type of what leaves; see `RecordedValue`."""
    number = {e: i for _, nested in walk_observed(program) for i, e in enumerate(nested.equations)}
    orders = []
    for path, equation, aval in places:
        order: list[Any] = []
        for e, devices in zip(path, axes_of_devices(path, aval), strict=True):
            order.append(number[e])
            if is_scan(e):
                order.append(REVERSED if e.params.get("reverse") else ITERATION)
            elif devices:
                order.append(OTHER)
        orders.append((*order, number[equation]))
    return orders


_Behind = dict[Any, dict[Neighbour, None]]
"""For each variable the nearest values, and inputs, that it is computed from."""
_Neighbours = list[tuple[Neighbour, ...]]


class Dataflow:
    """What the values of a program are computed from.

    Args:
      program: the program.
      values: of it.
      orders: where these are.

    `of_values` has for each value the nearest that it is computed from, `of_cotangents` the nearest that are computed
    from it, whose cotangents its own is computed from; `of_results` and `of_gradient` have the same for each result of
    the program, and for the gradient in each input.
    """

    def __init__(self, program: Program, values: Sequence[AddressedValue], orders: Sequence[Order]):
        self._order_of = {v.place: order for v, order in zip(values, orders, strict=True)}
        self._read: dict[Order, dict[Neighbour, None]] = {}
        inputs = list(map(self.order_of_input, range(len(program.invars))))
        behind = {v: {(o, 0): None} for v, o in zip(program.invars, inputs, strict=True)}
        of_results = self._inside((), program, behind)
        readers: dict[Order, dict[Neighbour, None]] = {}
        for reader, operands in self._read.items():
            for operand, steps in operands:
                readers.setdefault(operand, {})[reader, -steps] = None
        self.of_values = [_values(self._read.get(o, ())) for o in orders]
        self.of_cotangents: _Neighbours = [tuple(readers.get(o, ())) for o in orders]
        self.of_results = list(map(_values, of_results))
        self.of_gradient: _Neighbours = [tuple(readers.get(o, ())) for o in inputs]

    @staticmethod
    def order_of_input(i: int) -> Order:
        """Where an input is: before all that is computed, and its cotangent after that."""
        return (-1 - i,)

    def _inside(self, path: Path, nested: Program, behind: _Behind) -> list[dict[Neighbour, None]]:
        for e in nested.equations:
            operands = {o: None for a in e.invars for o in behind.get(a, ())}
            through = [dict(operands) for _ in e.outvars]
            for body in bodies(e) if observed_inside(e) else ():
                if body.has_results:
                    of_results = self._called(
                        (*path, e), body.program, [behind.get(e.invars[i], {}) for i in body.operands]
                    )
                    for result, found in zip(through, of_results, strict=False):
                        result.update(found)
            for v, found in zip(e.outvars, through, strict=True):
                own = self._order_of.get((path, v))
                behind[v] = found if own is None else {(own, 0): None}
                if own is not None:
                    self._read.setdefault(own, {}).update(found)
        return [behind.get(a, {}) for a in nested.outvars]

    def _called(
        self, path: Path, nested: Program, given: Sequence[dict[Neighbour, None]]
    ) -> list[dict[Neighbour, None]]:
        """What the results of a nested program are computed from."""
        behind: _Behind = dict(zip(nested.invars, given, strict=True))
        n_before, n_carry = of(path[-1]).carry(path[-1].operation)
        own = {order for (around, _), order in self._order_of.items() if n_carry and around[: len(path)] == path}
        for _ in range(2 if n_carry else 1):  # what a carry is computed from is known after a first time
            for v, after in zip(nested.invars[n_before : n_before + n_carry], nested.outvars, strict=False):
                before = {(o, 1): None for o, n in behind.get(after, ()) if not n and o in own}
                behind[v] = {**behind[v], **before}
            of_results = self._inside(path, nested, behind)
        return of_results


def _values(found: Iterable[Neighbour]) -> tuple[Neighbour, ...]:
    """The values among values and inputs."""
    return tuple([(order, steps) for order, steps in found if order[0] >= 0])
