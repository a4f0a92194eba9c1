"""Chooses a plan among those of a search: the least work for a bound on the peak, and by the same way the lowest peak for a bound on work.

For one place of checkpoints the choices that are optimal at some price per byte form a path, from the fewest bytes to the least work. The
measured peak is bisected along it; what fits is filled up with the bytes that it leaves. JAX's policies, and the names of the function itself,
are candidates beside it. Estimates select, measurements decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from math import inf

from jaxviz.analysis.budgets import evenly
from jaxviz.features.remat.bounds import Bound, least_peak, least_works
from jaxviz.features.remat.forms import Form, Trade, Trial, by_work
from jaxviz.features.remat.regions import Region
from jaxviz.features.remat.search import Search

_TRIED = 7
"""How many plans of a path are measured to find one that fits."""
_ROUGHLY = 0.02
"""How much less may be kept than estimated."""
_NAMED = 30
"""How many sets of the function's own names are measured, the fewest bytes first."""
_FILLS = 6
"""How often to try a plan that uses the bytes that the last one leaves."""
_DERIVED = 30_000
"""How many equations are derived to find any plan that fits."""
_PEAK_STEP = 0.02
"""The share of a peak that is worth searching for."""
_SAME = 0.001
"""The share of a peak that is too small to recompute more for."""


def fastest(search: Search, room: Callable[[Trade], int]) -> Trial | None:
    """The plan with the fewest FLOPs that fits; None if none was found.

    Args:
      room: the bytes that a plan leaves free; negative if it does not fit.
    """
    best = _nearly_fastest(search, room)
    if best is None and (low := lowered(search, room)) is not None:
        best, search.bound = filled(search, low, [], room), None
    if best is None:
        search.leanest()
    return min(filter(None, [best, search.measured_within(room)]), key=by_work, default=None)


def _nearly_fastest(search: Search, room: Callable[[Trade], int]) -> Trial | None:
    """The same among plans that are optimal at a price per byte, or nearly, and policies."""
    best = fastest_at_calls(search, room)
    policy = min((t for t in search.under_policies if room(t.trade) >= 0), key=by_work, default=None)
    if policy is not None and (best is None or policy.trade.work < best.trade.work):
        best = _fastest_beside(search, policy, room)
    return best


def fastest_at_calls(search: Search, room: Callable[[Trade], int]) -> Trial | None:
    """The same among plans with checkpoints around calls and bodies of scans, with a bound for them."""
    for sets in (search.sets, search.nested):
        best = fastest_of(search, sets, room)
        search.bound = Bound(int(min(least_works(search, sets, room), default=0))) if best is not None else None
        in_chunks = _fastest_in_chunks(search, sets, room, best)
        if in_chunks is not best:
            search.bound, best = None, in_chunks
        if best is not None:
            return best
    return None


def _fastest_beside(search: Search, policy: Trial, room: Callable[[Trade], int]) -> Trial:
    """The fastest plan where a policy takes less work than any plan with names elsewhere: the policy, unless names there are better."""
    here = policy.form.regions
    named = _fastest_around(search, here, room, policy.trade.work)
    is_better = named is not None and not search.is_little(policy.trade.work - named.trade.work)
    search.bound = Bound(int(min(least_works(search, [*search.sets, here], room), default=0)))
    return named if named is not None and is_better else policy


def fastest_of(
    search: Search, sets: Iterable[Sequence[Region]], room: Callable[[Trade], int], less_work: float = inf
) -> Trial | None:
    """The same for plans around some sets of regions, without chunks, if they may take less work than this."""
    best: Trial | None = None
    for regions in sets:
        found = _fastest_around(search, regions, room, best.trade.work if best is not None else less_work)
        if found is not None and (best is None or by_work(found) < by_work(best)):
            best = found
    return best


def _fastest_in_chunks(
    search: Search, sets: Sequence[Sequence[Region]], room: Callable[[Trade], int], best: Trial | None
) -> Trial | None:
    """Another plan with a scan over chunks, if it takes less work than the best so far, or if there is none yet."""
    for regions in sets:
        for k, chunk in enumerate(search.chunks_of(regions)):
            last = replace(search.path(regions)[-1], chunk=chunk)
            if best is not None and (k or search.trial(last).trade.work >= best.trade.work):
                break  # even the length that lowers the peak most would not suffice
            found = _fastest_around(search, regions, room, best.trade.work if best is not None else inf, chunk)
            if found is not None and (best is None or by_work(found) < by_work(best)):
                best = found
    return best


def _fastest_around(
    search: Search, regions: Sequence[Region], room: Callable[[Trade], int], less_work: float, chunk: int = 1
) -> Trial | None:
    """The same for plans around some regions, as far as they may take less work than this.

    What the function names is also tried by itself: it may keep less in memory besides the residuals than what is optimal at a price per byte.
    """
    found = _fastest_of_path(search, search.path(regions), room, less_work, chunk)
    if search.own_names:
        less_work = less_work if found is None else found.trade.work
        named = _fastest_of_path(search, search.path(regions, search.own_names), room, less_work, chunk)
        found = min(filter(None, (found, named)), key=by_work, default=None)
        if chunk == 1:
            less_work = less_work if found is None else found.trade.work
            found = _fastest_by_names(search, regions, room, less_work) or found
    return found


def _fastest_by_names(
    search: Search, regions: Sequence[Region], room: Callable[[Trade], int], less_work: float
) -> Trial | None:
    """The same among all sets of the names that the function has, if these are few: sets with the same bytes have other peaks."""
    less = [form for form in search.of_names(tuple(regions)) if form.work < less_work]
    trials = map(search.trial, sorted(less, key=lambda form: form.nbytes)[:_NAMED])
    fitting = [t for t in trials if room(t.trade) >= 0 and t.trade.work < less_work]
    return min(fitting, key=by_work, default=None)


