"""Where the panes are and how large: in each question, on a narrow page, on the full screen, and in a notebook."""

from itertools import pairwise

import jax.numpy as jnp
import pytest
from jupyter_lab import ask_kernel
from playwright.sync_api import expect
from short_runs import short, short_rows
from test_front_ends import run_in_lab
from tour import unfold

import jaxviz
from benchmarks.models import transformer
from jaxviz.features.explorer.whatif import Switches
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


PANES = ("residuals", "code-left", "code-right", "source", "inspector")


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


def boxes(page, names=PANES):
    return [page.get_by_test_id(name).bounding_box() for name in names]


def test_panes_stand_below_each_other_in_a_narrow_page(page):
    resize(page, 560, 800)
    unfold(page, "details")
    found = boxes(page)
    for above, below in pairwise(found):
        assert above["y"] + above["height"] <= below["y"] + 1
    assert all(box["width"] > 540 and box["height"] > 100 for box in found)
    resize(page, 720, 800)
    residuals, left, right, source, _ = boxes(page)
    assert left["y"] == right["y"]
    assert left["width"] > 300
    assert right["width"] > 300
    assert residuals["y"] + residuals["height"] <= left["y"] + 1
    assert left["y"] + left["height"] <= source["y"] + 1
    resize(page, 1280, 800)
    residuals, left, right, source, _ = boxes(page)
    assert left["y"] == right["y"] >= residuals["y"] + residuals["height"] - 1
    assert left["width"] > 300
    assert source["y"] == residuals["y"]


def test_the_overview_is_seen_in_a_narrow_page(page):
    resize(page, 390, 800)
    page.get_by_test_id("question").select_option("overview")
    overview, source = boxes(page, ("overview", "source"))
    assert overview["height"] > 300
    assert overview["y"] + overview["height"] <= source["y"] + 1


def test_what_is_in_motion_stands_above_the_source_in_a_narrow_page(page):
    resize(page, 390, 800)
    page.get_by_test_id("question").select_option("motion")
    page.wait_for_selector("[data-testid=motion-play]")
    motion, source = boxes(page, ("motion", "source"))
    assert motion["height"] > 300
    assert motion["y"] + motion["height"] <= source["y"] + 1


