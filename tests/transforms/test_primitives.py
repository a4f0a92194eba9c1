"""The sweep: every primitive that JAX can differentiate, in several dtypes, against jax."""

import contextlib
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from primitives import COVERED, LEFT_OUT, SAMPLES, differentiable
from test_parity import assert_same, seeds

import jaxviz
from jaxviz.derivation import type_name

SWEEP = [(s, d) for s in SAMPLES for d in s.dtypes]
sweep = pytest.mark.parametrize(("sample", "dtype"), SWEEP, ids=[f"{s}-{d}" for s, d in SWEEP])


def test_every_primitive_is_tried_or_left_out_for_a_reason():
    assert differentiable() - COVERED - set(LEFT_OUT) == set()
    assert COVERED & set(LEFT_OUT) == set()
    assert all(reason for reason in LEFT_OUT.values())


@contextlib.contextmanager
def cast(sample, dtype):
    """The sample's arguments in a dtype, under x64 where it takes that."""
    with jax.enable_x64(dtype == "float64"):
        yield tuple(
            jnp.asarray(a, dtype) if np.issubdtype(np.asarray(a).dtype, np.floating) else jnp.asarray(a)
            for a in sample.args
        )


@sweep
def test_the_sample_holds_its_primitive(sample, dtype):
    with cast(sample, dtype) as args:
        assert sample.primitive in {e.primitive.name for _, e in jaxviz.trace(sample.fun)(*args).walk()}


@pytest.mark.slow
@sweep
def test_derivatives_and_residuals_are_jaxs(sample, dtype):
    with cast(sample, dtype) as args:
        tangents = seeds(args, tangent=True)
        assert_same(jaxviz.jvp(sample.fun, args, tangents), jax.jvp(sample.fun, args, tangents))
        y, pull = jaxviz.vjp(sample.fun, *args)
        want, jax_pull = jax.vjp(sample.fun, *args)
        assert_same(y, want)
        ct = seeds(want, tangent=False)
        assert_same(pull(ct), jax_pull(ct))
        held = Counter(type_name(jax.typeof(x)) for x in jax.tree.leaves(jax_pull))
        assert Counter(type_name(jax.typeof(x)) for x in jax.tree.leaves(pull)) == held
        _, lin = jaxviz.linearize(sample.fun, *args)
        assert_same(lin(*tangents), jax.linearize(sample.fun, *args)[1](*tangents))


ONCE_ONLY = {"igamma": "JAX has no derivative of its derivative"}


def loss_of(sample, args):
    def loss(*args):
        leaves = jax.tree.leaves(sample.fun(*args))
        leaves = [x for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact)]
        return sum((jnp.sum(jnp.sin(jnp.real(x) + jnp.imag(x))) for x in leaves), jnp.float64(0))

    return loss, tuple(i for i, a in enumerate(args) if jnp.issubdtype(a.dtype, jnp.floating))


@pytest.mark.slow
@pytest.mark.parametrize(
    "sample", [s for s in SAMPLES if "float64" in s.dtypes and s.primitive not in ONCE_ONLY], ids=str
)
def test_second_derivatives_and_numerical_differences(sample):
    with cast(sample, "float64") as args:
        loss, argnums = loss_of(sample, args)
        gradient = jaxviz.grad(loss, argnums)
        got = jaxviz.jvp(lambda *xs: jaxviz.grad(loss, argnums)(*_with(args, argnums, xs)), *_point(args, argnums))
        want = jax.jvp(lambda *xs: jax.grad(loss, argnums)(*_with(args, argnums, xs)), *_point(args, argnums))
        jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, 1e-9, 1e-9), got, want)
        tangents = _point(args, argnums)[1]
        directional = sum(jnp.vdot(g, t) for g, t in zip(gradient(*args), tangents, strict=True))
        h = 1e-6
        shifted = [
            loss(*_with(args, argnums, [args[i] + s * h * t for i, t in zip(argnums, tangents, strict=True)]))
            for s in (1, -1)
        ]
        if sample.primitive not in JUMPS:
            np.testing.assert_allclose(directional, (shifted[0] - shifted[1]) / (2 * h), 1e-5, 1e-5)


JUMPS = {
    "stop_gradient": "its derivative is not that of the function, by definition",
    "igamma": "stop_gradient in the sample",
    "igammac": "stop_gradient in the sample",
    "regularized_incomplete_beta": "stop_gradient in the sample",
    "reduce_precision": "steps in its result",
    "convert_element_type": "steps in its result, of float16",
    "cholesky": "reads one triangle of a matrix, and differentiates as if both moved together",
}


def _with(args, argnums, values):
    given = dict(zip(argnums, values, strict=True))
    return [given.get(i, a) for i, a in enumerate(args)]


def _point(args, argnums):
    point = tuple(args[i] for i in argnums)
    return point, tuple(jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape) for x in point)
