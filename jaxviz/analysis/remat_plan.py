"""Plans of what to save and what to compute again, within a budget of bytes: a checkpoint around the function, that saves by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jaxviz.analysis.cost import format_flops
from jaxviz.analysis.remat_graph import Graph, Point, Saved
from jaxviz.analysis.tables import format_bytes, html_table, short_location, text_table, wrapped
from jaxviz.derivation import Derivation, derive
from jaxviz.emit import as_function
from jaxviz.ir import compat
from jaxviz.ir.pretty import describe_equation
from jaxviz.ir.syntax import Program


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
    _graph: Graph = field(repr=False)
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
    graph = Graph(derivation, recompute_collectives)
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
