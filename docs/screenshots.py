"""Pictures of each pane, in both themes and at two widths: `make screenshots` puts them into artifacts/screenshots.

With `--docs` it makes those that the README shows, small, in docs/.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from PIL import Image
from playwright.sync_api import Page, sync_playwright

import jaxviz

ROOT = Path(__file__).parents[1]
OUT = ROOT / "artifacts" / "screenshots"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
SIZES = {"1280": (1280, 800), "1920": (1920, 1080)}
SMALL_PICTURE_COLOURS = 96

MODEL = """
import jax
import jax.numpy as jnp


def predict(params, x):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = params[-1]
    return x @ w + b


@jax.jit
def distance(a, b):
    return jnp.sqrt(jnp.sum((a - b) ** 2))


def loss(params, x, y):
    error = predict(params, x)
    return distance(error, y) + 0.5 * jnp.sum(params[0][0] ** 2)


def leaner_loss(params, x, y):
    error = jax.checkpoint(predict)(params, x)
    return distance(error, y) + 0.5 * jnp.sum(jnp.abs(params[0][0]))


def rnn_loss(params, xs, ys):
    def cell(h, x):
        h = jnp.tanh(params["w"] @ h + params["u"] @ x)
        h = jax.lax.cond(h[0] > 0, jnp.cos, jnp.sin, h)
        return h, params["v"] @ h

    _, outs = jax.lax.scan(cell, jnp.zeros(64), xs)
    return jnp.mean((outs - ys) ** 2)
