"""Chooses a plan: reads the bounds, selects among the plans that the search finds, and explains if none meets the bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, wraps
from typing import Any

import jax

from jaxviz.analysis.budgets import free_memory, least_budget, least_size, read_budget, read_share, read_size
from jaxviz.analysis.training_step import subject_of
from jaxviz.arguments import Argnums
from jaxviz.derivation import Derivation, derive
from jaxviz.features.remat.bounds import bound_within
from jaxviz.features.remat.call import Call
from jaxviz.features.remat.choose import fastest, fastest_at_calls, with_lowest_peak
from jaxviz.features.remat.compiled_plans import within_compiled
from jaxviz.features.remat.forms import Trade, Trial, by_peak
from jaxviz.features.remat.names import saved_by
from jaxviz.features.remat.offload import read_offload
from jaxviz.features.remat.plan import RematPlan
from jaxviz.features.remat.regions import Region
from jaxviz.features.remat.search import Search
from jaxviz.features.residuals.notes import gradient_note
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.collector import collector_paused
from jaxviz.ir.pretty import describe_equation
from jaxviz.ir.stack import deep_stack
from jaxviz.progress import counting
from jaxviz.report.tables import exactly, format_bytes
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
    checkpoints go into the function that it differentiates, the peak is that of the step, with the optimizer's state and update, and
    `.apply` returns the step.

    Args:
      f: a function of arrays, or pytrees of them; an argument that is not differentiated may be anything.
      *args, **kwargs: its arguments; arrays or ShapeDtypeStructs.
      memory: the largest modelled peak of the gradient (`jaxviz.memory`), including arguments and results, in bytes or
        as text such as '40GiB' or '1.5GB'; or 'device' for the free memory of the default device plus what the arguments already
        take there.
      of: what `memory` bounds: 'modelled', or 'compiled' for the peak of the gradient as XLA compiles it for the default backend. For that
        some plans are compiled, and the cheapest of them that fits is taken; a smaller budget never gets a higher peak.
      work: the FLOPs that may be recomputed, as a fraction of the gradient's FLOPs without checkpoints, such as 0.1 or
        '10%'; more than 100 % only as text, such as '150%'.
      residuals: the bytes that the residuals may take in JAX, including arguments and constants; or a fraction of what they
        take without checkpoints, such as 0.5 or '50%'.
      budget: the same as `residuals`.
      offload: allows offloading to the host's memory, and gives the bandwidth in bytes per second one way, such as '50GB/s',
        or '50GB/s, 400TFLOP/s' with the speed of the device (100 TFLOP/s by default); or True to measure both on the default device.
        The FLOPs that the device could do during a transfer count as work; the plan does not assume that the two overlap.
      argnums: the positional arguments to differentiate with respect to.
      has_aux: whether the function returns a pair whose first element is differentiated, as for `jax.grad`.
      recompute_collectives: whether the backward pass may repeat exchanges between devices.

    Raises:
      ValueError: the bound cannot be met; the message says which one can. Or more than one bound is given, or `of` is neither. Or an equation has an effect
        that JAX does not allow in a checkpoint; the message names it. Or Python branches on a value. Or a bound is text that is not an
        amount.
      TypeError: a bound or a bandwidth is neither a number nor text.
    """
    given = {"memory": memory, "work": work, "residuals": residuals, "budget": budget}
    bounds = {name: value for name, value in given.items() if value is not None}
    if len(bounds) > 1:
        raise ValueError(
            f"a plan takes only one bound; got {' and '.join(f'{name}=' for name in bounds)}. If the function itself has an argument of "
            "that name, fix it with functools.partial."
        )
    if of not in _PEAKS or (of == _PEAKS[1] and memory is None):
        raise ValueError(
            f"of must be {' or '.join(map(repr, _PEAKS))}, the peak that memory= bounds; got {of!r} and memory={memory!r}"
        )
    limit = residuals if budget is None else budget
    room = _room(memory) if memory not in (None, "device") else None
    share = read_share(work, "work") if work is not None else 0.0
    asked = "residuals" if budget is None else "budget"
    if limit is not None:
        read_budget(limit, 0, "a budget" if asked == "budget" else "the argument residuals")
    transfers = read_offload(offload)
    with counting("planning"), collector_paused():
        derivation = _planned(f, args, kwargs, argnums, has_aux)
        call = Call.planned(derivation)
        planning = Planning(Search(derivation, recompute_collectives, transfers), call)
        if bounds:
            _check_checkpoints(planning.search)
        if memory is not None:
            room = free_memory([*call.arrays, *derivation.primal.consts]) if room is None else room
            if of == _PEAKS[0]:
                return planning.within_memory(room)
        elif work is not None:
            return planning.within_work(share)
        elif limit is not None:
            return planning.within_residuals(read_budget(limit, planning.search.opened.nbytes), asked)
        else:
            return planning.of_all()
    with counting("compiling plans") as done, collector_paused():
        return within_compiled(planning, room, done)


