"""The first notebook in a real JupyterLab, and the saved page, in a real browser and both themes."""

import re

import jax
import jax.numpy as jnp
import pytest
from jupyter_lab import KERNEL_IDLE, ask_kernel
from playwright.sync_api import expect
from short_runs import short
from test_front_ends import run_in_lab

import jaxviz
from benchmarks.models import transformer
from jaxviz.analysis.modules import call_path

pytestmark = pytest.mark.browser
light = pytest.mark.parametrize("theme", ["light"], indirect=True)
"""For everything that is the same in both themes; colours and contrasts are tested on whole views."""


@pytest.fixture
def tab(same_tab):
    return same_tab


LAYERS = """
def loss(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)

args = [jnp.ones((9, 9))] * 3, jnp.ones((50, 9))
"""


@pytest.fixture
def notebook(in_lab):
    """An open notebook that has run, with an explorer of a small network."""
    run_in_lab(
        in_lab, LAYERS, "derivation = jaxviz.derive(loss, *args)\nexplorer = jaxviz.explore(derivation)\nexplorer"
    )
    in_lab.page.wait_for_selector("[data-testid=explorer] .cm-line[data-row]")
    return in_lab


def explorer_of(page):
    found = page.get_by_test_id("explorer").last  # the first notebook has an animation above it
    found.scroll_into_view_if_needed()
    return found


def test_the_first_notebook_shows_the_explorer(in_lab):
    # In the other tests' kernel, an explorer does not open with the overview.
    in_lab.open("00_first_look.ipynb", own_kernel=True)
    in_lab.page.evaluate("() => jupyterapp.commands.execute('runmenu:run-all')")
    in_lab.page.wait_for_selector("[data-testid=explorer] [data-testid=scope]", state="attached", timeout=90_000)
    in_lab.page.wait_for_function(KERNEL_IDLE, timeout=60_000)
    explorer = explorer_of(in_lab.page)
    expect(explorer.get_by_test_id("card").first).to_contain_text("x = jnp.tanh(x @ w + b)")
    in_lab.screenshot("notebook-overview")
    explorer.get_by_test_id("view-derived").click()
    badge = explorer.get_by_test_id("badge")
    expect(badge).to_contain_text(re.compile(r"residuals as in JAX [\d.]+: (\d+) of \1"))
    rows = explorer.get_by_test_id("residual-row")
    expect(rows).to_have_count(int(ask_kernel(in_lab.page, "len(derivation.residuals.groups)")))
    expect(explorer.get_by_test_id("residuals")).to_contain_text("tanh's derivative multiplies the tangent by it")
    expect(explorer.get_by_test_id("source")).to_contain_text("x = jnp.tanh(x @ w + b)")
    expect(explorer.get_by_test_id("code-left").locator(".cm-line", has_text="tanh").first).to_be_visible()
    in_lab.screenshot("notebook")


@light
def test_a_click_on_an_equation_reaches_every_pane_and_python(notebook):
    page = notebook.page
    explorer = explorer_of(page)
    explorer.get_by_test_id("stage-backward").click()
    line = explorer.get_by_test_id("code-left").locator(".cm-line[data-row]", has_text="mul").first
    line.locator(".jv-primitive").click()
    expect(line).to_have_class(re.compile("is-selected"))
    expect(explorer.get_by_test_id("inspected")).to_have_text("mul")
    expect(explorer.get_by_test_id("inspector")).to_contain_text("came from")
    expect(
        explorer.locator("[data-testid=source-line].is-selected, [data-testid=source-line].is-ancestor").first
    ).to_be_visible()
    page.wait_for_timeout(300)
    stage, number = ask_kernel(page, "explorer.selected").split(":")
    assert stage == "backward"
    assert ask_kernel(page, f"[e for _, e in derivation.backward.walk()][{number}].primitive.name") == "mul"
    assert ask_kernel(page, "explorer.stage") == "backward"
    notebook.screenshot("selected")


