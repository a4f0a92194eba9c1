"""Exercises on a page without a kernel: answered with only the keyboard, and checked with axe in both themes."""

import pytest
from playwright.sync_api import expect
from short_runs import short
from static_exercises import EXERCISES
from test_accessibility import violations

from jaxviz import teach

pytestmark = pytest.mark.browser

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Exercises</title>
<style>:root {{ color-scheme: light dark }} body {{ color: light-dark(#000, #ddd); background: light-dark(#fff, #131416) }}</style><body data-theme="{theme}"><main><h1>Exercises</h1>{forms}{fold}</main>
<script>{script}</script></body></html>"""


@pytest.mark.parametrize("theme", short(["light", "dark"], ["dark"]), indirect=True)
def test_forms_are_answered_with_the_keyboard(tab, tmp_path):
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
