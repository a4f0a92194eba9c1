"""The overview that an explorer opens with: in the first notebook, and in a saved page, with axe, at three widths."""

import re

import pytest
from playwright.sync_api import expect
from test_accessibility import violations
from tour import unfold

import jaxviz
from jaxviz.report.tables import format_bytes
from notebooks import light

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def shown(six_layers, tmp_path_factory):
    six_layers.question = "overview"
    path = six_layers.save_html(tmp_path_factory.mktemp("page") / "overview.html")
    six_layers.question = ""
    return six_layers, path


@pytest.mark.parametrize(
    ("width", "theme"),
    [(1280, "dark"), (600, "light")]
    + [
        pytest.param(*other, marks=pytest.mark.slow(sweep=True))
        for other in [(1280, "light"), (900, "light"), (900, "dark"), (600, "dark")]
    ],
    indirect=["theme"],
)
def test_it_says_what_is_kept_where_and_what_would_help(tab, shown, width):
    explorer, path = shown
    tab.page.set_viewport_size({"width": width, "height": 800})
    tab.page.goto(path.as_uri())
    page = tab.page.get_by_test_id("explorer")
    residuals, memory = explorer.derivation.residuals, jaxviz.memory(explorer.derivation)
    expect(page.get_by_test_id("headline")).to_contain_text(f"saves {residuals.saved.size}")
    expect(page.get_by_test_id("headline")).to_contain_text(f"peak {format_bytes(memory.peak_nbytes)}")
    expect(page.get_by_test_id("advice")).to_contain_text(re.compile("more work would bring the peak to"))
    expect(page.get_by_test_id("scope").filter(has_text="layer × 6")).to_have_count(2)
    expect(page.get_by_test_id("card")).to_have_count(3)
    expect(page.get_by_test_id("card").first).to_contain_text("jax.nn.gelu(")
    tab.page.wait_for_timeout(200)
    tab.screenshot(f"overview-{width}")
    wide = tab.page.evaluate("() => document.scrollingElement.scrollWidth <= innerWidth")
    assert wide
    assert violations(tab.page) == ""


@light
def test_what_is_kept_leads_to_its_equations_and_back(tab, shown):
    _, path = shown
    tab.page.set_viewport_size({"width": 1280, "height": 800})
    tab.page.goto(path.as_uri())
    page = tab.page.get_by_test_id("explorer")
    # The source begins with the line for which most is saved.
    expect(page.get_by_test_id("source-line").filter(has_text="jax.nn.gelu(")).to_be_in_viewport(ratio=1)
    row = page.get_by_test_id("kept-row").first
    row.hover()
    expect(page.get_by_test_id("source").locator("mark.jv-aimed")).to_contain_text("jax.nn.gelu(")
    expect(page.get_by_test_id("overview-said")).to_contain_text("In memory from step")
    row.click()
    for side, stage in (("left", "forward"), ("right", "backward")):
        expect(page.get_by_test_id(f"code-{side}")).to_have_attribute("data-stage", stage)
    unfold(page, "details")
    expect(page.get_by_test_id("inspector")).to_contain_text("jax.nn.gelu(")
    tab.page.keyboard.press("h")
    expect(page.get_by_test_id("overview")).to_be_visible()
    expect(page.locator(".jv-ov-row.is-lit")).to_have_count(1)
    # With only the keyboard: from scope to scope, and into a scope's equations.
    tab.page.get_by_test_id("scope").first.focus()
    for key in ("ArrowRight", "ArrowDown", "Enter"):
        tab.page.keyboard.press(key)
    expect(page.get_by_test_id("code-left")).to_be_visible()
    expect(page.locator(".cm-line.is-selected").first).to_be_visible()


def test_the_gradient_is_seen_in_motion(tab, shown):
    _, path = shown
    tab.page.set_viewport_size({"width": 1280, "height": 800})
    tab.page.goto(path.as_uri())
    page = tab.page.get_by_test_id("explorer")
    page.get_by_test_id("view-motion").click()
    shelf = page.get_by_test_id("shelf").filter(has_text="jax.nn.gelu(")
    expect(shelf).to_contain_text("–")
    while "jax.nn.gelu(" not in page.get_by_test_id("motion-said").inner_text():
        tab.page.keyboard.press("ArrowDown")
    expect(page.get_by_test_id("motion-said")).to_contain_text(re.compile(r"It saves .*jax\.nn\.gelu\("))
    expect(shelf).to_contain_text("KiB")
    expect(page.get_by_test_id("source").locator(".is-aimed")).to_contain_text("jax.nn.gelu(")
    count = page.get_by_test_id("motion-count").inner_text()
    tab.page.keyboard.press("Space")
    expect(page.get_by_test_id("motion-count")).not_to_have_text(count)
    tab.page.keyboard.press("Space")
    tab.page.wait_for_timeout(600)
    tab.screenshot("motion")
    assert violations(tab.page) == ""
    tab.page.keyboard.press("End")
    expect(shelf).not_to_contain_text("KiB")  # values of a few bytes are alive until the end
    expect(page.get_by_test_id("motion-now")).to_contain_text("backward pass")
    shelf.click()
    expect(page.get_by_test_id("code-left")).to_have_attribute("data-stage", "forward")


