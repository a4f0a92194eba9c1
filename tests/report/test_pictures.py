"""Drawings: well-formed, without scripts and ids, without overlaps, and with the amounts that they show. Those of
reports are in a transcript."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import transcripts
from drawings import drawn, is_sound, texts

import jaxviz
from jaxviz.report import kinds, pictures
from jaxviz.report.charts import (
    BYTES,
    FLOPS,
    NUMBERS,
    Axis,
    Bars,
    Chain,
    ChainLink,
    Curve,
    Curves,
    FlameGraph,
    Lanes,
    OverTime,
    TradeOff,
)
from jaxviz.report.kinds import COLOURS
from jaxviz.report.pictures import columns, fitted, svg
from jaxviz.report.tables import format_bytes


def watched():
    with jaxviz.watch_compilations() as seen:
        step = jax.jit(lambda x: jnp.cos(x) * 3)
        for n in (3, 4):
            step(jnp.ones(n))
    return seen, step


HOSTILE = '</svg><script>alert(1)</script>"&\u202e\x1b[31m\ud800'


def hostile():
    def f(x):
        return (jnp.sin(x[HOSTILE]) ** 2).sum()

    f.__name__ = f.__qualname__ = HOSTILE
    return f, {HOSTILE: jnp.ones((8, 8))}


@pytest.mark.parametrize(
    "make",
    [
        jaxviz.residuals, jaxviz.memory, jaxviz.cost, jaxviz.compare_policies,
        lambda f, x: jaxviz.policies(jax.checkpoint(f), x),
        lambda f, x: jaxviz.plan_remat(f, x, budget=0.9),
        lambda f, x: jaxviz.find_nan(f, {HOSTILE: jnp.array([jnp.inf, 1.0])}),
        lambda f, x: jaxviz.donation(jax.jit(lambda x: {HOSTILE: x[HOSTILE] + 1}, donate_argnums=0), x),
        lambda f, x: replace(jaxviz.explain_recompile(watched()[1]), name=HOSTILE),
    ],
)  # fmt: skip
def test_names_from_programs_are_text(make):
    f, x = hostile()
    page = make(f, x)._repr_html_()
    is_sound(drawn(page))
    assert "<script" not in page
    assert page.count("</svg>") == 1


def lengths(picture, kind):
    return [
        float(e.get("width"))
        for e in picture.iter("rect")
        if e.get("fill") == COLOURS[kind] and e.get("height") != "11"
    ]


def test_bars_are_as_long_as_their_amounts():
    picture = drawn(
        svg(Bars([("a", 100, "residual"), ("a", 50, "result"), ("b", 75, "residual"), ("none", 0, "dummy")], "amounts"))
    )
    first, second = lengths(picture, "residual")
    (third,) = lengths(picture, "result")
    assert second / first == pytest.approx(0.75, abs=0.01)
    assert third / first == pytest.approx(0.5, abs=0.01)
    assert texts(picture) == ["amounts", "residual 175 B", "result 50 B", "a", "150 B", "b", "75 B"]
    beside = drawn(svg(Bars([("a", 100, "before"), ("a", 25, "after")], "amounts", beside=True)))
    assert lengths(beside, "after")[0] / lengths(beside, "before")[0] == pytest.approx(0.25, abs=0.01)
    assert svg(Bars([], "amounts")) == svg(Bars([("a", 0, "dummy")], "amounts")) == ""


def test_bars_that_are_left_out_are_summed_up():
    picture = drawn(svg(Bars([(f"line {i}", 2**i, "residual") for i in range(12)], "amounts", most=3)))
    assert texts(picture)[-1] == f"and 9 more, {format_bytes(2**9 - 1)}"
    assert f"residual {format_bytes(2**12 - 1)}" in texts(picture)
    is_sound(picture)


def memory_of(steps, turn, notes=()):
    return OverTime(steps, ("argument", "temporary"), (("forward", 0), ("backward", turn)), "bytes", "peak here", notes)


def trades(marks, line):
    return TradeOff(marks, line, "trades", Axis("bytes", BYTES, str), Axis("FLOPs", FLOPS, str), "the best")


@pytest.mark.parametrize("n", [1, 2, 7, 5000])
@pytest.mark.parametrize("share", [0.0, 0.37, 1.0])
def test_a_curve_has_its_peak_where_it_is(n, share):
    at = min(n - 1, int(share * n))
    steps = [(10, 1000 if i == at else i % 5) for i in range(n)]
    picture = drawn(svg(memory_of(steps, n // 2, ("a note",))))
    is_sound(picture)
    (mark,) = picture.iter("circle")
    area = next(e for e in picture.iter("path") if e.get("fill") == COLOURS["temporary"])
    ys = [float(y) for y in re.findall(r"(?:V|M[\d.]+ )([\d.]+)", area.get("d"))]
    xs = [float(x) for x in re.findall(r"(?:H|M)([\d.]+)", area.get("d"))]
    assert max(xs) == pictures.WIDTH - 1
    assert 0 < min(xs) < 100  # beside the amounts
    assert float(mark.get("cx")) == pytest.approx(min(xs) + (max(xs) - min(xs)) * (at + 0.5) / n, abs=2)
    assert min(ys) == pytest.approx(float(mark.get("cy")))
    assert {"temporary 1000 B", "argument 10 B"} <= set(texts(picture))
    assert {"0", "500 B", "1000 B"} <= set(texts(picture))
    assert svg(memory_of([], 0)) == svg(memory_of([(0, 0)], 0)) == ""


def test_a_curve_has_no_more_corners_than_steps_that_differ():
    flat = svg(memory_of([(10, 20)] * 300, 150))
    assert len(flat) < len(svg(memory_of([(10, i) for i in range(300)], 150))) / 2


def test_a_timeline_has_each_lane_in_its_time():
    picture = drawn(
        svg(Lanes([("f", 10.0, [("trace", 1.0), ("compile", 2.0)]), ("g", 16.0, [("compile", 4.0)])], "compiled"))
    )
    is_sound(picture)
    left = {
        e.get("y"): float(e.get("x"))
        for e in picture.iter("rect")
        if e.get("fill") == COLOURS["compile"] and e.get("height") != "11"
    }
    first, second = (left[y] for y in sorted(left, key=float))
    long = lengths(picture, "compile")
    assert long[1] == pytest.approx(2 * long[0], abs=0.1)
    assert (second - first) / long[0] == pytest.approx((16 - 11) / 2, abs=0.05)
    assert {"0", "10 s"} <= set(texts(picture))
    many = drawn(svg(Lanes([(f"f{i}", float(i), [("compile", i + 1.0)]) for i in range(30)], "compiled", most=5)))
    is_sound(many)
    assert "26 others" in texts(many)
    assert svg(Lanes([("f", 0.0, [])], "compiled")) == ""


def test_bars_of_a_flame_graph_lie_below_what_they_are_a_part_of():
    rows = [
        ("all", "phase", 0.0, 4.0, 0),
        ("a", "user", 0.0, 3.0, 1),
        ("b", "jax", 3.0, 1.0, 1),
        ("c", "jax", 1.0, 2.0, 2),
    ]
    colours = {"phase": "#cccccc", "user": "#ffcc00", "jax": "#99ccff"}
    picture = drawn(svg(FlameGraph(rows, colours, {"user": "your lines", "jax": "JAX"}, "where time goes")))
    is_sound(picture)
    whole, a, b, c = [e for e in picture.iter("rect") if float(e.get("height")) > 12]
    of = lambda e, *names: [float(e.get(n)) for n in names]
    assert of(c, "x")[0] == pytest.approx(of(whole, "width")[0] / 4, abs=1)
    assert of(b, "x")[0] == pytest.approx(3 * of(whole, "width")[0] / 4, abs=1)
    assert of(whole, "y") < of(a, "y") == of(b, "y") < of(c, "y")
    assert {"your lines", "JAX", "0", "4 s"} <= set(texts(picture))
    assert svg(FlameGraph([], colours, {}, "")) == ""


def test_points_that_would_cover_each_other_are_one():
    marks = [(100, 0, "a", "policy"), (100, 0, "b", "policy"), (20, 50, "c" * 80, "plan")]
    picture = drawn(svg(trades(marks, [(20, 50), (100, 0)])))
    is_sound(picture)
    assert "1,2" in texts(picture)
    assert {"50 B", "100 B", "20 FLOP", "the best"} - {t.removeprefix("─ ") for t in texts(picture)} == set()
    assert svg(trades([], [])) == ""
    many = [(i * 10, 100 - i, f"policy {i}", "policy") for i in range(12)]
    is_sound(drawn(svg(trades(many, []))))


STEPS = Axis("step", NUMBERS, str, whole=True)


def numbers(path):
    return [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) ([\d.]+)", path.get("d"))]


def test_a_decade_is_as_high_everywhere_and_zero_below_all():
    ys = [1e-3, 1.0, 0.0, 1e3, math.inf, 1e6]
    curves = [
        Curve([*enumerate(ys)], kind, kind, kind, is_line) for kind, is_line in (("plan", True), ("dummy", False))
    ]
    picture = drawn(svg(Curves(curves, "norms", STEPS, "norm", [(3, "here")], (10.0, "much"), ["a note"])))
    is_sound(picture)
    line, dots = (
        numbers(next(e for e in picture.iter("path") if e.get("stroke") == COLOURS[k])) for k in ("plan", "dummy")
    )
    assert len(line) == len(dots) == 5  # what is not finite is in neither
    steps = [a - b for (_, a), (_, b) in pairwise(line)]
    assert steps[0] == pytest.approx(steps[3], abs=0.2)
    assert line[2][1] == max(y for _, y in line)
    assert [x for x, _ in line] == pytest.approx([x for x, _ in dots], abs=1)
    assert line[4][0] - line[3][0] == pytest.approx(2 * (line[1][0] - line[0][0]), abs=0.2)
    assert {"0", "0.01", "1", "100", "10⁴", "10⁶", "step →", "↑ norm", "here", "much", "a note"} <= set(texts(picture))
    assert any(numbers(e)[0][0] == pytest.approx(line[3][0]) for e in picture.iter("path") if "L" in e.get("d"))


@pytest.mark.parametrize("n", [1, 3, 40, 5000])
@pytest.mark.parametrize("top", [0.0, 1.0, 3.0, 1e38])
def test_curves_of_any_size_have_room(n, top):
    points = [(i, top * (i + 1) / n) for i in range(n)]
    marks = [(i, "the cotangent of " + "h @ w " * 20) for i in (0, n // 2, n - 1)]
    curves = [Curve(points, "forward", "forward", "f" * 90), Curve(points, "backward")]
    page = svg(Curves(curves, "t" * 90, STEPS, "norm", marks, (10.0, "much"), ["n" * 90]))
    is_sound(drawn(page))
    assert len(page) < 20_000


def test_a_curve_is_not_read_again_for_each_of_its_points():
    class Read(list):
        times = 0

        def __iter__(self):
            self.times += 1
            return super().__iter__()

    points = Read((i, i + 1.0) for i in range(50))
    curves = Curves([Curve(points, "forward", "forward", "f")], "norms", STEPS, "norm")
    for draw in (svg, Curves.text):
        points.times = 0
        draw(curves)
        assert points.times < 10, draw


def test_a_single_place_is_a_dot():
    picture = drawn(svg(Curves([Curve([(0, math.nan), (1, 2.0)], "plan", "a", "a")], "norms", STEPS, "norm")))
    (dot,) = [e for e in picture.iter("path") if e.get("stroke") == COLOURS["plan"]]
    assert dot.get("stroke-linecap") == "round"


def test_of_a_long_chain_both_ends_are_shown():
    stops = [ChainLink(f"model.py:{i}", "text " * i, "add → nan", "NaN") for i in range(40)]
    picture = drawn(svg(Chain(stops, "the way")))
    is_sound(picture)
    written = texts(picture)
    assert "model.py:0" in written
    assert "model.py:39" in written
    assert "… 30 more …" in written
    assert svg(Chain([], "the way")) == ""


@pytest.mark.parametrize(
    "label", ["a" * 200, "words and words " * 20, "漢字" * 40, "e\u0301" * 90, "x.y[0](z)" * 30, ""]
)
def test_long_names_keep_to_their_room(label):
    for room in (4, 9, 30):
        for from_left in (False, True):
            assert columns(fitted(label, room, from_left)) <= room
    is_sound(drawn(svg(Bars([(label, 5, "residual"), ("b", 3, "residual")], label))))


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("page", ["#ffffff", "#212121", "#111111"])
def test_colours_stand_out_from_light_and_dark_pages(page):
    for kind, colour in COLOURS.items():
        if len(colour) == 7:  # translucent colours are used together with the opaque one
            low, high = sorted((luminance(colour), luminance(page)))
            assert (high + 0.05) / (low + 0.05) >= 3, kind


def test_the_kinds_of_memory_are_those_that_the_page_has_colours_for():
    css = (Path(__file__).parents[2] / "widgets" / "src" / "styles" / "frame.css").read_text()
    assert set(kinds.STACKED) <= set(re.findall(r"--jv-of-(\w+): light-dark\(#\w+,", css))
    assert set(kinds.STACKED) == set(kinds.PLURALS) == set(kinds.OF_MEMORY)


@pytest.mark.slow
@transcripts.of("pictures")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)
