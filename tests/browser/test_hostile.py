"""Names and texts that try to break out of the page, reverse its text or flood it, in every pane of a saved page."""

import re
import time

import jax.numpy as jnp
import pytest
from hostile_program import LONG, hostile_program
from playwright.sync_api import expect
from tour import tour, unfold

import jaxviz
from notebooks import light

pytestmark = [pytest.mark.browser, light]

SECONDS = 5
"""How soon the page has to respond."""

FOUND = """() => {
    const bad = /[\\u0000-\\u0008\\u000b-\\u001f\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]|\\p{Cs}/u;
    const found = [];
    for (const name of ["hit", "hits"]) if (name in window) found.push(`ran: ${window[name]}`);
    for (const e of document.querySelectorAll("img:not(.cm-widgetBuffer), iframe, object, embed, a, b, svg[onload], "
            + "form, base, body script:not([id]):not([type=module])"))
        found.push(`made: ${e.outerHTML.slice(0, 200)}`);
    for (const e of document.body.querySelectorAll("*:not(script)")) {
        for (const a of e.attributes) {
            if (bad.test(a.value)) found.push(
                `attribute ${a.name} of ${e.className}: ${JSON.stringify(a.value.slice(0, 300))}`);
            if (/^on/.test(a.name)) found.push(`handler ${a.name}`);
            if (a.value.length > 50_000) found.push(`${a.name} of ${a.value.length} of ${e.className}`);
        }
        for (const n of e.childNodes)
            if (n.nodeType === Node.TEXT_NODE) {
                if (bad.test(n.data)) found.push(`text in ${e.className}: ${JSON.stringify(n.data.slice(0, 300))}`);
                if (n.data.length > 50_000) found.push(`text of ${n.data.length} in ${e.className}`);
            }
    }
    if (bad.test(document.title)) found.push(`title ${JSON.stringify(document.title)}`);
    const root = document.documentElement;
    if (root.scrollWidth > innerWidth + 1) found.push(`the page is ${root.scrollWidth} wide`);
    if (root.scrollHeight > innerHeight + 1) found.push(`the page is ${root.scrollHeight} high`);
    const clips = (e) => e && e !== document.body
        && (/hidden|auto|scroll|clip/.test(getComputedStyle(e).overflowX) || clips(e.parentElement));
    for (const e of document.querySelectorAll(".jaxviz *")) {
        const box = e.getBoundingClientRect();
        const isOut = box.width > 0 && box.height > 0 && (box.right > innerWidth + 1 || box.left < -1);
        if (isOut && (getComputedStyle(e).position === "fixed" || !clips(e.parentElement)))
            found.push(`${e.tagName} ${e.className} from ${box.left} to ${box.right}`);
    }
    for (const e of document.querySelectorAll("[data-testid^=failed]")) found.push(e.textContent.slice(0, 300));
    return [...new Set(found)];
}"""


