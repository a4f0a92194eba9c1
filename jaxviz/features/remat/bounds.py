"""How far a plan may be from the best one: lower bounds for the work and the peak of any plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxviz.features.remat.forms import Form, Trade
    from jaxviz.features.remat.regions import Region
    from jaxviz.features.remat.search import Search

_EXACT = 0.002
"""How exactly a bound of a peak is searched for, as a share of the peak."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound for any plan with checkpoints at the places that were tried: of the work for a bounded peak, or of the peak for bounded
    work. It assumes that a plan takes at least as much memory besides what it saves as the measured ones.

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
        unless = (
            "" if self.of_residuals else ", unless one needs less memory besides its residuals than the measured plans"
        )
        if not gap:
            better = "has a lower peak for that work" if self.of_peak else "takes less work"
            return f"No plan with checkpoints at the places that were tried {better}{unless}."
        more = (
            f"The peak is at most {100 * gap:.2g} % higher"
            if self.of_peak
            else f"The gradient takes at most {100 * gap:.2g} % more FLOPs"
        )
        return f"{more} than with any plan with checkpoints at the places that were tried{unless}."


def least_works(search: Search, sets: Sequence[Sequence[Region]], room: Callable[[Trade], int]) -> list[float]:
    """Lower bounds for the work of a plan with checkpoints around each of some sets of regions in which one fits, assuming that it takes no
    less memory besides what it saves than the measured ones."""
    least: list[float | None] = []
    for regions in sets:
        path = search.path(regions)
        allowed = most_saved(search, path, room)
        parts = search.outer_parts(regions)
        if len(parts) == len(parts[0].spots) == 1 and allowed >= path[0].nbytes:
            least.append(parts[0].least_work(allowed))
        else:
            least.append(_between(path, allowed))
    return [w for w in least if w is not None]


def least_peak(search: Search, peak: int, most_work: int) -> int:
    """A lower bound for the peak of a plan with this much work, under the same assumption: below it even the least work is too much.

    Args:
      search: has measured plans.
      peak: the peak of one of them with no more work.
      most_work: FLOPs.
    """
    low, high = 0, peak
    while high - low > max(_EXACT * peak, 1):
        middle = (low + high) // 2
        least = min(least_works(search, search.sets, lambda t, m=middle: m - t.peak_nbytes), default=inf)  # type: ignore[misc]
        low, high = (middle, high) if least > most_work else (low, middle)
    return low


def most_saved(search: Search, path: Sequence[Form], room: Callable[[Trade], int]) -> float:
    """The most bytes that a plan may save: one that saves more takes less memory besides, but no less than a measured plan of the path that
    saves as much."""
    measured = [t for form in path if (t := search.tried(form)) is not None]
    if not measured:
        return room(search.reckoned(search.outside(path[0]), 0))
    most, low, allowed = -inf, 0.0, -inf
    for size, other in [*sorted((t.form.nbytes, room(t.trade) + t.form.nbytes) for t in measured), (inf, -inf)]:
        allowed = max(allowed, other)
        most = max(most, min(size, allowed)) if allowed >= low else most
        low = size
    return most


def bound_within(search: Search, limit: int) -> Bound:
    """A lower bound for the work of any plan whose residuals stay within a limit of bytes, around the function itself or one of the sets of
    regions.

    A checkpoint around the function itself counts only if its peak is no higher than that of the function as written.
    """
    least = least_works(search, search.sets, lambda t: limit - t.nbytes)
    tried = search.within(limit)
    if tried is not None and tried.trade.peak_nbytes <= search.written.peak_nbytes:
        (whole,) = search.whole_parts
        around_all = whole.least_work(limit - search.outside(tried.form))
        least += [around_all] if around_all is not None else []
    return Bound(int(min(least, default=0)), of_residuals=True)


def _between(path: Sequence[Form], allowed: float) -> float | None:
    """The work at a number of bytes, interpolated between the choices that are optimal at some price; None if all take more bytes."""
    sizes, work = [form.nbytes for form in path], [form.work for form in path]
    if allowed < sizes[0]:
        return None
    return float(np.interp(allowed, sizes, work))
