"""Screenshots of each pane for four programs, in both themes and at two widths:
`make screenshots` writes them to artifacts/screenshots.

Names select some: `docs/screenshots.py rnn` takes all of that program, `rnn-memory` one pane of it, `versions` the two
versions. With `--docs` it takes those that the README shows, small, in docs/.
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
from playwright.sync_api import Error, Page, sync_playwright

import jaxviz

ROOT = Path(__file__).parents[1]
OUT = ROOT / "artifacts" / "screenshots"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
SIZES = {"1280": (1280, 800), "900": (900, 800)}
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


@jax.checkpoint
def cell(params, h, x):
    h = jnp.tanh(params["w"] @ h + params["u"] @ x)
    return jax.lax.cond(h[0] > 0, jnp.cos, jnp.sin, h)


def rnn_loss(params, xs, ys):
    def step(h, x):
        h = cell(params, h, x)
        return h, params["v"] @ h

    _, outs = jax.lax.scan(step, jnp.zeros(64), xs)
    return jnp.mean((outs - ys) ** 2)
"""

FLAX_MODEL = """
import flax.linen as nn
import jax.numpy as jnp


class Block(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x):
        h = nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x)))
        return x + nn.Dense(self.width)(h)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(4):
            x = Block(64)(x)
        return nn.Dense(10)(x)


def flax_loss(variables, x, labels):
    log_p = nn.log_softmax(Net().apply(variables, x))
    return -jnp.take_along_axis(log_p, labels[:, None], 1).mean()
"""


def saved_pages(folder: Path) -> dict[str, Path]:
    """Saved pages of the four programs, and of the versions and settings that some pictures need."""
    sys.path[:0] = [str(folder), str(ROOT)]
    (folder / "model.py").write_text(MODEL.lstrip())
    (folder / "flax_model.py").write_text(FLAX_MODEL.lstrip())
    import flax_model  # type: ignore[import-not-found]
    import model  # type: ignore[import-not-found]

    from benchmarks import models

    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(4, 16), (16, 16), (16, 2)]
    params = [(0.3 * jax.random.normal(k, s), jnp.zeros(s[1])) for k, s in zip(keys, shapes, strict=True)]
    args = params, jnp.ones((8, 4)), jnp.zeros((8, 2))
    transformer, inputs = models.transformer(12)
    small, small_inputs = models.transformer(3)
    x = jnp.ones((128, 64))
    variables = flax_model.Net().init(keys[0], x)
    found = {
        "mlp": jaxviz.explore(model.loss, *args),
        "transformer": jaxviz.explore(transformer, *inputs),
        "flax": jaxviz.explore(flax_model.flax_loss, variables, x, jnp.zeros(128, jnp.int32)),
        "rnn": jaxviz.explore(model.rnn_loss, *rnn_inputs()),
        "versions": jaxviz.explore(jaxviz.compare(model.loss, model.leaner_loss, *args)),
        "transformer of 3": planned(jaxviz.explore(small, *small_inputs)),
    }
    pages = {name: e.save_html(folder / f"{name}.html", compiled=name in PROGRAMS) for name, e in found.items()}
    return {**pages, **steppers(folder, model.rnn_loss, models.transformer(1))}


def planned(explorer: Any) -> Any:
    """An explorer with the switches of *what if* set as in a plan."""
    from jaxviz.features.explorer.whatif import Switches

    explorer.switches = Switches(explorer.derivation).plan()
    return explorer


def rnn_inputs() -> tuple[Any, ...]:
    shapes = {"w": (64, 64), "u": (64, 8), "v": (3, 64)}
    keys = dict(zip(shapes, jax.random.split(jax.random.key(1), 3), strict=True))
    params = {name: 0.25 * jax.random.normal(keys[name], shape) for name, shape in shapes.items()}
    return params, jax.random.normal(jax.random.key(2), (32, 8)), jnp.zeros((32, 3))


def steppers(folder: Path, rnn_loss: Any, layer: tuple[Any, Any]) -> dict[str, Path]:
    """Saved pages of steppers: in a loop, at a breakpoint of a layer, and in the backward pass of the loop."""

    def saved(name: str, stepper: jaxviz.Stepper) -> Path:
        path: Path = stepper.widget().save_html(folder / f"{name}.html")
        return path

    in_loop = jaxviz.step(rnn_loss, *rnn_inputs())
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
    """A picture: the page, the actions on it, and the part that is shown."""

    page: str
    act: Callable[[Page], Any] = lambda page: None
    part: str = "[data-testid=explorer]"
    size: tuple[int, int] | None = None
    ready: str = "[data-testid=headline]"


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


