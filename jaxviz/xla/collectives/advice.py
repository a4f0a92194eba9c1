"""Advice that would defer, merge or avoid a collective. A test follows each piece of advice and checks its effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxviz.analysis.walk import primal_equation
from jaxviz.higher_order import is_loop, of
from jaxviz.ir.syntax import Atom
from jaxviz.report.tables import short_location, together
from jaxviz.xla.collectives.causes import Causes, ExchangeCause, axes_text, call_of
from jaxviz.xla.collectives.check_vma import frees_transpose
from jaxviz.xla.collectives.exchanges import Exchange
from jaxviz.xla.compiled_memory.module import Module


@dataclass(frozen=True, eq=False)
class Caused:
    """A collective with its cause."""

    exchange: Exchange
    cause: ExchangeCause | None

    @property
    def number(self) -> int | None:
        """The number of the equation that it is for; None if unknown."""
        if self.cause is not None:
            return self.cause.number
        return self.exchange.numbers[0] if self.exchange.numbers else None


@dataclass(frozen=True)
class Advisor:
    """Advises on collectives.

    Args:
      causes: of the collectives.
      module: the compiled program.
      all: the collectives.
    """

    causes: Causes
    module: Module
    all: Sequence[Caused]

    def of(self, caused: Caused) -> str:
        """What to write instead; '' if nothing is known."""
        cause, exchange = caused.cause, caused.exchange
        if cause is None or not exchange.nbytes:
            return ""
        match cause.kind:
            case "written":
                return self._of_transpose(caused)
            case "cotangent":
                return self._of_cotangent(cause, exchange)
            case "asked":
                return self._of_requested(cause)
            case "move":
                return self._gathered_before(caused, cause) or self._together(caused, cause)
        return ""

    def _of_transpose(self, caused: Caused) -> str:
        """Advice on a sum that is the transpose of a `psum`."""
        place = self.causes.places.found[caused.number or 0]
        holder = next((e for e in reversed(place.within) if of(e).kind == "devices"), None)
        if holder is None or not place.is_cotangent:
            return ""
        summing = primal_equation(place.equation)
        if not frees_transpose(primal_equation(holder), summing):
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
                f"`jax.shard_map` over {over}, `jax.lax.pcast({path}, {_names(exchange.axes)}, to='varying')` before "
                "the loop defers this to one sum after the loop"
            )  # fmt: skip
        return ""

    def _turns_in(self, value: Atom) -> bool:
        """Whether a value is the same in each iteration of the loop that reads it."""
        body_input = self.causes.values.body_input(value)
        if body_input is None or not is_loop(body_input.holder):
            return False
        n_before, _ = of(body_input.holder).carry(body_input.holder.operation)
        return body_input.place < n_before

    def _of_requested(self, cause: ExchangeCause) -> str:
        need = cause.need
        assert need is not None
        return f"ask for the layout that it already has, {_spec(need.before.dims)}, so that nothing is moved here"

    def _gathered_before(self, caused: Caused, cause: ExchangeCause) -> str:
        """Advice on a value that the backward pass gathers although the forward pass has gathered it too."""
        values, places = self.causes.values, self.causes.places
        if cause.value is None or caused.exchange.kind != "all-gather" or not self._is_backward(caused):
            return ""
        path = values.argument(cause.value)
        same = [
            c for c in self.all
            if c.cause is not None and c.cause.kind == "move" and c.cause.value is not None and not self._is_backward(c)
            and path and values.argument(c.cause.value) == path and c.exchange.kind == "all-gather"
            and c.exchange.axes == caused.exchange.axes
        ]  # fmt: skip
        if not same:
            return ""
        at = places.label(same[0].cause.number)[1] if same[0].cause is not None else None
        where = f" at {short_location(at)}" if at is not None else ""
        return (
            f"the forward pass gathers `{path}` too{where}: gather it with `jax.lax.with_sharding_constraint` before "
            "it is read, outside of a checkpoint, and it stays gathered, which takes memory but avoids this"
        )  # fmt: skip

    def _together(self, caused: Caused, cause: ExchangeCause) -> str:
        """Advice on several arguments that are gathered one by one for the same value."""
        values = self.causes.values
        mine = self._read_with(caused)
        if cause.value is None or not mine or caused.exchange.kind != "all-gather":
            return ""
        key = lambda e: (e.kind, e.axes, e.type, e.instruction.computation)
        alike = [
            c for c in self.all
            if c.cause is not None and c.cause.kind == "move" and c.cause.value is not None
            and self._read_with(c) == mine and key(c.exchange) == key(caused.exchange)
        ]  # fmt: skip
        paths = list(
            dict.fromkeys(
                values.argument(c.cause.value) for c in alike if c.cause is not None and c.cause.value is not None
            )
        )
        ids = {c.exchange.instruction.id for c in alike}
        if len(paths) < 2 or not all(paths) or len(ids) < 2:
            return ""
        return (
            f"{together(f'`{p}`' for p in paths)} are gathered one by one for the same value: stack them in one "
            "array to gather them at once"
        )

    def _read_with(self, caused: Caused) -> tuple[Atom, ...]:
        """The other operands of the equation for which a value is gathered."""
        cause = caused.cause
        if cause is None or cause.value is None:
            return ()
        equation = self.causes.places.found[cause.number].equation
        return tuple(self.causes.values.source(a) for a in equation.invars if a is not cause.value)

    def _is_backward(self, caused: Caused) -> bool:
        return caused.number is not None and self.causes.places.found[caused.number].stage == "backward"


def _names(axes: Sequence[str]) -> str:
    return repr(axes[0]) if len(axes) == 1 else repr(tuple(axes))


def _spec(dims: Sequence[Sequence[str]]) -> str:
    """`` `P('data', None)` ``, as users write a sharding."""
    parts = ["None" if not axes else repr(axes[0]) if len(axes) == 1 else repr(tuple(axes)) for axes in dims]
    while parts and parts[-1] == "None":
        parts.pop()
    return f"`P({', '.join(parts)})`"
