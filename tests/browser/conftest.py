"""One JupyterLab server and one browser for all browser tests."""

from pathlib import Path

import jupytext
import pytest
from jupyter_lab import Tab, running_browser, running_lab

ROOT = Path(__file__).parents[2]
ARTIFACTS = ROOT / "artifacts"


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebooks")
    for path in (ROOT / "notebooks").glob("*.py"):
        jupytext.write(jupytext.read(path), folder / f"{path.stem}.ipynb")
    with running_lab(tmp_path_factory.mktemp("jupyter"), folder) as made:
        yield made


@pytest.fixture(scope="session")
def browser():
    with running_browser() as made:
        yield made


# Colours and contrasts are looked at in both, by tests that say so; what is done with the page is the same in the dark.
@pytest.fixture(params=["light", pytest.param("dark", marks=pytest.mark.sweep)])
def theme(request):
    return request.param


class PictureTab(Tab):
    def screenshot(self, name):
        ARTIFACTS.mkdir(exist_ok=True)
        self.page.screenshot(path=ARTIFACTS / f"{name}-{self.theme}.png")


@pytest.fixture
def tab(browser, theme):
    made = PictureTab(browser, theme)
    yield made
    made.page.close()
    assert made.errors == []
    assert made.foreign == []
