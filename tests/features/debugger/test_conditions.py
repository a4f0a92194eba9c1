"""Conditions that a page may set: compared with the same conditions in Python; all else is refused and not run."""

import builtins
import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxviz.features.debugger import conditions
from jaxviz.features.debugger.conditions import Condition
from jaxviz.features.debugger.positions import SteppingError

X = np.array([[1.5, -7.0, 0.0], [2.0, 0.0, 3.0]])


@pytest.fixture(params=[conditions.FEW, 0], ids=["NumPy", "JAX"])
def few(request, monkeypatch):
    monkeypatch.setattr(conditions, "FEW", request.param)


either = pytest.mark.usefixtures("few")

IN_PYTHON = {
    "max_abs > 6.9": lambda x: np.abs(x).max() > 6.9,
    "max_abs > 7": lambda x: np.abs(x).max() > 7,
    "min <= -7": lambda x: x.min() <= -7,
    "-7 == min": lambda x: x.min() == -7,
    "max != 3": lambda x: x.max() != 3,
    "mean < 0": lambda x: x.mean() < 0,
    "3 < std < 4": lambda x: 3 < x.std() < 4,
    "norm > 8": lambda x: np.linalg.norm(x) > 8,
    "zeros == 2 and size == 6": lambda x: (x == 0).sum() == 2 and x.size == 6,
    "nan > 0 or inf > 0": lambda x: bool(np.isnan(x).any() or np.isinf(x).any()),
    "not (max > 2 and min > 0)": lambda x: not (x.max() > 2 and x.min() > 0),
    "min < mean < max": lambda x: x.min() < x.mean() < x.max(),
}


@either
@pytest.mark.parametrize("text", IN_PYTHON)
def test_it_says_what_python_says(text):
    for x in (X, -X, X + 10, X[:, :1], X * 0):
        assert Condition(text)(jnp.asarray(x)) == IN_PYTHON[text](x)


@either
def test_figures_are_of_the_finite_elements():
    x = jnp.array([1.0, jnp.nan, -jnp.inf, 3.0, jnp.inf])
    assert Condition("min == 1 and max == 3 and mean == 2 and std == 1 and nan == 1 and inf == 2")(x)
    nothing = jnp.array([jnp.nan, jnp.inf])
    for text in ("min > 0", "max < 0", "mean == 0", "norm >= 0", "max_abs >= 0"):
        assert not Condition(text)(nothing)


@either
@pytest.mark.parametrize(
    "value",
    [jnp.array([True, False, True]), jnp.array([1, 0, 1], jnp.int8), jnp.array([1, 0, 1], jnp.bfloat16),
     1j * jnp.array([1, 0, 1]), 1],
    ids=lambda v: str(getattr(v, "dtype", "a number")),
)  # fmt: skip
def test_values_of_any_type_have_figures(value):
    assert Condition("max == 1 and max_abs == 1 and nan == 0")(value)


def test_a_value_on_several_devices_stays_there():
    mesh = jax.make_mesh((8,), ("data",))
    x = jax.device_put(jnp.arange(64.0), jax.NamedSharding(mesh, jax.P("data")))
    assert Condition("max == 63 and size == 64")(x)


NOT_CONDITIONS = {
    "": "invalid syntax",
    "max >": "invalid syntax",
    "max": "`max` is not a comparison",
    "1 < 2": "compares no figure",
    "v > 3": "`v` is neither a figure nor a number",
    "max > True": "`True` is neither",
    "max > '1'": "`'1'` is neither",
    "max > 1j": "`1j` is neither",
    "max in (1, 2)": "is not a comparison",
    "max - min > 3": "`max - min` is neither",
    "abs(min) > 3": "`abs(min)` is neither",
    "max > 9**9**9": "`9 ** 9 ** 9` is neither",
    "lambda v: abs(v).max() > 1e3": "is not a comparison",
    "max > 3 if canary() else 4": "is not a comparison",
    "(canary() or max) > 3": "is neither",
    "max > canary()": "`canary()` is neither",
    "canary() > max": "`canary()` is neither",
    "max > [canary() for _ in '1'][0]": "is neither",
    "max > f'{canary()}'": "is neither",
    "max.__class__ > 3": "is neither",
    "(x := max) > 3": "is neither",
    "max > 3; canary()": "invalid syntax",
    "max > \x00": "null bytes",
    "not " * 60 + "max > 3": "more than 200 characters",
    "(" * 190: "",
    "max > " + "9" * 190 + "x": "",
}


@pytest.mark.parametrize("text", NOT_CONDITIONS, ids=lambda t: repr(t[:30]))
def test_anything_else_is_refused_and_not_run(text, monkeypatch):
    monkeypatch.setattr(builtins, "canary", lambda: pytest.fail("it was run"), raising=False)
    with pytest.raises(SteppingError) as caught:
        Condition(text)
    said = str(caught.value)
    assert NOT_CONDITIONS[text] in said
    assert "Write a comparison such as `max_abs > 1e3`" in said
    assert "s.break_at(when=lambda v: ...)" in said


@given(st.text(st.sampled_from(list("maxminstd<>=!()andornt .0123456789-'_[]{}:,\x00\n")), max_size=40))
def test_any_text_is_a_condition_or_is_refused(text):
    with contextlib.suppress(SteppingError):
        assert Condition(text)(jnp.ones(2)) in (True, False)
