"""Programs written with other libraries, compared with jax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from library_programs import LIBRARY_CASES
from more_library_programs import FORWARD_ONLY_CASES, MORE_LIBRARY_CASES
from short_runs import short
from test_parity import seeds

import jaxviz
from jaxviz.derivation import type_name

pytestmark = pytest.mark.slow
cases = pytest.mark.parametrize("case", LIBRARY_CASES, ids=str)
all_cases = pytest.mark.parametrize("case", [*LIBRARY_CASES, *MORE_LIBRARY_CASES], ids=str)


def assert_close(got, want):
    """Same structure and types, and values within a solver's tolerance."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert type_name(jax.typeof(g)) == type_name(jax.typeof(w))
        if jnp.issubdtype(jax.typeof(w).dtype, jnp.number):
            np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-4)


def everything(case):
    return tuple(range(len(case.args)))


@pytest.mark.sweep
@all_cases
def test_value_and_cotangents(case):
    want, jax_pull = jax.vjp(case.fun, *case.args)
    got, pull = jaxviz.vjp(case.fun, *case.args)
    assert_close(got, want)
    ct = seeds(want, tangent=False)
    assert_close(pull(ct), jax_pull(ct))


@pytest.mark.sweep
@cases
def test_forward_mode(case):
    tangents = seeds(case.args, tangent=True)
    if case.forward:
        assert_close(jaxviz.jvp(case.fun, case.args, tangents), jax.jvp(case.fun, case.args, tangents))
        return
    for jvp in (jax.jvp, jaxviz.jvp):
        with pytest.raises(TypeError, match="forward-mode"):
            jvp(case.fun, case.args, tangents)


@pytest.mark.parametrize("case", short(FORWARD_ONLY_CASES, 2), ids=str)
def test_reverse_mode_is_refused_as_by_jax(case):
    tangents = seeds(case.args, tangent=True)
    assert_close(jaxviz.jvp(case.fun, case.args, tangents), jax.jvp(case.fun, case.args, tangents))
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work") as of_jax:
        jax.vjp(case.fun, *case.args)[1](seeds(case.fun(*case.args), tangent=False))
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work") as ours:
        jaxviz.vjp(case.fun, *case.args)[1](seeds(case.fun(*case.args), tangent=False))
    assert str(of_jax.value).splitlines()[0] in str(ours.value)


@pytest.mark.parametrize(
    "case",
    [*short(LIBRARY_CASES, 2), *short(MORE_LIBRARY_CASES, 3)],
    ids=str,
)
def test_residuals(case):
    derivation = jaxviz.derive(case.fun, *case.args, argnums=everything(case))
    check = derivation.check()
    assert check.agrees, check
    assert len(derivation.residuals.table(limit=None).splitlines()) > len(derivation.residuals)
    assert all(r.location.line > 0 for r in derivation.residuals)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "case", LIBRARY_CASES[::2], ids=str
)  # compiling takes long, and adds little to the values above
def test_compiled(case):
    def total(grad):
        f = lambda *args: sum(
            jnp.sum(x) for x in jax.tree.leaves(case.fun(*args)) if jnp.issubdtype(x.dtype, jnp.floating)
        )
        return jax.jit(lambda *args: grad(f)(*args))(*case.args)

    if not all(jnp.issubdtype(x.dtype, jnp.floating) for x in jax.tree.leaves(case.args[0])):
        pytest.fail("the first argument of every program of the table can be differentiated")
    assert_close(total(jaxviz.grad), total(jax.grad))
