"""The user's line of each equation, and of each equation derived from it."""

import jax.numpy as jnp

import jaxviz


def loss(x):
    y = jnp.sin(x)
    return jnp.sum(y * 2.0)


def test_an_equation_and_what_is_derived_from_it_have_the_users_line():
    first = loss.__code__.co_firstlineno
    derivation = jaxviz.derive(loss, jnp.ones(3))
    lines = [(e.primitive.name, e.location.file, e.location.line - first) for e in derivation.primal.equations]
    assert lines == [("sin", __file__, 1), ("mul", __file__, 2), ("reduce_sum", __file__, 2)]
    assert {e.location.line - first for e in derivation.backward.equations} == {1, 2}
    assert str(derivation.primal.equations[0].location) == f"{__file__}:{first + 1}"


def test_an_equation_of_no_line_has_none():
    equation = jaxviz.trace(jnp.sin)(1.0).equations[0]
    assert type(equation)(equation.operation, equation.invars, equation.outvars).location is None
