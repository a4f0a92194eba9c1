"""What a device does in a second."""

import jax
import jax.numpy as jnp
import pytest

from jaxviz.runtime.speed import _PASSES, _scaled, least_seconds, measured_speed


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


@pytest.mark.parametrize("n", _PASSES)
def test_memory_is_measured_on_memory_that_is_there(n):
    """A program that has to get its memory from the host first is several times slower."""
    scaled = _scaled(n)
    needed = scaled.lower(jnp.ones(2**12)).compile().memory_analysis()
    assert needed.alias_size_in_bytes == needed.output_size_in_bytes == 4 * 2**12
    assert needed.temp_size_in_bytes < 4 * 2**12
    assert float(scaled(jnp.ones(2**12))[0]) == pytest.approx(1.0001**n, rel=1e-3)
