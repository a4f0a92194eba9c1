"""The explorer with a kernel that is busy, gone or restarted, and with several views of one widget."""

import re

import nbformat
import pytest
from jupyter_lab import ask_kernel
from playwright.sync_api import expect
from short_runs import short
from tour import unfold

from notebooks import RESTART, SHUT_DOWN, light, run, run_in_lab, save, widgets, works

pytestmark = [pytest.mark.browser, light]
DIE = """async () => {
    const { kernel } = jupyterapp.shell.currentWidget.sessionContext.session;
    kernel.requestExecute({ code: "import os; os.kill(os.getpid(), 9)" }).done.catch(() => {});
    const found = () => document.querySelector(".jp-Dialog .jp-mod-accept");
    while (!found()) await new Promise((done) => setTimeout(done, 100));
    found().click();
}"""
GONE = "The kernel that made this has shut down or restarted. Run the cell again to see it."


@pytest.mark.slow(sweep=True)
def test_two_views_of_one_widget_follow_each_other(in_lab):
    page = run_in_lab(in_lab, "e = jaxviz.explore(loss, *args)\ndisplay(e)", "display(e)")
    explorers = page.get_by_test_id("explorer")
    expect(explorers).to_have_count(2, timeout=60_000)
    first, second = explorers.nth(0), explorers.nth(1)
    works(first)
    unfold(second)
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


@pytest.mark.parametrize("end", short([SHUT_DOWN, RESTART, DIE], [RESTART]), ids=["shut down", "restarted", "killed"])
def test_panes_go_on_without_their_kernel(in_lab, end):
    # In a box, the page requests the programs; here nobody answers.
    unanswered = (
        "import ipywidgets\ne = jaxviz.explore(loss, *args)\ne.on_msg(e._answer, remove=True)\nipywidgets.VBox([e])"
    )
    page = run_in_lab(in_lab, "jaxviz.explore(loss, *args)", unanswered, own_kernel=True)
    explorer, empty = page.get_by_test_id("explorer").first, page.get_by_test_id("explorer").last
    works(explorer)
    expect(empty.get_by_test_id("loading")).to_be_visible()
    page.evaluate(end)
    explorer.get_by_test_id("stage-backward").click()
    line = explorer.get_by_test_id("code-left").locator(".cm-line[data-row]", has_text=re.compile("= mul")).first
    line.locator(".jv-primitive").click()
    expect(explorer.get_by_test_id("inspected")).to_have_text("mul")
    explorer.get_by_test_id("as-graph-left").click()
    expect(explorer.get_by_test_id("graph-canvas-left")).to_be_visible()
    explorer.get_by_test_id("as-code-left").click()
    explorer.get_by_test_id("view-kept").click()
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

    # An explorer without programs says that its kernel is gone.
    said = empty.get_by_test_id("no-answer")
    expect(said).to_contain_text(GONE, timeout=12_000)
    expect(said).to_have_css("padding-left", "16px")  # styles apply before the programs arrive
    said.get_by_test_id("again").click()
    expect(said).to_contain_text(GONE)
    assert empty.evaluate("e => e.contains(document.activeElement)")


MANY = 50
HEAP = "() => performance.memory.usedJSHeapSize / 2 ** 20"


@pytest.mark.slow(sweep=True)
def test_many_explorers_share_a_page(in_lab):
    page = in_lab.page
    before = page.evaluate(HEAP)
    # One in each cell: JupyterLab folds what follows the first fifty outputs of a cell.
    run_in_lab(in_lab, *(f"jaxviz.explore(lambda w, x: loss(w, x) * {i}, *args)" for i in range(MANY)))
    explorers = page.get_by_test_id("explorer")
    expect(explorers).to_have_count(MANY, timeout=60_000)
    for explorer in (explorers.last, explorers.first):
        works(explorer)
    assert page.evaluate(HEAP) - before < 100


@pytest.mark.slow(sweep=True)
def test_a_widget_closed_while_it_is_shown_leaves_no_error(in_lab):
    page = run_in_lab(
        in_lab,
        "e = jaxviz.explore(loss, *args)\ndisplay(e)\ne.close()",
        "g = jaxviz.explore(loss, *args)\ng._answer(g, 'fill', [])\ng.close()\ng._answer(g, 'compile', "
        "[])\ndisplay(jaxviz.explore(loss, *args))",
    )
    works(page.get_by_test_id("explorer").last)


SLOWLY = """
import time
from jaxviz.features.explorer import whatif
from jaxviz.xla.explorer_stage import compiled
from jaxviz.progress import each

def slowly(work, what, seconds):
    def slow(*args):
        each(lambda i: time.sleep(seconds / 8), range(8), what)
        return work(*args)
    return slow

quick = whatif.Switches
whatif.Switches = slowly(quick, "plans", 8)
compiled.compiled = slowly(compiled.compiled, "parts", 4)

def deep(w, x):  # so long that its switches are only made when they are looked at
    for _ in range(3_001):
        x = jnp.sin(x)
    return loss(w, x)
"""


KERNEL = "jupyterapp.shell.currentWidget.sessionContext.session.kernel"
ENDLESS = f"""() => {{
    const cell = {KERNEL}.requestExecute({{ code: "while True: time.sleep(0.01)", store_history: false }});
    globalThis.runs = true;
    cell.done.finally(() => {{ globalThis.runs = false; }}).catch(() => {{}});
}}"""
INTERRUPT = f"() => {KERNEL}.interrupt()"


