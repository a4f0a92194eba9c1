"""Cotangents that are accumulated in a user's reference: as JAX does it, in the same places."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxviz

W = jnp.linspace(-1.0, 1.0, 48).reshape(3, 4, 4)
X = jnp.linspace(0.5, 2.0, 4)
VALUE = jax.ad.GradValue()
STATIC_SLICES = jax.__version_info__ >= (0, 11)
"""JAX 0.10.2 fails where a slice without strides is accumulated in place."""


def layers(w, x):
    for i in range(3):
        x = jnp.tanh(w[i] @ x)
    return x.sum()


def in_scan(w, x):
    return lax.scan(lambda h, w: (jnp.tanh(w @ h), None), x, w)[0].sum()


def closed_over_by_scan(w, x):
    return lax.scan(lambda h, _: (jnp.tanh(w[0] @ h), None), x, None, length=3)[0].sum()


def in_jit(w, x):
    return jax.jit(layers)(w, x)


def in_cond(w, x):
    return lax.cond(x[0] > 0, layers, lambda w, x: (w * 2.0).sum() + x.sum(), w, x)


def used_several_times(w, x):
    return layers(w, x) + (w**2).sum() + layers(w * 2.0, x)


def in_checkpoint(w, x):
    return jax.checkpoint(in_scan)(w, x)


def by_iteration(w, x):
    return lax.fori_loop(0, 3, lambda i, h: jnp.tanh(w[i] @ h), x).sum()


def gathered(w, x):
    return jnp.sin(w[jnp.array([0, 2, 0])]).sum() + x.sum()


def clipped_gather(w, x):
    return jnp.sin(w.at[jnp.array([0, 7])].get(mode="clip")).sum() + x.sum()


def carried(w, x):
    return lax.scan(lambda w, _: (jnp.sin(w), None), w, None, length=2)[0].sum() + x.sum()


def also_a_result(w, x):
    return w, x.sum()


SLICES = (layers, closed_over_by_scan, in_jit, in_cond, used_several_times)
OTHERS = (in_scan, in_checkpoint, by_iteration, gathered, carried)
PROGRAMS = (*OTHERS, *SLICES) if STATIC_SLICES else OTHERS


def pull(module, f, request=VALUE):
    """The cotangents of `f`, that of the first argument in a reference."""

    def run(w, x, start):
        y, f_vjp = module.vjp(f, w, x)
        ref = jax.new_ref(start)
        f_vjp.with_refs(ref, request)(jax.tree.map(jnp.ones_like, y))
        return jax.freeze(ref)

    return run


@pytest.mark.parametrize("f", PROGRAMS)
def test_it_is_accumulated_where_jax_does_it(f):
    start = W * 0.1
    ours, theirs = (pull(m, f) for m in (jaxviz, jax))
    np.testing.assert_array_equal(jax.jit(ours)(W, X, start), jax.jit(theirs)(W, X, start))
    mine, jaxs = (str(jax.make_jaxpr(g)(W, X, start)) for g in (ours, theirs))
    for what in ("+=", "scatter-add", "pad["):
        assert mine.count(what) == jaxs.count(what), (what, mine, jaxs)


@pytest.mark.slow
@pytest.mark.parametrize("f", [*SLICES, *OTHERS, clipped_gather])
def test_it_is_the_cotangent(f):
    np.testing.assert_allclose(pull(jaxviz, f)(W, X, W * 0.0), jaxviz.grad(f)(W, X), rtol=1e-6)


def test_a_result_adds_its_cotangent():
    np.testing.assert_array_equal(pull(jaxviz, also_a_result)(W, X, W), W + 1.0)


def test_slices_leave_no_dense_cotangent():
    backward = str(jax.make_jaxpr(pull(jaxviz, in_jit))(W, X, W))
    assert "pad[" not in backward
    assert backward.count("+=") == 3


def test_a_cotangent_of_another_type_is_added_as_a_value():
    ref = jax.new_ref(jnp.zeros((3, 4, 4), jnp.float32))
    w = W.astype(jnp.bfloat16)
    _, f_vjp = jaxviz.vjp(in_scan, w, X.astype(jnp.bfloat16))
    try:
        f_vjp.with_refs(ref, VALUE)(jnp.bfloat16(1.0))
    except ValueError as error:
        assert "type" in str(error)  # noqa: PT017 - JAX takes such references since 0.11
    else:
        np.testing.assert_allclose(ref[...], jaxviz.grad(in_scan)(w, X.astype(jnp.bfloat16)), rtol=1e-2)


def test_microbatches_are_accumulated_in_one_buffer():
    def step(module):
        def run(w, xs):
            total = jax.new_ref(jnp.zeros_like(w))

            def one(_, x):
                loss, f_vjp = module.vjp(lambda w: in_scan(w, x), w)
                f_vjp.with_refs(total)(jnp.ones_like(loss))
                return None, loss

            _, losses = lax.scan(one, None, xs)
            return jax.freeze(total), losses

        return run

    xs = jnp.stack([X, 2.0 * X, X - 1.0])
    for a, b in zip(jax.jit(step(jaxviz))(W, xs), jax.jit(step(jax))(W, xs), strict=True):
        np.testing.assert_array_equal(a, b)
    assert str(jax.make_jaxpr(step(jaxviz))(W, xs)).count("+=") == 1


def test_the_argument_may_be_a_reference():
    def f(r, x):
        r[...] = jnp.sin(r[...]) * x
        return (r[...] ** 2).sum()

    r, ct = jax.new_ref(X), jax.new_ref(jnp.zeros(4))
    _, f_vjp = jaxviz.vjp(f, r, X)
    f_vjp.with_refs(ct, VALUE)(1.0)
    np.testing.assert_allclose(ct[...], jaxviz.grad(lambda x: ((jnp.sin(x) * X) ** 2).sum())(X), rtol=1e-6)
    with pytest.raises(ValueError, match="with_refs"):
        jaxviz.vjp(f, jax.new_ref(X), X)[1](1.0)


def test_what_is_not_wanted_is_not_computed():
    unwanted = jax.ad.DontWant()

    def run(w, x):
        _, f_vjp = jaxviz.vjp(in_scan, w, x)
        return f_vjp.with_refs(unwanted, VALUE)(1.0)[1]

    assert "+=" not in str(jax.make_jaxpr(run)(W, X))
    np.testing.assert_allclose(run(W, X), jax.grad(in_scan, 1)(W, X), rtol=1e-6)
