"""Whether a gradient's type is weak, as JAX's is: the cotangent of a weakly typed value is strong where a strong value reads it."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxviz

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
