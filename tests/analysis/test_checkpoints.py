"""What a policy would save, if `jax_remat3` did not keep JAX from asking it, compared with what JAX saves without."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

import jaxviz

W, X = jnp.full((8, 8), 0.1), jnp.ones((4, 8))
OPENED = pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="a checkpoint under jax_remat3 is opened since 0.12")


def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def attention(w, x):
    h = norm(x) @ w
    return x + jax.nn.silu(jax.nn.softmax(h @ h.T) @ h)


def scanned(w, x):
    return jax.lax.scan(lambda x, _: (jnp.exp(-jnp.tanh(x @ w)), jnp.sin(w).sum()), x, length=3)


@jax.custom_jvp
def doubled(x):
    return jnp.exp(x) * 2.0


@doubled.defjvp
def _(primals, tangents):
    (y,) = map(jnp.exp, primals)
    return 2.0 * y, 2.0 * y * tangents[0]


BLOCKS = {
    "derivative": lambda w, x: jnp.tanh(x @ w),
    "gate": lambda w, x: (h := jnp.tanh(x @ w)) * jnp.exp(-h),
    "attention": attention,
    "scan": scanned,
    "not needed": lambda w, x: jnp.exp(jnp.sin(x @ w)),
    "custom rule": lambda w, x: doubled(jnp.sin(x @ w)),
}
POLICIES = [("tanh",), ("exp",), ("rsqrt", "exp"), ("mul", "div", "logistic"), ("sin", "cos", "exp"), ("pow",)]


def saves(names, primitive, *_, **__):
    return primitive.name in names


def loss(block, names, w, x):
    return sum(map(jnp.sum, jax.tree.leaves(jax.checkpoint(BLOCKS[block], policy=partial(saves, names))(w, x))))


def under_remat3(report):
    jax.config.update("jax_remat3", True)
    try:
        return report()
    finally:
        jax.config.update("jax_remat3", False)


@OPENED
@pytest.mark.parametrize("names", POLICIES, ids="-".join)
@pytest.mark.parametrize("block", BLOCKS)
def test_what_a_policy_would_save_is_what_jax_saves_without_the_flag(block, names):
    f = partial(loss, block, names)
    report = partial(jaxviz.policies, f, W, X, argnums=(0, 1))
    (with_flag,), (without,) = under_remat3(report).checkpoints, report().checkpoints
    key = lambda v: (v.label, v.expression, v.type, v.nbytes, v.location)
    assert list(map(key, with_flag.not_consulted)) == [key(v) for v in without.values if v.fate == "saved"]
    saved = {id(a): a for a in jax.tree.leaves(jax.vjp(f, W, X)[1]) if a is not W and a is not X}
    assert sum(v.nbytes for v in with_flag.not_consulted) == sum(a.nbytes for a in saved.values())


@OPENED
def test_bytes_are_those_of_all_layers():
    def layers(w, x):
        step = jax.checkpoint(attention, policy=partial(saves, ("rsqrt", "exp")))
        return jnp.sum(jax.lax.scan(lambda x, w: (step(w, x), None), x, jnp.stack([w] * 3))[0])

    (idle,) = under_remat3(lambda: jaxviz.policies(layers, W, X)).without_effect
    (without,) = jaxviz.policies(layers, W, X).checkpoints
    saved = [v for v in without.values if v.fate == "saved"]
    assert {v.expression for v in saved} == {"rsqrt", "exp"}
    assert idle.nbytes == 3 * sum(v.nbytes for v in saved)
    assert idle.short == "JAX does not ask the policy of `attention` about rsqrt, exp"


@OPENED
def test_a_policy_that_does_not_know_every_operation_has_none():
    def policy(primitive, *_, **__):
        return {"dot_general": False, "tanh": True}[primitive.name]

    f = lambda w, x: jnp.sum(jax.checkpoint(lambda w, x: jnp.tanh(x @ w), policy=policy)(w, x))
    (report,) = under_remat3(lambda: jaxviz.policies(f, W, X)).checkpoints
    assert report.not_consulted == ()
