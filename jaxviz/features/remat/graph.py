"""What a function could save, and what its backward pass needs: the constraints of every plan.

What JAX recomputes in a checkpoint that saves values by name is decided on the program that JAX differentiates: the
function with a name after each value that could be saved. A value is available in the backward pass if it is an input,
or is saved by its name, or is recomputed from available operands. Each value that the linear program takes must be
available. The cheapest choice is an integer program, solved by HiGHS.

Source: Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization" (MLSys 2020,
arXiv:1910.02653), who formulate it as an integer program. Theirs chooses when each value is computed and freed; with
`jax.checkpoint` only the saved values can be chosen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import jax
import numpy as np

from jaxviz.analysis.layouts import Layouts
from jaxviz.derivation import Derivation
from jaxviz.features.cost.counts import Cost
from jaxviz.features.cost.parts import flops_of
from jaxviz.features.remat.checkpointing import makes_references
from jaxviz.features.remat.regions import BODIES, with_nested
from jaxviz.features.remat.solver import Problem
from jaxviz.higher_order import of
from jaxviz.higher_order.scan import SCAN
from jaxviz.higher_order.shard_map import SHARD_MAP
from jaxviz.ir import compat, primitives
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.convert import with_programs
from jaxviz.ir.origin import ancestors
from jaxviz.ir.pretty import describe_equation
from jaxviz.ir.syntax import Atom, Equation, Literal, Operation, Program, Var
from jaxviz.report.tables import nbytes
from jaxviz.transforms.dce import dce_rules
from jaxviz.transforms.driver import select
from jaxviz.transforms.inline import numbers_in_place, with_own_variables

T = TypeVar("T")
_PREFIX = "jaxviz_save_"


class Sizes:
    """The sizes of a function's values.

    Args:
      layouts: of the function's gradient; None if it runs on one device, or if all devices are to be counted together.
      inputs: for each input of the function over how many devices it is divided.
      copies: maps values of an inlined function to those that they replace.
    """

    def __init__(
        self,
        layouts: Layouts | None = None,
        inputs: Mapping[Atom, int] | None = None,
        copies: Mapping[Var, Var] | None = None,
    ):
        self.is_per_device = layouts is not None
        self.layouts = layouts.called_too(copies or {}) if layouts is not None else None
        self._parts: dict[Atom, int] = {**layouts.own, **(inputs or {})} if layouts is not None else {}

    def of(self, value: Atom) -> int:
        """Bytes of a value of the function."""
        return nbytes(value.aval) // self._parts.get(value, 1)

    def stands_for(self, binder: Var, operand: Atom) -> None:
        """Gives the inputs of a body the layouts of its operands."""
        if operand in self._parts:
            self._parts.setdefault(binder, self._parts[operand])

    def residuals(self, derivation: Derivation) -> dict[Atom, int]:
        """Bytes of each residual of the function, or of some of its equations."""
        residuals = dict.fromkeys(derivation.linearized.residuals, 0)
        if self.layouts is None:
            return {a: nbytes(a.aval) for a in residuals}
        forward, primal = derivation.forward, derivation.primal
        own: dict[Atom, Atom] = dict(zip(forward.invars, primal.invars, strict=True))
        results = {v: (e, k) for e in forward.equations for k, v in enumerate(e.outvars)}
        return {a: self.layouts.nbytes(*results[a]) if a in results else self.of(own.get(a, a)) for a in residuals}


@dataclass(frozen=True, eq=False, slots=True)
class _Node:
    """An equation of the forward program, or of the body of a scan or a `shard_map` in it.

    Args:
      equation: the equation.
      where: how often it runs, and on which devices.
      name: its name, if it only names a value that could be saved.
      reads: for each result its operands, if results differ in these: JAX drops what only the others need.
      nbytes: the bytes for saving its result in each iteration, on all devices together.
    """

    equation: Equation
    where: _Where
    name: str = ""
    reads: dict[Atom, tuple[Atom, ...]] | None = None
    nbytes: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class _Where:
    """The body that contains some equations.

    Args:
      times: how many iterations of loops run it.
      devices: how many devices run it.
      shard_map: the innermost one that contains it.
      results: the corresponding results outside of that.
    """

    times: int = 1
    devices: int = 1
    shard_map: Operation | None = None
    results: Mapping[Atom, Var] = field(default_factory=dict)

    def nbytes(self, v: Var) -> int:
        """The bytes of a value as it leaves the `shard_map`: concatenated over devices if it varies, or as the result
        that it is."""
        if self.shard_map is None:
            return nbytes(v.aval)
        if v in self.results:
            return nbytes(self.results[v].aval)
        with compat.inside_shard_map(self.shard_map) as names:
            spec = compat.residual_spec(v.aval, names, self.shard_map.params)
        axes = [
            a for part in spec.partitions if part is not None for a in (part if isinstance(part, tuple) else (part,))
        ]
        copies: int = math.prod(self.shard_map.params["mesh"].shape[a] for a in axes)
        return nbytes(v.aval) * copies


@dataclass(frozen=True, slots=True)
class _Carried:
    """A carry of a scan: it is available if the initial value and the previous iteration's are."""

    first: Atom
    before: Atom


