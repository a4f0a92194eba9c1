"""Values are named by the expressions that compute them."""

import jax
import jax.numpy as jnp

import jaxviz
from jaxviz.analysis.site import Site

X = jnp.ones((3, 3))


def test_the_results_of_a_librarys_jitted_function():
    def f(x):
        h = jax.nn.silu(x)
        return jnp.sin(h)

    site = Site.of(jaxviz.derive(f, X), {})
    forward = site.derivation.forward
    found = {e.primitive.name: site.sources(v)[0] for e in forward.equations for v in e.outvars}
    inside = [site.expression(s) for e in forward.equations for v in e.outvars for s in site.sources(v) if s.within]
    assert inside[0] == "jax.nn.silu(x)"
    assert "logistic in jax.nn.silu(x)" in inside
    assert site.expression(found["sin"]) == "jnp.sin(h)"


def test_an_inlined_function_is_no_second_evaluation():
    plan = jaxviz.plan_remat(lambda x: jnp.sum(jax.nn.log_softmax(jnp.sin(x) * x) ** 2), jnp.ones((64, 64)), budget=0.5)
    inside = [s for s in plan.saved if "jax.nn.log_softmax" in s.label]
    assert inside
    for s in inside:
        assert s.label != "jax.nn.log_softmax(jnp.sin(x) * x)" or s.expression == "sub", s
