"""Every transform compared with jax's own, on programs that run on eight devices."""

from collections import Counter
from contextlib import nullcontext
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from device_programs import BODIES, CASES, EXPLICIT, GRID, MESH_OF, M, X, mapped
from jax import lax
from jax.extend import core as jex_core
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from test_nestings import NESTINGS, inexact, total
from test_parity import assert_same, marked, side_by_side
from test_parity import seeds as plain_seeds

import jaxviz
from jaxviz.derivation import STAGES, type_name
from jaxviz.higher_order.typecheck import check_program

cases = pytest.mark.parametrize("case", CASES, ids=str)


def seeds(like, tangent):
    """Tangents or cotangents with the sharding of their values, if their types say so."""

    def put(x, seed):
        if seed.dtype == jax.dtypes.float0 or AxisType.Explicit not in jax.typeof(x).sharding.mesh.axis_types:
            return seed
        return jax.device_put(seed, NamedSharding(EXPLICIT, jax.typeof(x).sharding.spec))

    return jax.tree.map(put, like, plain_seeds(like, tangent))


def where(case):
    return jax.set_mesh(MESH_OF[case.name]) if case.name in MESH_OF else nullcontext()


def held(pull):
    return Counter(type_name(jax.typeof(x)) for x in jax.tree.leaves(pull))


def some(items, n):
    """Every nth of them, for slow tests: outside `jit`, JAX compiles each operation on eight devices separately."""
    return items[::n]


@pytest.mark.parametrize("case", marked(CASES, 1), ids=str)
def test_vjp(case):
    ct = seeds(jax.eval_shape(case.fun, *case.args), tangent=False)

    def pulled(m, args, ct):
        y, pull = m.vjp(case.fun, *args)
        return y, pull(ct)

    with where(case):
        side_by_side(pulled, case.args, ct)


@pytest.mark.sweep
@pytest.mark.parametrize("case", some(CASES, 3), ids=str)
def test_outside_jit(case):
    want, jax_pull = jax.vjp(case.fun, *case.args)
    got, pull = jaxviz.vjp(case.fun, *case.args)
    assert_same(got, want)
    assert held(pull) == held(jax_pull)
    ct = seeds(want, tangent=False)
    assert_same(pull(ct), jax_pull(ct))


@cases
def test_programs(case):
    d = jaxviz.derive(case.fun, *case.args, argnums=tuple(range(len(case.args))))
    assert d.check(), d.check()
    for stage in STAGES:
        check_program(getattr(d, stage))
        jex_core.check_jaxpr(getattr(d, stage).jaxpr.jaxpr)
    check_program(d.linear, [False] * d.n_residuals + [True] * sum(d.nonzeros))


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in CASES if c.forward], ids=str)
def test_jvp(case):
    tangents = seeds(case.args, tangent=True)
    with where(case):
        side_by_side(lambda m, args, tangents: m.jvp(case.fun, args, tangents), case.args, tangents)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "run"),
    [*((entry, jax.jit) for entry in BODIES)]
    + [pytest.param(entry, lambda f: f, marks=pytest.mark.sweep) for entry in some(BODIES, 5)],
    ids=[entry[0] for entry in BODIES] + [f"{entry[0]}, operation by operation" for entry in some(BODIES, 5)],
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


# One nesting per program, in turn: all combinations would take ten minutes.
NESTED = [(case, NESTINGS[i % len(NESTINGS)]) for i, case in enumerate(CASES)]
NESTED += [(CASES[0], nest) for nest in NESTINGS] + [(CASES[-1], nest) for nest in NESTINGS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "nest"),
    [
        pytest.param(
            case,
            nest,
            marks=[pytest.mark.sweep] * (i % 3 > 0 if i < len(CASES) else i % 2),
            id=f"{case}-{nest.__name__}",
        )
        for i, (case, nest) in enumerate(NESTED)
    ],
)
def test_inside(case, nest):
    """In loops, branches, checkpoints and calls."""
    f = partial(nest, case)

    def pulled(m, args):
        y, pull = m.vjp(f, *args)
        return y, pull(plain_seeds(y, tangent=False))

    with where(case):
        side_by_side(pulled, case.args)
        check = jaxviz.derive(f, *case.args, argnums=tuple(range(len(case.args)))).check()
        assert check, check


@pytest.mark.slow
@pytest.mark.parametrize("case", marked([c for c in CASES if c.vmaps], third=2), ids=str)
def test_vmap(case):
    args = jax.tree.map(lambda x: jnp.stack([x, x[..., ::-1] if x.ndim else 2.0 * x]), case.args)
    floats = tuple(i for i, a in enumerate(case.args) if inexact(a))
    loss = lambda *args: total(case, args)
    all_three = lambda m, *args: (
        m.vmap(case.fun)(*args),
        m.vmap(m.grad(loss, floats))(*args),
        m.grad(lambda *args: jnp.sum(m.vmap(loss)(*args)), floats)(*args),
    )
    with where(case):
        side_by_side(all_three, *args)


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


@pytest.mark.values
@pytest.mark.parametrize(
    "compose", [pytest.param(c, id=n, marks=[pytest.mark.sweep] * (n in LONG)) for n, c in COMPOSITIONS.items()]
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
