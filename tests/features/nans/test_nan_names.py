"""The names of equations and values in NaN reports."""

import jax
import jax.numpy as jnp
import pytest

import jaxviz


def masked(x, p):
    scores = x @ p["w"]
    return jnp.sum(jax.nn.softmax(jnp.where(x > 9, scores, -jnp.inf)))


def in_scan(x):
    def body(c, w):
        c = jnp.log(c - w)
        return c, c * 2

    return jax.lax.scan(body, x, jnp.arange(3.0))[1].sum()


def root(x):
    return jnp.sum(jnp.sqrt(x * 2.0))


def norm(x):
    return jnp.linalg.norm(x - jnp.mean(x))


@jax.jit
def halved(x):
    return jnp.log(x / 2)


CASES = {
    masked: ((jnp.ones((2, 2)), {"w": jnp.ones((2, 2))}), "sub in jax.nn.softmax(", "jnp.where(x > 9, scores, -jnp.inf)"),
    in_scan: ((jnp.float32(1.5),), "jnp.log(c - w)", "c - w"),
    root: ((jnp.zeros(3),), "div in the derivative of jnp.sqrt(x * 2.0)", "jnp.sqrt(x * 2.0)"),
    jax.grad(root): ((jnp.zeros(3),), "div in the derivative of jnp.sqrt(x * 2.0)", "jnp.sqrt(x * 2.0)"),
    norm: ((jnp.ones(3),), "div in the derivative of jnp.linalg.norm(x - jnp.mean(x))", "jnp.linalg.norm(x - jnp.mean(x))"),
    halved: ((jnp.zeros(3),), "jnp.log(x / 2)", "x / 2"),
}  # fmt: skip


@pytest.mark.parametrize("f", CASES)
def test_a_birth_is_named_by_its_expression(f):
    args, expression, operand = CASES[f]
    report = jaxviz.find_nan(f, *args)
    assert report.born.expression.startswith(expression)
    assert operand in [o.name for o in report.born.inputs]
    text = " ".join(str(report).split())
    assert f"{report.born.place}: `{report.born.expression}`" in text
    assert f"reads `{operand}`: f32[" in text
    assert report.born.to_dict()["expression"] == report.born.expression


def test_an_argument_that_is_read_has_its_path():
    report = jaxviz.find_nan(lambda p: jnp.sum(jnp.log(p["w"])), {"w": jnp.zeros(3)})
    assert [o.name for o in report.born.inputs] == ["p['w']"]


def test_without_source_the_equation_is_left():
    namespace = {"jnp": jnp}
    exec("def f(x):\n    return jnp.sum(jnp.log(x))", namespace)
    report = jaxviz.find_nan(namespace["f"], jnp.zeros(3))
    assert report.born.expression == ""
    assert "log f32[3] -> f32[3]" in str(report)


def test_the_lines_on_the_way_have_their_source():
    report = jaxviz.find_nan(root, jnp.zeros(3))
    assert "`return jnp.sum(jnp.sqrt(x * 2.0))`: " in " ".join(str(report).split())