def test_the_source_marks_the_expression_that_is_selected_and_the_one_that_is_pointed_at(notebook):
    explorer = explorer_of(notebook.page)
    source, code = explorer.get_by_test_id("source"), explorer.get_by_test_id("code-left")
    chosen, aimed = source.locator("mark.jv-chosen"), source.locator("mark.jv-aimed")
    for primitive, written in (("dot_general", "x @ w"), ("tanh", "jnp.tanh(x @ w)"), ("integer_pow", "x**2")):
        code.locator(".cm-line[data-row] .jv-primitive", has_text=primitive).first.click()
        expect(chosen).to_have_text(written)
        expect(chosen).to_be_in_viewport()
        expect(explorer.get_by_test_id("expression")).to_have_text(written)
    notebook.screenshot("expression")
    code.locator(".cm-line[data-row]", has_text="dot_general").first.locator(".jv-variable").first.hover()
    expect(aimed).to_have_text("x @ w")
    expect(chosen).to_have_text("x**2")
    explorer.get_by_test_id("source-line").filter(has_text="tanh").click()
    expect(chosen).to_have_count(0)


def test_repeated_layers_are_one_heading_that_opens(tab, six_layers, tmp_path):
    tab.page.goto(six_layers.save_html(tmp_path / "layers.html").as_uri())
    explorer = explorer_of(tab.page)
    for stage in ("primal", "forward", "backward"):
        explorer.get_by_test_id(f"stage-{stage}").click()
        heading = explorer.get_by_test_id("code-left").locator(".jv-line-group")
        expect(heading).to_have_count(1)
        expect(heading).to_contain_text("layer × 6")
    tab.screenshot("layers")
    heading.locator(".jv-fold").click()
    expect(explorer.get_by_test_id("code-left").locator(".jv-line-group", has_text="layer 3")).to_be_visible()
    explorer.get_by_test_id("code-left").locator(".jv-line-group .jv-primitive").first.click()
    tab.screenshot("layers-open")
    explorer.get_by_test_id("as-graph-left").click()
    expect(explorer.get_by_test_id("graph-tree")).to_contain_text("layer")


@light
def test_linearize_beside_jvp(notebook):
    explorer = explorer_of(notebook.page)
    explorer.get_by_test_id("linearize-vs-jvp").click()
    shown = {explorer.get_by_test_id(f"code-{side}").get_attribute("data-stage") for side in ("left", "right")}
    assert shown == {"forward+linear", "jvp"}
    explorer.get_by_test_id("code-left").locator(".cm-line[data-row]", has_text="mul").locator(
        ".jv-primitive"
    ).first.click()
    notebook.screenshot("linearize-beside-jvp")


@light
def test_python_selects_and_the_page_follows(notebook):
    page = notebook.page
    explorer = explorer_of(page)
    ask_kernel(page, "setattr(explorer, 'selected', 'forward:3')")
    expect(explorer.get_by_test_id("code-left")).to_have_attribute("data-stage", "forward")
    expect(explorer.locator(".cm-line.is-selected")).to_have_count(1)
    name = ask_kernel(page, "[e for _, e in derivation.forward.walk()][3].primitive.name")
    expect(explorer.get_by_test_id("inspected")).to_have_text(name)


@light
def test_keys_stay_inside_the_widget(notebook):
    page = notebook.page
    explorer = explorer_of(page)
    cells = page.locator(".jp-Notebook .jp-Cell").count()
    explorer.get_by_test_id("code-left").locator(".cm-line[data-row] .jv-primitive").first.click()
    for key in ("b", "a", "d", "d"):
        page.keyboard.press(key)
    assert page.locator(".jp-Notebook .jp-Cell").count() == cells
    page.keyboard.press("ArrowDown")
    expect(explorer.locator(".cm-line.is-selected")).to_have_count(1)
    page.keyboard.press("5")
    expect(explorer.get_by_test_id("code-left")).to_have_attribute("data-stage", "backward")
    page.keyboard.press("Escape")
    expect(explorer.locator(".is-selected")).to_have_count(0)


