"""Tracers that a function stores: where it is said."""

import types
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import Primitive

import jaxviz


def test_what_is_stored_while_jax_traces_for_a_check_is_said_at_a_line_of_the_users():
    model = types.SimpleNamespace(h=None)

    def loss(x):
        model.h = jnp.sin(x)
        return jnp.sum(model.h * x)

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        derivation = jaxviz.derive(loss, jnp.ones(3))
        in_trace = [w.lineno for w in shown]
        shown.clear()
        derivation.check()
    first = loss.__code__.co_firstlineno
    assert in_trace == [first + 1]
    assert [(w.filename, w.lineno) for w in shown] == [(__file__, first)]


def test_a_library_may_keep_a_program_whose_constants_it_replaces():
    """As in JAX, which does not look into it: lineax's `linear_solve` has one among its params."""
    kept = []
    jax.make_jaxpr(lambda x: kept.append(jnp.sin(x)) or x)(1.0)
    held = jax.make_jaxpr(lambda x: x * kept[0])(1.0)
    solve_p = Primitive("solve")
    solve_p.def_abstract_eval(lambda x, held: x)
    f = lambda x: solve_p.bind(x, held=held)
    assert [e.primitive for e in jax.make_jaxpr(f)(1.0).eqns] == [solve_p]
    assert [e.primitive for e in jaxviz.trace(f)(1.0).equations] == [solve_p]
    with pytest.raises(jax.errors.UnexpectedTracerError):
        jaxviz.trace(jax.jit(lambda x: x * kept[0]))(1.0)
