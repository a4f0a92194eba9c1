"""Exercises in JupyterLab: forms that work without a mouse, and folds that hide the answers."""

import pytest
from playwright.sync_api import expect
from test_front_ends import write

pytestmark = pytest.mark.browser

EXERCISES = """
import jax.numpy as jnp
from jaxviz import teach

def f(x):
    return jnp.sin(x) * jnp.exp(x)

kept = teach.saved(f, 2.0)
kept
"""
NUMBER = "teach.predict('How many bytes does it save?', truth=lambda: 12, because='Three numbers of four.')"
SOLUTION = "kept.solution(['sin', 'exp', \"sin'\"])"


def test_a_form_is_filled_in_with_the_keyboard(in_lab):
    page = in_lab.page
    in_lab.open(write(in_lab.lab.folder, EXERCISES, NUMBER, SOLUTION))
    page.evaluate("() => jupyterapp.commands.execute('runmenu:run-all')")
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
    expect(output).to_contain_text("sin's derivative multiplies the tangent by it")
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
