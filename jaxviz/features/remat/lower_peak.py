"""The lowest peak for a bound on the work: improves a plan until no lower peak seems possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from jaxviz.features.remat.exhaustive import Bound, least_peak, least_peak_around, lowest_of_all
from jaxviz.features.remat.forms import Form, by_peak, by_work

if TYPE_CHECKING:
    from jaxviz.features.remat.forms import Trade, Trial
    from jaxviz.features.remat.regions import Region
    from jaxviz.features.remat.search import Search

_LEANER = 6
"""How often to try a plan that uses the work that the last one leaves."""
_LOWER = 4
"""How often to try for a lower peak within a bound on work."""
_SAME = 0.001
"""The share of a peak that is too small to recompute more for."""
_DERIVED = 30_000
"""How many equations are derived to find any plan that fits."""
_NEAR = 0.02
"""The share of a peak that is worth searching for."""


def improved(search: Search, best: Trial, most_work: int, near: float = _NEAR) -> Trial:
    """A plan that uses the work that another one leaves; its bound is stored in `bound`.

    Args:
      best: the plan.
      most_work: FLOPs.
      near: search for a lower peak only if one lower by this share is possible.
    """
    for _ in range(_LEANER):
        leaner = best.form.leaner(most_work - best.trade.work)
        trial = search.trial(leaner) if leaner is not None else best
        if trial.trade.work > most_work or by_peak(trial) >= by_peak(best):
            break
        best = trial
    # Search more closely for the least work below a lower peak, continuing downwards as long as something is found.
    for k in range(_LOWER + 1):
        sets = dict.fromkeys([*search.sets, best.form.regions])
        least = least_peak(search, tuple(sets), best.trade.peak_nbytes, most_work, near)
        best = min((t for t in (best, *search.trials.values()) if t.trade.work <= most_work), key=by_peak)
        search.bound = Bound(least, False, of_peak=True) if best.form.chunk == 1 and least > 0 else None
        if least == 0:  # unknown for so little work; with few values all choices can be tried
            proved, is_proved = lowest_of_all(search, tuple(sets), best, most_work)
            best = proved or best
            search.bound = Bound(best.trade.peak_nbytes, True, of_peak=True) if is_proved else None
            break
        target = int((1 - near * 2**k) * best.trade.peak_nbytes)
        if k == _LOWER:
            break
        lower = [regions for regions in (*search.sets, *search.nested) if _may_have(search, regions, target, most_work)]
        found = search.fastest_of(lower, partial(_below, target), most_work + 1)
        if found is None or found.trade.work > most_work:
            break
        best = found
    highest = (1 + _SAME) * best.trade.peak_nbytes
    affordable = (t for t in search.trials.values() if t.trade.work <= most_work)
    return min((t for t in affordable if t.trade.peak_nbytes <= highest), key=by_work)


def lowered(search: Search, room: Callable[[Trade], int]) -> Trial | None:
    """A plan that fits, searched for where no choice that is optimal at a price per byte does; None if none was found.

    A value that costs little to recompute may be worth saving for what its recomputation keeps in memory. So this begins with all products
    saved, and leaves out one after the other, that which lowers the peak for the least work, until one fits; then those that still fit are
    saved again.

    Args:
      search: measures plans.
      room: see `Search.fastest`.
    """
    left = _DERIVED // max(sum(1 for _ in search.flat.walk()), 1)

    def tried(forms: Iterable[Form]) -> list[Trial]:
        nonlocal left
        some = [*islice(forms, max(left, 0))]
        left -= len(some)
        return [search.trial(form) for form in some]

    lowest = lambda regions: min((t.trade.peak_nbytes for t in search.trials_around(regions)), default=0)
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


def _may_have(search: Search, regions: Sequence[Region], peak: int, most_work: int) -> bool:
    """Whether a plan around some regions may exist with at most this peak and this much work."""
    least = least_peak_around(search, regions, most_work)
    if least is None:
        form = next((form for form in search.path(regions) if form.work <= most_work), None)
        if form is None:
            return False
        search.trial(form.leaner(most_work - form.work) or form)
        least = least_peak_around(search, regions, most_work)
    return least is not None and least <= peak


def _below(peak: int, trade: Trade) -> int:
    """The bytes by which a plan stays below a peak."""
    return peak - trade.peak_nbytes
