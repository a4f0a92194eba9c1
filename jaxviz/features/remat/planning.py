"""Chooses a plan: reads the bounds, selects among the plans that the search finds, and explains if none meets the
bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, wraps
from typing import Any

import jax

from jaxviz.analysis.budgets import free_memory, least_budget, least_size, read_budget, read_share
from jaxviz.analysis.training_step import subject_of
from jaxviz.arguments import Argnums
from jaxviz.derivation import Derivation, derive
from jaxviz.features.memory.buffers import KINDS
from jaxviz.features.remat.checkpointing import check_policies_count
from jaxviz.features.remat.choose import Bound, bound_within, fastest, fastest_at_calls, with_lowest_peak
from jaxviz.features.remat.compiled_plans import within_compiled
from jaxviz.features.remat.forms import Trial, by_peak
from jaxviz.features.remat.names import saved_by
from jaxviz.features.remat.offload import read_offload
from jaxviz.features.remat.plan import RematPlan
from jaxviz.features.remat.regions import Region
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.tuning import is_lower
from jaxviz.features.residuals.notes import gradient_note
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.collector import collector_paused
from jaxviz.ir.pretty import describe_equation
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import Program
from jaxviz.progress import counting
from jaxviz.report.sizes import read_size
from jaxviz.report.tables import exactly, format_bytes, percent, short_location
from jaxviz.runtime.references import repeated_references
from jaxviz.transforms.unopened import unopened_note


@api_boundary
@deep_stack
def plan_remat(
    f: Any,
    *args: Any,
    memory: float | str | None = None,
    of: str = "modelled",
    work: float | str | None = None,
    residuals: float | str | None = None,
    budget: float | str | None = None,
    offload: float | str | bool | None = None,
    argnums: Argnums = 0,
    has_aux: bool = False,
    recompute_collectives: bool = False,
    **kwargs: Any,
) -> RematPlan:
    """Chooses where to put checkpoints in a function, and what they save, to reduce the memory of its gradient.

    >>> plan = jaxviz.plan_remat(loss, params, x)                       # lowers the peak most for the least work
    >>> plan = jaxviz.plan_remat(loss, params, x, memory="40GiB")       # the least work within a peak
    >>> plan = jaxviz.plan_remat(loss, params, x, memory="40GiB", of="compiled")  # the same in XLA's bytes
    >>> plan = jaxviz.plan_remat(loss, params, x, work="10%")           # the lowest peak within some extra work
    >>> gradient = jax.grad(plan.apply(loss))

    Checkpoints can go around the function, around the bodies of its scans, and around calls in it. No plan
    has a higher peak than the function as written.

    A training step, which computes a gradient itself and returns more than one number, can be planned as a whole: the
    checkpoints go into the function that it differentiates, the peak is that of the step, with the optimizer's state
    and update, and `.apply` returns the step.

    Args:
      f: a function of arrays, or pytrees of them; an argument that is not differentiated may be anything.
      *args, **kwargs: its arguments; arrays or ShapeDtypeStructs.
      memory: the largest modelled peak of the gradient (`jaxviz.memory`), including arguments and results, in bytes or
        as text such as '40GiB' or '1.5GB'; or 'device' for the free memory of the default device plus what the
        arguments already take there.
      of: what `memory` bounds: 'modelled', or 'compiled' for the peak of the gradient as XLA compiles it for the
        default backend. For that some plans are compiled, and the cheapest of them that fits is taken; a smaller budget
        never gets a higher peak.
      work: the FLOPs that may be recomputed, as a fraction of the gradient's FLOPs without checkpoints, such as 0.1 or
        '10%'; more than 100 % only as text, such as '150%'.
      residuals: the bytes that the residuals may take in JAX, including arguments and constants; or a fraction of what
        they take without checkpoints, such as 0.5 or '50%'.
      budget: the same as `residuals`.
      offload: allows offloading to the host's memory, and gives the bandwidth in bytes per second one way, such as
        '50GB/s', or '50GB/s, 400TFLOP/s' with the speed of the device (100 TFLOP/s by default); or True to measure both
        on the default device. The FLOPs that the device could do during a transfer count as work; the plan does not
        assume that the two overlap.
      argnums: the positional arguments to differentiate with respect to.
      has_aux: whether the function returns a pair whose first element is differentiated, as for `jax.grad`.
      recompute_collectives: whether the backward pass may repeat exchanges between devices.

    Raises:
      ValueError: the bound cannot be met; the message says which one can. Or more than one bound is given, or `of` is
        neither. Or an equation has an effect that JAX does not allow in a checkpoint; the message names it. Or Python
        branches on a value. Or a bound is text that is not an amount.
      TypeError: a bound or a bandwidth is neither a number nor text.
    """
    arguments = {"memory": memory, "work": work, "residuals": residuals, "budget": budget}
    bounds = {name: value for name, value in arguments.items() if value is not None}
    if len(bounds) > 1:
        raise ValueError(
            f"a plan takes only one bound; got {' and '.join(f'{name}=' for name in bounds)}. If the function itself "
            "has an argument of that name, fix it with functools.partial."
        )
    if of not in _PEAKS or (of == _PEAKS[1] and memory is None):
        raise ValueError(
            f"of must be {' or '.join(map(repr, _PEAKS))}, the peak that memory= bounds; got {of!r} and "
            f"memory={memory!r}"
        )
    limit = residuals if budget is None else budget
    room = _room(memory) if memory not in (None, "device") else None
    share = read_share(work, "work") if work is not None else 0.0
    argument = "residuals" if budget is None else "budget"
    if limit is not None:
        read_budget(limit, 0, "a budget" if argument == "budget" else "the argument residuals")
    transfers = read_offload(offload)
    with counting("planning"), collector_paused():
        derivation = _planned(f, args, kwargs, argnums, has_aux)
        planning = Planning(Search(derivation, recompute_collectives, transfers))
        if bounds:
            check_references(planning.search)
        if memory is not None:
            room = free_memory([*planning.search.call.arrays, *derivation.primal.consts]) if room is None else room
            if of == _PEAKS[0]:
                return planning.within_memory(room)
        elif work is not None:
            return planning.within_work(share)
        elif limit is not None:
            return planning.within_residuals(read_budget(limit, planning.search.opened.nbytes), argument)
        else:
            return planning.of_all()
    with counting("compiling plans") as done, collector_paused():
        return within_compiled(planning, room, done)


def _planned(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], argnums: Argnums, has_aux: bool) -> Derivation:
    """The gradient that is planned."""
    compat.check_callable(f)
    check_policies_count()
    # A pair whose first element is differentiated is no result of a training step.
    derivation = (
        derive(_aside(f), *args, argnums=argnums, **kwargs) if has_aux else subject_of(f, args, kwargs, argnums)
    )
    check_is_traced(derivation.primal)
    return derivation


def check_is_traced(primal: Program) -> None:
    """Raises an error if a program is only one path through its function's Python code.

    Raises:
      ValueError: it is; the message says where values are read.
    """
    if primal.is_path:
        where = "; ".join(f"{b.kind} at {b.location}" for b in primal.branches[:3] if b.location is not None)
        raise ValueError(
            f"{primal.name} cannot be planned: its Python code reads values ({where}), so what it computes differs "
            "from call to call. Use jax.lax.cond or jnp.where there, or fix the argument with functools.partial."
        )


_PEAKS = ("modelled", "compiled")

_UNROLLED = (
    "Outside of a loop XLA may follow a plan only in part: plan.verify() compiles the gradient with the plan and "
    "without."
)


class Planning:
    """Chooses among the plans of a search."""

    def __init__(self, search: Search):
        self.search = search

    def plan(self, bound: str, trial: Trial, *notes: str, budget: int | None = None) -> RematPlan:
        """The report of a plan for a bound, with remarks on it."""
        search = self.search
        planned = bool(trial.form.regions)
        after = search.finally_measured(trial) if planned else trial.trade
        moves = (search.offload.note,) if search.offload is not None and after.offloaded else ()
        about = (*moves, *gradient_note(search.plain), *unopened_note(search.plain.unopened), *notes)
        if planned:
            unrolled = (_UNROLLED,) if search.is_unrolled(trial.form.regions) else ()
            about += (*_outside(search), *_repeated_effects(search, trial.form.regions), *unrolled)
        return RematPlan(
            search.call.name, bound, saved_by(search, trial.form) if planned else None, search.written, after,
            search.opened, about,
            search, trial, after.nbytes if budget is None else budget,
        )  # fmt: skip

    @cached_property
    def as_written(self) -> RematPlan:
        """The function as it is, as a plan."""
        return self.plan("", self.search.as_they_are[-1])

    def lowest_peak(self, at_calls: bool = False) -> int:
        """The lowest peak of the plans found so far and of those that save as little as possible; see
        `within_memory`."""
        search = self.search
        search.leanest()
        some = [t for t in search.trials.values() if not at_calls or search.root not in t.form.regions]
        return min(search.written.peak_nbytes, *(t.trade.peak_nbytes for t in some))

    def within_memory(self, room: int, at_calls: bool = False) -> RematPlan:
        """The plan with the least work whose peak fits.

        Args:
          room: bytes.
          at_calls: whether its checkpoints are around calls and in loops only, and not around the whole function.
        """
        search = self.search
        bound = f"peak within {format_bytes(room)}"
        highest = min(room, search.written.peak_nbytes)
        unplanned = [t for t in search.as_they_are if t.trade.peak_nbytes <= highest]
        if unplanned and not unplanned[0].trade.work:
            return self.plan(bound, unplanned[0])
        check_can_be_planned(search)
        below = lambda t: highest - t.peak_nbytes
        best, least = fastest_at_calls(search, below) if at_calls else fastest(search, below)
        if best is None and at_calls:
            best = search.measured_within(below, at_calls)
        if best is None and not unplanned:
            raise ValueError(self._does_not_fit(room))
        if best is None or (unplanned and best.trade.work >= unplanned[-1].trade.work):
            best = unplanned[-1]
        best = self._or_as_written(best, unplanned)
        notes = [
            f"As written it takes {format_bytes(highest)}, and a plan never raises the peak: for a plan that uses "
            f"all of the {format_bytes(room)}, plan the function without its checkpoints."
        ]  # fmt: skip
        plan = self.plan(bound, best, *notes[: highest < room], *self._how_good(best, least))
        return replace(plan, most_peak=highest)

    def _does_not_fit(self, room: int) -> str:
        search = self.search
        search.leanest()
        lowest = min([*search.trials.values(), *search.as_they_are], key=by_peak)
        least, written = lowest.trade.peak_nbytes, search.written.peak_nbytes
        to_type = f'. Write memory="{least_size(least, written)}"' if is_lower(least, written) else ""
        step = search.step
        owner = "its gradient" if step is None else f"the training step `{step.traced.name}`"
        return (
            f"no plan was found for {search.call.name} that fits in {exactly(room)}: the lowest modelled peak of "
            f"{owner} is {exactly(least)}, {_peak_parts(search, lowest, room)}; as written it is "
            f"{exactly(written)}{to_type}"
        )

    def _or_as_written(self, best: Trial, unplanned: Sequence[Trial]) -> Trial:
        """A plan, or the function as written if that fits and the plan does little more than rewrite its
        checkpoints."""
        written = self.search.as_they_are[-1]
        saved = self.search.written.flops - best.trade.flops
        is_worth_it = _lowers_the_peak(self.search, best) or not self.search.is_little(saved)
        return best if is_worth_it or written not in unplanned else written

    def _how_good(self, best: Trial, bound: Bound | None) -> list[str]:
        """A sentence on how much better than a plan any other could be, if that is known."""
        return [bound.note(best.trade, self.search.plain_flops)] if best.form.regions and bound is not None else []

    def within_work(self, share: float) -> RematPlan:
        """The plan with the lowest peak for this much work."""
        search = self.search
        most = int(share * search.plain_flops)
        bound = f"work within {100 * share:g} %"
        unplanned = [t for t in search.as_they_are if t.trade.work <= most]
        check_can_be_planned(search)
        planned, least = with_lowest_peak(search, most)
        best = min([*unplanned, *([planned] if planned is not None else [])], key=by_peak, default=None)
        if best is None or best.trade.peak_nbytes > search.written.peak_nbytes:
            lowest = (
                search.opened.peak_nbytes if best is None else min(search.opened.peak_nbytes, best.trade.peak_nbytes)
            )
            raise ValueError(
                f"{bound} would raise the peak of {search.call.name} to {exactly(lowest)}; as written it is "
                f"{exactly(search.written.peak_nbytes)}, where its checkpoints recompute "
                f"{percent(100 * search.written.flops / max(search.plain_flops, 1))}"
            )
        return replace(self._worthwhile(bound, best, unplanned, *self._how_good(best, least)), most_work=most)

    def within_residuals(self, limit: int, argument: str = "residuals") -> RematPlan:
        """The plan with the least work whose residuals stay within a limit, which was given by an argument of this
        name."""
        search = self.search
        bound = f"residuals, with arguments, within {format_bytes(limit)}"
        highest = search.written.peak_nbytes
        unplanned = [t for t in search.as_they_are if t.trade.nbytes <= limit]
        if unplanned and not unplanned[0].trade.work:
            return self.plan(bound, unplanned[0], budget=limit)
        check_can_be_planned(search)
        at_calls, _ = fastest(search, lambda t: min(limit - t.nbytes, highest - t.peak_nbytes))
        planned = [t for t in (search.within(limit), at_calls) if t is not None and t.trade.nbytes <= limit]
        allowed = [t for t in (*unplanned, *planned) if t.trade.peak_nbytes <= highest]
        if allowed:
            fewest = min(t.trade.work for t in allowed)
            best = min((t for t in allowed if search.is_little(t.trade.work - fewest)), key=by_peak)
            best = self._or_as_written(best, unplanned)
            return self.plan(bound, best, *self._how_good(best, bound_within(search, limit)), budget=limit)
        if planned:
            peak = min(t.trade.peak_nbytes for t in planned)
            raise ValueError(
                f"{bound} would raise the peak of {search.call.name} to {exactly(peak)}; as written it is "
                f"{exactly(highest)}. memory= plans for the peak itself."
            )
        raise ValueError(self._residuals_are_more(limit, argument))

    def _residuals_are_more(self, limit: int, argument: str) -> str:
        search = self.search
        search.leanest()
        around_all = [] if search.refused else [search.least]
        least, opened = min([*around_all, *(t.nbytes for t in search.measured_trades)]), search.opened.nbytes
        what = "a budget" if argument == "budget" else argument
        text = (
            f"{what} of {exactly(limit)} cannot be met for {search.call.name}: the minimum is "
            f"{exactly(min(least, opened))}, "
        )
        if least >= opened:
            return f"{text}which it saves without a plan; no plan saves less"
        return (
            f"{text}for its arguments and values that cannot be recomputed; without a plan it saves {exactly(opened)}. "
            f"Write {least_budget(least, opened, argument)}"
        )

    def of_all(self) -> RematPlan:
        """The plan with the best reduction of the peak for its work."""
        search = self.search
        try:
            check_can_be_planned(search)
        except ValueError as error:
            return self.plan("", search.as_they_are[-1], str(error))
        best, least = best_of_all(search), None
        if best.form.regions and best.form.chunk == 1:
            lower, least = with_lowest_peak(search, best.trade.work)
            best = lower or best
        return self._worthwhile("", best, search.as_they_are, *self._how_good(best, least))

    def _worthwhile(self, bound: str, best: Trial, unplanned: Sequence[Trial], *notes: str) -> RematPlan:
        """A plan, or the function as it is if the plan changes little; with what determines the peak.

        Args:
          bound: see `plan`.
          best: the plan.
          unplanned: the alternatives, the function as written last.
        """
        search = self.search
        if _lowers_the_peak(search, best):
            return self.plan(bound, best, *notes)
        if unplanned and search.is_little(search.written.flops - best.trade.flops):
            best = unplanned[-1]
        why = "No plan that was tried lowers the peak by 1 % or more: "
        lowest = None if bound else lowest_of_all(search)
        if lowest is not None and _lowers_the_peak(search, lowest):
            share = 100 * (lowest.trade.flops - search.written.flops) / max(search.plain_flops, 1)
            less = format_bytes(lowest.trade.peak_nbytes)
            why = f"A lower peak would cost too much work: {less} for {percent(share)} more. Of the peak, "
        return self.plan(bound, best, f"{why}{_peak_parts(search)}.")


def lowest_of_all(search: Search) -> Trial:
    """The plan with the lowest peak, for at most as much work again as the gradient."""
    with_lowest_peak(search, search.plain_flops)
    return min([*search.samples(), *search.plans], key=by_peak)


def best_of_all(search: Search) -> Trial:
    """The plan with the best reduction of the peak for its work, however small."""
    candidates = [*search.as_they_are, *search.samples()]
    lowest = min(t.trade.peak_nbytes for t in candidates)
    highest = search.written.peak_nbytes
    most = max(t.trade.work for t in candidates)
    fall = lambda t, scale: (highest - t.trade.peak_nbytes) / max(scale, 1)
    allowed = [t for t in candidates if t.trade.peak_nbytes <= highest]
    best = max(allowed, key=lambda t: fall(t, highest - lowest) - t.trade.work / max(most, 1))
    if _lowers_the_peak(search, best):
        return best
    # With only two points, or nearly, this measure decides nothing; then a fraction of the peak counts as much as the
    # same fraction of the work.
    gain = lambda t: fall(t, highest) - (t.trade.work - search.written.work) / max(search.plain_flops, 1)
    other = max(allowed, key=gain)
    return other if gain(other) > 0 and _lowers_the_peak(search, other) else best


def _lowers_the_peak(search: Search, trial: Trial) -> bool:
    return is_lower(trial.trade.peak_nbytes, search.written.peak_nbytes)


def _peak_parts(search: Search, trial: Trial | None = None, room: float = math.inf) -> str:
    """What the peak consists of, with a plan or as written: `12.5 GiB are arguments, 12.5 GiB are results, the largest
    other value is exp (model.py:12), 1.0 GiB`; and what to do if that value alone does not fit."""
    timeline = search.modelled(trial)
    if not timeline.steps:
        return "there are no equations"
    by_kind = dict(zip(KINDS, timeline.steps[timeline.peak].nbytes, strict=True))
    parts = [f"{format_bytes(n)} are {kind}s" for kind, n in by_kind.items() if kind in ("argument", "result") and n]
    largest = next((a for a in timeline.alive if a.kind not in ("argument", "result")), None)
    if largest is not None:
        at = f" ({short_location(largest.location)})" if largest.location is not None else ""
        which = "other value is" if largest.count == 1 else f"others are {largest.count:,} values of"
        alone = ", which alone does not fit: compute it in parts, as with jax.lax.map over chunks of its rows"
        is_too_large = largest.nbytes > room * largest.count
        parts.append(f"the largest {which} {largest.what}{at}, {format_bytes(largest.nbytes)}{alone * is_too_large}")
    return ", ".join(parts)


def _room(memory: Any) -> int:
    """A number of bytes.

    Raises:
      ValueError, TypeError: it is not an amount of bytes, or it is a share of something unknown.
    """
    size = read_size(memory, "memory")
    if 0 < size < 1:
        raise ValueError(
            f"memory must be a number of bytes or a size such as '512MiB' or '1.5GB', not a share; got {memory!r}"
        )
    return int(size)


def _aside(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns a pair, with the second element excluded from differentiation."""

    @wraps(f)
    def with_aux(*args: Any, **kwargs: Any) -> Any:
        result = f(*args, **kwargs)
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            what = jax.tree.map(lambda x: jax.typeof(x).str_short(short_dtypes=True), result)
            name = getattr(f, "__name__", "the function")
            raise TypeError(
                f"with has_aux=True, {name} must return a pair, whose first element is differentiated; it returns "
                f"{what}"
            )
        out, aux = result
        return out, jax.tree.map(jax.lax.stop_gradient, aux)

    return with_aux


