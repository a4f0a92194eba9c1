"""A tour of a saved page, through every pane of it."""

from playwright.sync_api import expect

from jaxviz.derivation import STAGES


def unfold(explorer, *extras):
    """Opens what is shown on demand: the row of stages, the selection in full, or both."""
    for extra in extras or ("stages", "details"):
        button = explorer.get_by_test_id(f"open-{extra}")
        if button.get_attribute("aria-pressed") != "true":
            button.click()


def tour(page, view, n_equations=1):
    """Shows each pane, and requires that it comes up; yields where it is, after each step.

    Args:
      n_equations: how many equations of each stage are inspected.
    """
    yield "as opened"
    unfold(page)
    yield from code(page, view, n_equations)
    for part in (graph, tables, player, compiled):
        yield from part(page, view)


def code(page, view, n_equations):
    """Each stage: equations are inspected, or the error is shown instead."""
    pane = page.get_by_test_id("code-left")
    for key in STAGES:
        page.get_by_test_id(f"stage-{key}").click()
        expect(pane).to_have_attribute("data-stage", key)
        stage = view.stage(key)
        if stage.error:
            expect(pane).to_contain_text(stage.error.split(":")[0])
        elif stage.equations[1] > stage.equations[0]:
            for line in pane.locator(".cm-line[data-row] .jv-primitive").all()[:n_equations]:
                line.click()
                expect(page.get_by_test_id("inspected")).not_to_be_empty()
                yield f"an equation of {key}"
        else:
            expect(pane.locator(".cm-line").first).to_be_visible()
        yield f"the code of {key}"


def graph(page, view):
    """The function and its backward program as graphs, opened as far as possible."""
    for key in ("primal", "backward"):
        page.get_by_test_id(f"stage-{key}").click()
        page.get_by_test_id("as-graph-left").click()
        expect(page.get_by_test_id("graph-left")).to_be_visible()
        if not view.stage(key).error:
            page.get_by_test_id("graph-canvas-left").click()
            for pressed in ("o", "ArrowDown", "Enter", "ArrowDown", "Enter"):
                page.keyboard.press(pressed)
        page.wait_for_timeout(150)
        yield f"the graph of {key}"
        page.get_by_test_id("as-code-left").click()


def tables(page, view):
    """The residuals with their switches, the work with the memory over time, and the switches of all values."""
    page.get_by_test_id("view-kept").click()
    expect(page.get_by_test_id("residuals")).to_be_visible()
    if view.columns["residual_name"].size:
        # Beside its switch; it may be higher than the pane.
        page.get_by_test_id("residual-row").first.locator("td").nth(1).click(position={"x": 8, "y": 8})
        expect(page.get_by_test_id("reason").first).to_be_visible()
    yield "the residuals"
    for key, panes in {"cost": ("costs", "memory"), "what-if": ("what-if", "memory"), "lines": ("source",)}.items():
        page.get_by_test_id(f"view-{key}").click()
        for pane in panes:
            expect(page.get_by_test_id(pane)).to_be_visible()
        page.wait_for_timeout(50)
        yield key


def has_equations(view, source, *targets):
    """Whether the first stage has equations and the derivation did not fail."""
    first, last = view.stage(source).equations
    return last > first and not any(view.stage(key).error for key in (source, *targets))


def player(page, view):
    """The steps of each transform."""
    steps = {
        "jvp": has_equations(view, "primal", "jvp"),
        "linearize": has_equations(view, "primal", "forward", "linear"),
        "transpose": has_equations(view, "linear", "backward"),
    }
    if not any(steps.values()):
        expect(page.get_by_test_id("play")).to_be_disabled()
        return
    page.get_by_test_id("play").click()
    found = page.get_by_test_id("player")
    expect(found).to_be_visible()
    for kind, is_there in steps.items():
        expect(found.get_by_test_id(f"play-{kind}")).to_have_count(int(is_there))
        if is_there:
            found.get_by_test_id(f"play-{kind}").click()
            for key in ("ArrowRight", "ArrowRight", "End", "Home"):
                page.keyboard.press(key)
                yield f"the steps of {kind}"
            expect(found.get_by_test_id("rule")).to_be_visible()
    page.keyboard.press("Escape")
    expect(found).to_be_hidden()


def compiled(page, _):
    """The compiled program: its memory, a text, or why there is none."""
    page.get_by_test_id("stage-compiled").click()
    shown = page.locator("[data-stage=compiled]")
    expect(shown.locator("[data-testid=compiled-memory], .cm-line, [data-testid=not-compiled]").first).to_be_visible()
    yield "compiled"
