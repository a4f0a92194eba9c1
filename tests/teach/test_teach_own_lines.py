"""A program of the learner's engine as a function of JAX: its derivative is the engine's, and its equations have the
lines of the rules; and operations that the learner adds."""

import linecache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxviz
from jaxviz.ir.origin import own_line
from jaxviz.teach import autodiff

RULES = """
def partial(op, i, dx, inputs, out, params):
    match op:
        case "sin":
            return my.mul(dx, my.cos(inputs[0]))
        case "mul":
            return my.mul(dx, inputs[1 - i])
    return my.original("partial")(op, i, dx, inputs, out, params)


def bind(op, *inputs, **params):
    recording = my.innermost(inputs)
    if recording is None:
        return my.compute(op, inputs, params)
    outputs = tuple(my.Var(s) for s in my.shapes_of(op, inputs, params))
    recording.equations.append(my.Equation(op, tuple(map(recording.read, inputs)), params, outputs))
    return [my.Tracer(recording, v) for v in outputs]
"""


@pytest.fixture
def my(tmp_path):
    """An engine whose rules for tangents, and whose `bind`, are those of a cell."""
    my = autodiff.engine(tmp_path / "mine.py")
    linecache.cache["<a cell>"] = (len(RULES), None, RULES.splitlines(True), "<a cell>")
    exec(compile(RULES, "<a cell>", "exec"), my.__dict__)
    return my


def model(my):
    def body(c, x, k):
        n = my.sin(c * k) + x
        return n, n * k

    def loss(p):
        last, ys = my.scan(body, np.float32(0.5), p["x"], (p["k"],))
        high = my.cond(my.step(last), lambda y: my.sin(y), lambda y: y * 2.0, last)
        return my.total(my.checkpoint(my.exp)(ys)) * high

    return loss, {"x": jnp.arange(3.0), "k": jnp.float32(0.3)}


def model_by_jax(p):
    def body(c, x):
        n = jnp.sin(c * p["k"]) + x
        return n, n * p["k"]

    last, ys = jax.lax.scan(body, jnp.float32(0.5), p["x"])
    return jnp.sum(jnp.exp(ys)) * jnp.where(last > 0, jnp.sin(last), last * 2.0)


@pytest.mark.slow
def test_the_derivative_of_a_function_as_jax_sees_it_is_the_engines(my):
    loss, p = model(my)
    f = my.as_jax(loss)
    wanted = jax.grad(model_by_jax)(p)
    for found in (my.grad(loss)(p), jax.grad(f)(p), jax.jit(jax.grad(f))(p)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, wanted)
    np.testing.assert_allclose(jax.jit(f)(p), model_by_jax(p), rtol=1e-6)
    assert f.__name__ == "loss"
    forward, *_ = my.linearize_program(my.trace(lambda k, x: loss({"k": k, "x": x}), p["k"], p["x"]))
    saved = [r for r in jaxviz.residuals(f, p) if r.kind != "argument"]
    assert 0 < len(saved) <= len(forward.outputs) - 1


def lines_of(program):
    """The user's lines of a program's equations, by primitive."""
    found = {}
    for _, e in program.walk():
        line = own_line(e.source)
        assert line is not None, e.primitive.name
        found.setdefault(e.primitive.name, set()).add((line.file.rpartition("/")[2], line.line))
    return found


@pytest.mark.slow
def test_each_equation_has_the_line_of_the_rule_or_of_the_model(my):
    def loss(x):
        return my.sin(x) * x

    first = loss.__code__.co_firstlineno
    derivation = jaxviz.explore(my.as_jax(loss), jnp.float32(0.5)).derivation
    here = __file__.rpartition("/")[2]
    forward, backward = lines_of(derivation.forward), lines_of(derivation.backward)
    assert forward["sin"] == {(here, first + 1)}
    assert forward["mul"] == {(here, first + 1)}
    assert forward["cos"] == {("<a cell>", 5)}
    transposed = {("<small_engine.py>", line) for line in lines_in(my.transposed)}
    sums = {("<small_engine.py>", line) for line in lines_in(my.transpose)}
    assert backward["mul"] <= transposed
    assert backward["add"] <= sums


@pytest.mark.slow
def test_equations_in_loops_have_lines_too(my):
    loss, p = model(my)
    derivation = jaxviz.explore(my.as_jax(loss), p).derivation
    backward = lines_of(derivation.backward)
    bodies = {("<small_engine_bodies.py>", line) for line in lines_in(my.scan_transpose)}
    assert backward["scan"] <= bodies
    assert ("<a cell>", 5) in backward["cos"]  # recomputed in the loop over cotangents


def lines_in(function):
    first = function.__code__.co_firstlineno
    return range(first, first + 40)


def test_an_equation_that_a_walk_repeats_keeps_its_place(my):
    program = my.trace(lambda x: my.sin(x) * x, 1.0)
    again = my.trace(lambda x: my.evaluate(program, x), 1.0)
    assert [e.op.model for e in again.equations] == [e.op.model for e in program.equations]
    assert program.equations[0].op.model.file == __file__
    assert [e.op for e in program.equations] == ["sin", "mul"]


def add_square(my, rule=lambda my, dx, x: 2.0 * x * dx):
    my.IMPLEMENTATIONS["square"] = lambda np, x: x * x
    my.JVP_OF["square"] = lambda inputs, tangents, params: (
        my.bind("square", *inputs), [rule(my, tangents[0], inputs[0])],
    )  # fmt: skip


@pytest.mark.slow
def test_an_operation_that_is_right_is_added_and_a_wrong_one_is_not(my):
    square = autodiff.addition(my, "square", "Add the square.", jnp.square, np.array([1.0, -3.0]))
    wrong = square.answer(lambda my: add_square(my, lambda my, dx, x: x * dx))
    assert not wrong
    assert any("as the tangent" in p.why for p in wrong.points)
    assert "square" not in my.IMPLEMENTATIONS
    nothing = square.answer(lambda my: None)
    assert any("There is no `my.IMPLEMENTATIONS" in p.why for p in nothing.points)
    no_rule = square.answer(lambda my: my.IMPLEMENTATIONS.update(square=lambda np, x: x * x))
    assert any("There is no `my.JVP_OF" in p.why for p in no_rule.points)
    assert square.answer(add_square).note == "From here on, the engine has `square`, with your rules."
    np.testing.assert_allclose(my.grad(lambda x: my.bind("square", x)[0])(3.0), 6.0)


def test_an_operation_whose_result_has_another_shape_needs_its_shape(my):
    def add(my):
        my.IMPLEMENTATIONS["last"] = lambda np, x: x[..., -1]

    last = autodiff.addition(my, "last", "Add the last element.", lambda x: x[..., -1], np.array([1.0, -3.0]))
    assert any('is there a `my.SHAPES_OF["last"]`' in p.why for p in last.answer(add).points)
