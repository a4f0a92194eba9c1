"""Saved pages of odd programs: every pane shows something, or says why not, and none fails."""

import jax
import pytest
from odd_programs import PROGRAMS, many_arguments, nested
from playwright.sync_api import expect
from short_runs import short

import jaxviz
from jaxviz.derivation import STAGES

pytestmark = [pytest.mark.browser, pytest.mark.parametrize("theme", ["light"], indirect=True)]

LARGE = {  # not compiled: XLA takes fifteen seconds, or it is too deep for JAX
    "5,000 arguments": (many_arguments, {f"a{i}": 1.0 for i in range(5_000)}),
    "jit in jit, 200 deep": (nested(200, lambda f: jax.jit(lambda x: f(x) * 1.25)), 1.0),
}

FAILED = """() => [...document.querySelectorAll("[data-testid^=failed], .jv-message")]
    .map((e) => e.textContent).filter((text) => /failed|could not be shown|undefined|NaN|\\[object/.test(text))"""
"""Texts in a pane that failed or has a meaningless value."""


SETTLING = "Viewport failed to stabilize"
"""CodeMirror logs this when it jumps to the end of a program with fifty levels, but displays it correctly."""


SHORT = ("an unknown primitive", "unicode", "empty arrays", "more bytes than a float counts")
"""What the short tests open: a stage with an error, unusual names, no bytes and too many. For the others, `test_robustness.py` tests the tables sent to the page."""


@pytest.fixture
def tab(same_tab):
    return same_tab


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


def holds(page, where):
    assert page.evaluate(FAILED) == [], where


def show_code(page, view, name):
    """Each stage: one equation is inspected, or the error is shown instead."""
    code = page.get_by_test_id("code-left")
    for key in STAGES:
        page.get_by_test_id(f"stage-{key}").click()
        expect(code).to_have_attribute("data-stage", key)
        stage = view.stage(key)
        if stage.error:
            expect(code).to_contain_text(stage.error.split(":")[0])
        elif stage.equations[1] > stage.equations[0]:
            code.locator(".cm-line[data-row] .jv-primitive").first.click()
            expect(page.get_by_test_id("inspected")).not_to_be_empty()
        else:
            expect(code.locator(".cm-line").first).to_be_visible()
        holds(page, f"{name}, the code of {key}")


def show_graph(page, view, name):
    """The function and its backward program as graphs, opened as far as possible."""
    for key in ("primal", "backward"):
        page.get_by_test_id(f"stage-{key}").click()
        page.get_by_test_id("as-graph-left").click()
        expect(page.get_by_test_id("graph-left")).to_be_visible()
        if not view.stage(key).error:
            page.get_by_test_id("graph-canvas-left").click()
            for pressed in ("o", "ArrowDown", "Enter", "ArrowDown", "Enter"):
                page.keyboard.press(pressed)
        page.wait_for_timeout(150)
        holds(page, f"{name}, the graph of {key}")
        page.get_by_test_id("as-code-left").click()


def show_tables(page, view, name):
    """The residuals with their switches, the memory over time, and the switches of all values."""
    rows = page.get_by_test_id("residual-row")
    expect(page.get_by_test_id("residuals")).to_be_visible()
    if view.columns["residual_name"].size:
        rows.first.click()
        expect(page.get_by_test_id("reason").first).to_be_visible()
    holds(page, f"{name}, the residuals")
    for key in ("what-if", "memory", "residuals"):
        tab = page.locator(f"[data-testid=show-{key}]:visible")
        if tab.count():  # if there is room, the memory is below the table
            tab.first.click()
        expect(page.get_by_test_id(key)).to_be_visible()
        page.wait_for_timeout(50)
        holds(page, f"{name}, {key}")


def has_equations(view, source, *targets):
    """Whether the first stage has equations and the derivation did not fail."""
    first, last = view.stage(source).equations
    return last > first and not any(view.stage(key).error for key in (source, *targets))


def show_player(page, view, name):
    steps = {
        "jvp": has_equations(view, "primal", "jvp"),
        "linearize": has_equations(view, "primal", "forward", "linear"),
        "transpose": has_equations(view, "linear", "backward"),
    }
    if not any(steps.values()):
        expect(page.get_by_test_id("play")).to_be_disabled()
        return
    page.get_by_test_id("play").click()
    player = page.get_by_test_id("player")
    expect(player).to_be_visible()
    for kind, is_there in steps.items():
        expect(player.get_by_test_id(f"play-{kind}")).to_have_count(int(is_there))
        if is_there:
            player.get_by_test_id(f"play-{kind}").click()
            for key in ("ArrowRight", "ArrowRight", "End", "Home"):
                page.keyboard.press(key)
            expect(player.get_by_test_id("rule")).to_be_visible()
        holds(page, f"{name}, the steps of {kind}")
    page.keyboard.press("Escape")
    expect(player).to_be_hidden()


def show_compiled(page, name):
    page.get_by_test_id("stage-compiled").click()
    shown = page.locator("[data-stage=compiled]")
    expect(shown.locator("[data-testid=compiled-memory], .cm-line, [data-testid=not-compiled]").first).to_be_visible()
    holds(page, f"{name}, compiled")


@pytest.mark.parametrize("name", short([*PROGRAMS, *LARGE], SHORT))
def test_every_pane_of_an_odd_program_comes_up(page, name, tmp_path):
    f, *args = {**PROGRAMS, **LARGE}[name]
    explorer = jaxviz.explore(f, *args)
    page.goto(explorer.save_html(tmp_path / "page.html", compiled=name in PROGRAMS).as_uri())
    expect(page.get_by_test_id("explorer")).to_be_visible()
    holds(page, name)
    show_code(page, explorer.view, name)
    show_graph(page, explorer.view, name)
    show_tables(page, explorer.view, name)
    show_player(page, explorer.view, name)
    show_compiled(page, name)
    explorer.close()
