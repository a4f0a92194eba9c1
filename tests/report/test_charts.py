"""Charts: the same amounts in each way of drawing. Ticks and lines of text are in a transcript."""

import html
import math
import re
from itertools import combinations

import pytest

from jaxviz.report.charts import (
    BYTES,
    FLOPS,
    NUMBERS,
    SIZE,
    TIME,
    Axis,
    Bars,
    Chain,
    ChainLink,
    Curve,
    Curves,
    FlameGraph,
    Lanes,
    OverlaidLine,
    OverTime,
    TradeOff,
    columns,
)
from jaxviz.report.figures import plot
from jaxviz.report.pictures import svg

AXIS = Axis("bytes", BYTES, str)


STEPS = [(10, 5 * i) for i in range(12)] + [(10, 60 - 5 * i) for i in range(12)]
PASSES = (("forward", 0), ("backward", 12), ("step", 20))
CHART = OverTime(STEPS, ("argument", "residual"), PASSES, "bytes alive", "peak 70 B", name="model")


@pytest.mark.parametrize("n", [5, 5000])
def test_a_step_is_as_wide_as_what_it_costs_and_its_peak_is_seen(n):
    """In both drawings, also if it has no width."""
    at, costs = 3, [1.0] * n
    costs[at] = 0.0
    edges = [sum(costs[:i]) for i in range(n + 1)]
    steps = [(10, 1000 if i == at else 5) for i in range(n)]
    chart = OverTime(steps, CHART.kinds, (("forward", 0),), "", "peak", edges=edges, x=Axis("FLOPs", FLOPS, str))
    axes = plot(chart).axes[0]
    assert axes.get_xlim() == (0, n - 1)
    assert max(axes.collections[1].get_paths()[0].vertices[:, 1]) == 1010
    assert axes.get_xlabel() == "FLOPs: forward"
    heights = [float(y) for y in re.findall(r"V([\d.]+)", svg(chart))]
    assert min(heights) == pytest.approx(float(re.search(r'cy="([\d.]+)"', svg(chart))[1]))


def test_a_figure_has_the_ticks_and_the_passes_of_the_drawing():
    axes = plot(CHART).axes[0]
    ticks = [text.get_text() for text in axes.get_yticklabels()]
    assert ticks == [text for _, text in CHART.axis.ticks(CHART.top, 5)]
    assert [line.get_xdata()[0] for line in axes.lines[:2]] == [12, 20]
    assert axes.get_xlabel() == "equation: forward, then backward, then step"
    assert all(f">{name}<" in svg(CHART) for name, _ in PASSES)


@pytest.mark.parametrize(("n", "passes"), [(0, ()), (2, (("forward", 0),)), (2, (("forward", 0), ("backward", 2)))])
def test_a_figure_of_no_bytes(n, passes):
    other = OverlaidLine([3, 1], (("forward", 0), ("backward", 1)), "compiled", "compiled")
    axes = plot(OverTime([(0, 0)] * n, CHART.kinds, passes, "", "", other=other)).axes[0]
    assert list(axes.lines[-1].get_ydata()) == ([3] if passes else [])


def texts_of(figure):
    figure.draw_without_rendering()
    (axes,) = figure.axes
    legend = axes.get_legend().get_texts() if axes.get_legend() is not None else []
    shown = [
        *axes.texts,
        *(
            [*axes.get_xticklabels(), *axes.get_yticklabels(), axes.xaxis.label, axes.yaxis.label]
            if axes.axison
            else ()
        ),
        axes.title,
        axes._left_title,
        *legend,
    ]
    return [(t.get_text(), t.get_window_extent()) for t in shown if t.get_text()]


STEP = Axis("step", NUMBERS, str, whole=True)
CURVES = Curves(
    [
        Curve([(i, 10.0 ** (i / 4 - 5)) for i in range(40)], "forward", "value", "the value of a long expression " * 2),
        Curve([(i, 0.0 if i < 20 else math.inf) for i in range(40)], "backward", "cotangent", "its cotangent"),
        Curve([(i, 1.0) for i in range(40)], "forward"),
    ],
    "norms", STEP, "norm", [(0, "the first"), (1, "nearly the first"), (39, "the last of all")], (1e-3, "little"),
    ["a note"],
)  # fmt: skip


def test_curves_in_text_are_as_high_as_in_both_drawings():
    value, cotangent, scale = CURVES.text(8).splitlines()
    assert value == "value      ▂▃▄▅▆▇▇█"
    assert cotangent == "cotangent  ▁▁▁▁"  # what is not finite is left out, and the third curve has no name
    assert scale == "           ▁ 0 to █ 10⁵, norm"
    axes = plot(CURVES).axes[0]
    heights = [CURVES.height(y) for _, y in CURVES.curves[0].points]
    assert list(axes.lines[0].get_ydata()) == heights
    assert heights == sorted(heights)
    assert [t.get_text() for t in axes.get_yticklabels()] == [text for _, text in CURVES.ticks(7)]
    assert CURVES.ticks(7)[:2] == [(0.0, "0"), (1e-4, "10⁻⁴")]
    assert CURVES.sentence.startswith(f"norms, norm: {CURVES.curves[0].label} from 1e-05 to 5.62e+04")
    assert CURVES.sentence.endswith("; the first; nearly the first; the last of all")


