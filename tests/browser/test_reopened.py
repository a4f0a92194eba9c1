"""A notebook with many explorers, saved with its widget state and reopened with another kernel, and without one."""

import base64
import gzip
import json

import jax.numpy as jnp
import nbformat
import pytest
from jupyter_lab import KERNEL_IDLE, ask_kernel
from playwright.sync_api import expect
from tour import unfold

import jaxviz
from jaxviz.page import bundle
from notebooks import RUN_ALL, SHUT_DOWN, light, plain_notebook, save, widgets

pytestmark = [pytest.mark.browser, light]
EXPLORERS, EQUATIONS = 2, 1_000

PROGRAM = f"""
import jax, jax.numpy as jnp, jaxviz
def loss(w, x):
    for _ in range(40):
        x = jnp.tanh(x @ w) * jnp.sin(x) + jnp.cos(x)
    return jnp.sum(x)
derivation = jaxviz.derive(loss, jnp.ones((9, 9)), jnp.ones((5, 9)))
n = sum(sum(1 for _ in getattr(derivation, s).walk()) for s in ("primal", "jvp", "forward", "linear", "backward"))
assert n >= {EQUATIONS}, n
explorers = [jaxviz.explore(loss, (1 + i / 9) * jnp.ones((9, 9)), jnp.ones((5, 9))) for i in range({EXPLORERS})]
"""

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

MODULES = "() => globalThis[Symbol.for('jaxviz')].size"
SHEETS = "() => [...document.querySelectorAll('style')].filter((s) => s.textContent.includes('.jv-residuals')).length"


@pytest.mark.slow(sweep=True)
def test_many_explorers_are_saved_small_and_live_without_a_kernel(lab, own_tab):
    name, page = "many.ipynb", own_tab.page
    # Half of them wait for a request before sending what large programs send later.
    late = "import jaxviz.features.explorer.sent as module\nmodule._AT_ONCE = 10"
    half = EXPLORERS // 2
    show = "for e in explorers[{}:{}]:\n    display(e)"
    path = lab.folder / name
    cells = PROGRAM, show.format(0, half), late, show.format(half, EXPLORERS)
    nbformat.write(plain_notebook(*cells), path)
    lab.open(page, name)
    page.evaluate(RUN_ALL)
    page.wait_for_function(KERNEL_IDLE, timeout=90_000)
    explorers = page.get_by_test_id("explorer")
    expect(explorers).to_have_count(EXPLORERS, timeout=60_000)
    expect(page.get_by_test_id("badge")).to_have_count(EXPLORERS, timeout=60_000)
    assert page.evaluate(SHEETS) == 1
    assert page.evaluate(MODULES) == 1
    page.wait_for_function(KERNEL_IDLE, timeout=60_000)
    page.wait_for_timeout(1000)
    saved = widgets(save(page, path))
    assert path.stat().st_size < 1_700_000
    code = [m for m in saved.values() if "code" in m["state"]]
    assert len(code) == 1
    # Apart from the code, each takes less than half of what it took when it had its own copy.
    assert (path.stat().st_size - len(code[0]["state"]["code"])) / EXPLORERS < 170_000
    page.evaluate(SHUT_DOWN)
    page.close()

    # Another kernel, which knows none of them, and no cell run: everything comes from the file.
    again = type(own_tab)(page.context.browser, "light")
    page = again.page
    lab.open(page, name)
    explorers = page.get_by_test_id("explorer")
    expect(explorers).to_have_count(EXPLORERS, timeout=60_000)
    assert ask_kernel(page, "'jaxviz' in dir()") == "False"
    page.evaluate(SHUT_DOWN)
    for i in (0, EXPLORERS - 1):
        explorer = explorers.nth(i)
        explorer.scroll_into_view_if_needed()
        expect(explorer.get_by_test_id("badge")).to_contain_text("residuals as in JAX")
        expect(explorer.get_by_test_id("card").first).to_contain_text("jnp.tanh(x @ w)")
        explorer.get_by_test_id("view-kept").click()
        unfold(explorer)
        explorer.get_by_test_id("stage-backward").click()
        explorer.get_by_test_id("code-left").locator(".cm-line[data-row] .jv-primitive", has_text="mul").first.click()
        expect(explorer.get_by_test_id("inspected")).to_have_text("mul")
        page.keyboard.press("m")
        expect(explorer.get_by_test_id("timeline")).to_contain_text("peak")
    assert page.evaluate(MODULES) == 1
    again.screenshot("reopened")
    # JupyterLab itself saves no widget without a kernel.
    assert widgets(save(page, path)).keys() == saved.keys()
    assert again.errors == []
    assert again.foreign == []
    page.close()


