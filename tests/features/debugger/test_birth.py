"""From a NaN report to the run that produced the NaN."""

import gc
import json

import jax
import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz.features.debugger.birth import mark_of, stepper_of
from jaxviz.features.debugger.widget import StepperWidget, _time_line
from jaxviz.features.nans import report as reports


def scanned(params, x):
    def body(x, w):
        h = jnp.sqrt(x - w)
        return x + h, None

    x, _ = jax.lax.scan(body, x, params)
    return jnp.sum(jnp.where(x > 0, x, 0.0))


def masked(x):
    return jnp.sum(jnp.where(x > 0, jnp.sqrt(x), 0.0))


CASES = {
    "in a scan": (scanned, (jnp.array([0.0, 0.5, 9.0]), jnp.ones(2)), "sqrt", "forward", (2,)),
    "behind a where": (masked, (jnp.array([0.0, 4.0]),), "div", "forward", ()),
    "of a loss with an auxiliary result": (lambda x: (masked(x), x), (jnp.array([0.0, 4.0]),), "div", "forward", ()),
    "of a gradient": (jax.grad(masked), (jnp.array([0.0, 4.0]),), "div", "primal", ()),
    "in a condition": (
        lambda x: jax.lax.cond(x[0] > 0, lambda x: jnp.sum(jnp.log(x)), lambda x: x[0], x),
        (jnp.array([1.0, -1.0]),), "log", "forward", (None,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_stops_at_the_equation_and_in_the_iteration_of_the_report(name):
    f, args, primitive, stage, iterations = CASES[name]
    report = jaxviz.find_nan(f, *args)
    assert report.born.primitive == primitive
    stepper = report.step()
    assert stepper.equation.primitive.name == primitive
    assert stepper.stage == stage
    assert tuple(level.iteration for level in stepper.position.path) == iterations
    assert not jnp.isfinite(stepper.value).all()
    assert [i.index for i in report.born.iterations] == [i for i in iterations if i is not None]


@pytest.mark.parametrize("name", CASES)
def test_the_time_line_has_its_mark_where_the_run_is_then(name):
    f, args, _, stage, _ = CASES[name]
    report = jaxviz.find_nan(f, *args)
    stepper = report.step()
    at = stepper.position.path[0].index if stepper.position.path else stepper.position.index - 1
    mark = mark_of(stepper, report.born)
    assert (mark["stage"], mark["index"]) == (stage, at)
    assert mark["text"].startswith(f"{report.born.made} born at test_birth.py:{report.born.location.line}, in the ")


def test_what_is_born_in_the_backward_pass_is_found_there():
    report = jaxviz.find_nan(lambda x: jnp.sqrt(jnp.sum(x * x)), jnp.zeros(3))
    assert report.born.phase == "forward"  # the slope of sqrt, a residual
    report = jaxviz.find_nan(lambda x: jnp.sum(jnp.prod(x) ** 0.5 * x[0]), jnp.zeros(3))
    stepper = report.step()
    assert stepper.stage == report.born.phase
    assert not jnp.isfinite(stepper.value).all()


def test_in_a_mapped_function_the_run_stops_at_the_whole_of_it():
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("i",))
    spec = jax.sharding.PartitionSpec("i")
    mapped = jax.shard_map(lambda x: jnp.log(x), mesh=mesh, in_specs=spec, out_specs=spec)
    stepper = jaxviz.find_nan(lambda x: jnp.sum(mapped(x)), jnp.array([1.0, -1.0])).step()
    assert stepper.equation.primitive.name == "shard_map"


def test_of_what_came_in_the_run_is_at_its_start():
    report = jaxviz.find_nan(lambda x: jnp.sum(x * 2), jnp.array([jnp.nan, 1.0]))
    assert report.born is None
    assert report.step().position.index == 0


def test_only_the_last_two_searches_keep_their_arrays():
    found = [jaxviz.find_nan(masked, jnp.array([0.0, float(i)])) for i in range(3)]
    gc.collect()
    with pytest.raises(jaxviz.SteppingError, match="Only the last two searches keep their arrays"):
        found[0].step()
    assert found[1].step().hit is not None
    reports._recent.clear()
    gc.collect()
    with pytest.raises(jaxviz.SteppingError, match="Call find_nan again"):
        found[2].step()


def test_below_a_report_stands_the_time_line_alone_until_it_is_asked_to_step_there():
    report = jaxviz.find_nan(scanned, *CASES["in a scan"][1])
    stepper = stepper_of(report)
    widget = StepperWidget(stepper, event=report.born)
    assert widget.folded
    assert json.loads(widget.mark)["text"].startswith("NaN born at test_birth.py")
    widget._answer(widget, {"do": "there"}, [])
    assert (widget.folded, widget.failure) == (False, "")
    assert json.loads(widget.stop)["path"][0]["iteration"] == 2
    plain = stepper.widget()
    plain._answer(plain, {"do": "restart"}, [])
    shown = _time_line(report, report.born)._repr_mimebundle_()
    data = shown[0] if isinstance(shown, tuple) else shown
    assert data["text/plain"].endswith("report.step() steps to it.")


def test_of_very_many_equations_no_time_line_is_made(monkeypatch):
    monkeypatch.setattr("jaxviz.features.debugger.widget.LARGEST", 3)
    report = jaxviz.find_nan(masked, jnp.array([0.0, 4.0]))
    assert set(_time_line(report, report.born)) == {"text/plain"}
