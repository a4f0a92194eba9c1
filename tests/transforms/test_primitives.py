"""Every primitive that JAX can differentiate is in the matrix; and second derivatives, also by differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from laws import floats
from primitives import COVERED, LEFT_OUT, cases_of_primitives, differentiable
from short_runs import short

import jaxviz


@pytest.mark.slow
def test_every_primitive_is_tried_or_left_out_for_a_reason():
    assert differentiable() - COVERED - set(LEFT_OUT) == set()
    assert COVERED & set(LEFT_OUT) == set()
    assert all(reason for reason in LEFT_OUT.values())


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case, _ in cases_of_primitives()], ids=str)
def test_the_sample_holds_its_primitive(case):
    with case.where():
        assert case.name.rpartition("-")[0] in {e.primitive.name for _, e in jaxviz.trace(case.fun)(*case.args).walk()}


ONCE_ONLY = {"igamma": "JAX has no derivative of its derivative"}


TWICE = [
    c for c, _ in cases_of_primitives() if c.name.endswith("float64") and c.name.rpartition("-")[0] not in ONCE_ONLY
]


@pytest.mark.slow
@pytest.mark.parametrize("run", [jax.jit, *short([lambda f: f], ())], ids=["jit", "operation by operation"])
@pytest.mark.parametrize("case", short(TWICE, 4), ids=str)
def test_second_derivatives_and_numerical_differences(case, run):
    def loss(*args):
        leaves = [x for x in jax.tree.leaves(case.fun(*args)) if jnp.issubdtype(x.dtype, jnp.inexact)]
        return sum((jnp.sum(jnp.sin(jnp.real(x) + jnp.imag(x))) for x in leaves), jnp.float64(0))

    args, argnums = case.args, floats(case)
    with case.where():
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
        if case.name.rpartition("-")[0] not in JUMPS:
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
