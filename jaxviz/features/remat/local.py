"""From one plan to a better one: with the bytes that it leaves, or with one value less or more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from jaxviz.features.remat.forms import Form, by_work

if TYPE_CHECKING:
    from jaxviz.features.remat.forms import Trade, Trial
    from jaxviz.features.remat.search import Search

_FILLS = 6
"""How often to try a plan that uses the bytes that the last one leaves."""
_DERIVED = 30_000
"""How many equations are derived to find any plan that fits."""


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
