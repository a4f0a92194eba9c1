"""The explorer outside a plain cell: in ipywidgets' containers, in Notebook 7, in marimo, and on nbconvert's page."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_lab import free_port, wait_for
from nbclient import NotebookClient
from nbconvert import HTMLExporter, LatexExporter
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError
from playwright.sync_api import expect
from short_runs import short

from notebooks import PROGRAM, light, notebook_of, run_in_lab, works, write

pytestmark = [pytest.mark.browser, light]


@pytest.mark.slow(sweep=True)
def test_it_sits_in_boxes_tabs_and_interact_and_python_hears_of_it(in_lab):
    page = run_in_lab(
        in_lab,
        """
import ipywidgets as w
first, second = jaxviz.explore(loss, *args), jaxviz.explore(loss, *args)
heights, out = w.IntSlider(620, 400, 900), w.Label("nothing yet")
w.link((heights, "value"), (first, "height"))
first.observe(lambda change: setattr(out, "value", f"{change.name} is {change.new}"), ["selected", "stage", "filter"])
tab = w.Tab([w.VBox([heights, first, out]), second], titles=["first", "second"])
tab
""",
        """
@w.interact(n=(1, 3))
def shown(n=2):
    return jaxviz.explore(lambda w, x: loss(w, x) * n, *args)
""",
    )
    page.wait_for_function("() => document.querySelectorAll('[data-testid=explorer]').length >= 3", timeout=60_000)
    explorers = page.get_by_test_id("explorer")
    first, label = explorers.nth(0), page.locator(".widget-label", has_text=" is ")
    works(first)
    expect(label).to_have_text(re.compile("selected is forward:"))
    first.get_by_test_id("stage-backward").click()
    expect(label).to_have_text("stage is backward")
    first.get_by_test_id("view-kept").click()
    first.get_by_test_id("filter").fill("tanh")
    expect(label).to_have_text("filter is tanh")
    page.get_by_role("tab", name="second").click()
    works(explorers.nth(1))
    assert explorers.nth(1).bounding_box()["width"] > 600
    works(explorers.last)
    in_lab.screenshot("containers")


@pytest.mark.slow(sweep=True)
def test_notebook_7(lab, own_tab):
    page = own_tab.page
    name = write(lab.folder, "jaxviz.explore(loss, *args)")

    def opened_and_run():
        page.goto(f"{lab.url}/notebooks/{name}?token={lab.token}")
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        page.get_by_text("Python 3 (ipykernel)").first.wait_for(timeout=60_000)
        page.get_by_role("menuitem", name="Run").first.click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        page.wait_for_selector("[data-testid=explorer] .cm-line[data-row]", timeout=60_000)

    try:
        opened_and_run()
    except PlaywrightTimeoutError:
        # Notebook's own plugins sometimes fail at startup, and then its menus do nothing.
        if not any("/static/notebook/" in error for error in own_tab.errors):
            raise
        opened_and_run()
    works(page.get_by_test_id("explorer"))
    own_tab.screenshot("notebook-7")
    # Our module is loaded from a blob.
    own_tab.errors[:] = [e for e in own_tab.errors if "blob:" in e]


MARIMO = f"""
import marimo

app = marimo.App(width="full")


@app.cell
def _():
    {PROGRAM.strip().replace(chr(10), chr(10) + "    ")}
    return args, jaxviz, loss


@app.cell
def _(args, jaxviz, loss):
    shown = jaxviz.explore(loss, *args)
    shown.question = ""
    shown
    return


if __name__ == "__main__":
    app.run()
"""


@pytest.fixture
def marimo(tmp_path):
    """The URL of a marimo server that runs a notebook with an explorer."""
    path = tmp_path / "notebook.py"
    path.write_text(MARIMO)
    port, log = free_port(), tmp_path / "marimo.log"
    home = {
        name: str(tmp_path / name.lower()) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")
    }
    command = [sys.executable, "-m", "marimo", "run", str(path), "--headless", "--no-token", "--port", str(port)]
    with log.open("w") as out:
        server = subprocess.Popen(
            command, env=dict(os.environ, **home), stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{url}/health", server, log)
        yield url
    finally:
        server.kill()
        server.wait(20)


@pytest.mark.slow(sweep=True)
def test_marimo(marimo, own_tab):
    page = own_tab.page
    page.goto(marimo)
    page.wait_for_selector("[data-testid=explorer] .cm-line[data-row]", timeout=120_000)
    works(page.get_by_test_id("explorer"))
    own_tab.screenshot("marimo")
    background = "(e) => getComputedStyle(e).backgroundColor"
    assert page.get_by_test_id("explorer").evaluate(background) == "rgb(255, 255, 255)"
    page.evaluate("() => document.body.classList.add('dark')")  # like its theme switch
    assert page.get_by_test_id("explorer").evaluate(background) == "rgb(17, 20, 24)"
    # marimo requests fonts and its news feed, which does not concern this test, and there is no network.
    own_tab.foreign.clear()


NODE_MODULES = Path(__file__).parents[2] / "widgets" / "node_modules"
SERVED = {
    r"/require(\.min)?\.js$": NODE_MODULES / "requirejs" / "require.js",
    r"/@jupyter-widgets/html-manager@[^/]*/dist/embed-amd\.js$": NODE_MODULES
    / "@jupyter-widgets/html-manager/dist/embed-amd.js",
    r"/anywidget@[^/]*/dist/index\.js$": Path(sys.prefix) / "share/jupyter/nbextensions/anywidget/index.js",
}
"""What nbconvert's page requests from the network, and where it is on this machine."""


