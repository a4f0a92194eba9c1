"""A view as text."""

import jax
import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz.features.explorer.columns import view_of
from jaxviz.features.explorer.still import stage_text, summary


@jax.jit
def g(x):
    return x * 2.0


def f(x):
    return g(jnp.sin(x))


@pytest.fixture(scope="module")
def view():
    return view_of(jaxviz.derive(f, jnp.ones(3)))


def test_a_stage_reads_as_a_jaxpr_with_nested_programs_indented(view):
    assert stage_text(view, "primal") == (
        "lambda a:f32[3] .\n"
        "  b:f32[3] = sin a\n"
        "  c:f32[3] = jit[name=g] b\n"
        "    lambda b:f32[3] .\n"
        "      c:f32[3] = mul b 2.0:f32[]\n"
        "    in (c)\n"
        "in (c)"
    )


def test_the_summary_counts(view):
    lines = summary(view).splitlines()
    assert lines[0] == "Explorer of the gradient of `f` in `x` on cpu:0, the default device"
    assert lines[1] == "  f         3 equations"
    assert lines[-2] == "  saves 12 B in 1 value"
    assert lines[-1].startswith("  residuals as in JAX")


def test_an_unknown_stage_is_an_error_that_names_the_others(view):
    with pytest.raises(KeyError, match="no stage 'sideways'; there are primal, jvp, forward, linear, backward"):
        stage_text(view, "sideways")
