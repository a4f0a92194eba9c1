"""Cotangents of another type than the value, which a user's backward rule may return: how JAX converts them, and where it rejects them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxviz


@jax.custom_vjp
def summed(x):
    return x.astype(np.float32).sum()


summed.defvjp(lambda x: (summed(x), x.shape), lambda shape, g: (lax.full(shape, g, np.float32),))

X = np.linspace(-1, 1, 28).reshape(7, 4).astype(jnp.bfloat16)
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
        found = grad(f)(X)
    except TypeError as error:
        return type(error)
    return found.dtype, np.asarray(found, np.float64).tolist()


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
        jaxviz.grad(PROGRAMS["two readers"])(X)
