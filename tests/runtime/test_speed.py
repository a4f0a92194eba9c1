"""What a device does in a second."""

import jax
import jax.numpy as jnp
import pytest

from jaxviz.runtime.speed import least_seconds, measured_speed


@pytest.mark.slow(sweep=True)
def test_no_product_and_no_copy_is_much_faster_than_what_was_measured():
    (device, *_) = jax.devices()
    speed = measured_speed(device, jnp.float32)
    assert (speed.device, speed.dtype) == ("cpu:0", "float32")
    w, x = jnp.ones((1500, 1500)), jnp.ones(2**26)
    product, doubled = jax.jit(lambda w: w @ w), jax.jit(lambda x: x + x)
    # The machine may be busy with something else during either.
    assert 2 * 1500**3 / least_seconds(lambda: product(w)) < 4 * speed.flops
    assert 2 * x.nbytes / least_seconds(lambda: doubled(x)) < 4 * speed.bandwidth
