"""The sweep: every primitive that JAX can differentiate, in several dtypes, compared with jax."""

import contextlib
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from primitives import COVERED, LEFT_OUT, SAMPLES, differentiable
from short_runs import short
from test_parity import both_ways, seeds, side_by_side

import jaxviz
from jaxviz.derivation import type_name

SWEEP = [(s, d) for s in SAMPLES for d in s.dtypes]
sweep = pytest.mark.parametrize(("sample", "dtype"), SWEEP, ids=[f"{s}-{d}" for s, d in SWEEP])


def with_dtypes():
    """The short tests use one dtype per sample, a different one for the next."""
    for i, sample in enumerate(SAMPLES):
        for k, dtype in enumerate(sample.dtypes):
            is_short = k == i % len(sample.dtypes)
            yield pytest.param(sample, dtype, marks=[pytest.mark.sweep] * (not is_short), id=f"{sample}-{dtype}")


@pytest.mark.process
def test_every_primitive_is_tried_or_left_out_for_a_reason():
    assert differentiable() - COVERED - set(LEFT_OUT) == set()
    assert COVERED & set(LEFT_OUT) == set()
    assert all(reason for reason in LEFT_OUT.values())


@contextlib.contextmanager
def cast(sample, dtype):
    """The sample's arguments in a dtype, with x64 if it needs that."""
    with jax.enable_x64(dtype == "float64"):
        yield tuple(
            jnp.asarray(a, dtype) if np.issubdtype(np.asarray(a).dtype, np.floating) else jnp.asarray(a)
            for a in sample.args
        )


@pytest.mark.values
@sweep
def test_the_sample_holds_its_primitive(sample, dtype):
    with cast(sample, dtype) as args:
        assert sample.primitive in {e.primitive.name for _, e in jaxviz.trace(sample.fun)(*args).walk()}


@pytest.mark.slow
@both_ways
@pytest.mark.parametrize(("sample", "dtype"), [*with_dtypes()])
def test_derivatives_are_jaxs(sample, dtype, run):
    with cast(sample, dtype) as args:
        tangents, held = seeds(args, tangent=True), []

        def of(m, *args):
            y, pull = m.vjp(sample.fun, *args)
            held.append(Counter(type_name(jax.typeof(x)) for x in jax.tree.leaves(pull)))
            _, lin = m.linearize(sample.fun, *args)
            return m.jvp(sample.fun, args, tangents), y, pull(seeds(y, tangent=False)), lin(*tangents)

        side_by_side(of, *args, run=run)
        ours, theirs = held
        assert ours == theirs


@sweep
def test_residuals_are_jaxs(sample, dtype):
    with cast(sample, dtype) as args:
        check = jaxviz.derive(sample.fun, *args, argnums=tuple(range(len(args)))).check()
        assert check.agrees, check


ONCE_ONLY = {"igamma": "JAX has no derivative of its derivative"}


def loss_of(sample, args):
    def loss(*args):
        leaves = jax.tree.leaves(sample.fun(*args))
        leaves = [x for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact)]
        return sum((jnp.sum(jnp.sin(jnp.real(x) + jnp.imag(x))) for x in leaves), jnp.float64(0))

    return loss, tuple(i for i, a in enumerate(args) if jnp.issubdtype(a.dtype, jnp.floating))


@pytest.mark.slow
@both_ways
@pytest.mark.parametrize(
    "sample", short([s for s in SAMPLES if "float64" in s.dtypes and s.primitive not in ONCE_ONLY], 2), ids=str
)
def test_second_derivatives_and_numerical_differences(sample, run):
    with cast(sample, "float64") as args:
        loss, argnums = loss_of(sample, args)
        point, tangents = _point(args, argnums)

        def second(m, *args):
            return m.jvp(lambda *xs: m.grad(loss, argnums)(*_with(args, argnums, xs)), point, tangents)

        def along(*args):
            return sum(jnp.vdot(g, t) for g, t in zip(jaxviz.grad(loss, argnums)(*args), tangents, strict=True))

        def difference(*args, h=1e-6):
            moved = lambda s: [args[i] + s * h * t for i, t in zip(argnums, tangents, strict=True)]
            return (loss(*_with(args, argnums, moved(1))) - loss(*_with(args, argnums, moved(-1)))) / (2 * h)

        everything = lambda *args: (second(jaxviz, *args), second(jax, *args), along(*args), difference(*args))
        got, want, slope, numerical = run(everything)(*args)
        jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, 1e-9, 1e-9), got, want)
        if sample.primitive not in JUMPS:
            np.testing.assert_allclose(slope, numerical, 1e-5, 1e-5)


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
