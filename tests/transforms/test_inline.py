"""Calls replaced by what they call."""

import jax
import jax.numpy as jnp
import pytest
from laws import assert_same
from programs import CASES

import jaxviz
from jaxviz.higher_order.typecheck import check_program
from jaxviz.ir import compat
from jaxviz.ir.emit import as_function
from jaxviz.transforms.inline import inlined

CALLS = (compat.jit_p, compat.remat_p)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[::3], ids=str)
def test_the_same_is_computed_without_calls(case):
    program = jaxviz.trace(case.fun)(*case.args)
    plain = inlined(program, CALLS)
    check_program(plain)
    assert not any(e.primitive in CALLS for _, e in plain.walk())
    leaves = jax.tree.leaves(case.args)
    assert_same(as_function(plain)(*leaves), as_function(program)(*leaves))


def test_a_program_without_calls_is_returned_as_it_is():
    program = jaxviz.trace(lambda x: jnp.sin(x) * 2.0)(1.0)
    assert inlined(program, CALLS) is program


def test_a_function_that_is_called_twice():
    g = jax.jit(lambda x: jnp.sin(x) * jnp.arange(3.0))
    program = inlined(jaxviz.trace(lambda x: g(g(x)))(jnp.ones(3)), CALLS)
    assert [e.primitive.name for e in program.equations].count("sin") == 2
    check_program(program)
    assert program.equations[0].source is not None
