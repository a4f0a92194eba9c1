"""Plans of what to save and what to compute again, within a budget of bytes: a checkpoint around the function, that saves by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any

import jax

from jaxviz.analysis.budgets import FASTEST, evenly, free_memory, read_budget, read_size
from jaxviz.derivation import Derivation, derive, flat_arguments, in_bounds
from jaxviz.features.cost.report import format_flops
from jaxviz.features.memory.timeline import memory as modelled_memory
from jaxviz.features.remat.code import CodeRow, Place, code_text, places_of_values, with_source
from jaxviz.features.remat.graph import Graph, Point, Saved, best_trades, derive_like
from jaxviz.features.residuals.notes import no_gradient_note
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.convert import read_jaxpr
from jaxviz.ir.emit import as_function
from jaxviz.ir.origin import Location, file_label
from jaxviz.ir.pretty import describe_equation
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import Program, Var
from jaxviz.progress import counting, each
from jaxviz.report.report import Report, Table, attributes
from jaxviz.report.tables import counted, format_bytes, nbytes, short_location
from jaxviz.transforms.unopened import unopened_note

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class RematPlan(Report):
    """What to save for the backward pass, and what to compute again there.

    Args:
      function: its name.
      budget: bytes that the residuals may take, arguments and constants included.
      saved: the values that are saved by name; None for a plan without a checkpoint, where all that JAX wants to keep fits.
      point: what the plan comes to.
      everything: what the function comes to without checkpoints, its own taken away too.
      notes: what is worth knowing of it, a sentence each.
      memory: bytes that the modelled peak has to fit, where that was asked for; `budget` is then what the residuals could take.
    """

    function: str
    budget: int
    saved: tuple[Saved, ...] | None
    point: Point
    everything: Point
    notes: tuple[str, ...]
    _graph: Graph = field(repr=False)
    _call: _Call = field(repr=False)
    memory: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the residuals that JAX holds with this plan."""
        return self.point.nbytes

    @property
    def flops(self) -> int:
        """FLOPs beyond those of the function without checkpoints."""
        return self.point.flops

    @cached_property
    def peak_nbytes(self) -> int:
        """The modelled peak of the memory that the gradient takes with this plan, arguments and results included; see `memory`."""
        return modelled_memory(self._derived).peak_nbytes

    @property
    def _derived(self) -> Derivation:
        """The planned function, derived."""
        if self.saved is None:
            return self._graph.plain
        types = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in self._call.avals]
        return derive_like(read_jaxpr(jax.make_jaxpr(self._checkpointed(self.saved))(*types)), self._graph.plain)

    def _checkpointed(self, saved: Sequence[Saved]) -> Callable[..., list[Any]]:
        names = [s.name for s in saved]
        policy = jax.checkpoint_policies.save_only_these_names(*names)
        flat: Callable[..., list[Any]] = jax.checkpoint(as_function(self._graph.named(names)), policy=policy)
        return flat

    @cached_property
    @deep_stack
    def front(self) -> tuple[Point, ...]:
        """The best trades between the least bytes that can be had and no recomputation, each solved for when first asked for."""
        budgets = sorted({*evenly(self._graph.least, self.everything.nbytes, 12)})
        solved = each(lambda b: self._graph.solve(b).point, budgets[:-1], "plans")
        return tuple(best_trades({*solved, self.everything}))

    def apply(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """The function with the checkpoint and the names of this plan: plain JAX, for arguments of the types planned for.

        Raises:
          TypeError: when called with arguments of other structure or types.
        ValueError: when called with another value of an argument that is not an array.
        """
        if self.saved is None:
            return self._call.of(as_function(self._graph.flat), f) if self._graph.has_checkpoints else f
        return self._call.of(self._checkpointed(self.saved), f)

    def code(self) -> str:
        """The lines to write for it: those of the source that get a name, each as it was and as it becomes, and the checkpoint.

        A name stands for all values that its expression makes, and some values, such as those inside a library's function, have no
        expression that could be given one. So it is the best plan that can be written down, within the same budget; the comments say
        what it comes to.
        """
        if self.saved is None:
            return f"# {self.function} fits as it is: no checkpoint is needed"
        return code_text(self.function, self.code_rows, self.code_notes, self._call.static_argnums)

    @property
    def code_rows(self) -> Sequence[CodeRow]:
        """The expressions that get a name in `code`, as plain data; none for a plan without a checkpoint."""
        return self._written[0] if self.saved is not None else ()

    @property
    def code_notes(self) -> Sequence[str]:
        """The comments of `code`: what the function comes to with it, and where that differs from the plan."""
        return self._written[1] if self.saved is not None else ()

    @property
    def code_point(self) -> Point:
        """What the function comes to with `code`, in bytes and FLOPs."""
        return self._written[2] if self.saved is not None else self.point

    @cached_property
    def _written(self) -> tuple[list[CodeRow], list[str], Point]:
        """What `code` is made of: its rows and its comments; and what the function comes to with it."""
        graph = self._graph
        taken = {e.params["name"] for _, e in graph.flat.walk() if e.primitive is compat.name_p}
        fresh = (name for name in map("saved_{}".format, itertools.count()) if name not in taken)
        places = {f"{_PLACE}{k}": found for k, found in enumerate(places_of_values(graph.flat).items())}
        if not places:
            note = f"{self.function}: {_comes_to(self.point)}, where all these values get a name; its source is not at hand."
            return [replace(r, name=next(fresh)) for r in self._rows_without_source()], [note], self.point
        candidates = {name: values for name, (_, values) in places.items()}
        exchanges_more = False
        try:
            writable = graph.restricted(candidates, graph.recompute_collectives)
        except ValueError:
            writable, exchanges_more = graph.restricted(candidates, True), True
        found = writable.solve(max(self.budget, writable.least))
        saved = [
            (code_row(s.name, *places[s.name], writable, writable.times(s.name)), places[s.name][0])
            for s in found.saved
        ]
        rows = with_source([row for row, _ in saved], [place for _, place in saved])
        return [replace(r, name=next(fresh)) for r in rows], self._notes_on(found.point, exchanges_more), found.point

    def _notes_on(self, written: Point, exchanges_more: bool) -> list[str]:
        """What to know of code that comes to this."""
        whole = format_bytes(self.everything.nbytes)
        notes = [f"{self.function}: {_comes_to(written)} (without a checkpoint {whole} and none)."]
        if written.nbytes > self.budget:
            notes.append(
                f"That is more than the budget of {format_bytes(self.budget)}, which plan.apply keeps to: the values that it saves have no "
                "expression in your source that a name could be put around."
            )
        elif written != self.point:
            notes.append(f"plan.apply, which can save what no name in the source tells apart: {_comes_to(self.point)}.")
        if exchanges_more:
            notes.append(
                "Devices exchange values again with it that plan.apply saves, and that nothing in the source can name."
            )
        if self._graph.has_checkpoints:
            notes.append("Take away the jax.checkpoint that is there already: this one stands in its place.")
        return notes

    def _rows_without_source(self) -> list[CodeRow]:
        """A row for each line, operation and type of what is saved."""
        alike: dict[tuple[Location | None, str, str], list[Saved]] = {}
        for s in self.saved or ():
            alike.setdefault((s.location, s.expression, s.type), []).append(s)
        return [
            CodeRow("", file_label(at.file) if at else "somewhere", at.line if at else 0, expression, kind, len(same))
            for (at, expression, kind), same in alike.items()
        ]

    @property
    def summary(self) -> str:
        """`plan for loss within 1.0 MiB: 0.9 MiB kept of 4.0 MiB, 12 values saved, 3.1 MFLOP computed again`."""
        kept = f"{format_bytes(self.nbytes)} kept of {format_bytes(self.everything.nbytes)}"
        head = f"plan for {self.function} within {format_bytes(self.budget)}: {kept}"
        if self.memory is not None:
            peak = f"modelled peak {format_bytes(self.peak_nbytes)}"
            head = f"plan for {self.function} that fits {format_bytes(self.memory)}: {peak}, {kept}"
        if self.saved is None:
            return f"{head}, no checkpoint is needed"
        n = len(self.saved)
        return f"{head}, {counted(n, 'value')} saved, {format_flops(self.flops)} computed again"

    def _parts(self) -> Iterator[str | Table]:
        rows = [
            (s.name, s.type, format_bytes(s.nbytes), short_location(s.location), s.expression) for s in self.saved or ()
        ]
        yield Table(("name", "type", "bytes", "line", "value"), rows, "<<><<")
        yield from self.notes

    def plot(self, ax: Axes | None = None) -> Figure:
        """The plan among the best ones, bytes kept against FLOPs computed again; a `matplotlib` figure.

        Args:
          ax: axes of a figure of your own to draw in.
        """
        from jaxviz.features.remat.plot import plot_plan  # matplotlib takes a while to import

        return plot_plan(self, ax)

    def to_dict(self) -> dict[str, Any]:
        return {
            **attributes(self, ("function", "budget", "nbytes", "flops", "notes")),
            "saved": None if self.saved is None else [attributes(s, _SAVED) for s in self.saved],
            **({} if self.memory is None else attributes(self, ("memory", "peak_nbytes"))),
            "everything": {"nbytes": self.everything.nbytes, "flops": 0},
        }


_SAVED = ("name", "expression", "type", "nbytes", "location")
_PLACE = "jaxviz_place_"


def _comes_to(point: Point) -> str:
    return f"keeps {format_bytes(point.nbytes)} for the backward pass, and computes {format_flops(point.flops)} again"


def code_row(name: str, place: Place, values: Sequence[Var], graph: Graph, count: int | None = None) -> CodeRow:
    """What gets a name, without its source.

    Args:
      name: that it gets.
      place: the expression.
      values: that it comes to.
      count: how many values of a call those are; by default as many as there are.
    """
    types = dict.fromkeys(v.aval.str_short(short_dtypes=True) for v in values)
    made_by = dict.fromkeys(graph.makers[v].primitive.name for v in values)
    return CodeRow(
        name, file_label(place.file), place.line, " or ".join(made_by), " or ".join(types), count or len(values)
    )


@api_boundary
@deep_stack
def plan_remat(
    f: Any,
    *args: Any,
    budget: float | str,
    memory: float | str | None = None,
    argnums: int | Sequence[int] = 0,
    recompute_collectives: bool = False,
    **kwargs: Any,
) -> RematPlan:
    """Chooses what a function's gradient saves and what it computes again, for the fewest FLOPs within a budget.

    >>> plan = jaxviz.plan_remat(loss, params, x, budget=0.5)
    >>> gradient = jax.grad(plan.apply(loss))
    >>> plan_remat(loss, params, x, budget="fastest that fits", memory="16GiB")

    Args:
      f: a function of arrays, or pytrees of them; an argument that is not differentiated may be anything.
      *args, **kwargs: what to call it with; arrays or ShapeDtypeStructs.
      budget: bytes that the residuals may take as JAX holds them, arguments and constants included, as a number or text such as
        '512MiB' or '1.5GB'; up to 1.0, a share of what they take without a plan. Or 'fastest that fits', the fewest FLOPs for which
        the modelled peak of the gradient's memory (`jaxviz.memory`), arguments and results included, fits the device.
      memory: what 'fastest that fits' has to fit, in bytes or as such text; for several devices, what all of them have. By default what
        is free on the default device and what the arguments take there already; a CPU has what its machine has left.
      argnums: the positional arguments to differentiate in.
      recompute_collectives: whether values that devices exchange may be exchanged again in the backward pass.

    Raises:
      ValueError: the budget cannot be met; the message says what can. Or an equation has an effect that JAX does not let a checkpoint
        repeat; the message names it. Or Python branches on a value. Or `budget` or `memory` is text that says no size.
    """
    fits = isinstance(budget, str) and budget == FASTEST
    if memory is not None and not fits:
        raise ValueError(
            f"memory= says what budget={FASTEST!r} has to fit; with another budget it is not read. An argument of that name of the "
            "function can be fixed with functools.partial."
        )
    if not fits:
        read_budget(budget, 0)
    room = int(read_size(memory, "memory")) if memory is not None else None
    with counting("planning"):
        call, derivation = _Call.traced(f, args, kwargs, argnums)
        graph = Graph(derivation, recompute_collectives)
        if not fits:
            return _within(graph, call, read_budget(budget, graph.all_nbytes))
        return _fitting(graph, call, free_memory([*call.arrays, *derivation.primal.consts]) if room is None else room)


def _within(graph: Graph, call: _Call, limit: int) -> RematPlan:
    """The plan of the fewest FLOPs whose residuals keep to a limit."""
    everything = Point(graph.all_nbytes, 0)
    notes = (*no_gradient_note(graph.plain), *unopened_note(graph.plain.unopened))
    if limit >= everything.nbytes:
        return RematPlan(call.name, limit, None, everything, everything, notes, graph, call)
    effects = repeated_effects(graph.flat)
    if limit < everything.nbytes <= graph.least:
        raise ValueError(
            f"a budget of {_exactly(limit)} cannot be met for {call.name}: the least is {_exactly(everything.nbytes)}, which it keeps "
            "without a plan"
        )
    if limit < graph.least:
        raise ValueError(
            f"a budget of {_exactly(limit)} cannot be met for {call.name}: the least is {_exactly(graph.least)}, which its arguments and "
            f"what may not be computed again take; without a plan it keeps {_exactly(everything.nbytes)}"
        )
    found = graph.solve(limit)
    return RematPlan(call.name, limit, found.saved, found.point, everything, (*notes, *effects), graph, call)


_STEPS = 5
"""Plans that are tried between one whose memory fits and one whose does not: to a thirty-second of what lies between."""


def _fitting(graph: Graph, call: _Call, memory: int) -> RematPlan:
    """The plan of the fewest FLOPs whose modelled memory fits, by bisection over the bytes of the residuals.

    More residuals mean less work; most often they mean more memory too. Where the fewest do not fit, others are tried before giving up.
    """
    plan = lambda limit: replace(_within(graph, call, limit), memory=memory)
    fitting = lambda found: found.peak_nbytes <= memory
    high = plan(graph.all_nbytes)
    if fitting(high) or graph.least >= graph.all_nbytes:
        tried, best = [high], high
    else:
        best = plan(graph.least)
        tried = [high, best]
        if not fitting(best):
            tried += [plan(limit) for limit in evenly(graph.least, graph.all_nbytes, 6)[1:-1]]
            best = min(filter(fitting, tried), key=lambda p: p.flops, default=best)
        low, above = best.nbytes, min((p.nbytes for p in tried if p.flops < best.flops and not fitting(p)), default=0)
        for _ in range(_STEPS if fitting(best) else 0):
            if above - low <= 1:
                break
            between = plan((low + above) // 2)
            if not fitting(between):
                above = (low + above) // 2
                continue
            low, best = (low + above) // 2, min(best, between, key=lambda p: p.flops)
    if not fitting(best):
        least = min(p.peak_nbytes for p in tried)
        raise ValueError(
            f"no plan for {call.name} fits {_exactly(memory)}: the least modelled peak of its gradient is {_exactly(least)}, of it "
            f"{_exactly(sum(map(nbytes, call.avals)))} its arguments; without a plan it is {_exactly(high.peak_nbytes)}"
        )
    return best


@dataclass(frozen=True)
class _Call:
    """How a function is called: its flat arguments, which of them are arrays, and the structures."""

    in_tree: Any
    out_tree: Any
    leaves: tuple[Any, ...]
    is_input: tuple[bool, ...]
    avals: tuple[Any, ...]
    name: str

    @staticmethod
    def traced(
        f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], argnums: int | Sequence[int]
    ) -> tuple[_Call, Derivation]:
        compat.check_callable(f)
        derivation = derive(f, *args, argnums=argnums, **kwargs)
        primal = derivation.primal
        if primal.is_path:
            where = "; ".join(f"{b.kind} at {b.location}" for b in primal.branches[:3] if b.location is not None)
            raise ValueError(
                f"{primal.name} cannot be planned: its Python looks at values ({where}), so that what it computes differs from call to "
                "call. Use jax.lax.cond or jnp.where there, or fix the argument with functools.partial."
            )
        leaves, in_tree, _, is_input = flat_arguments(args, kwargs, in_bounds(argnums, len(args)))
        call = _Call(in_tree, derivation.out_tree, tuple(leaves), tuple(is_input), primal.in_avals, primal.name)
        return call, derivation

    @property
    def static_argnums(self) -> tuple[int, ...]:
        """Positional arguments that are part of the function, all of them."""
        args, _ = jax.tree.unflatten(self.in_tree, self.is_input)
        leaves = [jax.tree.leaves(a) for a in args]
        return tuple(i for i, is_input in enumerate(leaves) if is_input and not any(is_input))

    @property
    def arrays(self) -> list[Any]:
        return [x for x, is_array in zip(self.leaves, self.is_input, strict=True) if is_array]

    def of(self, flat: Callable[..., list[Any]], f: Callable[..., Any]) -> Callable[..., Any]:
        """A function of flat arrays as one that is called as `f` is, with its name and its place in the source."""

        @api_boundary
        def planned(*args: Any, **kwargs: Any) -> Any:
            leaves, tree = jax.tree.flatten((args, kwargs))
            if tree != self.in_tree:
                raise TypeError(
                    f"the plan for {self.name} is for arguments of the structure {self.in_tree}, not {tree}"
                )
            inputs = []
            for x, fixed, is_array in zip(leaves, self.leaves, self.is_input, strict=True):
                if is_array:
                    inputs.append(x)
                elif not _same(x, fixed):
                    raise ValueError(
                        f"the plan for {self.name} is for an argument {fixed!r}, not {x!r}; make one for this"
                    )
            for x, aval in zip(inputs, self.avals, strict=True):
                got = jax.typeof(jax.numpy.asarray(x))
                if (got.shape, got.dtype) != (aval.shape, aval.dtype):
                    raise TypeError(
                        f"the plan for {self.name} is for an argument {aval.str_short()}, not {got.str_short()}; make one for these types"
                    )
            return jax.tree.unflatten(self.out_tree, flat(*inputs))

        return update_wrapper(planned, f, updated=())


def _same(x: Any, fixed: Any) -> bool:
    """Whether an argument that is part of the function is what it was, of the same type too: 1, 1.0 and True are three."""
    return x is fixed or (type(x) is type(fixed) and bool(x == fixed))


def _exactly(n: int) -> str:
    return format_bytes(n) if n < 1024 else f"{format_bytes(n)} ({n:,} B)"


def repeated_effects(program: Program) -> tuple[str, ...]:
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
