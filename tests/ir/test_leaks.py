"""Tracers that a function stores: where it is said."""

import types
import warnings

import jax.numpy as jnp

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
