"""Programs written with other libraries, compared with jax."""

import jax
import jax.numpy as jnp
import pytest
from library_programs import LIBRARY_CASES
from more_library_programs import FORWARD_ONLY_CASES, MORE_LIBRARY_CASES
from test_libraries_briefly import assert_close, residuals_are_those_of_jax, reverse_mode_is_refused
from test_parity import seeds

import jaxviz

pytestmark = pytest.mark.sweep  # importing all of these libraries alone takes a second and a half
cases = pytest.mark.parametrize("case", LIBRARY_CASES, ids=str)
all_cases = pytest.mark.parametrize("case", [*LIBRARY_CASES, *MORE_LIBRARY_CASES], ids=str)


@all_cases
def test_value_and_cotangents(case):
    want, jax_pull = jax.vjp(case.fun, *case.args)
    got, pull = jaxviz.vjp(case.fun, *case.args)
    assert_close(got, want)
    ct = seeds(want, tangent=False)
    assert_close(pull(ct), jax_pull(ct))


@cases
def test_forward_mode(case):
    tangents = seeds(case.args, tangent=True)
    if case.forward:
        assert_close(jaxviz.jvp(case.fun, case.args, tangents), jax.jvp(case.fun, case.args, tangents))
        return
    for jvp in (jax.jvp, jaxviz.jvp):
        with pytest.raises(TypeError, match="forward-mode"):
            jvp(case.fun, case.args, tangents)


@pytest.mark.parametrize("case", FORWARD_ONLY_CASES, ids=str)
def test_reverse_mode_is_refused_as_by_jax(case):
    reverse_mode_is_refused(case)


@all_cases
def test_residuals(case):
    residuals_are_those_of_jax(case)


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