@light
def test_residuals_are_filtered_and_the_memory_leads_to_equations(notebook):
    page = notebook.page
    explorer = explorer_of(page)
    cells = page.locator(".jp-Notebook .jp-Cell").count()
    explorer.get_by_test_id("code-left").locator(".cm-line[data-row] .jv-primitive").first.click()
    page.keyboard.press("f")
    page.keyboard.type("tanh dd b")  # in a notebook, `d d` deletes a cell and `b` inserts one below
    expect(explorer.get_by_test_id("filter")).to_have_value("tanh dd b")
    expect(explorer.get_by_test_id("residuals")).to_contain_text("match. ")
    assert page.locator(".jp-Notebook .jp-Cell").count() == cells
    explorer.get_by_test_id("filter").fill("tanh")
    tanhs = "[r for r in derivation.residuals if 'tanh' in f'{r.rule} {r.reason}']"
    n = int(ask_kernel(page, f"len({tanhs})"))
    total = int(ask_kernel(page, "len(derivation.residuals)"))
    assert 0 < n < total
    rows = int(ask_kernel(page, f"len({{r.repeats for r in {tanhs}}})"))
    all_rows = int(ask_kernel(page, "len(derivation.residuals.groups)"))
    assert rows < n
    sizes = "from jaxviz.report.tables import format_bytes"
    ask_kernel(page, f"exec('{sizes}')")
    kept = ask_kernel(page, f"format_bytes(sum(r.nbytes for r in {tanhs} if r.is_saved))")
    expect(explorer.get_by_test_id("residual-row")).to_have_count(rows)
    fold = explorer.get_by_test_id("residual-fold").first
    fold.click()
    expect(explorer.get_by_test_id("residual-fold").first).to_have_attribute("aria-expanded", "true")
    assert explorer.get_by_test_id("residual-row").count() > rows
    explorer.get_by_test_id("residual-fold").first.click()
    expect(explorer.get_by_test_id("residual-row")).to_have_count(rows)
    expect(explorer.get_by_test_id("residual-total")).to_contain_text(f"{n} of {total} values: saves {kept} in ")
    notebook.screenshot("filtered")
    explorer.get_by_test_id("filter").focus()
    page.keyboard.press("Escape")
    expect(explorer.get_by_test_id("residual-row")).to_have_count(all_rows)

    page.keyboard.press("Escape")
    page.keyboard.press("m")
    timeline = explorer.get_by_test_id("timeline")
    peak = ask_kernel(page, "format_bytes(__import__('jaxviz').memory(derivation).peak_nbytes)")
    expect(timeline).to_contain_text(f"peak {peak}")
    box = timeline.bounding_box()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 0.5 * box["height"])
    tip = explorer.get_by_test_id("memory-tip")
    step, steps = map(int, re.search(r"step (\d+) of (\d+), backward", tip.inner_text()).groups())
    here = f"__import__('jaxviz').memory(derivation).steps[{step - 1}]"
    assert steps == int(ask_kernel(page, "len(__import__('jaxviz').memory(derivation).steps)"))
    expect(tip).to_contain_text(ask_kernel(page, f"format_bytes({here}.total)"))
    notebook.screenshot("memory")
    page.mouse.down()
    page.mouse.up()
    expect(explorer.get_by_test_id("code-left")).to_have_attribute("data-stage", "backward")
    expect(explorer.get_by_test_id("inspected")).to_have_text(ask_kernel(page, f"{here}.equation.primitive.name"))
    page.wait_for_timeout(300)
    assert ask_kernel(page, f"explorer.equation is {here}.equation") == "True"
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text(f"step {step + 1} of")
    notebook.screenshot("memory-selected")


def test_a_saved_page_works_from_a_file(tab, tmp_path):
    def loss(x):
        return jnp.sum(jnp.tanh(x) * jnp.sin(x))

    path = jaxviz.explore(loss, jnp.ones(3)).save_html(tmp_path / "page.html")
    page = tab.page
    page.goto(path.as_uri())
    explorer = page.get_by_test_id("explorer")
    explorer.get_by_test_id("residual-row").first.click()
    expect(explorer.get_by_test_id("reason").first).to_contain_text("is saved because")
    explorer.get_by_test_id("stage-backward").click()
    expect(explorer.get_by_test_id("code-left").locator(".cm-line[data-row]").first).to_be_visible()
    tab.screenshot("saved-page")


