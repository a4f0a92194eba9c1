"""The page of `jaxviz run` in a browser: it downloads nothing, and opens an explorer."""

import os
import subprocess
import sys

import pytest

TRAINER = """
import jax, jax.numpy as jnp

def loss(w, x):
    return jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ w) ** 2)

@jax.jit
def train_step(w, x):
    return w - 0.1 * jax.grad(loss)(w, x)

train_step(jnp.ones((8, 8)), jnp.ones((4, 8)))
"""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "train.py").write_text(TRAINER)
    command = [sys.executable, "-m", "jaxviz", "run", "train.py"]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    return folder / "jaxviz-run" / "index.html"


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_opens_an_explorer(page_file, browser, width):
    page = browser.new_page(viewport={"width": width, "height": 900}, offline=True)
    problems = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.goto(page_file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator(".jaxviz").count() == 0
    page.get_by_role("link", name="Explore it").first.click()
    page.get_by_text("modelled peak").first.wait_for()
    assert problems == []
    page.close()
