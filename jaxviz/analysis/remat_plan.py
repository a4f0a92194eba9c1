"""Planning what to save and what to compute again, within a budget of bytes.

The plan is a checkpoint around the whole function that saves values by name. What JAX then computes again is decided on the very
program that JAX would differentiate: the function with a name after each value that could be saved. A value can be had in the backward
pass if it is an input, or is saved by its name, or is computed again from operands that can be had. Each value that the linear program
takes must be. The cheapest choice is an integer program, solved by HiGHS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jaxviz.analysis.cost import cost_of, format_flops
from jaxviz.analysis.tables import format_bytes, html_table, nbytes, short_location, text_table, wrapped
from jaxviz.analysis.walk import location_of
from jaxviz.derivation import Derivation, derive
from jaxviz.emit import as_function
from jaxviz.ir import compat
from jaxviz.ir.convert import map_programs
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.origin import Location
from jaxviz.ir.pretty import describe_equation
from jaxviz.ir.syntax import Atom, Equation, Literal, Operation, Program, Var
from jaxviz.transforms.inline import inlined

_PREFIX = "save_"
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


@dataclass(frozen=True, eq=False)
class RematPlan:
    """What to save for the backward pass, and what to compute again there.

    Args:
      function: its name.
      budget: bytes that the residuals may take, arguments and constants included.
      saved: the values that are saved by name; None for a plan without a checkpoint, where all that JAX wants to keep fits.
      point: what the plan comes to.
      everything: what the function comes to without checkpoints, its own taken away too.
      notes: what is worth knowing of it, a sentence each.
    """

    function: str
    budget: int
    saved: tuple[Saved, ...] | None
    point: Point
    everything: Point
    notes: tuple[str, ...]
    _graph: _Graph = field(repr=False)
    _call: _Call = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the residuals that JAX holds with this plan."""
        return self.point.nbytes

    @property
    def flops(self) -> int:
        """FLOPs beyond those of the function without checkpoints."""
        return self.point.flops

    @cached_property
    def front(self) -> tuple[Point, ...]:
        """The best trades between the least bytes that can be had and no recomputation, each solved for when first asked for."""
        least = self._graph.least
        budgets = np.unique(np.linspace(least, self.everything.nbytes, 12).astype(np.int64))
        points = {self._graph.solve(int(b)).point for b in budgets[:-1]} | {self.everything}
        best: list[Point] = []
        for point in sorted(points, key=lambda p: (p.nbytes, p.flops)):
            if not best or point.flops < best[-1].flops:
                best.append(point)
        return tuple(best)

    def apply(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """The function with the checkpoint and the names of this plan: plain JAX, for arguments of the types planned for.

        Raises:
          TypeError: when called with arguments of other structure or types.
        """
        if self.saved is None:
            return self._call.of(as_function(self._graph.flat)) if self._graph.has_checkpoints else f
        names = [s.name for s in self.saved]
        policy = jax.checkpoint_policies.save_only_these_names(*names)
        return self._call.of(jax.checkpoint(as_function(self._graph.named(names)), policy=policy))

    def code(self) -> str:
        """The lines to write for it: a name for each value, by the line that makes it, and the checkpoint."""
        if self.saved is None:
            return f"# {self.function} fits as it is: no checkpoint is needed"
        lines = ["import jax", "from jax.ad_checkpoint import checkpoint_name", ""]
        by_line: dict[tuple[str, str, str], list[Saved]] = {}
        for s in self.saved:
            by_line.setdefault((str(s.location or "somewhere"), s.expression, s.type), []).append(s)
        names = []
        for k, ((where, expression, _), values) in enumerate(by_line.items()):
            names.append(f"saved_{k}")
            total = self._graph.count(values[0])
            often = (
                f", in {len(values)} of the {total} places"
                if total != len(values)
                else f", {total} times" * (total > 1)
            )
            lines.append(f"# {where}: the result of {expression}, {values[0].type}{often}")
            lines.append(f"...  = checkpoint_name(..., {names[-1]!r})")
        listed = ", ".join(map(repr, names))
        lines += [
            "",
            f"policy = jax.checkpoint_policies.save_only_these_names({listed})",
            f"{self.function} = jax.checkpoint({self.function}, policy=policy)",
        ]
        return "\n".join(lines)

    @property
    def summary(self) -> str:
        """`plan for loss within 1.0 MiB: 0.9 MiB kept of 4.0 MiB, 12 values saved, 3.1 MFLOP computed again`."""
        kept = f"{format_bytes(self.nbytes)} kept of {format_bytes(self.everything.nbytes)}"
        head = f"plan for {self.function} within {format_bytes(self.budget)}: {kept}"
        if self.saved is None:
            return f"{head}, no checkpoint is needed"
        n = len(self.saved)
        return f"{head}, {n:,} value{'s' * (n != 1)} saved, {format_flops(self.flops)} computed again"

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (s.name, s.type, format_bytes(s.nbytes), short_location(s.location) if s.location else "", s.expression)
            for s in self.saved or ()
        ]

    def __str__(self) -> str:
        rows = self._rows()
        table = [text_table(_HEADS, rows, "<<><<")] if rows else []
        return "\n".join([wrapped(self.summary), *table, *map(wrapped, self.notes)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self.summary, _HEADS, self._rows(), (False, False, True, False, False))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for programs."""
        return {
            "function": self.function, "budget": self.budget, "nbytes": self.nbytes, "flops": self.flops,
            "saved": None if self.saved is None else [
                {"name": s.name, "expression": s.expression, "type": s.type, "nbytes": s.nbytes, "location": str(s.location or "")}
                for s in self.saved
            ],
            "notes": list(self.notes),
            "everything": {"nbytes": self.everything.nbytes, "flops": 0},
        }  # fmt: skip


_HEADS = ("name", "type", "bytes", "line", "value")


def plan_remat(
    f: Any,
    *args: Any,
    budget: float,
    argnums: int | Sequence[int] = 0,
    recompute_collectives: bool = False,
    **kwargs: Any,
) -> RematPlan:
    """Chooses what a function's gradient saves and what it computes again, for the fewest FLOPs within a budget.

    >>> plan = jaxviz.plan_remat(loss, params, x, budget=0.5)
    >>> gradient = jax.grad(plan.apply(loss))

    Args:
      f: a function of arrays, or pytrees of them.
      *args, **kwargs: what to call it with; arrays or ShapeDtypeStructs.
      budget: bytes that the residuals may take as JAX holds them, arguments and constants included; up to 1.0, a fraction of what they
        take without a plan.
      argnums: the positional arguments to differentiate in.
      recompute_collectives: whether values that devices exchange may be exchanged again in the backward pass.

    Raises:
      ValueError: the budget cannot be met; the message says what can. Or an equation has an effect that JAX does not let a checkpoint
        repeat; the message names it.
    """
    call, derivation = _Call.traced(f, args, kwargs, argnums)
    graph = _Graph(derivation, recompute_collectives)
    everything = Point(graph.all_nbytes, 0)
    limit = int(budget * everything.nbytes) if budget <= 1.0 else int(budget)
    name = derivation.primal.name
    if limit >= everything.nbytes:
        return RematPlan(name, limit, None, everything, everything, (), graph, call)
    if limit < graph.least:
        raise ValueError(
            f"a budget of {_exactly(limit)} cannot be met for {name}: the least is {_exactly(graph.least)}, which its arguments and what "
            f"may not be computed again take; without a plan it keeps {_exactly(everything.nbytes)}"
        )
    found = graph.solve(limit)
    return RematPlan(name, limit, found.saved, found.point, everything, _effects(graph.flat), graph, call)


@dataclass(frozen=True)
class _Call:
    """How a function is called: which of its flat arguments are arrays, and the structures."""

    in_tree: Any
    out_tree: Any
    avals: tuple[Any, ...]
    name: str

    @staticmethod
    def traced(
        f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], argnums: int | Sequence[int]
    ) -> tuple[_Call, Derivation]:
        compat.check_callable(f)
        derivation = derive(f, *args, argnums=argnums, **kwargs)
        in_tree = jax.tree.structure((args, kwargs))
        out_tree = jax.tree.structure(jax.eval_shape(f, *args, **kwargs))
        if in_tree.num_leaves != len(derivation.primal.invars):
            raise TypeError(
                f"plan_remat takes functions of arrays; {derivation.primal.name} has arguments that are none. Fix those with functools.partial."
            )
        return _Call(in_tree, out_tree, derivation.primal.in_avals, derivation.primal.name), derivation

    def of(self, flat: Callable[..., list[Any]]) -> Callable[..., Any]:
        def planned(*args: Any, **kwargs: Any) -> Any:
            leaves, tree = jax.tree.flatten((args, kwargs))
            if tree != self.in_tree:
                raise TypeError(
                    f"the plan for {self.name} is for arguments of the structure {self.in_tree}, not {tree}"
                )
            for x, aval in zip(leaves, self.avals, strict=True):
                got = jax.typeof(jax.numpy.asarray(x))
                if (got.shape, got.dtype) != (aval.shape, aval.dtype):
                    raise TypeError(
                        f"the plan for {self.name} is for an argument {aval.str_short()}, not {got.str_short()}; make one for these types"
                    )
            return jax.tree.unflatten(self.out_tree, flat(*leaves))

        planned.__name__ = self.name
        return planned


_EXACT = 3000
"""Up to so many unknowns a plan is the exact optimum; beyond, it is within what the relaxed problem says, a fraction of a percent."""


@dataclass(frozen=True)
class _Solution:
    saved: tuple[Saved, ...]
    point: Point


class _Graph:
    """What could be saved of a function, and what has to be had in its backward pass."""

    def __init__(self, derivation: Derivation, recompute_collectives: bool):
        flat = inlined(derivation.primal, _OPENED)
        self.has_checkpoints = any(e.primitive is compat.remat_p for _, e in derivation.primal.walk())
        plain = derive_like(flat, derivation) if self.has_checkpoints else derivation
        kept = _distinct(plain.linearized.residuals)
        self.all_nbytes = sum(nbytes(a.aval) for a in kept)
        self.flat = _numbers_in_place(flat)
        self.candidates = {f"{_PREFIX}{k}": v for k, v in enumerate(_worth_a_name(self.flat))}
        whole = derive_like(self.named(list(self.candidates)), derivation)
        self.equations = whole.forward.equations
        self.inputs: list[Var] = [*whole.forward.invars, *whole.forward.constvars]
        self.needed = [a for a in _distinct(whole.linearized.residuals) if isinstance(a, Var)]
        n_results = len(whole.forward.outvars) - whole.n_residuals
        in_forward = _needed_by(self.equations, whole.forward.outvars[:n_results])
        self.flops = [cost_of(e).flops if is_in else 0 for e, is_in in zip(self.equations, in_forward, strict=True)]
        self.fixed = [
            any(compat.is_real_effect(x) for x in e.effects) or (not recompute_collectives and _exchanges(e))
            for e in self.equations
        ]
        self.matrix = self._constraints()

    def named(self, names: Sequence[str]) -> Program:
        """The function with these names, each after the value that it stands for."""
        wanted = {self.candidates[n]: n for n in names}
        renamed: dict[Atom, Atom] = {}
        equations: list[Equation] = []
        for e in self.flat.equations:
            equations.append(replace(e, invars=tuple([renamed.get(a, a) for a in e.invars])))
            for v in e.outvars:
                if v in wanted:
                    out = renamed[v] = Var(v.aval)
                    params = {"name": wanted[v]}
                    made = make_operation(compat.name_p, params, (v.aval,), (v.aval,), frozenset(), e.operation.context)
                    equations.append(Equation(made, (v,), (out,), e.source))
        outvars = tuple([renamed.get(a, a) for a in self.flat.outvars])
        return replace(self.flat, equations=tuple(equations), outvars=outvars)

    def _constraints(self) -> Any:
        """Rows `A x <= b`, over x = (computed again, by equation; saved, by name; to be had, by name; kept, by input).

        All are differences but for `to be had <= computed again + saved`, in which what is saved stands once. Such a program has
        whole numbers at its corners, so that without the budget it need not be told that they must be.
        """
        from scipy.sparse import csr_array

        n_e = len(self.equations)
        producer: dict[Atom, int] = {v: i for i, e in enumerate(self.equations) for v in e.outvars}
        is_name = [e.primitive is compat.name_p and e.params["name"] in self.candidates for e in self.equations]
        names = [i for i, named in enumerate(is_name) if named]
        n_s = len(names)
        self.saveable = {i: n_e + k for k, i in enumerate(names)}
        had = {self.equations[i].outvars[0]: n_e + n_s + k for k, i in enumerate(names)}
        self.input_at = {v: n_e + 2 * n_s + k for k, v in enumerate(self.inputs)}
        self.n = n_e + 2 * n_s + len(self.inputs)
        self.lower, self.upper = np.zeros(self.n), np.ones(self.n)
        place: dict[Atom, int] = {v: i for v, i in producer.items() if not is_name[i]}
        for v, at in (*had.items(), *self.input_at.items()):
            place[v] = at
        larger: list[int] = []
        smaller: list[int] = []
        for i, e in enumerate(self.equations):
            for a in () if is_name[i] else dict.fromkeys(e.invars):
                if isinstance(a, Var):
                    larger.append(i)
                    smaller.append(place[a])
        for v in self.needed:
            self.lower[place[v]] = 1
        for i, is_fixed in enumerate(self.fixed):
            if is_fixed and self.lower[i] == 0:
                self.upper[i] = 0
        n_d = len(larger)
        rows = [*range(n_d), *range(n_d), *(n_d + k for k in range(n_s) for _ in range(3))]
        made_by = [place[self.equations[i].invars[0]] for i in names]
        columns = [*larger, *smaller, *(c for k in range(n_s) for c in (n_e + n_s + k, n_e + k, made_by[k]))]
        values = [*([1.0] * n_d), *([-1.0] * n_d), *([1.0, -1.0, -1.0] * n_s)]
        self.sizes = np.zeros(self.n)
        for i, at in self.saveable.items():
            self.sizes[at] = nbytes(self.equations[i].outvars[0].aval)
        for v, at in self.input_at.items():
            self.sizes[at] = nbytes(v.aval)
        return csr_array((values, (rows, columns)), shape=(n_d + n_s, self.n))

    @cached_property
    def work(self) -> np.ndarray:
        """FLOPs of computing each equation again, as a share of all of them; the sizes break ties."""
        work: np.ndarray = np.zeros(self.n)
        work[: len(self.equations)] = self.flops
        work /= max(work.sum(), 1.0)
        work += 1e-7 * self.sizes / max(self.sizes.sum(), 1.0)
        return work

    @cached_property
    def least(self) -> int:
        """The fewest bytes that a plan can come to."""
        x = self._relaxed(self.sizes / max(self.sizes.sum(), 1.0)).x
        return self.outcome([i for i, at in self.saveable.items() if x[at] > 0.5]).point.nbytes

    def solve(self, budget: int) -> _Solution:
        """The plan of the fewest FLOPs within a budget; among those, of the fewest bytes."""
        x = self._within(budget)
        return self.outcome([i for i, at in self.saveable.items() if x[at] > 0.5])

    def outcome(self, saved: Sequence[int]) -> _Solution:
        """What comes of saving these names, given by their equations: those of them that are read, and what is computed again."""
        given = {self.equations[i].outvars[0]: i for i in saved}
        used: set[int] = set()
        live: set[Atom] = set(self.needed)
        again = 0
        for i in range(len(self.equations) - 1, -1, -1):
            e = self.equations[i]
            here = [v for v in e.outvars if v in live]
            if not here:
                continue
            if here[0] in given:
                used.add(i)
                continue
            again += self.flops[i]
            live.update(e.invars)
        size = sum(nbytes(self.equations[i].outvars[0].aval) for i in used) + sum(
            nbytes(v.aval) for v in self.inputs if v in live
        )
        return _Solution(tuple(self._saved(i) for i in sorted(used)), Point(size, again))

    def _within(self, budget: int) -> Any:
        relaxed = self._relaxed(self.work, budget)
        if np.abs(relaxed.x - np.round(relaxed.x)).max(initial=0.0) < 1e-6:
            return np.round(relaxed.x)
        if self.n <= _EXACT:
            return self._whole(self.work, budget, self.lower, self.upper)
        # The relaxed plan mixes two whole ones, of a little more and of a little fewer bytes, that are the best for what a byte is
        # worth here. What they agree on is kept, and the rest solved exactly.
        price = -relaxed.ineqlin.marginals[-1]
        less, more = (
            np.round(self._relaxed(self.work + price * by * self._unit_sizes).x) for by in (1 + 1e-6, 1 - 1e-6)
        )
        if self.sizes @ less > budget:
            less = np.round(self._relaxed(self.work + price * 1.05 * self._unit_sizes).x)
        agree = less == more
        lower, upper = np.where(agree, less, self.lower), np.where(agree, less, self.upper)
        found = self._whole(self.work, budget, lower, upper, missing_ok=True)
        return less if found is None else found

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

    def _whole(
        self, cost: np.ndarray, budget: int, lower: np.ndarray, upper: np.ndarray, missing_ok: bool = False
    ) -> Any:
        from scipy.optimize import Bounds, LinearConstraint, milp

        constraints = [
            LinearConstraint(self.matrix, -np.inf, 0.0),
            LinearConstraint(self._unit_sizes[None], -np.inf, budget / max(float(self.sizes.max()), 1.0)),
        ]
        options = {"time_limit": 3.0, "mip_rel_gap": 1e-3}
        found = milp(
            cost, integrality=np.ones(self.n), bounds=Bounds(lower, upper), constraints=constraints, options=options
        )
        if found.x is None and not missing_ok:
            raise ValueError(f"no plan was found: {found.message}")
        return None if found.x is None else np.round(found.x)

    def _saved(self, i: int) -> Saved:
        e = self.equations[i]
        made_by = self._maker(e)
        aval = e.outvars[0].aval
        return Saved(
            e.params["name"],
            made_by.primitive.name,
            aval.str_short(short_dtypes=True),
            nbytes(aval),
            location_of(made_by),
        )

    def _maker(self, named: Equation) -> Equation:
        v = self.candidates[named.params["name"]]
        return next(e for e in self.flat.equations if v in e.outvars)

    def count(self, like: Saved) -> int:
        """How many values the same line makes in the same way, of the same type."""
        n = 0
        for v in self.candidates.values():
            e = next(e for e in self.flat.equations if v in e.outvars)
            same_type = v.aval.str_short(short_dtypes=True) == like.type
            n += same_type and e.primitive.name == like.expression and location_of(e) == like.location
        return n


def _exactly(n: int) -> str:
    return format_bytes(n) if n < 1024 else f"{format_bytes(n)} ({n:,} B)"


def _effects(program: Program) -> tuple[str, ...]:
    """A sentence on what runs in both passes, such as a debug callback.

    Raises:
      ValueError: an effect that JAX refuses in a checkpoint.
    """
    found = [(i, e) for i, e in enumerate(program.equations) if any(compat.is_real_effect(x) for x in e.effects)]
    for i, e in found:
        if compat.refused_in_remat(e.effects):
            raise ValueError(
                f"{describe_equation(e, i)} has an effect that JAX does not let a checkpoint repeat, so that nothing around it can be "
                "planned; take it out of the function, or plan the parts before and after it."
            )
    named = ", ".join(describe_equation(e, i) for i, e in found)
    return (f"In a checkpoint JAX runs in both passes: {named}.",) if found else ()


def _exchanges(equation: Equation) -> bool:
    """Whether devices exchange values in an equation, or inside of it."""
    here = bool(compat.axis_names(equation.params)) and compat.exchanges(equation.primitive)
    return here or any(_exchanges(e) for _, program in equation.programs for e in program.equations)


def _numbers_in_place(program: Program) -> Program:
    """The program with no number that JAX would keep as an array: in a checkpoint it keeps none."""
    atoms: dict[Atom, Atom] = {}

    def atom(a: Atom) -> Atom:
        if isinstance(a, Literal) and a.held:
            return atoms.setdefault(a, Literal(a.val, a.aval))
        return a

    def operation(op: Operation) -> Operation:
        if not op.programs:
            return op
        params = map_programs(op.params, _numbers_in_place)
        return make_operation(op.primitive, params, op.in_avals, op.out_avals, op.effects, op.context)

    equations = tuple(
        replace(e, operation=operation(e.operation), invars=tuple([atom(a) for a in e.invars]))
        for e in program.equations
    )
    return replace(program, equations=equations, outvars=tuple([atom(a) for a in program.outvars]))


def derive_like(program: Program, other: Derivation) -> Derivation:
    """A program derived in the inputs that another derivation is derived in."""
    return derive(program, argnums=tuple(i for i, nonzero in enumerate(other.nonzeros) if nonzero))


def _distinct(atoms: Sequence[Atom]) -> list[Atom]:
    return [a for a in dict.fromkeys(atoms) if not (isinstance(a, Literal) and not a.held)]


def _worth_a_name(program: Program) -> list[Var]:
    """Values that could be saved: arrays that an equation makes and something reads."""
    read = {a for e in program.equations for a in e.invars}
    return [
        v for e in program.equations for v in e.outvars if v in read and nbytes(v.aval) > 0 and hasattr(v.aval, "shape")
    ]


def _needed_by(equations: Sequence[Equation], results: Sequence[Atom]) -> list[bool]:
    live: set[Atom] = set(results)
    kept = []
    for e in reversed(equations):
        is_live = not live.isdisjoint(e.outvars) or compat.has_effects(e.effects)
        if is_live:
            live.update(e.invars)
        kept.append(is_live)
    return kept[::-1]