def test_collectives_and_donated_inputs_are_marked(tab, tmp_path):
    def total(x):
        step = jax.jit(lambda x: jnp.sin(x) * 2.0, donate_argnums=0)
        mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        spec = jax.P("i")
        body = lambda x: jax.lax.psum(jnp.sum(x), "i")
        return jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=jax.P())(step(x))

    page = tab.page
    page.goto(jaxviz.explore(total, jnp.ones(8)).save_html(tmp_path / "page.html").as_uri())
    code = page.get_by_test_id("code-left")
    colour = "e => getComputedStyle(e).color"
    collective, plain = (code.locator(f".jv-{kind}").first for kind in ("collective", "primitive"))
    expect(collective).to_have_text(re.compile("^psum"))
    assert collective.evaluate(colour) != plain.evaluate(colour)
    code.locator(".jv-donated").first.hover()
    expect(code.locator(".cm-line", has_text="←").locator(".jv-variable.is-pointed")).to_have_count(2)
    code.locator(".cm-line[data-row]", has_text="shard_map[i=1").locator(".jv-primitive").click()
    expect(page.get_by_test_id("inspector")).to_contain_text("P('i') → f32[8]{V:i} 32 B a device")
    tab.screenshot("devices")


@light
def test_hostile_names_stay_text(tab, tmp_path):
    evil = "</script><img src=x onerror=\"document.title='broken'\">"
    path = jaxviz.explore(lambda p: jnp.sum(jnp.sin(p[evil])), {evil: jnp.ones(3)}).save_html(tmp_path / "page.html")
    page = tab.page
    page.goto(path.as_uri())
    expect(page.get_by_test_id("explorer")).to_contain_text("onerror")
    assert page.title() != "broken"
    assert page.locator("img").count() == 0


@light
def test_a_stage_that_cannot_be_derived_leaves_the_others(tab, tmp_path):
    def loops(x):
        return jax.lax.while_loop(lambda c: c < 9.0, lambda c: c * 2.0, x)

    path = jaxviz.explore(loops, 1.0).save_html(tmp_path / "page.html")
    tab.page.goto(path.as_uri())
    explorer = tab.page.get_by_test_id("explorer")
    expect(explorer.get_by_test_id("code-left").locator(".cm-line", has_text="while").first).to_be_visible()
    explorer.get_by_test_id("stage-backward").click()
    expect(explorer.get_by_test_id("code-left")).to_contain_text(
        "Reverse-mode differentiation does not work for lax.while_loop"
    )
    tab.screenshot("stage-with-an-error")


@light
@pytest.mark.parametrize(
    ("stage", "primitive", "operation"),
    [("backward", "neg", "negate"), pytest.param("forward", "mul", "multiply", marks=pytest.mark.sweep)],
)
def test_what_a_gradient_compiles_to(tab, tmp_path, stage, primitive, operation):
    def loss(w, x):
        for _ in range(6):
            x = jnp.tanh(x @ w) * jnp.cos(x)
        return jnp.sum(x)

    explorer = jaxviz.explore(loss, jnp.ones((9, 9)), jnp.ones((50, 9)))
    explorer.stage, explorer.beside = stage, "compiled"
    page = tab.page
    page.goto(explorer.save_html(tmp_path / "page.html").as_uri())
    code, text = page.get_by_test_id("code-left"), page.get_by_test_id("code-right")
    # It opens on the memory, with the modelled one as a line; a row leads to its source line.
    memory = text.get_by_test_id("compiled-memory")
    expect(memory).to_contain_text("peak")
    expect(memory.locator(".jv-reference")).to_be_visible()
    memory.locator("tbody tr", has_text="jnp.tanh(x @ w)").first.click()
    expect(memory.locator("tr.is-selected").first).to_be_visible()
    expect(code.locator(".cm-line.is-selected").first).to_be_visible()
    tab.screenshot(f"compiled-{stage}-memory")
    page.keyboard.press("Escape")
    text.get_by_test_id("text-hlo").click()
    expect(text.locator(".cm-line", has_text="ENTRY")).to_be_visible()
    lit = text.locator(".cm-line.is-selected")
    if stage == "backward":
        # The cotangent of a sum is ones, and XLA removes the multiplication by it.
        code.locator(".cm-line[data-row]", has_text="mul").locator(".jv-primitive").first.click()
        expect(text.get_by_test_id("no-instruction")).to_contain_text("no instruction left")
        expect(lit).to_have_count(0)
        tab.screenshot("compiled-gone")
    code.locator(".cm-line[data-row]", has_text=primitive).locator(".jv-primitive").first.click()
    expect(text.get_by_test_id("no-instruction")).to_have_text("")
    expect(lit.first).to_be_visible()
    # The instruction itself, or the fusion that contains it.
    expect(lit.first).to_contain_text(re.compile(rf" ({operation}|fusion)\("))
    tab.screenshot(f"compiled-{stage}")
    text.get_by_test_id("text-stablehlo").click()
    expect(lit).to_have_count(1)
    expect(lit).to_contain_text(f"stablehlo.{operation}")
    tab.screenshot(f"compiled-{stage}-stablehlo")
    text.locator(".cm-line.is-linked", has_text="stablehlo.dot_general").first.click()
    expect(page.get_by_test_id("inspected")).to_have_text("dot_general")
    page.keyboard.press("Escape")

    # The counterpart of the top line of one pane is visible in the other.
    scroller = lambda pane: pane.locator(".cm-scroller")
    top = lambda pane: scroller(pane).evaluate("e => e.scrollTop")
    scroller(code).evaluate("e => e.scrollTo(0, 0)")
    turn_wheel(page, scroller(code), 120)
    moved = top(text)
    turn_wheel(page, scroller(code), 5000)
    assert top(text) > moved
    page.get_by_test_id("link-scrolling").click()
    before = top(code)
    turn_wheel(page, scroller(text), -5000)
    assert top(text) == 0
    assert top(code) == before > 0
    page.get_by_test_id("link-scrolling").click()
    turn_wheel(page, scroller(text), 60)
    # The backward pass ends with the counterpart of the first forward equations.
    assert abs(top(code) - before) < 2 if stage == "backward" else top(code) < before


