"""The explorer checked with axe-core in every pane and both themes, and used with only the keyboard."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from playwright.sync_api import expect
from short_runs import short
from tour import unfold

import jaxviz
from notebooks import light

pytestmark = pytest.mark.browser
AXE = Path(__file__).parents[2] / "widgets" / "node_modules" / "axe-core" / "axe.min.js"


def loss(w, x):
    def step(x, _):
        return jax.checkpoint(lambda x: jnp.tanh(x @ w) * jnp.cos(x))(x), jnp.sum(x)

    x, sums = jax.lax.scan(step, x, None, length=3)
    return jnp.sum(x) + jnp.sum(sums)


def other(w, x):
    return loss(w, x) + jnp.sum(jnp.exp(w))


ARGS = (jnp.ones((9, 9)), jnp.ones((50, 9)))


@pytest.fixture(scope="module")
def page_path(tmp_path_factory):
    explorer = jaxviz.explore(jaxviz.compare(loss, other, *ARGS))
    explorer.compared = False
    return explorer.save_html(tmp_path_factory.mktemp("page") / "page.html", compiled=True)


@pytest.fixture
def explorer(tab, page_path):
    tab.page.goto(page_path.as_uri())
    tab.page.wait_for_selector("[data-testid=explorer] .cm-line[data-row]")
    return tab.page.get_by_test_id("explorer")


EVERYTHING = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "rules": {"region": {"enabled": False}},
}
RULES = {"light": EVERYTHING, "dark": {"runOnly": {"type": "rule", "values": ["color-contrast"]}}}
"""The rules that are checked: all but colours are the same in both themes."""


def violations(page, root="[data-testid=explorer]", rules=EVERYTHING):
    page.add_script_tag(path=AXE)
    found = page.evaluate(
        """async ([root, rules]) => (await axe.run(root, rules)).violations.map(
        (v) => v.id + ": " + v.help + "\\n" + v.nodes.slice(0, 4).map(
            (n) => "    " + n.html.slice(0, 200) + "\\n      " + n.failureSummary.split("\\n").slice(1, 3).join(" ")
        ).join("\\n"))""",
        [root, rules],
    )
    return "\n".join(found)


def keys(*names):
    def press(tab, explorer):
        explorer.focus()
        for name in names:
            tab.page.keyboard.press(name)

    return press


def question(name, *extras):
    def show(tab, explorer):
        tab.page.set_viewport_size({"width": 1280, "height": 800})
        explorer.get_by_test_id(f"view-{name}").click()
        for extra in extras:
            unfold(explorer, extra)

    return show


def line_by_line(tab, explorer):
    tab.page.set_viewport_size({"width": 1280, "height": 800})
    explorer.get_by_test_id("view-lines").click()
    line = explorer.get_by_test_id("source-line").filter(has_text="jnp.tanh")
    line.click()
    expect(explorer.get_by_test_id("under-row").filter(has_text="dot_general").first).to_be_visible()
    expect(line).to_contain_text("KiB")


def search(tab, explorer):
    line_by_line(tab, explorer)
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("x")
    tab.page.keyboard.press("ArrowDown")
    expect(explorer.locator("[data-testid=found][aria-selected=true]")).to_have_count(1)


def side_by_side(compared, width):
    def show(tab, explorer):
        explorer.get_by_test_id("view-diff").click()
        explorer.get_by_test_id(f"diff-{compared}").click()
        tab.page.keyboard.press("Tab")
        explorer.locator("[data-testid=diff-line][role]").first.focus()
        for key in ("ArrowDown", "ArrowRight", "Enter"):
            tab.page.keyboard.press(key)
        expect(explorer.locator("[data-testid=diff-line].is-selected")).not_to_have_count(0)
        tab.page.set_viewport_size({"width": width, "height": 800})

    return show


VIEWS = {
    "as it opens": keys(),
    "an equation selected": keys("i", "ArrowDown", "ArrowDown", "ArrowDown"),
    "two stages": keys("Digit3", "Shift+Digit5"),
    "jvp beside linearize": keys("l"),
    "two versions": keys("c", "i"),
    "compiled": keys("Digit6"),
    "a graph": keys("Digit3", "g", "Home", "ArrowDown", "Enter"),
    "two graphs": keys("Digit3", "g", "Shift+Digit5"),
    "keys": keys("?"),
    **{name: question(name) for name in ("cost", "what-if", "diff")},
    "kept": question("kept", "stages", "details"),
    "line by line": line_by_line,
    "what a search finds": search,
    "a diff of the source": side_by_side("source", 1280),
    "a diff of equations in a narrow page": side_by_side("forward", 416),
}


IN_DARK = ("as it opens", "two stages", "compiled")
IN_LIGHT = VIEWS.keys() - {*IN_DARK[:2], "jvp beside linearize", "a graph"}
"""What the short tests look at; of views with the same panes, the one that has most."""


@pytest.mark.parametrize(
    ("name", "theme"),
    [
        pytest.param(
            name, theme, marks=[pytest.mark.slow(sweep=True)] * (name not in (IN_DARK if theme == "dark" else IN_LIGHT))
        )
        for theme in ("light", "dark")
        for name in VIEWS
    ],
    indirect=["theme"],
)
def test_axe_finds_nothing(tab, explorer, name):
    VIEWS[name](tab, explorer)
    assert violations(tab.page, rules=RULES[tab.theme]) == ""


@light
@pytest.mark.parametrize("width", short([1280, 900, 640, 400], [1280, 400]))
def test_the_source_is_read_without_scrolling_to_the_side(tab, explorer, width):
    tab.page.set_viewport_size({"width": width, "height": 800})
    if width < 600:
        explorer.get_by_test_id("question").select_option("lines")
    else:
        explorer.get_by_test_id("view-lines").click()
    explorer.get_by_test_id("source-line").filter(has_text="jnp.tanh").click()
    for body in (".jv-source-body", ".jv-pane.jv-source"):
        wide, shown = explorer.locator(body).evaluate("e => [e.scrollWidth, e.clientWidth]")
        assert wide <= shown, body


CLICKS = {
    "questions": ["[data-testid=view-what-if]", "[data-testid=view-diff]", "[data-testid=diff-forward]"],
    "a pane opened and closed": [
        "[data-testid=open-stages]",
        "[data-testid=beside-backward]",
        "[data-testid=code-right] .jv-close",
    ],
    "code and graph": ["[data-testid=as-graph-left]", "[data-testid=as-code-left]"],
    "folds": ["[data-testid=fold-left]", "[data-testid=code-left] .jv-fold", "[data-testid=code-left] .jv-arrow"],
    "the player": ["[data-testid=open-stages]", "[data-testid=play]", "[data-testid=player-close]"],
    "a difference": [
        "[data-testid=view-diff]",
        "[data-testid=next-added-primal]",
        "[data-testid=code-right] .jv-close",
    ],
}


@light
@pytest.mark.parametrize("clicks", short(list(CLICKS.values()), 2), ids=CLICKS)
def test_who_clicks_goes_on_with_keys(tab, explorer, clicks):
    """A click may remove the focused element; the next key still goes to the explorer."""
    tab.page.set_viewport_size({"width": 1280, "height": 800})
    for where in clicks:
        explorer.locator(where).first.click()
        tab.page.wait_for_timeout(200)
        assert explorer.evaluate("e => e.contains(document.activeElement)"), where
    tab.page.keyboard.press("Digit5")
    expect(explorer.get_by_test_id("code-left")).to_have_attribute("data-stage", "backward")


@light
def test_the_keyboard_reaches_everything(tab, explorer):
    """Everything clickable is a button, field or row that the keyboard reaches, with a visible focus."""
    unreachable = tab.page.evaluate(
        """() => [...document.querySelectorAll("[data-testid=explorer] *")].filter((e) => {
            const style = getComputedStyle(e);
            if (style.cursor !== "pointer" || style.visibility === "hidden" || e.offsetParent === null) return false;
            return !e.closest(
                "button, a[href], input, select, summary, label, [tabindex], [role=row], tr, .cm-content");
        }).map((e) => e.outerHTML.slice(0, 160))"""
    )
    assert unreachable == []
    seen, page = set(), tab.page
    explorer.focus()
    for _ in range(200):
        page.keyboard.press("Tab")
        here = page.evaluate(
            """() => {
                const e = document.activeElement;
                const style = getComputedStyle(e);
                const inside = e.closest("[data-testid=explorer]") !== null;
                const outlined = style.outlineStyle !== "none" || style.boxShadow !== "none"
                    || e.matches(".cm-content");
                return [inside, outlined, e.outerHTML.slice(0, 120)];
            }"""
        )
        if not here[0]:
            break
        assert here[1], f"no visible focus: {here[2]}"
        seen.add(here[2])
    assert len(seen) > 12
    expect(explorer).to_be_visible()
