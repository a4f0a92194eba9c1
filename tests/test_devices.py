"""Every transform against jax's own, on programs that run on eight devices."""

from collections import Counter
from contextlib import nullcontext
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from device_programs import CASES, MESH_OF
from jax.extend import core as jex_core
from jax.sharding import AxisType
from test_nestings import NESTINGS, inexact, total
from test_parity import assert_same
from test_parity import seeds as plain_seeds

import jaxviz
from jaxviz.derivation import STAGES, type_name
from jaxviz.ir.typecheck import check_program

cases = pytest.mark.parametrize("case", CASES, ids=str)


def seeds(like, tangent):
    """Tangents or cotangents that lie where their values do, if their types say where."""

    def put(x, seed):
        if seed.dtype == jax.dtypes.float0 or AxisType.Explicit not in jax.typeof(x).sharding.mesh.axis_types:
            return seed
        return jax.device_put(seed, x.sharding)

    return jax.tree.map(put, like, plain_seeds(like, tangent))


def held(pull):
    return Counter(type_name(jax.typeof(x)) for x in jax.tree.leaves(pull))


@cases
def test_vjp_and_residuals(case):
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


@cases
def test_jvp(case):
    tangents = seeds(case.args, tangent=True)
    if case.forward:
        assert_same(jaxviz.jvp(case.fun, case.args, tangents), jax.jvp(case.fun, case.args, tangents))


def where(case):
    return jax.set_mesh(MESH_OF[case.name]) if case.name in MESH_OF else nullcontext()


# One nesting for each program, in turn: all of them for all would take ten minutes.
NESTED = [(case, NESTINGS[i % len(NESTINGS)]) for i, case in enumerate(CASES)]
NESTED += [(CASES[0], nest) for nest in NESTINGS] + [(CASES[-1], nest) for nest in NESTINGS]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "nest"), NESTED, ids=[f"{case}-{nest.__name__}" for case, nest in NESTED])
def test_inside(case, nest):
    """In loops, branches, checkpoints and calls."""
    with where(case):
        f = partial(nest, case)
        want, jax_pull = jax.vjp(f, *case.args)
        got, pull = jaxviz.vjp(f, *case.args)
        assert_same(got, want)
        ct = plain_seeds(want, tangent=False)
        assert_same(pull(ct), jax_pull(ct))
        check = jaxviz.derive(f, *case.args, argnums=tuple(range(len(case.args)))).check()
        assert check, check


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in CASES if c.vmaps], ids=str)
def test_vmap(case):
    args = jax.tree.map(lambda x: jnp.stack([x, x[..., ::-1] if x.ndim else 2.0 * x]), case.args)
    floats = tuple(i for i, a in enumerate(case.args) if inexact(a))
    loss = lambda *args: total(case, args)
    of_all = lambda vmap: lambda *args: jnp.sum(vmap(loss)(*args))
    with where(case):
        assert_same(jaxviz.vmap(case.fun)(*args), jax.vmap(case.fun)(*args))
        assert_same(jaxviz.vmap(jaxviz.grad(loss, floats))(*args), jax.vmap(jax.grad(loss, floats))(*args))
        assert_same(jaxviz.grad(of_all(jaxviz.vmap), floats)(*args), jax.grad(of_all(jax.vmap), floats)(*args))
