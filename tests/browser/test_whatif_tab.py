"""The switches of checkpoints, with a kernel that computes their effects, and on a page without one."""

import pytest
from jupyter_lab import ask_kernel
from playwright.sync_api import expect

import jaxviz
from benchmarks.models import transformer
from jaxviz.features.explorer.whatif import Switches
from jaxviz.report.tables import format_bytes, format_flops
from notebooks import light, run_in_lab

pytestmark = [pytest.mark.browser, light]

CELL = """
import jaxviz
from benchmarks.models import transformer
f, args = transformer(2)
e = jaxviz.explore(f, *args)
e
"""

# What is known, or that it is being computed, is shown before the click event ends.
CLICK = """(row) => {
    const shown = () => document.querySelector("[data-testid=what-if-peak]").textContent;
    row.querySelector("[role=switch]").click();
    return { peak: shown(), isBusy: document.querySelector(".jv-board").classList.contains("is-busy") };
}"""


def region(page, name):
    return page.get_by_test_id("what-if-region").filter(has_text=name)


def is_on(row):
    return row.get_by_role("switch", checked=True)


def test_each_switch_says_what_it_does_and_answers_at_once(in_lab):
    f, args = transformer(2)
    switches = Switches(jaxviz.derive(f, *args))
    page = run_in_lab(in_lab, CELL)
    page.get_by_test_id("explorer").scroll_into_view_if_needed()
    page.get_by_test_id("view-what-if").click()
    around = next(i for i, r in enumerate(switches.regions) if r.name == "layer")
    written, alone = switches.trade(""), switches.trade(f"{around}||")
    row = region(page, "2 calls of layer")
    expect(row).to_contain_text("if switched on: ")
    expect(row).to_contain_text(f"→ {format_bytes(alone.peak_nbytes)}")
    expect(row).to_contain_text(f"→ {format_bytes(alone.saved_nbytes)}")
    expect(page.get_by_test_id("what-if-row")).to_have_count(0)

    at_once = row.evaluate(CLICK)
    assert at_once == {"peak": format_bytes(alone.peak_nbytes), "isBusy": False}
    expect(is_on(row)).to_have_count(1)
    expect(page.get_by_test_id("what-if-flops")).to_contain_text(format_flops(alone.flops))
    expect(page.get_by_test_id("timeline")).to_contain_text(f"peak {format_bytes(alone.peak_nbytes)}")
    expect(page.get_by_test_id("memory")).to_contain_text("peak before")
    assert page.locator(".jv-reference").count() == 1

    # Each group shows its own difference, which is its effect when switched, or that it is being computed.
    rows = page.get_by_test_id("what-if-row")
    expect(rows.first).not_to_contain_text("…", timeout=30_000)
    told = rows.first.evaluate(CLICK)
    assert told["isBusy"] or told["peak"] != "…"
    expect(is_on(rows.first)).to_have_count(1)
    expect(page.locator(".jv-board.is-busy")).to_have_count(0, timeout=30_000)
    before = f"{around}||"
    keys = (ask_kernel(page, "e.switches").strip("'") for _ in range(20))  # the page's setting has not arrived yet
    key = next(k for k in keys if k != before)
    expect(page.get_by_test_id("what-if-peak")).to_have_text(
        format_bytes(switches.trade(key).peak_nbytes), timeout=30_000
    )
    in_lab.screenshot("what-if")

    page.get_by_test_id("what-if-code").click()
    sheet = page.get_by_test_id("what-if-sheet")
    expect(sheet).to_contain_text("+        x = jax.checkpoint(layer, policy=SAVED)(p, x)", timeout=30_000)
    page.keyboard.press("Escape")
    page.get_by_test_id("what-if-undo").click()
    expect(page.get_by_test_id("what-if-peak")).to_have_text(format_bytes(alone.peak_nbytes))
    # A row is not made anew while it is pressed, whatever arrives: it would get no click.
    page.get_by_test_id("what-if-plan").hover()
    page.mouse.down()
    ask_kernel(page, "setattr(e, 'tried', e.tried + ' ')")
    page.mouse.up()
    expect(page.get_by_test_id("what-if-said")).to_contain_text("All switches are set as in the plan", timeout=60_000)
    plan = jaxviz.plan_remat(f, *args)
    expect(page.get_by_test_id("what-if-peak")).to_have_text(format_bytes(plan.peak_nbytes))
    page.get_by_test_id("what-if-reset").click()
    expect(page.get_by_test_id("what-if-peak")).to_have_text(format_bytes(written.peak_nbytes))

    # A residual is recomputed in a checkpoint, and the message says around what.
    page.get_by_test_id("view-kept").click()
    page.get_by_test_id("residual-switch").first.click()
    expect(page.get_by_test_id("residual-said")).to_contain_text("Switched on with it: a checkpoint around")
    in_lab.screenshot("what-if-residual")
    page.get_by_test_id("residual-reset").click()
    expect(page.get_by_test_id("residual-said")).to_have_text("")