def _planned(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], argnums: Argnums, has_aux: bool) -> Derivation:
    """The gradient that is planned."""
    compat.check_callable(f)
    # A pair whose first element is differentiated is no result of a training step.
    found = derive(_aside(f), *args, argnums=argnums, **kwargs) if has_aux else subject_of(f, args, kwargs, argnums)
    primal = found.primal
    if primal.is_path:
        where = "; ".join(f"{b.kind} at {b.location}" for b in primal.branches[:3] if b.location is not None)
        raise ValueError(
            f"{primal.name} cannot be planned: its Python code reads values ({where}), so what it computes differs "
            "from call to call. Use jax.lax.cond or jnp.where there, or fix the argument with functools.partial."
        )
    return found


_PEAKS = ("modelled", "compiled")

_WORTH = 0.01
"""The share by which a plan has to lower the peak, or without a given bound the work, to be worth changing the source."""

_NEAR = 0.05
"""Without a given bound, a peak lower by this share is searched for."""

_UNROLLED = "Outside of a loop XLA may follow a plan only in part: plan.verify() compiles the gradient with the plan and without."

Found = Trial | Trade
"""A plan, or the function as it is."""


class Planning:
    """Chooses among the plans of a search."""

    def __init__(self, search: Search, call: Call):
        self.search = search
        self.call = call

    def plan(self, bound: str, found: Found, *notes: str, budget: int | None = None) -> RematPlan:
        search = self.search
        trial = found if isinstance(found, Trial) else None
        after = search.finally_measured(found) if isinstance(found, Trial) else found
        effects = (*_outside(search), *_repeated_effects(search, trial.form.regions)) if trial is not None else ()
        moves = (search.offload.note,) if search.offload is not None and after.offloaded else ()
        unrolled = (_UNROLLED,) if trial is not None and search.is_unrolled(trial.form.regions) else ()
        about = (
            *moves, *gradient_note(search.plain), *unopened_note(search.plain.unopened), *notes, *effects, *unrolled
        )  # fmt: skip
        saved = saved_by(search, trial.form) if trial is not None else None
        return RematPlan(
            self.call.name, bound, saved, search.written, after, search.opened, about, search, self.call, trial,
            after.nbytes if budget is None else budget,
        )  # fmt: skip

    @property
    def as_they_are(self) -> list[Trade]:
        """The function without checkpoints, if that takes no more memory, and as it is written."""
        return _as_they_are(self.search)

    @cached_property
    def as_written(self) -> RematPlan:
        """The function as it is, as a plan."""
        return self.plan("", self.search.written)

    def lowest_peak(self, at_calls: bool = False) -> int:
        """The lowest peak of the plans found so far and of those that save as little as possible; see `within_memory`."""
        search = self.search
        search.leanest()
        found = [t for t in search.trials.values() if not at_calls or search.whole not in t.form.regions]
        return min(search.written.peak_nbytes, *(t.trade.peak_nbytes for t in found))

    def within_memory(self, room: int, at_calls: bool = False) -> RematPlan:
        """The plan with the least work whose peak fits.

        Args:
          room: bytes.
          at_calls: whether its checkpoints are around calls and in loops only, and not around the whole function.
        """
        search = self.search
        bound = f"peak within {format_bytes(room)}"
        highest = min(room, search.written.peak_nbytes)
        fits = lambda t: t.peak_nbytes <= highest
        fine = [t for t in (search.opened, search.written) if fits(t)]
        if fine and not min(fine, key=lambda t: t.work).work:
            return self.plan(bound, min(fine, key=lambda t: t.work))
        check_can_be_planned(search)
        below = lambda t: highest - t.peak_nbytes
        found = fastest(search, below) if not at_calls else fastest_at_calls(search, below)
        if found is None and at_calls:
            found = search.measured_within(below, at_calls)
        if found is None and not fine:
            search.leanest()
            lowest = min(search.trials.values(), key=by_peak)
            least = min(lowest.trade.peak_nbytes, search.written.peak_nbytes, search.opened.peak_nbytes)
            held = search.held(lowest if lowest.trade.peak_nbytes == least else None)
            written = search.written.peak_nbytes
            to_type = f'. Write memory="{least_size(least, written)}"' if least < written else ""
            raise ValueError(
                f"no plan was found for {self.call.name} that fits in {exactly(room)}: the lowest modelled peak of {self.search.its} is "
                f"{exactly(least)}, {held}; as written it is {exactly(written)}{to_type}"
            )
        kept = (
            f"As written it takes {format_bytes(highest)}, and a plan never raises the peak: for a plan that uses "
            f"all of the {format_bytes(room)}, plan the function without its checkpoints."
        )
        best: Found = found if found is not None and (not fine or found.trade.work < fine[-1].work) else fine[-1]
        best = self.or_as_written(best, fine)
        plan = self.plan(bound, best, *([kept] if highest < room else []), *self.how_good(best))
        return replace(plan, most_peak=highest)

    def or_as_written(self, best: Found, fine: Sequence[Trade]) -> Found:
        """A plan, or the function as written if that fits and the plan does little more than rewrite its checkpoints."""
        written = self.search.written
        return written if written in fine and not is_worthwhile(self.search, best) else best

    def how_good(self, best: Found) -> list[str]:
        """A sentence on how much better than a plan any other could be, if that is known."""
        bound = self.search.bound
        return (
            [bound.note(best.trade, self.search.plain_flops)] if isinstance(best, Trial) and bound is not None else []
        )

    def within_work(self, share: float) -> RematPlan:
        """The plan with the lowest peak for this much work."""
        search = self.search
        most = int(share * search.plain_flops)
        bound = f"work within {100 * share:g} %"
        fine = [t for t in self.as_they_are if t.work <= most]
        check_can_be_planned(search)
        found = with_lowest_peak(search, most)
        candidates: list[Found] = [*fine, *([found] if found is not None else [])]
        best: Found | None = min(candidates, key=lambda c: _rank(c, "peak_nbytes", "work"), default=None)
        if best is None or trade_of(best).peak_nbytes > search.written.peak_nbytes:
            lowest = min([search.opened.peak_nbytes, *(trade_of(c).peak_nbytes for c in candidates)])
            raise ValueError(
                f"{bound} would raise the peak of {self.call.name} to {exactly(lowest)}; as written it is "
                f"{exactly(search.written.peak_nbytes)}, where its checkpoints recompute "
                f"{100 * search.written.flops / max(search.plain_flops, 1):.2g} %"
            )
        return replace(self.worthwhile(bound, best, fine, *self.how_good(best)), most_work=most)

    def within_residuals(self, limit: int, asked: str = "residuals") -> RematPlan:
        """The plan with the least work whose residuals stay within a limit, which was given by an argument of this name."""
        search, name = self.search, self.call.name
        bound = f"residuals, with arguments, within {format_bytes(limit)}"
        written, opened = search.written, search.opened
        fits = lambda t: t.nbytes <= limit
        fine = [t for t in self.as_they_are if fits(t)]
        if fine and not fine[0].work:
            return self.plan(bound, fine[0], budget=limit)
        check_can_be_planned(search)
        lower = lambda t: t.peak_nbytes <= written.peak_nbytes
        tried = filter(
            None,
            (
                search.within(limit),
                fastest(search, lambda t: min(limit - t.nbytes, written.peak_nbytes - t.peak_nbytes)),
            ),
        )
        candidates: list[Found] = [*fine, *(t for t in tried if fits(t.trade))]
        allowed = [c for c in candidates if lower(trade_of(c))]
        if allowed:
            fewest = min(trade_of(c).work for c in allowed)
            close = [c for c in allowed if search.is_little(trade_of(c).work - fewest)]
            best = min(close, key=lambda c: _rank(c, "peak_nbytes", "work"))
            best = self.or_as_written(best, fine)
            search.bound = bound_within(search, limit)
            return self.plan(bound, best, *self.how_good(best), budget=limit)
        if candidates:
            peak = min(trade_of(c).peak_nbytes for c in candidates)
            raise ValueError(
                f"{bound} would raise the peak of {name} to {exactly(peak)}; as written it is "
                f"{exactly(written.peak_nbytes)}. memory= plans for the peak itself."
            )
        these = "a budget" if asked == "budget" else asked
        search.leanest()
        around_all = [] if search.refused else [search.least]
        least = min([*around_all, *(t.nbytes for t in search.measured_trades)])
        if least >= opened.nbytes:
            raise ValueError(
                f"{these} of {exactly(limit)} cannot be met for {name}: the minimum is {exactly(opened.nbytes)}, "
                "which it saves without a plan; no plan saves less"
            )
        raise ValueError(
            f"{these} of {exactly(limit)} cannot be met for {name}: the minimum is {exactly(least)}, for its arguments "
            f"and values that cannot be recomputed; without a plan it saves {exactly(opened.nbytes)}. "
            f"Write {least_budget(least, opened.nbytes, asked)}"
        )

    def of_all(self) -> RematPlan:
        """The plan with the best reduction of the peak for its work."""
        search = self.search
        try:
            check_can_be_planned(search)
        except ValueError as error:
            return self.plan("", search.written, str(error))
        best = best_of_all(search)
        if isinstance(best, Trial) and best.form.chunk == 1:
            best = with_lowest_peak(search, best.trade.work, _NEAR) or best
        return self.worthwhile("", best, self.as_they_are, *self.how_good(best))

    def worthwhile(self, bound: str, best: Found, as_they_are: Sequence[Trade], *notes: str) -> RematPlan:
        """A plan, or the function as it is if the plan changes its peak and its work little; with what determines the peak.

        Args:
          bound: see `plan`.
          best: the plan.
          as_they_are: the alternatives, the function as written last.
          notes: notes on the plan.
        """
        search = self.search
        if _lowers_the_peak(search, best):
            return self.plan(bound, best, *notes)
        if not _saves_work(search, best) and as_they_are:
            best = as_they_are[-1]
        lowest = min([*search.samples(), *search.plans], key=by_peak) if not bound else None
        if lowest is not None and _lowers_the_peak(search, lowest):
            share = 100 * (lowest.trade.flops - search.written.flops) / max(search.plain_flops, 1)
            said = f"A lower peak would cost too much work: {format_bytes(lowest.trade.peak_nbytes)} for {share:.2g} % more"
        else:
            said = "No plan that was tried lowers the peak by 1 % or more"
        return self.plan(bound, best, f"{said}: {search.held()}.")


