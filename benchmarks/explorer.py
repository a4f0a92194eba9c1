"""The explorer at scale: 100,000 equations, from the Python call to a responsive pane, in a real JupyterLab in a real
browser."""

from __future__ import annotations

import gc
import gzip
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import nbformat
from playwright.sync_api import Browser, Page

import jaxviz
from benchmarks.explorer_steps import measured
from benchmarks.models import transformer
from jaxviz.derivation import STAGES, Derivation
from jaxviz.ir.collector import collector_paused
from jaxviz.page.schema import View
from tests.jupyter_lab import KERNEL_IDLE, Lab, Tab, running_browser, running_lab

ROOT = Path(__file__).parents[1]
EQUATIONS = 100_000
EXPLORERS, SMALL = 20, 1_000
BUNDLE = ROOT / "jaxviz" / "static" / "explorer.js"

TOWERS = 600
"""Parts of ten equations each in the forward program, side by side: a wide graph of several thousand shapes."""
AS_LARGE_AS_CAN_BE, THEN_AWAY = 60, 9
"""How many times to zoom in and then out: to a third of the size at which boxes are drawn, so that hundreds are
visible."""

Row = tuple[str, str, str]
"""The measure, the target and the result."""


def derived(n_layers: int) -> Derivation:
    """The derivation of a transformer, with all programs derived."""
    fun, args = transformer(n_layers)
    derivation = jaxviz.derive(fun, *args)
    for stage in STAGES:
        getattr(derivation, stage)
    return derivation


def towers() -> tuple[Any, tuple[Any, ...]]:
    """A function of many independent parts."""

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        return jnp.stack([jnp.sum(jnp.tanh(x @ w) * jnp.sin(w[0])) for w in weights]).sum()

    return loss, ([jnp.ones((4, 4))] * TOWERS, jnp.ones((3, 4)))


