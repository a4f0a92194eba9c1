"""The stepper in JupyterLab: forward, into a scan, to an iteration, the backward pass, back in time, breakpoints."""

import re

import jax.numpy as jnp
import pytest
from jupyter_lab import KERNEL_IDLE, ask_kernel
from playwright.sync_api import expect
from test_accessibility import violations

import jaxviz
from notebooks import RESTART, light, run

pytestmark = pytest.mark.browser

RNN = """
def rnn(w, xs):
    def cell(h, x):
        h = jnp.tanh(w @ h + x)
        return h, jnp.sum(h * h)

    h, ys = jax.lax.scan(cell, jnp.zeros(3), xs)
    return jnp.sum(ys) + jnp.sum(jnp.log(h + 2.0))

rnn_args = jnp.eye(3) * 0.5, jnp.linspace(-1.0, 1.0, 18).reshape(6, 3)
"""


TOGETHER = """() => [...document.querySelectorAll(".jv-figures > div + div")].filter(figure => {
  const [before, own] = [figure.previousElementSibling, figure].map(e => e.getBoundingClientRect());
  return own.top < before.bottom && own.left < before.right + 8;
}).map(figure => figure.textContent)"""
"""The figures of a value that follow another one without a gap."""


def step_in_lab(in_lab, *cells, own_kernel=False):
    """A notebook in which these cells have run; returns its first stepper."""
    page = run(in_lab, RNN, *cells, own_kernel=own_kernel)
    stepper = page.get_by_test_id("stepper").first
    stepper.get_by_test_id("equation").first.wait_for(timeout=90_000)
    page.wait_for_function(KERNEL_IDLE, timeout=60_000)
    stepper.scroll_into_view_if_needed()
    return stepper


def next_equation(stepper):
    return stepper.locator("[data-testid=equation][data-progress=next]")


def test_a_user_goes_forward_and_back_through_a_loop_and_its_derivative(in_lab):
    stepper = step_in_lab(in_lab, "s = jaxviz.step(rnn, *rnn_args)\ns")
    page = in_lab.page
    cells = page.locator(".jp-Notebook .jp-Cell").count()
    stepper.focus()
    page.keyboard.press("n")
    expect(next_equation(stepper)).to_contain_text("scan")
    page.keyboard.press("i")
    crumbs = stepper.get_by_test_id("crumbs")
    expect(crumbs.get_by_role("button", name="scan")).to_be_visible()
    box = stepper.get_by_test_id("iteration")
    expect(box).to_have_value("0")
    box.fill("3")
    box.press("Enter")
    expect(box).to_have_value("3")
    expect(stepper.locator("[data-testid=step-source-line][aria-current=step]")).to_contain_text("tanh")
    stepper.get_by_test_id("move-next").click()
    expect(stepper.get_by_test_id("results").get_by_test_id("value-card")).to_have_count(1)
    assert ask_kernel(page, "s.position.path[0].iteration, s.position.index") == "3 1"
    assert page.locator(".jv-figures > div").count() > 8
    assert page.evaluate(TOGETHER) == []
    in_lab.screenshot("step-scan")
    assert page.locator(".jp-Notebook .jp-Cell").count() == cells  # no key reached JupyterLab

    # A breakpoint by clicking beside the line, and one on a primitive.
    line = stepper.get_by_test_id("step-source-line").filter(has_text="jnp.log")
    line.get_by_test_id("line-gutter").click()
    expect(stepper.get_by_test_id("breakpoint")).to_have_count(1)
    stepper.get_by_test_id("break-text").fill("reduce_sum")
    stepper.get_by_test_id("break-add").click()
    expect(stepper.get_by_test_id("breakpoint")).to_have_count(2)
    stepper.get_by_test_id("move-continue").click()
    expect(stepper.get_by_test_id("step-status")).to_contain_text("Stopped at: primitive reduce_sum")
    expect(next_equation(stepper)).to_contain_text("reduce_sum")
    stepper.get_by_role("button", name="remove breakpoint primitive reduce_sum").click()
    stepper.get_by_test_id("move-continue").click()
    expect(stepper.get_by_test_id("step-status")).to_contain_text("Stopped at: line In[")
    assert ask_kernel(page, "s.position.path") == "()"

    # The backward pass, and the cotangent of an intermediate value.
    name = ask_kernel(page, "s._texts['forward'].names[s.program.equations[1].outvars[0]]")
    stepper.get_by_test_id("look-name").fill(name)
    stepper.get_by_test_id("look-name").press("Enter")
    looked = stepper.get_by_test_id("looked")
    expect(looked).to_contain_text("f32[3]")
    stepper.focus()
    page.keyboard.press("e")
    expect(stepper.get_by_test_id("step-status")).to_contain_text("The run has ended")
    expect(looked.get_by_test_id("other-value")).to_contain_text("cotangent")
    shown = looked.get_by_test_id("other-value").locator(".jv-numbers").inner_text()
    cotangent = ask_kernel(page, f"*(f'{{x:.4f}}' for x in s.cotangents['{name}'])")
    assert shown.strip("[] ").split() == cotangent.split()
    in_lab.screenshot("step-backward")

    # Back in time: show the program of an earlier equation and double-click the equation.
    stepper.get_by_test_id("step-stage-forward").click()
    stepper.get_by_test_id("equation").first.locator(".jv-primitive").dblclick()
    expect(stepper.get_by_test_id("step-said")).to_contain_text("equation 0")
    assert ask_kernel(page, "s.stage, s.position.index") == "forward 0"
    assert violations(page, "[data-testid=stepper]") == ""