def test_what_is_counted_has_no_tick_between_two_of_it():
    assert STEP.ticks(2, 5) == [(0, "0"), (1, "1"), (2, "2")]
    assert Axis("time", NUMBERS, str).ticks(2, 5)[1] == (0.5, "0.5")


BARS = [(f"line {i}: jnp.tanh(x @ w)", 3 * 2**i, kind) for i in range(12) for kind in ("before", "after")]
STOPS = [ChainLink(f"model.py:{i}", "y = jnp.log(x) " * 9, "log → -inf in f32[2]", "NaN") for i in range(30)]
SPANS = [(f"step {i % 9}", 1.5 * i, [("trace", 0.2), ("compile", 1.0)]) for i in range(20)]


@pytest.mark.slow
def test_the_same_amounts_are_in_each_way_of_drawing():
    charts = [Bars(BARS, "bytes"), Bars(BARS, "bytes", beside=True), Lanes(SPANS, "when"), Chain(STOPS, "the way")]
    for chart in charts:
        written = [text for text, _ in texts_of(plot(chart))]
        drawn = html.unescape(svg(chart))
        assert chart.title in written
        for text, _ in getattr(chart, "legend", ()):
            assert text in written
            assert f">{text}<" in drawn
        assert f"<title>{chart.sentence[:1].upper()}{chart.sentence[1:]}.</title>" in drawn
    amounts = charts[1].texts(charts[1].bars[0][1])
    assert amounts == ["6.0 KiB", "6.0 KiB"]
    for text in (*amounts, charts[1].left_out):
        assert text in svg(charts[1])
        assert any(text in shown for shown, _ in texts_of(plot(charts[1])))
    assert charts[0].left_out == f"and 4 more, {2 * 3 * 15} B"
    assert charts[0].sentence == "bytes: the longest of 12 is line 11: jnp.tanh(x @ w) 12.0 KiB"
    assert charts[2].sentence == "when: 20 in 29.70 s, in 8 lanes; 2 others took longest, 4.80 s"
    assert charts[3].sentence.endswith(
        "in 30 steps: model.py:0 log → -inf in f32[2], then model.py:29 log → -inf in f32[2]"
    )
    lengths = sorted(patch.get_width() for patch in plot(Bars(BARS, "bytes", beside=True)).axes[0].patches)
    assert lengths == sorted([3 * 2.0**i for i in range(4, 12)] * 2)


@pytest.mark.parametrize(
    ("chart", "sentence"),
    [(Bars([], "t"), "t: nothing"), (Lanes([], "t"), "t: nothing"), (FlameGraph([], {}, {}, "t"), "t: nothing"),
     (Chain([], "t"), "t, in 0 steps: nothing"), (Bars([("a", 0, "plan")], "t"), "t: nothing"),
     (TradeOff([], [], "t", SIZE, TIME), "t, bytes against time: nothing"),
     (Curves([], "t", STEP, "norm"), "t: nothing"),
     (Curves([Curve([(0, math.inf)], "plan", "a")], "t", STEP, "norm"), "t: nothing"),
     (OverTime([], [], [], "t", "no peak"), "t, over 0 steps: no peak")],
)  # fmt: skip
def test_a_chart_of_nothing_is_an_empty_figure_and_no_drawing(chart, sentence):
    assert chart.sentence == sentence
    assert svg(chart) == ""
    assert [text for text, _ in texts_of(plot(chart)) if text == "t"] == ["t"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "figure",
    [
        lambda: plot(CHART),
        lambda: plot(Bars(BARS, "amounts of many lines")),
        lambda: plot(Bars(BARS, "amounts before and after", beside=True)),
        lambda: plot(Bars([("a" * 90, 1.5e-3, "trace"), ("b", 2e-6, "compile")], "time", TIME)),
        lambda: plot(Lanes(SPANS, "when each was compiled")),
        lambda: plot(Chain(STOPS, "the path of the first NaN")),
        lambda: plot(CURVES),
        lambda: plot(OverTime([(2**33, 0)], CHART.kinds, (("forward", 0),), "t", "p")),
        lambda: plot(TradeOff(
            [(2**30, 0, "no checkpoints", "policy"), (2**28, 3e12, "nothing_saveable", "policy")],
            [(2**28, 3e12), (2**30, 0)], "trades",
            AXIS, Axis("FLOPs", FLOPS, str), "the best",
        )),
        lambda: plot(FlameGraph(
            [("all", "jax", 0.0, 4.0, 0), ("model.py:12 loss", "user", 0.0, 3.0, 1), ("b", "jax", 3.0, 0.01, 1)],
            {"user": "#ffcc00", "jax": "#99ccff"}, {"user": "your lines", "jax": "JAX"},
            "where the time of a function with a long name goes",
        )),
    ],
)  # fmt: skip
def test_labels_of_a_figure_do_not_collide(figure):
    for (text, a), (other, b) in combinations(texts_of(figure()), 2):
        assert not a.overlaps(b), (text, other)


def test_a_column_shows_each_step_that_is_in_it_also_those_of_no_width():
    begins_and_end = [0, 0, 1, 3, 3, 3]  # five steps, the first and the last two of which have no width
    assert columns(begins_and_end, 2) == ([0, 1.5, 3], [slice(0, 3), slice(2, 5)])
    assert columns([0, 2, 4, 6], 3) == ([0, 2, 4, 6], [slice(0, 1), slice(1, 2), slice(2, 3)])
