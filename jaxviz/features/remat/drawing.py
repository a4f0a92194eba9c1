"""The trade-off between residual bytes and recomputation, drawn at the top of reports in a notebook; `plot` draws it for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxviz.features.cost.report import format_flops
from jaxviz.features.remat.graph import Point, best_trades
from jaxviz.report.pictures import front
from jaxviz.report.tables import format_bytes

if TYPE_CHECKING:
    from jaxviz.features.remat.plan import RematPlan
    from jaxviz.features.remat.policy_comparison import PolicyComparison

_AXES = ("residual bytes", "FLOPs recomputed")
_PEAKS = ("modelled peak of the gradient", "FLOPs recomputed")
_WRITTEN = (format_bytes, lambda n: f"{format_flops(n)} recomputed")


def draw_policies(found: PolicyComparison, plans: Sequence[Point]) -> str:
    """Policies beside the best plans; without plans, beside the best policies."""
    none = (found.without.nbytes, found.without.flops, "no checkpoints", "no checkpoints")
    marks = [none, *((o.nbytes, o.flops, o.name, "policy") for o in found.outcomes)]
    note = "plans with no more residual bytes" if plans else "the best of these"
    line = best_trades({*plans, *found.points})
    return _front(marks, line, f"checkpoint policies of {found.function}", _AXES, note)


def draw_peaks(found: PolicyComparison) -> str:
    """Policies among the best plans, by the peak of the gradient; without plans, among the best policies."""
    none = (found.without.peak_nbytes, found.without.flops, "no checkpoints", "no checkpoints")
    marks = [none, *((o.peak_nbytes, o.flops, o.name, "policy") for o in found.outcomes)]
    plans = [Point(t.peak_nbytes, t.flops) for t in found.best_plans]
    note = "the best plans" if plans else "the best of these"
    line = best_trades({*plans, *(Point(int(x), int(y)) for x, y, *_ in marks)})
    return _front(marks, line, f"checkpoint policies of {found.function}", _PEAKS, note)


def draw_plan(plan: RematPlan) -> str:
    """A plan among the best ones, and the function as written."""
    marks = [(plan.before.peak_nbytes, plan.before.flops, "as written", "no checkpoints")]
    if plan.after is not plan.before:
        marks.append((plan.peak_nbytes, plan.flops, "this plan", "plan"))
    line = [Point(t.peak_nbytes, t.flops) for t in plan.outline]
    return _front(marks, line, f"plans for {plan.function}", _PEAKS, "the best plans")


def _front(
    marks: Sequence[tuple[float, float, str, str]],
    line: Sequence[Point],
    caption: str,
    axes: tuple[str, str],
    note: str,
) -> str:
    return front(marks, [(p.nbytes, p.flops) for p in line], caption, axes, _WRITTEN, note)
