"""The first notebook in a real JupyterLab, and the saved page, in a real browser and both themes."""

import re

import jax
import jax.numpy as jnp
import pytest
from jupyter_lab import KERNEL_IDLE, ask_kernel, kernel_gets_to
from playwright.sync_api import expect
from short_runs import short
from tour import unfold

import jaxviz
from benchmarks.models import transformer
from jaxviz.analysis.modules import call_path
from notebooks import RUN_ALL, light, run_in_lab

pytestmark = pytest.mark.browser


LAYERS = """
def loss(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)

args = [jnp.ones((9, 9))] * 3, jnp.ones((50, 9))
"""


@pytest.fixture
def notebook(in_lab):
    """An open notebook that has run, with an explorer of a small network."""
    run_in_lab(
        in_lab, LAYERS, "derivation = jaxviz.derive(loss, *args)\nexplorer = jaxviz.explore(derivation)\nexplorer"
    )
    in_lab.page.wait_for_selector("[data-testid=explorer] .cm-line[data-row]")
    return in_lab


def explorer_of(page):
    found = page.get_by_test_id("explorer").first  # the first notebook has an animation below it
    found.scroll_into_view_if_needed()
    return found


def test_the_first_notebook_shows_the_explorer(in_lab):
    # In the other tests' kernel, an explorer does not open with the overview.
    in_lab.open("00_first_look.ipynb", own_kernel=True)
    in_lab.page.evaluate(RUN_ALL)
    in_lab.page.wait_for_selector("[data-testid=explorer] [data-testid=scope]", state="attached", timeout=90_000)
    in_lab.page.wait_for_function(KERNEL_IDLE, timeout=60_000)
    explorer = explorer_of(in_lab.page)
    expect(explorer.get_by_test_id("card").first).to_contain_text("x = jnp.tanh(x @ w + b)")
    in_lab.screenshot("notebook-overview")
    explorer.get_by_test_id("view-kept").click()
    badge = explorer.get_by_test_id("badge")
    expect(badge).to_contain_text(re.compile(r"residuals as in JAX [\d.]+: (\d+) of \1"))
    # Its one expression of several rows is open.
    rows = explorer.locator("[data-testid=residual-row]:not(.is-expression)")
    expect(rows).to_have_count(int(ask_kernel(in_lab.page, "len(derivation.residuals.groups)")))
    expect(explorer.get_by_test_id("residuals")).to_contain_text("gradient (tanh)")
    expect(explorer.get_by_test_id("source")).to_contain_text("x = jnp.tanh(x @ w + b)")
    expect(explorer.get_by_test_id("code-left").locator(".cm-line", has_text="tanh").first).to_be_visible()
    in_lab.screenshot("notebook")


@light
def test_keys_stay_inside_the_widget_and_figures_are_those_of_python(notebook):
    page = notebook.page
    explorer = explorer_of(page)
    unfold(explorer, "details")
    cells = page.locator(".jp-Notebook .jp-Cell").count()
    explorer.get_by_test_id("code-left").locator(".cm-line[data-row] .jv-primitive").first.click()
    for key in ("b", "a", "d", "d", "f"):  # in a notebook, `d d` deletes a cell and `b` inserts one below
        page.keyboard.press(key)
    page.keyboard.type("tanh dd b")
    expect(explorer.get_by_test_id("filter")).to_have_value("tanh dd b")
    assert page.locator(".jp-Notebook .jp-Cell").count() == cells

    explorer.get_by_test_id("filter").fill("tanh")
    tanhs = "[r for r in derivation.residuals if 'tanh' in f'{r.rule} {r.reason}']"
    sizes = "from jaxviz.report.tables import format_bytes"
    ask_kernel(page, f"exec('{sizes}')")
    kept = ask_kernel(page, f"format_bytes(sum(r.nbytes for r in {tanhs} if r.is_saved))")
    found = "derivation.residuals"
    shown = f"[g for g in {found}.groups if set(g.residuals) & set({tanhs})]"
    in_rows = f"{{next((e for e in {found}.expressions if g in e.groups), g) for g in {shown}}}"
    n, rows, total = ask_kernel(page, f"len({tanhs}), len({in_rows}), len({found})").split()
    expect(explorer.get_by_test_id("residual-row")).to_have_count(int(rows))
    expect(explorer.get_by_test_id("residual-total")).to_contain_text(f"{n} of {total} values: saves {kept} in ")
    notebook.screenshot("filtered")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")

    page.keyboard.press("m")
    timeline = explorer.get_by_test_id("timeline")
    peak = ask_kernel(page, "format_bytes(__import__('jaxviz').memory(derivation).peak_nbytes)")
    expect(timeline).to_contain_text(f"peak {peak}")
    box = timeline.bounding_box()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 0.5 * box["height"])
    tip = explorer.get_by_test_id("memory-tip")
    step = int(re.search(r"step (\d+) of \d+, backward", tip.inner_text())[1])
    here = f"__import__('jaxviz').memory(derivation).steps[{step - 1}]"
    expect(tip).to_contain_text(ask_kernel(page, f"format_bytes({here}.total)"))
    page.mouse.down()
    page.mouse.up()
    expect(explorer.get_by_test_id("inspected")).to_have_text(ask_kernel(page, f"{here}.equation.primitive.name"))
    kernel_gets_to(page, f"explorer.equation is {here}.equation", "True")
    notebook.screenshot("memory-selected")
    # Python selects, and the page follows.
    ask_kernel(page, "setattr(explorer, 'selected', 'forward:3')")
    expect(explorer.get_by_test_id("code-left")).to_have_attribute("data-stage", "forward")
    name = ask_kernel(page, "[e for _, e in derivation.forward.walk()][3].primitive.name")
    expect(explorer.get_by_test_id("inspected")).to_have_text(name)


