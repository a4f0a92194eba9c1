"""Plans for a peak in XLA's bytes: planned with the model, compiled, and corrected until the compiled peak fits.

XLA's peak and the model's differ, in both directions, and not by the same share for each plan. So the budget that the
model gets is corrected by what was compiled, a few times, and the cheapest compiled plan that fits is taken.

A smaller budget never gets a higher peak than a larger one, in whichever order they are asked for: what was returned
for the budgets next to one limits what is returned for it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import jax

from jaxviz.analysis.budgets import least_size
from jaxviz.features.remat.plan import RematPlan
from jaxviz.features.remat.tuning import NEAR, TRIALS, WORTH, is_lower
from jaxviz.features.remat.verify import MOST, CompiledFigures, Verification, figures_of
from jaxviz.ir.sharing import cleared
from jaxviz.report.tables import counted, exactly, format_bytes

if TYPE_CHECKING:
    from jaxviz.features.remat.planning import Planning


@dataclass(frozen=True, slots=True)
class _Way:
    """How the checkpoints of a plan are placed and written.

    Args:
      at_calls: whether they are around calls and in loops only, and not around the whole function.
      in_branches: whether each one outside of a loop is in a branch that is always taken.
    """

    at_calls: bool
    in_branches: bool


_WAYS = tuple(_Way(at_calls, in_branches) for at_calls in (False, True) for in_branches in (False, True))


_Asked = tuple[int, bool]
"""What the model was asked for: a plan within this many bytes, or with 0 the lowest peak; and whether at calls."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What was returned for a budget: all that the model was asked for until it gave the plan, since that depends on
    what was measured before; the way, and the compiled peak."""

    asked: tuple[_Asked, ...]
    way: _Way
    peak: int


@cleared
@lru_cache(maxsize=64)
def _answers(_digest: str) -> dict[int, _Answer]:
    """The answers for a function by budget: only numbers, so that no function and no array is kept."""
    return {}


@dataclass(frozen=True, eq=False, slots=True)
class _Candidate:
    """A plan that was compiled, and its figures."""

    plan: RematPlan
    figures: CompiledFigures
    answer: _Answer

    @property
    def peak(self) -> int:
        return self.figures.peak_nbytes

    @property
    def rank(self) -> tuple[int, int]:
        return self.plan.after.work, self.peak


def within_compiled(planning: Planning, budget: int, done: Callable[[], None]) -> RematPlan:
    """The plan with the least work among those compiled whose compiled peak fits.

    Args:
      done: is called after each compilation.

    Raises:
      ValueError: none fits; the message has the lowest compiled peak that was reached.
      the errors of compiling.
    """
    correction = _Correction(planning, budget, done)
    answers = _answers_of(planning)
    above = min((b for b in answers if b >= budget), default=None)
    below = max((b for b in answers if b < budget), default=None)
    if above is not None and answers[above].peak <= budget:
        correction.again(answers[above])
    if not correction.fitting:
        correction.correct()
    lowest = answers[below].peak if below is not None else 0
    if below is not None and not any(c.peak >= lowest for c in correction.fitting):
        correction.again(answers[below])
    best = min((c for c in correction.fitting if c.peak >= lowest), key=lambda c: c.rank, default=None)
    if best is None:
        lowest_one = min(correction.candidates, key=lambda c: c.peak)
        answers.setdefault(lowest_one.peak, lowest_one.answer)  # the budget that the message names
        raise ValueError(correction.failure)
    answers[budget] = best.answer
    return correction.plan(best)


class _Correction:
    """The search for one budget. See `within_compiled`."""

    def __init__(self, planning: Planning, budget: int, done: Callable[[], None]):
        self.planning = planning
        self._search = planning.search
        self.budget = budget
        self.done = done
        self.written = self._figures(planning.as_written, False)
        as_written = _Answer((), _WAYS[0], self.written.peak_nbytes)
        self.candidates = [_Candidate(planning.as_written, self.written, as_written)]
        self.asked: list[_Asked] = []
        self._is_around_all = False
        """Whether a plan had a checkpoint around the whole function."""

    @property
    def fitting(self) -> list[_Candidate]:
        return [c for c in self.candidates if c.peak <= self.budget]

    def again(self, answer: _Answer) -> None:
        """Plans once more what was returned for another budget."""
        for room, at_calls in answer.asked[:-1]:
            with contextlib.suppress(ValueError):
                _ = self.planning.within_memory(room, at_calls) if room else self.planning.lowest_peak(at_calls)
        for room, _ in answer.asked[-1:]:
            self._compiled(room, answer.way)

    def correct(self) -> None:
        """Compiles plans until one fits, in one way after the other; in the end those with the lowest peak of the
        model."""
        for attempt in (self._correct, self._leanest):
            for way in _WAYS:
                if not self.fitting and (self._is_around_all or not way.at_calls):
                    attempt(way)

    def _leanest(self, way: _Way) -> None:
        with contextlib.suppress(ValueError):
            self._compiled(self._lowest_peak(way), way)

    def _lowest_peak(self, way: _Way) -> int:
        self.asked.append((0, way.at_calls))
        return self.planning.lowest_peak(way.at_calls)

    def _correct(self, way: _Way) -> None:
        """Compiles plans for several budgets of the model, each corrected by what the ones before came to."""
        written = self._search.written.peak_nbytes
        room: int | None = self._corrected(written, self.written.peak_nbytes)
        peaks: dict[int, int] = {}
        while room is not None and room not in peaks and len(peaks) < TRIALS:
            is_last = len(peaks) == TRIALS - 1 and min(peaks.values()) > self.budget
            room = self._lowest_peak(way) if is_last else min(room, written)
            try:
                candidate = self._compiled(room, way)
            except ValueError:
                room = self._lowest_peak(way)
                if room in peaks:
                    return
                candidate = self._compiled(room, way)
            if candidate is None or self._is_undone(candidate):
                return
            peaks[room] = candidate.peak
            room = self._next(peaks, room, written)

    def _next(self, peaks: Mapping[int, int], last: int, highest: int) -> int | None:
        """The next budget of the model; None if the compiled peak is close to the budget, or cannot come closer."""
        fits = max((r for r, peak in peaks.items() if peak <= self.budget), default=None)
        fails = min((r for r, peak in peaks.items() if peak > self.budget), default=None)
        if fits is not None and (peaks[fits] >= (1 - NEAR) * self.budget or fits >= highest):
            return None
        if fits is None or fails is None or fails < fits:
            return self._corrected(last, peaks[last])
        if fails - fits < WORTH * fails:
            return None
        return (fits + fails) // 2

    def _corrected(self, room: int, peak: int) -> int:
        """The budget of the model at which the compiled peak would fit, whether both change by the same share or by the
        same bytes."""
        by_share = int(room * self.budget / max(peak, 1))
        return min(by_share, room - (peak - self.budget)) if peak > self.budget else by_share

    def _is_undone(self, candidate: _Candidate) -> bool:
        """Whether XLA undoes a plan in the way it is written, so that no other budget of the model is of use."""
        fall = candidate.plan.before.peak_nbytes - candidate.plan.peak_nbytes
        is_enough = self.written.peak_nbytes - candidate.peak >= MOST * fall
        return not candidate.answer.way.in_branches and not is_enough and candidate.peak > self.budget

    def _compiled(self, room: int, way: _Way) -> _Candidate | None:
        """The plan for a budget of the model, compiled; None if this way makes no difference to it.

        Raises:
          ValueError: the model has no such plan.
        """
        self.asked.append((room, way.at_calls))
        plan = self.planning.within_memory(room, way.at_calls)
        is_around_all = self._search.root in plan.regions
        self._is_around_all |= is_around_all
        if way.in_branches and (is_around_all or not self._search.is_unrolled(plan.regions)):
            return None
        figures = self._figures(plan, way.in_branches)
        self.candidates.append(_Candidate(plan, figures, _Answer(tuple(self.asked), way, figures.peak_nbytes)))
        return self.candidates[-1]

    def _figures(self, plan: RematPlan, in_branches: bool) -> CompiledFigures:
        before = len(self._search.compiled)
        figures = figures_of(self._search, plan.program, in_branches)
        if len(self._search.compiled) > before:
            self.done()
        return figures

    @property
    def failure(self) -> str:
        least, written = min(c.peak for c in self.candidates), self.written.peak_nbytes
        to_type = f'. Write memory="{least_size(least, written)}"' if is_lower(least, written) else ""
        return (
            f"no plan was found for {self._search.call.name} whose compiled peak fits in {exactly(self.budget)}: the "
            f"lowest of {counted(len(self.candidates), 'compiled program')} is {exactly(least)}; as written it is "
            f"{exactly(written)}{to_type}"
        )

    def plan(self, chosen: _Candidate) -> RematPlan:
        """The report of a plan, with XLA's figures."""
        plan, in_branches = chosen.plan, chosen.answer.way.in_branches
        verification = Verification(
            plan.function, jax.default_backend(), self.written, chosen.figures, (plan.before, plan.after)
        )
        if verification.differs:
            # What the branches hold is not in the model of the plan.
            verification = replace(
                verification, beside=self._search.modelled(None if in_branches else plan.trial).beside()
            )
        notes = *plan.notes, *filter(None, [verification.differs]), *chosen.figures.notes
        bound = f"compiled peak within {format_bytes(self.budget)}"
        return replace(
            plan,
            bound=bound,
            notes=notes,
            most_peak=None,  # which was modelled
            compiled=(self.written, chosen.figures),
            in_branches=in_branches,
        )


def _answers_of(planning: Planning) -> dict[int, _Answer]:
    """The answers for the same function, of the same types, on this backend."""
    search = planning.search
    parts = (
        str(search.derivation.primal), search.derivation.nonzeros, search.derivation.placed, jax.default_backend(),
        search.recompute_collectives, search.offload, search.step is not None and str(search.step.traced),
    )  # fmt: skip
    return _answers(hashlib.blake2b(repr(parts).encode()).hexdigest())