def best_of_all(search: Search) -> Found:
    """The plan with the best reduction of the peak for its work, however small."""
    candidates: list[Found] = [*_as_they_are(search), *search.samples()]
    lowest = min(trade_of(c).peak_nbytes for c in candidates)
    highest = search.written.peak_nbytes
    most = max(trade_of(c).work for c in candidates)
    fallen = lambda t: (highest - t.peak_nbytes) / max(highest - lowest, 1)
    allowed = [c for c in candidates if trade_of(c).peak_nbytes <= highest]
    best = max(allowed, key=lambda c: fallen(trade_of(c)) - trade_of(c).work / max(most, 1))
    if _lowers_the_peak(search, best):
        return best
    # With only two points, or nearly, this measure decides nothing; then a fraction of the peak counts as much as the same fraction of the
    # work.
    added = lambda t: (t.work - search.written.work) / max(search.plain_flops, 1)
    gained = lambda t: (highest - t.peak_nbytes) / max(highest, 1) - added(t)
    other = max(allowed, key=lambda c: gained(trade_of(c)))
    return other if gained(trade_of(other)) > 0 and _lowers_the_peak(search, other) else best


def is_worthwhile(search: Search, found: Found) -> bool:
    """Whether a plan improves the peak or the work of a function as written enough."""
    return _lowers_the_peak(search, found) or _saves_work(search, found)


