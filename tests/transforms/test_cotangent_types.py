"""The types of cotangents are JAX's: that of a weakly typed value is strong if a strong value reads it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxviz
from jaxviz.ir import compat, convert

EYE = jnp.eye(3)


def doubled(x):
    return 2.0 * jnp.sin(x)


@jax.custom_jvp
def custom(x):
    return jnp.sin(x)


custom.defjvps(lambda t, _, x: t * jnp.cos(x))

INSIDE = {
    "operations": doubled,
    "jit": jax.jit(doubled),
    "jit in jit": jax.jit(lambda x: jax.jit(doubled)(x) * 3.0),
    "checkpoint": jax.checkpoint(doubled),
    "jit in checkpoint": jax.checkpoint(jax.jit(doubled)),
    "checkpoint in jit": jax.jit(jax.checkpoint(doubled)),
    "scan": lambda x: lax.scan(lambda c, _: (doubled(c), None), x, None, length=3)[0],
    "cond": lambda x: lax.cond(x > 0, doubled, jnp.cos, x),
    "custom_jvp": custom,
    "softplus": jax.nn.softplus,
}
READ_BY = {
    "a weak value": lambda y: y * 2.0,
    "a strong value": lambda y: jnp.sum(y * jnp.ones(3)),
    "a matrix product": lambda y: jnp.sum(jnp.broadcast_to(y, (3,)) @ EYE),
    "both": lambda y: jnp.sum(jnp.broadcast_to(y, (3,)) @ EYE) + y,
}


@pytest.mark.parametrize("reader", READ_BY)
@pytest.mark.parametrize("inside", INSIDE)
def test_a_gradient_is_weak_where_that_of_jax_is(inside, reader):
    f = lambda x: READ_BY[reader](INSIDE[inside](x))
    assert jax.eval_shape(jaxviz.grad(f), 0.7) == jax.eval_shape(jax.grad(f), 0.7)
    assert jaxviz.derive(f, 0.7).check()


@jax.custom_jvp
def step_function(x):
    return jnp.where(x > 0, 1.0, 0.0)


step_function.defjvps(lambda t, _, x: t / (1.0 + jnp.abs(x)) ** 2)


def neurons(w, currents):
    """The scan's stacked output is weakly typed, and so is the cotangent of a product of strong values in its body."""

    def step(v, current):
        v = 0.9 * v + w @ current
        spike = step_function(v - 0.5)
        return v * (1.0 - spike), spike

    v, spikes = lax.scan(step, jnp.zeros(3), currents)
    return spikes.sum(0) + v


def test_the_type_of_a_cotangent_is_not_taken_for_that_of_the_operation():
    """Rules that bind an operation take its types from a cache, which must not have types of its cotangent."""
    jaxviz.clear_caches()
    derivation = jaxviz.derive(neurons, jnp.ones((3, 3)), jnp.ones((6, 3)), argnums=(0, 1))
    assert derivation.check().agrees
    assert derivation.backward.equations
    plain = [op for op in convert._applied.values() if not op.programs and not op.effects]
    assert "mul" in {op.primitive.name for op in plain}
    for op in plain:
        given = convert.write_params(op)
        assert compat.plain_result_types(op.primitive, given, op.in_avals, op.context) == op.out_avals


# --- of another type than the value, which a user's backward rule may return: how JAX converts them, or rejects them
# ---


@jax.custom_vjp
def summed(x):
    return x.astype(np.float32).sum()


summed.defvjp(lambda x: (summed(x), x.shape), lambda shape, g: (lax.full(shape, g, np.float32),))

XS = np.linspace(-1, 1, 28).reshape(7, 4).astype(jnp.bfloat16)
W = jnp.arange(12.0).reshape(4, 3).astype(jnp.bfloat16)

PROGRAMS = {
    "alone": summed,
    "gather": lambda x: summed(x[np.array([1, 2, 1])]),
    "two gathers": lambda x: summed(x[np.array([1, 2])][np.array([0, 0])]),
    "a gather of a product": lambda x: summed((x @ W)[np.array([2])]),
    "product": lambda x: summed(x @ W),
    "transpose": lambda x: summed(x.T),
    "reshape": lambda x: summed(x.reshape(-1)),
    "sum": lambda x: summed(x.sum(0)),
    "concatenate": lambda x: summed(jnp.concatenate([x, x])),
    "dynamic slice": lambda x: summed(lax.dynamic_slice(x, (1, 1), (2, 2))),
    "slice": lambda x: summed(x[2:4]),
    "scale": lambda x: summed(x * 2),
    "two readers": lambda x: summed(x) + jnp.sum(x).astype(np.float32),
    "two readers alike": lambda x: summed(x) + summed(x),
    "convert": lambda x: summed(x.astype(np.float16)),
    "select": lambda x: summed(jnp.where(x > 0, x, 0)),
    "negative": lambda x: summed(-x),
}


def outcome(grad, f):
    try:
        found = grad(f)(XS)
    except TypeError as error:
        return type(error)
    return found.dtype, np.asarray(found, np.float64).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_gradient_is_jaxs(name):
    assert outcome(jaxviz.grad, PROGRAMS[name]) == outcome(jax.grad, PROGRAMS[name])


@pytest.mark.slow
def test_some_are_of_the_precision_of_the_cotangent_and_some_are_refused():
    found = [outcome(jax.grad, f) for f in PROGRAMS.values()]
    assert sum(o is TypeError for o in found) >= 2
    assert sum(o is not TypeError and o[0] == np.float32 for o in found) >= 6


def test_two_cotangents_of_different_types_are_named():
    with pytest.raises(TypeError, match=r"Cotangents of one value have the types bf16\[7,4\] and f32\[7,4\]"):
        jaxviz.grad(PROGRAMS["two readers"])(XS)
