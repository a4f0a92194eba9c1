"""Facts about the values of a function: how often they are computed, the bytes that saving them takes, and whether a
tangent reaches them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from jaxviz.analysis.grouping import grouped
from jaxviz.analysis.layouts import Layouts
from jaxviz.analysis.naming import Naming
from jaxviz.analysis.walk import defined_at, programs_in
from jaxviz.derivation import Derivation
from jaxviz.features.remat.checkpointing import (
    check_checkpoint,
    cut,
    inputs_of,
    makes_references,
    refused_in_checkpoint,
)
from jaxviz.features.remat.choices import Part
from jaxviz.features.remat.graph import Sizes, derive_like
from jaxviz.features.remat.offload import Offload
from jaxviz.features.remat.regions import Frame, Region, Spot, alike_spots, frames_of, stacks_of
from jaxviz.higher_order import bodies, is_scan, of
from jaxviz.higher_order.checkpoint import CHECKPOINT
from jaxviz.higher_order.jit import JIT
from jaxviz.higher_order.scan import SCAN
from jaxviz.higher_order.shard_map import SHARD_MAP
from jaxviz.ir import compat
from jaxviz.ir.primitives import plain
from jaxviz.ir.syntax import Atom, Equation, Program, Var
from jaxviz.transforms.driver import with_constants_as_inputs
from jaxviz.transforms.inline import inlined, numbers_in_place, originals

Find = Callable[[Derivation], tuple[Layouts, Sequence[int]] | None]


class Context:
    """A function with its calls and its checkpoints inlined.

    Args:
      find: given the derivation of the inlined function, finds how its gradient is laid out over devices, and over how
        many each input is; None if it runs on one.
    """

    def __init__(self, derivation: Derivation, find: Find = lambda _: None):
        self.derivation = derivation
        self.copies: dict[Var, Var] = {}
        """Maps a value of a called function to the value in the function itself, which all its calls share."""
        with_checkpoints = inlined(derivation.primal, (JIT.primitive,), self.copies)
        self.flat = numbers_in_place(inlined(with_checkpoints, (CHECKPOINT.primitive,), self.copies))
        self.stacks = stacks_of(derivation.primal, self.flat, _is_opened)
        self.written = list(_checkpoints(with_checkpoints, self.flat))
        """Its existing checkpoints, as regions."""
        layouts, parts = find(derive_like(self.flat, derivation)) or (None, ())
        inputs: dict[Atom, int] = dict(zip(self.flat.invars, parts, strict=False))
        self.sizes = Sizes(layouts, inputs, self.copies)
        self.times: dict[int, int] = {}
        """For each program how often it runs, on all devices together."""
        self.devices: dict[int, int] = {}
        """For each program the number of devices it runs on, if sizes are those on one; each runs it `times / devices`
        times."""
        self.prices: dict[Var, int] = {}
        """Bytes of keeping a value until the backward pass, over all iterations; 0 if it is kept in any case."""
        self.active: set[Var] = set()
        """Values that have a tangent."""
        self.prices.update(dict.fromkeys((*self.flat.invars, *self.flat.constvars), 0))
        self.active.update(v for v, nz in zip(self.flat.invars, derivation.nonzeros, strict=True) if nz)
        before = -1
        while before < len(self.active):  # a carry that is active at the end of an iteration is active throughout
            before = len(self.active)
            self._walk(self.flat, 1, 1)

    @cached_property
    def naming(self) -> Naming:
        written = self.derivation.primal
        return Naming(self.flat, None, written, originals(written, self.flat, _is_opened))

    @cached_property
    def frames(self) -> dict[Var, tuple[Frame, ...]]:
        """The frames that led to each value, outermost first; in a loop, JAX starts with those of the loop's body."""
        programs = {id(p): p for p in programs_in(self.flat)}
        return {
            v: stack
            for key, stacks in self.stacks.items()
            for e, stack in zip(programs[key].equations, stacks, strict=True)
            for v in e.outvars
        }

    def _walk(self, program: Program, times: int, devices: int) -> None:
        self.times[id(program)], self.devices[id(program)] = times, devices
        for e in program.equations:
            if of(e) in (SCAN, SHARD_MAP):
                (body,) = bodies(e)
                trips = SCAN.trip_count(e.operation) if is_scan(e) else SHARD_MAP.n_devices(e.operation)
                is_apart = self.sizes.is_per_device and not is_scan(e)
                self._enter(e, body.program, times // devices, 1 if is_apart else trips)
                self._walk(body.program, times * trips, devices * (trips if is_apart else 1))
                self._leave(e, body.program)
            elif of(e).makes_reference or self._has_tangent(e):
                self.active.update(v for v in e.outvars if _is_differentiable(v))
                self.active.update(
                    v for v in (e.invars[i] for i in compat.written_refs(e.effects)) if isinstance(v, Var)
                )
            for v in e.outvars:
                self.prices[v] = times // devices * self.sizes.of(v)

    def _has_tangent(self, e: Equation) -> bool:
        return not plain(e.primitive.name).stops and any(a in self.active for a in e.invars)

    def _enter(self, e: Equation, body: Program, times: int, trips: int) -> None:
        n_before, n_carry = of(e).carry(e.operation)
        for v in body.constvars:
            self.prices[v] = 0
        for k, (v, a) in enumerate(zip(body.invars, e.invars, strict=True)):
            outside = self.prices.get(a, 0) if isinstance(a, Var) else 0
            is_carried = n_before <= k < n_before + n_carry
            self.sizes.stands_for(v, a)
            self.prices[v] = times * trips * self.sizes.of(v) if is_carried else outside
            if a in self.active:
                self.active.add(v)

    def _leave(self, e: Equation, body: Program) -> None:
        self.active.update(v for v, inner in zip(e.outvars, body.outvars, strict=True) if inner in self.active)
        n_before, n_carry = of(e).carry(e.operation)
        carried = zip(body.invars[n_before : n_before + n_carry], body.outvars[:n_carry], strict=True)
        self.active.update(v for v, after in carried if after in self.active)

    def part(self, spots: Sequence[Spot], recompute_collectives: bool, offload: Offload | None = None) -> Part:
        """What spots with the same equations could save.

        Raises:
          JaxvizError, ValueError: no checkpoint can be put there.
        """
        first = spots[0]
        why = refused_in_checkpoint(first.equations)
        if why:
            raise ValueError(why)
        times, devices = self.times[id(first.program)], self.devices[id(first.program)]
        if first.is_body:
            body: Program = first.scan.params["jaxpr"]
            times *= SCAN.trip_count(first.scan.operation)
            body = with_constants_as_inputs(body, debug_info=None)
        else:
            _, _, body = cut(first.program, first.start, first.end, first.equations, {})
        if not times:
            raise ValueError("it is never run")
        inputs = inputs_of(first)
        prices = [len(spots) * self.prices[v] for v in inputs if isinstance(v, Var)]
        active = [v in self.active for v in inputs]
        if makes_references(first.equations):
            check_checkpoint(body, active)
        return Part(spots, body, times, prices, active, recompute_collectives, offload, self.sizes, devices)


def _is_opened(e: Equation) -> bool:
    return of(e) in (JIT, CHECKPOINT)


def _is_differentiable(v: Var) -> bool:
    return not compat.is_float0(v.aval.to_tangent_aval())


def _checkpoints(with_checkpoints: Program, flat: Program) -> list[Region]:
    """The checkpoints of a function, as regions of it with their bodies inlined."""
    checkpoints: list[tuple[Equation, Spot]] = []

    def look(p: Program, opened: Program, at: int = 0) -> None:
        for e in p.equations:
            n = _opened_length(e)
            if of(e).is_checkpoint:
                checkpoints.append((e, Spot(opened, at, at + n)))
                look(e.params["jaxpr"], opened, at)
            elif of(e) in (SCAN, SHARD_MAP):
                look(e.params["jaxpr"], opened.equations[at].params["jaxpr"])
            at += n

    look(with_checkpoints, flat)
    defined = lambda e: defined_at(e.params["jaxpr"])
    return [
        Region(
            str(together[0][0].params["jaxpr"].name),
            None,
            together[0][0].location or defined(together[0][0]),
            alike_spots([spot for _, spot in together]),
            {spot: frames_of(e.source) for e, spot in together},
            is_written=True,
            defined=defined(together[0][0]),
        )
        for together in grouped(checkpoints, lambda item: (str(item[0].params["jaxpr"].name), defined(item[0])))
    ]


def _opened_length(e: Equation) -> int:
    """The number of equations that replace one when checkpoints are opened."""
    return sum(map(_opened_length, e.params["jaxpr"].equations)) if of(e).is_checkpoint else 1
