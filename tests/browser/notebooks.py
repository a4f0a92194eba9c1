"""Notebooks in an open JupyterLab: written, run, saved; and what an explorer in one has to do."""

import json
import re
import uuid

import nbformat
import pytest
from jupyter_lab import KERNEL_IDLE
from playwright.sync_api import expect
from tour import unfold

PROGRAM = """
import jax, jax.numpy as jnp, jaxviz

def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w) * jnp.cos(x))

args = jnp.ones((9, 9)), jnp.ones((50, 9))
"""
PANES_FIRST = """
from jaxviz.features.explorer.widget import Explorer
def panes_first(self, *args, made=Explorer.__init__, **traits):
    made(self, *args, **{"question": "", **traits})
if Explorer.__init__.__name__ != "panes_first":
    Explorer.__init__ = panes_first
"""
"""For a kernel that several notebooks may use."""
RUN_ALL = "() => jupyterapp.commands.execute('runmenu:run-all')"
SAVED = "() => !jupyterapp.shell.currentWidget.context.model.dirty"
SHUT_DOWN = "() => jupyterapp.shell.currentWidget.sessionContext.shutdown()"
RESTART = "() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"

light = pytest.mark.parametrize("theme", ["light"], indirect=True)
"""For everything that is the same in both themes; colours and contrasts are tested on whole views."""


def plain_notebook(*cells):
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    code = [c if isinstance(c, dict) else nbformat.v4.new_code_cell(c.strip()) for c in cells]
    return nbformat.v4.new_notebook(cells=code, metadata=kernel)


def notebook_of(*cells):
    """A notebook with a program followed by some cells, in which explorers do not open with the overview."""
    return plain_notebook(PROGRAM + PANES_FIRST, *cells)


def write(folder, *cells):
    """Writes such a notebook to a file and returns the file's name."""
    name = f"{uuid.uuid4().hex}.ipynb"
    nbformat.write(notebook_of(*cells), folder / name)
    return name


def run(in_lab, *cells, own_kernel=False, waits=True):
    """Opens a notebook with these cells and runs all of them; returns the page."""
    in_lab.open(write(in_lab.lab.folder, *cells), own_kernel)
    in_lab.page.evaluate(RUN_ALL if waits else f"() => {{ ({RUN_ALL})(); }}")
    return in_lab.page


def run_in_lab(in_lab, *cells, own_kernel=False):
    """Runs a notebook whose cells show an explorer."""
    page = run(in_lab, *cells, own_kernel=own_kernel)
    page.wait_for_selector("[data-testid=explorer]", timeout=90_000, state="attached")
    page.wait_for_function(KERNEL_IDLE, timeout=60_000)
    return page


def save(page, path):
    """Saves the open notebook, and returns what is in its file."""
    page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    page.wait_for_function(SAVED, timeout=30_000)
    return json.loads(path.read_text())


def widgets(notebook):
    return notebook["metadata"]["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]


def works(explorer):
    """An explorer responds: the residuals are shown, and clicking an equation selects it, and the inspector follows."""
    explorer.scroll_into_view_if_needed()
    questions = explorer.get_by_test_id("question")  # of a narrow page
    if questions.is_visible():
        questions.select_option("kept")
    else:
        explorer.get_by_test_id("view-kept").click()
    expect(explorer.get_by_test_id("residual-row").first).to_be_visible()
    unfold(explorer)
    line = explorer.get_by_test_id("code-left").locator(".cm-line[data-row]", has_text=re.compile("= tanh"))
    line.click(position={"x": 4, "y": 6})
    expect(explorer.get_by_test_id("inspector")).to_contain_text("tanh")
