"""Pictures of each question for ten programs, and of each pane for some, in both themes: in JupyterLab at 1280 pixels
with the file browser open, and as saved pages of 1600, 900 and 390 pixels. `make screenshots` writes them to
artifacts/screenshots.

Names select some: `docs/screenshots.py rnn` takes all of that program, `rnn-memory` one question of it, `390` the
narrow ones, `lab` those in JupyterLab. With `--docs` it takes those that the README shows, small, in docs/.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pictured
from jupyter_lab import KERNEL_IDLE, Tab, running_browser, running_lab
from PIL import Image
from playwright.sync_api import Browser, Error, Page

import jaxviz
from benchmarks import models

ROOT = Path(__file__).parents[1]
OUT = ROOT / "artifacts" / "screenshots"
SIZES = {"1600": (1600, 1000), "900": (900, 800), "390": (390, 760)}
IN_LAB = (1280, 800)
THEMES = ("light", "dark")
STEPPERS = {"step in a loop", "step backward", "step in a layer"}
DETAILED = ("mlp", "transformer", "linen", "rnn")
"""Programs of which each pane is taken, and that are saved with their compiled program."""
SMALL_PICTURE_COLOURS = 96


def saved_pages(folder: Path, names: Collection[str]) -> dict[str, Path]:
    """Saved pages of the programs, and of the versions, settings and steppers that some pictures need."""
    made: dict[str, Callable[[], Any]] = {
        name: lambda make=make: explored(*make()) for name, make in pictured.PROGRAMS.items()
    }
    made["versions"] = lambda: jaxviz.explore(jaxviz.compare(pictured.loss, pictured.leaner_loss, *pictured.mlp()[1]))
    made["transformer of 3"] = lambda: planned(explored(*models.transformer(3)))
    pages = {}
    for name, make in made.items():
        if name in names:
            pages[name] = make().save_html(folder / f"{name}.html", compiled=name in DETAILED)
    return pages | (steppers(folder, pictured.rnn(), models.transformer(1)) if STEPPERS & set(names) else {})


def explored(f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return jaxviz.explore(f, *args)


def planned(explorer: Any) -> Any:
    """An explorer with the switches of *what if* set as in a plan."""
    from jaxviz.features.explorer.whatif import Switches

    explorer.switches = Switches(explorer.derivation).plan()
    return explorer


def steppers(folder: Path, rnn: pictured.Program, layer: pictured.Program) -> dict[str, Path]:
    """Saved pages of steppers: in a loop, at a breakpoint of a layer, and in the backward pass of the loop."""

    def saved(name: str, stepper: jaxviz.Stepper) -> Path:
        path: Path = stepper.widget().save_html(folder / f"{name}.html")
        return path

    in_loop = jaxviz.step(rnn[0], *rnn[1])
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


def question(name: str) -> Callable[[Page], None]:
    """Chooses a question: by its button, and on a phone from the list."""

    def ask(page: Page) -> None:
        choices = page.get_by_test_id("question")
        if choices.is_visible():
            choices.select_option(name)
        else:
            page.get_by_test_id(f"view-{name}").first.click()

    return ask


def residual(text: str) -> Callable[[Page], None]:
    return lambda page: page.get_by_test_id("residual-row").filter(has_text=text).first.click()


def hover(where: str) -> Callable[[Page], None]:
    return lambda page: page.locator(where).first.hover()


def stages(*names: str) -> Callable[[Page], None]:
    """The stages with these keys, side by side, from any view."""
    return keys(*(f"{'Shift+' if i else ''}Digit{name}" for i, name in enumerate(names)))


FORWARD_AND_BACKWARD = stages("3", "5")
WHAT_IF = question("what-if")
LARGEST = click("[data-testid=card-open]")


def stepper(page: str, size: tuple[int, int] | None = None) -> Shot:
    """A stepper as it is with its kernel."""
    with_kernel = lambda p: p.evaluate("() => { jaxviz.model.comm_live = true; jaxviz.model.set('is_saved', false); }")
    return Shot(page, with_kernel, "[data-testid=stepper]", size, "[data-testid=equation]")


QUESTIONS: Mapping[str, Callable[[Page], Any]] = {
    "overview": lambda page: None,
    "why": question("kept"),
    "derived": question("derived"),
    "cost": question("cost"),
    "what-if": WHAT_IF,
    "lines": question("lines"),
    "motion": question("motion"),
}
"""The actions on the page of each program, which opens on the overview."""

PANES: Mapping[str, Callable[[Page], Any]] = {
    "memory": both(LARGEST, keys("m", "ArrowRight", "ArrowRight", "ArrowRight")),
    "line": both(question("lines"), click("[data-testid=source-line][aria-expanded]")),
    "graph": both(stages("3"), keys("g")),
    "graphs": both(FORWARD_AND_BACKWARD, click("[data-testid=as-graph-left]"), click("[data-testid=as-graph-right]")),
    "linearize": keys("l"),
    "steps": keys("r", *["ArrowRight"] * 4),
    "compiled": stages("3", "6"),
    "search": both(keys("/"), lambda page: page.keyboard.type("dot")),
    "card": both(LARGEST, hover("[data-testid=code-left] .cm-line[data-row] .jv-variable")),
    "help": keys("?"),
}

SHOTS: Mapping[str, Shot] = {
    **{f"{program}-{name}": Shot(program, act) for program in pictured.PROGRAMS for name, act in QUESTIONS.items()},
    **{f"{program}-{name}": Shot(program, act) for program in DETAILED for name, act in PANES.items()},
    "planned": Shot("transformer of 3", WHAT_IF),
    "versions": Shot("versions"),
    "what-differs": Shot("versions", both(question("diff"), click("[data-testid=diff-forward]"))),
    "stepper-in-a-loop": stepper("step in a loop"),
    "stepper-backward": stepper("step backward"),
    "stepper-in-a-layer": stepper("step in a layer"),
}

FOR_README: Mapping[str, Shot] = {
    "explorer": Shot("transformer", size=(1280, 750)),
    "residual": Shot("mlp", both(question("kept"), residual("sub")), size=(1280, 640)),
    "what-if": Shot("transformer of 3", WHAT_IF, part=".jv-main", size=(1240, 1060)),
    "graph": Shot("transformer", both(FORWARD_AND_BACKWARD, keys("g")), part=".jv-codes", size=(1500, 1000)),
    "steps": Shot("mlp", keys("r", *["ArrowRight"] * 4), size=(1280, 620)),
    "versions": Shot("versions", size=(1400, 760)),
    "stepper": stepper("step in a loop", (1400, 600)),
}


def take(page: Page, shot: Shot, path: Path, part: str = "") -> None:
    page.wait_for_selector(shot.ready, state="attached", timeout=60_000)
    page.wait_for_timeout(400)
    shot.act(page)
    page.wait_for_timeout(900)
    if part:
        page.locator(part).first.screenshot(path=path)
    else:
        page.screenshot(path=path)


def of_pages(browser: Browser, shots: Mapping[str, Shot], sizes: Collection[str]) -> Iterator[str]:
    """Takes the pictures of saved pages; yields what failed."""
    with tempfile.TemporaryDirectory() as folder:
        pages = saved_pages(Path(folder), {shot.page for shot in shots.values()})
        for name, shot in shots.items():
            for theme in THEMES:
                for size in sizes:
                    yield from picture(browser, pages, shot, OUT / f"{name}-{size}-{theme}.png", theme, SIZES[size])


def picture(
    browser: Browser, pages: Mapping[str, Path], shot: Shot, path: Path, theme: str, size: tuple[int, int]
) -> Iterator[str]:
    """Takes one picture of a saved page; yields the errors."""
    tab = Tab(browser, theme)
    width, height = shot.size or size
    tab.page.set_viewport_size({"width": width, "height": height})
    tab.page.goto(pages[shot.page].as_uri())
    tab.page.set_default_timeout(10_000)
    try:
        take(tab.page, shot, path, shot.part)
    except Error as error:  # the others are still useful
        yield f"{path.stem}: {error}"
    yield from (f"{path.stem}: {error}" for error in tab.errors)
    tab.page.close()


def in_lab(browser: Browser, programs: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Takes the pictures in JupyterLab, each of the whole window; yields what failed.

    Args:
      programs: the questions of each program.
    """
    with tempfile.TemporaryDirectory() as name:
        home, folder = Path(name, "home"), Path(name, "notebooks")
        home.mkdir(), folder.mkdir()
        for program in programs:
            (folder / f"{program}.ipynb").write_text(json.dumps(notebook(program)))
        with running_lab(home, folder) as lab:
            for program, questions in programs.items():
                tab = Tab(browser)
                tab.page.set_viewport_size(dict(zip(("width", "height"), IN_LAB, strict=True)))
                lab.open(tab.page, f"{program}.ipynb")
                tab.page.evaluate("() => jupyterapp.commands.execute('notebook:run-all-cells')")
                tab.page.set_default_timeout(10_000)
                for theme in THEMES:
                    change = "theme => jupyterapp.commands.execute('apputils:change-theme', { theme })"
                    tab.page.evaluate(change, f"JupyterLab {theme.title()}")
                    for question in questions:
                        try:
                            take(
                                tab.page,
                                Shot(program, seen(QUESTIONS[question])),
                                OUT / f"{program}-{question}-lab-{theme}.png",
                            )
                        except Error as error:
                            yield f"{program}, {question} in JupyterLab: {error}"
                yield from tab.errors
                tab.page.close()


