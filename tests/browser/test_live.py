"""A plot that follows training: points arrive while the cell runs, and stay in the saved notebook."""

import json
import re
import time

import pytest
from playwright.sync_api import expect

from notebooks import SHUT_DOWN, run, save, widgets

pytestmark = pytest.mark.browser

TRAIN = """
import pathlib, time
import jax, jax.numpy as jnp
from IPython.display import display

@jax.jit
def step(w, x):
    def loss(w):
        h = jaxviz.probe(jnp.tanh(x @ w), "hidden")
        return jaxviz.probe(jnp.mean((h - 1) ** 2), "loss")
    value, g = jax.value_and_grad(loss)(w)
    return w - 0.3 * g

w, x = jnp.full((4, 3), 0.1), jnp.linspace(-1, 1, 20).reshape(5, 4) + 1
with jaxviz.watch("loss", "hidden") as watch:
    display(watch)
    for _ in watch.steps(range(100_000)):
        w = step(w, x)
        time.sleep(0.02)
        if pathlib.Path("enough").exists():
            break
"""
# The number of colours other than greys that cover a significant area.
HUES_DRAWN = """(canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const seen = new Map();
    for (let i = 0; i < data.length; i += 4) {
        const [r, g, b, a] = data.slice(i, i + 4);
        if (a === 255 && Math.max(r, g, b) - Math.min(r, g, b) > 40) {
            const key = `${r},${g},${b}`;
            seen.set(key, (seen.get(key) ?? 0) + 1);
        }
    }
    return [...seen.values()].filter((n) => n > 50).length;
}"""
POINTS = "(element) => Number(element.querySelector('canvas').dataset.points)"


def test_points_arrive_while_the_cell_runs(saves_no_state, in_lab):
    enough = in_lab.lab.folder / "enough"
    enough.unlink(missing_ok=True)
    page = run(in_lab, TRAIN, own_kernel=True, waits=False)
    live = page.get_by_test_id("live")
    live.wait_for(timeout=60_000)
    loss = page.locator("[data-name=loss][data-kind=value]")
    expect(loss).to_have_text(re.compile(r"^loss: value 0\.\d+ at step \d+$"), timeout=60_000)
    first = live.evaluate(POINTS)
    text = loss.text_content()
    expect(loss).not_to_have_text(text)
    deadline = time.monotonic() + 30
    while live.evaluate(POINTS) <= first and time.monotonic() < deadline:
        time.sleep(0.1)
    assert live.evaluate(POINTS) > first
    expect(page.locator(".jp-Cell .jp-InputPrompt").nth(1)).to_have_text("[*]:")  # it is still running
    expect(page.get_by_test_id("live-status")).to_have_text("watching")
    expect(live.get_by_role("img").first).to_have_attribute("aria-label", re.compile("loss 0"))
    enough.write_text("")
    expect(page.get_by_test_id("live-status")).to_have_text("over", timeout=30_000)
    expect(page.get_by_test_id("live-note")).to_have_text(re.compile("reports took .* ms in Python"))
    in_lab.screenshot("live")
    assert live.locator("canvas").first.evaluate(HUES_DRAWN) >= 2
    page.get_by_test_id("live-log").check()
    last = loss.text_content()
    states = widgets(save(page, in_lab.path)).values()
    (plot,) = (s["state"] for s in states if "shown" in s["state"])
    assert len(json.dumps(plot)) < 60_000
    page.evaluate(SHUT_DOWN)

    for _ in range(2):  # what is saved once without the kernel that made it is still there
        in_lab.reopen(loss)
        expect(loss).to_have_text(last)
        expect(page.get_by_test_id("live-status")).to_have_text("over")
