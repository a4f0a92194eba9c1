"""Parts of programs as text, compared with what JAX prints."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxviz
from jaxviz.ir.pretty import printed_params


def equation(f, *args, primitive):
    return next(e for _, e in jaxviz.trace(f)(*args).walk() if e.primitive.name == primitive)


@pytest.mark.parametrize(
    ("primitive", "f", "args", "params"),
    [
        ("sin", jnp.sin, (1.0,), []),
        ("integer_pow", lambda x: x**3, (1.0,), ["y=3"]),
        ("jit", jax.jit(lambda x: x), (1.0,), ["name=<lambda>", "jaxpr"]),
        ("cond", lambda x: lax.cond(x > 0, jnp.sin, jnp.cos, x), (1.0,), ["branches"]),
        ("custom_jvp_call", jax.nn.relu, (1.0,), ["name=relu", "call_jaxpr", "jvp=jvp", "symbolic_zeros=False"]),
    ],
)  # fmt: skip
def test_the_params_that_jax_prints(primitive, f, args, params):
    assert printed_params(equation(f, *args, primitive=primitive).operation) == params


@pytest.mark.parametrize("x", [jnp.ones((3, 4)), jnp.ones((2, 3, 4))])
def test_each_stands_in_what_jax_prints_of_the_program(x):
    w = jnp.ones((4, 5))
    program = jaxviz.trace(lambda w, x: jnp.sum(jax.nn.softmax(x @ w)[..., :2], axis=-1, keepdims=True))(w, x)
    text = " ".join(str(program.jaxpr).split())
    found = [param for e in program.equations for param in printed_params(e.operation)]
    assert len(found) > 8
    assert [param for param in found if param not in text] == []


def test_a_program_inside_a_value_is_a_hole():
    def solve(a):
        return lax.custom_linear_solve(lambda x: a * x, jnp.ones(3), lambda _, b: b / a)

    [_, programs] = printed_params(equation(solve, 2.0, primitive="custom_linear_solve").operation)
    assert programs.startswith("jaxprs=_LinearSolveTuple(matvec={}, vecmat=None, solve={}")
