"""Reports in a cell: drawings at typical window widths, working links, and what remains in an untrusted notebook."""

import re

import jax.numpy as jnp
import nbformat
import pytest
from jupyter_lab import KERNEL_IDLE
from playwright.sync_api import expect

import jaxviz
from notebooks import RUN_ALL, plain_notebook, save

pytestmark = pytest.mark.browser

MODEL = """import jax.numpy as jnp


def loss(params, x):
    for w in params:
        x = jnp.tanh(x @ w)
    return (x**2).sum()
"""

CELLS = {
    "load": "import jax.numpy as jnp, jaxviz\nfrom shown_model import loss\nparams, x = [jnp.ones((64, 64))] * 3, "
    "jnp.ones((8, 64))",
    "inline": "def inline(x):\n    return jnp.log(x).sum()",
    "empty": "\n" * 60,
    "residuals": "jaxviz.residuals(loss, params, x)",
    "memory": "jaxviz.memory(loss, params, x)",
    "nan": "jaxviz.find_nan(inline, jnp.array([1.0, 0.0]))",
}

# Measures a drawing: its width, the available width, its text size, and whether its ink has the page's colour.
MEASURED = """(output) => {
    const svg = output.querySelector(".jaxviz-picture svg"), text = svg.querySelector("text");
    const ink = (node) => getComputedStyle(node).color;
    return {
        wide: svg.getBoundingClientRect().width,
        room: output.querySelector(".jaxviz-picture").clientWidth,
        text: 12 * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width,
        hasInk: ink(text) === ink(output),
    };
}"""


def output_of(page, name):
    """The output of a cell, scrolled into view."""
    place = list(CELLS).index(name)
    page.evaluate("(i) => jupyterapp.shell.currentWidget.content.scrollToItem(i, 'start')", place)
    found = page.locator(f'.jp-Cell[data-windowed-list-index="{place}"] .jp-RenderedHTML').first
    found.wait_for()
    return found


def test_reports_open_with_a_drawing_and_lead_to_the_source(in_lab):
    page = in_lab.page
    (in_lab.lab.folder / "shown_model.py").write_text(MODEL)
    cells = (nbformat.v4.new_code_cell(source, id=f"cell-{name}") for name, source in CELLS.items())
    nbformat.write(plain_notebook(*cells), in_lab.lab.folder / "reports.ipynb")
    in_lab.open("reports.ipynb", own_kernel=True)
    page.evaluate(RUN_ALL)
    expect(page.locator(".jaxviz-picture svg").first).to_be_visible(timeout=60_000)
    page.wait_for_function(KERNEL_IDLE, timeout=60_000)
    for width in (900, 1280):
        page.set_viewport_size({"width": width, "height": 1000})
        for name in ("residuals", "memory", "nan"):
            output = output_of(page, name)
            measured = output.evaluate(MEASURED)
            assert measured["wide"] <= measured["room"] + 1, (name, width)
            assert measured["text"] >= 11, (name, width)
            assert measured["hasInk"], (name, width)
            assert output.locator("> *:not(style)").first.get_attribute("class") == "jaxviz-picture"
        in_lab.screenshot(f"reports-{width}")

    save(page, in_lab.path)
    outer = page.locator(".jp-WindowedPanel-outer")
    before = outer.evaluate("(node) => node.scrollTop")
    link = output_of(page, "nan").get_by_role("link", name=re.compile(r"In\[\d+\]:2")).first
    assert link.get_attribute("href").endswith("#cell-id=cell-inline")
    link.click()
    page.wait_for_function("(y) => document.querySelector('.jp-WindowedPanel-outer').scrollTop < y / 2", arg=before)

    output_of(page, "residuals").get_by_role("link", name="shown_model.py:6").first.click()
    page.wait_for_function("() => jupyterapp.shell.currentWidget.title.label === 'shown_model.py'")
    page.wait_for_function("() => jupyterapp.shell.currentWidget.content.editor.getCursorPosition().line === 5")


def test_of_an_untrusted_notebook_the_tables_are_left(in_lab):
    page = in_lab.page
    html = jaxviz.residuals(lambda x: jnp.sin(x).sum(), jnp.ones(3))._repr_html_()
    assert "<svg" in html
    output = nbformat.v4.new_output("execute_result", {"text/html": html, "text/plain": "x"}, execution_count=1)
    cell = nbformat.v4.new_code_cell("residuals", outputs=[output], execution_count=1)
    nbformat.write(plain_notebook(cell), in_lab.lab.folder / "untrusted.ipynb")
    in_lab.open("untrusted.ipynb")
    output = page.locator(".jp-RenderedHTML").first
    expect(output.locator("table")).to_be_visible()
    assert output.locator("svg").count() == 0
    expect(output.locator(".jaxviz-picture")).to_be_hidden()
    assert output.inner_text().startswith("the gradient of <lambda> in x saves 12 B in 1 value")
