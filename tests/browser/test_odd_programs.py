"""Saved pages of odd programs: every pane shows something, or says why not, and none fails."""

import jax
import pytest
from odd_programs import PROGRAMS, many_arguments, nested
from playwright.sync_api import expect
from short_runs import short
from tour import tour

import jaxviz
from notebooks import light

pytestmark = [pytest.mark.browser, light]

LARGE = {  # not compiled: XLA takes fifteen seconds, or it is too deep for JAX
    "5,000 arguments": (many_arguments, {f"a{i}": 1.0 for i in range(5_000)}),
    "jit in jit, 200 deep": (nested(200, lambda f: jax.jit(lambda x: f(x) * 1.25)), 1.0),
}

FAILED = """() => [...document.querySelectorAll("[data-testid^=failed], .jv-message")]
    .map((e) => e.textContent).filter((text) => /failed|could not be shown|undefined|NaN|\\[object/.test(text))"""
"""Texts in a pane that failed or has a meaningless value."""


SETTLING = "Viewport failed to stabilize"
"""CodeMirror logs this when it jumps to the end of a program with fifty levels, but displays it correctly."""


SHORT = ("an unknown primitive",)
"""What the short tests open: a stage with an error. For the others, `test_robustness.py` tests the tables sent to the
page."""


@pytest.fixture
def page(tab):
    """A page without errors and warnings in its console."""
    noted = []

    def note(message):
        if message.type in ("error", "warning") and message.text != SETTLING:
            noted.append(f"{message.type} {message.text} {tab.page.url}")

    tab.page.on("console", note)
    yield tab.page
    tab.page.remove_listener("console", note)
    assert noted == []


@pytest.mark.parametrize("name", short([*PROGRAMS, *LARGE], SHORT))
def test_every_pane_of_an_odd_program_comes_up(page, name, tmp_path):
    f, *args = {**PROGRAMS, **LARGE}[name]
    explorer = jaxviz.explore(f, *args)
    page.goto(explorer.save_html(tmp_path / "page.html", compiled=name in PROGRAMS).as_uri())
    expect(page.get_by_test_id("explorer")).to_be_visible()
    for where in tour(page, explorer.view):
        assert page.evaluate(FAILED) == [], where
    explorer.close()
