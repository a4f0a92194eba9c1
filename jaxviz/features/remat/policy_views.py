"""Compared policies in other reports: as memory over time, and next to plans with no more residual bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxviz.features.memory.model import KINDS
from jaxviz.features.memory.timeline import MemoryTimeline, peak_text
from jaxviz.features.remat.charts import policies_by_bytes
from jaxviz.features.remat.graph import Point, best_trades
from jaxviz.features.remat.policy_comparison import PolicyComparison, number, width_of
from jaxviz.report.charts import Bars, TradeOff
from jaxviz.report.differences import Figure
from jaxviz.report.report import Drawn, Part, Report, Table
from jaxviz.report.tables import format_bytes, printable


@dataclass(frozen=True, eq=False, repr=False)
class MemoryComparison(Report, schema="compare_policies.memory"):
    """The modelled memory of a function's gradient over time, under each of several policies, on one scale.

    Args:
      policies: the comparison.
      xla: whether to include XLA's memory, for which each is compiled.
    """

    policies: PolicyComparison
    xla: bool = False

    @property
    def summary(self) -> str:
        """memory of the gradient of `loss` in `params` under 2 policies: nothing_saveable peaks 3.6 MiB (43%) below dots_saveable."""
        outcomes = self.policies.outcomes
        head = f"memory of the {self.policies.without.derivation.about} under {len(outcomes)} polic{'ies' if len(outcomes) > 1 else 'y'}"
        low, high = (pick(outcomes, key=lambda o: o.peak_nbytes) for pick in (min, max))
        less = high.peak_nbytes - low.peak_nbytes
        if not less:
            return f"{head}: {'all peak' if len(outcomes) > 1 else 'it peaks'} at {format_bytes(high.peak_nbytes)}"
        return f"{head}: {low.name} peaks {format_bytes(less)} ({100 * less / high.peak_nbytes:.0f}%) below {high.name}"

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """The bytes alive at each peak, by kind; for two policies also the difference."""
        alive = [_at_peak(o.timeline) for o in self.policies.outcomes]
        heads = ("alive at the peak", *(o.name for o in self.policies.outcomes), *(["difference"] * (len(alive) == 2)))
        rows = []
        for kind, sizes in zip((*KINDS, "all"), (*zip(*alive, strict=True), tuple(map(sum, alive))), strict=True):
            if any(sizes):
                less = [Figure(kind, sizes[0], sizes[1], "bytes").cells[-1]] if len(alive) == 2 else []
                rows.append((kind, *map(format_bytes, sizes), *less))
        return heads, rows

    def _chart(self) -> Bars:
        alive = ((o.name, zip(KINDS, _at_peak(o.timeline), strict=True)) for o in self.policies.outcomes)
        rows = [(name, n, kind) for name, sizes in alive for kind, n in sizes if n]
        return Bars(rows, f"bytes alive at the modelled peak of the gradient of {self.policies.function}")

    def _parts(self) -> Iterator[Part]:
        outcomes = self.policies.outcomes
        top = max(o.peak_nbytes for o in outcomes)
        heads, rows = self._table()
        is_wide = width_of(heads, rows) > 100
        if is_wide:
            heads = (heads[0], *(str(i + 1) for i in range(len(outcomes))))
        for i, o in enumerate(outcomes):
            yield f"{f'{i + 1} ' * is_wide}{o.name}: {peak_text(o.timeline)}"
            yield Drawn(f"  {o.timeline.curve(top)}")
        yield Table(heads, rows, "<" + ">" * (len(heads) - 1))
        if self.xla:
            yield self.policies.compare()

    _data = ("policies.function", ("policies=policies.outcomes", ("policy=name", "*timeline")))


def _at_peak(timeline: MemoryTimeline) -> tuple[int, ...]:
    return timeline.steps[timeline.peak].nbytes if timeline.steps else (0,) * len(KINDS)


@dataclass(frozen=True, eq=False, repr=False)
class PlanComparison(Report, schema="compare_policies.plans"):
    """Policies compared with plans of `plan_remat` that have no more residual bytes.

    Args:
      policies: the comparison.
    """

    policies: PolicyComparison

    @property
    def summary(self) -> str:
        """plans for the gradient of `loss` in `params` at the bytes of 2 policies: up to 31% fewer FLOPs recomputed."""
        fewer = [
            1 - plan.flops / o.flops
            for o, plan in zip(self.policies.outcomes, self.policies.plans, strict=True)
            if plan is not None and o.flops
        ]
        n = len(self.policies.outcomes)
        head = (
            f"plans for the {self.policies.without.derivation.about} at the bytes of {n} polic{'ies' if n > 1 else 'y'}"
        )
        return f"{head}: up to {max(fewer):.0%} fewer FLOPs recomputed" if max(fewer, default=0) > 0 else head

    def _chart(self) -> TradeOff:
        plans = [Point(p.nbytes, p.flops) for p in self.policies.plans if p is not None]
        return policies_by_bytes(self.policies, best_trades({*plans}))

    def _parts(self) -> Iterator[Table]:
        rows = []
        for o, plan in zip(self.policies.outcomes, self.policies.plans, strict=True):
            policy = (printable(o.name, 34), format_bytes(o.nbytes), number(o.flops))
            if plan is None:
                rows.append((*policy, "", "", "no plan so small"))
            else:
                gain = f"{100 * (plan.flops - o.flops) / o.flops:+.0f}% FLOPs" if plan.flops != o.flops else "none"
                rows.append((*policy, format_bytes(plan.nbytes), number(plan.flops), gain))
        yield Table(("policy", "kept", "extra FLOPs", "plan saves", "its FLOPs", "gain"), rows, "<>>>><")

    _data = ("policies.function", "policies=policies.outcomes", ("plans=policies.plans", ("nbytes", "flops")))
