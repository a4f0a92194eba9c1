"""All choices of a small program, and a bound for the choices of a large one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from math import inf, prod
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from jaxviz.features.memory.timeline import donated_by
from jaxviz.features.remat.choices import Outcomes
from jaxviz.features.remat.forms import by_peak
from jaxviz.higher_order import of
from jaxviz.higher_order.shard_map import SHARD_MAP

if TYPE_CHECKING:
    from jaxviz.features.remat.forms import Form, Trade, Trial
    from jaxviz.features.remat.regions import Region
    from jaxviz.features.remat.search import Search

_SETS = 2**18
"""Up to this many choices, all are tried: 18 values to save or not, or 11 that may also be offloaded."""
_TRIALS = 100
"""How many of them are measured at most, and the number of equations that may be derived for that."""
_EQUATIONS = 4_000
_CLOSER, _AT_MOST = 5, 14
"""How many plans are measured for a closer bound on a peak, and how many while it is far below:"""
_FAR = 0.05
"""by more than this share of the bound."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound for any plan: of the work for a bounded peak, or of the peak for bounded work.

    Args:
      least: FLOPs, or bytes.
      is_proved: whether it covers all choices. Otherwise it covers only those that take at least as much memory besides what they save as
        the measured ones.
      of_peak: whether it bounds the peak.
      of_residuals: whether it is for a limit on residuals, which does not depend on other memory.
    """

    least: int
    is_proved: bool
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
        better = "has a lower peak for that work" if self.of_peak else "takes less work"
        if self.is_proved:
            return f"No other choice of what these checkpoints save {better}: all were tried."
        gap = self.gap(trade, plain)
        unless = (
            "" if self.of_residuals else ", unless one needs less memory besides its residuals than the measured plans"
        )
        if not gap:
            return f"No plan with checkpoints at the places that were tried {better}{unless}."
        more = (
            f"The peak is at most {100 * gap:.2g} % higher"
            if self.of_peak
            else f"The gradient takes at most {100 * gap:.2g} % more FLOPs"
        )
        return f"{more} than with any plan with checkpoints at the places that were tried{unless}."


def least_of_all(
    search: Search, sets: Sequence[Sequence[Region]], best: Trial | None, room: Callable[[Trade], int]
) -> tuple[Trial | None, bool]:
    """Among all choices for some sets of regions, one that fits with the least work, and whether all were checked.

    Args:
      search: measures them.
      sets: sets of regions.
      best: the best found so far.
      room: see `Search.fastest`.
    """
    is_less = lambda t: best is None or t.work < best.trade.work
    looking = _Looking(search)
    for regions, outcomes in looking.through(sets):
        shape, work, _, certain = outcomes
        at = np.arange(len(work)) if best is None else np.flatnonzero(work < best.trade.work)
        for i in at[np.argsort(work[at], kind="stable")]:
            if best is not None and work[i] >= best.trade.work:
                break
            if room(search.reckoned(looking.fixed + int(certain[i]), int(certain[i]))) < 0:
                continue
            trial = looking.trial(regions, shape, int(i))
            if trial is None:
                break
            if room(trial.trade) >= 0 and is_less(trial.trade):
                best = trial
    return best, looking.is_all


def lowest_of_all(
    search: Search, sets: Sequence[Sequence[Region]], best: Trial | None, most_work: int
) -> tuple[Trial | None, bool]:
    """Among all choices with no more work than this, the one with the lowest peak, and whether all were checked.

    Args:
      search, sets, best: see `least_of_all`.
      most_work: FLOPs.
    """
    looking = _Looking(search)
    for regions, outcomes in looking.through(sets):
        shape, work, sizes, certain = outcomes
        at = np.flatnonzero(work <= most_work)
        for i in at[np.argsort(sizes[at], kind="stable")]:
            if best is not None and looking.fixed + int(certain[i]) >= best.trade.peak_nbytes:
                continue
            trial = looking.trial(regions, shape, int(i))
            if trial is None:
                break
            if trial.trade.work <= most_work and (best is None or by_peak(trial) < by_peak(best)):
                best = trial
    return best, looking.is_all


Every = tuple[Sequence[Outcomes], np.ndarray, np.ndarray, np.ndarray]
"""All choices for some regions: those of each part, and for each combination its work, its bytes, and the least that it needs."""


class _Looking:
    """A search through all choices of a small program, within its limits.

    Args:
      search: measures the choices.
    """

    def __init__(self, search: Search):
        self.search = search
        flat = search.flat
        n_equations = sum(1 for _ in flat.walk())
        self.left = min(_TRIALS, _EQUATIONS // max(n_equations, 1))
        self.is_all = not any(
            of(e) is SHARD_MAP for _, e in flat.walk()
        )  # there a value takes its share of each device
        is_given_away = any(donated_by(flat)) or search.step is not None
        self.fixed = 0 if is_given_away else sum(map(search.context.sizes.of, (*flat.invars, *flat.constvars)))
        """Bytes that every choice takes in addition to those it has to keep."""

    def through(self, sets: Sequence[Sequence[Region]]) -> Iterator[tuple[Sequence[Region], Every]]:
        """Sets of regions with all of their choices, as long as the sets before could be searched completely."""
        if not self.is_all:
            return
        for regions in sets:
            parts = self.search.outer_parts(regions)
            if prod(part.n_outcomes for part in parts) > _SETS:
                self.is_all = False
                continue
            outcomes = [part.every_outcome for part in parts]
            total = lambda columns: reduce(lambda a, b: np.add.outer(a, b).ravel(), columns)
            yield (
                regions,
                (
                    outcomes,
                    total([o.work for o in outcomes]),
                    total([o.nbytes for o in outcomes]),
                    total([o.certain for o in outcomes]),
                ),
            )

    def trial(self, regions: Sequence[Region], outcomes: Sequence[Outcomes], i: int) -> Trial | None:
        """One of the choices, measured; None if the limit is reached."""
        parts = self.search.outer_parts(regions)
        places = np.unravel_index(i, [len(o.work) for o in outcomes])
        choices = tuple((part, o.choice(part, int(k))) for part, o, k in zip(parts, outcomes, places, strict=True))
        form = self.search.form(regions, choices)
        if self.search.tried(form) is None:
            self.left -= 1
        if self.left < 0:
            self.is_all = False
            return None
        return self.search.trial(form)


def least_works(search: Search, sets: Sequence[Sequence[Region]], room: Callable[[Trade], int]) -> list[float]:
    """Lower bounds for the work of a plan with checkpoints around each of some sets of regions in which one fits, assuming that it takes no
    less memory besides what it saves than the measured ones."""
    least: list[float | None] = []
    for regions in sets:
        path = search.path(regions)
        measured = [t for form in path if (t := search.tried(form)) is not None]
        # The most that a plan may save, if everything else takes as little as in any measured plan.
        allowed = max(
            (room(t.trade) + t.form.nbytes for t in measured), default=room(search.reckoned(search.outside(path[0]), 0))
        )
        parts = search.outer_parts(regions)
        if len(parts) == len(parts[0].spots) == 1 and allowed >= path[0].nbytes:
            least.append(parts[0].least_work(allowed))
        else:
            least.append(_between(path, allowed))
    return [w for w in least if w is not None]


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
    return Bound(int(min(least, default=0)), False, of_residuals=True)


def least_peak(search: Search, sets: Sequence[Sequence[Region]], peak: int, most_work: int, near: float) -> int:
    """A lower bound for the peak of a plan with checkpoints around some sets of regions and this much work, assuming that it takes no less
    memory besides what it saves than the measured ones that save about as much.

    Args:
      search: measures plans.
      sets: sets of regions.
      peak: the peak of a known plan.
      most_work: FLOPs.
      near: while that peak exceeds the bound by more than this share, more plans are measured where the bound is weakest.
    """
    for k in range(_AT_MOST + 1):
        found = [w for w in (_weakest(search, regions, most_work) for regions in sets) if w is not None]
        least, between = min(found, key=itemgetter(0), default=(0, None))
        is_far = peak > (1 + _FAR) * least
        if between is None or (1 + near) * least >= peak or k >= (_AT_MOST if is_far else _CLOSER):
            break
        search.trial(between)
    return int(least)


def least_peak_around(search: Search, regions: Sequence[Region], most_work: int) -> float | None:
    """The same for one set of regions; None if nothing is known."""
    found = _weakest(search, regions, most_work)
    return None if found is None else found[0]


def _weakest(search: Search, regions: Sequence[Region], most_work: int) -> tuple[float, Form | None] | None:
    """The same, with a plan whose measurement would tell more."""
    fewest = _fewest(search, regions, most_work)
    measured = search.trials_around(regions)
    if fewest is None or not measured:
        return None
    beside: dict[float, int] = {}
    for t in measured:
        size = t.form.nbytes
        beside[size] = min(t.trade.peak_nbytes - size, beside.get(size, t.trade.peak_nbytes))
    # Saving more leaves less in memory besides, except that it depends on which values: so take the minimum over all plans that save as
    # little.
    sizes = [0, *sorted(beside), inf]
    around = lambda high: min(b for size, b in beside.items() if size <= high)
    least, low, high = min(
        (max(low, fewest) + around(high), low, high) for low, high in pairwise(sizes) if high > fewest
    )
    path, start = search.path(regions), max(low, fewest)
    inside = [form for form in path if start < form.nbytes < high]
    if not inside and high < inf:
        # Between two choices that are optimal at some price, there are choices that differ only in some of the layers.
        below = max((form for form in path if form.nbytes <= start), key=lambda form: form.nbytes, default=None)
        more = below.within(int(start + high) // 2 - below.nbytes) if below is not None else None
        inside = [more] if more is not None and start < more.nbytes < high else []
    return max(least, search.floor(measured[0])), inside[len(inside) // 2] if inside else None


def _fewest(search: Search, regions: Sequence[Region], most_work: int) -> float | None:
    """The fewest bytes that a checkpoint around some regions saves with at most this much work; None if that is impossible."""
    key = tuple(regions), most_work
    if key not in search.fewest:
        path, parts = search.path(regions)[::-1], search.outer_parts(regions)
        if len(parts) == len(parts[0].spots) == 1:
            search.fewest[key] = parts[0].least_nbytes(most_work)
        else:
            work, sizes = [form.work for form in path], [form.nbytes for form in path]
            search.fewest[key] = None if most_work < work[0] else float(np.interp(most_work, work, sizes))
    return search.fewest[key]


def _between(path: Sequence[Form], allowed: int) -> float | None:
    """The work at a number of bytes, interpolated between the choices that are optimal at some price; None if all take more bytes."""
    sizes, work = [form.nbytes for form in path], [form.work for form in path]
    if allowed < sizes[0]:
        return None
    return float(np.interp(allowed, sizes, work))
