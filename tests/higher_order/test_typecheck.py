"""Each way in which a program can be ill-typed is found, with the equation and the user's line."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz.derivation import STAGES
from jaxviz.higher_order.typecheck import ProgramTypeError, check_program
from jaxviz.ir.syntax import Literal, Var
from jaxviz.transforms.jvp import Jvp


def loss(x, y):
    z = jnp.sin(x) * y
    return jnp.sum(z + 1.0)


PROGRAM = jaxviz.trace(loss)(jnp.ones(3), jnp.ones(3))
SINE, SCALAR = PROGRAM.equations[0], PROGRAM.outvars[0].aval


def with_equation(program, index, **changes):
    equations = list(program.equations)
    equations[index] = replace(equations[index], **changes)
    return replace(program, equations=tuple(equations))


def test_programs_are_well_typed_and_linear_where_they_should_be():
    check_program(PROGRAM)
    d = jaxviz.derive(jax.jit(loss), jnp.ones(3), jnp.ones(3))
    for stage in STAGES:
        check_program(getattr(d, stage))
    check_program(d.linear, [False] * d.n_residuals + [True] * sum(d.nonzeros))
    check_program(d.backward, [False] * d.n_residuals + [True] * len(d.linear.outvars))


def inside_a_jitted_function():
    program = jaxviz.trace(lambda x: jax.jit(lambda y: jnp.sin(y))(x))(1.0)
    call = program.equations[0]
    body = call.params["jaxpr"]
    wrong = replace(body, outvars=(Var(body.outvars[0].aval),))
    operation = replace(call.operation, params={**call.params, "jaxpr": wrong})
    return with_equation(program, 0, operation=operation)


ILL_TYPED = {
    r"`sin` \(equation 0, .*test_typecheck\.py:17\): operand 0 is unbound": lambda: with_equation(
        PROGRAM, 0, invars=(Var(PROGRAM.invars[0].aval),)
    ),
    "Result 0 of loss is a variable that no equation binds": lambda: replace(PROGRAM, outvars=(Var(SCALAR),)),
    r"test_typecheck\.py:17\): operand 0 has type float32\[\], expected float32\[3\]": lambda: with_equation(
        PROGRAM, 0, invars=(Literal(1.0, SCALAR),)
    ),
    r"result 0 has type float32\[\], but the primitive gives float32\[3\]": lambda: with_equation(
        PROGRAM, 0, operation=replace(SINE.operation, out_avals=(SCALAR,)), outvars=(Var(SCALAR),)
    ),
    r"`mul` \(equation 1, .*\): result .* is bound twice": lambda: with_equation(PROGRAM, 1, outvars=SINE.outvars),
    "An input of loss is bound twice": lambda: replace(PROGRAM, invars=(PROGRAM.invars[0],) * 2),
    "`sin` .* it has 2 results, expected 1": lambda: with_equation(
        PROGRAM, 0, outvars=(*SINE.outvars, Var(PROGRAM.invars[0].aval))
    ),
    "Result 0 of <lambda> is a variable that no equation binds": inside_a_jitted_function,
}


@pytest.mark.parametrize("message", ILL_TYPED)
def test_an_ill_typed_program_is_named_with_its_equation_and_line(message):
    with pytest.raises(ProgramTypeError, match=message):
        check_program(ILL_TYPED[message]())


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