class Graph:
    """What a function could save, and what its backward pass needs.

    Args:
      derivation: of the function, whose calls and checkpoints are inlined.
      recompute_collectives: whether collectives may be recomputed.
      sizes: of the function's values.
    """

    def __init__(self, derivation: Derivation, recompute_collectives: bool, sizes: Sizes):
        self.sizes_of = sizes
        self.plain = derivation
        self.is_nameless = makes_references(derivation.primal.equations) or not all(
            compat.is_askable(e.params) for _, e in derivation.primal.walk()
        )
        """Whether JAX can save nothing by name in it, see `is_askable`, or has to run it as a whole, see
        `makes_references`."""
        self.flat = numbers_in_place(derivation.primal)
        self.makers = {v: e for _, e in self.flat.walk() for v in e.outvars}
        self.recompute_collectives = recompute_collectives
        inputs = {*self.flat.invars, *self.flat.constvars}
        self._choose_from({f"{_PREFIX}{k}": (v,) for k, v in enumerate(worth_a_name(self.flat, inputs))})

    def restricted(self, candidates: Mapping[str, Sequence[Var]], recompute_collectives: bool) -> Graph:
        """The same function where only these can be saved: by name, each with the values that get it, all saved or
        none.

        Raises:
          ValueError: what devices exchange is not among them, and may not be exchanged again.
        """
        other = copy(self)
        other.recompute_collectives = recompute_collectives
        other._choose_from(candidates)
        return other

    def _choose_from(self, candidates: Mapping[str, Sequence[Var]]) -> None:
        self.candidates = candidates = {} if self.is_nameless else candidates
        marked: dict[Equation, str] = {}
        with_names = self._with_names({v: name for name, values in candidates.items() for v in values}, marked)
        self.named = named = derive_like(with_names, self.plain)
        """The function with a name after each candidate."""
        self.nodes: list[_Node] = []
        self.same: dict[Atom, Atom] = {}
        """Maps a value in the body of a scan to the same value outside, and a result of a scan to the one inside."""
        self.carried: dict[Atom, _Carried] = {}
        self.inputs: list[Var] = [*named.forward.invars, *named.forward.constvars]
        self._bound: set[Var] = set()
        self._add(named.forward, _Where(), frozenset(), marked)
        self.producer: dict[Atom, int] = {v: i for i, n in enumerate(self.nodes) for v in n.equation.outvars}
        # A checkpoint repeats effects, such as a `jax.debug.print`, in the backward pass.
        repeated = [a for n in self.nodes if compat.has_effects(n.equation.effects) for a in n.equation.invars]
        self.needed = [a for a in distinct([*named.linearized.residuals, *repeated]) if isinstance(a, Var)]
        n_results = len(named.forward.outvars) - named.n_residuals
        self.in_forward, _ = self.reached(named.forward.outvars[:n_results], frozenset())
        known: dict[int, Cost] = {}
        self.flops = [0] * len(self.nodes)
        """FLOPs of recomputing each node; 0 for what only residuals need, since it leaves the forward pass."""
        for i, n in ((i, self.nodes[i]) for i in self.in_forward):
            self.flops[i] = flops_of(n.equation, known) * n.where.times * n.where.devices
        self.fixed = [
            any(compat.is_real_effect(x) for x in n.equation.effects)
            or (not self.recompute_collectives and exchanges(n.equation))
            for n in self.nodes
        ]
        self.named_sizes = dict.fromkeys(candidates, 0)
        """The bytes for saving each name; a scan stacks its value."""
        for n in self.nodes:
            if n.name:
                self.named_sizes[n.name] += n.where.times * n.nbytes
        self._refuse_what_no_name_saves()
        self.problem = self._constraints()

    def _with_names(self, candidates: Mapping[Var, str], marked: dict[Equation, str]) -> Program:
        """The function with names for some values; `marked` receives the equations that name them, with their
        candidates."""

        def program(p: Program) -> Program:
            renamed: dict[Atom, Atom] = {}
            equations: list[Equation] = []
            for e in p.equations:
                op = with_programs(e.operation, program) if of(e) in BODIES else e.operation
                invars = tuple([renamed.get(a, a) for a in e.invars])
                equations.append(Equation(op, invars, e.outvars, e.source, e.origin))
                for v in filter(candidates.__contains__, e.outvars):
                    out = renamed[v] = Var(v.aval)
                    # One name for all values, so that rules are looked up once per type; the equation tells them apart.
                    params, avals = {"name": _PREFIX}, (v.aval,)
                    name = make_operation(compat.name_p, params, avals, avals, frozenset(), op.context)
                    equations.append(Equation(name, (v,), (out,), e.source))
                    marked[equations[-1]] = candidates[v]
            return replace(p, equations=tuple(equations), outvars=tuple([renamed.get(a, a) for a in p.outvars]))

        return program(self.flat)

    def _add(self, program: Program, where: _Where, varying: frozenset[Atom], marked: Mapping[Equation, str]) -> None:
        """Adds the nodes of a program; `varying` are the inputs that differ between iterations."""
        differs = set(varying)
        for e in program.equations:
            differs_here = not differs.isdisjoint(e.invars)
            if differs_here:
                differs.update(e.outvars)
            here = where if differs_here or not varying else replace(where, times=1)
            if of(e) not in BODIES:
                if e.primitive is not compat.name_p:
                    self.nodes.append(_Node(e, here, reads=_reads(e)))
                else:
                    name = next((marked[a] for a in (e, *ancestors(e)) if a in marked), "")
                    on_one = name and self.sizes_of.is_per_device
                    size = self.sizes_of.of(self.candidates[name][0]) if on_one else here.nbytes(e.outvars[0])
                    self.nodes.append(_Node(e, here, name, nbytes=size))
                continue
            body: Program = e.params["jaxpr"]
            bound = {*body.invars, *(v for inner in body.equations for v in inner.outvars)}
            if not bound.isdisjoint(self._bound):  # two loops may share a body, with other values each time
                body = with_own_variables(body)
            self._bound |= bound
            self.inputs += body.constvars
            self.same.update(zip(e.outvars, body.outvars, strict=True))
            inner = frozenset(v for v, a in zip(body.invars, e.invars, strict=True) if a in differs)
            if of(e) is SHARD_MAP:
                self.same.update(zip(body.invars, e.invars, strict=True))
                results = dict(zip(body.outvars, e.outvars, strict=True))
                devices = here.devices * SHARD_MAP.n_devices(e.operation)
                self._add(body, _Where(here.times, devices, e.operation, results), inner, marked)
                continue
            n_consts, n_carry = SCAN.carry(e.operation)
            for k, (v, a) in enumerate(zip(body.invars, e.invars, strict=True)):
                if n_consts <= k < n_consts + n_carry:
                    self.carried[v] = _Carried(a, body.outvars[k - n_consts])
                else:
                    self.same[v] = a
            times = here.times * SCAN.trip_count(e.operation)
            self._add(body, replace(here, times=times), inner | frozenset(body.invars[n_consts:]), marked)

    def resolved(self, atom: Atom) -> Atom:
        while atom in self.same:
            atom = self.same[atom]
        return atom

    def reached(self, atoms: Sequence[Atom], saved: frozenset[str]) -> tuple[set[int], set[Atom]]:
        """The nodes that have to be computed for some values, given the saved ones, and the inputs that are read."""
        pending = [*atoms]
        seen: set[Atom] = set()
        nodes: set[int] = set()
        while pending:
            a = self.resolved(pending.pop())
            if isinstance(a, Literal) or a in seen:
                continue
            seen.add(a)
            if a in self.carried:
                pending += [self.carried[a].first, self.carried[a].before]
                continue
            i = self.producer.get(a)
            if i is None:
                continue
            nodes.add(i)
            node = self.nodes[i]
            if not node.name or node.name not in saved:
                pending += node.equation.invars if node.reads is None else node.reads[a]
        return nodes, seen.intersection(self.inputs)

    def _refuse_what_no_name_saves(self) -> None:
        """Refuses, or allows, what must not be recomputed, but is even if all names are saved: where no value has a
        name, as inside of a cond.

        Raises:
          ValueError: devices would exchange values again.
        """
        reached, _ = self.reached(self.needed, frozenset(self.candidates))
        for i in sorted(reached):
            if self.fixed[i] and not self.nodes[i].name:
                if not self.recompute_collectives and exchanges(self.nodes[i].equation):
                    raise ValueError(
                        f"devices exchange values inside {describe_equation(self.nodes[i].equation)}, where no value "
                        "can be saved by name, so a checkpoint would exchange them again; recompute_collectives=True "
                        "allows that."
                    )
                self.fixed[i] = False

    def _constraints(self) -> Problem:
        """The choices: each node recomputed or not; each name saved or not; each input kept or not; and what is
        available, by named value, by input, by carry, and by result if an equation computes several from different
        operands.

        An available named value is recomputed or saved, and each saved value counts once.
        """
        counter = itertools.count(len(self.nodes))
        self.name_at = {name: next(counter) for name in self.candidates}
        named = [(i, next(counter)) for i, n in enumerate(self.nodes) if n.name]
        input_at: dict[Atom, int] = {v: next(counter) for v in self.inputs}
        self.input_at = input_at
        had_at: dict[Atom, int] = {v: next(counter) for v in self.inputs}
        carry_at: dict[Atom, int] = {v: next(counter) for v in self.carried}
        result_at: dict[Atom, int] = {v: next(counter) for n in self.nodes if n.reads is not None for v in n.reads}
        size = next(counter)
        place: dict[Atom, int] = {v: i for v, i in self.producer.items() if not self.nodes[i].name}
        place |= {self.nodes[i].equation.outvars[0]: at for i, at in named}
        place |= {**had_at, **carry_at, **result_at}
        rows: list[tuple[int, tuple[int, ...]]] = []

        def places(atoms: Sequence[Atom]) -> list[int]:
            resolved = dict.fromkeys(map(self.resolved, atoms))
            return [place[a] for a in resolved if isinstance(a, Var)]

        for i, n in enumerate(self.nodes):
            if n.reads is not None:
                rows += [(result_at[v], (y,)) for v, atoms in n.reads.items() for y in (i, *places(atoms))]
            elif not n.name:
                rows += [(i, (y,)) for y in places(n.equation.invars)]
        for i, at in named:
            rows.append((at, (self.name_at[self.nodes[i].name], *places(self.nodes[i].equation.invars))))
        rows += [(had_at[v], (input_at[v],)) for v in self.inputs]
        for v, carried in self.carried.items():
            rows += [(carry_at[v], (y,)) for y in places((carried.first, carried.before))]
        lower, upper = np.zeros(size), np.ones(size)
        lower[places(self.needed)] = 1
        upper[np.flatnonzero(self.fixed)] = 0
        self.sizes = np.zeros(size)
        for name, at in self.name_at.items():
            self.sizes[at] = self.named_sizes[name]
        for v, at in input_at.items():
            self.sizes[at] = self.input_nbytes(v)
        self.work = np.zeros(size)
        self.work[: len(self.nodes)] = self.flops
        return Problem.of(rows, lower, upper)

    def input_nbytes(self, v: Atom) -> int:
        """The bytes of an input of the function in its forward program."""
        if not self.sizes_of.is_per_device:
            return nbytes(v.aval)
        own: dict[Atom, Atom] = dict(zip(self.named.forward.invars, self.flat.invars, strict=True))
        return self.sizes_of.of(own.get(v, v))


