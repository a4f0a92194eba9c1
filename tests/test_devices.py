"""What of several devices is in no table: gradients mapped over them, and compositions of transforms."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from device_programs import BODIES, GRID, M, X, mapped
from jax import lax
from jax.sharding import PartitionSpec as P
from laws import assert_same, side_by_side
from nestings import inexact

import jaxviz


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "run"),
    [pytest.param(entry, jax.jit, id=entry[0]) for entry in BODIES]
    + [
        pytest.param(entry, lambda f: f, marks=pytest.mark.slow(sweep=True), id=f"{entry[0]}, operation by operation")
        for entry in BODIES[::5]  # outside `jit`, JAX compiles each operation on eight devices separately
    ],
)
def test_gradient_on_each_device(entry, run):
    """The other order: a gradient is mapped over the devices, outside `jit` and inside."""
    _, body, in_specs, mesh, check_vma, args = entry
    specs = in_specs if isinstance(in_specs, tuple) and not isinstance(in_specs, P) else (in_specs,)
    floats = tuple(i for i, a in enumerate(args) if inexact(a))
    loss = lambda *args: sum(jnp.sum(y) for y in jax.tree.leaves(body(*args)))

    def on_each(m, *args):
        f = lambda *args: m.grad(loss, floats)(*args)
        return mapped(in_specs, tuple(specs[i] for i in floats), mesh, check_vma=check_vma)(f)(*args)

    side_by_side(on_each, *args, run=run)


rows = partial(mapped, P("i"), P("i"))
columns = partial(mapped, P("j"), P("j"), GRID)

COMPOSITIONS = {
    "pmax of what is not differentiated": lambda m: m.grad(
        lambda x: rows()(lambda x: jnp.exp(x - lax.pmax(lax.stop_gradient(x), "i")))(x).sum()
    )(X),
    "pmin under pmap": lambda m: m.grad(
        lambda x: jax.pmap(lambda x: x * lax.pmin(lax.stop_gradient(x), "i"), axis_name="i")(x).sum()
    )(M),
    "spmd_axis_name": lambda m: m.vmap(
        lambda x: columns()(lambda x: jnp.sin(x) * lax.psum(x, "j"))(x), spmd_axis_name="i"
    )(M),
    "gradient with spmd_axis_name": lambda m: m.grad(
        lambda y: m.vmap(lambda x: columns()(lambda x: jnp.sin(x) * lax.psum(x, "j"))(x), spmd_axis_name="i")(y).sum()
    )(M),
    "hessian": lambda m: m.hessian(lambda x: rows()(lambda x: jnp.sin(x) * lax.psum(x, "i"))(x).sum())(X[:8]),
    "jacobian of pmap": lambda m: m.jacrev(
        lambda x: jax.pmap(lambda x: jnp.sin(x) * lax.psum(x, "i"), axis_name="i")(x).sum(1)
    )(M),
    "gradient of a gradient": lambda m: m.grad(
        lambda x: m.grad(lambda x: rows()(lambda x: jnp.sin(x) * lax.psum(x**3, "i"))(x).sum())(x).sum()
    )(X),
    "linear_transpose": lambda m: m.linear_transpose(rows()(lambda x: lax.psum(x, "i") * jnp.ones(2) + x), X)(X),
    "along a path": lambda m: m.grad(lambda x: rows()(jnp.sin)(x).sum() if x[0] > 0 else x.sum())(X),
    "one argument for all": lambda m: m.grad(
        lambda w: jax.pmap(lambda w, x: jnp.sum(w * x), in_axes=(None, 0))(w, M).sum()
    )(M[0]),
    # JAX differentiates this, and trusts that the devices agree.
    "one result for all": lambda m: m.grad(
        lambda x: jax.pmap(lambda x: lax.psum(jnp.sum(jnp.sin(x)), "i"), axis_name="i", out_axes=None)(x)
    )(M),
}


LONG = ("hessian", "gradient of a gradient")


@pytest.mark.slow
@pytest.mark.parametrize(
    "compose",
    [pytest.param(c, id=n, marks=[pytest.mark.slow(sweep=True)] * (n in LONG)) for n, c in COMPOSITIONS.items()],
)
def test_composed(compose):
    assert_same(compose(jaxviz), compose(jax))


def test_pmax_has_no_derivative():
    f = lambda x: rows()(lambda x: x * lax.pmax(x, "i"))(x).sum()
    for m in (jax, jaxviz):
        with pytest.raises(NotImplementedError, match="Differentiation rule for 'pmax' not implemented"):
            m.grad(f)(X)


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_an_argument_that_is_donated_and_kept():
    """As in JAX the array has been deleted when the gradient reads it; the note says why."""
    square = jax.jit(lambda x: x * x, donate_argnums=0)
    for m in (jax, jaxviz):
        x = M + 0.0
        _, pull = m.vjp(square, x)
        with pytest.raises(RuntimeError, match="Array has been deleted") as caught:
            pull(M)
    assert "The gradient saves arrays that were donated to a jitted function: f32[8,4]" in str(caught.value.__notes__)
