"""Random programs and nestings: the laws hold of what hypothesis generates."""

from functools import reduce

import jax
import jax.numpy as jnp
import laws
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from nested_programs import halved, log1pexp
from programs import Case

import jaxviz

SHAPES = [(), (3,), (0,), (2, 3), (1, 3)]
CONSTANTS = {shape: jnp.linspace(0.2, 0.8, int(np.prod(shape))).reshape(shape) for shape in SHAPES}

UNARY = {
    "sin": jnp.sin,
    "tanh": jnp.tanh,
    "square": lambda x: x**2,
    "double": lambda x: x * 2.0,
    "half": lambda x: x / 2,
    "negate": lambda x: -x,
    "exp": lambda x: jnp.exp(x * 0.1),
    "relu": jax.nn.relu,
    "stop": jax.lax.stop_gradient,
    "sum": jnp.sum,
    "mean rows": lambda x: x.mean(0) if x.ndim == 2 else x,
    "widen": lambda x: jnp.broadcast_to(x, (2, 3)) if x.shape in ((3,), (1, 3), ()) else x,
    "first": lambda x: x[0] if x.ndim and x.shape[0] else x,
    "jitted": jax.jit(lambda x: jnp.sin(x) * x + 1.0),
    "jitted pair": lambda x: jax.jit(lambda y: (y, jnp.cos(y)))(x)[1],
    "gate": lambda x: jnp.where(x > 0, x, 0.5 * x),
    "constant": lambda x: x * CONSTANTS[x.shape] if x.shape in CONSTANTS else x,
    "same": lambda x: x,
}
BINARY = {
    "add": lambda x, y: x + y,
    "multiply": lambda x, y: x * y,
    "subtract": lambda x, y: x - y,
    "maximum": jnp.maximum,
    "divide": lambda x, y: x / (1.5 + jnp.sin(y)),
    "jitted": jax.jit(lambda x, y: x * y + y),
}


@st.composite
def programs(draw):
    """A function of one to three arrays, as a list of steps on values that exist already; and its arguments."""
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
    steps = draw(
        st.lists(
            st.one_of(
                st.tuples(st.sampled_from(sorted(UNARY)), st.integers(0, 30), st.none()),
                st.tuples(st.sampled_from(sorted(BINARY)), st.integers(0, 30), st.integers(0, 30)),
            ),
            min_size=0,
            max_size=12,
        )
    )
    results = draw(st.lists(st.integers(0, 30), min_size=1, max_size=3))
    with_constant = draw(st.booleans())

    def fun(*args):
        values = list(args)
        for name, i, j in steps:
            x = values[i % len(values)]
            if j is None:
                values.append(UNARY[name](x))
            else:
                y = values[j % len(values)]
                fits = np.broadcast_shapes(x.shape, y.shape) if _fit(x.shape, y.shape) else None
                values.append(x if fits is None else BINARY[name](x, y))
        out = [values[i % len(values)] for i in results]
        return [*out, jnp.ones(2)] if with_constant else out

    args = tuple(jnp.linspace(-0.7, 0.9, int(np.prod(s))).reshape(s) + 0.05 * i for i, s in enumerate(shapes))
    return fun, args, steps


def _fit(x, y):
    try:
        np.broadcast_shapes(x, y)
    except ValueError:
        return False
    return True


often = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@often
@given(programs())
def test_the_laws_hold(program):
    fun, args, steps = program
    case = Case(str(steps), fun, args)
    for law in (
        laws.forward_mode,
        laws.value_and_cotangents,
        laws.the_returned_function_holds_what_jaxs_does,
        laws.well_typed_and_linear,
        laws.written_losslessly,
        laws.reads_as_jax_prints_it,
    ):
        law(case)


