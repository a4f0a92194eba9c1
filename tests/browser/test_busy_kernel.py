"""The explorer where the kernel is busy, gone or begun anew, and where one widget has several views."""

import re

import pytest
from playwright.sync_api import expect
from test_front_ends import run_in_lab, works

pytestmark = [pytest.mark.browser, pytest.mark.parametrize("theme", ["light"], indirect=True)]

NO_KERNEL = "() => jupyterapp.shell.currentWidget.sessionContext.shutdown()"
RESTART = "() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
GONE = "The kernel that made this is gone. Run the cell again to see it."


def test_two_views_of_one_widget_follow_each_other(lab, tab):
    page = run_in_lab(lab, tab, "e = jaxviz.explore(loss, *args)\ndisplay(e)", "display(e)")
    explorers = page.get_by_test_id("explorer")
    expect(explorers).to_have_count(2, timeout=60_000)
    first, second = explorers.nth(0), explorers.nth(1)
    works(first)
    expect(second.get_by_test_id("inspected")).to_have_text("tanh")
    second.get_by_test_id("stage-backward").click()
    expect(first.get_by_test_id("code-left")).to_have_attribute("data-stage", "backward")
    page.evaluate(
        """() => {
        const { content } = jupyterapp.shell.currentWidget;
        content.widgets[1].model.clearExecution();
    }"""
    )
    expect(explorers).to_have_count(1)
    explorers.get_by_test_id("stage-primal").click()
    works(explorers)


@pytest.mark.parametrize("end", [NO_KERNEL, RESTART], ids=["shut down", "restarted"])
def test_panes_go_on_without_their_kernel(lab, tab, end):
    page = run_in_lab(lab, tab, "jaxviz.explore(loss, *args)")
    explorer = page.get_by_test_id("explorer")
    works(explorer)
    page.evaluate(end)
    explorer.get_by_test_id("stage-backward").click()
    line = explorer.get_by_test_id("code-left").locator(".cm-line[data-row]", has_text=re.compile("= mul")).first
    line.locator(".jv-primitive").click()
    expect(explorer.get_by_test_id("inspected")).to_have_text("mul")
    explorer.get_by_test_id("as-graph-left").click()
    expect(explorer.get_by_test_id("graph-canvas-left")).to_be_visible()
    explorer.get_by_test_id("as-code-left").click()
    explorer.get_by_test_id("filter").fill("tanh")
    expect(explorer.get_by_test_id("residual-row").first).to_be_visible()
    explorer.get_by_test_id("stage-compiled").click()
    said = explorer.get_by_test_id("no-answer")
    expect(said).to_contain_text(GONE, timeout=12_000)
    said.get_by_test_id("again").click()
    expect(said).to_contain_text(GONE)
    assert explorer.evaluate("e => e.contains(document.activeElement)")
    explorer.get_by_test_id("stage-primal").click()
    works(explorer)


def test_a_widget_closed_while_it_is_shown_leaves_no_error(lab, tab):
    page = run_in_lab(
        lab,
        tab,
        "e = jaxviz.explore(loss, *args)\ndisplay(e)\ne.close()",
        "g = jaxviz.explore(loss, *args)\ng._answer(g, 'fill', [])\ng.close()\ng._answer(g, 'compile', [])\ndisplay(jaxviz.explore(loss, *args))",
    )
    works(page.get_by_test_id("explorer").last)


@pytest.mark.parametrize("end", [NO_KERNEL, RESTART], ids=["shut down", "restarted"])
def test_what_was_not_derived_says_that_its_kernel_is_gone(lab, tab, end):
    # In a box it is the page that asks for the programs; here nobody answers.
    cell = "import ipywidgets\ne = jaxviz.explore(loss, *args)\ne.on_msg(e._answer, remove=True)\nipywidgets.VBox([e])"
    page = run_in_lab(lab, tab, cell)
    explorer = page.get_by_test_id("explorer")
    expect(explorer.get_by_test_id("loading")).to_be_visible()
    page.evaluate(end)
    said = explorer.get_by_test_id("no-answer")
    expect(said).to_contain_text(GONE, timeout=12_000)
    again = said.get_by_test_id("again")
    again.click()
    expect(said).to_contain_text(GONE)
    assert explorer.evaluate("e => e.contains(document.activeElement)")
