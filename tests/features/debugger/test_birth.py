"""From a NaN report to the run that produced the NaN."""

import gc
import json

import jax
import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz.features.debugger.start import stepper_of
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
    report = jaxviz.find_nan(scanned, jnp.array([0.0, 0.5, 9.0]), jnp.ones(2))
    stepper = stepper_of(report)
    widget = StepperWidget(stepper, event=report.born)
    assert widget.folded
    assert json.loads(widget.mark)["text"].startswith("NaN born at test_birth.py")
    widget._handle_custom_msg({"do": "there"}, [])
    assert (widget.folded, widget.failure) == (False, "")
    assert json.loads(widget.stop)["path"][0]["iteration"] == 2
    shown = _time_line(report, report.born)._repr_mimebundle_()
    data = shown[0] if isinstance(shown, tuple) else shown
    assert data["text/plain"].endswith("report.step() steps to it.")


def test_of_very_many_equations_no_time_line_is_made(monkeypatch):
    monkeypatch.setattr("jaxviz.features.debugger.widget.LARGEST", 3)
    report = jaxviz.find_nan(masked, jnp.array([0.0, 4.0]))
    assert set(_time_line(report, report.born)) == {"text/plain"}
