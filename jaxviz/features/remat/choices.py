"""What a checkpoint around one region could save: the best choices for every exchange rate between FLOPs and bytes.

The equations of a region form a function, so the choice is that of `graph.Graph`: with a price per byte it is a minimum
cut. Regions with the same equations, and the iterations of a scan, share one choice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from jaxviz.derivation import derive
from jaxviz.features.cost.parts import flops_of
from jaxviz.features.remat.graph import Graph, Sizes, best_trades, can_be_saved, scaled
from jaxviz.features.remat.offload import Offload
from jaxviz.features.remat.regions import Spot, bound_in
from jaxviz.features.remat.solver import Problem
from jaxviz.features.remat.tuning import EXACT
from jaxviz.ir.syntax import Atom, Program, Var

_PRODUCTS = 12
"""How many of the most expensive values are considered one by one: with 8, the lowest peak of a transformer is 0.7 %
higher, since some of the products of its layer are not among them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of values to save of one region.

    Args:
      saved: the values, as variables of the region's first spot, including those that are offloaded.
      nbytes: bytes on the device that the backward pass is given, over all calls and iterations: saved values and
        inputs of the region.
      flops: recomputed FLOPs.
      offloaded: values that are moved to the host, including inputs of the region.
      moved: their bytes, over all calls and iterations.
      transfer: the FLOPs that the device could do during the transfers.
    """

    saved: tuple[Var, ...]
    nbytes: int
    flops: int
    offloaded: tuple[Var, ...] = ()
    moved: int = 0
    transfer: int = 0

    @property
    def work(self) -> int:
        """Its cost in FLOPs."""
        return self.flops + self.transfer

    def at(self, n: int, total: int) -> Choice:
        """The same for some of the spots."""
        nbytes, flops, moved, transfer = (x * n // total for x in (self.nbytes, self.flops, self.moved, self.transfer))
        return Choice(self.saved, nbytes, flops, self.offloaded, moved, transfer)


class Part:
    """The spots of a region that have the same equations.

    Args:
      spots: the spots.
      body: their equations, as a function.
      times: the total number of runs, over loops and devices.
      prices: for each input the bytes of keeping it, in all spots; 0 if it is kept in any case.
      active: for each input whether it is differentiated.
      recompute_collectives: whether collectives may be recomputed.
      offload: how values are moved to the host; None without offloading.
      sizes: sizes of the function's values.
      devices: the number of devices it runs on, if sizes are those on one.

    Raises:
      JaxvizError, ValueError: it cannot be differentiated, or no checkpoint can be put around it.
    """

    def __init__(
        self, spots: Sequence[Spot], body: Program, times: int, prices: Sequence[int], active: Sequence[bool],
        recompute_collectives: bool, offload: Offload | None, sizes: Sizes, devices: int = 1,
    ):  # fmt: skip
        self.spots = spots
        self.offload = offload
        self.moves_inputs = True
        """Whether its inputs can be offloaded: the source has no expression inside it that could name them."""
        self.body = body
        self.times = times * len(spots)
        self.times_here = self.times // devices
        """How often it runs where its values take memory: in total, or on one device."""
        self.sizes = sizes
        derivation = derive(body, argnums=[i for i, a in enumerate(active) if a])
        graph = self.graph = Graph(derivation, recompute_collectives, sizes)
        self.prices: dict[Atom, int] = dict(zip(graph.named.forward.invars, prices, strict=True))
        inputs = dict(zip(derivation.forward.invars, prices, strict=True))
        residuals = sizes.residuals(derivation)
        self.opened_nbytes = sum(inputs.get(a, self.times_here * n) for a, n in residuals.items() if isinstance(a, Var))
        """Bytes that the backward pass is given without a checkpoint around it."""
        self.exchanges_again = False
        """Whether collectives are recomputed because none of these values can be saved."""
        self._bound: dict[Spot, tuple[Var, ...]] = {}
        self._place = {v: i for i, v in enumerate(self._bound_in(spots[0]))}

    def _copy(self) -> Part:
        """The same part, without what was computed from it on demand."""
        other = copy(self)
        for name, value in vars(Part).items():
            if isinstance(value, cached_property):
                other.__dict__.pop(name, None)
        return other

    def restricted(self, candidates: Mapping[str, Sequence[Var]]) -> Part:
        """The same part where only these values can be saved, each together with the others of its name."""
        here = {name: tuple(v for v in values if v in self._place) for name, values in candidates.items()}
        other = self._copy()
        other.moves_inputs = False
        here = {n: v for n, v in here.items() if v}
        try:
            other.graph = self.graph.restricted(here, self.graph.recompute_collectives)
        except ValueError:  # some exchanged values have no name there
            other.graph, other.exchanges_again = self.graph.restricted(here, True), True
        same = zip(other.graph.inputs, self.graph.inputs, strict=True)
        other.prices = {v: self.prices[old] for v, old in same if old in self.prices}
        return other

    def counting_inputs(self) -> Part:
        """The same part where an input that is kept takes its bytes, as in the number of bytes of JAX's residuals."""
        other = self._copy()
        other.moves_inputs = False
        other.prices = {v: self.graph.input_nbytes(v) for v in self.graph.inputs}
        return other

    def without_names(self) -> Part:
        """The same part where nothing can be saved by name, also if it is restricted to other values later."""
        other = self.restricted({})
        other.graph.is_nameless = True
        return other

    def at(self, spots: Sequence[Spot]) -> Part:
        """The same part at some of its spots."""
        other = self._copy()
        n, total = len(spots), len(self.spots)
        other.spots, other.prices = spots, {v: price * n // total for v, price in self.prices.items()}
        for name in ("times", "times_here", "opened_nbytes"):
            setattr(other, name, getattr(self, name) * n // total)
        other.choices = [c.at(n, total) for c in self.choices]
        return other

    def more(self, choice: Choice, spare: int, between: bool) -> list[tuple[Part, Choice]] | None:
        """The choice with fewer FLOPs than another, for at most this many more bytes, at all spots or at the last ones;
        None if there is none.

        Args:
          between: whether to also search for choices that are optimal at no price.
        """
        better = [c for c in self.choices if c.work < choice.work]
        limit = choice.nbytes + spare
        fitting = [[(self, c)] for c in better if c.nbytes <= limit]
        if between and (c := self.within(limit)) is not None and c.nbytes <= limit and c.work < choice.work:
            fitting.append([(self, c)])
        n = len(self.spots)
        for c in better if n > 1 else ():
            k = int(n * spare / max(c.nbytes - choice.nbytes, 1))
            if 0 < k < n:
                first, last = self.at(self.spots[:-k]), self.at(self.spots[-k:])
                fitting.append([(first, choice.at(n - k, n)), (last, c.at(k, n))])
        return min(fitting, key=lambda some: sum(c.work for _, c in some), default=None)

    def everywhere(self, value: Var) -> Iterator[Var]:
        """The variables of a value of the first spot in each of the spots."""
        return (self._bound_in(spot)[self._place[value]] for spot in self.spots)

    def _bound_in(self, spot: Spot) -> tuple[Var, ...]:
        if spot not in self._bound:
            self._bound[spot] = bound_in(spot)
        return self._bound[spot]

    def names_of(self, choice: Choice) -> list[str]:
        """The candidates of the graph that are saved."""
        return [name for name, values in self.graph.candidates.items() if not set(values).isdisjoint(choice.saved)]

    @cached_property
    def fewest(self) -> Choice:
        """The choice with the fewest bytes, and among those the least work: the first of `choices`, found without the
        others."""
        work, sizes = self._costs
        return self._chosen(self._problem.least(scaled(sizes), scaled(work)))

    @cached_property
    def choices(self) -> list[Choice]:
        """All choices that are optimal at some price per byte, the fewest bytes first."""
        work, sizes = self._costs
        least, fastest = self.fewest, self._chosen(self._problem.least(scaled(work), scaled(sizes)))
        optimal = {least, fastest}

        def between(less: Choice, more: Choice) -> None:
            if more.nbytes <= less.nbytes or less.work <= more.work:
                return
            price = (less.work - more.work) / (more.nbytes - less.nbytes)
            middle = self._chosen(self._problem.least(scaled(work + price * sizes)))
            worth = lambda c: c.work + price * c.nbytes
            if worth(middle) < worth(less) * (1 - 1e-9) and middle not in optimal:
                optimal.add(middle)
                between(less, middle)
                between(middle, more)

        between(least, fastest)
        if self.offload is not None:
            optimal.update(chain.from_iterable(map(self._moved_by_and_by, [*optimal])))
        return list(best_trades(optimal, lambda c: c.nbytes, lambda c: c.work))

    def _moved_by_and_by(self, choice: Choice) -> Iterator[Choice]:
        """The same with fewer values offloaded, the largest first: at the price where offloading pays, it is worth the
        same for each of them."""
        names, moved = self.names_of(choice), self.moved_of(choice)
        if len(moved) > 1:
            moved.sort(key=lambda key: -self._price_of[self.movable[key]])
            yield from (self.choice(names, moved[:k]) for k in range(len(moved)))

    @cached_property
    def _price_of(self) -> np.ndarray:
        """The bytes of each choice of the problem, at one spot and in one iteration."""
        price_of: np.ndarray = self.graph.sizes.copy()
        for v, at in self.graph.input_at.items():
            price_of[at] = self.prices.get(v, 0) / self.times_here
        return price_of

    @cached_property
    def movable(self) -> dict[str | Atom, int]:
        """What can be offloaded, with its place in the problem: candidates by name, and inputs that a program has to
        keep."""
        movable: dict[str | Atom, int] = {}
        if self.offload is not None and not self.graph.is_nameless:
            graph = self.graph
            on_devices = {n.name for n in graph.nodes if n.name and n.where.shard_map is not None}
            movable.update((name, at) for name, at in graph.name_at.items() if name not in on_devices)
            inputs = graph.input_at.items() if self.moves_inputs else ()
            movable.update((v, at) for v, at in inputs if self._price_of[at] and can_be_saved(v.aval))
        return movable

    @cached_property
    def _problem(self) -> Problem:
        """The optimization problem of what is recomputed, saved and offloaded."""
        return self.graph.problem.with_twins(list(self.movable.values())) if self.movable else self.graph.problem

    @cached_property
    def _costs(self) -> tuple[np.ndarray, np.ndarray]:
        """The work and the bytes of each of its choices, at one spot and in one iteration."""
        moved = self._price_of[list(self.movable.values())]
        per_byte = self.offload.flops_per_byte if self.offload is not None else 0.0
        return np.append(self.graph.work, per_byte * moved), np.append(self._price_of, np.zeros(len(moved)))

    def within(self, limit: int) -> Choice | None:
        """The choice with the least work within a limit of bytes; None if there is none."""
        if limit < self.fewest.nbytes:
            return None
        work, sizes = self._costs
        some_work, some_sizes = scaled(work), scaled(sizes)
        chosen = self._problem.within(some_work + 1e-6 * some_sizes, sizes, limit / self.times_here)
        fewest = self._problem.settled(chosen, some_work).least(some_sizes, some_work)
        fitting = [c for c in map(self._chosen, (chosen, fewest)) if c.nbytes <= limit]
        return min(fitting, key=lambda c: (c.work, c.nbytes), default=None)

    def lightest(self, most_work: float) -> Choice:
        """The choice with the fewest bytes that takes no more work than this, in FLOPs."""
        work, sizes = self._costs
        cost = scaled(sizes) + 1e-6 * scaled(work)
        return self._chosen(self._problem.within(cost, work, most_work / self.times))

    def least_work(self, limit: float) -> float | None:
        """A lower bound for the FLOPs of any choice within a limit of bytes; None if there is none."""
        work, sizes = self._costs
        if limit < self.fewest.nbytes:
            return None
        return self.times * self._problem.bound(work, sizes, limit / self.times_here)

    @cached_property
    def products(self) -> list[str]:
        """The candidates for the most expensive values, such as matrix products, the most expensive last."""
        work = {name: flops_of(self.graph.makers[v], {}) for name, (v, *_) in self.graph.candidates.items()}
        least = EXACT * max(work.values(), default=0)
        return sorted((name for name, flops in work.items() if flops > least), key=work.__getitem__)[-_PRODUCTS:]

    def inputs_moved(self, choice: Choice) -> list[int]:
        """The indices of the offloaded inputs."""
        moved = {v for v in self.moved_of(choice) if isinstance(v, Var)}
        return [k for k, v in enumerate(self.graph.named.forward.invars) if v in moved]

    def moved_of(self, choice: Choice) -> list[str | Atom]:
        """The offloaded values: candidates of the graph by their names, and inputs."""
        offloaded = set(choice.offloaded)
        names = [name for name, values in self.graph.candidates.items() if not offloaded.isdisjoint(values)]
        return [*names, *(v for v in self.graph.named.forward.invars if v in offloaded)]

    def _chosen(self, chosen: np.ndarray) -> Choice:
        """The choice that a solution of the problem represents."""
        twins = chosen[len(self.graph.work) :]
        moved = [key for key, is_moved in zip(self.movable, twins, strict=True) if is_moved > 0.5]
        saved = [name for name, at in self.graph.name_at.items() if chosen[at] > 0.5]
        return self.choice([*saved, *(key for key in moved if isinstance(key, str))], moved)

    def choice(self, names: Collection[str], moved: Collection[str | Atom] = ()) -> Choice:
        """The choice that saves some candidates of the graph.

        Args:
          names: the candidates.
          moved: the offloaded ones, and offloaded inputs.
        """
        graph = self.graph
        nodes, inputs = graph.reached(graph.needed, frozenset(names))
        used = {graph.nodes[i].name for i in nodes}.intersection(names)
        sizes: list[tuple[str | Atom, int]] = [
            (n.name, self.times_here * n.where.times * n.nbytes)
            for n in map(graph.nodes.__getitem__, nodes)
            if n.name in used
        ]
        sizes += [(v, self.prices.get(v, 0)) for v in inputs]
        moved_nbytes = sum(size for key, size in sizes if key in moved)
        values = lambda some: [v for name in graph.candidates if name in some for v in graph.candidates[name]]
        offloaded = (
            *values(used.intersection(moved)),
            *(v for v in graph.named.forward.invars if v in inputs and v in moved),
        )
        transfer = int(self.offload.flops_per_byte * moved_nbytes) if self.offload is not None else 0
        nbytes = sum(size for _, size in sizes) - moved_nbytes
        flops = self.times * sum(graph.flops[i] for i in nodes)
        return Choice(tuple(values(used)), nbytes, flops, offloaded, moved_nbytes, transfer)
