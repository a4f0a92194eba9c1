"""Checkpoints that are put into programs, under the flag for JAX's upcoming checkpoints."""

import re

import jax
import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz.features.remat.checkpointing import remat_template
from jaxviz.ir import compat

W, X = jnp.full((8, 8), 0.1), jnp.ones((4, 8))
IGNORED = "with jax_remat3, JAX .* ignores checkpoint policies.* Set jax.config.update"


@pytest.fixture
def remat3():
    remat_template.cache_clear()
    jax.config.update("jax_remat3", True)
    yield
    jax.config.update("jax_remat3", False)
    remat_template.cache_clear()


def block(w, x):
    return jnp.tanh(jnp.tanh(x @ w) @ w)


def loss(policy, w, x):
    for _ in range(3):
        x = jax.checkpoint(block, policy=policy)(w, x)
    return jnp.sum(x**2)


def without(w, x):
    for _ in range(3):
        x = block(w, x)
    return jnp.sum(jnp.exp(x) * 2.0)


def saved_by_jax(policy):
    return sum(a.nbytes for a in jax.tree.leaves(jax.vjp(lambda w: loss(policy, w, X), W)[1]))


def test_whether_jax_ignores_policies_is_what_it_does(remat3):
    policies = jax.checkpoint_policies
    same = saved_by_jax(policies.everything_saveable) == saved_by_jax(policies.nothing_saveable)
    assert compat.ignores_policies() == same
    jax.config.update("jax_remat3", False)
    assert not compat.ignores_policies()


def test_a_plan_is_right_or_says_what_it_needs(remat3):
    if compat.ignores_policies():
        with pytest.raises(ValueError, match=IGNORED):
            jaxviz.plan_remat(without, W, X)
        with pytest.raises(ValueError, match=IGNORED):
            jaxviz.compare_policies(without, W, X)
        assert jaxviz.explore(without, W, X) is not None
        return
    plan = jaxviz.plan_remat(without, W, X, work="50%")
    planned = plan.apply(without)
    saved = {id(a): a for a in jax.tree.leaves(jax.vjp(lambda w: planned(w, X), W)[1])}
    assert plan.nbytes == sum(a.nbytes for a in saved.values())


def test_advice_is_the_same_with_the_flag(remat3):
    """But for bytes, since checkpoints with the flag add cotangents one by one."""
    with_flag = jaxviz.lint(without, W, X)
    jax.config.update("jax_remat3", False)
    words = lambda found: [re.sub(r"\d[\d.]* .?i?B", "# B", str(advice)) for advice in found]
    assert words(with_flag) == words(jaxviz.lint(without, W, X))
    assert any("write `jax.checkpoint(block)`" in text for text in words(with_flag))


@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.dots_saveable])
def test_a_function_with_checkpoints_has_advice(remat3, policy):
    assert jaxviz.lint(lambda w, x: jnp.sum(jnp.exp(loss(policy, w, x) * x)), W, X) is not None