def _fastest_of_path(
    search: Search, path: Sequence[Form], room: Callable[[Trade], int], less_work: float, chunk: int
) -> Trial | None:
    path = [replace(form, chunk=chunk) for form in path]
    # Keep one that takes too much work: choices between it and the next are tried as well.
    first = next((i for i, form in enumerate(path) if form.work < less_work), None)
    path = path[max(first - 1, 0) :] if first is not None else []
    outside = search.outside(path[0]) if path else 0

    def fits(i: int) -> bool:
        kept = max(int((1 - _ROUGHLY) * (outside + path[i].nbytes)), 0)  # in memory when the backward pass begins
        return (chunk > 1 or room(search.reckoned(kept, kept)) >= 0) and room(search.trial(path[i]).trade) >= 0

    # Saving less may raise the peak: everything that is recomputed in one region is in memory at once.
    start = (
        next((i for i in (0, *evenly(1, len(path) - 1, min(_TRIED, len(path) - 1))) if fits(i)), None) if path else None
    )
    if start is None:
        return None
    low, high = start, len(path)  # `low` fits, `high` and all after it do not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    over = [t for form in path[start + 1 :] if (t := search.tried(form)) is not None and room(t.trade) < 0]
    return filled(search, search.trial(path[low]), over, room)


def with_lowest_peak(search: Search, most_work: int, near: float = _PEAK_STEP) -> Trial | None:
    """The plan with the lowest peak with no more work than this; None if none was found.

    The lower the peak, the more work it takes: so the peak is bisected, and `fastest` asked for each.

    Args:
      most_work: FLOPs.
      near: the share of the peak up to which it is bisected.
    """
    search.leanest()
    paths = map(search.path, search.sets)
    firsts = filter(None, (next((form for form in path if form.work <= most_work), None) for path in paths))
    _ = [*map(search.trial, firsts), *search.under_policies]
    affordable = lambda: [t for t in search.plans if t.trade.work <= most_work]
    if not affordable():
        return None
    peak = lambda: min(t.trade.peak_nbytes for t in affordable())
    below = lambda peak: lambda t: peak - t.peak_nbytes
    lowest = low = min(t.trade.peak_nbytes for t in search.plans)
    while (high := peak()) - low > max(near * high, 1):
        middle = (low + high) // 2
        _nearly_fastest(search, below(middle))
        if peak() > middle:
            low = middle
    found = fastest(search, below(lowest - 1)) if peak() <= lowest else None
    while found is not None and found.trade.work <= most_work:
        found = fastest(search, below(min(int((1 - near) * peak()), peak() - 1)))
    least = least_peak(search, peak(), most_work)
    search.bound = Bound(least, of_peak=True) if least else None
    return min((t for t in affordable() if t.trade.peak_nbytes <= (1 + _SAME) * peak()), key=by_work)


def filled(search: Search, best: Trial, failed: list[Trial], room: Callable[[Trade], int]) -> Trial:
    """A plan that uses the bytes that another one leaves.

    Args:
      best: a plan that fits.
      failed: plans with fewer FLOPs that do not fit, the fewest bytes first.
      room: the bytes that a plan leaves free; negative if it does not fit.
    """
    over = failed[0] if failed else None
    for _ in range(_FILLS):
        spare = room(best.trade)
        if over is not None:
            more = over.form.nbytes - best.form.nbytes
            closer = more + room(over.trade)  # as if each saved byte added a byte to the peak
            spare = closer if spare < closer < more else max(spare, more // 2)
        form = best.form.within(min(spare, more - 1) if over is not None else spare)
        if form is None:
            break
        trial = search.trial(form)
        if room(trial.trade) >= 0 and trial.trade.work < best.trade.work:
            best = trial
        else:
            over = trial
    return best


def lowered(search: Search, room: Callable[[Trade], int]) -> Trial | None:
    """A plan that fits, searched for where no choice that is optimal at a price per byte does; None if none was found.

    A value that costs little to recompute may be worth saving for what its recomputation keeps in memory. So this begins with all products
    saved, and leaves out one after the other, that which lowers the peak for the least work, until one fits; then those that still fit are
    saved again.

    Args:
      search: measures plans.
      room: see `fastest`.
    """
    left = _DERIVED // max(sum(1 for _ in search.flat.walk()), 1)

    def tried(forms: Iterable[Form]) -> list[Trial]:
        nonlocal left
        some = [*islice(forms, max(left, 0))]
        left -= len(some)
        return [search.trial(form) for form in some]

    lowest = lambda regions: min((t.trade.peak_nbytes for t in search.trials_around(regions)), default=inf)
    for regions in sorted(search.sets, key=lowest):
        parts = search.outer_parts(regions)
        trial: Trial | None = search.trial(Form(tuple(regions), tuple((p, p.choice(p.products)) for p in parts)))
        while trial is not None and room(trial.trade) < 0:
            now = trial.trade
            lower = [t for t in tried(trial.form.with_one_less()) if t.trade.peak_nbytes < now.peak_nbytes]
            price = lambda t, now=now: (t.trade.work - now.work) / (now.peak_nbytes - t.trade.peak_nbytes)
            trial = min(lower, key=price, default=None)
        while trial is not None:
            fitting = [t for t in tried(trial.form.with_one_product()) if room(t.trade) >= 0]
            more = min(fitting, key=by_work, default=trial)
            if by_work(more) >= by_work(trial):
                return trial
            trial = more
    return None
