"""The function that `vjp` returns behaves like JAX's: residuals that are arguments, references, structure, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import api

import jaxviz

X, W, B = jnp.linspace(0.5, 1.5, 3), jnp.linspace(-1.0, 1.0, 3), jnp.ones(3)


def loss(params, x):
    return jnp.sum(jnp.tanh(params["w"] * x) + params["b"] * 2.0)


PARAMS = {"w": W, "b": B}


def both(fun, *args, **options):
    return jax.vjp(fun, *args, **options)[1], jaxviz.vjp(fun, *args, **options)[1]


def shown(residuals):
    return jax.tree.map(lambda x: jax.typeof(x).str_short(), residuals)


def kinds(residuals):
    leaves = jax.tree.leaves(residuals, is_leaf=lambda x: isinstance(x, api.NotNeeded))
    return [isinstance(x, api.NotNeeded) for x in leaves]


@pytest.mark.parametrize(
    ("fun", "args"),
    [
        (loss, (PARAMS, X)),
        (lambda x, y: x * y, (X, W)),
        (jnp.sin, (X,)),
        (lambda x: x, (X,)),
        (lambda xs: [xs[0] * xs[1], xs[2]], ([X, W, 2.0],)),
        (lambda x, n: x * n, (X, 3)),
    ],
    ids=["loss", "product", "sine", "identity", "list", "integer"],
)
def test_it_holds_the_arguments_that_are_residuals_and_the_others_as_jax_does(fun, args):
    theirs, ours = both(fun, *args)
    assert shown(ours.args_res) == shown(theirs.args_res)
    assert sorted(shown(ours.opaque_residuals)) == sorted(shown(theirs.opaque_residuals))
    assert kinds(ours.args_res) == kinds(theirs.args_res)


def test_arguments_can_be_taken_out_and_put_back_also_across_jit():
    @jax.jit
    def forward(x, w):
        y, pull = jaxviz.vjp(lambda x, w: jnp.sum(jnp.sin(x) * w), x, w)
        pull.args_res = [None, None]
        return y, pull

    @jax.jit
    def backward(pull, x, w):
        pull.args_res = [x, w]
        return pull(jnp.float32(1.0))

    _, pull = forward(X, W)
    jax.tree.map(np.testing.assert_allclose, backward(pull, X, W), (jnp.cos(X) * W, jnp.sin(X)))


def test_cotangents_are_added_to_references():
    _, pull = jaxviz.vjp(loss, PARAMS, X)
    want = pull(jnp.float32(2.0))
    total = jax.new_ref(jnp.ones(3))
    (params, x) = pull.with_refs({"w": total, "b": api.DontWant()}, api.GradValue())(jnp.float32(2.0))
    assert type(params["w"]).__name__ == "GradRef"
    assert type(params["b"]).__name__ == "DidntWant"
    np.testing.assert_allclose(x, want[1])
    np.testing.assert_allclose(total[...], 1.0 + want[0]["w"])


def test_what_nobody_wants_is_not_computed():
    def products(pull, *wanted):
        jaxpr = jax.make_jaxpr(lambda ct: pull.with_refs(*wanted)(ct)[-1])(X)
        return [e.primitive.name for e in jaxpr.eqns].count("mul")

    f = lambda x, w: jnp.sin(x) * jnp.cos(w)
    _, of_both = jaxviz.vjp(f, X, W)
    _, of_one = jaxviz.vjp(lambda w: f(X, w), W)
    alone = products(of_one, api.GradValue())
    assert products(of_both, api.DontWant(), api.GradValue()) == alone
    assert products(of_both, api.GradValue(), api.GradValue()) > alone


def test_a_reference_of_another_shape_is_refused():
    theirs, pull = both(jnp.sin, X)
    with pytest.raises(ValueError, match="shape") as want:
        theirs.with_refs(jax.new_ref(jnp.ones(2)))(X)
    with pytest.raises(ValueError, match="shape") as got:
        pull.with_refs(jax.new_ref(jnp.ones(2)))(X)
    assert str(got.value) == str(want.value)
    with pytest.raises(Exception, match="tree"):
        jaxviz.vjp(loss, PARAMS, X)[1].with_refs(api.GradValue())(1.0)


def test_it_is_a_pytree_with_its_residuals_as_leaves():
    theirs, ours = both(loss, PARAMS, X)
    assert sorted(shown(jax.tree.leaves(ours))) == sorted(shown(jax.tree.leaves(theirs)))
    rebuilt = jax.tree.map(lambda x: x, ours)
    jax.tree.map(np.testing.assert_allclose, rebuilt(1.0), theirs(1.0))


def test_one_cotangent_alone():
    theirs, ours = both(lambda x, w: (x, w), X, W)
    with pytest.raises(TypeError) as want:
        theirs(X, W)
    with pytest.raises(TypeError) as got:
        ours(X, W)
    assert str(got.value) == str(want.value)


def test_its_jaxpr_is_the_linear_program():
    _, pull = jaxviz.vjp(jnp.sin, X)
    assert [e.primitive.name for e in pull.jaxpr.eqns] == ["mul"]


@pytest.mark.slow
def test_second_derivatives_go_through_it():
    f = lambda x: jnp.sum(jnp.sin(x) ** 3)
    np.testing.assert_allclose(
        jax.jacrev(lambda x: jaxviz.vjp(f, x)[1](1.0)[0])(X), jax.hessian(f)(X), rtol=1e-5, atol=1e-6
    )


def test_arguments_may_be_left_out_of_the_differentiation_or_of_what_is_saved():
    f = lambda x, w: jnp.sum(jnp.sin(x) * w)
    _, pull = jaxviz.vjp(f, X, W, in_nzs=(True, False))
    x_ct, w_ct = pull(1.0)
    np.testing.assert_allclose(x_ct, jnp.cos(X) * W)
    np.testing.assert_allclose(w_ct, jnp.zeros(3))
    _, pull = jaxviz.vjp(f, X, W, saveable_args=(True, False))
    assert len(jax.tree.leaves(pull.args_res)) == 0
    pull.args_res[1] = W
    np.testing.assert_allclose(pull(1.0)[0], x_ct)
    _, push = jaxviz.linearize(lambda x, w: (x * w, w), X, W, in_nzs=(True, False))
    assert jax.tree.leaves(push.out_nzs) == [True, False]


def test_a_cotangent_outlives_the_transpose_of_a_jit_that_takes_its_argument():
    """The function's argument is donated, not the cotangent of its result."""
    triple = jax.jit(lambda x: 3.0 * x, donate_argnums=0)
    for m in (jax, jaxviz):
        _, pull = m.vjp(triple, X + 0.0)
        ct = W + 0.0
        np.testing.assert_allclose(pull(ct)[0], 3.0 * W)
        np.testing.assert_allclose(pull(ct)[0], 3.0 * W)
