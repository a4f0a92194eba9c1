"""The stepper's figures for each line: the norms of its value and cotangent, and where a NaN first occurs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxviz
from jaxviz.features.debugger import norms
from jaxviz.features.debugger.norms import Norm, Norms


def layers(w, x):
    h = jnp.tanh(x @ w)
    y = h * 3.0
    return jnp.sum(y**2)


W = jnp.asarray(np.linspace(-1, 1, 9).reshape(3, 3), jnp.float32)
X = jnp.asarray(np.linspace(0, 2, 6).reshape(2, 3), jnp.float32)


def by_text(stepper):
    """The figures of lines, by part of their text."""
    found = Norms(stepper).by_line()
    texts = {"tanh": 1, "* 3": 2, "sum": 3}
    first = layers.__code__.co_firstlineno
    return {text: of for text, n in texts.items() for at, of in found.items() if at.line == first + n}


def ended(f, *args):
    return jaxviz.step(f, *args).run()


def test_a_line_has_the_norm_of_what_it_made_last_and_of_its_cotangent():
    lines = by_text(ended(layers, W, X))
    h = jnp.tanh(X @ W)
    y = h * 3.0
    want = {"tanh": (h, 18 * h), "* 3": (y, 2 * y), "sum": (jnp.sum(y**2), None)}
    for text, (value, cotangent) in want.items():
        assert lines[text].value.norm == pytest.approx(float(jnp.linalg.norm(value)), rel=1e-5)
        if cotangent is not None:
            assert lines[text].cotangent.norm == pytest.approx(float(jnp.linalg.norm(cotangent)), rel=1e-5)


def test_lines_that_have_not_run_have_none_and_back_in_time_there_is_less():
    s = jaxviz.step(layers, W, X)
    assert by_text(s) == {}
    s.next(2)
    assert set(by_text(s)) == {"tanh"}
    assert by_text(s)["tanh"].cotangent is None
    after_two = by_text(s)
    s.run()
    assert set(by_text(s)) == {"tanh", "* 3", "sum"}
    while s.stage == "backward" or s.position.index > 2:
        s.back()
    assert by_text(s) == after_two
    s.restart()
    assert by_text(s) == {}


def lines_of(f, stepper):
    first = f.__code__.co_firstlineno
    return {at.line - first: of for at, of in Norms(stepper).by_line().items()}


def test_a_nan_is_born_where_no_operand_has_one():
    def f(x):
        a = jnp.where(x > 0, jnp.sqrt(x), 0.0)
        b = jnp.log(x)
        return jnp.sum(a) + jnp.sum(b * 2.0)

    lines = lines_of(f, ended(f, jnp.array([-1.0, 4.0])))
    assert {line: of.born for line, of in lines.items()} == {1: "value", 2: "value", 3: ""}
    assert (lines[1].value, lines[2].value.worst, lines[3].value.worst) == (Norm(2.0, ""), "NaN", "NaN")


def test_a_nan_that_only_the_backward_pass_makes_is_born_there():
    def f(x):
        return jnp.sum(jnp.where(x > 0, jnp.sqrt(x), 0.0))

    (line,) = lines_of(f, ended(f, jnp.array([0.0, 4.0]))).values()
    assert (line.born, line.value.worst) == ("cotangent", "")


def test_in_a_loop_the_norms_are_those_of_the_iteration():
    def f(x):
        def body(h, _):
            h = h * 2.0
            return h, jnp.sum(h)

        h, sums = jax.lax.scan(body, x, None, length=5)
        return jnp.sum(h) + jnp.sum(sums)

    s = jaxviz.step(f, jnp.ones(4))
    s.run(primitive="scan").to(iteration=3).next()
    assert lines_of(f, s)[2].value.norm == pytest.approx(2 * 2.0**4)


def test_what_is_not_finite_is_left_out_of_the_norm_and_whole_numbers_have_none(monkeypatch):
    def check():
        measured = Norms(jaxviz.step(layers, W, X)).of
        assert measured(jnp.array([3.0, jnp.inf, 4.0])) == Norm(5.0, "Inf")
        assert measured(jnp.array([jnp.nan, jnp.inf])) == Norm(0.0, "NaN")
        assert measured(jnp.array([3.0 + 4.0j])) == Norm(5.0, "")
        assert measured(jnp.array([3, 4])) is None
        assert measured(jnp.array([3.0, 4.0], jnp.bfloat16)) == Norm(5.0, "")
        assert measured(jax.random.key(0)) is None

    check()
    monkeypatch.setattr(norms, "FEW", 0)
    check()


def test_a_value_that_is_not_kept_any_more_has_the_norm_that_it_had():
    def f(x):
        a = jnp.sin(x)
        b = a + 1.0
        c = b * 2.0
        return jnp.sum(c)

    x = jnp.ones(1000)
    s = jaxviz.step(f, x, memory=5000).run()
    assert s.machine.frame("forward", ()).prints
    found, whole = lines_of(f, s), lines_of(f, jaxviz.step(f, x).run())
    assert {line: of.value.norm for line, of in found.items()} == pytest.approx(
        {line: of.value.norm for line, of in whole.items()}, rel=1e-4
    )
