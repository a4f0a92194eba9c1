"""The charts of reports, zoomed: on a page without a kernel, and in JupyterLab, also in a notebook that is reopened."""

import base64
import gzip
import json
import re

import jax.numpy as jnp
import pytest
from jupyter_lab import KERNEL_IDLE
from playwright.sync_api import expect
from test_accessibility import violations

import jaxviz
from jaxviz.page.bundle import charts_script
from jaxviz.report.pictures import WIDTH
from jaxviz.report.tables import format_bytes
from notebooks import light, run, save, widgets

pytestmark = pytest.mark.browser

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Reports</title>
<style>:root {{ color-scheme: light dark }}
body {{ color: light-dark(#000, #ddd); background: light-dark(#fff, #131416) }}</style>
<body><main><h1>Reports</h1>{reports}<div style="height: 2000px"></div></main><script>{script}</script></body></html>"""


def loss(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.sum(x**2)


ARGS = ([jnp.ones((8, 8))] * 200, jnp.ones((4, 8)))


@pytest.fixture(scope="module")
def report():
    return jaxviz.memory(loss, *ARGS)


@pytest.fixture
def picture(tab, report, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(PAGE.format(reports=report._repr_html_(), script=charts_script()), encoding="utf-8")
    tab.page.set_viewport_size({"width": 900, "height": 700})
    tab.page.goto(path.as_uri())
    return tab.page.locator("svg[data-zoom]")


class Reader:
    """Points at a picture.

    Args:
      page: of a browser.
      picture: the picture in it.
    """

    def __init__(self, page, picture):
        self.page, self.picture = page, picture
        picture.scroll_into_view_if_needed()
        self.box = picture.bounding_box()
        self.title = picture.locator("text").first
        for _ in range(100):  # until the script is there, and has unpacked the numbers
            self.point(0.5)
            if re.match(STEP, self.title.text_content()):
                break
            self.leave()
            page.wait_for_timeout(50)
        self.leave()

    def point(self, share, y=0.4):
        """Moves the pointer to a share of the picture's width."""
        self.page.mouse.move(self.box["x"] + share * self.box["width"], self.box["y"] + y * self.box["height"])

    def leave(self):
        self.page.mouse.move(self.box["x"] + 1, self.box["y"] - 20)

    def zoom(self, share, pixels=-700):
        self.point(share)
        self.page.keyboard.down("Control")
        self.page.mouse.wheel(0, pixels)
        self.page.keyboard.up("Control")

    def says(self, pattern):
        """What the numbers in the title are, when it matches."""
        expect(self.title).to_have_text(re.compile(pattern))
        found = re.match(pattern, self.title.text_content())
        return [int(n.replace(",", "")) if n.replace(",", "").isdigit() else n for n in found.groups()]


STEP = r"(?:for|back)ward, equation ([\d,]+): ([\d.]+ \w+)"
PART = r"equations ([\d,]+) to ([\d,]+) of ([\d,]+)"


@pytest.mark.parametrize("theme", ["light", "dark"], indirect=True)
def test_a_chart_is_zoomed_moved_and_read_and_becomes_what_it_was(tab, picture, report):
    reader, n = Reader(tab.page, picture), len(report.steps)
    assert n > 320  # more than the still picture has columns
    still, about = picture.screenshot(), reader.title.text_content()
    reader.point(0.5)
    step, amount = reader.says(STEP)
    along = json.loads(gzip.decompress(base64.b64decode(picture.get_attribute("data-zoom"))))["along"]
    place = (0.5 * WIDTH - along["left"]) / (along["right"] - along["left"])
    assert step == pytest.approx(place * n, abs=n / 320 + 1)
    assert amount == format_bytes(sum(report.steps[step - 1].nbytes))
    # Without Ctrl the wheel scrolls the page.
    tab.page.mouse.wheel(0, 40)
    tab.page.wait_for_function("() => scrollY > 0")
    tab.page.evaluate("() => scrollTo(0, 0)")
    reader.zoom(0.6)
    reader.leave()
    first, last, all_steps = reader.says(PART)
    assert all_steps == n
    assert 20 < last - first < n / 3
    reader.point(0.5)
    assert first < reader.says(STEP)[0] < last
    tab.screenshot("zoomed-report")
    tab.page.mouse.down()
    reader.point(0.3)
    tab.page.mouse.up()
    reader.leave()
    later = reader.says(PART)
    assert later[0] > first
    assert later[1] - later[0] == pytest.approx(last - first, abs=2)
    picture.dblclick()
    reader.leave()
    expect(reader.title).to_have_text(about)
    picture.evaluate("(e) => e.blur()")
    assert picture.screenshot() == still


@light
def test_a_chart_is_reached_zoomed_and_read_with_the_keyboard(tab, picture, report):
    page = tab.page
    expect(picture).to_have_attribute("tabindex", "0")  # before anything is pointed at
    page.locator("h1").click()
    page.keyboard.press("Tab")
    expect(picture).to_be_focused()
    about = picture.locator("text").first.text_content()
    reader = Reader(page, picture)
    expect(picture).to_have_class("jv-time")
    page.keyboard.press("End")
    assert reader.says(STEP)[0] == len(report.steps)
    expect(page.get_by_role("status")).to_have_text(reader.title.text_content())
    for key in ("+", "+", "+", "ArrowLeft"):
        page.keyboard.press(key)
    assert reader.says(STEP)[0] == len(report.steps) - 1
    page.keyboard.press("Shift+Tab")
    first, last, _ = reader.says(PART)
    assert last == len(report.steps) < first + len(report.steps) / 7
    page.keyboard.press("Tab")
    assert violations(page, "main") == ""
    page.keyboard.press("0")
    expect(reader.title).to_have_text(about)


PROGRAM = """
import jax.numpy as jnp, jaxviz

def loss(x):
    return jnp.sum(jnp.tanh(x) ** 2)

jaxviz.memory(loss, jnp.ones((8, 8)))
"""


@light
def test_in_a_notebook_a_chart_zooms_without_another_output_also_when_it_is_reopened(in_lab, saves_no_state):
    page = run(in_lab, PROGRAM, own_kernel=True)
    picture = page.locator("svg[data-zoom]")
    expect(picture).to_be_visible(timeout=60_000)
    page.wait_for_function(KERNEL_IDLE, timeout=60_000)
    assert page.locator(".jp-OutputArea-child").count() == 1
    for is_reopened in (False, True):
        if is_reopened:
            state = widgets(save(page, in_lab.path))
            assert [each["state"].get("_shows") for each in state.values()].count("charts") == 1
            in_lab.reopen(picture)
        reader = Reader(page, picture)
        reader.zoom(0.5)
        reader.leave()
        first, last, n = reader.says(PART)
        assert last - first < n - 1
