"""Equations about which JAX cannot ask its policies of names: one of their params has the name of the policy's
argument, as in equinox's loops."""

import jax
import jax.extend
import jax.numpy as jnp
import pytest
from applied import agree
from jax.interpreters import ad, mlir

import jaxviz

pytestmark = pytest.mark.slow

solved_p = jax.extend.core.Primitive("solved")
solved_p.def_impl(lambda x, prim: jnp.sin(x))
solved_p.def_abstract_eval(lambda x, prim: x)
mlir.register_lowering(solved_p, mlir.lower_fun(lambda x, prim: jnp.sin(x), multiple_results=False))
ad.defjvp(solved_p, lambda t, x, prim: t * jnp.cos(x))

W = [jnp.eye(32)] * 6
X = jnp.ones((128, 32))


def layer(x, w):
    h = solved_p.bind(jnp.tanh(x @ w), prim="bounded")
    return jnp.sin(h) * jnp.exp(h)


def other(x, w):
    return jnp.sin(jnp.tanh(x @ w)) * 2.0


def in_calls(ws, x):
    for w in ws:
        x = layer(x, w)
        x = other(x, w)
    return jnp.sum(x**2)


def in_a_scan(ws, x):
    return jnp.sum(jax.lax.scan(lambda x, w: (layer(x, w), None), x, jnp.stack(ws))[0])


@pytest.mark.parametrize("f", [in_calls, in_a_scan], ids=lambda f: f.__name__)
@pytest.mark.parametrize("bound", [{}, {"work": "50%"}, {"residuals": "50%"}], ids=str)
def test_a_plan_saves_nothing_by_name_around_them(f, bound):
    plan = jaxviz.plan_remat(f, W, X, **bound)
    assert plan.peak_nbytes < jaxviz.memory(f, W, X).peak_nbytes
    assert "saving nothing" in plan.summary
    agree(jax.grad(plan.apply(f))(W, X), jax.grad(f)(W, X))
    assert "+" in plan.code()
    assert "policy" not in plan.code()


def test_elsewhere_values_have_names():
    def block(x, w):
        return jnp.sin(jnp.tanh(x @ w) @ w) * jnp.cos(x)

    def loss(ws, x):
        for w in ws:
            x = block(x, w)
        return jnp.sum(solved_p.bind(x, prim="bounded"))

    plan = jaxviz.plan_remat(loss, W, X, work="20%")
    assert plan.saved
    agree(jax.grad(plan.apply(loss))(W, X), jax.grad(loss)(W, X))


def test_a_policy_that_jax_cannot_ask_is_left_out_of_a_comparison():
    found = jaxviz.compare_policies(in_calls, W, X)
    assert [o.name for o in found.outcomes] == ["nothing_saveable"]
    (why,) = found.refused
    assert "about `solved`" in why
    assert why.split(",")[0] in str(found)
    with pytest.raises(TypeError, match=r"JAX cannot ask \w+ about `solved`.* argument 'prim'"):
        jaxviz.compare_policies(in_calls, W, X, policies=["dots_saveable"])
    with pytest.raises(TypeError, match="'prim'"):
        jax.grad(jax.checkpoint(in_calls, policy=jax.checkpoint_policies.dots_saveable))(W, X)
