"""Gradients summed over named axes as they form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxviz

X = jnp.linspace(0.1, 1.0, 12).reshape(4, 3)
W = jnp.array([0.5, -1.0, 2.0])


@jax.custom_vjp
def scaled(w, x):
    return jnp.sum(w * x)


scaled.defvjp(lambda w, x: (scaled(w, x), (w, x)), lambda res, ct: (2.0 * ct * res[1], ct * res[0]))

LOSSES = {
    "two uses": lambda w, x: jnp.sum(jnp.tanh(w * x)) * jnp.sum(jnp.sin(w)),
    "the same result for every example": lambda w, x: jnp.sum(jnp.sin(w)),
    "psum": lambda w, x: jnp.sum(w * w * x / lax.psum(jnp.sum(jnp.sin(x) * w), "i")),
    "psum of what is the same": lambda w, x: jnp.sum(lax.psum(w * w, "i") * x),
    "pmean": lambda w, x: jnp.sum((w * x - lax.pmean(w * x, "i")) ** 2),
    "all_gather": lambda w, x: jnp.sum(lax.all_gather(w * x, "i") * x),
    "axis_index": lambda w, x: jnp.sum(w * lax.axis_index("i")),
    "scan": lambda w, x: lax.scan(lambda c, y: (jnp.sin(c * w + x * y), None), w, jnp.arange(3.0))[0].sum(),
    "cond": lambda w, x: lax.cond(x.sum() > 1.5, lambda w: jnp.sin(w).sum(), lambda w: (w * w * x).sum(), w),
    "checkpoint": lambda w, x: jax.checkpoint(lambda w, x: jnp.sum(jnp.sin(w) * x))(w, x),
    "jit": lambda w, x: jax.jit(lambda w, x: jnp.sum(jnp.sin(w) * x))(w, x),
    "custom rule": scaled,
    "closed over": lambda w, x: jnp.sum(jax.jit(lambda: w * x)() * w),
}


@pytest.mark.parametrize("vmap", [jax.vmap, jaxviz.vmap], ids=["jax.vmap", "jaxviz.vmap"])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_the_total_gradient(loss, vmap):
    """In an argument that is not mapped, the gradient of the sum over examples."""
    total = lambda w, xs: jax.vmap(loss, (None, 0), axis_name="i")(w, xs).sum()
    want = jax.grad(total, (0, 1))(W, X)
    summed = vmap(jaxviz.grad(loss, (0, 1), reduce_axes=("i",)), (None, 0), (None, 0), axis_name="i")
    for got, expected in zip(summed(W, X), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    for got, expected in zip(jax.jit(summed)(W, X), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_other_axes_stay_per_example():
    loss = LOSSES["two uses"]
    both = jnp.stack([X, 2.0 * X])
    inner = jaxviz.vmap(jaxviz.grad(loss, reduce_axes=("i",)), (None, 0), None, axis_name="i")
    got = jaxviz.vmap(inner, (None, 0), axis_name="j")(W, both)
    want = jnp.stack([jax.grad(lambda w: jax.vmap(loss, (None, 0))(w, xs).sum())(W) for xs in both])
    np.testing.assert_allclose(got, want, rtol=1e-5)
    without = jaxviz.vmap(jaxviz.grad(loss), (None, 0), axis_name="i")(W, X)
    np.testing.assert_allclose(without, jax.vmap(jax.grad(loss), (None, 0))(W, X), rtol=1e-5)


def test_vjp_and_value_and_grad():
    loss = LOSSES["two uses"]

    def pulled(w, x):
        value, pull = jaxviz.vjp(lambda w: loss(w, x), w, reduce_axes=("i",))
        return value, pull(jnp.ones(()))[0]

    values, total = jaxviz.vmap(pulled, (None, 0), (0, None), axis_name="i")(W, X)
    again, same = jaxviz.vmap(jaxviz.value_and_grad(loss, reduce_axes=("i",)), (None, 0), (0, None), axis_name="i")(
        W, X
    )
    np.testing.assert_allclose(values, again)
    np.testing.assert_allclose(total, same)
    np.testing.assert_allclose(total, jax.grad(lambda w: jax.vmap(loss, (None, 0))(w, X).sum())(W), rtol=1e-5)


def test_one_axis_may_be_given_by_its_name_alone():
    loss = LOSSES["two uses"]
    one, listed = (
        jaxviz.vmap(jaxviz.grad(loss, reduce_axes=axes), (None, 0), None, axis_name="rows")(W, X)
        for axes in ("rows", ("rows",))
    )
    np.testing.assert_array_equal(one, listed)


def test_an_axis_that_is_not_in_scope():
    with pytest.raises(NameError, match="unbound axis name: i"):
        jaxviz.grad(LOSSES["scan"], reduce_axes=("i",))(W, X[0])


def test_what_jit_does_not_tell_is_asked_for():
    inside = jax.jit(jaxviz.grad(LOSSES["two uses"], reduce_axes=("i",)))
    with pytest.raises(ValueError, match="whether w differs along those axes"):
        jax.vmap(inside, (None, 0), axis_name="i")(W, X)


def sharded(f, check_vma):
    """A function of what is the same on each device, and of its own part, over a mesh of one device or more."""
    n = min(len(jax.devices()), 4)
    mesh = jax.make_mesh((n,), ("i",), devices=jax.devices()[:n], axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec
    return jax.shard_map(f, mesh=mesh, in_specs=(spec(), spec("i")), out_specs=spec("i"), check_vma=check_vma)


@pytest.mark.parametrize("jit", [pytest.param(lambda f: f, marks=pytest.mark.slow), jax.jit], ids=["eager", "jit"])
def test_inside_shard_map_the_types_sum(jit):
    loss = LOSSES["two uses"]
    total = lambda grad, **options: jit(sharded(lambda w, x: grad(loss, **options)(w, x[0])[None], True))(W, X)
    np.testing.assert_allclose(total(jaxviz.grad, reduce_axes=("i",)), total(jax.grad), rtol=1e-5)
    np.testing.assert_allclose(total(jaxviz.grad), total(jax.grad), rtol=1e-5)


def test_inside_shard_map_without_types_there_is_no_telling():
    with pytest.raises(ValueError, match="which pmap does not tell, nor shard_map with check_vma=False"):
        sharded(lambda w, x: jaxviz.grad(LOSSES["two uses"], reduce_axes=("i",))(w, x[0])[None], False)(W, X)
