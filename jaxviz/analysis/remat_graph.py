"""What a plan of what to save chooses from, and how it is solved.

What JAX computes again in a checkpoint that saves values by name is decided on the very program that JAX would differentiate: the
function with a name after each value that could be saved. A value can be had in the backward pass if it is an input, or is saved by its
name, or is computed again from operands that can be had. Each value that the linear program takes must be. The cheapest choice is an
integer program, solved by HiGHS.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jaxviz.analysis.cost import cost_of
from jaxviz.analysis.tables import nbytes
from jaxviz.analysis.walk import location_of
from jaxviz.derivation import Derivation, derive
from jaxviz.ir import compat
from jaxviz.ir.convert import map_programs
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.origin import Location
from jaxviz.ir.syntax import Atom, Equation, Literal, Program, Var
from jaxviz.transforms.dce import dce_rules
from jaxviz.transforms.driver import select
from jaxviz.transforms.inline import inlined, numbers_in_place

_PREFIX = "jaxviz_save_"
_OPENED = (compat.jit_p, compat.remat_p)
"""Calls that are opened, so that what is inside them can be saved; checkpoints that are there already give way to the plan."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A value that a plan saves.

    Args:
      name: given to it by `jax.ad_checkpoint.checkpoint_name`.
      expression: the operation that makes it.
      type: its type.
      nbytes: its size in bytes.
      location: the user's line.
    """

    name: str
    expression: str
    type: str
    nbytes: int
    location: Location | None


@dataclass(frozen=True, slots=True)
class Point:
    """One way to trade bytes for work.

    Args:
      nbytes: of all residuals, arguments and constants included.
      flops: of forward and backward together, beyond those of the function without checkpoints; but not the rounding of what is
        saved, which JAX adds for each.
    """

    nbytes: int
    flops: int


_EXACT = 3000
"""Up to so many unknowns the whole problem is given to the solver of integer programs; beyond, what is left of it: see `_within`."""


@dataclass(frozen=True)
class Solution:
    saved: tuple[Saved, ...]
    point: Point


@dataclass(frozen=True, eq=False, slots=True)
class _Node:
    """An equation of the forward program, or of the body of a scan in it.

    Args:
      equation: what is computed.
      times: how often.
      name: if it only names a value that could be saved, the name.
      reads: for each result the operands that it takes, where results differ in that: JAX drops what makes the others.
    """

    equation: Equation
    times: int
    name: str = ""
    reads: dict[Atom, tuple[Atom, ...]] | None = None


@dataclass(frozen=True, slots=True)
class _Carried:
    """What an iteration of a scan gets from the one before: it can be had if the first one's and the one before's can."""

    first: Atom
    before: Atom


class Graph:
    """What could be saved of a function, and what has to be had in its backward pass."""

    def __init__(self, derivation: Derivation, recompute_collectives: bool):
        flat = inlined(derivation.primal, _OPENED)
        self.has_checkpoints = any(e.primitive is compat.remat_p for _, e in derivation.primal.walk())
        self.plain = derive_like(flat, derivation) if self.has_checkpoints else derivation
        kept = _distinct(self.plain.linearized.residuals)
        self.all_nbytes = sum(nbytes(a.aval) for a in kept)
        self.flat = numbers_in_place(flat)
        self.candidates = {f"{_PREFIX}{k}": v for k, v in enumerate(_worth_a_name(self.flat))}
        self.makers = {v: e for _, e in self.flat.walk() for v in e.outvars}
        whole = derive_like(self.named(list(self.candidates)), derivation)
        self.nodes: list[_Node] = []
        self.same: dict[Atom, Atom] = {}
        """A value in the body of a scan -> the one outside that it is, and a result of a scan -> the one inside."""
        self.carried: dict[Atom, _Carried] = {}
        self.inputs: list[Var] = [*whole.forward.invars, *whole.forward.constvars]
        self._add(whole.forward, 1, frozenset())
        self.producer: dict[Atom, int] = {v: i for i, n in enumerate(self.nodes) for v in n.equation.outvars}
        self.needed = [a for a in _distinct(whole.linearized.residuals) if isinstance(a, Var)]
        n_results = len(whole.forward.outvars) - whole.n_residuals
        in_forward, _ = self._reached(whole.forward.outvars[:n_results], frozenset())
        self.flops = [cost_of(n.equation).flops * n.times if i in in_forward else 0 for i, n in enumerate(self.nodes)]
        self.fixed = [
            any(compat.is_real_effect(x) for x in n.equation.effects)
            or (not recompute_collectives and _exchanges(n.equation))
            for n in self.nodes
        ]
        self.matrix = self._constraints()

    def named(self, names: Sequence[str]) -> Program:
        """The function with these names, each after the value that it stands for, in the bodies of scans too."""
        wanted = {self.candidates[n]: n for n in names}

        def program(of: Program) -> Program:
            renamed: dict[Atom, Atom] = {}
            equations: list[Equation] = []
            for e in of.equations:
                op = e.operation
                if e.primitive is compat.scan_p:
                    params = map_programs(op.params, program)
                    op = make_operation(op.primitive, params, op.in_avals, op.out_avals, op.effects, op.context)
                equations.append(replace(e, operation=op, invars=tuple([renamed.get(a, a) for a in e.invars])))
                for v in e.outvars:
                    if v in wanted:
                        out = renamed[v] = Var(v.aval)
                        naming = {"name": wanted[v]}
                        made = make_operation(compat.name_p, naming, (v.aval,), (v.aval,), frozenset(), op.context)
                        equations.append(Equation(made, (v,), (out,), e.source))
            return replace(of, equations=tuple(equations), outvars=tuple([renamed.get(a, a) for a in of.outvars]))

        return program(self.flat)

    def _add(self, program: Program, times: int, varying: frozenset[Atom]) -> None:
        """Adds the nodes of a program; `varying` are those of its inputs that are not the same in each iteration."""
        differs = set(varying)
        for e in program.equations:
            differs_here = not differs.isdisjoint(e.invars)
            if differs_here:
                differs.update(e.outvars)
            often = times if differs_here or not varying else 1
            if e.primitive is not compat.scan_p:
                is_own = e.primitive is compat.name_p and e.params["name"] in self.candidates
                self.nodes.append(_Node(e, often, e.params["name"] if is_own else "", _reads(e)))
                continue
            body: Program = e.params["jaxpr"]
            n_consts, n_carry = compat.scan_sizes(e.params)
            for k, (v, a) in enumerate(zip(body.invars, e.invars, strict=True)):
                if n_consts <= k < n_consts + n_carry:
                    self.carried[v] = _Carried(a, body.outvars[k - n_consts])
                else:
                    self.same[v] = a
            self.inputs += body.constvars
            self.same.update(zip(e.outvars, body.outvars, strict=True))
            inner = frozenset(body.invars[n_consts:]) | {
                v for v, a in zip(body.invars, e.invars, strict=True) if a in differs
            }
            self._add(body, often * int(e.params["length"]), inner)

    def _resolved(self, atom: Atom) -> Atom:
        while atom in self.same:
            atom = self.same[atom]
        return atom

    def _reached(self, atoms: Sequence[Atom], saved: frozenset[str]) -> tuple[set[int], set[Atom]]:
        """The nodes that have to be computed for some values, given what is saved, and the inputs that are read."""
        pending = [*atoms]
        seen: set[Atom] = set()
        nodes: set[int] = set()
        while pending:
            a = self._resolved(pending.pop())
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

    def _constraints(self) -> Any:
        """Rows `A x <= b`, over x = (computed again, by node; saved, by name; to be had, by place of a name; kept, by input; to be
        had, by what is carried, and by result where an equation makes several of different operands).

        All are differences but for `to be had <= computed again + saved`, in which what is saved stands once. Such a program has
        whole numbers at its corners, so that without the budget it need not be told that they must be.
        """
        from scipy.sparse import csr_array

        counter = itertools.count(len(self.nodes))
        self.name_at = {name: next(counter) for name in self.candidates}
        named = [(i, next(counter)) for i, n in enumerate(self.nodes) if n.name]
        self.input_at: dict[Atom, int] = {v: next(counter) for v in self.inputs}
        carry_at: dict[Atom, int] = {v: next(counter) for v in self.carried}
        result_at: dict[Atom, int] = {v: next(counter) for n in self.nodes if n.reads is not None for v in n.reads}
        self.n = next(counter)
        place: dict[Atom, int] = {v: i for v, i in self.producer.items() if not self.nodes[i].name}
        place |= {self.nodes[i].equation.outvars[0]: at for i, at in named}
        place |= {**self.input_at, **carry_at, **result_at}
        self.lower, self.upper = np.zeros(self.n), np.ones(self.n)
        entries: list[tuple[int, int, float]] = []
        rows = itertools.count()

        def at_most(x: int, *others: int) -> None:
            row = next(rows)
            entries.extend([(row, x, 1.0), *((row, y, -1.0) for y in others)])

        def places(atoms: Sequence[Atom]) -> list[int]:
            found = dict.fromkeys(self._resolved(a) for a in atoms)
            return [place[a] for a in found if isinstance(a, Var)]

        for i, n in enumerate(self.nodes):
            if n.reads is not None:
                for v, atoms in n.reads.items():
                    for y in (i, *places(atoms)):
                        at_most(result_at[v], y)
            elif not n.name:
                for y in places(n.equation.invars):
                    at_most(i, y)
        for i, at in named:
            at_most(at, self.name_at[self.nodes[i].name], *places(self.nodes[i].equation.invars))
        for v, carried in self.carried.items():
            for y in places((carried.first, carried.before)):
                at_most(carry_at[v], y)
        for y in places(self.needed):
            self.lower[y] = 1
        for i, is_fixed in enumerate(self.fixed):
            if is_fixed and self.lower[i] == 0:
                self.upper[i] = 0
        self.sizes = np.zeros(self.n)
        for name, size in self.named_sizes.items():
            self.sizes[self.name_at[name]] = size
        for v, at in self.input_at.items():
            self.sizes[at] = nbytes(v.aval)
        at_row, at_column, values = zip(*entries, strict=True) if entries else ((), (), ())
        return csr_array((values, (at_row, at_column)), shape=(next(rows), self.n))

    @cached_property
    def named_sizes(self) -> dict[str, int]:
        """Bytes that saving each name takes: a scan stacks its value up."""
        sizes = dict.fromkeys(self.candidates, 0)
        for n in self.nodes:
            if n.name:
                sizes[n.name] += n.times * nbytes(n.equation.outvars[0].aval)
        return sizes

    @cached_property
    def work(self) -> np.ndarray:
        """FLOPs of computing each equation again, as a share of all of them; the sizes break ties."""
        work: np.ndarray = np.zeros(self.n)
        work[: len(self.nodes)] = self.flops
        work /= max(work.sum(), 1.0)
        work += 1e-7 * self.sizes / max(self.sizes.sum(), 1.0)
        return work

    @cached_property
    def least(self) -> int:
        """The fewest bytes that a plan can come to."""
        return self.outcome(self._chosen(self._relaxed(self.sizes / max(self.sizes.sum(), 1.0)).x)).point.nbytes

    def solve(self, budget: int) -> Solution:
        """The plan of the fewest FLOPs within a budget; among those, of the fewest bytes."""
        return self.outcome(self._chosen(self._within(budget)))

    def _chosen(self, x: np.ndarray) -> list[str]:
        return [name for name, at in self.name_at.items() if x[at] > 0.5]

    def outcome(self, saved: Sequence[str]) -> Solution:
        """What comes of saving these names: those of them that are read, and what is computed again."""
        nodes, inputs = self._reached(self.needed, frozenset(saved))
        used = {self.nodes[i].name for i in nodes}.intersection(saved)
        size = sum(self.named_sizes[name] for name in used) + sum(nbytes(v.aval) for v in inputs)
        in_order = tuple(self._saved(name) for name in self.candidates if name in used)
        return Solution(in_order, Point(size, sum(self.flops[i] for i in nodes)))

    def _within(self, budget: int) -> Any:
        relaxed = self._relaxed(self.work, budget)
        if np.abs(relaxed.x - np.round(relaxed.x)).max(initial=0.0) < 1e-6:
            return np.round(relaxed.x)
        exact = self._whole(budget, self.lower, self.upper) if self.n <= _EXACT else None
        if exact is not None:
            return exact
        # The relaxed plan mixes two whole ones, of a little more and of a little fewer bytes, that are the best for what a byte is
        # worth here. What they agree on is kept, and the rest solved exactly.
        price = -relaxed.ineqlin.marginals[-1]
        more = self._at_price(price * (1 - 1e-6))
        less, raised = self._at_price(price * (1 + 1e-6)), 1.05
        while self.sizes @ less > budget:  # the solver's tolerance left it on the wrong side
            less, raised = self._at_price(price * raised), raised * 2
            if raised > 1e9:
                less = np.round(self._relaxed(self._unit_sizes).x)  # the fewest bytes there are
                break
        agree = less == more
        found = self._whole(budget, np.where(agree, less, self.lower), np.where(agree, less, self.upper))
        return less if found is None else found

    def _at_price(self, price: float) -> np.ndarray:
        """The best plan where bytes cost work, which needs no budget and comes out whole."""
        return np.asarray(np.round(self._relaxed(self.work + price * self._unit_sizes).x))

    @cached_property
    def _unit_sizes(self) -> np.ndarray:
        return self.sizes / max(float(self.sizes.max()), 1.0)

    def _relaxed(self, cost: np.ndarray, budget: int | None = None) -> Any:
        from scipy.optimize import linprog
        from scipy.sparse import csr_array, vstack

        matrix, limits = self.matrix, np.zeros(self.matrix.shape[0])
        if budget is not None:
            matrix = vstack([matrix, csr_array(self._unit_sizes[None])])
            limits = np.append(limits, budget / max(float(self.sizes.max()), 1.0))
        found = linprog(
            cost, A_ub=matrix, b_ub=limits, bounds=np.stack([self.lower, self.upper], axis=1), method="highs"
        )
        if found.x is None:
            raise ValueError(f"no plan was found: {found.message}")
        return found

    def _whole(self, budget: int, lower: np.ndarray, upper: np.ndarray) -> Any:
        """The best plan in whole numbers, to a tenth of a percent; None where it takes the solver too long."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        constraints = [
            LinearConstraint(self.matrix, -np.inf, 0.0),
            LinearConstraint(self._unit_sizes[None], -np.inf, budget / max(float(self.sizes.max()), 1.0)),
        ]
        options = {"time_limit": 5.0, "mip_rel_gap": 1e-3}
        whole = np.ones(self.n)
        found = milp(
            self.work, integrality=whole, bounds=Bounds(lower, upper), constraints=constraints, options=options
        )
        return None if found.x is None else np.round(found.x)

    def _saved(self, name: str) -> Saved:
        v = self.candidates[name]
        made_by, size = self.makers[v], self.named_sizes[name]
        often = size // max(nbytes(v.aval), 1)
        kind = v.aval.str_short(short_dtypes=True)
        return Saved(
            name, made_by.primitive.name, f"{often:,} × {kind}" if often > 1 else kind, size, location_of(made_by)
        )

    def count(self, like: Saved) -> int:
        """How many values the same line makes in the same way, of the same type."""
        alike = (self._saved(name) for name in self.candidates)
        key = (like.type, like.expression, like.location)
        return sum((s.type, s.expression, s.location) == key for s in alike)


