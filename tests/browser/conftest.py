"""One JupyterLab server, one browser and one open JupyterLab for all browser tests."""

import json
import urllib.request
import uuid
from pathlib import Path

import jupytext
import pytest
from jupyter_lab import KERNEL_IDLE, Tab, ask_kernel, running_browser, running_lab
from playwright.sync_api import expect

import jaxviz
from benchmarks.models import transformer
from jaxviz.features.explorer.widget import Explorer

ROOT = Path(__file__).parents[2]
ARTIFACTS = ROOT / "artifacts"


@pytest.fixture(scope="module", autouse=True)
def panes_first():
    """Most tests are about the panes rather than the overview that an explorer opens with; tests of other folders in
    the same process are unaffected."""
    with pytest.MonkeyPatch.context() as patch:
        made = Explorer.__init__
        patch.setattr(
            Explorer, "__init__", lambda self, *args, **traits: made(self, *args, **{"question": "", **traits})
        )
        yield


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebooks")
    for path in (ROOT / "notebooks").glob("*.py"):
        jupytext.write(jupytext.read(path), folder / f"{path.stem}.ipynb")
    with running_lab(tmp_path_factory.mktemp("jupyter"), folder) as made:
        yield made


# A page does not live long enough for optimized code to pay off.
BRIEF = "--js-flags=--no-opt,--no-maglev,--single-threaded-gc"


@pytest.fixture(scope="session")
def six_layers():
    """An explorer whose advice, and whose checkpoints to switch, are computed once for all of its saved files."""
    f, args = transformer(6)
    return Explorer(jaxviz.derive(f, *args), question="")


@pytest.fixture(scope="session")
def browser():
    with running_browser(BRIEF) as made:
        yield made


# Tests of colours and contrasts run in both themes explicitly; everything else is the same in the dark.
@pytest.fixture(params=["light", pytest.param("dark", marks=pytest.mark.slow(sweep=True))])
def theme(request):
    return request.param


class PictureTab(Tab):
    def screenshot(self, name):
        ARTIFACTS.mkdir(exist_ok=True)
        self.page.screenshot(path=ARTIFACTS / f"{name}-{self.theme}.png")


@pytest.fixture
def own_tab(browser, theme):
    made = PictureTab(browser, theme)
    yield made
    made.page.close()
    assert made.errors == []
    assert made.foreign == []


@pytest.fixture(scope="module")
def tabs(browser):
    made = {}
    yield made
    for tab in made.values():
        tab.page.close()


@pytest.fixture
def tab(browser, tabs, theme):
    """One page per theme for all tests of a file: opening another takes longer than navigating."""
    if theme not in tabs:
        tabs[theme] = PictureTab(browser, theme)
    tab = tabs[theme]
    tab.theme = theme
    tab.page.set_viewport_size({"width": 1600, "height": 1100})
    tab.page.emulate_media(color_scheme=theme)
    tab.errors.clear()
    tab.foreign.clear()
    yield tab
    assert tab.errors == []
    assert tab.foreign == []


OPEN = """async ([path, kernel]) => {
    const options = kernel ? { kernel: { id: kernel } } : {};
    const panel = await jupyterapp.commands.execute("docmanager:open", { path, factory: "Notebook", ...options });
    await panel.context.ready;
    await panel.sessionContext.ready;
}"""
CLOSE = """async (keepsKernel) => {
    for (const panel of [...jupyterapp.shell.widgets("main")]) {
        if (panel.context && !panel.context.isDisposed) {
            if (!keepsKernel) await panel.sessionContext?.shutdown();
            await panel.context.save();
        }
        panel.dispose();
    }
}"""
THEME = """async (theme) => {
    await jupyterapp.commands.execute("apputils:change-theme", { theme: `JupyterLab ${theme}` });
}"""


class OpenLab(PictureTab):
    """JupyterLab and a kernel, kept open across tests, since starting them takes longer than most tests.

    Args:
      lab: the server.
      browser: the browser to open it in.
    """

    def __init__(self, lab, browser):
        super().__init__(browser)
        self.lab = lab
        asked = urllib.request.Request(
            f"{lab.url}/api/kernels?token={lab.token}", b'{"name": "python3"}', method="POST"
        )
        with urllib.request.urlopen(asked) as answer:
            self.kernel = json.load(answer)["id"]
        self.own_kernel = False
        self.page.goto(f"{lab.url}/lab/workspaces/{uuid.uuid4().hex}?token={lab.token}&reset")
        self.page.wait_for_function("() => globalThis.jupyterapp?.restored.then(() => true)", timeout=60_000)

    def wear(self, theme):
        self.theme = theme
        self.page.emulate_media(color_scheme=theme)
        self.page.evaluate(THEME, theme.title())
        light = "true" if theme == "light" else "false"
        self.page.wait_for_selector(f"body[data-jp-theme-light='{light}']", state="attached")

    def open(self, notebook, own_kernel=False):
        """Shows a notebook and waits for its kernel: the shared one, or a separate one for a test that patches it."""
        self.own_kernel = own_kernel
        self.path = self.lab.folder / notebook
        self.page.evaluate(OPEN, [notebook, None if own_kernel else self.kernel])
        self.page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=60_000)
        self.page.wait_for_function(KERNEL_IDLE, timeout=60_000)

    def reopen(self, widget):
        """Closes the notebook and opens it with another kernel, in which the state saved with it is all there is.

        If JupyterLab's connection to that kernel reports while it restores this state, an output that is rendered
        meanwhile says for good that its model is not found, in one of a hundred openings on a busy machine. Such a
        notebook is opened again; one that was saved without the state says the same each time.

        Args:
          widget: the locator of what must be visible then.
        """
        # Each widget of the notebook says so.
        lost = self.page.get_by_text("Error displaying widget: model not found").first
        for _ in range(3):
            self.close()
            self.open(self.path.name, own_kernel=True)
            expect(widget.or_(lost).first).to_be_visible(timeout=60_000)
            if not lost.is_visible():
                break
        expect(widget).to_be_visible()

    def close(self):
        """Closes all notebooks, and the widgets that the kernel holds for them."""
        if not self.own_kernel:
            ask_kernel(self.page, "__import__('ipywidgets').Widget.close_all()")
        self.page.evaluate(CLOSE, not self.own_kernel)


@pytest.fixture(scope="session")
def open_lab(lab, browser):
    made = OpenLab(lab, browser)
    yield made
    made.page.close()


TOGGLE = "() => jupyterapp.commands.execute('@jupyter-widgets/jupyterlab-manager:saveWidgetState')"
SAVES = "(is) => jupyterapp.commands.isToggled('@jupyter-widgets/jupyterlab-manager:saveWidgetState') === is"


@pytest.fixture
def saves_no_state(open_lab):
    """JupyterLab with its default setting."""
    for is_on in (False, True):
        open_lab.page.evaluate(TOGGLE)
        open_lab.page.wait_for_function(SAVES, arg=is_on)
        if not is_on:
            yield


@pytest.fixture
def in_lab(open_lab, theme):
    open_lab.errors.clear()
    open_lab.foreign.clear()
    open_lab.page.set_viewport_size({"width": 1600, "height": 1100})
    open_lab.wear(theme)
    yield open_lab
    said = lambda: [*open_lab.errors, *open_lab.foreign]
    # JupyterLab itself reports a kernel that disappears while it is waiting for it.
    before = said()
    open_lab.close()
    assert (before if open_lab.own_kernel else said()) == []
