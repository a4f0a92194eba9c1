"""What a user does with the explorer of a large program: how soon things appear, how long they block the page, and how
much memory the page takes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, Page

from benchmarks.main_thread import heap, longest_task
from tests.jupyter_lab import KERNEL_IDLE, Lab, Tab, running_browser, running_lab

ROOT = Path(__file__).parents[1]
LAYERS = (12, 100)
"""The transformers for which *what if* is opened as soon as the overview is displayed."""

Row = tuple[str, str, str]
"""The measure, the target and the result."""

_RUN = """async ([index, ...selectors]) => {
    const { content } = jupyterapp.shell.currentWidget;
    content.activeCellIndex = index;
    const started = performance.now();
    const done = jupyterapp.commands.execute("notebook:run-cell");
    if (!selectors.length) await done;
    const times = [];
    for (const selector of selectors) {
        let found = null;
        while (!(found = document.querySelector(selector))) await new Promise(requestAnimationFrame);
        await new Promise(requestAnimationFrame);
        times.push((performance.now() - started) / 1e3);
        if (found.matches("[data-testid=view-what-if]")) found.click();
    }
    return times;
}"""

_OVERVIEW = "[data-testid=kept-row]"
_WHOLE = "[data-testid=overview-memory] svg"
_CHECKED = "[data-testid=badge]"

_CLICK = "(id) => document.querySelector(`[data-testid=${id}]`).click()"
_KEYS = """([id, keys]) => {
    const element = document.querySelector(`[data-testid=${id}]`);
    element.focus();
    for (const key of keys) element.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
}"""
_TYPE = """([id, text]) => {
    const field = document.querySelector(`[data-testid=${id}]`);
    field.focus();
    field.value = text;
    field.dispatchEvent(new Event("input", { bubbles: true }));
}"""
_SELECT = """() => {
    const equation = document.querySelector("[data-testid=code-left] .cm-line[data-row] .jv-primitive");
    const { left, top, width, height } = equation.getBoundingClientRect();
    const at = { bubbles: true, clientX: left + width / 2, clientY: top + height / 2 };
    equation.dispatchEvent(new MouseEvent("click", at));
}"""


def steps(page: Page) -> list[tuple[str, Callable[[], None]]]:
    """The user's actions, each performed until its result appears."""

    def click(test_id: str, selector: str) -> Callable[[], None]:
        def act() -> None:
            page.evaluate(_CLICK, test_id)
            page.wait_for_selector(selector, state="attached", timeout=30_000)

        return act

    def then(script: str, argument: object, selector: str) -> Callable[[], None]:
        def act() -> None:
            page.evaluate(script, argument)
            page.wait_for_selector(selector, state="attached", timeout=30_000)

        return act

    def line(side: str, stage: str) -> str:
        return f"[data-testid=code-{side}][data-stage='{stage}'] .cm-line[data-row]"

    laid_out = "[data-testid=graph-left][data-layout]:has(.jv-graph-wait:empty)"
    return [
        ("why is it kept", click("view-kept", line("right", "backward"))),
        ("the selection in full", click("open-details", "[data-testid=inspected]")),
        ("a click on an equation", then(_SELECT, None, "[data-testid=inspected]")),
        ("jvp beside linearize", then(_KEYS, ["explorer", ["l"]], line("left", "jvp"))),
        ("what does it cost", click("view-cost", "[data-testid=timeline] path")),
        ("how was it derived", click("view-derived", line("left", "primal"))),
        ("in motion", click("view-motion", "[data-testid=shelf]")),
        ("search", then(_TYPE, ["search", "dot"], "[data-testid=found]")),
        ("back to why is it kept", click("view-kept", line("right", "backward"))),
        ("the graph of forward", click("as-graph-left", laid_out)),
        ("with all of it open", then(_KEYS, ["graph-tree", ["Home", "Escape", "o"]], laid_out)),
        ("the steps of a transform", click("play", "[data-testid=player] [data-testid=rule] *")),
    ]


def _opened(lab: Lab, browser: Browser, name: str) -> Tab:
    """A notebook whose first cell has run."""
    tab = Tab(browser)
    lab.open(tab.page, name)
    tab.page.evaluate(_RUN, [0])
    tab.page.wait_for_function(KERNEL_IDLE, timeout=120_000)
    return tab


def _closed(tab: Tab) -> None:
    assert tab.errors == [], tab.errors
    tab.page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.shutdown()")
    tab.page.close()


def _times(lab: Lab, browser: Browser) -> list[Row]:
    """How soon everything appears, and the memory of one and two views."""
    tab = _opened(lab, browser, "large.ipynb")
    page = tab.page
    before = heap(page)
    overview, whole, checked = page.evaluate(_RUN, [1, _OVERVIEW, _WHOLE, _CHECKED])
    one = heap(page) - before
    page.wait_for_function(KERNEL_IDLE, timeout=120_000)
    page.evaluate(_RUN, [2])
    page.wait_for_function("() => document.querySelectorAll('[data-testid=overview-memory] svg').length > 1")
    page.wait_for_timeout(500)
    two = heap(page) - before
    _closed(tab)
    return [
        ("from the cell to the overview", "1.0 s", f"{overview:.2f} s"),
        ("  to the memory and the scopes", "2 s", f"{whole:.2f} s"),
        ("  to the comparison with JAX", "2 s", f"{checked:.2f} s"),
        ("heap of one view", "", f"{one:.1f} MB"),
        ("heap of two views", "< 40 MB", f"{two:.1f} MB"),
    ]


def _tasks(lab: Lab, browser: Browser) -> list[Row]:
    """The longest task while everything loads, and during each of the actions."""
    tab = _opened(lab, browser, "large.ipynb")
    page = tab.page
    done = [("until everything is loaded", lambda: page.evaluate(_RUN, [1, _WHOLE, _CHECKED])), *steps(page)]
    rows = [(f"  {name}", "50 ms", f"{longest_task(browser, page, act):.0f} ms") for name, act in done]
    _closed(tab)
    return [("longest task on the page's main thread, CPU", "", ""), *rows]


def _what_if(lab: Lab, browser: Browser, layers: int) -> Row:
    tab = _opened(lab, browser, f"{layers}.ipynb")
    selectors = [_WHOLE, "[data-testid=view-what-if]", "[data-testid=what-if-region]"]
    shown, _, there = tab.page.evaluate(_RUN, [1, *selectors])
    _closed(tab)
    asked = "1 s" if layers == LAYERS[0] else ""
    return (f"what if of {layers} layers, after the first picture", asked, f"{there - shown:.1f} s")


def measured(n_layers: int, notebook: Callable[..., None]) -> list[Row]:
    """The rows of all this for a transformer with this many layers; `notebook` writes one."""
    derive = "from benchmarks.explorer import derived\nimport jaxviz\nderivation = derived({})"
    explore = "explorer = jaxviz.explore(derivation)\nexplorer"
    with tempfile.TemporaryDirectory() as folder:
        home, served = Path(folder, "home"), Path(folder, "notebooks")
        home.mkdir()
        served.mkdir()
        notebook(served / "large.ipynb", derive.format(n_layers), explore, "explorer")
        for layers in LAYERS:
            notebook(served / f"{layers}.ipynb", derive.format(layers), explore)
        with running_lab(home, served, {"PYTHONPATH": str(ROOT)}) as lab, running_browser() as browser:
            rows = [*_times(lab, browser), *_tasks(lab, browser)]
            return rows + [_what_if(lab, browser, layers) for layers in LAYERS]
