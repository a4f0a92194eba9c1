"""Facts about the values of a function: how often they are computed, the bytes that saving them takes, and whether a
tangent reaches them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from jaxviz.analysis.grouping import grouped
from jaxviz.analysis.layouts import Layouts
from jaxviz.analysis.naming import Naming
from jaxviz.analysis.walk import defined_at
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
from jaxviz.features.remat.regions import BODIES, Region, Spot, alike_spots, frames_of, stacks_of
from jaxviz.higher_order import bodies, is_scan, of
from jaxviz.higher_order.checkpoint import CHECKPOINT
from jaxviz.higher_order.jit import JIT
from jaxviz.higher_order.scan import SCAN
from jaxviz.higher_order.shard_map import SHARD_MAP
from jaxviz.ir import compat
from jaxviz.ir.primitives import plain
from jaxviz.ir.syntax import Atom, Equation, Program, Var
from jaxviz.transforms.driver import with_constants_as_inputs
from jaxviz.transforms.inline import Made, inlined, numbers_in_place, originals

Find = Callable[[Derivation], tuple[Layouts, Sequence[int]] | None]


class Context:
    """A function with its calls and its checkpoints inlined.

    Args:
      find: given the derivation of the inlined function, finds how its gradient is laid out over devices, and over how
        many each input is; None if it runs on one.
    """

    def __init__(self, derivation: Derivation, find: Find):
        self.derivation = derivation
        self.copies: dict[Var, Var] = {}
        """Maps a value of a called function to the value in the function itself, which all its calls share."""
        self.flat = numbers_in_place(inlined(derivation.primal, (JIT.primitive, CHECKPOINT.primitive), self.copies))
        self.made = originals(derivation.primal, self.flat, lambda e: of(e) in (JIT, CHECKPOINT))
        """For each equation the one as written, and those that contain it there, outermost first."""
        self.stacks = stacks_of(self.made)
        self.written = _checkpoints(self.flat, self.made)
        """Its existing checkpoints, as regions."""
        layouts, parts = find(derive_like(self.flat, derivation)) or (None, ())
        inputs: dict[Atom, int] = dict(zip(self.flat.invars, parts, strict=False))
        self.sizes = Sizes(layouts, inputs, self.copies)
        self.runs: dict[int, tuple[int, int]] = {}
        """For each program how often it runs, on all devices together, and on how many, if sizes are those on one."""
        self.prices: dict[Var, int] = dict.fromkeys((*self.flat.invars, *self.flat.constvars), 0)
        """Bytes of keeping a value until the backward pass, over all iterations; 0 if it is kept in any case."""
        self.active = {v for v, nz in zip(self.flat.invars, derivation.nonzeros, strict=True) if nz}
        """Values that have a tangent."""
        before = -1
        while before < len(self.active):  # a carry that is active at the end of an iteration is active throughout
            before = len(self.active)
            self._walk(self.flat, 1, 1)

    @cached_property
    def naming(self) -> Naming:
        return Naming(self.flat, None, self.derivation.primal, self.made)

    def _walk(self, program: Program, times: int, devices: int) -> None:
        self.runs[id(program)] = times, devices
        for e in program.equations:
            if of(e) in BODIES:
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

    def part(self, spots: Sequence[Spot], recompute_collectives: bool, offload: Offload | None) -> Part:
        """What spots with the same equations could save.

        Raises:
          JaxvizError, ValueError: no checkpoint can be put there.
        """
        first = spots[0]
        why = refused_in_checkpoint(first.equations)
        if why:
            raise ValueError(why)
        times, devices = self.runs[id(first.program)]
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


def _is_differentiable(v: Var) -> bool:
    return not compat.is_float0(v.aval.to_tangent_aval())


def _checkpoints(flat: Program, made: Mapping[Equation, Made]) -> list[Region]:
    """The checkpoints of a function, as regions of it with their bodies inlined."""
    spots: dict[tuple[Equation, ...], Spot] = {}

    def look(p: Program, depth: int) -> None:
        for i, e in enumerate(p.equations):
            _, within = made[e]
            for k in range(depth, len(within)):
                if of(within[k]).is_checkpoint:
                    nested = within[: k + 1]
                    spots[nested] = replace(spots.setdefault(nested, Spot(p, i, i)), end=i + 1)
            if of(e) in BODIES:
                look(e.params["jaxpr"], len(within) + 1)

    def region(nested: Sequence[tuple[Equation, ...]]) -> Region:
        first = nested[0][-1]
        stacks = {spots[n]: frames_of(n[-1].source) for n in nested}
        at, alike = defined(first), alike_spots([spots[n] for n in nested])
        return Region(_name(first), None, first.location or at, alike, stacks, is_written=True, defined=at)

    look(flat, 0)
    defined = lambda checkpoint: defined_at(checkpoint.params["jaxpr"])
    return [*map(region, grouped(spots, lambda nested: (_name(nested[-1]), defined(nested[-1]))))]


def _name(checkpoint: Equation) -> str:
    return str(checkpoint.params["jaxpr"].name)
