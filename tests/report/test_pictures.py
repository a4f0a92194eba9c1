"""The drawings at the top of reports: well-formed, without scripts and ids, without overlaps, and with the figures of the report."""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz.features.remat.policy_comparison import MemoryComparison, PlanComparison
from jaxviz.report import kinds, pictures
from jaxviz.report.charts import BYTES, FLOPS, Axis, Bars, Chain, ChainLink, FlameGraph, Lanes, OverTime, TradeOff
from jaxviz.report.kinds import COLOURS
from jaxviz.report.pictures import columns, fitted, svg
from jaxviz.report.tables import format_bytes, format_flops, format_seconds


def loss(params, x):
    for w in params:
        x = jnp.tanh(x @ w)
    return (x * jnp.sin(x)).sum()


def other_loss(params, x):
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.exp(x * jnp.sin(x)).sum()


def checkpointed(params, x):
    return jax.checkpoint(loss)(params, x)


def infinite(x):
    logs = jnp.log(x - 1.0)
    return (logs * 2.0).sum()


def only_rolled(x):
    def body(c, t):
        c = c - 1.0
        return c, jnp.sqrt(c) * t

    c, ys = jax.lax.scan(body, x, jnp.arange(1, 6.0))
    return jnp.sum(ys) + c


PARAMS = [jnp.ones((8, 8)), jnp.ones((8, 8))]
X = jnp.ones((4, 8))
ARGS = (PARAMS, X)


def donation():
    return jaxviz.donation(jax.jit(lambda p, x: [w * x.sum() for w in p], donate_argnums=0), *ARGS)


def watched():
    with jaxviz.watch_compilations() as seen:
        step = jax.jit(lambda x: jnp.cos(x) * 3)
        for n in (3, 4):
            step(jnp.ones(n))
    return seen, step


def compared():
    return jaxviz.compare_policies(loss, *ARGS, policies=["dots_saveable", "nothing_saveable"])


REPORTS = {
    "residuals": lambda: jaxviz.residuals(loss, *ARGS),
    "memory": lambda: jaxviz.memory(loss, *ARGS),
    "cost": lambda: jaxviz.cost(loss, *ARGS),
    "timings": lambda: jaxviz.cost(loss, *ARGS).measure(1),
    "policies": lambda: jaxviz.policies(checkpointed, *ARGS),
    "checkpoint": lambda: jaxviz.policies(checkpointed, *ARGS).checkpoints[0],
    "compare_policies": compared,
    "memory_comparison": lambda: MemoryComparison(compared()),
    "plan_comparison": lambda: PlanComparison(compared()),
    "plan_remat": lambda: jaxviz.plan_remat(loss, *ARGS, budget=0.8),
    "find_nan": lambda: jaxviz.find_nan(infinite, jnp.array([3.0, 1.0])),
    "find_nan_in_a_loop": lambda: jaxviz.find_nan(only_rolled, 2.5),
    "compilations": lambda: watched()[0],
    "explain_recompile": lambda: jaxviz.explain_recompile(watched()[1]),
    "donation": donation,
    "jit": lambda: jaxviz.jit(lambda p, x: x @ p[0] @ p[1]).report(*ARGS),
    "lint": lambda: jaxviz.lint(loss, *ARGS, min_nbytes=1),
    "comparison": lambda: jaxviz.compare(loss, other_loss, *ARGS),
    "profile": lambda: jaxviz.profile(jax.jit(loss), *ARGS, repeat=1),
}  # fmt: skip


def sums(pairs):
    found: dict = {}
    for key, n in pairs:
        found[key] = found.get(key, 0) + n
    return found


def figures_of_donation(r):
    kind = lambda d: "spared" if d.is_spared else "copied" if d.is_copied else "for nothing"
    return [f"{k} {format_bytes(n)}" for k, n in sums((kind(d), d.nbytes) for d in r.donated).items()]


def figures_of_comparison(r):
    lines = [sums((d.location.line, d.nbytes) for d in side.residuals if d.is_saved) for side in (r.before, r.after)]
    text = Path(__file__).read_text().splitlines().__getitem__
    before, after = ({text(line - 1): n for line, n in side.items()} for side in lines)
    return [
        format_bytes(side[t])
        for t in {**before, **after}
        if before.get(t) != after.get(t)
        for side in (before, after)
        if t in side
    ]


FIGURES = {
    "residuals": lambda r: [f"{k} {format_bytes(n)}" for k, n in sums((x.kind, x.nbytes) for x in r if x.is_saved).items()],
    "memory": lambda r: [
        f"peak {format_bytes(r.peak_nbytes)}",
        *(f"{k} {format_bytes(n)}" for k, n in sums((a.kind, a.nbytes) for a in r.alive).items()),
        format_bytes(r.alive[0].nbytes),
    ],
    "cost": lambda r: [f"forward {format_flops(r.forward.flops)}", f"backward {format_flops(r.backward.flops)}"],
    "timings": lambda r: [],
    "policies": lambda r: [
        f"{k} {format_bytes(n)}"
        for k, n in sums((v.fate, v.nbytes) for c in r.checkpoints for v in c.values if v.fate != "not needed").items()
    ],
    "checkpoint": lambda r: [
        f"{k} {format_bytes(n)}" for k, n in sums((v.fate, v.nbytes) for v in r.values if v.fate != "not needed").items()
    ],
    "compare_policies": lambda r: [
        *(f"{format_bytes(o.peak_nbytes)}, {format_flops(o.flops)} recomputed" for o in (r.without, *r.outcomes)),
        "the best plans",
    ],
    "jit": lambda r: [f"argument {format_bytes(sum(p.nbytes for p in r.arguments))}", format_bytes(r.results[0].nbytes)],
    "memory_comparison": lambda r: [format_bytes(o.peak_nbytes) for o in r.policies.outcomes],
    "plan_comparison": lambda r: [f"{format_bytes(o.nbytes)}, {format_flops(o.flops)} recomputed" for o in r.policies.outcomes],
    "plan_remat": lambda r: [
        f"{format_bytes(t.peak_nbytes)}, {format_flops(t.flops)} recomputed" for t in (r.before, r.after)
    ],
    "find_nan": lambda r: [str(p.value)[:25] for p in r.chain] + ["logs = jnp.log(x - 1.0)", "log → -inf in f32[2]"],
    "find_nan_in_a_loop": lambda r: [str(p.value)[:25] for p in r.chain] + ["sqrt", "return c, jnp.sqrt(c) * t"],
    "compilations": lambda r: [f"compile {format_seconds(sum(c.seconds['compile'] for c in r.records if c.is_compiled))}"],
    "explain_recompile": lambda r: ["x: f32[3] → f32[4]", f"compile {format_seconds(sum(c.compile for c in r.compiled))}"],
    "donation": figures_of_donation,
    "lint": lambda r: ["at stake", *(format_bytes(a.nbytes) for a in r)],
    "comparison": figures_of_comparison,
    "profile": lambda r: ["compilation by XLA", format_seconds(r.flame.seconds)],
}  # fmt: skip