def check_can_be_planned(search: Search) -> None:
    """Raises an error if no checkpoint can be put anywhere in a function.

    Raises:
      ValueError: something that must not be in a checkpoint is in all of it; see `refused_in_checkpoint`.
    """
    check_references(search)
    if not search.sets:
        raise ValueError(f"{search.refused}, {_NOTHING}")


_NOTHING = "so nothing around it can be planned; move it out of the function, or plan the parts before and after it."


def check_references(search: Search) -> None:
    """Raises an error if a checkpoint of a function must stay: without it, or in another one, references would be
    written otherwise."""
    for e in repeated_references(search.derivation.primal):
        raise ValueError(f"{describe_equation(e)} uses a mutable reference in both passes, {_NOTHING}")


def _outside(search: Search) -> tuple[str, ...]:
    """A sentence on what no checkpoint may contain, such as what uses a reference."""
    return (f"No checkpoint of the plan contains this: {search.refused}.",) if search.refused else ()


def _repeated_effects(search: Search, regions: Sequence[Region]) -> tuple[str, ...]:
    """A sentence on effects that run in both passes, such as a debug callback; a reference that is used in a checkpoint
    is made there."""
    inside = {e for r in regions for s in r.spots for e in s.equations}
    effects = [
        (i, e)
        for i, e in enumerate(search.flat.equations)
        if e in inside and any(compat.is_real_effect(x) for x in e.effects) and not compat.touches_refs(e.effects)
    ]
    named = ", ".join(describe_equation(e, i) for i, e in effects)
    return (f"In a checkpoint, JAX runs these in both passes: {named}.",) if effects else ()
