"""Random nestings: loops, branches, checkpoints and calls in each other, as hypothesis makes them up, against jax."""

from collections import Counter
from functools import reduce

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from nested_programs import halved, log1pexp
from test_parity import assert_same, seeds
from typecheck import check_program

import jaxviz
from jaxviz.derivation import STAGES, type_name

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
@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(nestings, min_size=1, max_size=3))
def test_values_derivatives_and_residuals(inside):
    fun = lambda x, w: reduce(lambda x, n: run(n, x, w), inside, x)
    y, pull = jaxviz.vjp(fun, X, W)
    want, jax_pull = jax.vjp(fun, X, W)
    assert_same(y, want)
    ct = seeds(want, tangent=False)
    assert_same(pull(ct), jax_pull(ct))
    held = lambda f: Counter(type_name(jax.typeof(x)) for x in jax.tree.leaves(f))
    assert held(pull) == held(jax_pull)
    d = jaxviz.derive(fun, X, W, argnums=(0, 1))
    for stage in STAGES:
        check_program(getattr(d, stage))
    assert all(r.location.line > 0 for r in d.residuals)
    if "custom vjp" not in str(inside):
        tangents = seeds((X, W), tangent=True)
        assert_same(jaxviz.jvp(fun, (X, W), tangents), jax.jvp(fun, (X, W), tangents))