@light
def test_an_address_is_searched_as_in_python_and_the_selection_has_one(notebook):
    page = notebook.page
    explorer = explorer_of(page)
    unfold(explorer, "details")
    box = explorer.get_by_test_id("search")
    box.fill("tanh(_ @ _)")
    found = explorer.locator("[data-head^=addresses] [data-testid=found]")
    expect(found.first).to_contain_text("x #1")
    expect(found).to_have_count(3)
    found.nth(1).click()
    kernel_gets_to(page, "explorer.equation.primitive.name", "tanh")
    expect(explorer.get_by_test_id("addresses").locator("code")).to_have_text("x #2")
    ask_kernel(page, "explorer.select(jaxviz.at('x #3', phase='cotangent'))")
    expect(explorer.get_by_test_id("addresses")).to_contain_text("x #3 cotangent")
    box.fill("nothing of the kind")
    expect(found).to_have_count(0)


@light
def test_what_a_gradient_compiles_to(tab, tmp_path):
    def loss(w, x):
        for _ in range(6):
            x = jnp.tanh(x @ w) * jnp.cos(x)
        return jnp.sum(x)

    explorer = jaxviz.explore(loss, jnp.ones((9, 9)), jnp.ones((50, 9)))
    explorer.stage, explorer.beside = "backward", "compiled"
    page = tab.page
    page.goto(explorer.save_html(tmp_path / "page.html").as_uri())
    unfold(page)
    code, text = page.get_by_test_id("code-left"), page.get_by_test_id("code-right")
    # It opens on the memory, with the modelled one as a line; a row leads to its source line.
    memory = text.get_by_test_id("compiled-memory")
    expect(memory).to_contain_text("peak")
    expect(memory.locator(".jv-reference")).to_be_visible()
    memory.locator("tbody tr", has_text="jnp.tanh(x @ w)").first.click()
    expect(memory.locator("tr.is-selected").first).to_be_visible()
    expect(code.locator(".cm-line.is-selected").first).to_be_visible()
    tab.screenshot("compiled-memory")
    page.keyboard.press("Escape")
    text.get_by_test_id("text-hlo").click()
    expect(text.locator(".cm-line", has_text="ENTRY")).to_be_visible()
    lit = text.locator(".cm-line.is-selected")
    code.locator(".cm-line[data-row]", has_text="neg").locator(".jv-primitive").first.click()
    # The instruction itself, or the fusion that contains it.
    expect(lit.first).to_contain_text(re.compile(r" (negate|fusion)\("))
    text.get_by_test_id("text-stablehlo").click()
    expect(lit).to_have_count(1)
    expect(lit).to_contain_text("stablehlo.negate")
    tab.screenshot("compiled-stablehlo")
    text.locator(".cm-line.is-linked", has_text="stablehlo.dot_general").first.click()
    expect(page.get_by_test_id("inspected")).to_have_text("dot_general")
    page.keyboard.press("Escape")

    # The counterpart of the top line of one pane is visible in the other.
    scroller = lambda pane: pane.locator(".cm-scroller")
    top = lambda pane: scroller(pane).evaluate("e => e.scrollTop")
    scroller(code).evaluate("e => e.scrollTo(0, 0)")
    turn_wheel(page, scroller(code), 120)
    moved = top(text)
    turn_wheel(page, scroller(code), 5000)
    assert top(text) > moved
    page.get_by_test_id("link-scrolling").click()
    before = top(code)
    turn_wheel(page, scroller(text), -5000)
    assert top(text) == 0
    assert top(code) == before > 0


AT_REST = """async (e) => {
    const tops = () => [...document.querySelectorAll(".cm-scroller")].map((e) => e.scrollTop).join();
    await e.scrolled;
    let last;
    for (let still = 0; still < 3; still = tops() === last ? still + 1 : 0) {
        last = tops();
        await new Promise(requestAnimationFrame);
    }
}"""