@pytest.fixture
def watched(own_tab):
    """The page, with a record of dialogs, console errors and requests other than for the file itself."""
    noted = []
    page = own_tab.page
    page.on("dialog", lambda dialog: (noted.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.on("console", lambda m: noted.append(f"{m.type} {m.text}") if m.type in ("error", "warning") else None)
    page.on("request", lambda r: None if r.url.startswith(("file:", "blob:", "data:")) else noted.append(r.url))
    page.on("popup", lambda popup: noted.append(f"popup {popup.url}"))
    yield page
    assert noted == []


def holds(page, where):
    """Checks that no code ran, no element was injected, nothing overflows, and the page responds quickly."""
    began = time.monotonic()
    found = page.evaluate(FOUND)
    assert found == [], f"{where}: {found[:8]}"
    assert time.monotonic() - began < SECONDS, where


def hover_all(page, within, selector, most=12):
    """Hovers the first few visible elements, one after the other."""
    for element in within.locator(selector).all()[:most]:
        if element.is_visible():
            element.hover(force=True, timeout=4000)
            page.wait_for_timeout(250)
            holds(page, f"{selector} pointed at")
    page.mouse.move(2, 2)  # a card may cover the next element to click


def visit_overview(page):
    """With what is shown where the mouse is."""
    page.get_by_test_id("view-overview").click()
    holds(page, "the overview")
    for part in ("scope", "kept-row", "card", "overview-memory"):
        hover_all(page, page.get_by_test_id("explorer"), f"[data-testid={part}]", 4)
    page.get_by_test_id("view-derived").click()
    unfold(page)
    page.get_by_test_id("stage-forward").click()
    hover_all(page, page.get_by_test_id("code-left"), ".jv-variable", 3)
    hover_all(page, page.get_by_test_id("source"), "[data-testid=source-line]", 6)
    for key in ("e", "v", "l", "-", "+", "?", "Escape"):
        page.keyboard.press(key)
        if key == "?":  # its part of the page is loaded now
            expect(page.get_by_test_id("keys")).to_be_visible()
        holds(page, f"key {key}")
    page.keyboard.press("f")
    page.get_by_test_id("filter").fill("onerror")
    holds(page, "filtered")
    page.get_by_test_id("filter").fill("")


def visit_switches_and_memory(page):
    page.get_by_test_id("view-what-if").click()
    expect(page.get_by_test_id("what-if-region").first).to_be_visible()
    holds(page, "what if")
    if page.get_by_test_id("what-if-reset").is_enabled():
        page.get_by_test_id("what-if-reset").click()
    page.get_by_test_id("what-if-region").first.get_by_role("switch").click()
    expect(page.get_by_test_id("what-if-region").first.get_by_role("switch", checked=True)).to_be_visible()
    holds(page, "a checkpoint switched on")
    page.get_by_test_id("what-if-reset").click()
    for button in page.get_by_test_id("what-if").locator("button:visible").all():
        if "code" in button.inner_text().lower():
            button.click()
            holds(page, "the code of a plan")
            page.keyboard.press("Escape")
    page.keyboard.press("m")
    box = page.get_by_test_id("timeline").bounding_box()
    for part in (0.02, 0.3, 0.6, 0.97):
        page.mouse.move(box["x"] + part * box["width"], box["y"] + 0.5 * box["height"])
        expect(page.get_by_test_id("memory-tip")).to_be_visible()
        holds(page, "a step of the memory")
    page.get_by_test_id("stage-forward").click()
    page.get_by_test_id("code-left").click(position={"x": 200, "y": 60})
    page.get_by_test_id("copy-left").click()
    page.wait_for_timeout(200)
    holds(page, "copied")
    page.keyboard.press("Escape")


def visit_graph_and_texts(page):
    page.get_by_test_id("as-graph-left").click()
    box = page.get_by_test_id("graph-canvas-left").bounding_box()
    for y in range(1, 12):
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + y * box["height"] / 12)
        page.wait_for_timeout(150)
        holds(page, "a node pointed at")
    page.get_by_test_id("graph-search").fill("onerror")
    holds(page, "the graph searched")
    page.get_by_test_id("graph-search").press("Escape")
    page.get_by_test_id("as-code-left").click()
    page.get_by_test_id("stage-compiled").click()
    text = page.locator("[data-stage=compiled]")
    for kind in ("stablehlo", "hlo"):
        if text.get_by_test_id(f"text-{kind}").count():
            text.get_by_test_id(f"text-{kind}").click()
            expect(text.locator(".cm-line").first).to_be_visible()
            for y in range(0, 4000, 400):
                text.locator(".cm-scroller").evaluate("(e, y) => e.scrollTo(0, y)", y)
                page.wait_for_timeout(60)
                holds(page, kind)


@pytest.mark.slow(sweep=True)
def test_nothing_runs_and_nothing_breaks_in_any_pane(watched, own_tab, tmp_path):
    f, args = hostile_program(tmp_path)
    explorer = jaxviz.explore(f, *args)
    path = explorer.save_html(tmp_path / "page.html", compiled=True)
    assert path.stat().st_size < 5_000_000
    watched.goto(path.as_uri())
    expect(watched.get_by_test_id("explorer")).to_contain_text("onerror")
    own_tab.screenshot("hostile")
    visit_overview(watched)
    visit_switches_and_memory(watched)
    visit_graph_and_texts(watched)
    for where in tour(watched, explorer.view, 4):
        holds(watched, where)


def test_nothing_runs_side_by_side(watched, tmp_path):
    f, args = hostile_program(tmp_path)

    def g(d):
        return f(d) * jnp.sin(d[LONG]).sum()

    g.__name__ = g.__qualname__ = f.__name__
    path = jaxviz.explore(jaxviz.compare(f, g, *args)).save_html(tmp_path / "page.html")
    watched.goto(path.as_uri())
    expect(watched.get_by_test_id("explorer")).to_contain_text("onerror")
    expect(watched.get_by_test_id("compared")).to_be_checked()
    holds(watched, "changes")
    unfold(watched)
    for stage in ("primal", "forward", "backward"):
        watched.get_by_test_id(f"stage-{stage}").click()
        holds(watched, f"two versions of {stage}")
        for side in ("left", "right"):
            watched.get_by_test_id(f"code-{side}").locator(".cm-line[data-row] .jv-primitive").first.click()
            holds(watched, f"selected at the {side}")
    rows = watched.get_by_test_id("changes").locator("tr, button")
    for row in rows.all()[:8]:
        if row.is_visible():
            row.hover(force=True)
            holds(watched, "a change pointed at")


def test_errors_with_hostile_names_stay_text(watched, tmp_path):
    """Errors of a stage, the comparison and the switches contain the program's own text."""
    f, args = hostile_program(tmp_path, has_rules=False)
    explorer = jaxviz.explore(f, *args)
    assert not re.search("[\u202e\u2066\x1b\x00]", str(explorer) + repr(explorer))
    watched.goto(explorer.save_html(tmp_path / "page.html", compiled=True).as_uri())
    expect(watched.get_by_test_id("explorer")).to_contain_text("onerror")
    unfold(watched)
    for stage in ("primal", "backward"):
        watched.get_by_test_id(f"stage-{stage}").click()
        holds(watched, stage)
    expect(watched.get_by_test_id("code-left")).to_contain_text("NoRuleError")
    watched.get_by_test_id("view-what-if").click()
    expect(watched.get_by_test_id("what-if")).to_contain_text("NoRuleError")
    holds(watched, "what if")
    watched.get_by_test_id("stage-compiled").click()
    expect(watched.get_by_test_id("not-compiled")).to_be_visible()
    holds(watched, "compiled")