def _reads(equation: Equation) -> dict[Atom, tuple[Atom, ...]] | None:
    """What each result of an equation is made of; None where all are made of all operands."""
    if len(equation.outvars) < 2 or equation.primitive not in dce_rules.registered:
        return None
    n = len(equation.outvars)
    masks = [dce_rules(equation.operation, tuple(i == k for i in range(n)))[0] for k in range(n)]
    if all(all(mask) for mask in masks):
        return None
    return {v: select(mask, equation.invars) for v, mask in zip(equation.outvars, masks, strict=True)}


def _exchanges(equation: Equation) -> bool:
    """Whether devices exchange values in an equation, or inside of it."""
    here = bool(compat.axis_names(equation.params)) and compat.exchanges(equation.primitive)
    return here or any(_exchanges(e) for _, program in equation.programs for e in program.equations)


def derive_like(program: Program, other: Derivation) -> Derivation:
    """A program derived in the inputs that another derivation is derived in."""
    return derive(program, argnums=tuple(i for i, nonzero in enumerate(other.nonzeros) if nonzero))


def _distinct(atoms: Sequence[Atom]) -> list[Atom]:
    return [a for a in dict.fromkeys(atoms) if not (isinstance(a, Literal) and not a.held)]


def _worth_a_name(program: Program) -> list[Var]:
    """Values that could be saved: arrays that an equation makes and something reads, in the bodies of scans too.

    Not complex ones: a checkpoint rounds what it saves, and JAX does not round those.
    """
    read = {a for e in program.equations for a in e.invars}.union(program.outvars)
    found: dict[Var, None] = {}
    for e in program.equations:
        if e.primitive is compat.scan_p:
            found |= dict.fromkeys(_worth_a_name(e.params["jaxpr"]))
        found |= {v: None for v in e.outvars if v in read and _can_be_saved(v.aval)}
    return list(found)


def _can_be_saved(aval: Any) -> bool:
    return nbytes(aval) > 0 and hasattr(aval, "shape") and not jax.dtypes.issubdtype(aval.dtype, np.complexfloating)