def serve_widgets(page):
    """Serves a page's network requests from installed files; returns the list of the others, filled as they occur."""
    served = []

    def answer(route):
        url = route.request.url
        for pattern, path in SERVED.items():
            if re.search(pattern, url):
                served.append(path.name)
                return route.fulfill(path=path, content_type="text/javascript")
        return route.abort()

    page.route(re.compile("^https?:"), answer)
    return served


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A notebook with an explorer, executed by nbclient like `jupyter nbconvert --execute`."""
    made = notebook_of("jaxviz.explore(loss, *args)")
    folder = tmp_path_factory.mktemp("executed")
    NotebookClient(made, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    return made


@pytest.mark.usefixtures("theme")
def test_a_cell_has_three_outputs_each_of_one_form(executed):
    # VS Code and Colab choose one form of each output, and GitHub does not render notebooks without the key `state`.
    nbformat.validate(executed)
    assert executed.metadata.widgets["application/vnd.jupyter.widget-state+json"].keys() >= {"state", "version_major"}
    widget, picture, table = executed.cells[-1].outputs
    assert set(widget.data) == {"application/vnd.jupyter.widget-view+json", "text/plain"}
    assert widget.data["text/plain"].startswith("Explorer of the gradient of `loss`")
    assert set(picture.data) == {"image/png", "text/plain"}
    assert set(table.data) == {"text/html", "text/plain"}


@pytest.mark.usefixtures("theme")
def test_latex_has_the_picture_and_the_table(executed):
    tex, resources = LatexExporter().from_notebook_node(executed)
    (picture,) = re.findall(r"\\adjustimage\{.*\}\{(.*)\}", tex)
    assert resources["outputs"][picture].startswith(b"\x89PNG")
    assert tex.index("Explorer of the gradient of") < tex.index(picture) < tex.index("the largest values saved")


@pytest.mark.parametrize("of_page", short(["light", "dark"], ["dark"]))
def test_nbconvert(executed, own_tab, tmp_path, of_page):
    html, _ = HTMLExporter(theme=of_page).from_notebook_node(executed)
    path = tmp_path / "converted.html"
    path.write_text(html, encoding="utf-8")
    page = own_tab.page
    # The system has the other colour scheme: the page's takes precedence.
    page.emulate_media(color_scheme="dark" if of_page == "light" else "light")
    served = serve_widgets(page)
    page.goto(path.as_uri())
    page.wait_for_selector("[data-testid=explorer] .cm-line[data-row]", timeout=60_000)
    assert sorted(served) == ["embed-amd.js", "index.js", "require.js"]
    explorer = page.get_by_test_id("explorer")
    background = {"light": "rgb(255, 255, 255)", "dark": "rgb(17, 20, 24)"}[of_page]
    assert explorer.evaluate("(e) => getComputedStyle(e).backgroundColor") == background
    works(explorer)
    for still in (page.locator(".jp-RenderedImage img"), page.locator(".jaxviz-still")):
        expect(still).to_have_count(1)
        expect(still).to_be_hidden()
    explorer.get_by_test_id("stage-backward").click()
    explorer.get_by_test_id("code-left").locator(".cm-line[data-row] .jv-primitive", has_text="mul").first.click()
    expect(explorer.get_by_test_id("inspected")).to_have_text("mul")
    expect(explorer.get_by_test_id("source").locator(".is-selected, .is-ancestor").first).to_be_visible()
    # The graph comes from the widget that carries the code, which the page has like the notebook.
    page.keyboard.press("g")
    expect(explorer.get_by_test_id("graph-left")).to_be_visible()
    own_tab.theme = of_page
    own_tab.screenshot("nbconvert")
    # All other requests are nbconvert's own, for text cells.
    asked = [
        url for url in own_tab.foreign if not re.search("|".join(SERVED), url) and not re.search("mathjax|mermaid", url)
    ]
    assert asked == []
    own_tab.foreign.clear()


@pytest.mark.parametrize("template", short(["lab", "classic"], ["lab"]))
def test_nbconvert_without_the_network(executed, own_tab, tmp_path, template):
    html, _ = HTMLExporter(template_name=template).from_notebook_node(executed)
    path = tmp_path / "converted.html"
    path.write_text(html, encoding="utf-8")
    page = own_tab.page
    page.route(re.compile("^https?:"), lambda route: route.abort())
    page.goto(path.as_uri())
    expect(page.locator(".jaxviz-still")).to_be_visible()
    (picture,) = page.locator("img").all()
    expect(picture).to_be_visible()
    assert picture.evaluate("(e) => e.complete && e.naturalWidth === 2 * e.width")
    own_tab.screenshot(f"nbconvert-{template}-alone")
    own_tab.errors[:] = [
        e for e in own_tab.errors if "$ is not defined" not in e
    ]  # from the classic page, which loads jQuery
    own_tab.foreign.clear()