@pytest.mark.slow(sweep=True)
def test_long_work_says_how_far_it_is_and_can_be_stopped(in_lab):
    page = run_in_lab(in_lab, SLOWLY, "e = jaxviz.explore(deep, *args)\ne", own_kernel=True)
    explorer = page.get_by_test_id("explorer")
    explorer.scroll_into_view_if_needed()
    explorer.get_by_test_id("view-what-if").click()
    waiting = explorer.get_by_test_id("waiting")
    button = waiting.get_by_test_id("cancel")
    expect(waiting.get_by_test_id("elapsed")).to_have_text(re.compile(r"^\d s · [1-7] of 8 plans$"), timeout=20_000)
    expect(button).to_have_text("Cancel")
    in_lab.screenshot("waiting")
    # While a user's cell is running, which must continue.
    page.evaluate(ENDLESS)
    button.click()
    expect(waiting).to_contain_text("Stopped.")
    assert page.evaluate("() => runs")
    page.evaluate(INTERRUPT)
    assert ask_kernel(page, "e.what_if == ''") == "True"
    in_lab.screenshot("stopped")
    ask_kernel(page, "setattr(whatif, 'Switches', quick)")
    waiting.get_by_test_id("again").click()
    expect(explorer.get_by_test_id("what-if-figures")).to_be_visible(timeout=60_000)

    # JAX's input to XLA is shown while XLA compiles, and the kernel is free again after stopping it.
    unfold(explorer, "stages")
    explorer.get_by_test_id("stage-compiled").click()
    compiling = explorer.get_by_test_id("compiling")
    button = compiling.get_by_test_id("cancel")
    expect(button).to_have_text("Cancel", timeout=20_000)
    expect(button).to_be_visible()
    expect(compiling.get_by_test_id("elapsed")).to_have_text(re.compile(r"^\d s"))
    expect(explorer.get_by_test_id("code-left").locator(".cm-line", has_text="stablehlo.sine").first).to_be_visible()
    in_lab.screenshot("compiling")
    button.click()
    expect(compiling).to_contain_text("Stopped.")
    assert ask_kernel(page, "e.compiled == '' != e.lowered") == "True"
    in_lab.screenshot("compiling-stopped")
    compiling.get_by_test_id("again").click()
    expect(compiling.get_by_test_id("elapsed")).to_be_visible(timeout=20_000)
    pane = explorer.get_by_test_id("code-left")
    title = pane.locator(".jv-pane-head strong")
    assert title.bounding_box()["x"] - pane.bounding_box()["x"] < 20
    expect(pane.get_by_label("which text")).to_be_hidden()
    # Showing a pane again sends no second request, and the kernel does not count as silent.
    explorer.get_by_test_id("stage-primal").click()
    explorer.get_by_test_id("stage-compiled").click()
    expect(compiling.get_by_test_id("elapsed")).to_be_visible()
    expect(explorer.get_by_test_id("text-hlo")).to_be_visible(timeout=30_000)


BEGINS = """
import time
from jaxviz.features.explorer import widget

def later(maker, first=widget.first_payload):
    time.sleep(3)
    return first(maker)

widget.first_payload = later

def long(w, x):
    for _ in range(2100):
        x = jnp.sin(x)
    return loss(w, x)

e = jaxviz.explore(long, *args)
e.question = "overview"
"""


@pytest.mark.slow(sweep=True)
def test_what_is_saved_is_there_before_the_programs_and_stays_where_it_is(in_lab):
    page = run(in_lab, BEGINS, "e", own_kernel=True, waits=False)
    kept, explorer = page.get_by_test_id("kept-row"), page.get_by_test_id("explorer")
    expect(kept.first).to_be_visible(timeout=60_000)
    expect(explorer).to_have_class(re.compile("is-outline"))
    boxes = lambda: [row.bounding_box() for row in (*kept.all(), explorer.get_by_test_id("source"))]
    begun, texts = boxes(), kept.all_text_contents()
    in_lab.screenshot("outline")
    expect(page.locator("[data-testid=overview-memory] svg")).to_be_visible(timeout=60_000)
    expect(explorer).not_to_have_class(re.compile("is-outline"))
    assert (boxes(), kept.all_text_contents()) == (begun, texts)
    in_lab.screenshot("outline-drawn")


BAR = """
import time
from jaxviz.progress import each
done = each(lambda i: time.sleep(0.5), range(8), "plans")
"""


@pytest.mark.slow(sweep=True)
def test_a_cell_that_takes_long_has_a_bar_that_goes(in_lab):
    page = run(in_lab, BAR, "print('go' + 'ne')", waits=False)
    bar = page.locator(".jp-OutputArea-output", has_text="plans: ")
    expect(bar).to_be_visible(timeout=60_000)
    in_lab.screenshot("bar")
    expect(page.get_by_text("gone", exact=True)).to_be_visible(timeout=20_000)
    expect(bar).to_have_count(0)
    assert page.locator(".jp-OutputArea-output").first.bounding_box()["height"] == 0
    in_lab.screenshot("no-bar")
    save(page, in_lab.path)
    saved = nbformat.read(in_lab.path, as_version=4)  # with the lines of a text joined
    nbformat.validate(saved)
    assert saved.cells[1].outputs[0]["data"] == {"text/plain": "", "text/html": ""}
    assert not widgets(saved)
