"""The explorer in hosts that cannot be tested here, such as VS Code and Colab: on a page with only what anywidget's
contract guarantees."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from anywidget_host import BINARY, AnywidgetHost
from playwright.sync_api import expect
from short_runs import short
from tour import unfold

import jaxviz
from jaxviz.features.explorer.still import table_html
from notebooks import light, works

pytestmark = [pytest.mark.browser, light]


def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w) * jnp.cos(x))


@pytest.fixture
def explorer():
    return jaxviz.explore(loss, jnp.ones((9, 9)), jnp.ones((50, 9)))


def shown(tab, explorer, folder, **of_host):
    explorer._fill()
    host = AnywidgetHost(tab.page, explorer, folder, **of_host)
    host.wait("code-left")
    assert host.refused() == []
    return host


@pytest.mark.parametrize("binary", short(list(BINARY), 6))
def test_it_works_however_bytes_arrive(tab, tmp_path, explorer, binary):
    host = shown(tab, explorer, tmp_path, binary=binary)
    page = tab.page
    works(page.get_by_test_id("explorer"))
    host.answer()
    assert explorer.equation.primitive.name == "tanh"
    # A part that is loaded later, and data that Python computes on request.
    page.keyboard.press("g")
    host.wait("graph-left")
    page.get_by_test_id("stage-compiled").click()
    host.wait("text-hlo")
    page.evaluate("() => fromKernel({ state: { selected: 'backward:0' } })")
    expect(page.get_by_test_id("inspected")).to_have_text("broadcast_in_dim")


def test_what_it_shows_may_come_later(tab, tmp_path, explorer):
    host = AnywidgetHost(tab.page, explorer, tmp_path)
    host.wait("code-left")
    works(tab.page.get_by_test_id("explorer"))


def test_views_of_one_model_come_and_go(tab, tmp_path, explorer):
    host = shown(tab, explorer, tmp_path)
    page = tab.page
    works(page.get_by_test_id("explorer"))
    host.answer()
    of_one = page.evaluate("() => listening()")  # what a view waits for is only listened to until it comes
    page.evaluate("() => addView()")
    # A host may use a shadow root, which has no styles other than those added to it.
    page.evaluate(
        "() => addView(document.body.appendChild(document.createElement('div')).attachShadow({ mode: 'open' }))"
    )
    explorers = page.get_by_test_id("explorer")
    expect(explorers).to_have_count(3)
    unfold(explorers.nth(2))
    works(explorers.nth(0))
    expect(explorers.nth(2).get_by_test_id("inspected")).to_have_text("tanh")
    assert explorers.nth(2).evaluate("(e) => getComputedStyle(e).display") == "flex"
    works(explorers.nth(2))
    page.evaluate("async () => { await dropView(2); await dropView(1); }")
    host.answer()
    assert page.evaluate("() => listening()") == of_one
    works(explorers)
    page.evaluate("() => dropView(0)")
    assert page.evaluate("() => listening()") == 0
    page.evaluate("() => addView()")
    works(explorers)


def test_the_module_is_what_hosts_take(tab, tmp_path, explorer):
    shown(tab, explorer, tmp_path)
    assert tab.page.evaluate("() => Object.keys(widget).sort()") == ["initialize", "render"]
    # It is loaded from a blob, which cannot import by path.
    assert not re.search(r"""\bimport\s*[\w{*"']|\bfrom\s*["']|import\.meta""", explorer._esm)


@pytest.mark.slow(sweep=True)
def test_a_page_that_allows_no_workers(tab, tmp_path):
    rng = np.random.default_rng(0)

    def deep(x):  # without repetition, which would be folded
        values = [x]
        for i in range(1500):
            a, b = (values[-1 - j] for j in rng.integers(0, min(i + 1, 5), 2))
            values.append((jnp.add, jnp.multiply, jnp.subtract)[rng.integers(3)](a, b))
        return jnp.sum(sum(values[-5:]))

    host = shown(tab, jaxviz.explore(deep, jnp.ones(3)), tmp_path, workers="'none'")
    tab.page.get_by_test_id("code-left").locator(".cm-line[data-row] .jv-primitive").first.click()
    tab.page.keyboard.press("g")
    host.wait("graph-left")
    expect(tab.page.get_by_test_id("graph-left").get_by_role("treeitem").first).to_be_attached()
    # The graph is there as soon as the worker is refused, but the page is notified slightly later.
    tab.page.wait_for_function("() => refused.length > 0")
    assert host.refused() == ["worker-src"]


LIGHT_OF_WIDGETS = ":root { --jp-layout-color1: white; --jp-border-color2: #e0e0e0; }"
"""Values that ipywidgets' styles have outside JupyterLab, even in dark themes."""


def vs_code(kind, background):
    body = f'class="{kind}" data-vscode-theme-kind="{kind}" data-vscode-theme-name="of a person"'
    return {"body": body, "style": f":root {{ --vscode-editor-background: {background} }}"}


HOSTS = {
    "vs code dark": ("dark", "rgb(31, 31, 31)", vs_code("vscode-dark", "#1f1f1f")),
    "vs code light": ("light", "rgb(253, 246, 227)", vs_code("vscode-light", "#fdf6e3")),
    "vs code high contrast": ("dark", "rgb(0, 0, 0)", vs_code("vscode-high-contrast", "#000")),
    "vs code high contrast light": ("light", "rgb(255, 255, 255)", vs_code("vscode-high-contrast-light", "#fff")),
    "colab dark": ("dark", "rgb(17, 20, 24)", {"html": 'theme="dark"'}),
    "colab light": ("light", "rgb(255, 255, 255)", {"html": 'theme="light"'}),
    "a page that says nothing": ("light", "rgb(255, 255, 255)", {}),
    "a page that says dark": ("dark", "rgb(17, 20, 24)", {"style": ":root { color-scheme: dark }"}),
}

CONTRAST = """(element) => {
    const luminance = (color) => {
        const [r, g, b] = color.match(/[\\d.]+/g).map((c) => {
            const s = c / 255;
            return s <= 0.03928 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const style = getComputedStyle(element);
    const [a, b] = [luminance(style.color), luminance(style.backgroundColor)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
}"""


@pytest.mark.parametrize("name", short(list(HOSTS), 4))
# The system has the other colour scheme: the notebook's takes precedence.
def test_its_colours_are_those_of_the_notebook(browser, tab, tmp_path, explorer, name):
    scheme, background, of_host = HOSTS[name]
    tab.page.emulate_media(color_scheme="dark" if scheme == "light" else "light")
    of_host = {**of_host, "style": LIGHT_OF_WIDGETS + of_host.get("style", "")}
    host = shown(tab, explorer, tmp_path, **of_host)
    page = tab.page
    root = page.get_by_test_id("explorer")
    assert root.evaluate("(e) => getComputedStyle(e).backgroundColor") == background
    assert root.evaluate(CONTRAST) > 12
    works(root)
    page.keyboard.press("g")
    host.wait("graph-left")
    tab.theme = name.replace(" ", "-")
    tab.screenshot("host")


def test_it_is_wide_where_its_container_is_as_wide_as_its_contents(tab, tmp_path, explorer):
    """As in a row of widgets, or in an output that the page positions."""
    shown(tab, explorer, tmp_path)
    tab.page.evaluate("""async () => {
        const place = document.body.appendChild(document.createElement("div"));
        place.style.cssText = "display: flex";
        await addView(place);
        await dropView(0);
    }""")
    root = tab.page.get_by_test_id("explorer")
    for question in ("view-overview", "view-kept", "view-derived"):
        root.get_by_test_id(question).click()
        assert root.bounding_box()["width"] > 1000, question
    tab.page.set_viewport_size({"width": 416, "height": 900})
    assert root.bounding_box()["width"] == 400


def test_a_stepper_is_as_wide_there_and_its_stages_are_seen_on_a_phone(tab, tmp_path):
    stepper = jaxviz.step(loss, jnp.ones((9, 9)), jnp.ones((50, 9))).widget()
    host = AnywidgetHost(tab.page, stepper, tmp_path, style="#cells { display: flex }")
    root = tab.page.get_by_test_id("stepper")
    host.wait("move-next")
    assert root.bounding_box()["width"] > 1000
    tab.page.set_viewport_size({"width": 390, "height": 760})
    for stage in root.locator(".jv-stage").all():
        box = stage.bounding_box()
        assert box["x"] + box["width"] <= 382
        assert stage.evaluate("(e) => e.scrollWidth <= e.clientWidth")


def test_it_fits_in_400_pixels(tab, tmp_path, explorer):
    tab.page.set_viewport_size({"width": 416, "height": 900})
    shown(tab, explorer, tmp_path)
    root = tab.page.get_by_test_id("explorer")
    assert root.bounding_box()["width"] == 400
    assert tab.page.evaluate("() => document.documentElement.scrollWidth") <= 416
    works(root)
    for name in ("stage-primal", "stage-backward", "stage-compiled", "badge", "inspected", "filter"):
        box = root.get_by_test_id(name).bounding_box()
        assert box["x"] + box["width"] <= 408, name
    tab.screenshot("narrow")


OUTPUTS = {
    "vs code": '<div class="output_container" style="position: absolute; width: 100%; overflow: hidden"><div '
    'class="output">{}</div></div>',
    "colab": '<div class="display_data output-id-1"><div class="output_subarea">{}</div></div>',
}
"""The element around an output in each host: VS Code positions each output, and Colab puts a cell's into one frame."""


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_picture_and_the_table_are_seen_only_where_the_explorer_is_not(tab, tmp_path, explorer, name):
    shown(tab, explorer, tmp_path)
    page = tab.page
    picture = '<img width="20" height="20" alt="{}">'
    contents = ['<div id="place"></div>', picture.format("overview"), table_html(explorer.view), picture.format("own")]
    outputs = "".join(OUTPUTS[name].format(content) for content in contents)
    page.evaluate(
        """async (outputs) => {
            document.body.insertAdjacentHTML("beforeend", `<div>${outputs}</div>`);
            await addView(document.getElementById("place"));
            await dropView(0);
        }""",
        outputs,
    )
    stills = page.get_by_alt_text("overview"), page.locator(".jaxviz-still")
    works(page.get_by_test_id("explorer"))
    for still in stills:
        expect(still).to_be_hidden()
    expect(page.get_by_alt_text("own")).to_be_visible()
    # VS Code shows text in its place when the notebook is opened again.
    page.evaluate(
        "async () => { await dropView(0); document.getElementById('place').textContent = 'Explorer of loss'; }"
    )
    for still in stills:
        expect(still).to_be_visible()