def turn_wheel(page, scroller, by):
    """Turns the wheel over a pane, and waits until it has scrolled and no pane moves any more."""
    scroller.hover()
    scroller.evaluate(
        "e => { e.scrolled = new Promise((done) => e.addEventListener('scroll', done, { once: true })); }"
    )
    page.mouse.wheel(0, by)
    scroller.evaluate(AT_REST)


def test_the_code_pane_tells_values_apart_and_copies_them(tab, tmp_path):
    def loss(w, xs):
        def step(h, x):
            h = jnp.tanh(h @ w + x)
            return h, jnp.sin(h)

        _, ys = jax.lax.scan(step, jnp.zeros(3), jnp.exp(xs))
        return jnp.sum(ys**2)

    args = (jnp.ones((3, 3)), jnp.ones((1000, 3)))
    page = tab.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(jaxviz.explore(loss, *args).save_html(tmp_path / "page.html").as_uri())
    unfold(page, "stages")
    page.get_by_test_id("stage-forward").click()
    page.get_by_test_id("beside-backward").click()
    forward, backward = page.get_by_test_id("code-left"), page.get_by_test_id("code-right")

    # A value has the same hue in both panes, and is highlighted in both.
    variable = lambda text: forward.locator(".cm-line", has_text=text).locator(".jv-variable").first
    tanh, exp = (variable(text).evaluate("e => getComputedStyle(e).color") for text in ("tanh", "= exp"))
    assert tanh != exp
    variable("tanh").hover()
    expect(page.get_by_test_id("variable")).to_contain_text("jnp.tanh(h @ w + x)")
    expect(backward.locator(".is-pointed, .is-kin").first).to_be_visible()
    tab.screenshot("code-hover")

    page.get_by_test_id("copy-left").click()
    expect(forward.get_by_text("copied 12 equations as JAX text")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    shape = lambda text: re.sub(r"\b[a-z]{1,2}\b", "v", " ".join(text.split()))
    assert shape(copied) == shape(str(jaxviz.derive(loss, *args).forward.jaxpr))


def lay_out_by_graphviz(explorer):
    unfold(explorer, "stages")
    explorer.get_by_test_id("stage-forward").click()
    explorer.get_by_test_id("as-graph-left").click()
    explorer.get_by_test_id("graph-layout").select_option("graphviz")
    return explorer.get_by_test_id("graph-left")


@light
def test_graphviz_comes_from_the_kernel_when_it_is_first_used(notebook):
    graph = lay_out_by_graphviz(explorer_of(notebook.page))
    expect(graph).to_have_attribute("data-layout", "graphviz", timeout=15_000)
    notebook.screenshot("graph-by-graphviz")


@light
@pytest.mark.parametrize("held", short([True, False], []))
def test_a_page_lays_out_by_graphviz_where_it_holds_it(tab, tmp_path, held):
    f, args = transformer(1)
    tab.page.goto(jaxviz.explore(f, *args).save_html(tmp_path / "page.html", graphviz=held).as_uri())
    graph = lay_out_by_graphviz(tab.page)
    expect(graph).to_have_attribute("data-layout", "graphviz" if held else "layered")
    note = graph.locator(".jv-graph-wait")
    expect(note).to_have_text("" if held else re.compile("^Laid out without Graphviz"))


def test_the_graph_is_clicked(tab, tmp_path):
    f, args = transformer(3)
    page = tab.page
    page.goto(jaxviz.explore(f, *args).save_html(tmp_path / "page.html").as_uri())
    unfold(page, "stages")
    page.get_by_test_id("stage-forward").click()
    page.get_by_test_id("beside-forward").click()
    page.get_by_test_id("as-graph-left").click()
    canvas, code = page.get_by_test_id("graph-canvas-left"), page.get_by_test_id("code-right")
    current = lambda: page.locator(f"#{page.get_by_test_id('graph-tree').get_attribute('aria-activedescendant')}")
    search = page.get_by_test_id("graph-search")
    search.fill("dot_general scope:attention")
    n = len([e for e in jaxviz.derive(f, *args).forward.equations if is_product_of_attention(e)])
    search.press("Enter")
    expect(page.get_by_test_id("graph-hits")).to_have_text(f"1 of {n}")
    expect(code.locator(".cm-line.is-selected")).to_contain_text("dot_general")

    # Zooming to the selection centres it.
    search.press("Escape")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("z")
    expect(current()).to_contain_text("reshape")
    page.keyboard.press("Escape")
    expect(code.locator(".cm-line.is-selected")).to_have_count(0)
    canvas.click()
    expect(code.locator(".cm-line.is-selected")).to_contain_text("reshape")
    tab.screenshot("graph")
    page.keyboard.press("c")
    page.keyboard.press("Shift+ArrowUp")
    page.keyboard.press("Enter")
    expect(current()).to_have_attribute("aria-expanded", "false")
    box = canvas.bounding_box()
    page.keyboard.press("z")
    page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(current()).to_have_attribute("aria-expanded", "true")


def is_product_of_attention(equation):
    return equation.primitive.name == "dot_general" and "attention" in call_path(equation)
