"""Custom rules that are defined in a Python loop use its variables as they were when their function was called, as in JAX."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxviz
from jaxviz.ir.compat import custom_rules


def with_jvp(s):
    """What a loop's body defines; `s` returns the loop's variable."""

    @jax.custom_jvp
    def scale(x):
        return jnp.sin(x) * s()

    @scale.defjvp
    def _(primals, tangents):
        (x,), (t,) = primals, tangents
        return jnp.sin(x) * s(), jnp.cos(x) * t * s()

    return scale


def with_vjp(s):
    @jax.custom_vjp
    def scale(x):
        return jnp.sin(x) * s()

    scale.defvjp(lambda x: (jnp.sin(x) * s(), (jnp.cos(x), s())), lambda saved, ct: (ct * saved[0] * saved[1],))
    return scale


NESTED = {
    "plain": lambda f, x: f(x),
    "jit": lambda f, x: jax.jit(f)(x),
    "scan": lambda f, x: lax.scan(lambda h, _: (f(h), None), x, None, length=2)[0],
    "cond": lambda f, x: lax.cond(x > 0, f, lambda x: x, x),
    "checkpoint": lambda f, x: jax.checkpoint(f)(x),
    "vmap": lambda f, x: jax.vmap(f)(jnp.stack([x, 2 * x])).sum(),
    "scan of checkpoint": lambda f, x: lax.scan(lambda h, _: (jax.checkpoint(f)(h), None), x, None, length=2)[0],
}


def looping(make, apply):
    def loss(x):
        for s in (1.0, 2.0, 3.0):
            x = apply(make(lambda: s), x)
        return x

    return loss


def of_itself():
    """The rule closes over the variable directly, as people write it."""

    def loss(x):
        for s in (1.0, 2.0):

            @jax.custom_vjp
            def scale(x):
                return x * s

            scale.defvjp(lambda x: (x * s, None), lambda _, ct: (ct * s,))
            x = scale(x)
        return x

    return loss


LOSSES = {
    f"{make.__name__}-{name}": looping(make, apply) for make in (with_jvp, with_vjp) for name, apply in NESTED.items()
}
losses = pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
close = lambda a, b: jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), a, b)


@pytest.mark.slow
@losses
def test_value_and_gradient_are_those_of_jax(loss):
    close(jaxviz.value_and_grad(loss)(0.7), jax.value_and_grad(loss)(0.7))
    close(jax.jit(jaxviz.value_and_grad(loss))(0.7), jax.jit(jax.value_and_grad(loss))(0.7))


@pytest.mark.slow
@losses
def test_within_one_jit_jax_uses_them_afterwards(loss):
    close(jaxviz.value_and_grad(jax.jit(loss))(0.7), jax.value_and_grad(jax.jit(loss))(0.7))


@pytest.mark.slow
@pytest.mark.parametrize("name", NESTED)
def test_forward_mode_and_second_derivatives(name):
    loss = looping(with_jvp, NESTED[name])
    close(jaxviz.jvp(loss, (0.7,), (1.0,)), jax.jvp(loss, (0.7,), (1.0,)))
    close(jaxviz.grad(jaxviz.grad(loss))(0.7), jax.grad(jax.grad(loss))(0.7))


@pytest.mark.slow
def test_the_backward_rule_runs_when_the_loop_has_ended():
    loss = of_itself()
    assert jax.value_and_grad(loss)(1.0) == (2.0, 4.0)
    close(jaxviz.value_and_grad(loss)(1.0), (2.0, 4.0))


@pytest.mark.slow
@losses
def test_the_loop_keeps_its_variable(loss):
    """What is changed while a rule is traced is put back."""
    assert jaxviz.derive(loss, 0.7).check()
    close(loss(0.7), jax.value_and_grad(loss)(0.7)[0])


def with_an_attribute(x):
    """What changes is not a variable, so jaxviz cannot know what it was."""

    class State:
        s = 1.0

    for s in (1.0, 2.0):
        State.s = s
        x = with_jvp(lambda: State.s)(x)
    return x


@pytest.mark.slow
def test_check_compares_the_values():
    check = jaxviz.derive(with_an_attribute, 0.7).check()
    assert not check
    assert "residuals as in" in check.summary
    assert "its values differ" in check.summary
    (difference,) = check.differences
    assert difference.startswith("result 0: JAX computes 1.20")
    assert jaxviz.derive(with_an_attribute, 0.7).check(values=False)
    assert jaxviz.derive(with_an_attribute, jax.ShapeDtypeStruct((), jnp.float32)).check()


def test_a_rule_may_close_over_a_dict_whose_keys_have_no_order():
    limits = {"low": 0.5, ("high", 1): 2.0}

    @jax.custom_vjp
    def clipped(x):
        return jnp.clip(x, *limits.values())

    clipped.defvjp(lambda x: (clipped(x), None), lambda _, ct: (ct * len(limits),))
    f = lambda x: lax.scan(lambda c, _: (clipped(c), None), x, length=2)[0]
    assert jaxviz.grad(f)(1.5) == jax.grad(f)(1.5) == 4.0


@jax.tree_util.register_dataclass
@dataclass
class Box:
    content: Any


@pytest.mark.parametrize("kept", [lambda v: (Box(v),), lambda v: {"a": [v], 1: v}])
def test_what_a_rule_closes_over_is_found_in_pytrees(kept):
    def f(v):
        held = kept(v)
        assert custom_rules._holds_tracers(v._trace, lambda: held)
        return v

    jax.make_jaxpr(f)(1.0)