AT_REST = """async (e) => {
    const tops = () => [...document.querySelectorAll(".cm-scroller")].map((e) => e.scrollTop).join();
    await e.scrolled;
    let last;
    for (let still = 0; still < 3; still = tops() === last ? still + 1 : 0) {
        last = tops();
        await new Promise(requestAnimationFrame);
    }
}"""


def turn_wheel(page, scroller, by):
    """Turns the wheel over a pane, and waits until it has scrolled and no pane moves any more."""
    scroller.hover()
    scroller.evaluate(
        "e => { e.scrolled = new Promise((done) => e.addEventListener('scroll', done, { once: true })); }"
    )
    page.mouse.wheel(0, by)
    scroller.evaluate(AT_REST)


def test_the_code_pane_tells_values_apart_and_leads_to_them(tab, tmp_path):
    def loss(w, xs):
        def step(h, x):
            h = jnp.tanh(h @ w + x)
            return h, jnp.sin(h)

        _, ys = jax.lax.scan(step, jnp.zeros(3), jnp.exp(xs))
        return jnp.sum(ys**2)

    args = (jnp.ones((3, 3)), jnp.ones((1000, 3)))
    page = tab.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(jaxviz.explore(loss, *args).save_html(tmp_path / "page.html").as_uri())
    page.get_by_test_id("stage-forward").click()
    page.get_by_test_id("beside-backward").click()
    forward, backward = page.get_by_test_id("code-left"), page.get_by_test_id("code-right")
    colour = "e => getComputedStyle(e).color"

    # A value has the same hue in both panes, and is highlighted in both.
    tanh = forward.locator(".cm-line", has_text="tanh").locator(".jv-variable").first
    assert tanh.evaluate(colour) != forward.locator(".cm-line", has_text="= exp").locator(
        ".jv-variable"
    ).first.evaluate(colour)
    tanh.hover()
    card = page.get_by_test_id("variable")
    expect(card).to_contain_text("jnp.tanh(h @ w + x)")
    expect(card).to_contain_text("f32[3]12 B")
    expect(card).to_contain_text(re.compile(r"\d uses?, and a result of the scan's program"))
    expect(backward.locator(".is-pointed, .is-kin").first).to_be_visible()
    tab.screenshot("code-hover")

    # A click on a use goes to the definition; Alt and the left arrow go back.
    sin = forward.locator(".cm-line", has_text="= sin")
    sin.locator(".jv-primitive").click()
    sin.locator(".jv-variable").last.click()
    expect(forward.locator(".cm-line.is-selected")).to_contain_text("tanh")
    page.keyboard.press("Alt+ArrowLeft")
    expect(forward.locator(".cm-line.is-selected")).to_contain_text("sin")
    page.keyboard.press("Shift+ArrowLeft")
    page.keyboard.press("Enter")
    expect(forward.locator(".cm-line.is-selected")).to_contain_text("tanh")
    page.keyboard.press("n")
    expect(forward.locator(".cm-line.is-selected")).not_to_contain_text("tanh ")
    tab.screenshot("code-uses")

    page.keyboard.press("Escape")
    page.keyboard.press("-")
    expect(forward.locator(".jv-fold").last).to_have_text(
        re.compile(r"^▸ 1,000 × 6 equations · dot_general, .*residuals$")
    )
    tab.screenshot("code-folded")
    page.keyboard.press("+")

    # JAX's text is copied: of the program, of the selected equation, of the selected lines.
    page.get_by_test_id("copy-left").click()
    expect(forward.get_by_text("copied 12 equations as JAX text")).to_be_visible()
    copied = lambda: page.evaluate("navigator.clipboard.readText()")
    text = str(jaxviz.derive(loss, *args).forward.jaxpr)
    shape = lambda text: re.sub(r"\b[a-z]{1,2}\b", "v", " ".join(text.split()))
    assert shape(copied()) == shape(text)
    forward.locator(".cm-line", has_text="= exp").locator(".jv-primitive").click()
    page.keyboard.press("Control+c")
    expect(forward.get_by_text("copied 1 equation as JAX text")).to_be_visible()
    assert re.fullmatch(r"\w+:f32\[1000,3\] = exp \w+", copied())
    tab.screenshot("code-copied")