def layers_for(equations: int) -> int:
    """The number of layers with this many equations, over all programs."""
    few, more = (count(derived(n)) for n in (1, 2))
    return -(-(equations - few) // (more - few)) + 1


def count(derivation: Derivation) -> int:
    return sum(sum(1 for _ in getattr(derivation, stage).walk()) for stage in STAGES)


def traced_by_jax(n_layers: int) -> float:
    """Processor time of what the comparison has JAX do: trace `jax.vjp` of the same function."""
    fun, (params, *others) = transformer(n_layers)
    gc.collect()
    with collector_paused():  # as for the comparison
        start = time.process_time()
        jax.make_jaxpr(lambda params: jax.vjp(lambda p: fun(p, *others), params))(params)
        return time.process_time() - start


def in_python(n_layers: int, repeats: int) -> list[Row]:
    """CPU time from the call to the message, and the message's bytes."""
    shown, complete, compared, by_jax = [], [], [], []
    for _ in range(repeats):
        derivation = derived(n_layers)
        gc.collect()
        start = time.process_time()
        explorer = jaxviz.explore(derivation)
        explorer._repr_mimebundle_()
        shown.append(time.process_time() - start)
        explorer._fill_rest()
        complete.append(time.process_time() - start)
        explorer._fill_check()
        compared.append(time.process_time() - start - complete[-1])
        n, sent = equations_of(explorer.view), (explorer.payload, explorer.groups, explorer.memory, explorer.rest)
        # A widget, and everything that it shows, is kept alive until it is closed.
        explorer.close()
        del explorer, derivation
        by_jax.append(traced_by_jax(n_layers))
    return [
        ("equations", f"{EQUATIONS:,}", f"{n:,} in {n_layers} layers"),
        ("Python, until the view is sent", "< 1 s", f"{min(shown):.2f} s ({statistics.median(shown):.2f} median)"),
        (
            "Python, with the memory and the details",
            "",
            f"{min(complete):.2f} s ({statistics.median(complete):.2f} median)",
        ),
        ("the comparison with JAX after that", "", f"{min(compared):.2f} s ({statistics.median(compared):.2f} median)"),
        ("  JAX's trace of jax.vjp by itself", "", f"{min(by_jax):.2f} s ({statistics.median(by_jax):.2f} median)"),
        ("all data sent, per equation, gzipped", "8 bytes", f"{sum(map(len, sent)) / n:.1f} bytes"),
        ("of that, sent later", "", f"{sum(map(len, sent[1:])) / n:.1f} bytes"),
        ("not gzipped", "", f"{sum(len(gzip.decompress(block)) for block in sent) / n:.1f} bytes"),
    ]


def equations_of(view: View) -> int:
    return sum(stage.equations[1] - stage.equations[0] for stage in view.stages)


def notebook(path: Path, *cells: str) -> None:
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    code = [nbformat.v4.new_code_cell(cell) for cell in cells]
    nbformat.write(nbformat.v4.new_notebook(cells=code, metadata=kernel), path)


RUN_CELL = """async (index) => {
    const { content, sessionContext } = jupyterapp.shell.currentWidget;
    content.activeCellIndex = index;
    await jupyterapp.commands.execute("notebook:run-cell");
}"""

OPENS = """async () => {
    const { content } = jupyterapp.shell.currentWidget;
    content.activeCellIndex = 1;
    const frame = () => new Promise((done) => requestAnimationFrame(done));
    const found = async (selector) => {
        for (;;) {
            const element = document.querySelector(selector);
            if (element) return element;
            await frame();
        }
    };
    const start = performance.now();
    jupyterapp.commands.execute("notebook:run-cell");
    const kept = await found("[data-testid=view-kept]");
    await frame();
    const shown = performance.now() - start;
    kept.click();
    await found("[data-testid=residual-row]");
    (await found("[data-testid=open-details]")).click();
    const equation = await found("[data-testid=code-left] .cm-line[data-row] .jv-primitive");
    const box = equation.getBoundingClientRect();
    const at = { bubbles: true, clientX: box.left + box.width / 2, clientY: box.top + box.height / 2 };
    const clicked = performance.now();
    equation.dispatchEvent(new MouseEvent("click", at));
    await found("[data-testid=inspected]");
    await frame();
    return { shown, click: performance.now() - clicked, usable: performance.now() - start };
}"""

SCROLLS = """async ([selector, seconds]) => {
    const element = document.querySelector(selector);
    const times = [];
    let last = await new Promise(requestAnimationFrame);
    const stop = last + 1000 * seconds;
    let by = 160;
    while (last < stop) {
        const before = element.scrollTop;
        element.scrollTop += by;
        if (element.scrollTop === before) by = -by;
        const now = await new Promise(requestAnimationFrame);
        times.push(now - last);
        last = now;
    }
    return times;
}"""

JUMPS = SCROLLS.replace("let by = 160", "let by = element.scrollHeight / 97")

POINTS = """async ([selector, seconds]) => {
    const element = document.querySelector(selector);
    const box = element.getBoundingClientRect();
    const times = [];
    let last = await new Promise(requestAnimationFrame);
    const stop = last + 1000 * seconds;
    for (let i = 0; last < stop; i++) {
        const clientX = box.left + 60 + ((7 * i) % (box.width - 80));
        element.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX, clientY: box.top + 50 }));
        const now = await new Promise(requestAnimationFrame);
        times.push(now - last);
        last = now;
    }
    return times;
}"""

SEARCHES = """async (words) => {
    const box = document.querySelector("[data-testid=filter]");
    const times = [];
    for (const word of words) {
        const start = performance.now();
        box.value = word;
        box.dispatchEvent(new Event("input", { bubbles: true }));
        await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
        times.push(performance.now() - start);
    }
    return times;
}"""

MOVES = """async ([how, seconds]) => {
    const canvas = document.querySelector("[data-testid=graph-canvas-left] .jv-graph-canvas");
    const box = canvas.getBoundingClientRect();
    const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
    const fire = (Type, name, more) =>
        canvas.dispatchEvent(new Type(name, { bubbles: true, cancelable: true, clientX: x, clientY: y, ...more }));
    canvas.setPointerCapture = () => {};
    const times = [];
    let last = await new Promise(requestAnimationFrame);
    const stop = last + 1000 * seconds;
    if (how === "panning") fire(PointerEvent, "pointerdown", { pointerId: 1, buttons: 1 });
    for (let i = 1; last < stop; i++) {
        // There and back.
        const away = 30 - Math.abs((i % 60) - 30);
        if (how === "zooming") fire(WheelEvent, "wheel", { deltaY: i % 60 < 30 ? -40 : 40 });
        else fire(PointerEvent, "pointermove", { pointerId: 1, buttons: 1, clientX: x + 5 * away, clientY: y - 15 * away
        }); const now = await new Promise(requestAnimationFrame); times.push(now - last); last = now;
    }
    if (how === "panning") fire(PointerEvent, "pointerup", { pointerId: 1 });
    return times;
}"""

OPENS_ALL = """async () => {
    const tree = document.querySelector("[data-testid=graph-tree]");
    tree.focus();
    for (const key of ["Home", "Escape", "o"]) tree.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    const wait = document.querySelector(".jv-graph-wait");
    while (wait.textContent !== "") await new Promise((done) => setTimeout(done, 10));
    await new Promise(requestAnimationFrame);
}"""

WORDS = ["e", "ex", "exp", "exp ", "exp 4", "", "dot", "dot layer", "models.py:60", ""]


def p95(times: list[float]) -> float:
    return sorted(times)[int(0.95 * (len(times) - 1))]


def in_browser(n_layers: int, small_layers: int, repeats: int, seconds: float) -> list[Row]:
    """From running a cell to a responsive pane, then scrolling and searching; and the size of a notebook with many
    explorers."""
    with tempfile.TemporaryDirectory() as folder:
        home, served = Path(folder, "home"), Path(folder, "notebooks")
        home.mkdir()
        served.mkdir()
        derive = "from benchmarks.explorer import derived\nimport jaxviz\nderivation = derived({})"
        notebook(served / "large.ipynb", derive.format(n_layers), "jaxviz.explore(derivation)")
        many = "for _ in range({}):\n    display(jaxviz.explore(derived({})))"
        notebook(served / "many.ipynb", derive.format(small_layers), many.format(EXPLORERS, small_layers))
        towers = "from benchmarks.explorer import towers\nimport jaxviz\nf, args = towers()"
        notebook(served / "wide.ipynb", towers, "jaxviz.explore(f, *args)")
        with running_lab(home, served, {"PYTHONPATH": str(ROOT)}) as lab, running_browser() as browser:
            opened: list[dict[str, float]] = []
            for _ in range(repeats):
                tab = Tab(browser)
                page = tab.page
                lab.open(page, "large.ipynb")
                page.evaluate(RUN_CELL, 0)
                page.wait_for_function(KERNEL_IDLE, timeout=120_000)
                opened.append(page.evaluate(OPENS))
                last = len(opened) == repeats
                if not last:
                    page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.shutdown()")
                    page.close()
            # Wait for what is computed after the first display before measuring the panes.
            page.wait_for_function("() => document.querySelector('[data-testid=badge]')", timeout=120_000)
            page.wait_for_timeout(1000)
            frames: dict[str, list[float]] = {}
            for stage in ("primal", "backward", "jvp"):
                page.evaluate(f"() => document.querySelector('[data-testid=stage-{stage}]').click()")
                page.wait_for_timeout(1500)
                code = "[data-testid=code-left] .cm-scroller"
                frames[f"scrolling the code pane, {stage}"] = page.evaluate(SCROLLS, [code, seconds])
                frames[f"leaping in the code pane, {stage}"] = page.evaluate(JUMPS, [code, seconds])
            frames |= graph_frames(page, f"the graph of {n_layers} layers", seconds)
            searches = page.evaluate(SEARCHES, WORDS)
            table = "[data-testid=residuals] .jv-scroll"
            frames["scrolling the residual table"] = page.evaluate(SCROLLS, [table, seconds])
            frames["leaping in the residual table"] = page.evaluate(JUMPS, [table, seconds])
            page.evaluate("() => document.querySelector('[data-testid=view-cost]').click()")
            frames["pointing in the memory pane"] = page.evaluate(POINTS, ["[data-testid=timeline]", seconds])
            assert tab.errors == [], tab.errors
            page.close()
            size = notebook_bytes(lab, browser)
            tab = Tab(browser)
            lab.open(tab.page, "wide.ipynb")
            tab.page.evaluate(RUN_CELL, 0)
            tab.page.evaluate(RUN_CELL, 1)
            tab.page.wait_for_selector("[data-testid=stage-forward]", state="attached", timeout=120_000)
            tab.page.wait_for_function(KERNEL_IDLE, timeout=120_000)
            tab.page.wait_for_timeout(1000)
            frames |= graph_frames(tab.page, f"{TOWERS} towers", seconds)
            assert tab.errors == [], tab.errors
    best = min(opened, key=lambda o: o["usable"])
    usable = [o["usable"] / 1e3 for o in opened]
    return [
        (
            "from running the cell to a pane that responds to clicks",
            "",
            f"{min(usable):.2f} s ({statistics.median(usable):.2f} median)",
        ),
        ("  of that, until it is shown", "", f"{best['shown'] / 1e3:.2f} s"),
        ("  response to a click on an equation", "", f"{best['click']:.0f} ms"),
        *((f"{name}, p95 frame", "< 33 ms", f"{p95(times):.1f} ms") for name, times in frames.items()),
        ("search response", "< 200 ms", f"{max(searches):.0f} ms ({statistics.median(searches):.0f} median)"),
        (f"notebook, {EXPLORERS} explorers of {SMALL:,} equations", "< 5 MB", f"{size / 1e6:.2f} MB"),
    ]


def graph_frames(page: Page, name: str, seconds: float) -> dict[str, list[float]]:
    """Frame times of the forward program's graph during panning and zooming: folded, and with everything open where
    boxes are readable."""
    click = "id => document.querySelector(`[data-testid=${id}]`).click()"
    press = """key => document.querySelector("[data-testid=graph-tree]")
        .dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }))"""
    page.evaluate(click, "view-kept")
    page.wait_for_selector("[data-testid=as-graph-left]", state="attached")
    page.evaluate(click, "stage-forward")
    page.evaluate(click, "as-graph-left")
    page.wait_for_selector("[data-testid=graph-tree]", state="attached")
    page.wait_for_timeout(1500)
    frames = {f"{how} {name}, folded": page.evaluate(MOVES, [how, seconds]) for how in ("panning", "zooming")}
    page.evaluate(OPENS_ALL)
    for key in "+" * AS_LARGE_AS_CAN_BE + "-" * THEN_AWAY:
        page.evaluate(press, key)
    page.wait_for_timeout(500)
    frames |= {f"{how} {name}, all open": page.evaluate(MOVES, [how, seconds]) for how in ("panning", "zooming")}
    page.evaluate(click, "as-code-left")
    page.wait_for_timeout(500)
    return frames


def notebook_bytes(lab: Lab, browser: Browser) -> int:
    """The size of a notebook with many explorers, saved with its widget state."""
    page = Tab(browser).page
    lab.open(page, "many.ipynb")
    page.evaluate(RUN_CELL, 0)
    page.evaluate(RUN_CELL, 1)
    page.wait_for_function(KERNEL_IDLE, timeout=120_000)
    page.wait_for_selector("[data-testid=kept-row]", state="attached", timeout=60_000)
    page.wait_for_timeout(3000)
    page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    page.wait_for_timeout(3000)
    saved = lab.folder / "many.ipynb"
    state = json.loads(saved.read_text())["metadata"].get("widgets", {})
    assert state, "the notebook was saved without the state of its widgets"
    page.close()
    return saved.stat().st_size


def main(quick: bool = False) -> None:
    n_layers, small = layers_for(EQUATIONS), layers_for(SMALL)
    rows = in_python(n_layers, 2 if quick else 5)
    rows.append(("main bundle, gzipped", "≤ 150 KB", f"{len(gzip.compress(BUNDLE.read_bytes())) / 1e3:.0f} KB"))
    rows += measured(n_layers, notebook)
    rows += in_browser(n_layers, small, 1 if quick else 3, 2.0 if quick else 4.0)
    print(f"\nThe explorer of {rows[0][2]}")
    print(f"{'':<56}{'target':>14}{'measured':>30}")
    for what, asked, found in rows:
        print(f"{what:<56}{asked:>14}{found:>30}")


if __name__ == "__main__":
    main()
