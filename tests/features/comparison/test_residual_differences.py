"""Residuals that only one of two versions saves, by expression."""

import jax
import jax.numpy as jnp

import jaxviz

X = jnp.ones((4, 4))
WS = [X] * 3


def loss(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.sum(x)


def renamed(params, h):
    for w in params:
        h = jnp.tanh(h @ w)
    return jnp.sum(h)


def cosine(ws, x):
    for w in ws:
        x = jnp.cos(x @ w)
    return jnp.sum(x)


def test_layers_are_one_row_with_their_expression():
    found = jaxviz.compare(loss, cosine, WS, X)
    changes = {r.what: (r.before, r.after) for r in found.residuals}
    assert changes["sin in the derivative of jnp.cos(x @ w)"] == (0, 3)
    assert sum(after - before for before, after in changes.values()) == len(found.after.residuals) - len(
        found.before.residuals
    )
    assert "`sin in the derivative of jnp.cos(x @ w)`" in " ".join(str(found).split())


def test_equations_that_differ_have_their_expression():
    found = jaxviz.compare(loss, cosine, WS, X)
    assert {(d.what, d.expression, d.count) for d in found.differences()} == {
        ("tanh", "jnp.tanh(x @ w)", 3),
        ("cos", "jnp.cos(x @ w)", 3),
    }


def test_other_names_of_variables_make_no_difference():
    assert jaxviz.compare(loss, renamed, WS, X).is_same
    kept = jaxviz.compare(loss, lambda w, x: 2.0 * renamed(w, x), WS, X).residuals
    assert not [r for r in kept if "tanh" in r.what]


def test_a_checkpoint_is_what_it_no_longer_keeps():
    found = jaxviz.compare(loss, jax.checkpoint(loss), WS, X)
    assert all(r.after < r.before for r in found.residuals if "tanh" in r.what)
    assert (
        sum(r.change for r in found.residuals)
        == found.after.residuals.saved.nbytes - found.before.residuals.saved.nbytes
    )