def _lowers_the_peak(search: Search, found: Found) -> bool:
    peak = search.written.peak_nbytes
    return peak - trade_of(found).peak_nbytes >= _WORTH * max(peak, 1)


def _saves_work(search: Search, found: Found) -> bool:
    return search.written.flops - trade_of(found).flops >= _WORTH * max(search.plain_flops, 1)


def _as_they_are(search: Search) -> list[Trade]:
    both = [search.opened] if search.opened.peak_nbytes <= search.written.peak_nbytes else []
    return [*both, search.written]


def trade_of(found: Found) -> Trade:
    return found.trade if isinstance(found, Trial) else found


def _rank(found: Found, *what: str) -> tuple[int, ...]:
    return tuple(getattr(trade_of(found), w) for w in what)


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
                f"with has_aux=True, {name} must return a pair, whose first element is differentiated; it returns {what}"
            )
        out, aux = result
        return out, jax.tree.map(jax.lax.stop_gradient, aux)

    return with_aux


def check_can_be_planned(search: Search) -> None:
    """Raises an error if no checkpoint can be put anywhere in a function.

    Raises:
      ValueError: something that must not be in a checkpoint is in all of it; see `refused_in_checkpoint`.
    """
    _check_checkpoints(search)
    if not search.sets:
        raise ValueError(f"{search.refused}, {_NOTHING}")


_NOTHING = "so nothing around it can be planned; move it out of the function, or plan the parts before and after it."


def _check_checkpoints(search: Search) -> None:
    """Raises an error if a checkpoint of a function must stay: without it, or in another one, references would be written otherwise."""
    for e in repeated_references(search.derivation.primal):
        raise ValueError(f"{describe_equation(e)} uses a mutable reference in both passes, {_NOTHING}")


def _outside(search: Search) -> tuple[str, ...]:
    """A sentence on what no checkpoint may contain, such as what uses a reference."""
    return (f"No checkpoint of the plan contains this: {search.refused}.",) if search.refused else ()


def _repeated_effects(search: Search, regions: Sequence[Region]) -> tuple[str, ...]:
    """A sentence on effects that run in both passes, such as a debug callback."""
    inside = {e for r in regions for s in r.spots for e in s.equations}
    found = [
        (i, e)
        for i, e in enumerate(search.flat.equations)
        if e in inside and any(compat.is_real_effect(x) for x in e.effects)
    ]
    named = ", ".join(describe_equation(e, i) for i, e in found)
    return (f"In a checkpoint, JAX runs these in both passes: {named}.",) if found else ()
