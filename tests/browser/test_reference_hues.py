"""A mutable reference has one hue in code, graph and source, where it is made, read and written, in both themes."""

import re

import jax
import jax.numpy as jnp
import pytest
from playwright.sync_api import expect
from short_runs import short

import jaxviz

pytestmark = pytest.mark.browser


def loss(ws, x):
    total = jax.new_ref(jnp.sum(x))
    largest = jax.new_ref(jnp.max(x, 0))

    def layer(h, w):
        h = jnp.tanh(h @ w)
        total[...] += jnp.sum(h**2)
        largest[...] = jnp.maximum(largest[...], jnp.max(h, 0))
        return h, None

    h, _ = jax.lax.scan(layer, x, ws)
    return total[...] + jnp.sum(h * jax.freeze(largest))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    explorer = jaxviz.explore(loss, jnp.ones((3, 8, 8)), jnp.ones((4, 8)))
    explorer.stage = "primal"
    return explorer.save_html(tmp_path_factory.mktemp("page") / "references.html")


# Of each hue, how many pixels of the canvas have it, and the longest runs of them below and beside each other.
PAINTED = """(hues) => {
    const canvas = document.querySelector("[data-testid=graph-left] canvas");
    const { width, height } = canvas;
    const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
    const longest = (is, n, m) => {
        let most = 0;
        for (let i = 0; i < n; i++)
            for (let j = 0, run = 0; j < m; j++) {
                run = is(i, j) ? run + 1 : 0;
                most = Math.max(most, run);
            }
        return most;
    };
    return hues.map((hue) => {
        const own = hue.match(/\\d+/g).map(Number);
        const is = (x, y) =>
            own.reduce((sum, c, k) => sum + Math.abs(c - data[4 * (y * width + x) + k]), 0) < 60;
        let pixels = 0;
        for (let i = 0; i < width * height; i++) pixels += Number(is(i, 0));
        return [pixels, longest(is, width, height), longest((y, x) => is(x, y), height, width)];
    });
}"""
NAMED = """(marks) => marks.map((mark) => [
    mark.closest(".jv-src")?.querySelector("code").textContent.trim() ?? "",
    mark.textContent.trim(),
    getComputedStyle(mark).color,
])"""


@pytest.mark.parametrize("theme", short(["light", "dark"], ["dark"]), indirect=True)
def test_a_reference_has_one_hue_in_code_graph_and_source(tab, saved):
    page = tab.page
    page.set_viewport_size({"width": 1280, "height": 1000})
    page.goto(saved.as_uri())
    code = page.get_by_test_id("code-left")
    made = code.locator(".cm-line", has_text=re.compile(r":Ref\{.*new_ref"))
    expect(made).to_have_count(2)
    hues = {}
    for line in made.all():
        variable = line.locator("[class*=jv-hue-]").first
        hues[variable.inner_text()] = variable.evaluate("(e) => getComputedStyle(e).color")
    total, largest = hues
    assert hues[total] != hues[largest]

    marks = page.get_by_test_id("references").locator("> *")
    found = marks.evaluate_all(NAMED)
    assert {(name, colour) for _, name, colour in found} == {(f"▬ {name}", hue) for name, hue in hues.items()}
    of_line = {}
    for line, name, _ in found:
        of_line.setdefault(line, []).append(name[2:])
    assert [of_line[line] for line in of_line if "= jax.new_ref" in line] == [[total], [largest]]
    assert of_line["total[...] += jnp.sum(h**2)"] == [total]
    assert not [line for line in of_line if "lax.scan" in line or "tanh" in line]

    page.get_by_test_id("as-graph-left").click()
    legend = page.get_by_test_id("graph-reference")
    expect(legend).to_have_text([f"▬ {name}" for name in hues])
    assert [colour for _, _, colour in legend.evaluate_all(NAMED)] == [*hues.values()]
    page.get_by_test_id("graph-fit").click()
    page.wait_for_timeout(800)
    tab.screenshot("references")
    for _, down, across in page.evaluate(PAINTED, [*hues.values()]):
        assert down > 8  # a line
        assert across > 30  # the edge of a box
    page.keyboard.press("v")
    expect(legend).to_have_count(0)
    expect(marks).to_have_count(0)
    page.wait_for_timeout(300)
    assert [pixels for pixels, _, _ in page.evaluate(PAINTED, [*hues.values()])] == [0, 0]
