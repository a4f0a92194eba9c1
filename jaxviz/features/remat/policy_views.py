"""Policies side by side in the terms of other reports: as memory over time, and beside the plans that keep no more bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxviz.analysis.walk import location_of
from jaxviz.features.memory.model import KINDS
from jaxviz.features.memory.timeline import MemoryTimeline
from jaxviz.features.remat.policies import paragraph
from jaxviz.features.remat.policy_comparison import PolicyComparison, cut, number, width_of
from jaxviz.report.tables import format_bytes, html_table, short_location, text_table, wrapped


@dataclass(frozen=True, eq=False)
class MemoryComparison:
    """The modelled memory of a function's gradient over time, under each of several policies, on one scale.

    Args:
      policies: the comparison.
      xla: whether to say what XLA takes, for which each is compiled.
    """

    policies: PolicyComparison
    xla: bool = False

    @property
    def summary(self) -> str:
        """`memory of loss under 2 policies: nothing_saveable peaks 3.6 MiB (43%) below dots_saveable`."""
        outcomes = self.policies.outcomes
        head = f"memory of {self.policies.function} under {len(outcomes)} polic{'ies' if len(outcomes) > 1 else 'y'}"
        low, high = (pick(outcomes, key=lambda o: o.peak_nbytes) for pick in (min, max))
        less = high.peak_nbytes - low.peak_nbytes
        if not less:
            return f"{head}: {'all peak' if len(outcomes) > 1 else 'it peaks'} at {format_bytes(high.peak_nbytes)}"
        return f"{head}: {low.name} peaks {format_bytes(less)} ({100 * less / high.peak_nbytes:.0f}%) below {high.name}"

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """What is alive at each peak, by kind; of two policies the difference too."""
        alive = [_at_peak(o.timeline) for o in self.policies.outcomes]
        heads = ("alive at the peak", *(o.name for o in self.policies.outcomes), *(["difference"] * (len(alive) == 2)))
        rows = []
        for kind, sizes in zip((*KINDS, "all"), (*zip(*alive, strict=True), tuple(map(sum, alive))), strict=True):
            if any(sizes):
                less = [_signed(sizes[1] - sizes[0])] if len(alive) == 2 else []
                rows.append((kind, *map(format_bytes, sizes), *less))
        return heads, rows

    def __str__(self) -> str:
        outcomes = self.policies.outcomes
        top = max(o.peak_nbytes for o in outcomes)
        heads, rows = self._table()
        is_wide = width_of(heads, rows) > 100
        if is_wide:
            heads = (heads[0], *(str(i + 1) for i in range(len(outcomes))))
        lines = [wrapped(self.summary)]
        for i, o in enumerate(outcomes):
            lines += [wrapped(f"{f'{i + 1} ' * is_wide}{o.name}: {_peak(o.timeline)}"), f"  {_curve(o.timeline, top)}"]
        lines.append(text_table(heads, rows, "<" + ">" * (len(heads) - 1)))
        return "\n".join([*lines, *([wrapped(self.policies.compare())] if self.xla else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        heads, rows = self._table()
        table = html_table(self.summary, heads, rows, (False, *[True] * (len(heads) - 1)))
        return table + (paragraph(self.policies.compare()) if self.xla else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for programs."""
        return {
            "function": self.policies.function,
            "policies": [{"policy": o.name, **o.timeline.to_dict()} for o in self.policies.outcomes],
        }


def _at_peak(timeline: MemoryTimeline) -> tuple[int, ...]:
    return timeline.steps[timeline.peak].nbytes if timeline.steps else (0,) * len(KINDS)


def _peak(timeline: MemoryTimeline) -> str:
    """`peak 1.2 MiB in the backward pass at mul (model.py:12)`."""
    if not timeline.steps:
        return "nothing is computed"
    step = timeline.steps[timeline.peak]
    at = location_of(step.equation, step.within)
    where = f" ({short_location(at)})" if at is not None else ""
    direction = "backward" if step.is_backward else "forward"
    return f"peak {format_bytes(step.total)} in the {direction} pass at {step.equation.primitive.name}{where}"


def _curve(timeline: MemoryTimeline, top: int, width: int = 72) -> str:
    """The timeline in one line of text, as high as `top` bytes."""
    parts = []
    for name, is_backward in (("forward", False), ("backward", True)):
        totals = [s.total for s in timeline.steps if s.is_backward == is_backward]
        columns = min(len(totals), max(1, round(width * len(totals) / max(len(timeline.steps), 1))))
        highest = [max(part.tolist()) for part in np.array_split(np.asarray(totals), columns)] if totals else []
        parts.append(f"{name} {''.join('▁▂▃▄▅▆▇█'[min(7, int(8 * n / (top + 1)))] for n in highest)}")
    return "  ".join(parts)


def _signed(n: int) -> str:
    return f"{'-' if n < 0 else '+' * (n > 0)}{format_bytes(abs(n))}"


@dataclass(frozen=True, eq=False)
class PlanComparison:
    """Policies beside the plans of `plan_remat` that keep no more bytes than they do.

    Args:
      policies: the comparison.
    """

    policies: PolicyComparison

    @property
    def summary(self) -> str:
        """`plans for loss at the bytes of 2 policies: at most 31% fewer FLOPs computed again`."""
        fewer = [
            1 - plan.flops / o.flops
            for o, plan in zip(self.policies.outcomes, self.policies.plans, strict=True)
            if plan is not None and o.flops
        ]
        n = len(self.policies.outcomes)
        head = f"plans for {self.policies.function} at the bytes of {n} polic{'ies' if n > 1 else 'y'}"
        return f"{head}: up to {max(fewer):.0%} fewer FLOPs computed again" if max(fewer, default=0) > 0 else head

    def _rows(self) -> Sequence[tuple[str, ...]]:
        rows = []
        for o, plan in zip(self.policies.outcomes, self.policies.plans, strict=True):
            policy = (o.name, format_bytes(o.nbytes), number(o.flops))
            if plan is None:
                rows.append((*policy, "", "", "no plan so small"))
            else:
                gain = f"{100 * (plan.flops - o.flops) / o.flops:+.0f}% FLOPs" if plan.flops != o.flops else "none"
                rows.append((*policy, format_bytes(plan.nbytes), number(plan.flops), gain))
        return rows

    def __str__(self) -> str:
        rows = [(cut(r[0], 34), *r[1:]) for r in self._rows()]
        return "\n".join([wrapped(self.summary), text_table(_PLANS, rows, "<>>>><")])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self.summary, _PLANS, self._rows(), (False, True, True, True, True, False))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for programs."""
        return {
            "function": self.policies.function,
            "policies": [o.to_dict() for o in self.policies.outcomes],
            "plans": [None if p is None else {"nbytes": p.nbytes, "flops": p.flops} for p in self.policies.plans],
        }


_PLANS = ("policy", "kept", "extra FLOPs", "plan keeps", "its FLOPs", "gain")
