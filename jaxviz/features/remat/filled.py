"""Plans that use the bytes that another plan leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxviz.features.remat.forms import Trade, Trial
    from jaxviz.features.remat.search import Search

_FILLS = 6
"""How often to try a plan that uses the bytes that the last one leaves."""
_NEARLY = 0.1
"""The share by which such a plan may exceed its peak."""
_EXCHANGED = 4
"""How many plans that nearly fit are retried with other values of the same bytes."""


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
            failed.append(trial)
    nearly = [t for t in failed if -room(t.trade) < _NEARLY * t.trade.peak_nbytes]
    for trial in sorted(nearly, key=lambda t: t.trade.work)[:_EXCHANGED]:
        for form in trial.form.exchanged(-room(trial.trade), best.trade.work):
            other = search.trial(form)
            if room(other.trade) >= 0 and other.trade.work < best.trade.work:
                best = other
                break
    return best
