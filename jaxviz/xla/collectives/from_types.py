"""The collectives that types imply, before anything is compiled: those of every equation, with its line and how often
loops run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from jax.sharding import AxisType

from jaxviz.analysis.grouping import alike, grouped, most_alike, pattern
from jaxviz.analysis.implied import Implied, axes_text, called_by_position, implied
from jaxviz.higher_order import is_loop, is_scan, scan_length
from jaxviz.report.tables import counted, format_bytes, listed, short_location, together
from jaxviz.transforms.dce import dce_program
from jaxviz.xla.collectives.exchanges import SUMMED, Exchange, ExchangeCause, sent_by
from jaxviz.xla.collectives.report import CauseKind, Collective, in_words
from jaxviz.xla.collectives.values import ValueNames
from jaxviz.xla.compiled_memory.places import EquationPlace, Places

Runs = Sequence[tuple[Implied | Exchange, int | None]]
"""Exchanges, each with how often it runs; None if unknown."""


def trips_of(place: EquationPlace) -> int | None:
    """How often an equation runs in one run of the program; None if a loop decides that when it runs."""
    trips: int | None = 1
    for loop in filter(is_loop, (*place.around, *place.within)):
        trips = trips * scan_length(loop) if trips is not None and is_scan(loop) else None
    return trips


@dataclass(frozen=True)
class FromTypes:
    """What the types of a gradient, or of a training step, imply."""

    places: Places
    values: ValueNames

    @cached_property
    def found(self) -> list[tuple[int, Implied]]:
        """Each exchange, with the number of its equation. XLA drops equations that no result depends on."""
        live = {e for program in self.places.programs for _, e in dce_program(program)[0].walk()}
        return [(n, i) for n, p in enumerate(self.places.makers) if p.equation in live for i in self._of(p)]

    def _of(self, place: EquationPlace) -> Sequence[Implied]:
        equation = place.equation
        by_position = called_by_position(len(equation.invars))
        return implied(equation.operation, lambda k: in_words(self.values.name(equation.invars[k])) or by_position(k))

    def rows(self) -> tuple[Collective, ...]:
        """The exchanges, equal ones of one expression in repeated layers as one; those that send most first."""
        rows = [(n, self._row(n, i)) for n, i in self.found]

        def key(pair: tuple[int, Collective]) -> Any:
            n, row = pair
            of = self.places.label(n)[2]
            return row.kind, row.axes, row.type, row.trips, row.stage, pattern(row.cause), of

        return tuple(sorted(map(_one, grouped(rows, key)), key=lambda c: -c.total_sent_nbytes))

    def _row(self, number: int, exchange: Implied) -> Collective:
        place, nbytes = self.places.makers[number], exchange.nbytes
        what, location, _ = self.places.label(number)
        text, kind = self._cause(place, exchange)
        sent = sent_by(exchange.kind, nbytes, exchange.group_size)
        return Collective(
            exchange.kind, exchange.axes, exchange.group_size, exchange.type, nbytes, sent, 1, trips_of(place),
            place.stage, what, place.operation, location, text, kind, "", (), (number,),
        )  # fmt: skip

    def _cause(self, place: EquationPlace, exchange: Implied) -> tuple[str, CauseKind]:
        value = self.values.cotangent_of(place.equation) if place.is_cotangent else None
        whose = in_words(self.values.name(value)) if value is not None else ""
        if exchange.cause_kind != "sum" or not whose:
            return exchange.cause, exchange.cause_kind
        return f"{exchange.cause}, for {whose}'s cotangent", "cotangent"

    # --- beside what is compiled --------------------------------------------------------------------------------------

    def cause_of(self, exchange: Exchange) -> ExchangeCause | None:
        """The cause of a compiled collective; None if the types imply none of its axes and size."""
        alike = [(n, i) for n, i in self.found if i.kind and _key(i) == _key(exchange)]
        if not alike:
            return None
        makers = self.places.makers
        named = {*exchange.numbers, *exchange.served}
        # Of several that are alike, the one that it is named after, or that reads what it is named after.
        made = {v for n in exchange.numbers for v in makers[n].equation.outvars}
        reading = [(n, i) for n, i in alike if not made.isdisjoint(makers[n].equation.invars)]
        number, one = next(((n, i) for n, i in alike if n in named), (*reading, *alike)[0])
        place = makers[number]
        text, kind = self._cause(place, one)
        return ExchangeCause(text, kind, number, self.values.cotangent_of(place.equation))

    def notes(self) -> Iterator[str]:
        """What the types do not say."""
        chosen = [n for n, i in self.found if not i.kind]
        if chosen:
            where = dict.fromkeys(f"`{self.places.makers[n].operation}`{self._at(n)}" for n in chosen)
            exchange = "exchanges" if len(chosen) == 1 else "exchange"
            yield (
                f"The types do not say what {counted(len(chosen), 'operation')} {exchange}, since XLA chooses: "
                f"{listed(list(where), 4)}."
            )
        if any(i.kind == "reduce-scatter" and i.cause_kind != "written" for _, i in self.found):
            yield "For a sum of which each device keeps a part, XLA for CPU compiles an all-reduce of the same bytes."
        if self.auto_axes:
            are = "it is an auto axis" if len(self.auto_axes) == 1 else "they are auto axes"
            yield (
                f"The types say nothing about what is exchanged along {axes_text(self.auto_axes)}, as far as {are}: "
                "XLA chooses the layouts."
            )

    @cached_property
    def auto_axes(self) -> tuple[str, ...]:
        """The axes along which XLA chooses layouts, at least within a part of the program."""
        avals = (a for p in self.places.makers for a in (*p.operands, *p.results))
        meshes = {s.mesh for s in (getattr(a, "sharding", None) for a in avals) if s is not None}
        named = (
            a
            for mesh in sorted(meshes, key=str)
            for a, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
            if kind == AxisType.Auto and mesh.shape[a] > 1
        )
        return tuple(dict.fromkeys(named))

    def _at(self, number: int) -> str:
        location = self.places.label(number)[1]
        return f" ({short_location(location)})" if location is not None else ""


def _one(pairs: Sequence[tuple[int, Collective]]) -> Collective:
    rows = [row for _, row in pairs]
    return replace(
        rows[0], count=len(rows), what=alike([r.what for r in rows]), cause=most_alike([r.cause for r in rows]),
        equations=tuple(n for r in rows for n in r.equations),
    )  # fmt: skip


def _key(exchange: Implied | Exchange) -> tuple[str, frozenset[str], int]:
    kind = "sum" if exchange.kind in SUMMED else exchange.kind
    return kind, frozenset(exchange.axes), exchange.size


def comparison(types: FromTypes, exchanges: Sequence[Exchange]) -> Iterator[str]:
    """Whether what is compiled is what the types imply, in a sentence; nothing if there are auto axes."""
    if not types.found or types.auto_axes:
        return
    before = [(i, trips_of(types.places.makers[n])) for n, i in types.found]
    after: Runs = [(e, e.trips) for e in exchanges]
    summed = [(_summed_whole(i), n) for i, n in before]
    for of_types, differs in ((before, []), (summed, ["sums all of what each device then keeps a part of"])):
        if _total(of_types, _elements) == _total(after, _elements):
            if _total(of_types, _nbytes) != _total(after, _nbytes):
                differs = [*differs, "exchanges some values in a wider type"]
            but = f"; XLA for this backend {together(differs)}" if differs else ""
            yield f"The types imply these collectives, and no others{but}."
            return
    nbytes = [_total(runs, _nbytes) for runs in (before, after)]
    missing, more = nbytes[0] - nbytes[1], nbytes[1] - nbytes[0]
    parts = [
        f"{verb} {listed(list(map(_text, those.items())), 4)}"
        for verb, those in (("imply", missing), ("do not imply", more))
        if those
    ]
    yield f"Compiled is not quite what the types imply: they {', and '.join(parts)}."


def _total(exchanges: Runs, size: Callable[[Implied | Exchange], int]) -> Counter[tuple[str, tuple[str, ...], int]]:
    """How often each collective runs, by kind, axes and size; an unknown number of trips counts as one."""
    total: Counter[tuple[str, tuple[str, ...], int]] = Counter()
    for exchange, trips in exchanges:
        if exchange.kind:
            total[exchange.kind, exchange.axes, size(exchange)] += trips or 1
    return total


def _summed_whole(exchange: Implied) -> Implied:
    """A sum of which each device keeps a part, as a backend without a pass for it compiles it; one that is written
    stays as it is."""
    is_from_types = exchange.kind == "reduce-scatter" and exchange.cause_kind != "written"
    return replace(exchange, kind="all-reduce") if is_from_types else exchange


def _elements(exchange: Implied | Exchange) -> int:
    return exchange.size


def _nbytes(exchange: Implied | Exchange) -> int:
    return exchange.nbytes


def _text(item: tuple[tuple[str, tuple[str, ...], int], int]) -> str:
    (kind, axes, nbytes), n = item
    over = f" over {axes_text(axes)}" if axes else ""
    return f"{f'{n:,} × ' if n > 1 else ''}{kind}{over} of {format_bytes(nbytes)}"