def _reads(equation: Equation) -> dict[Atom, tuple[Atom, ...]] | None:
    """The operands of each result of an equation; None if every result depends on all operands."""
    if len(equation.outvars) < 2 or equation.primitive not in dce_rules.own:
        return None
    n = len(equation.outvars)
    masks = [dce_rules(equation.operation, tuple(i == k for i in range(n)))[0] for k in range(n)]
    if all(all(mask) for mask in masks):
        return None
    return {v: select(mask, equation.invars) for v, mask in zip(equation.outvars, masks, strict=True)}


def exchanges(equation: Equation) -> bool:
    """Whether an equation, or one nested in it, is a collective."""
    return any(compat.axis_names(e.params) and primitives.exchanges(e.primitive) for e in with_nested([equation]))


def derive_like(program: Program, other: Derivation) -> Derivation:
    """A program derived with respect to the same inputs as another derivation."""
    return replace(other, primal=program)


def distinct(atoms: Sequence[Atom]) -> list[Atom]:
    return [a for a in dict.fromkeys(atoms) if not (isinstance(a, Literal) and not a.held)]


def scaled(amounts: np.ndarray) -> np.ndarray:
    """Amounts scaled to a typical size of one, well above the solver's tolerance."""
    some = amounts[amounts > 0]
    return amounts / np.median(some) if len(some) else amounts


