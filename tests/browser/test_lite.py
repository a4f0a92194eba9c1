"""The Jupyter of the site, which runs in the browser: a notebook runs there, and its answers are checked."""

import functools
import http.server
import shutil
import threading
import zipfile
from pathlib import Path

import jupytext
import pytest
from playwright.sync_api import expect

from docs.lite.build import KERNELSPEC, NOTEBOOKS, build, notebook, packages_of, page_of

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(shutil.which("npm") is None, reason="Python for the browser is fetched with npm"),
]
ROOT = Path(__file__).parents[2]
IDLE = ".jp-Notebook-ExecutionIndicator[data-status=idle]"


# What the page and its workers may load: nothing from another server.
POLICY = "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'"


class OfItself(http.server.SimpleHTTPRequestHandler):
    def end_headers(self):
        self.send_header("Content-Security-Policy", POLICY)
        super().end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of a folder with the built site."""
    out = tmp_path_factory.mktemp("html")
    build(out / "lite")
    handler = functools.partial(OfItself, directory=out)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def cell_with(page, text):
    return page.locator(".jp-CodeCell", has_text=text)


@pytest.mark.slow(sweep=True)
def test_a_notebook_runs_in_the_browser_and_loads_nothing_from_elsewhere(site, own_tab):
    page = own_tab.page
    refused = []
    page.on("console", lambda message: refused.append(message.text) if "Security Policy" in message.text else None)
    page.goto(f"{site}/{page_of('24_a_tape')}")
    page.locator(IDLE).wait_for(timeout=180_000)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    expect(page.get_by_text("JAX is not installed here.", exact=True)).to_be_visible(timeout=180_000)
    assert page.locator(".jp-OutputArea-output", has_text="Traceback").count() == 0

    form = cell_with(page, "f has three operations.")
    line = form.locator(".widget-text input")
    for given, said in (("3", "Not yet. 3 is too small."), ("5", "Right. 5.")):
        line.fill(given)
        page.keyboard.press("Enter")
        expect(form).to_contain_text(said, timeout=30_000)

    written = cell_with(page, "def backward(out)")
    expect(written).to_contain_text("Replace the dots")
    written.locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(solution())
    page.keyboard.press("Control+Enter")
    expect(written).to_contain_text("Right. All checks pass.", timeout=30_000)
    own_tab.screenshot("lite")
    assert refused == []


def solution():
    """The notebook's own, as the reader would write it."""
    cells = jupytext.read(ROOT / "notebooks" / "24_a_tape.py").cells
    text = next(c.source for c in cells if "walk.solution(" in c.source)
    return text.replace("_backward", "backward").replace("walk.solution", "walk.answer")


def test_a_notebook_that_is_offered_links_to_no_other():
    for name in NOTEBOOKS:
        made = notebook(name)
        text = "".join("".join(cell["source"]) for cell in made["cells"] if cell["cell_type"] == "markdown")
        assert ".ipynb)" not in text
        assert "in 25 · your own tracer." in text
        assert made["metadata"]["kernelspec"] == KERNELSPEC


def test_a_package_is_loaded_with_those_of_its_dependencies_that_are_there(tmp_path):
    wheels = []
    for name, requires in {"form": ["Kernel>=1", "jax", 'fcntl; sys_platform != "emscripten"'], "kernel": []}.items():
        wheels.append(tmp_path / f"{name}-1.0-py3-none-any.whl")
        with zipfile.ZipFile(wheels[-1], "w") as wheel:
            lines = ["Metadata-Version: 2.1", f"Name: {name.title()}", "Version: 1.0"]
            lines += [f"Requires-Dist: {one}" for one in requires]
            wheel.writestr(f"{name}-1.0.dist-info/METADATA", "\n".join(lines))
            wheel.writestr(f"{name}/__init__.py", "")
            wheel.writestr(f"{name}/part/__init__.py", "")
    packages = packages_of(wheels, "3.14.2")
    assert {name: package["depends"] for name, package in packages.items()} == {"form": ["kernel"], "kernel": []}
    assert packages["form"]["imports"] == ["form"]
