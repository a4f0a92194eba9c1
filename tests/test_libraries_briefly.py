"""Some programs of each library, by name: importing them takes a second and a half, which only the worker that runs these tests pays."""

from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_parity import seeds

import jaxviz
from jaxviz.derivation import type_name

pytestmark = pytest.mark.slow

NAMES = """
    flax_transformer_scanned_and_rematted linen_decoder_with_named_policy nnx_batch_norm_and_dropout_state
    haiku_resnet haiku_vector_quantizer equinox_gru equinox_mlp equinox_bounded_loop
    equinox_checkpointed_loop_with_buffers diffrax_direct_adjoint diffrax_backsolve_of_a_neural_ode
    lineax_conjugate_gradients optimistix_minimise optax_cross_entropy optax_inner_loop numpyro_log_density
    jax_odeint jax_dot_product_attention jax_custom_linear_solve jax_resize ode_solver_of_ones_own sparse_products
    grouped_query_attention kalman_filter nested_checkpointed_scans images
""".split()


def named(name):
    first, more = import_module("library_programs"), import_module("more_library_programs")
    tables = first.LIBRARY_CASES, more.MORE_LIBRARY_CASES, more.FORWARD_ONLY_CASES
    (found,) = (case for table in tables for case in table if str(case) == name)
    return found


def assert_close(got, want):
    """Same structure and types, and values within a solver's tolerance."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert type_name(jax.typeof(g)) == type_name(jax.typeof(w))
        if jnp.issubdtype(jax.typeof(w).dtype, jnp.number):
            np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-4)


def residuals_are_those_of_jax(case):
    derivation = jaxviz.derive(case.fun, *case.args, argnums=tuple(range(len(case.args))))
    check = derivation.check()
    assert check.agrees, check
    assert len(derivation.residuals.table(limit=None).splitlines()) > len(derivation.residuals)
    assert all(r.location.line > 0 for r in derivation.residuals)


def reverse_mode_is_refused(case):
    tangents = seeds(case.args, tangent=True)
    assert_close(jaxviz.jvp(case.fun, case.args, tangents), jax.jvp(case.fun, case.args, tangents))
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work") as of_jax:
        jax.vjp(case.fun, *case.args)[1](seeds(case.fun(*case.args), tangent=False))
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work") as ours:
        jaxviz.vjp(case.fun, *case.args)[1](seeds(case.fun(*case.args), tangent=False))
    assert str(of_jax.value).splitlines()[0] in str(ours.value)


@pytest.mark.parametrize("name", NAMES)
def test_residuals(name):
    residuals_are_those_of_jax(named(name))


def test_reverse_mode_is_refused_as_by_jax():
    reverse_mode_is_refused(named("diffrax_forward_mode"))