STILL = """() => [...document.querySelectorAll(".jp-OutputArea-child")].map((child) => {
    const is = (what) => child.querySelector(what) !== null;
    const what = is(".jv-explorer") ? "explorer" : is(".jaxviz-still") ? "table" : is("img") ? "picture" : "other";
    return child.checkVisibility() ? what : `hidden ${what}`;
})"""


# A single test, since opening JupyterLab and deriving the program take most of its time.
def test_an_explorer_or_its_picture_is_seen_again_whatever_is_set(saves_no_state, in_lab):
    page, folder = in_lab.page, in_lab.lab.folder
    picture = (
        f"from IPython.display import Image\nimport ipywidgets\ndisplay(ipywidgets.IntSlider())\n"
        f"Image({PNG!r}, format='png')"
    )
    both = f"display(explorers[0])\ndisplay(Image({PNG!r}, format='png'))\ndisplay(explorers[0])"
    made = plain_notebook(PROGRAM.replace(f"range({EXPLORERS})", "range(1)"), picture, both)
    nbformat.write(made, folder / "live.ipynb")
    in_lab.open("live.ipynb", own_kernel=True)
    page.evaluate(RUN_ALL)
    expect(page.get_by_test_id("scope").first).to_be_visible(timeout=60_000)
    page.wait_for_function(KERNEL_IDLE, timeout=60_000)
    live = ["explorer", "hidden picture", "hidden table"]
    page.wait_for_function(f"() => ({STILL})().length === 9", timeout=30_000)
    # A picture of the user's own is visible, wherever it is.
    assert page.evaluate(STILL) == ["other", "picture", *live, "picture", *live]
    in_lab.screenshot("still-live")
    # The explorer is saved, and the user's own widget is not.
    before = widgets(save(page, folder / "live.ipynb"))
    assert sorted(m["model_name"] for m in before.values()) == ["AnyModel", "LayoutModel", "WidgetModel"]
    page.evaluate(SHUT_DOWN)

    in_lab.reopen(page.get_by_test_id("scope").first)
    page.wait_for_function(f"() => ({STILL})().filter((is) => is === 'explorer').length === 2")
    assert page.evaluate(STILL)[1:] == ["picture", *live, "picture", *live]
    assert widgets(save(page, folder / "live.ipynb")).keys() == before.keys()
    in_lab.close()

    # Opened by somebody who has not trusted it.
    notebook = json.loads((folder / "live.ipynb").read_text())
    notebook["cells"] = notebook["cells"][2:]
    notebook["cells"][0]["source"] += "  # sent"
    (folder / "sent.ipynb").write_text(json.dumps(notebook))
    in_lab.open("sent.ipynb", own_kernel=True)
    page.wait_for_selector(".jaxviz-still", timeout=30_000)
    assert page.evaluate(STILL) == ["other", "picture", "table", "picture", "other", "picture", "table"]
    table = page.locator(".jaxviz-still").first
    expect(table.locator("tbody tr").first).to_contain_text("jnp.tanh(x @ w)")
    # JupyterLab's sanitizer keeps the alignment and the name.
    assert table.locator("td > div").first.evaluate("(e) => getComputedStyle(e).textAlign") in ("left", "-webkit-left")
    in_lab.screenshot("still-sent")


LOAD = """async (part) => {
    const text = JSON.parse(document.getElementById("jaxviz-module").textContent);
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const source = new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
    const module = new Blob([await source.text()], { type: "text/javascript" });
    const { loadPart } = await import(URL.createObjectURL(module));
    const { answer } = await loadPart(globalThis.jaxviz.model, part);
    return answer;
}"""


def test_a_saved_page_loads_a_part_when_it_is_asked_for(tab, tmp_path, monkeypatch):
    static = tmp_path / "static"
    (static / "parts").mkdir(parents=True)
    for name in ("explorer.js", "loader.js"):
        (static / name).write_text((bundle._STATIC / name).read_text())
    (static / "parts" / "small.js").write_text("export const answer = 6 * 7;")
    monkeypatch.setattr(bundle, "_STATIC", static)
    assert gzip.decompress(bundle.packed("small")) == b"export const answer = 6 * 7;"
    path = jaxviz.explore(lambda x: jnp.sum(jnp.sin(x)), jnp.ones(3)).save_html(tmp_path / "page.html")
    page = tab.page
    page.goto(path.as_uri())
    expect(page.get_by_test_id("explorer")).to_be_visible()
    assert page.evaluate(LOAD, "small") == 42
    said = page.evaluate(f"async (part) => ({LOAD})(part).catch((error) => error.message)", "large")
    assert said == "this page was saved without large"