def stages(*names: str) -> Callable[[Page], None]:
    """The stages with these keys, side by side, from any view."""
    return keys(*(f"{'Shift+' if i else ''}Digit{name}" for i, name in enumerate(names)))


FORWARD_AND_BACKWARD = stages("3", "5")
WHAT_IF = click("[data-testid=view-what-if]")
LARGEST = click("[data-testid=card-open]")


def stepper(page: str, size: tuple[int, int] | None = None) -> Shot:
    """A stepper as it is with its kernel."""
    with_kernel = lambda p: p.evaluate("() => { jaxviz.model.comm_live = true; jaxviz.model.set('is_saved', false); }")
    return Shot(page, with_kernel, "[data-testid=stepper]", size, "[data-testid=equation]")


PROGRAMS = ("mlp", "transformer", "flax", "rnn")

PANES: Mapping[str, Callable[[Page], Any]] = {
    "overview": lambda page: None,
    "kept": LARGEST,
    "derived": click("[data-testid=view-derived]"),
    "cost": click("[data-testid=view-cost]"),
    "what-if": WHAT_IF,
    "memory": both(LARGEST, keys("m", "ArrowRight", "ArrowRight", "ArrowRight")),
    "lines": both(click("[data-testid=view-lines]"), click("[data-testid=source-line][aria-expanded]")),
    "motion": both(click("[data-testid=view-motion]"), keys(*["ArrowDown"] * 12)),
    "graph": both(stages("3"), keys("g")),
    "graphs": both(FORWARD_AND_BACKWARD, click("[data-testid=as-graph-left]"), click("[data-testid=as-graph-right]")),
    "linearize": keys("l"),
    "steps": keys("r", *["ArrowRight"] * 4),
    "compiled": stages("3", "6"),
    "search": both(keys("/"), lambda page: page.keyboard.type("dot")),
    "card": both(LARGEST, hover("[data-testid=code-left] .cm-line[data-row] .jv-variable")),
    "help": keys("?"),
}
"""The actions on the page of each program, which opens on the overview."""

SHOTS: Mapping[str, Shot] = {
    **{f"{program}-{pane}": Shot(program, act) for program in PROGRAMS for pane, act in PANES.items()},
    "planned": Shot("transformer of 3", WHAT_IF),
    "versions": Shot("versions"),
    "what-differs": Shot("versions", both(click("[data-testid=view-diff]"), click("[data-testid=diff-forward]"))),
    "stepper-in-a-loop": stepper("step in a loop"),
    "stepper-backward": stepper("step backward"),
    "stepper-in-a-layer": stepper("step in a layer"),
}

FOR_README: Mapping[str, Shot] = {
    "explorer": Shot("transformer", size=(1280, 750)),
    "residual": Shot(
        "mlp", both(click("[data-testid=view-kept]"), residual("sub in the derivative")), size=(1280, 640)
    ),
    "what-if": Shot("transformer of 3", WHAT_IF, part=".jv-main", size=(1240, 1060)),
    "graph": Shot("transformer", both(FORWARD_AND_BACKWARD, keys("g")), part=".jv-codes", size=(1500, 1000)),
    "steps": Shot("mlp", keys("r", *["ArrowRight"] * 4), size=(1280, 620)),
    "versions": Shot("versions", size=(1400, 760)),
    "stepper": stepper("step in a loop", (1400, 600)),
}


def take(browser: Any, pages: Mapping[str, Path], shot: Shot, path: Path, theme: str, size: tuple[int, int]) -> None:
    width, height = shot.size or size
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce")
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(pages[shot.page].as_uri())
    page.set_default_timeout(10_000)
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
        pages = saved_pages(Path(folder))
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        shots = FOR_README if chosen.docs else SHOTS
        failed: list[str] = []
        for name, shot in shots.items():
            if chosen.names and not {name, shot.page} & set(chosen.names):
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
                    try:
                        take(browser, pages, shot, OUT / f"{name}-{width}-{theme}.png", theme, size)
                    except (RuntimeError, Error) as error:  # the others are still useful
                        failed.append(f"{name}, {width} pixels, {theme}: {error}")
        browser.close()
    if failed:
        sys.exit("\n".join(failed))
    print(f"{ROOT / 'docs' if chosen.docs else OUT}")


if __name__ == "__main__":
    main()
