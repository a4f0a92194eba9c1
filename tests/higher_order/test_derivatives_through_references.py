"""Values that are differentiated or mapped through mutable references: gradients bit for bit, residuals and lines."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_programs import NOT_BY_JAX, PROGRAMS, W, X
from short_runs import short

import jaxviz

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", short(sorted(PROGRAMS.keys() - NOT_BY_JAX), 2))
def test_gradients_are_bitwise_those_of_jax_and_so_are_residuals(name):
    f = PROGRAMS[name]
    ours, theirs = (jax.jit(m.value_and_grad(f, argnums=(0, 1)))(X, W) for m in (jaxviz, jax))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)
    derivation = jaxviz.derive(f, X, W, argnums=(0, 1))
    check = derivation.check()
    assert check, check
    lines, first = inspect.getsourcelines(f)
    for residual in derivation.residuals:
        assert residual.location.line in range(first, first + len(lines)), residual


@pytest.mark.parametrize("name", sorted(NOT_BY_JAX - {"mapped_scan"}))
def test_what_jax_refuses_has_the_gradient_of_the_function(name):
    f = jax.jit(PROGRAMS[name])
    with pytest.raises((NotImplementedError, AttributeError)):
        jax.grad(f)(X, W)
    ours = jaxviz.grad(f)(X, W)
    step = 1e-2 * jnp.cos(jnp.arange(4.0))
    np.testing.assert_allclose(ours @ step, (f(X + step, W) - f(X - step, W)) / 2, rtol=1e-2)


def test_a_write_for_each_example_in_a_scan_is_refused_as_by_jax():
    """JAX 0.10.2 stores what it writes in the wrong order of axes."""
    f = PROGRAMS["mapped_scan"]
    if "mapped_scan" not in NOT_BY_JAX:
        jaxviz.grad(f)(X, W)
        return
    for m in (jax, jaxviz):
        with pytest.raises(ValueError, match="Invalid shape for `swap`"):
            m.grad(f)(X, W)


MESH = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
LONG = jnp.linspace(0.3, 1.9, 32).reshape(16, 2)


def sharded(body, *specs, **options):
    return jax.shard_map(body, mesh=MESH, in_specs=specs, out_specs=jax.P("i"), **options)


def made_on_each_device(x):
    def body(x):
        r = jax.new_ref(x)
        r[...] = jnp.sin(r[...]) * x
        return r[...]

    return sharded(body, jax.P("i"))(x).sum()


def read_on_each_device(x):
    r = jax.new_ref(x * 2.0)
    return sharded(lambda r, x: jnp.sin(r[...]) * x, jax.P("i"), jax.P("i"))(r, x).sum()


def the_same_on_each_device(x):
    r = jax.new_ref(x[0])
    return sharded(lambda r, x: jnp.sin(r[...]) * x, jax.P(), jax.P("i"))(r, x).sum()


def written_on_each_device(x):
    def body(r, x):
        r[...] = jnp.sin(r[...]) * x
        return x * 2.0

    r = jax.new_ref(x)
    y = sharded(body, jax.P("i"), jax.P("i"))(r, x)
    return y.sum() + (r[...] * x).sum()


@pytest.mark.parametrize("f", [made_on_each_device, read_on_each_device, the_same_on_each_device])
def test_on_several_devices_they_are_those_of_jax(f):
    np.testing.assert_array_equal(*(jax.jit(m.grad(f))(LONG) for m in (jaxviz, jax)))
    check = jaxviz.derive(f, LONG).check(values=False)  # JAX has no such shard_map outside of jit
    assert check, check


def test_one_that_devices_write():
    """JAX 0.10.2 fails."""
    ours = jax.jit(jaxviz.grad(written_on_each_device))(LONG)
    np.testing.assert_allclose(ours, jax.grad(lambda x: (x * 2.0 + jnp.sin(x) * x * x).sum())(LONG), rtol=1e-6)


def test_one_that_has_no_axis_of_unchecked_devices_is_refused():
    def f(x):
        r = jax.new_ref(x[0])
        body = lambda r, x: jnp.sin(r[...]) * x
        return sharded(body, jax.P(), jax.P("i"), check_vma=False)(r, x).sum()

    with pytest.raises(jaxviz.NoRuleError, match="don't mention all manual mesh axes"):
        jax.jit(jaxviz.grad(f))(LONG)