def test_the_time_axis_zooms_and_an_interval_lists_its_equations(tab, shown):
    explorer, path = shown
    page, mouse, keys = tab.page, tab.page.mouse, tab.page.keyboard
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(path.as_uri())
    n = len(jaxviz.memory(explorer.derivation).steps)
    said = page.get_by_test_id("overview").get_by_test_id("time-said")
    whole = f"{n:,} steps"
    expect(said).to_have_text(whole)

    def visible(of=said):
        first, last = re.search(r"steps ([\d,]+) to ([\d,]+) of", of.inner_text()).groups()
        return int(first.replace(",", "")), int(last.replace(",", ""))

    def pointed():
        return int(re.search(r"step ([\d,]+)", page.get_by_test_id("overview-said").inner_text())[1].replace(",", ""))

    memory = page.get_by_test_id("overview-memory")
    box = memory.bounding_box()

    def at(share):
        return box["x"] + share * box["width"], box["y"] + box["height"] / 2

    def drag(start, end):
        mouse.move(*at(start))
        mouse.down()
        mouse.move(*at(end), steps=4)
        mouse.up()

    # Nothing scrolls there, so that the wheel zooms; what is under the pointer stays there, and no row moves.
    mouse.move(*at(0.25))
    step = pointed()
    mouse.wheel(0, -600)
    expect(said).not_to_have_text(whole)
    first, last = visible()
    assert 1 < first < last < n
    mouse.move(at(0.25)[0] + 1, at(0.25)[1])
    assert abs(pointed() - step) < n / 100  # a column has several steps
    assert memory.bounding_box() == box
    drag(0.6, 0.4)
    assert visible()[0] > first
    assert page.get_by_test_id("overview").is_visible()
    mouse.dblclick(*at(0.5))
    expect(said).to_have_text(whole)
    # Keys zoom about the cursor, which stays in view.
    memory.focus()
    for key in ("ArrowRight", "+", "+", "+"):
        keys.press(key)
    first, last = visible()
    assert last - first < n / 4
    assert first <= pointed() <= last
    keys.press("0")
    expect(said).to_have_text(whole)
    page.get_by_test_id("overview").get_by_test_id("time-peak").click()
    first, last = visible()
    assert first <= jaxviz.memory(explorer.derivation).peak + 1 <= last
    # The same part is seen in the other charts over time.
    keys.press("m")
    expect(page.get_by_test_id("memory").get_by_test_id("time-said")).to_have_text(
        f"steps {first:,} to {last:,} of {n:,}"
    )
    tab.screenshot("zoomed")
    keys.press("h")
    keys.down("Shift")
    drag(0.3, 0.7)
    keys.up("Shift")
    rows = page.get_by_test_id("cost")
    expect(page.get_by_test_id("costs-by")).to_have_value("equation")
    listed = page.get_by_test_id("costs").locator(".jv-pane-head")
    expect(listed).to_contain_text(re.compile(r"steps [\d,]+ to [\d,]+"))
    start, end = re.search(r"steps ([\d,]+) to ([\d,]+)", listed.inner_text()).groups()
    steps = jaxviz.memory(explorer.derivation).steps[int(start.replace(",", "")) - 1 : int(end.replace(",", ""))]
    counts = [
        int(re.match(r"(?:([\d,]+) × )?", text)[1] or 1) for text in rows.locator(".jv-col-name").all_inner_texts()
    ]
    assert sum(counts) == len(steps)
    assert {s.equation.primitive.name for s in steps} == {
        re.search(r"(?:× )?([a-z_0-9]+) ", text)[1] for text in rows.locator(".jv-col-name").all_inner_texts()
    }
    assert violations(page) == ""


QUESTIONS = {"saved": "kept"} | {name: name for name in ("motion", "lines", "derived", "cost", "what-if")}


@light
def test_a_page_opens_with_the_question_that_was_asked(tab, six_layers, tmp_path):
    for question, view in QUESTIONS.items():
        six_layers.question = question
        path = six_layers.save_html(tmp_path / f"{question}.html")
        six_layers.question = ""
        tab.page.goto(path.as_uri())
        expect(tab.page.get_by_test_id(f"view-{view}")).to_have_attribute("aria-pressed", "true")
