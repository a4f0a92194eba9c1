"""Each way in which a program can be ill-typed is found, with the equation and the user's line."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz.higher_order.typecheck import ProgramTypeError, check_program
from jaxviz.ir.syntax import Literal, Var
from jaxviz.transforms.jvp import Jvp


def loss(x, y):
    z = jnp.sin(x) * y
    return jnp.sum(z + 1.0)


@pytest.fixture
def program():
    return jaxviz.trace(loss)(jnp.ones(3), jnp.ones(3))


def with_equation(program, index, **changes):
    equations = list(program.equations)
    equations[index] = replace(equations[index], **changes)
    return replace(program, equations=tuple(equations))


def test_a_traced_program_is_well_typed(program):
    check_program(program)


@pytest.mark.parametrize("stage", ["primal", "jvp", "forward", "linear", "backward"])
def test_derived_programs_are_well_typed(stage):
    check_program(getattr(jaxviz.derive(loss, jnp.ones(3), jnp.ones(3)), stage))


def test_linear_and_backward_programs_are_linear():
    d = jaxviz.derive(jax.jit(loss), jnp.ones(3), jnp.ones(3))
    check_program(d.linear, [False] * d.n_residuals + [True] * sum(d.nonzeros))
    check_program(d.backward, [False] * d.n_residuals + [True] * len(d.linear.outvars))


def test_an_unbound_variable(program):
    stranger = Var(program.invars[0].aval)
    with pytest.raises(ProgramTypeError, match=r"`sin` \(equation 0, .*test_typecheck\.py:16\): operand 0 is unbound"):
        check_program(with_equation(program, 0, invars=(stranger,)))


def test_an_unbound_result(program):
    with pytest.raises(ProgramTypeError, match="Result 0 of loss is a variable that no equation binds"):
        check_program(replace(program, outvars=(Var(program.outvars[0].aval),)))


def test_a_type_mismatch(program):
    scalar = Literal(1.0, program.outvars[0].aval)
    with pytest.raises(
        ProgramTypeError, match=r"test_typecheck\.py:16\): operand 0 has type float32\[\], expected float32\[3\]"
    ):
        check_program(with_equation(program, 0, invars=(scalar,)))


def test_a_result_type_that_the_primitive_does_not_give(program):
    sin = program.equations[0]
    wrong = program.outvars[0].aval
    operation = replace(sin.operation, out_avals=(wrong,))
    with pytest.raises(ProgramTypeError, match=r"result 0 has type float32\[\], but the primitive gives float32\[3\]"):
        check_program(with_equation(program, 0, operation=operation, outvars=(Var(wrong),)))


def test_a_variable_bound_twice(program):
    first = program.equations[0].outvars
    with pytest.raises(ProgramTypeError, match=r"`mul` \(equation 1, .*\): result .* is bound twice"):
        check_program(with_equation(program, 1, outvars=first))


def test_an_input_bound_twice(program):
    with pytest.raises(ProgramTypeError, match="An input of loss is bound twice"):
        check_program(replace(program, invars=(program.invars[0], program.invars[0])))


def test_a_wrong_number_of_results(program):
    extra = Var(program.invars[0].aval)
    with pytest.raises(ProgramTypeError, match=r"`sin` .* it has 2 results, expected 1"):
        check_program(with_equation(program, 0, outvars=(*program.equations[0].outvars, extra)))


def test_an_equation_inside_a_jitted_function():
    @jax.jit
    def inner(x):
        return jnp.sin(x)

    program = jaxviz.trace(lambda x: inner(x))(1.0)
    body = program.equations[0].params["jaxpr"]
    wrong = replace(body, outvars=(Var(body.outvars[0].aval),))
    operation = replace(program.equations[0].operation, params={**program.equations[0].params, "jaxpr": wrong})
    with pytest.raises(ProgramTypeError, match="Result 0 of inner is a variable that no equation binds"):
        check_program(with_equation(program, 0, operation=operation))


@pytest.mark.parametrize(
    ("name", "fun"),
    [
        ("sin", jnp.sin),
        ("mul", lambda x: x * x),
        ("div", lambda x: 1.0 / x),
        ("sin", jax.jit(lambda x: 2.0 * jnp.sin(x))),
    ],
)
def test_an_equation_that_is_not_linear(name, fun):
    with pytest.raises(ProgramTypeError, match=rf"`{name}` \(equation 0, .*is not linear in its operands f32\[3\]"):
        check_program(jaxviz.trace(fun)(jnp.ones(3)), linear=[True])


@pytest.mark.parametrize(
    "fun", [lambda x: 2.0 * x, lambda x: x + x, lambda x: x / 3.0, lambda x: jnp.dot(x, jnp.ones(3))]
)
def test_an_equation_that_is_linear(fun):
    check_program(jaxviz.trace(fun)(jnp.ones(3)), linear=[True])


def test_derivations_are_checked_where_the_environment_says_so(monkeypatch):
    wrong = lambda program, *_, **__: with_equation(program, 0, outvars=(Var(program.in_avals[0]),))
    monkeypatch.setattr("jaxviz.derivation.jvp_program", lambda program, nonzeros: Jvp(wrong(program), nonzeros))
    assert jaxviz.derive(loss, jnp.ones(3), jnp.ones(3)).jvp
    monkeypatch.setenv("JAXVIZ_CHECK_TYPES", "1")
    with pytest.raises(ProgramTypeError, match="unbound"):
        _ = jaxviz.derive(loss, jnp.ones(3), jnp.ones(3)).jvp
    assert jaxviz.derive(loss, jnp.ones(3), jnp.ones(3)).backward