def drawn(page):
    """The drawing at the top of a page."""
    end = page.index("</svg></div>") + len("</svg></div>")
    root = ElementTree.fromstring(f"<div>{page[:end]}</div>")
    style, holder = root
    assert (style.tag, style.text) == ("style", ".jaxviz-picture[hidden]{display:block!important}")
    assert holder.get("class") == "jaxviz-picture"
    assert holder.get("hidden") == "hidden"  # if styles are stripped, the text in it is not shown
    (picture,) = holder
    return picture


def texts(picture):
    return [e.text or "" for e in picture.iter("text")]


def places(picture):
    """The left, top, right and bottom of each text."""
    for e in picture.iter("text"):
        wide = pictures._COLUMN * columns(e.text or "")
        x = float(e.get("x")) - {"start": 0, "middle": 0.5, "end": 1}[e.get("text-anchor", "start")] * wide
        yield e.text, (x, float(e.get("y")) - 10, x + wide, float(e.get("y")) + 2)


def is_sound(picture):
    assert picture.tag == "svg"
    assert picture.get("aria-label") == picture.find("title").text
    assert picture.get("aria-label").endswith(".")
    names = {name for e in picture.iter() for name in e.attrib}
    assert not any(name == "id" or name.endswith("href") or name.startswith("on") for name in names)
    assert {e.tag for e in picture.iter()} <= {"svg", "title", "g", "text", "rect", "path", "circle"}
    assert "nan" not in " ".join(
        e.get(name) for e in picture.iter() for name in e.attrib if name in ("x", "y", "d", "width", "cx", "cy")
    )
    width, height = map(float, picture.get("viewBox").split()[2:])
    found = list(places(picture))
    for text, (left, top, right, bottom) in found:
        assert left >= -0.5, text
        assert right <= width + 0.5, text
        assert top >= 0, text
        assert bottom <= height, text
    for i, (text, (left, top, right, bottom)) in enumerate(found):
        for other, (l, t, r, b) in found[:i]:
            assert right <= l + 0.5 or r <= left + 0.5 or bottom <= t + 0.5 or b <= top + 0.5, (text, other)
    # at least 11 pixels at any width
    narrowest = float(re.search(r"min-width:(\d+)px", picture.get("style"))[1])
    assert 12 * narrowest / width >= 11
    assert "font-size:12px" in picture.get("style")


@pytest.mark.parametrize("name", REPORTS)
def test_each_report_opens_with_a_drawing_of_its_own_figures(name):
    report = REPORTS[name]()
    page = report._repr_html_()
    assert page.startswith("<style>")
    picture = drawn(page)
    is_sound(picture)
    written = " ".join(texts(picture))
    for figure in FIGURES[name](report):
        assert figure in written, figure
    summary = html.escape(report.summary.split()[0].split(":")[0])
    assert summary in page[page.index("</svg></div>") :]
    assert "<svg" not in str(report)


def test_what_has_nothing_to_draw_opens_with_its_summary():
    assert jaxviz.residuals(lambda x: x + 1.0, 1.0)._repr_html_().startswith("<p>")
    assert jaxviz.donation(jax.jit(jnp.sum), X)._repr_html_().startswith("<p>")
    assert jaxviz.explain_recompile(jax.jit(lambda x: x))._repr_html_().startswith("<p>")
    assert jaxviz.lint(lambda x: x + 1.0, 1.0)._repr_html_().startswith("<p>")
    same = jaxviz.compare(loss, loss, *ARGS)
    assert same._repr_html_().startswith("<p>")


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


def test_a_line_has_whole_items():
    assert pictures.as_many(["a 12 B", "b 4 B"], "largest: ") == "largest: a 12 B, b 4 B"
    assert pictures.as_many(["a" * 40, "b" * 40], "largest: ") == "largest: " + "a" * 40
    assert pictures.as_many([], "largest: ") == "largest: "


def test_names_are_cut_at_a_token():
    assert fitted("jax.nn.softmax(scores)", 15) == "jax.nn.softmax…"
    assert fitted("jax.nn.softmax(scores)", 14) == "jax.nn.…"
    assert fitted("jax.nn.log_softmax(logits)", 16) == "jax.nn.…"
    assert fitted("dots_with_no_batch_dims_saveable", 20) == "dots_with_no_batch_…"
    assert fitted("a/long/path/model.py:12", 12, from_left=True) == "…model.py:12"
    assert fitted("short", 5) == "short"


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
