"""Stepping through programs with mutable references: forward, back over writes, into loops, and to the gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from reference_programs import NOT_BY_JAX, PROGRAMS, W, X

import jaxviz


def close(ours, theirs):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6)


def expected(f):
    """The value and the gradient of a function that JAX may refuse."""
    try:
        return jax.jit(jax.value_and_grad(f, argnums=(0, 1)))(X, W)
    except (NotImplementedError, AttributeError):
        return jax.jit(jaxviz.value_and_grad(f, argnums=(0, 1)))(X, W)


NAMES = sorted(PROGRAMS.keys() - (NOT_BY_JAX & {"mapped_scan"}))  # which JAX 0.10.2 does not trace
KINDS = ["overwritten", "overwritten_by_constants_in_scan", "relu_and_softmax", "random_state"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n if n in KINDS else pytest.param(n, marks=pytest.mark.slow(sweep=True)) for n in NAMES]
)
def test_a_run_has_the_value_and_the_gradient_and_each_stop_is_shown(name):
    f = PROGRAMS[name]
    s = jaxviz.step(f, X, W, argnums=(0, 1))
    while not s.is_done:
        assert "not shown" not in str(s.into())
    value, gradient = expected(f)
    close([s.result, s.gradient], [value, gradient])


def rewritten(x):
    r = jax.new_ref(x)
    first = r[...] * 1.0
    r[...] = jnp.sin(first)
    second = r[...] * 1.0
    r[...] += jnp.cos(second)
    return (r[...] * first * second).sum()


def test_back_over_writes_and_ahead_again():
    s = jaxviz.step(rewritten, X)
    seen = []
    while s.stage == "forward":
        seen.append((s.position, str(s)))
        s.next()
    for position, text in reversed(seen):
        while s.position != position:
            s.back()
        assert str(s) == text
    first, second = X, jnp.sin(X)
    s.run()
    close(s.result, ((second + jnp.cos(second)) * first * second).sum())
    close(s.gradient, [jax.grad(rewritten)(X)])
    assert "In place of a mutable reference the programs have what is in it" in str(s)


def counted(x, count):
    def layer(h, _):
        count[...] += 1.0
        return jnp.sin(h * count[...]), None

    return lax.scan(layer, x, None, length=3)[0].sum()


def test_a_reference_of_the_user_stays_as_it_is_and_its_value_in_an_iteration_is_shown():
    count = jax.new_ref(jnp.float32(2.0))
    s = jaxviz.step(counted, X, count)
    s.run(primitive="scan").into().to(iteration=2).next()
    assert any("5" in str(v) for v in s.shown)
    s.run()
    assert count[...] == 2.0
    close([s.result, s.gradient[0]], jax.value_and_grad(counted)(X, count))


def under_a_checkpoint(x, count):
    return jax.checkpoint(lambda x: counted(x, count))(x)


def checkpoints_in_scan(x, count):
    def layer(h, _):
        count[...] += 1.0
        return jnp.sin(h * count[...]), None

    return lax.scan(jax.checkpoint(layer), x, None, length=3)[0].sum()


def written_after(x, count):
    y = jax.checkpoint(lambda x: jnp.sin(x * count[...]) * x)(x)
    count[...] *= 2.0
    return y.sum() * count[...]


@pytest.mark.parametrize("f", [under_a_checkpoint, checkpoints_in_scan, written_after])
def test_a_backward_pass_reads_what_is_then_in_a_reference(f):
    """The oracle is JAX, which runs what is in a checkpoint again, with what was written since."""
    count = jax.new_ref(jnp.float32(0.5))
    s = jaxviz.step(f, X, count)
    assert s.stages == ("forward", "backward")
    seen = []
    while not s.is_done:
        assert "not shown" not in str(s.into())
        seen.append((s.position, str(s)))
    cotangents = {name: s.cotangents[name] for name in s.cotangents}
    close([s.result, s.gradient[0]], jax.value_and_grad(f)(X, jax.new_ref(jnp.float32(0.5))))
    assert any(np.shape(ct) == np.shape(X) for ct in cotangents.values())
    assert count[...] == 0.5
    for position, text in reversed(seen):
        assert str(s.goto(position)) == text


def test_a_rule_that_uses_a_reference_of_its_own_is_stepped_through():
    count = jax.new_ref(jnp.float32(0.0))

    def reads(x):
        count[...] += 1.0
        return jnp.sin(x) * count[...]

    rule = jax.custom_vjp(jnp.sin)
    rule.defvjp(lambda x: (reads(x), x), lambda x, ct: (ct * jnp.cos(x) * count[...],))
    s = jaxviz.step(lambda x: rule(x).sum(), X)
    s.run()
    close(s.gradient[0], jnp.cos(X))
    assert count[...] == 0.0