@light
def test_two_views_an_error_and_a_kernel_that_goes(in_lab):
    stepper = step_in_lab(
        in_lab, "s = jaxviz.step(rnn, *rnn_args)\ndisplay(s)", "s.next()", "s.widget()", own_kernel=True
    )
    page = in_lab.page
    expect(page.get_by_test_id("stepper")).to_have_count(2)
    expect(page.locator(".jp-OutputArea-output table")).to_be_visible()  # the value of s.next(), beside the widget
    second = page.get_by_test_id("stepper").last
    expect(next_equation(stepper)).to_contain_text("scan")

    # A predicate that raises is reported by both, and breaks neither; the page's own conditions are no Python.
    stepper.get_by_test_id("break-kind").select_option("condition")
    stepper.get_by_test_id("break-text").fill("lambda v: v.no_such_thing")
    stepper.get_by_test_id("break-add").click()
    expect(stepper.get_by_test_id("break-failure")).to_contain_text("Write a comparison such as")
    ask_kernel(page, "s.break_at(when=lambda v: v.no_such_thing)")
    expect(second.get_by_test_id("breakpoint")).to_have_count(1)
    second.get_by_test_id("move-continue").click()
    expect(stepper.get_by_test_id("step-failure")).to_contain_text("no_such_thing")
    assert ask_kernel(page, "__import__('sys').last_type.__name__") == "AttributeError"
    second.get_by_role("button", name="remove breakpoint").click()
    expect(stepper.get_by_test_id("breakpoint")).to_have_count(0)
    expect(stepper.get_by_test_id("step-failure")).to_be_hidden()

    # Slow operations say so.
    ask_kernel(page, "s.break_at(when=lambda v: __import__('time').sleep(0.06))")
    expect(second.get_by_test_id("breakpoint")).to_have_count(1)
    second.get_by_test_id("move-continue").click()
    expect(second.get_by_test_id("busy")).to_have_text(re.compile(r"(waiting for the kernel|running) · \d+ s"))
    expect(second.get_by_test_id("step-status")).to_contain_text("The run has ended", timeout=25_000)
    expect(stepper.get_by_test_id("step-status")).to_contain_text("The run has ended")
    expect(stepper.get_by_test_id("step-notice")).to_contain_text("Not hit")

    page.evaluate(RESTART)
    expect(stepper.get_by_test_id("step-notice")).to_contain_text(
        "The kernel that ran this has shut down", timeout=20_000
    )
    expect(stepper.get_by_test_id("move-back")).to_have_attribute("aria-disabled", "true")
    expect(stepper.get_by_test_id("value-card").first).to_be_visible()


@light
def test_below_the_report_of_a_nan_one_steps_to_where_it_was_born(in_lab):
    page = run(in_lab, RNN, "jaxviz.find_nan(lambda w, xs: rnn(w, xs) + jnp.sum(jnp.sqrt(w - 1.0)), *rnn_args)")
    marked = page.get_by_test_id("marked")
    expect(marked).to_contain_text("born at In[", timeout=90_000)
    page.wait_for_function(KERNEL_IDLE, timeout=60_000)
    stepper = page.get_by_test_id("stepper")
    expect(stepper.get_by_test_id("move-next")).to_be_hidden()
    assert stepper.bounding_box()["height"] < 130
    assert violations(page, "[data-testid=stepper]") == ""
    stepper.get_by_test_id("step-there").click()
    expect(stepper.get_by_test_id("move-next")).to_be_visible()
    expect(stepper.get_by_test_id("results").get_by_test_id("value-card").first).to_contain_text("first not finite at")
    expect(stepper.get_by_test_id("born").locator("visible=true").first).to_contain_text("born")


WIDER = """() => [...document.querySelectorAll(".jv-told-row figure, .jv-told-row figcaption")]
    .filter((e) => e.scrollWidth > e.clientWidth + 1
        || e.getBoundingClientRect().right > e.closest(".jv-told-value").getBoundingClientRect().right + 1)
    .map((e) => e.textContent)"""
"""What is drawn of a value over what is beside it."""


@light
def test_a_value_and_its_cotangent_have_room_beside_each_other(tab, tmp_path):
    arrays = jnp.linspace(-0.93, 0.91, 192).reshape(3, 64), jnp.linspace(-0.08, 0.09, 512).reshape(64, 8)
    stepper = jaxviz.step(lambda w, x: jnp.sum(jnp.tanh(w @ x)), *arrays).run()
    tab.page.set_viewport_size({"width": 1280, "height": 800})
    tab.page.goto(stepper.widget().save_html(tmp_path / "page.html").as_uri())
    tab.page.locator(".jv-both .jv-picture").first.wait_for()
    assert tab.page.evaluate(WIDER) == []
