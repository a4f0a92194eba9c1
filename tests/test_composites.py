"""`jax.lax.composite`: its program is opened, though JAX neither differentiates nor maps it."""

import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxviz

X = jnp.array([1.0, 0.5, 2.0])


def squared_log(x):
    return lax.composite(lambda x: jnp.log(x) ** 2, name="jaxviz.squared_log")(x)


def test_it_is_opened():
    def loss(x):
        return squared_log(lax.stop_gradient(x)) @ x

    assert not jaxviz.derive(loss, X).unopened
    assert jaxviz.cost(loss, X).by_primitive["log"].transcendentals == X.size


def test_a_nan_is_found_inside():
    report = jaxviz.find_nan(squared_log, X - 1.0)
    assert report.born.primitive == "log"


def test_it_can_be_stepped_into():
    stepper = jaxviz.step(squared_log, X).into()
    assert "`composite` of `jaxviz.squared_log`" in str(stepper)
    np.testing.assert_allclose(stepper.run().result, jnp.log(X) ** 2, rtol=1e-6)
