"""Why devices exchange values: derived from the layouts of values, and from the collectives of the program itself."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from jaxviz.analysis.implied import axes_text, layout_text
from jaxviz.ir import compat, primitives
from jaxviz.ir.syntax import Atom, Equation
from jaxviz.report.tables import together
from jaxviz.xla.collectives.exchanges import SUMMED, Exchange, ExchangeCause
from jaxviz.xla.collectives.from_types import FromTypes
from jaxviz.xla.collectives.report import in_words
from jaxviz.xla.collectives.values import ValueNames
from jaxviz.xla.compat.reshards import Need, Needs, Split
from jaxviz.xla.compiled_memory.places import EquationPlace, Places

_DONE = {
    "all-gather": "it is gathered", "all-to-all": "its parts are exchanged",
    "collective-permute": "its parts are moved",
    "all-reduce": "its parts are summed", "reduce-scatter": "its parts are summed",
}  # fmt: skip


@dataclass(frozen=True)
class Causes:
    """Finds the causes: from what Shardy has to move, the equations, and the names of their values."""

    needs: Needs
    places: Places
    values: ValueNames
    types: FromTypes

    def of(self, exchange: Exchange) -> ExchangeCause | None:
        """The cause of a collective; None if it is unknown."""
        for number in exchange.numbers:
            place = self.places.makers[number]
            if is_collective(place.equation):
                return ExchangeCause(self._written(place), "written", number, self.values.cotangent_of(place.equation))
        need = self._need(exchange)
        if need is None or self._size(need) != exchange.size:
            # XLA named it after another instruction: what the types say of its axes and size is certain.
            of_types = self.types.cause_of(exchange)
            if of_types is not None or need is None:
                return of_types
        # If the value is named after the equation that computes it, the equation that it is moved for says more.
        named = self.places.tags.named(need.path)
        numbers = (
            [n for n in named if n in exchange.served]
            or [n for n in named if n in exchange.numbers]
            or [*named, *exchange.numbers]
        )
        return self._summed(need, numbers[0]) if need.kind == "sum" else self._moved(need, numbers[0], exchange.kind)

    def of_move(self, number: int) -> ExchangeCause | None:
        """Why a value is resharded for an equation; None if unknown, or if there are several causes."""
        needs = [n for n in self._by_number.get(number, []) if n.kind == "move"]
        return self._moved(needs[0], number) if len(needs) == 1 else None

    # --- needs --------------------------------------------------------------------------------------------------------

    @cached_property
    def _by_number(self) -> dict[int, list[Need]]:
        by_number: dict[int, list[Need]] = {}
        for need in self.needs.needs:
            for path in dict.fromkeys((need.path, need.source)):
                for number in self.places.tags.named(path):
                    if need not in by_number.setdefault(number, []):
                        by_number[number].append(need)
        return by_number

    @cached_property
    def _by_path(self) -> dict[str, list[Need]]:
        by_path: dict[str, list[Need]] = {}
        for need in self.needs.needs:
            for path in filter(None, dict.fromkeys((need.path, need.source))):
                by_path.setdefault(path, []).append(need)
        return by_path

    def _need(self, exchange: Exchange) -> Need | None:
        """The need for a collective: found by its name, or else by its equation, for its axes."""
        kind = "sum" if exchange.kind in SUMMED else "move"
        axes = {a.partition(":")[0] for a in exchange.axes}

        def fitting(needs: Iterable[Need]) -> list[Need]:
            return [n for n in dict.fromkeys(needs) if n.kind == kind and (not axes or axes & _axes(n))]

        named = fitting(n for path in exchange.paths for n in self._by_path.get(path, ()))
        if exchange.n_together > 1:  # the names are those of all exchanges that XLA combined
            own = set(exchange.numbers)
            named = [n for n in named if not own or own & set(self.places.tags.named(n.path))]
        numbers = *exchange.numbers, *(() if named else exchange.served)
        candidates = named or fitting(n for number in numbers for n in self._by_number.get(number, ()))
        alike = [n for n in candidates if self._size(n) == exchange.size]
        if not named and not exchange.numbers:
            candidates = alike  # matched only by its readers, it may be another value that is moved for them

        def fit(need: Need) -> tuple[bool, bool, bool, bool, int]:
            of_need = set(self.places.tags.named(need.path))
            served, own = bool(of_need & set(exchange.served)), bool(of_need & set(exchange.numbers))
            return need in alike, served, own, axes <= _axes(need), -len(_axes(need))

        return (
            max(candidates, key=fit, default=None) if exchange.axes else candidates[0] if len(candidates) == 1 else None
        )

    def _size(self, need: Need) -> int:
        """The number of elements of a value on one device before it is moved, or summed."""
        mesh = max(self.needs.meshes.values(), key=len, default={})
        parts = math.prod(int(a.rpartition(")")[2]) if ":" in a else mesh.get(a, 1) for a in need.before.axes)
        return math.prod(need.before.shape) // max(1, parts)

    # --- descriptions -------------------------------------------------------------------------------------------------

    def _written(self, place: EquationPlace) -> str:
        equation = place.equation
        name, over = call_of(equation), axes_text(compat.axis_names(equation.operation.params))
        if place.stage != "backward":
            return f"`{name}` over {over} is called here"
        if place.is_recomputed:
            return f"`{name}` over {over} is called here, and a checkpoint recomputes it"
        value = self.values.cotangent_of(equation)
        whose = self.values.name(value) if value is not None else ""
        source = next(iter(_linear_of(equation)), None)
        if source is not None and is_collective(source):
            cotangent = f"the cotangent of `{whose}`" if whose else "the cotangent"
            return f"it is the transpose of the `{call_of(source)}` over {over} that is called here, for {cotangent}"
        if whose:
            return (
                f"`{whose}` is the same on all devices of {over} but is combined with values that differ: its "
                "cotangent is summed"
            )
        value = self.values.cotangent_returned(equation, place.within)
        whose = self._words(value) or "a value"
        return (
            f"{whose} is the same on all devices of {over}: each device has a part of its cotangent, and the parts "
            "are summed"
        )

    def _summed(self, need: Need, number: int) -> ExchangeCause:
        place = self.places.makers[number]
        equation = place.equation
        over = axes_text(need.axes)
        value = self.values.cotangent_of(equation) if place.is_cotangent else None
        divided = self._divided(need, equation)
        if value is not None:
            whose = self._words(value) or "a value"
            others = [name for name in divided if not name.startswith("the cotangent of ")] or divided
            read = f"{together(others)} {'is' if len(others) == 1 else 'are'}" if others else "the other operand is"
            layout = self._layout(value)
            if layout is not None and any(layout.along(a) is not None for a in need.axes):
                text = (
                    f"{whose} is split over {over} and gathered where it is read, {read} split over it: each device "
                    f"has a part of the sum for all of {whose}'s cotangent"
                )
            else:
                text = f"{whose} is replicated over {over}, {read} split over it: {whose}'s cotangent is summed"
            return ExchangeCause(text, "cotangent", number, value, need)
        verb = "is" if len(divided) <= 1 else "are"
        along = f"{together(divided) if divided else 'what it reads'} {verb} split over {over} along"
        what = in_words(self.places.label(number)[0])
        if "gather" in need.operation:
            text = f"{along} the dimension that is indexed: each device contributes the part that it has"
        elif "max" in equation.primitive.name or "min" in equation.primitive.name:
            text = f"{along} a dimension that {what} reduces: each device has the result of its part"
        else:
            text = f"{along} a dimension that {what} sums over: each device has a part of the sum"
        return ExchangeCause(text, "sum", number, None, need)

    def _moved(self, need: Need, number: int, kind: str = "") -> ExchangeCause:
        equation = self.places.makers[number].equation
        value = self._value_moved(need, equation)
        name = self._words(value) or "the value"
        done = _DONE.get(kind, "it is exchanged")
        before, after = layout_text(need.before.dims), layout_text(need.after.dims)
        if need.is_asked:
            text = f"{name} is {before}, but the program asks for it {after} here: {done}"
            return ExchangeCause(text, "asked", number, value, need)
        why = self._why_moved(need, equation) or f"and needed {after}"
        return ExchangeCause(f"{name} is {before}, {why}: {done}", "move", number, value, need)

    def _why_moved(self, need: Need, equation: Equation) -> str:
        """Why an operation cannot use a value with its sharding; '' if its rule does not say."""
        what = equation.primitive.name
        for axis in need.axes:
            dim = need.before.along(axis)
            factor = next(
                (f for f in need.factors if 0 <= need.place < len(f.operands) and f.operands[need.place] == dim), None
            )
            if factor is None or dim is None:
                continue
            if factor.kind == "whole":
                return f"and `{what}` needs dimension {dim} whole"
            if factor.kind == "permuted":
                return f"and `{what}` moves values along dimension {dim}"
            for k, other in enumerate(need.operands):
                d = other.along(axis)
                taken = next((f for f in need.factors if f.operands[k] == d), None) if d is not None else None
                if k != need.place and taken is not None and taken is not factor:
                    name = self._operand_name(need, equation, k) or "the other operand"
                    return f"and {name} is split over it along another dimension of `{what}`"
            d = need.result.along(axis)
            taken = next((f for f in need.factors if f.result == d), None) if d is not None else None
            if taken is not None and taken is not factor:
                return f"and the result of `{what}` is split over it along dimension {d}"
            if d is None and factor.result is not None:
                return f"and the result of `{what}` is not split over {axes_text([axis])}"
        return ""

    # --- operands -----------------------------------------------------------------------------------------------------

    def _divided(self, need: Need, equation: Equation) -> list[str]:
        """The operands that are sharded over the axes along a dimension that is summed over."""
        names = []
        for f in need.factors:
            if f.kind != "sum":
                continue
            for k, d in enumerate(f.operands):
                if d is not None and k < len(need.operands) and d < len(need.operands[k].dims):
                    parts = {a.partition(":")[0] for a in need.operands[k].dims[d]}
                    if parts & _axes(need):
                        names.append(self._operand_name(need, equation, k))
        return [name for name in dict.fromkeys(names) if name]

    def _operand_name(self, need: Need, equation: Equation, place: int) -> str:
        return self._words(self._operand(need, equation, place))

    def _words(self, value: Atom | None) -> str:
        """A value in a sentence; '' if it has no name."""
        return "" if value is None else in_words(self.values.name(value))

    def _operand(self, need: Need, equation: Equation, place: int) -> Atom | None:
        """The operand of an equation that corresponds to one of its instruction, by its index and its shape."""
        shape = need.operands[place].shape if place < len(need.operands) else None
        shapes = [tuple(getattr(a.aval, "shape", ())) for a in equation.invars]
        if place < len(shapes) and shapes[place] == shape:
            return equation.invars[place]
        alike = [a for a, s in zip(equation.invars, shapes, strict=True) if s == shape]
        return alike[0] if len(alike) == 1 else None

    def _value_moved(self, need: Need, equation: Equation) -> Atom | None:
        if need.place >= 0:
            operand = self._operand(need, equation, need.place)
            if operand is not None:
                return operand
        if need.is_asked:
            asking = next((self.places.makers[n].equation for n in self.places.tags.named(need.path)), equation)
            return asking.invars[0] if asking.invars else None
        shape = need.before.shape
        return next((v for v in equation.outvars if tuple(getattr(v.aval, "shape", ())) == shape), None)

    def _layout(self, value: Atom) -> Split | None:
        """The layout of an argument; None for other values."""
        path = self.values.argument(value)
        return self.arguments.get(path) if path else None

    @cached_property
    def arguments(self) -> dict[str, Split]:
        """The layout of each argument, by path."""
        return {path: split for path, split, _ in self.needs.arguments}


def is_collective(equation: Equation) -> bool:
    """Whether devices exchange values in an equation of the program itself."""
    return primitives.exchanges(equation.primitive) and bool(compat.axis_names(equation.operation.params))


def call_of(equation: Equation) -> str:
    """`lax.psum`: the function that users call for a collective."""
    name = equation.primitive.name.removesuffix("_invariant")
    return f"lax.{ {'reduce_scatter': 'psum_scatter'}.get(name, name) }"


def _axes(need: Need) -> set[str]:
    return {a.partition(":")[0] for a in need.axes}


def _linear_of(equation: Equation) -> Iterable[Equation]:
    origin = equation.origin
    while origin is not None and origin.equation is not None:
        yield origin.equation
        origin = origin.equation.origin
