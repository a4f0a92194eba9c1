"""Values are named by the expressions that compute them."""

import jax
import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz.analysis.naming import Naming
from jaxviz.analysis.site import Site
from jaxviz.ir.expressions import source_shown

X = jnp.ones((3, 3))


def names(f, *args):
    """The names of the results of each equation of a function's program, by primitive."""
    program = jaxviz.trace(f)(*args)
    naming = Naming(program)
    return [(e.primitive.name, naming.name(e, (), i)) for e in program.equations for i in range(len(e.outvars))]


def test_a_value_on_the_way_is_told_from_that_of_the_expression():
    made = names(lambda x: jax.nn.softmax(x * 2.0, -1).sum(), X)
    assert made[0] == ("mul", "x * 2.0")
    assert made[-2] == ("div", "jax.nn.softmax(x * 2.0, -1)")
    between = dict(made[1:-2])
    assert between["exp"] == "exp in jax.nn.softmax(x * 2.0, -1)"
    assert all(name == f"{primitive} in jax.nn.softmax(x * 2.0, -1)" for primitive, name in between.items())


def test_the_results_of_a_librarys_jitted_function():
    def f(x):
        h = jax.nn.silu(x)
        return jnp.sin(h)

    site = Site.of(jaxviz.derive(f, X), {})
    forward = site.derivation.forward
    found = {e.primitive.name: site.sources(v)[0] for e in forward.equations for v in e.outvars}
    inside = [site.expression(s) for e in forward.equations for v in e.outvars for s in site.sources(v) if s.within]
    assert inside[0] == "jax.nn.silu(x)"
    assert "logistic in jax.nn.silu(x)" in inside
    assert site.expression(found["sin"]) == "jnp.sin(h)"


def test_a_loop_makes_one_value_each_time():
    def f(x):
        for _ in range(3):
            x = jnp.sin(x)
        return x

    assert names(f, X) == [("sin", "jnp.sin(x)")] * 3


def test_results_that_belong_together():
    assert set(names(lambda x: sum(jnp.split(x, 3)), X)) >= {("split", "jnp.split(x, 3)")}


def test_what_a_rule_makes_is_of_a_derivative():
    f = lambda x: (jnp.sin(x) + jnp.exp(x)).sum()
    found = {r.producer.primitive.name: r.expression for r in jaxviz.residuals(f, X)}
    assert found["cos"] == "cos in the derivative of jnp.sin(x)"
    assert found["exp"] == "jnp.exp(x)"


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint, lambda f: f], ids=["jit", "checkpoint", "plain"])
def test_names_are_the_same_within_calls(wrap):
    inner = wrap(lambda x: jnp.tanh(x @ x))
    found = {r.expression for r in jaxviz.residuals(lambda x: jnp.sin(inner(x)).sum(), X)}
    assert any("jnp.sin(inner(x))" in name for name in found)


def test_an_inlined_function_is_no_second_evaluation():
    plan = jaxviz.plan_remat(lambda x: jnp.sum(jax.nn.log_softmax(jnp.sin(x) * x) ** 2), jnp.ones((64, 64)), budget=0.5)
    inside = [s for s in plan.saved if "jax.nn.log_softmax" in s.label]
    assert inside
    for s in inside:
        assert s.label != "jax.nn.log_softmax(jnp.sin(x) * x)" or s.expression == "sub", s


def labels(f, *args):
    return {r.label for r in jaxviz.residuals(f, *args) if r.kind == "intermediate"}


def scanned_cell(cell):
    return lambda x: jax.lax.scan(cell, (x, x), X)[0][0].sum()


def named_by_parameter(x, w):
    new = jnp.tanh(x @ w) * x
    return new, None


def unpacked(carry, x):
    h, c = carry
    new_c = jnp.sin(h) * c * h
    return (new_c * x, new_c), None


def indexed(carry, x):
    return (jnp.tanh(carry[0]) * carry[1] * x, carry[1] * x), None


@jax.checkpoint
def unpacked_in_a_checkpoint(carry, x):
    (h, (c, *_)) = carry[0], carry[1:]
    return (jnp.tanh(h) * c * x, c * x), None


def test_what_a_loop_carries_has_the_name_that_its_body_has_for_it():
    found = labels(lambda x: jax.lax.scan(named_by_parameter, x, jnp.ones((2, 3, 3)))[0].sum(), X)
    assert "x = jnp.tanh(x @ w) * x, carried" in found
    assert {"h = new_c * x, carried", "c = jnp.sin(h) * c * h, carried"} <= labels(scanned_cell(unpacked), X[0])
    assert "carry[1] = carry[1] * x, carried" in labels(scanned_cell(indexed), X[0])
    # A tuple built from parts of an argument is not that argument.
    assert "carry[1] = c * x, carried" in labels(scanned_cell(unpacked_in_a_checkpoint), X[0])


def test_what_loops_in_loops_carry():
    def outer(x, _):
        def inner(y, _):
            return jnp.sin(y) * y * x, None

        return jax.lax.scan(inner, x, length=2)[0], None

    found = labels(lambda x: jax.lax.scan(outer, x, length=3)[0].sum(), X)
    assert {"y = jnp.sin(y) * y * x, carried", "x = jnp.sin(y) * y * x, carried"} <= found


def test_a_loop_that_counts_names_what_it_carries():
    assert "x = jnp.sin(x) * x, carried" in labels(
        lambda x: jax.lax.fori_loop(0, 5, lambda i, x: jnp.sin(x) * x, x).sum(), X
    )


def test_a_page_without_source_has_no_names_of_variables():
    derivation = jaxviz.derive(scanned_cell(unpacked), X[0])
    with source_shown(False):
        found = {r.label for r in derivation.residuals}
    assert not any("new_c" in label or "h =" in label for label in found)