def test_primals_are_read_between_tangents(tab, tmp_path):
    page = tab.page
    page.goto(
        jaxviz.explore(lambda x: jnp.sum(jnp.sin(x) * jnp.cos(x)), jnp.ones(3))
        .save_html(tmp_path / "page.html")
        .as_uri()
    )
    page.get_by_test_id("stage-jvp").click()
    code = page.get_by_test_id("code-left")
    lines = code.locator(".cm-line[data-row]")
    all_lines = lines.count()
    tangents = page.get_by_test_id("role-tangent")
    tangents.focus()
    page.keyboard.press("Enter")
    dimmed = code.locator(".cm-line.is-dimmed")
    n = dimmed.count()
    assert 0 < n < all_lines
    expect(tangents).to_have_attribute("title", re.compile(f"{n} tangent equations, dimmed"))
    tab.screenshot("code-dimmed")
    page.keyboard.press("Enter")
    expect(lines).to_have_count(all_lines - n)
    lines.first.locator(".jv-primitive").click()
    page.keyboard.press("ArrowDown")
    expect(code.locator(".cm-line.is-selected")).to_have_count(1)
    tab.screenshot("code-hidden")
    tangents.click()
    expect(lines).to_have_count(all_lines)
    page.keyboard.press("v")
    expect(page.get_by_test_id("colours-left")).to_have_attribute("aria-pressed", "false")


def lay_out_by_graphviz(explorer):
    explorer.get_by_test_id("stage-forward").click()
    explorer.get_by_test_id("as-graph-left").click()
    explorer.get_by_test_id("graph-layout").select_option("graphviz")
    return explorer.get_by_test_id("graph-left")


@light
def test_graphviz_comes_from_the_kernel_when_it_is_first_used(notebook):
    graph = lay_out_by_graphviz(explorer_of(notebook.page))
    expect(graph).to_have_attribute("data-layout", "graphviz", timeout=15_000)
    notebook.screenshot("graph-by-graphviz")


@light
@pytest.mark.parametrize("held", short([True, False], [True]))
def test_a_page_lays_out_by_graphviz_where_it_holds_it(tab, tmp_path, held):
    f, args = transformer(1)
    tab.page.goto(jaxviz.explore(f, *args).save_html(tmp_path / "page.html", graphviz=held).as_uri())
    graph = lay_out_by_graphviz(tab.page)
    expect(graph).to_have_attribute("data-layout", "graphviz" if held else "layered")
    note = graph.locator(".jv-graph-wait")
    expect(note).to_have_text("" if held else re.compile("^Laid out without Graphviz"))


