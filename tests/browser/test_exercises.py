"""Exercises, in JupyterLab and on a page without a kernel: forms without a mouse, folds that hide the answers."""

import pytest
from playwright.sync_api import expect
from short_runs import short
from static_exercises import EXERCISES
from test_accessibility import violations

from jaxviz import teach
from notebooks import run

pytestmark = pytest.mark.browser

PROGRAM = """
import jax.numpy as jnp
from jaxviz import teach

def f(x):
    return jnp.sin(x) * jnp.exp(x)

kept = teach.saved(f, 2.0)
kept
"""
NUMBER = "teach.predict('How many bytes does it save?', truth=lambda: 12, because='Three numbers of four.')"
SOLUTION = "kept.solution(['sin', 'exp', \"sin'\"])"


def test_a_form_in_a_notebook_is_filled_in_with_the_keyboard(in_lab):
    page = run(in_lab, PROGRAM, NUMBER, SOLUTION)
    boxes = page.locator(".widget-checkbox input")
    expect(boxes).to_have_count(6, timeout=60_000)
    expect(page.locator("details", has_text="Result of the solution")).to_have_count(1, timeout=60_000)
    boxes.first.focus()
    for ticked in (False, True, True, True, False, False):
        if ticked:
            page.keyboard.press("Space")
        page.keyboard.press("Tab")
    page.keyboard.press("Space")  # Check
    output = page.locator(".jp-OutputArea", has=boxes.first)
    expect(output).to_contain_text("Right. The gradient saves 3 of these 6 values")
    expect(output).to_contain_text("gradient (sin)")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # Hint
    expect(output).to_contain_text("Hint 1 of 1")

    line = page.locator(".widget-text input")
    line.focus()
    page.keyboard.type("13")
    page.keyboard.press("Enter")
    said = page.locator(".jp-OutputArea", has=line)
    expect(said).to_contain_text("Not yet. 13 is too large.")
    line.fill("12 B")
    page.keyboard.press("Enter")
    expect(said).to_contain_text("Three numbers of four.")

    folded = page.locator("details", has_text="Result of the solution")
    expect(folded).to_have_count(1)
    expect(folded.get_by_text("The gradient keeps")).to_be_hidden()
    in_lab.screenshot("exercises")


PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Exercises</title>
<style>:root {{ color-scheme: light dark }}
body {{ color: light-dark(#000, #ddd); background: light-dark(#fff, #131416) }}</style>
<body data-theme="{theme}"><main><h1>Exercises</h1>{forms}{fold}</main>
<script>{script}</script></body></html>"""


@pytest.mark.parametrize("theme", short(["light", "dark"], ["dark"]), indirect=True)
def test_forms_of_a_page_are_answered_with_the_keyboard(tab, tmp_path):
    page, keys = tab.page, tab.page.keyboard
    path = tmp_path / "page.html"
    forms = "".join(teach.static_form(EXERCISES[name]) for name in ("choice", "size", "marks", "code"))
    fold = teach.static_fold("A solution", "<pre>lambda x: jnp.tanh(x)</pre>")
    path.write_text(
        PAGE.format(theme=tab.theme, forms=forms, fold=fold, script=teach.static_script()), encoding="utf-8"
    )
    page.goto(path.as_uri())
    said = page.get_by_role("status")

    page.get_by_label("its operand").focus()
    keys.press("ArrowDown")
    keys.press("Enter")  # in a field, Enter checks the answer
    expect(said.nth(0)).to_contain_text("Right. its result")

    page.get_by_label("Your answer").focus()
    keys.type("9000")
    keys.press("Enter")
    expect(said.nth(1)).to_contain_text("Not yet. 9000 is too small.")
    keys.press("Tab")
    keys.press("Tab")
    keys.press("Space")  # Hint
    expect(said.nth(1)).to_contain_text("Hint 1 of 2")

    page.get_by_label("sin'").focus()
    keys.press("Space")
    keys.press("Enter")
    expect(said.nth(2)).to_contain_text("1 of 3 found")

    expect(page.get_by_text("lambda x: jnp.tanh(x)")).to_have_count(0)
    page.get_by_text("A solution").focus()
    keys.press("Enter")
    expect(page.get_by_text("lambda x: jnp.tanh(x)")).to_be_visible()

    assert violations(page, "main") == ""
    tab.screenshot("static-exercises")