def seen(act: Callable[[Page], Any]) -> Callable[[Page], None]:
    """An action on an explorer in a notebook, which is scrolled into view, and on its overview."""

    def run(page: Page) -> None:
        page.wait_for_function(KERNEL_IDLE)
        page.locator("[data-testid=explorer]").first.scroll_into_view_if_needed()
        page.get_by_test_id("view-overview").first.click()
        act(page)

    return run


def notebook(program: str) -> dict[str, Any]:
    code = (
        f"import jaxviz\nfrom pictured import PROGRAMS\n\nf, args = PROGRAMS[{program!r}]()\njaxviz.explore(f, *args)"
    )
    cell = {"cell_type": "code", "id": "0", "source": code, "metadata": {}, "outputs": [], "execution_count": None}
    return {
        "cells": [cell],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def for_readme(browser: Browser) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        pages = saved_pages(Path(folder), {shot.page for shot in FOR_README.values()})
        for name, shot in FOR_README.items():
            path = ROOT / "docs" / f"{name}.png"
            yield from picture(browser, pages, shot, path, "light", (1280, 800))
            small = Image.open(path).convert("RGB").quantize(colors=SMALL_PICTURE_COLOURS, dither=Image.Dither.NONE)
            small.save(path, optimize=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--docs", action="store_true", help="make the pictures that the README shows")
    options.add_argument("names", nargs="*", help="only these programs, pictures and sizes")
    chosen = options.parse_args()
    names = set(chosen.names)
    sizes = names & {*SIZES, "lab"} or {*SIZES, "lab"}
    names -= sizes
    shots = {name: shot for name, shot in SHOTS.items() if not names or names & {name, shot.page}}
    programs = {
        program: [q for q in QUESTIONS if f"{program}-{q}" in shots]
        for program in pictured.PROGRAMS
        if any(shot.page == program for shot in shots.values())
    }
    OUT.mkdir(parents=True, exist_ok=True)
    with running_browser() as browser:
        if chosen.docs:
            failed = [*for_readme(browser)]
        else:
            failed = [*of_pages(browser, shots, [size for size in SIZES if size in sizes])]
            failed += in_lab(browser, programs) if "lab" in sizes else ()
    if failed:
        sys.exit("\n".join(failed))
    print(f"{ROOT / 'docs' if chosen.docs else OUT}")


if __name__ == "__main__":
    main()
