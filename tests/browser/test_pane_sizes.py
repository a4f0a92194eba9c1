"""Panes on a narrow page, and a pane in full screen."""

from itertools import pairwise

import jax.numpy as jnp
import pytest
from short_runs import short

import jaxviz
from notebooks import light

pytestmark = [pytest.mark.browser, light]


def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w) ** 2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    explorer = jaxviz.explore(loss, jnp.ones((4, 3)), jnp.ones((2, 4)))
    return explorer.save_html(tmp_path_factory.mktemp("pages") / "page.html").as_uri()


@pytest.fixture
def page(tab, saved):
    tab.page.goto(saved)
    tab.page.get_by_test_id("view-kept").click()
    return tab.page


PANES = ("code-left", "code-right", "source", "residuals", "inspector")
IN_FULL = (560, "source"), (560, "inspector"), (1280, "code-left")
"""What the short tests show in full screen."""


def resize(page, width, height):
    """Resizes the page and waits until it is laid out for that width, which it does after the browser."""
    page.set_viewport_size({"width": width, "height": height})
    page.wait_for_function(
        """width => {
            const { classList } = document.querySelector(".jaxviz");
            return classList.contains("is-slim") === width < 600 && classList.contains("is-narrow") === width < 760;
        }""",
        arg=width,
    )


def boxes(page):
    return [page.get_by_test_id(name).bounding_box() for name in PANES]


def test_panes_stand_below_each_other_in_a_narrow_page(page):
    resize(page, 560, 800)
    found = boxes(page)
    for above, below in pairwise(found):
        assert above["y"] + above["height"] <= below["y"] + 1
    assert all(box["width"] > 540 and box["height"] > 100 for box in found)
    resize(page, 720, 800)
    left, right, source, *_ = boxes(page)
    assert left["y"] == right["y"]
    assert left["width"] > 300
    assert right["width"] > 300
    assert left["y"] + left["height"] <= source["y"] + 1
    resize(page, 1280, 800)
    assert boxes(page)[0]["y"] == boxes(page)[1]["y"]


def test_what_is_in_motion_stands_above_the_source_in_a_narrow_page(page):
    resize(page, 390, 800)
    page.get_by_test_id("view-motion").click()
    page.wait_for_selector("[data-testid=motion-play]")
    motion, source = (page.get_by_test_id(name).bounding_box() for name in ("motion", "source"))
    assert motion["height"] > 300
    assert motion["y"] + motion["height"] <= source["y"] + 1


@pytest.mark.parametrize(
    ("width", "name"),
    [
        pytest.param(width, name, marks=[pytest.mark.slow(sweep=True)] * ((width, name) not in IN_FULL))
        for width in (560, 720, 1280)
        for name in PANES
    ],
)
def test_each_pane_is_shown_on_all_of_the_screen(page, name, width):
    resize(page, width, 700)
    before = boxes(page)
    page.get_by_test_id(name).locator(".jv-full").click()
    page.wait_for_function("() => document.fullscreenElement !== null")
    assert page.get_by_test_id(name).bounding_box() == {"x": 0, "y": 0, "width": width, "height": 700}
    assert page.locator(".jv-pane:visible").count() == 1
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.fullscreenElement === null")
    assert boxes(page) == before


def many(w, x):
    x = jnp.tanh(x @ w)
    for f in (jnp.sin, jnp.cos, jnp.tanh):
        x = f(x) * jnp.exp(-(x**2))
    return jnp.sum(jnp.sin(x) * jnp.log1p(x**2))


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    arrays = jnp.ones((3, 3)), jnp.ones((2, 3))
    compared = jaxviz.compare(many, lambda w, x: 2 * many(w, x), *arrays)
    return jaxviz.explore(compared).save_html(tmp_path_factory.mktemp("pages") / "page.html").as_uri()


IN_ROWS = """(bar) => new Set([...bar.querySelectorAll("button, input, select, output")].filter((e) => e.checkVisibility())
    .map((e) => { const { top, height } = e.getBoundingClientRect(); return Math.round((top + height / 2) / 10); })).size"""


# JupyterLab leaves 850 to a notebook beside its file browser, on a screen of 1280.
@pytest.mark.parametrize("width", short([1280, 900, 850, 720], [1280, 850]))
def test_the_bars_take_one_row_each_and_the_curve_is_in_sight(tab, versions, width):
    page = tab.page
    page.set_viewport_size({"width": width, "height": 600})
    page.goto(versions)
    page.get_by_test_id("view-motion").click()
    page.wait_for_selector("[data-testid=shelf]")
    page.get_by_test_id("motion-last").click()
    assert page.locator(".jv-views").evaluate(IN_ROWS) == 1
    assert page.locator(".jv-motion .jv-play-bar").evaluate(IN_ROWS) == 1
    # The accessible name of a button does not depend on how much of its text is visible.
    page.get_by_role("button", name="Why is it saved").click()
    page.get_by_role("button", name="What differs").click()
    page.get_by_role("button", name="In motion").click()
    curve = page.locator(".jv-mo-chart").bounding_box()
    assert curve["y"] + (curve["height"] if width > 760 else 90) <= 600
    shelves = page.get_by_test_id("shelf")
    assert shelves.count() > 6
    shelves.last.scroll_into_view_if_needed()
    assert page.locator(".jv-mo-chart").bounding_box() == curve


def test_a_diff_stands_above_its_figures_in_a_narrow_page(tab, versions):
    page = tab.page
    page.set_viewport_size({"width": 700, "height": 900})
    page.goto(versions)
    page.get_by_test_id("view-diff").click()
    page.wait_for_selector("[data-testid=diff-line]")
    found = [page.get_by_test_id(name).bounding_box() for name in ("diff", "changes", "inspector")]
    for above, below in pairwise(found):
        assert above["y"] + above["height"] <= below["y"] + 1
    assert all(box["width"] > 680 and box["height"] > 100 for box in found)
    page.get_by_test_id("diff").locator(".jv-full").click()
    page.wait_for_function("() => document.fullscreenElement !== null")
    assert page.get_by_test_id("diff").bounding_box() == {"x": 0, "y": 0, "width": 700, "height": 900}
