"""The overview that an explorer opens with: in the first notebook, and in a saved page, checked with axe and at three widths."""

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
    six_layers.overview = True
    path = six_layers.save_html(tmp_path_factory.mktemp("page") / "overview.html")
    six_layers.overview = False
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
    expect(page.get_by_test_id("motion-said")).to_contain_text("It saves jax.nn.gelu(")
    expect(shelf).to_contain_text("KiB")
    expect(page.get_by_test_id("source").locator("mark.jv-aimed")).to_contain_text("jax.nn.gelu(")
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