def test_the_graph_is_opened_searched_and_clicked(tab, tmp_path):
    f, args = transformer(3)
    page = tab.page
    page.goto(jaxviz.explore(f, *args).save_html(tmp_path / "page.html").as_uri())
    page.get_by_test_id("stage-forward").click()
    page.get_by_test_id("beside-forward").click()
    page.get_by_test_id("as-graph-left").click()
    canvas, code = page.get_by_test_id("graph-canvas-left"), page.get_by_test_id("code-right")
    current = lambda: page.locator(f"#{page.get_by_test_id('graph-tree').get_attribute('aria-activedescendant')}")
    search = page.get_by_test_id("graph-search")

    search.fill("scatter-mul")
    expect(page.get_by_test_id("graph-hits")).to_have_text("0 hits")
    search.fill("dot_general scope:attention")
    n = len([e for e in jaxviz.derive(f, *args).forward.equations if is_product_of_attention(e)])
    expect(page.get_by_test_id("graph-hits")).to_have_text(f"{n} hits")
    search.press("Enter")
    expect(page.get_by_test_id("graph-hits")).to_have_text(f"1 of {n}")
    expect(current()).to_contain_text("dot_general")
    expect(code.locator(".cm-line.is-selected")).to_contain_text("dot_general")

    # Zooming to the selection centres it.
    search.press("Escape")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("z")
    expect(current()).to_contain_text("reshape")
    expect(code.locator(".cm-line.is-selected")).to_contain_text("reshape")
    page.keyboard.press("Escape")
    expect(code.locator(".cm-line.is-selected")).to_have_count(0)
    canvas.click()
    expect(code.locator(".cm-line.is-selected")).to_contain_text("reshape")
    tab.screenshot("graph")

    page.keyboard.press("c")
    page.keyboard.press("Shift+ArrowUp")
    page.keyboard.press("Enter")
    expect(current()).to_have_attribute("aria-expanded", "false")
    box = canvas.bounding_box()
    page.keyboard.press("z")
    page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(current()).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("g")
    expect(page.get_by_test_id("code-left")).to_be_visible()


def is_product_of_attention(equation):
    return equation.primitive.name == "dot_general" and "attention" in call_path(equation)


@light
def test_a_transform_is_stepped_through(tab, tmp_path):
    def loss(x, w):
        return jnp.sum(jnp.sin(x) * jnp.cos(x @ w))

    derivation = jaxviz.derive(loss, jnp.ones(3), jnp.ones((3, 3)))
    page = tab.page
    page.goto(jaxviz.explore(derivation).save_html(tmp_path / "page.html").as_uri())
    page.get_by_test_id("play").click()
    player = page.get_by_test_id("player")
    expect(player.get_by_test_id("step-count")).to_have_text(f"1 of {len(derivation.primal.equations)}")
    expect(player.get_by_test_id("rule-title")).to_have_text("jvp rule of sin")
    expect(player.locator(".cm-line.is-played")).to_have_count(1)
    added = player.locator("[data-testid=code-right] .cm-line.is-written")
    expect(added).to_have_count(player.get_by_test_id("rule-row").count())
    later = len(derivation.jvp.equations) - added.count()
    assert player.locator("[data-testid=code-right] .cm-line.is-later[data-row]").count() == later

    player.get_by_test_id("play-linearize").click()
    n = len(derivation.primal.equations)
    seen = []
    for step in range(1, n + 1):
        expect(player.get_by_test_id("step-count")).to_have_text(f"{step} of {n}")
        seen += [int(row.get_attribute("data-row")) for row in player.get_by_test_id("rule-row").all()]
        if step == 2:
            tab.screenshot("player-linearize")
        page.keyboard.press("ArrowRight")
    made = len(derivation.forward.equations) + len(derivation.linear.equations)
    assert len(seen) == len(set(seen)) == made

    player.get_by_test_id("play-transpose").click()
    page.keyboard.press("End")
    expect(player.get_by_test_id("step-sentence")).to_contain_text("to add it to what came before")
    so_far = player.locator(".jv-io .is-so-far")
    underline = "e => getComputedStyle(e).borderBottomStyle"
    assert so_far.evaluate(underline) == "dotted"
    assert player.locator(".jv-io .is-residual").first.evaluate(underline) == "double"
    tab.screenshot("player-transpose")

    player.locator("[data-testid=code-right] .cm-line[data-row]").first.click()
    expect(player.get_by_test_id("step-count")).to_have_text(f"1 of {len(derivation.linear.equations)}")
    page.keyboard.press("Escape")
    expect(player).to_be_hidden()
    expect(page.get_by_test_id("code-left")).to_have_attribute("data-stage", "linear")
    expect(page.get_by_test_id("inspected")).to_have_text("reduce_sum")