@pytest.mark.parametrize("width", short([560, 720, 1280], [560, 1280]))
def test_all_of_it_is_shown_on_the_full_screen(page, width):
    resize(page, width, 700)
    before = boxes(page, ("explorer", "residuals"))
    page.get_by_test_id("full-screen").click()
    page.wait_for_function("() => document.fullscreenElement !== null")
    assert page.get_by_test_id("explorer").bounding_box() == {"x": 0, "y": 0, "width": width, "height": 700}
    expect(page.get_by_test_id("question" if width < 600 else "view-kept")).to_be_visible()
    expect(page.get_by_test_id("full-screen")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("w")
    page.wait_for_function("() => document.fullscreenElement === null")
    expect(page.get_by_test_id("full-screen")).to_have_attribute("aria-pressed", "false")
    assert boxes(page, ("explorer", "residuals")) == before


MAIN = {
    "overview": ["overview"],
    "motion": ["motion"],
    "lines": ["source"],
    "diff": ["diff"],
    "kept": ["residuals", "code-left", "code-right"],
    "derived": ["player"],
    "cost": ["costs"],
    "what-if": ["what-if"],
}
"""The main pane of each question, that of *Why is it saved* with its pair."""


@pytest.mark.parametrize(("width", "height"), short_rows([(880, 620), (1500, 900)], [(1500, 900)]))
def test_the_main_pane_of_each_question_has_most_of_the_area(tab, versions, width, height):
    page = tab.page
    page.set_viewport_size({"width": width, "height": height})
    page.goto(versions)
    for view, names in MAIN.items():
        page.get_by_test_id(f"view-{view}").click()
        for name in names:
            expect(page.get_by_test_id(name)).to_be_visible()
        below = page.locator(".jv-main").bounding_box()
        areas = [box["width"] * box["height"] for box in boxes(page, names)]
        assert sum(areas) >= 0.6 * below["width"] * below["height"], view


CONTROLS = """() => [...document.querySelectorAll(":is(.jv-rail, .jv-pane-head, .jv-pair) :is(button, input, select)")]
    .filter((e) => e.checkVisibility() && !e.matches(".jv-advice"))
    .map((e) => { const { x, y } = e.getBoundingClientRect(); return `${e.textContent} ${x} ${y}`; })"""
"""Where each control is."""


def test_no_control_moves_when_advice_arrives_or_at_a_hover_or_a_selection(page):
    def advise(sentence, setting):
        advice = {"sentence": sentence, "idle": sentence, "setting": setting, "cards": [], "error": ""}
        page.evaluate("advice => jaxviz.model.set('advice', JSON.stringify(advice))", advice)
        expect(page.locator(".jv-head-advice")).to_have_text(sentence)
        expect(page.locator(".jv-head-keeps")).to_contain_text(f"; {sentence}" if sentence else "saves")

    peak = lambda: page.locator(".jv-head-peak").bounding_box()["y"]
    at = peak()
    advise("", "")
    assert peak() == at
    before = page.evaluate(CONTROLS)
    assert len(before) > 15
    for setting in ("", "0||"):
        advise("Checkpoints around some of the calls would bring the peak down. " * 9, setting)
        assert page.evaluate(CONTROLS) == before
    rows = page.get_by_test_id("residual-row")
    for act in (rows.nth(1).hover, rows.nth(1).click, lambda: page.keyboard.press("Escape")):
        act()
        assert page.evaluate(CONTROLS) == before


def test_no_row_moves_when_a_value_is_switched_off(page):
    rows = page.get_by_test_id("residual-row")
    at = lambda: [row.bounding_box()["y"] for row in rows.all()]
    before = at()
    page.get_by_test_id("residual-switch").first.click()
    expect(page.get_by_test_id("residual-said")).to_contain_text("Switched on with it")
    assert at() == before


@pytest.mark.parametrize("width", short([700, 1100], []))
def test_no_card_moves_when_its_advice_arrives(tab, six_layers, tmp_path, width):
    page = tab.page
    page.set_viewport_size({"width": width, "height": 620})
    page.goto(six_layers.save_html(tmp_path / "page.html").as_uri())
    page.get_by_test_id("view-overview").click()
    names = page.get_by_test_id("card-open")
    expect(names.nth(2)).to_be_visible()
    places = lambda: [name.bounding_box() for name in names.all()]

    def advise(text):
        advice = {"sentence": "", "setting": "", "cards": [text] * 3, "error": ""}
        page.evaluate("advice => jaxviz.model.set('advice', JSON.stringify(advice))", advice)
        expect(page.locator(".jv-card-advice")).to_have_text([text] * 3)

    advise("")
    before = places()
    assert len({place["y"] for place in before}) > 1, before  # so that one stands below the advice of another
    advise(
        "A checkpoint around feed_forward brings the peak from 120.4 MiB to 103.9 MiB, and to 84.7 MiB if it "
        "recomputes this value, for 12.5 % more work."
    )
    assert places() == before


SWITCHES = """() => {
    const { top, bottom } = document.querySelector(".jv-board > .jv-scroll").getBoundingClientRect();
    const rows = [...document.querySelectorAll(".jv-board tr:has([role=switch])")];
    const boxes = rows.map((row) => row.getBoundingClientRect());
    return boxes.filter((box) => box.top >= top && box.bottom <= bottom).length;
}"""
"""How many switches are seen."""


def test_eight_switches_are_seen_next_to_the_file_browser(tab, tmp_path):
    f, args = transformer(2)
    explorer = jaxviz.explore(f, *args)
    explorer.switches = Switches(explorer.derivation).plan()
    page = tab.page
    page.set_viewport_size({"width": 930, "height": 600})
    page.goto(explorer.save_html(tmp_path / "page.html").as_uri())
    page.get_by_test_id("view-what-if").click()
    expect(page.get_by_test_id("what-if-row").first).to_be_visible()
    assert page.evaluate(SWITCHES) >= 8


CUT = """() => [...document.querySelectorAll(":is(.jv-scope, .jv-scope-name, .jv-ov-pass, .jv-ov-peak, .jv-ov-kept)")]
    .filter((e) => e.textContent && e.clientHeight < parseFloat(getComputedStyle(e).fontSize) * 1.15)
    .map((e) => e.textContent)"""
"""The texts of the overview for which their boxes are too low."""


def test_each_question_and_the_stages_are_presented_in_large_text(tab, versions):
    page = tab.page
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(versions)
    page.get_by_test_id("view-overview").click()
    assert page.evaluate(CUT) == []
    page.get_by_test_id("explorer").focus()
    page.keyboard.press("p")
    page.wait_for_function("() => document.fullscreenElement !== null")
    assert page.locator(".jv-scope").first.evaluate("e => parseFloat(getComputedStyle(e).fontSize)") > 20
    assert page.evaluate(CUT) == []
    tab.screenshot("presented")
    # A stage, alone and with that of the other version, which is shown at first.
    for key, pane in (("2", "code-left"), ("c", "code-left"), ("c", "code-right"), ("ArrowRight", "overview")):
        page.keyboard.press(key)
        expect(page.get_by_test_id(pane)).to_be_visible()


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


IN_ROWS = """(bar) => new Set([...bar.querySelectorAll("button, input, select, output")]
    .filter((e) => e.checkVisibility()).map((e) => { const { top, height } = e.getBoundingClientRect();
    return Math.round((top + height / 2) / 10); })).size"""


# JupyterLab leaves 850 to a notebook beside its file browser, on a screen of 1280.
@pytest.mark.parametrize("width", short([1280, 900, 850, 720], [1280, 850]))
def test_the_bars_take_one_row_each_and_the_curve_is_in_sight(tab, versions, width):
    page = tab.page
    page.set_viewport_size({"width": width, "height": 600})
    page.goto(versions)
    page.get_by_test_id("view-motion").click()
    page.wait_for_selector("[data-testid=shelf]")
    page.get_by_test_id("motion-last").click()
    # Eight questions, in words, leave no room for the two buttons after them on 720.
    assert page.locator(".jv-views").evaluate(IN_ROWS) == (1 if width > 760 else 2)
    assert page.locator(".jv-motion .jv-play-bar").evaluate(IN_ROWS) == 1
    # The accessible name of a button does not depend on how much of its text is visible.
    page.get_by_role("button", name="Why is it saved").click()
    page.get_by_role("button", name="What differs").click()
    page.get_by_role("button", name="In motion").click()
    if width <= 760:
        page.locator(".jv-mo-chart").scroll_into_view_if_needed()
    curve = page.locator(".jv-mo-chart").bounding_box()
    assert curve["y"] + curve["height"] <= 601  # scrolled to, it ends on half a pixel
    shelves = page.get_by_test_id("shelf")
    assert shelves.count() > 6
    shelves.last.scroll_into_view_if_needed()
    assert page.locator(".jv-mo-chart").bounding_box() == curve


def test_on_a_phone_the_bar_of_the_player_takes_three_rows(tab, versions):
    page = tab.page
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(versions)
    page.get_by_test_id("question").select_option("derived")
    bar = page.locator(".jv-player .jv-play-bar")
    assert bar.evaluate(IN_ROWS) == 3
    assert bar.bounding_box()["height"] < 180


def test_a_diff_stands_above_its_figures_in_a_narrow_page(tab, versions):
    page = tab.page
    page.set_viewport_size({"width": 700, "height": 900})
    page.goto(versions)
    page.get_by_test_id("view-diff").click()
    page.wait_for_selector("[data-testid=diff-line]")
    unfold(page, "details")
    found = boxes(page, ("diff", "changes", "inspector"))
    for above, below in pairwise(found):
        assert above["y"] + above["height"] <= below["y"] + 1
    assert all(box["width"] > 680 and box["height"] > 100 for box in found)


def test_the_explorer_is_as_high_as_the_notebook_until_it_is_dragged(in_lab):
    page = run_in_lab(in_lab, "e = jaxviz.explore(loss, *args)\ne")
    explorer = page.get_by_test_id("explorer")
    explorer.scroll_into_view_if_needed()
    height = lambda: explorer.bounding_box()["height"]
    notebook = page.locator(".jp-NotebookPanel .jp-WindowedPanel-outer").bounding_box()
    assert height() == pytest.approx(notebook["height"], abs=30)
    before = height()
    page.set_viewport_size({"width": 1600, "height": 900})
    page.wait_for_function("before => document.querySelector('.jaxviz').clientHeight < before - 150", arg=before)
    # A drag of the lower right corner.
    explorer.evaluate("e => e.scrollIntoView({ block: 'end' })")
    box = explorer.bounding_box()
    corner = box["x"] + box["width"] - 5, box["y"] + box["height"] - 5
    page.mouse.move(*corner)
    page.mouse.down()
    page.mouse.move(corner[0], corner[1] - 120, steps=4)
    page.mouse.up()
    assert height() == pytest.approx(box["height"] - 120, abs=2)
    page.wait_for_timeout(300)
    assert int(ask_kernel(page, "e.height")) == pytest.approx(height(), abs=1)
    page.set_viewport_size({"width": 1600, "height": 1100})
    assert height() == pytest.approx(box["height"] - 120, abs=2)


IN_SIGHT = """() => {
    const [pane, heads, line] = [".jv-source-body", ".jv-amount-heads", ".jv-src.is-selected"]
        .map((each) => document.querySelector(each).getBoundingClientRect());
    return heads.bottom <= line.top && line.top < pane.bottom;
}"""


def test_the_selected_line_stays_in_sight_in_each_question(tab, six_layers, tmp_path):
    page = tab.page
    page.goto(six_layers.save_html(tmp_path / "page.html").as_uri())
    page.get_by_test_id("headline").wait_for()
    resize(page, 848, 655)
    page.get_by_test_id("view-kept").click()
    page.get_by_test_id("residual-row").first.click()
    for question in ("lines", "cost", "what-if", "kept"):
        page.get_by_test_id(f"view-{question}").click()
        page.wait_for_function(IN_SIGHT)
