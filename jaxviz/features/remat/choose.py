"""Chooses a plan among those of a search: the least work for a bound on the peak, and by the same way the lowest peak
for a bound on work.

For one place of checkpoints the choices that are optimal at some price per byte form a path, from the fewest bytes to
the least work. The measured peak is bisected along it; what fits is filled up with the bytes that it leaves. JAX's
policies, and the names of the function itself, are candidates beside it. Estimates select, measurements decide. How far
a plan may be from the best one is told by lower bounds for the work, or for the peak, of any plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import inf

import numpy as np

from jaxviz.analysis.budgets import evenly
from jaxviz.features.remat.forms import Form, Trade, Trial, by_work
from jaxviz.features.remat.regions import Region
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.tuning import DERIVED, EXACT, NEAR, TRIALS
from jaxviz.report.tables import percent

Room = Callable[[Trade], int]
"""The bytes that a plan leaves free; negative if it does not fit."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound for any plan with checkpoints at the places that were tried: of the work for a bounded peak, or of
    the peak for bounded work. It assumes that a plan takes at least as much memory besides what it saves as the
    measured ones.

    Args:
      least: FLOPs, or bytes.
      of_peak: whether it bounds the peak.
      of_residuals: whether it is for a limit on residuals, which does not depend on other memory.
    """

    least: int
    of_peak: bool = False
    of_residuals: bool = False

    def gap(self, trade: Trade, plain: int) -> float:
        """By what share the FLOPs of a gradient, or its peak, may exceed the minimum.

        Args:
          trade: the figures of its plan.
          plain: its FLOPs without checkpoints.
        """
        if self.of_peak:
            return max(trade.peak_nbytes - self.least, 0) / max(self.least, 1)
        return max(trade.work - self.least, 0) / max(plain + self.least, 1)

    def note(self, trade: Trade, plain: int) -> str:
        """A note for a plan with these figures; see `gap`."""
        gap = self.gap(trade, plain)
        less = ", unless one needs less memory besides its residuals than the measured plans"
        less = "" if self.of_residuals else less
        if not gap:
            better = "has a lower peak for that work" if self.of_peak else "takes less work"
            return f"No plan with checkpoints at the places that were tried {better}{less}."
        share = percent(100 * gap)
        at_most = share if share.startswith("less") else f"at most {share}"
        more = f"The peak is {at_most} higher" if self.of_peak else f"The gradient takes {at_most} more FLOPs"
        return f"{more} than with the best plan that has checkpoints at the places that were tried{less}."


# --- the least work within a peak ------------------------------------------------------------------------------------


def fastest(search: Search, room: Room, limit: float = inf) -> tuple[Trial | None, Bound | None]:
    """The plan with the fewest FLOPs that fits, and a bound for it; None if none was found, and where no bound is
    known. With a limit of FLOPs it gives up where it takes no fewer."""
    best, bound = fastest_at_calls(search, room, limit)
    policy = min((t for t in search.under_policies if room(t.trade) >= 0), key=by_work, default=None)
    if policy is not None and policy.trade.work < _work(best):
        # Names at the place of the policy may be better.
        here = policy.form.regions
        named = _fastest_around(search, here, room, policy.trade.work)
        best = policy if named is None or search.is_little(policy.trade.work - named.trade.work) else named
        bound = _least_work(search, [*search.sets, here], room)
    is_written = room(search.written) >= 0 and 0 < search.written.work <= _work(best)
    if (best is None and limit == inf) or is_written:  # nothing is better than the checkpoints that are there
        search.leanest()
        lower = _least(best, _lowered(search, room))
        if lower is not None and search.own_names:  # now it is known how much work is too much
            limit = _work(lower)
            lower = _least(lower, *(_fastest_by_names(search, regions, room, limit) for regions in search.sets))
        best, bound = lower, bound if lower is best else None
    return _least(best, search.measured_within(room)), bound


def fastest_at_calls(search: Search, room: Room, limit: float = inf) -> tuple[Trial | None, Bound | None]:
    """The same among plans with checkpoints around calls and bodies of scans."""
    for sets in (search.sets, search.nested):
        best: Trial | None = None
        least = {regions: _least_work_saving(search, regions, _room_for(search, regions, room)) for regions in sets}
        for regions in sorted(sets, key=least.__getitem__):
            less = min(limit, _work(best))
            if least[regions] < less:
                best = _least(best, _fastest_around(search, regions, room, less))
        in_chunks = _fastest_in_chunks(search, sets, room, best, limit)
        if _work(in_chunks) < _work(best):
            return in_chunks, None
        if best is not None:
            return best, _least_work(search, sets, room)
    return None, None


def _room_for(search: Search, regions: Sequence[Region], room: Room) -> float:
    """The most bytes that may be saved around some regions if nothing else were in memory when the backward pass
    begins."""
    return room(Trade(search.outside(search.path(regions)[0]), 0, 0)) / (1 - NEAR)


def _work(trial: Trial | None) -> float:
    return inf if trial is None else trial.trade.work


def _least(*trials: Trial | None) -> Trial | None:
    return min(filter(None, trials), key=by_work, default=None)


def _fastest_in_chunks(
    search: Search, sets: Sequence[Sequence[Region]], room: Room, best: Trial | None, limit: float
) -> Trial | None:
    """A plan with a scan over chunks, if it takes less work than the limit and the best so far, if there is one."""
    chunked: Trial | None = None
    for regions in sets:
        for k, chunk in enumerate(search.chunks_of(regions)):
            least = min(limit, _work(_least(best, chunked)))
            last = replace(search.path(regions)[-1], chunk=chunk)
            if least < inf and (k or search.trial(last).trade.work >= least):
                break  # even the length that lowers the peak most would not suffice
            chunked = _least(chunked, _fastest_around(search, regions, room, least, chunk))
    return chunked


def _fastest_around(
    search: Search, regions: Sequence[Region], room: Room, limit: float, chunk: int = 1
) -> Trial | None:
    """The same for plans around some regions that take less work than a limit.

    What JAX's policies save, and what the function names, is also tried by itself: it may keep less in memory besides
    the residuals than what is optimal at a price per byte.
    """
    best = _fastest_of_path(search, search.path(regions), room, limit, chunk)
    if chunk == 1:
        less = min(limit, _work(best))
        trials = (search.trial(form) for form in search.as_policies_save(tuple(regions)) if form.work < less)
        best = _least(best, *(t for t in trials if room(t.trade) >= 0 and t.trade.work < less))
    if search.own_names:
        path = search.path(regions, search.own_names)
        best = _least(best, _fastest_of_path(search, path, room, min(limit, _work(best)), chunk))
        if chunk == 1:
            best = _least(best, _fastest_by_names(search, regions, room, min(limit, _work(best))))
    return best


def _fastest_by_names(search: Search, regions: Sequence[Region], room: Room, limit: float) -> Trial | None:
    """The same among all sets of the names that the function has, if these are few: sets with the same bytes have other
    peaks."""
    less = [form for form in search.of_names(tuple(regions)) if form.work < limit]
    trials = map(search.trial, less[: 4 * TRIALS])
    return min((t for t in trials if room(t.trade) >= 0 and t.trade.work < limit), key=by_work, default=None)


def _fastest_of_path(search: Search, path: Sequence[Form], room: Room, limit: float, chunk: int) -> Trial | None:
    path = [replace(form, chunk=chunk) for form in path]
    # Keep one that takes too much work: choices between it and the next are tried as well.
    first = next((i for i, form in enumerate(path) if form.work < limit), None)
    if first is None:
        return None
    path = path[max(first - 1, 0) :]
    outside = search.outside(path[0])

    def fits(i: int) -> bool:
        saved = max(int((1 - NEAR) * (outside + path[i].nbytes)), 0)  # in memory when the backward pass begins
        return (chunk > 1 or room(Trade(saved, saved, 0)) >= 0) and room(search.trial(path[i]).trade) >= 0

    # Saving less may raise the peak: everything that is recomputed in one region is in memory at once.
    some = (0, *evenly(1, len(path) - 1, min(TRIALS, len(path) - 1)))
    low = next((i for i in some if fits(i)), None)
    if low is None:
        return None
    start, high = low, len(path)  # `low` fits, `high` and all after it do not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    over = (t for form in path[start + 1 :] if (t := search.tried(form)) is not None and room(t.trade) < 0)
    return filled(search, search.trial(path[low]), next(over, None), room, limit)


def filled(search: Search, best: Trial, over: Trial | None, room: Room, limit: float = inf) -> Trial:
    """A plan that uses the bytes that another one leaves.

    Args:
      best: a plan that fits.
      over: one with fewer FLOPs that does not fit.
      limit: the FLOPs that the plan has to stay below to be of use.
    """
    for _ in range(TRIALS):
        spare = room(best.trade)
        if over is not None:
            more = over.form.nbytes - best.form.nbytes
            closer = more + room(over.trade)  # as if each saved byte added a byte to the peak
            spare = min(closer if spare < closer < more else max(spare, more // 2), more - 1)
        form = best.form.within(spare)
        if form is None or form.work >= limit:
            break
        if best.trade.work < limit and best.trade.work - form.work < EXACT * search.plain_flops:
            break
        trial = search.trial(form)
        if room(trial.trade) >= 0 and trial.trade.work < best.trade.work:
            best = trial
        else:
            over = trial
    return best


def _lowered(search: Search, room: Room) -> Trial | None:
    """A plan that fits, searched for where no choice that is optimal at a price per byte does; None if none was found.

    A value that costs little to recompute may be worth saving for what its recomputation keeps in memory. So this
    begins with all expensive values saved, and changes one value after the other, that which lowers the peak for the
    least work.
    """
    left = DERIVED // max(sum(1 for _ in search.flat.walk()), 1)
    lowest = lambda regions: min((t.trade.peak_nbytes for t in search.trials_around(regions)), default=inf)
    for regions in sorted(search.sets, key=lowest):
        parts = search.outer_parts(regions)
        best = search.trial(Form(regions, tuple((part, part.choice(part.products)) for part in parts)))
        while room(best.trade) < 0:
            forms = [*islice(best.form.with_one_change(), max(left, 0))]
            left -= len(forms)
            lower = [t for t in map(search.trial, forms) if t.trade.peak_nbytes < best.trade.peak_nbytes]
            if not lower:
                break
            best = min(lower, key=partial(_price, best))
        else:
            return filled(search, best, None, room)
    return None


def _price(trial: Trial, lower: Trial) -> float:
    """The work for each byte by which the peak of a trial is lower than that of another."""
    return (lower.trade.work - trial.trade.work) / (trial.trade.peak_nbytes - lower.trade.peak_nbytes)


# --- the lowest peak for some work -----------------------------------------------------------------------------------


def with_lowest_peak(search: Search, most_work: int) -> tuple[Trial | None, Bound | None]:
    """The plan with the lowest peak with no more work than this, in FLOPs, and a bound for it; None if none was found.

    The lower the peak, the more work it takes: so the peak is bisected, and `fastest` called for each.
    """
    search.leanest()
    paths = map(search.path, search.sets)
    firsts = filter(None, (next((form for form in path if form.work <= most_work), None) for path in paths))
    _ = [*map(search.trial, firsts), *search.under_policies]
    affordable = lambda: [t for t in search.plans if t.trade.work <= most_work]
    if not affordable():
        return None, None
    peak = lambda: min(t.trade.peak_nbytes for t in affordable())
    within = lambda peak, limit=inf: fastest(search, lambda t: peak - t.peak_nbytes, limit)[0]
    lowest = low = min(t.trade.peak_nbytes for t in search.plans)
    while (high := peak()) - low > max(NEAR * high, 1):
        middle = (low + high) // 2
        within(middle, most_work + 1)
        if peak() > middle:
            low = middle
    best = within(lowest - 1) if peak() <= lowest else None
    while best is not None and best.trade.work <= most_work:
        best = within(min(int((1 - NEAR) * peak()), peak() - 1))
    least = least_peak(search, peak(), most_work)
    best = min((t for t in affordable() if t.trade.peak_nbytes <= (1 + EXACT) * peak()), key=by_work)
    return best, Bound(least, of_peak=True) if least else None


# --- bounds -----------------------------------------------------------------------------------------------------------


def _least_work(search: Search, sets: Sequence[Sequence[Region]], room: Room) -> Bound:
    return Bound(int(min(least_works(search, sets, room), default=0)))


def least_works(search: Search, sets: Sequence[Sequence[Region]], room: Room) -> list[float]:
    """Lower bounds for the work of a plan with checkpoints around each of some sets of regions in which one fits,
    assuming that it takes no less memory besides what it saves than the measured ones."""
    allowed = [(regions, _most_saved(search, search.path(regions), room)) for regions in sets]
    least = (_least_work_saving(search, regions, most) for regions, most in allowed)
    return [work for work in least if work < inf]


def _least_work_saving(search: Search, regions: Sequence[Region], most: float) -> float:
    """A lower bound for the work around some regions if these many bytes may be saved; infinite if they are too few."""
    path = search.path(regions)
    parts = search.outer_parts(regions)
    if most < path[0].nbytes:
        return inf
    if len(parts) == len(parts[0].spots) == 1:
        work = parts[0].least_work(most)
        return inf if work is None else work
    # Interpolated between the choices that are optimal at some price.
    return float(np.interp(most, [form.nbytes for form in path], [form.work for form in path]))


def least_peak(search: Search, peak: int, most_work: int) -> int:
    """A lower bound for the peak of a plan with this much work, under the same assumption: below it even the least work
    is too much.

    Args:
      search: has measured plans.
      peak: the peak of one of them with no more work.
      most_work: FLOPs.
    """
    low, high = 0, peak
    while high - low > max(EXACT * peak, 1):
        middle = (low + high) // 2
        spare = lambda t, peak=middle: peak - t.peak_nbytes  # type: ignore[misc]
        least = min(least_works(search, search.sets, spare), default=inf)
        low, high = (middle, high) if least > most_work else (low, middle)
    return low


def _most_saved(search: Search, path: Sequence[Form], room: Room) -> float:
    """The most bytes that a plan may save: one that saves more takes less memory besides, but no less than a measured
    plan of the path that saves as much."""
    measured = [t for form in path if (t := search.tried(form)) is not None]
    if not measured:
        return room(Trade(search.outside(path[0]), 0, 0))
    most, low, allowed = -inf, 0.0, -inf
    for size, other in [*sorted((t.form.nbytes, room(t.trade) + t.form.nbytes) for t in measured), (inf, -inf)]:
        allowed = max(allowed, other)
        most = max(most, min(size, allowed)) if allowed >= low else most
        low = size
    return most


def bound_within(search: Search, limit: int) -> Bound:
    """A lower bound for the work of any plan whose residuals stay within a limit of bytes, around the function itself
    or one of the sets of regions.

    A checkpoint around the function itself counts only if its peak is no higher than that of the function as written.
    """
    least = least_works(search, search.sets, lambda t: limit - t.nbytes)
    around_all = search.within(limit)
    if around_all is not None and around_all.trade.peak_nbytes <= search.written.peak_nbytes:
        work = search.whole.least_work(limit - search.outside(around_all.form))
        least += [work] if work is not None else []
    return Bound(int(min(least, default=0)), of_residuals=True)
