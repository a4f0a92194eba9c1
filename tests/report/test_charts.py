"""Charts as data: round ticks, the line of text, and the same amounts in each way of drawing."""

from itertools import combinations

import pytest

from jaxviz.report.charts import BYTES, FLOPS, SECONDS, Axis, FlameGraph, Line, OverTime, TradeOff
from jaxviz.report.figures import plot_flame, plot_over_time, plot_trade_off
from jaxviz.report.pictures import over_time

AXIS = Axis("bytes", BYTES, str)


@pytest.mark.parametrize(
    ("units", "top", "most", "texts"),
    [
        (BYTES, 106 * 2**20, 3, ["0", "50 MiB", "100 MiB"]),
        (BYTES, 76 * 2**20, 3, ["0", "20 MiB", "40 MiB", "60 MiB"]),
        (BYTES, 3, 3, ["0", "1 B", "2 B", "3 B"]),
        (BYTES, 2**30, 4, ["0", "0.5 GiB", "1 GiB"]),
        (FLOPS, 4.3e9, 3, ["0", "2 GFLOP", "4 GFLOP"]),
        (SECONDS, 0.0031, 3, ["0", "1 ms", "2 ms", "3 ms"]),
        (BYTES, 0, 3, ["0"]),
    ],
)
def test_ticks_are_round_numbers_in_one_unit(units, top, most, texts):
    ticks = Axis("", units, str).ticks(top, most)
    assert [text for _, text in ticks] == texts
    assert all(0 <= value <= top * (1 + 1e-9) for value, _ in ticks)


@pytest.mark.parametrize("top", [1, 7, 999, 1000, 1025, 5e5, 2**20 - 1, 2**20, 3.7e9, 9.99e11])
@pytest.mark.parametrize("most", [2, 3, 5])
def test_ticks_are_few_and_fill_the_axis(top, most):
    values = [value for value, _ in AXIS.ticks(top, most)]
    assert 2 <= len(values) <= most + 1
    assert values[-1] >= 0.3 * top


STEPS = [(10, 5 * i) for i in range(12)] + [(10, 60 - 5 * i) for i in range(12)]
PASSES = (("forward", 0), ("backward", 12), ("step", 20))
CHART = OverTime(STEPS, ("argument", "residual"), PASSES, "bytes alive", "peak 70 B", name="model")


def test_text_has_a_bar_for_each_part_of_each_pass():
    assert CHART.text(24) == "forward ▂▂▃▃▄▄▅▆▆▇▇█  backward ██▇▇▆▆▅▄  step ▄▃▃▂"
    assert CHART.text(24, top=700).count("▁") == 24
    other = Line([70, 10], (("forward", 0), ("backward", 1)), "compiled for cpu", "compiled")
    beside = OverTime(STEPS, CHART.kinds, PASSES, "", "", other=other, name="model")
    assert beside.text(24).splitlines() == ["model    ▂▂▃▃▄▄▅▆▆▇▇█ ██▇▇▆▆▅▄ ▄▃▃▂", "compiled ████████████ ▂▂▂▂▂▂▂▂"]


def test_a_pass_without_steps_is_not_drawn():
    forward = OverTime(STEPS, CHART.kinds, (("forward", 0), ("backward", len(STEPS))), "", "")
    assert forward.spans() == [("forward", 0, len(STEPS))]
    assert "backward" not in forward.text()
    assert OverTime([], CHART.kinds, (("forward", 0),), "", "").text() == ""


def test_a_figure_has_the_ticks_and_the_passes_of_the_drawing():
    axes = plot_over_time(CHART).axes[0]
    ticks = [text.get_text() for text in axes.get_yticklabels()]
    assert ticks == [text for _, text in CHART.axis.ticks(CHART.top, 5)]
    assert [line.get_xdata()[0] for line in axes.lines[:2]] == [11.5, 19.5]
    assert axes.get_xlabel() == "equation: forward, then backward, then step"
    assert all(f">{name}<" in over_time(CHART) for name, _ in PASSES)


@pytest.mark.parametrize(("n", "passes"), [(0, ()), (2, (("forward", 0),)), (2, (("forward", 0), ("backward", 2)))])
def test_a_figure_of_no_bytes(n, passes):
    other = Line([3, 1], (("forward", 0), ("backward", 1)), "compiled", "compiled")
    axes = plot_over_time(OverTime([(0, 0)] * n, CHART.kinds, passes, "", "", other=other)).axes[0]
    assert list(axes.lines[-1].get_ydata()) == ([3] if passes else [])


def texts_of(figure):
    figure.draw_without_rendering()
    (axes,) = figure.axes
    legend = axes.get_legend().get_texts() if axes.get_legend() is not None else []
    shown = [
        *axes.texts,
        *axes.get_xticklabels(),
        *axes.get_yticklabels(),
        axes.title,
        axes.xaxis.label,
        axes.yaxis.label,
        *legend,
    ]
    return [(t.get_text(), t.get_window_extent()) for t in shown if t.get_text()]


@pytest.mark.parametrize(
    "figure",
    [
        lambda: plot_over_time(CHART),
        lambda: plot_over_time(OverTime([(2**33, 0)], CHART.kinds, (("forward", 0),), "t", "p")),
        lambda: plot_trade_off(TradeOff(
            [(2**30, 0, "no checkpoints", "policy"), (2**28, 3e12, "nothing_saveable", "policy")], [(2**28, 3e12), (2**30, 0)], "trades",
            AXIS, Axis("FLOPs", FLOPS, str), "the best",
        )),
        lambda: plot_flame(FlameGraph(
            [("all", "jax", 0.0, 4.0, 0), ("model.py:12 loss", "user", 0.0, 3.0, 1), ("b", "jax", 3.0, 0.01, 1)],
            {"user": "#ffcc00", "jax": "#99ccff"}, {"user": "your lines", "jax": "JAX"}, "where the time of a function with a long name goes",
        )),
    ],
)  # fmt: skip
def test_labels_of_a_figure_do_not_collide(figure):
    for (text, a), (other, b) in combinations(texts_of(figure()), 2):
        assert not a.overlaps(b), (text, other)
