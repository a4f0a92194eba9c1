"""The charts of the trade-off between bytes and recomputation: checkpoint policies and plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jaxviz.features.remat.graph import Point, best_trades
from jaxviz.report.charts import BYTES, FLOPS, Axis, TradeOff
from jaxviz.report.tables import format_bytes, format_flops

if TYPE_CHECKING:
    from jaxviz.features.remat.plan import RematPlan
    from jaxviz.features.remat.policy_comparison import Outcome, PolicyComparison

_SAVED = Axis("residual bytes", BYTES, format_bytes)
_PEAK = Axis("modelled peak of the gradient", BYTES, format_bytes)
_AGAIN = Axis("FLOPs recomputed", FLOPS, lambda n: f"{format_flops(n)} recomputed")


def policies_by_bytes(found: PolicyComparison, plans: Sequence[Point]) -> TradeOff:
    """Policies beside the best plans, by the bytes saved; without plans, beside the best policies."""
    note = "plans with no more residual bytes" if plans else "the best of these"
    marks = _marks(found, lambda o: o.nbytes)
    return _chart(marks, best_trades({*plans, *found.points}), f"checkpoint policies of {found.function}", _SAVED, note)


def policies_by_peak(found: PolicyComparison) -> TradeOff:
    """Policies among the best plans, by the peak of the gradient; without plans, among the best policies."""
    marks = _marks(found, lambda o: o.peak_nbytes)
    plans = [Point(t.peak_nbytes, t.flops) for t in found.best_plans]
    note = "the best plans" if plans else "the best of these"
    line = best_trades({*plans, *(Point(int(x), int(y)) for x, y, *_ in marks)})
    return _chart(marks, line, f"checkpoint policies of {found.function}", _PEAK, note)


def plan_among_best(plan: RematPlan) -> TradeOff:
    """A plan among the best ones, and the function as written."""
    marks = [(plan.before.peak_nbytes, plan.before.flops, "as written", "no checkpoints")]
    if plan.after is not plan.before:
        marks.append((plan.peak_nbytes, plan.flops, "this plan", "plan"))
    line = [Point(t.peak_nbytes, t.flops) for t in plan.outline]
    return _chart(marks, line, f"plans for {plan.function}", _PEAK, "the best plans")


def _marks(found: PolicyComparison, size: Callable[[Outcome], int]) -> list[tuple[float, float, str, str]]:
    none = (size(found.without), found.without.flops, "no checkpoints", "no checkpoints")
    return [none, *((size(o), o.flops, o.name, "policy") for o in found.outcomes)]


def _chart(
    marks: Sequence[tuple[float, float, str, str]], line: Sequence[Point], title: str, x: Axis, note: str
) -> TradeOff:
    return TradeOff(marks, [(p.nbytes, p.flops) for p in line], title, x, _AGAIN, note)