"""


def explorers(folder: Path) -> dict[str, Path]:
    """Saved pages of a small network, of two versions of it, and of a transformer of 12 layers."""
    sys.path[:0] = [str(folder), str(ROOT)]
    (folder / "model.py").write_text(MODEL.lstrip())
    import model  # type: ignore[import-not-found]

    from benchmarks import models

    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(4, 16), (16, 16), (16, 2)]
    params = [(0.3 * jax.random.normal(k, s), jnp.zeros(s[1])) for k, s in zip(keys, shapes, strict=True)]
    args = params, jnp.ones((8, 4)), jnp.zeros((8, 2))
    transformer, inputs = models.transformer(12)
    small, small_inputs = models.transformer(3)
    found = {
        "model": jaxviz.explore(model.loss, *args),
        "versions": jaxviz.explore(jaxviz.compare(model.loss, model.leaner_loss, *args)),
        "transformer": jaxviz.explore(transformer, *inputs),
        "transformer of 3": planned(jaxviz.explore(small, *small_inputs)),
    }
    pages = {name: e.save_html(folder / f"{name}.html", compiled=name == "model") for name, e in found.items()}
    return {**pages, **steppers(folder, model.rnn_loss, transformer_layer())}


def planned(explorer: Any) -> Any:
    """An explorer with the switches of *what if* as a plan has them."""
    from jaxviz.features.explorer.whatif import Switches

    explorer.switches = Switches(explorer.derivation).plan()
    return explorer


def transformer_layer() -> tuple[Any, Any]:
    """The loss of one layer, and its arguments."""
    from benchmarks import models

    return models.transformer(1)


def steppers(folder: Path, rnn_loss: Any, layer: tuple[Any, Any]) -> dict[str, Path]:
    """Saved pages of steppers: in a loop, at a breakpoint of a layer, and in the backward pass of the loop."""
    shapes = {"w": (64, 64), "u": (64, 8), "v": (3, 64)}
    keys = dict(zip(shapes, jax.random.split(jax.random.key(1), 3), strict=True))
    params = {name: 0.25 * jax.random.normal(keys[name], shape) for name, shape in shapes.items()}
    xs = jax.random.normal(jax.random.key(2), (32, 8))

    def saved(name: str, stepper: jaxviz.Stepper) -> Path:
        path: Path = stepper.widget().save_html(folder / f"{name}.html")
        return path

    in_loop = jaxviz.step(rnn_loss, params, xs, jnp.zeros((32, 3)))
    in_loop.break_at(primitive="cond")
    in_loop.break_at(when=_large)

    def look(primitive: str) -> None:
        v = next(e.outvars[-1] for e in in_loop.program.equations if e.primitive.name == primitive)
        in_loop.widget()._look({"stage": "forward", "name": in_loop._texts["forward"].names[v]})

    in_loop.run(primitive="scan").to(iteration=7).run()
    look("tanh")
    made = {"step in a loop": saved("step in a loop", in_loop)}
    in_loop.out()
    look("scan")
    in_loop.breakpoints.clear()
    while in_loop.stage != "backward":
        in_loop.out().next()
    in_loop.run(primitive="scan").to(iteration=7).next(2)
    made["step backward"] = saved("step backward", in_loop)
    function, args = layer
    made["step in a layer"] = saved("step in a layer", jaxviz.step(function, *args).run(primitive="exp").next())
    return made


def _large(v: Any) -> Any:
    return abs(v).max() > 1e3


_large.__name__ = "lambda v: abs(v).max() > 1e3"


@dataclass(frozen=True)
class Shot:
    """A picture: the page, what is done there, and the part of it that is shown."""

    page: str
    act: Callable[[Page], Any] = lambda page: None
    part: str = "[data-testid=explorer]"
    size: tuple[int, int] | None = None
    ready: str = "[data-testid=residual-row]"


def keys(*names: str) -> Callable[[Page], None]:
    def press(page: Page) -> None:
        page.get_by_test_id("explorer").focus()
        for name in names:
            page.keyboard.press(name)
            page.wait_for_timeout(150)

    return press


def both(*acts: Callable[[Page], Any]) -> Callable[[Page], None]:
    def run(page: Page) -> None:
        for act in acts:
            act(page)

    return run


def click(where: str) -> Callable[[Page], None]:
    return lambda page: page.locator(where).first.click()


def residual(text: str) -> Callable[[Page], None]:
    return lambda page: page.get_by_test_id("residual-row").filter(has_text=text).first.click()


def hover(where: str) -> Callable[[Page], None]:
    return lambda page: page.locator(where).first.hover()


FORWARD_AND_BACKWARD = keys("Digit3", "Shift+Digit5")
WHAT_IF = click("[data-testid=residuals] [data-testid=show-what-if]")


def stepper(page: str, size: tuple[int, int] | None = None) -> Shot:
    """A stepper as it is with its kernel."""
    with_kernel = lambda p: p.evaluate("() => jaxviz.model.set('is_saved', false)")
    return Shot(page, with_kernel, "[data-testid=stepper]", size, "[data-testid=equation]")


SHOTS: Mapping[str, Shot] = {
    "explorer": Shot("model", both(FORWARD_AND_BACKWARD, residual("sub(1.0"))),
    "linearize": Shot("model", keys("l")),
    "graph": Shot("transformer", keys("g")),
    "graph-beside-code": Shot("transformer", both(FORWARD_AND_BACKWARD, keys("g"))),
    "graph-of-both": Shot(
        "model",
        both(FORWARD_AND_BACKWARD, click("[data-testid=as-graph-left]"), click("[data-testid=as-graph-right]")),
    ),
    "steps": Shot("model", keys("r", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight")),
    "compiled": Shot("model", both(keys("Digit3", "Shift+Digit6"), residual("sub(1.0"))),
    "what-if": Shot("transformer of 3", WHAT_IF),
    "what-if-at-a-residual": Shot("transformer of 3", click("[data-testid=residual-switch]")),
    "memory": Shot("transformer", both(keys("m", "ArrowRight", "ArrowRight", "ArrowRight"))),
    "line-by-line": Shot(
        "transformer",
        both(click("[data-testid=view-lines]"), click("[data-testid=source-line]:has-text('q, k, v')")),
    ),
    "search": Shot("transformer", both(keys("/"), lambda page: page.keyboard.type("weights"))),
    "versions": Shot("versions"),
    "what-differs": Shot("versions", both(click("[data-testid=view-diff]"), click("[data-testid=diff-forward]"))),
    "card": Shot("model", hover("[data-testid=code-left] .cm-line[data-row] .jv-variable")),
    "keys": Shot("model", keys("?")),
    "stepper-in-a-loop": stepper("step in a loop"),
    "stepper-backward": stepper("step backward"),
    "stepper-in-a-layer": stepper("step in a layer"),
}

FOR_README: Mapping[str, Shot] = {
    "explorer": Shot("model", both(FORWARD_AND_BACKWARD, residual("sub(1.0")), size=(1280, 640)),
    "what-if": Shot("transformer of 3", WHAT_IF, part=".jv-lower", size=(1240, 1060)),
    "graph": Shot("transformer", both(FORWARD_AND_BACKWARD, keys("g")), part=".jv-codes", size=(1500, 1000)),
    "steps": Shot("model", keys("r", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight"), size=(1280, 620)),
    "versions": Shot("versions", size=(1400, 760)),
    "stepper": stepper("step in a loop", (1400, 600)),
}


def take(browser: Any, pages: Mapping[str, Path], shot: Shot, path: Path, theme: str, size: tuple[int, int]) -> None:
    width, height = shot.size or size
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce")
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(pages[shot.page].as_uri())
    page.wait_for_selector(shot.ready, state="attached")
    page.wait_for_timeout(400)
    shot.act(page)
    page.wait_for_timeout(900)
    page.locator(shot.part).first.screenshot(path=path)
    page.close()
    if errors:
        raise RuntimeError(f"{path.name}: {'; '.join(errors)}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--docs", action="store_true", help="make the pictures that the README shows")
    options.add_argument("names", nargs="*", help="only these")
    chosen = options.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("the pictures need Chromium; `make browser` installs it")
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        pages = explorers(Path(folder))
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        shots = FOR_README if chosen.docs else SHOTS
        for name, shot in shots.items():
            if chosen.names and name not in chosen.names:
                continue
            if chosen.docs:
                path = ROOT / "docs" / f"{name}.png"
                take(browser, pages, shot, path, "light", SIZES["1280"])
                picture = Image.open(path).convert("RGB")
                small = picture.quantize(colors=SMALL_PICTURE_COLOURS, dither=Image.Dither.NONE)
                small.save(path, optimize=True)
                continue
            for theme in ("light", "dark"):
                for width, size in SIZES.items():
                    take(browser, pages, shot, OUT / f"{name}-{width}-{theme}.png", theme, size)
        browser.close()
    print(f"{ROOT / 'docs' if chosen.docs else OUT}")


if __name__ == "__main__":
    main()