@pytest.mark.slow
@often
@given(programs())
def test_second_derivatives_by_checked_differences(program):
    from jax.test_util import check_grads

    fun, args, steps = program
    if any(name in ("gate", "relu", "maximum", "stop") for name, _, _ in steps):
        return  # kinks, where difference quotients are meaningless
    loss = lambda *xs: sum(jnp.sum(x) for x in fun(*xs))
    want = jax.jvp(jax.grad(loss), args, args)
    got = jaxviz.jvp(jaxviz.grad(loss), args, args)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, 2e-4, 2e-4), got, want)
    jitted = jax.jit(jaxviz.grad(loss))(*args)
    np.testing.assert_allclose(jitted, jax.grad(loss)(*args), 2e-4, 2e-4)

    @jax.custom_vjp
    def ours(*xs):
        return loss(*xs)

    def backward(xs, ct):
        return tuple(ct * g for g in jaxviz.grad(loss, tuple(range(len(xs))))(*xs))

    ours.defvjp(lambda *xs: (loss(*xs), xs), backward)
    check_grads(ours, args, order=1, modes=("rev",), atol=0.1, rtol=0.1)


# --- nestings: loops, branches, checkpoints and calls in each other ---------------------------------------------------

LEAVES = {
    "sin": lambda x, w: jnp.sin(x),
    "weigh": lambda x, w: x * w,
    "mix": lambda x, w: jnp.outer(w, w) @ x * 0.1,
    "invariant": lambda x, w: x + jnp.exp(w * 0.1),
    "named": lambda x, w: checkpoint_name(jnp.tanh(x), "named"),
    "half": lambda x, w: x * 0.5,
    "stop": lambda x, w: x * lax.stop_gradient(jnp.sin(w)),
    "custom jvp": lambda x, w: log1pexp(x),
    "custom vjp": lambda x, w: halved(x, w),
    "relu": lambda x, w: jax.nn.silu(x),
    "constant": lambda x, w: jnp.ones(3),
    "loop": lambda x, w: x * lax.while_loop(lambda k: k < 3, lambda k: k + 1, 0),
}
POLICIES = jax.checkpoint_policies
WRAPPERS = {
    "carry": lambda f, x, w: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0],
    "reverse": lambda f, x, w: lax.scan(lambda c, k: (f(c) * k, c), x, jnp.arange(2.0), reverse=True)[1].sum(0),
    "rows": lambda f, x, w: lax.map(f, jnp.stack([x, w])).sum(0),
    "counter": lambda f, x, w: lax.fori_loop(0, 2, lambda i, c: f(c) + i, x),
    "cond": lambda f, x, w: lax.cond(w[0] > 0, f, lambda x: x * w, x),
    "other branch": lambda f, x, w: lax.cond(x.sum() > 1e6, f, jnp.cos, x),
    "switch": lambda f, x, w: lax.switch(1, [lambda x: x, f, lambda x: jnp.exp(x * 0.1)], x),
    "jit": lambda f, x, w: jax.jit(f)(x),
    "checkpoint": lambda f, x, w: jax.checkpoint(f)(x),
    "saving dots": lambda f, x, w: jax.checkpoint(f, policy=POLICIES.dots_saveable)(x),
    "saving all": lambda f, x, w: jax.checkpoint(f, policy=POLICIES.everything_saveable, prevent_cse=False)(x),
    "saving names": lambda f, x, w: jax.checkpoint(f, policy=POLICIES.save_only_these_names("named"))(x),
    "gradient": lambda f, x, w: jax.vjp(f, x)[1](w)[0],
}

nestings = st.recursive(
    st.sampled_from(sorted(LEAVES)),
    lambda inner: st.tuples(st.sampled_from(sorted(WRAPPERS)), st.lists(inner, min_size=1, max_size=3)),
    max_leaves=8,
)


def run(nesting, x, w):
    if isinstance(nesting, str):
        return LEAVES[nesting](x, w)
    name, inside = nesting
    return WRAPPERS[name](lambda x: reduce(lambda x, n: run(n, x, w), inside, x), x, w)


X, W = jnp.linspace(-0.4, 0.9, 3), jnp.linspace(0.2, 0.7, 3)


@pytest.mark.slow
@often
@given(st.lists(nestings, min_size=1, max_size=3))
def test_the_laws_hold_of_nestings(inside):
    fun = lambda x, w: reduce(lambda x, n: run(n, x, w), inside, x)
    case = Case(str(inside), fun, (X, W), forward="custom vjp" not in str(inside))
    for law in (laws.value_and_cotangents, laws.the_returned_function_holds_what_jaxs_does, laws.well_typed_and_linear):
        law(case)
    assert all(r.location.line > 0 for r in laws.derived(case).residuals)
    if case.forward:
        laws.forward_mode(case)
