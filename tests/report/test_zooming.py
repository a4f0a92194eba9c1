"""What a page needs to zoom a chart: the same amounts as in the still picture."""

import base64
import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from drawings import drawn, is_sound, texts

import jaxviz
from jaxviz.page import bundle
from jaxviz.report import zooming
from jaxviz.report.charts import TIME, Axis, Bars, Curve, Curves, FlameGraph, Lanes, OverTime, columns
from jaxviz.report.pictures import svg
from jaxviz.report.tables import format_seconds

NUMBERS = Axis("iteration", (("", 1),), str, whole=True)
STEPS = [(10, i % 7 * 100.5) for i in range(1000)]
CHARTS = {
    "memory": OverTime(STEPS, ("argument", "temporary"), (("forward", 0), ("backward", 600)), "bytes", "the peak"),
    "lanes": Lanes([("f", 1.0, [("trace", 0.5), ("compile", 1.0)]), ("g", 2.5, [("trace", 0.25)])], "when"),
    "flames": FlameGraph([("all", "", 0.0, 2.0, 0), ("part", "", 0.5, 1.0, 1)], {"": "#eeeeee"}, {"": "a"}, "where"),
    "curves": Curves([Curve([(0, 1.0), (7, 100.0)], "forward", "value", "a value")], "norms", NUMBERS, "norm"),
}


def data_of(picture):
    data = json.loads(gzip.decompress(base64.b64decode(picture.get("data-zoom"))))
    for found, kind in ((data, zooming.Zoomable), (data["along"], zooming.Along), (data["areas"], zooming.Areas)):
        assert found is None or found.keys() == kind.__annotations__.keys()
    return data


@pytest.mark.parametrize("name", CHARTS)
def test_an_axis_is_where_it_is_drawn(name):
    picture = drawn(svg(CHARTS[name]))
    is_sound(picture)
    along = data_of(picture)["along"]
    moving = [g for g in picture.iter("g") if "data-moves" in g.attrib]
    assert moving
    boxes = [(float(e.get("x")), float(e.get("width"))) for g in moving for e in g.iter("rect")]
    assert all(along["left"] - 0.1 <= x and x + wide <= along["right"] + 0.6 for x, wide in boxes)
    assert along["last"] == {"memory": 1000, "lanes": 1.75, "flames": 2.0, "curves": 7}[name]
    if boxes:
        width = {"lanes": 0.5, "flames": 2.0}[name]  # of the first box
        assert boxes[0][1] == pytest.approx((along["right"] - along["left"]) * width / along["last"], abs=0.6)


def test_all_steps_are_there_and_not_only_those_that_are_drawn():
    chart = CHARTS["memory"]
    areas = data_of(drawn(svg(chart)))["areas"]
    assert np.cumsum(areas["changes"], axis=1).T.tolist() == [list(step) for step in STEPS]
    assert len(columns(chart.positions, 320)[1]) < len(STEPS)
    assert areas["passes"] == [["forward", 0], ["backward", 600]]
    assert areas["top"] == chart.top
    # Of repeated steps little is stored.
    assert len(svg(chart)) < 1.2 * len(svg(chart).replace(drawn(svg(chart)).get("data-zoom"), "")) + 1000


def test_a_chart_of_too_much_stays_still():
    amounts = np.random.default_rng(0).integers(0, 2**40, (60_000, 2)).tolist()
    chart = OverTime(amounts, ("argument", "temporary"), (("forward", 0),), "bytes", "the peak")
    picture = drawn(svg(chart))
    is_sound(picture)
    assert picture.get("data-zoom") is None
    assert len(svg(chart)) < 40_000


def test_boxes_say_what_they_are():
    said = lambda name: [e.get("data-said") for e in drawn(svg(CHARTS[name])).iter("rect") if e.get("data-said")]
    assert said("lanes") == [
        f"f: trace {format_seconds(0.5)}",
        f"f: compile {format_seconds(1.0)}",
        f"g: trace {format_seconds(0.25)}",
    ]
    assert said("flames") == [f"all: {TIME.written(2.0)}", f"part: {TIME.written(1.0)}"]


def test_curves_are_read_at_their_points_but_for_very_many():
    (read,) = data_of(drawn(svg(CHARTS["curves"])))["curves"]
    assert (read["name"], read["x"], read["y"]) == ("value", [0, 7], [1.0, 100.0])
    many = Curve([(i, 1.0 + i) for i in range(5000)], "forward", "value")
    (read,) = data_of(drawn(svg(Curves([many], "norms", NUMBERS, "norm"))))["curves"]
    assert 200 < len(read["x"]) <= zooming.MOST_POINTS


def test_bars_have_no_axis_to_zoom():
    assert "data-zoom" not in svg(Bars([("a", 1, "residual")], "amounts"))


@pytest.fixture
def in_a_notebook(monkeypatch):
    monkeypatch.setattr(bundle, "_charts", [])
    monkeypatch.setattr(bundle, "get_ipython", lambda: SimpleNamespace(kernel=object()))


def shown(make):
    make(lambda x: jnp.sum(jnp.sin(x) ** 2), jnp.ones(3))._repr_html_()
    return list(bundle._charts)


def test_in_a_notebook_one_widget_zooms_the_charts_that_have_an_axis(in_a_notebook):
    assert shown(jaxviz.cost) == []
    (first,) = shown(jaxviz.memory)
    assert shown(jaxviz.memory) == [first]
    first.close()
    assert shown(jaxviz.memory) != [first]


def test_elsewhere_there_is_none(monkeypatch):
    monkeypatch.setattr(bundle, "_charts", [])
    assert shown(jaxviz.memory) == []


def test_without_the_bundle_pictures_stay_still(in_a_notebook, monkeypatch, tmp_path):
    monkeypatch.setattr(bundle, "_STATIC", tmp_path)
    assert shown(jaxviz.memory) == []


def test_the_module_is_small():
    static = Path(jaxviz.__file__).parent / "static"
    assert len(gzip.compress((static / "charts.js").read_bytes(), 9)) < 8_500


def test_the_texts_of_a_picture_are_those_that_it_had():
    assert texts(drawn(svg(CHARTS["memory"])))[:3] == ["bytes", "0", "200 B"]
    assert sys.getsizeof(svg(CHARTS["lanes"])) < 6_000