def best_trades(some: Iterable[T], size: Callable[[T], float], work: Callable[[T], float]) -> tuple[T, ...]:
    """The Pareto-optimal ones in two figures, those with the smallest size first."""
    best: list[T] = []
    for t in sorted(some, key=lambda t: (size(t), work(t))):
        if not best or work(t) < work(best[-1]):
            best.append(t)
    return tuple(best)


# --- values that could be saved ---------------------------------------------------------------------------------------


def worth_a_name(program: Program, available: Collection[Atom]) -> list[Var]:
    """Values that could be saved: arrays that an equation computes and something reads, including those in bodies of
    scans.

    Without those that can be recomputed for free from an available value with no more bytes. `available` are inputs.
    """
    read = {a for e in program.equations for a in e.invars}.union(program.outvars)
    values: dict[Var, None] = {}
    free: set[Atom] = set(available)
    known: dict[int, Cost] = {}
    for e in program.equations:
        if of(e) in BODIES:
            values |= dict.fromkeys(worth_a_name(e.params["jaxpr"], e.params["jaxpr"].constvars))
        worth = [v for v in e.outvars if v in read and can_be_saved(v.aval)]
        if len(e.outvars) == 1 and _is_free(e, free, known):
            free.update(e.outvars)
            continue
        free.update(worth)
        values |= dict.fromkeys(worth)
    return list(values)


def named_values(program: Program) -> dict[str, list[Var]]:
    """The values that a function names with `checkpoint_name`, also in bodies of scans, by their names."""
    by_name: dict[str, list[Var]] = {}
    for _, e in program.walk():
        if e.primitive is compat.name_p:
            by_name.setdefault(e.params["name"], []).extend(e.outvars)
    return by_name


def _is_free(equation: Equation, available: Collection[Atom], known: dict[int, Cost]) -> bool:
    """Whether an equation has at most one operand, no larger than its result, that is available, and costs nothing."""
    operands = {a for a in equation.invars if isinstance(a, Var)}
    if len(operands) > 1 or equation.effects or equation.programs:
        return False
    size = nbytes(equation.outvars[0].aval)
    return all(a in available and nbytes(a.aval) <= size for a in operands) and flops_of(equation, known) == 0


def can_be_saved(aval: Any) -> bool:
    """Whether it is an array of a type that JAX's checkpoint can save: it rounds saved values, which is impossible for
    complex ones."""
    return nbytes(aval) > 0 and hasattr(aval, "dtype") and not jax.dtypes.issubdtype(aval.dtype, np.complexfloating)
