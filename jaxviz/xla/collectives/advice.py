"""Advice that would defer, merge or avoid a collective. A test follows each piece of advice and checks its effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxviz.analysis.implied import axes_text
from jaxviz.analysis.walk import primal_equation
from jaxviz.higher_order import is_loop, of
from jaxviz.ir import compat, primitives
from jaxviz.ir.syntax import Atom, Equation, Program
from jaxviz.report.tables import short_location, together
from jaxviz.xla.collectives.causes import Causes, call_of
from jaxviz.xla.collectives.exchanges import Exchange, ExchangeCause
from jaxviz.xla.compat.reshards import axes_in_code, spec_text


@dataclass(frozen=True)
class Advisor:
    """Advises on each of all collectives of a program."""

    causes: Causes
    all: Sequence[Exchange]

    def of(self, exchange: Exchange) -> str:
        """What to write instead; '' if nothing is known."""
        cause = exchange.cause
        if cause is None or not exchange.nbytes:
            return ""
        match cause.kind:
            case "written":
                return self._of_transpose(cause)
            case "cotangent":
                return self._of_cotangent(cause, exchange)
            case "asked" if cause.need is not None:
                layout = _spec(cause.need.before.dims)
                return f"ask for the layout that it already has, {layout}, so that nothing is moved here"
            case "move" if exchange.kind == "all-gather" and cause.value is not None:
                return self._gathered_before(exchange, cause.value) or self._together(exchange)
        return ""

    def _of_transpose(self, cause: ExchangeCause) -> str:
        """Advice on a sum that is the transpose of a `psum`."""
        place = self.causes.places.makers[cause.number]
        holder = next((e for e in reversed(place.within) if of(e).kind == "devices"), None)
        if holder is None or not place.is_cotangent:
            return ""
        summing = primal_equation(place.equation)
        if not _frees_transpose(primal_equation(holder), summing):
            return ""
        return (
            f"with `check_vma=True` in `jax.shard_map`, types say that the result of this `{call_of(summing)}` is "
            "the same on all devices, its transpose exchanges nothing, and this all-reduce goes"
        )

    def _of_cotangent(self, cause: ExchangeCause, exchange: Exchange) -> str:
        values = self.causes.values
        assert cause.value is not None
        path, over = values.argument(cause.value), axes_text(exchange.axes)
        if not path or exchange.result_nbytes < 2 * exchange.group_size or any(":" in axis for axis in exchange.axes):
            return ""
        layout = self.causes.arguments.get(path)
        if layout is not None and layout.axes & set(exchange.axes):
            return (
                f"each device needs only its part of the cotangent of `{path}`, and a reduce-scatter sends half as "
                f"much as this all-reduce: gather `{path}` with `lax.all_gather(…, tiled=True)` in a `jax.shard_map` "
                f"over {over}; its transpose is a reduce-scatter"
            ) if exchange.kind == "all-reduce" else ""  # fmt: skip
        loop = self._turns_in(cause.value)
        if loop and exchange.trips is not None and exchange.trips > 1:
            return (
                f"the cotangent of `{path}` is summed over {over} in each of {exchange.trips:,} iterations: in a "
                f"`jax.shard_map` over {over}, `jax.lax.pcast({path}, {axes_in_code(exchange.axes)}, to='varying')` "
                "before the loop defers this to one sum after the loop"
            )  # fmt: skip
        return ""

    def _turns_in(self, value: Atom) -> bool:
        """Whether a value is the same in each iteration of the loop that reads it."""
        body_input = self.causes.values.body_input(value)
        if body_input is None or not is_loop(body_input.holder):
            return False
        n_before, _ = of(body_input.holder).carry(body_input.holder.operation)
        return body_input.place < n_before

    @cached_property
    def _gathers(self) -> list[tuple[Exchange, Atom]]:
        """The values that are gathered for an operation."""
        return [
            (e, e.cause.value)
            for e in self.all
            if e.cause is not None and e.cause.kind == "move" and e.cause.value is not None and e.kind == "all-gather"
        ]

    def _gathered_before(self, exchange: Exchange, value: Atom) -> str:
        """Advice on a value that the backward pass gathers although the forward pass has gathered it too."""
        values, places = self.causes.values, self.causes.places
        is_backward = lambda e: places.makers[e.number].stage == "backward"
        path = values.argument(value)
        if not path or not is_backward(exchange):
            return ""
        same = [
            e for e, v in self._gathers
            if e.axes == exchange.axes and not is_backward(e) and values.argument(v) == path
        ]  # fmt: skip
        if not same:
            return ""
        at = places.label(same[0].number or 0)[1]
        where = f" at {short_location(at)}" if at is not None else ""
        return (
            f"the forward pass gathers `{path}` too{where}: gather it with `jax.lax.with_sharding_constraint` before "
            "it is read, outside of a checkpoint, and it stays gathered, which takes memory but avoids this"
        )

    def _together(self, exchange: Exchange) -> str:
        """Advice on several arguments that are gathered one by one for the same value."""
        key = lambda e: (self._read_with(e), e.axes, e.type, e.instruction.computation)
        alike = [(e, v) for e, v in self._gathers if key(e) == key(exchange)]
        paths = list(dict.fromkeys(self.causes.values.argument(v) for _, v in alike))
        ids = {e.instruction.id for e, _ in alike}
        if len(paths) < 2 or not all(paths) or len(ids) < 2 or not self._read_with(exchange):
            return ""
        return (
            f"{together(f'`{p}`' for p in paths)} are gathered one by one for the same value: stack them in one "
            "array to gather them at once"
        )

    def _read_with(self, exchange: Exchange) -> tuple[Atom, ...]:
        """The other operands of the equation for which a value is gathered."""
        cause = exchange.cause
        assert cause is not None
        equation = self.causes.places.makers[cause.number].equation
        return tuple(self.causes.values.source(a) for a in equation.invars if a is not cause.value)


def _spec(dims: Sequence[Sequence[str]]) -> str:
    """`` `P('data')` ``, as users write a sharding, without the last dimensions if these are not divided."""
    n = max((i + 1 for i, axes in enumerate(dims) if axes), default=0)
    return f"`{spec_text(dims[:n])}`"


# --- the effect of check_vma ------------------------------------------------------------------------------------------

Differing = Mapping[Atom, frozenset[Any]]


def _frees_transpose(holder: Equation, summing: Equation) -> bool:
    """Whether `check_vma=True` removes the sum that is the transpose of a `psum` in a `shard_map` without it.

    It does if the operand differs between the devices along all of its axes, and the result is combined only with
    values that are the same on them: otherwise the cotangent of the result is summed where they are combined. False
    also if JAX would refuse the function, since a result that may differ is said to be the same, or if that is unknown.
    """
    p = holder.operation.params
    body: Program = p["jaxpr"]
    axes = compat.axis_names(summing.operation.params)
    if p["check_vma"] or summing.primitive.name != "psum" or summing.operation.params.get("axis_index_groups"):
        return False
    if summing not in body.equations or not axes <= set(compat.devices_of(holder.operation)):
        return False
    surely, maybe = _differing(body, p["in_specs"], surely=True), _differing(body, p["in_specs"], surely=False)
    results = list(zip(body.outvars, map(_axes_of, p["out_specs"]), strict=True))
    if any(maybe.get(a, frozenset()) - split for a, split in results):
        return False
    after: set[Atom] = set(summing.outvars)
    for e in body.equations:
        if not after.isdisjoint(e.invars):
            if _exchanges_inside(e) or axes & _along(e) or any(axes & maybe.get(a, frozenset()) for a in e.invars):
                return False
            after.update(e.outvars)
    return all(axes <= surely.get(a, frozenset()) for a in summing.invars) and not any(
        a in after and axes & split for a, split in results
    )


def _differing(body: Program, in_specs: Iterable[Any], surely: bool) -> Differing:
    """The axes along which the values of a body differ between devices: surely, or perhaps."""
    differing: dict[Atom, frozenset[Any]] = {v: _axes_of(s) for v, s in zip(body.invars, in_specs, strict=True)}
    every = frozenset[Any]().union(*differing.values(), *(_along(e) for _, e in body.walk()))
    for e in body.equations:
        axes = frozenset[Any]().union(*(differing.get(a, ()) for a in e.invars))
        if _exchanges_inside(e):
            axes = frozenset() if surely else every
        elif primitives.exchanges(e.primitive) and _along(e):
            same = surely or primitives.plain(e.primitive.name).kind == "all-reduce"
            axes = axes - _along(e) if same else axes | _along(e)
        else:
            axes |= _along(e)
        differing.update(dict.fromkeys(e.outvars, axes))
    return differing


def _along(e: Equation) -> frozenset[Any]:
    return frozenset(compat.axis_names(e.operation.params))


def _exchanges_inside(e: Equation) -> bool:
    """Whether devices exchange values, or read their place among the devices, in the programs of an equation."""
    return any(_along(inner) for _, program in e.programs for _, inner in program.walk())


def _axes_of(spec: Any) -> frozenset[Any]:
    parts = (part if isinstance(part, tuple) else (part,) for part in spec.partitions)
    return frozenset(axis for part in parts for axis in part if axis is not None)
