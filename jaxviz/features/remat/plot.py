"""Plots of the trade-off between residual bytes and recomputation: checkpoint policies and plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxviz.features.remat.graph import Point
from jaxviz.report.figures import Picture, unit_of
from jaxviz.report.pictures import COLOURS
from jaxviz.report.tables import printable

if TYPE_CHECKING:
    from jaxviz.features.remat.plan import RematPlan
    from jaxviz.features.remat.policy_comparison import PolicyComparison


def plot_policies(found: PolicyComparison, front: Sequence[Point], axes: Axes | None = None) -> Figure:
    """See `PolicyComparison.plot`."""
    places: dict[Point, list[str]] = {}
    for o in (found.without, *found.outcomes):
        name = "no checkpoints" if o.derivation is found.without.derivation else o.name
        names = places.setdefault(Point(o.nbytes, o.flops), [])
        names += [name] if name not in names else []
    marks = {point: ", ".join(names) for point, names in places.items()}
    return _draw_trades(marks, front, f"checkpoint policies of {found.function}", axes)


def plot_plan(plan: RematPlan, axes: Axes | None = None) -> Figure:
    """See `RematPlan.plot`."""
    point = lambda t: Point(t.peak_nbytes, t.flops)
    marks = {point(plan.before): "as written", point(plan.after): "this plan"}
    best = [point(t) for t in plan.front]
    return _draw_trades(marks, best, f"plans for {plan.function}", axes, "at the modelled peak")


def _draw_trades(
    marks: Mapping[Point, str],
    front: Sequence[Point],
    title: str,
    axes: Axes | None,
    what: str = "of residuals",
) -> Figure:
    """Bytes against FLOPs recomputed: points with names, and the best plans as a line."""
    if axes is None:
        axes = Picture(figsize=(8, 4.5), layout="constrained").subplots()
    figure = cast("Figure", axes.figure)
    largest = max([*(p.nbytes for p in (*marks, *front)), 1])
    unit, size = unit_of(largest)
    most = max([*(p.flops for p in (*marks, *front)), 1])
    flop, scale = next((u, s) for u, s in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1)) if most >= s)
    if front:
        axes.step(
            [p.nbytes / size for p in front], [p.flops / scale for p in front], "-o", where="post", color=COLOURS["argument"],
            linewidth=1.2, markersize=3, label="the best plans (plan_remat)",
        )  # fmt: skip
        axes.legend(loc="best", frameon=False, fontsize=9)
    for point, name in marks.items():
        x, y = point.nbytes / size, point.flops / scale
        axes.plot(x, y, "o", color=COLOURS["policy"], markersize=8)
        to_left = point.nbytes > 0.6 * largest
        axes.annotate(
            printable(name, 44), (x, y), xytext=(-8 if to_left else 8, 6), textcoords="offset points",
            ha="right" if to_left else "left", fontsize=9, parse_math=False,
        )  # fmt: skip
    axes.set_xlim(0, 1.05 * largest / size)
    axes.set_ylim(-0.04 * most / scale, 1.15 * most / scale)
    axes.set_xlabel(f"{unit} {what}")
    axes.set_ylabel(f"{flop}FLOP recomputed")
    axes.set_title(title, loc="left", fontsize=11, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
