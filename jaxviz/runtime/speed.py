"""What a device does in a second, measured on it: FLOPs of a matrix product, and bytes that its memory moves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

_WIDTHS = (1024, 2048, 4096, 8192)
_LONG = 5e-3
"""A product that takes this many seconds is long enough: starting it no longer counts."""
_NBYTES, _PASSES = 2**27, (1, 4, 32, 256)
"""More bytes than the caches of a device hold, and how often a run scales them: more often until it is long enough."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of a device.

    Args:
      device: its name, such as 'cpu:0'.
      dtype: of the factors of the measured product.
      flops: FLOPs per second in that product.
      bandwidth: bytes per second that its memory reads and writes.
    """

    device: str
    dtype: str
    flops: float
    bandwidth: float


def measured_speed(device: jax.Device, dtype: Any) -> Speed:
    """Measures a device, which takes about a second.

    Args:
      device: the device, which must be one of this process.
      dtype: of a matrix product's factors.
    """
    name = f"{device.platform}:{device.id}"
    return Speed(name, jnp.dtype(dtype).name, product_speed(device, dtype), memory_speed(device))


def memory_speed(device: jax.Device) -> float:
    """Bytes per second that a device's memory reads and writes, together."""
    bandwidth, x = 0.0, jax.device_put(jnp.ones(_NBYTES // 4, jnp.float32), device)

    def act(passes: Callable[[jax.Array], jax.Array]) -> jax.Array:
        nonlocal x
        x = passes(x)
        return x

    for n in _PASSES:
        seconds = least_seconds(partial(act, _scaled(n)))
        bandwidth = max(bandwidth, 2 * n * _NBYTES / seconds)
        if seconds > _LONG:
            break
    return bandwidth


def _scaled(n: int) -> Any:
    """Scales an array this many times, in its own memory: new memory the host would first have to provide."""
    return jax.jit(lambda x: jax.lax.fori_loop(0, n, lambda _, x: x * 1.0001, x), donate_argnums=0)


def product_speed(device: jax.Device, dtype: Any) -> float:
    """FLOPs per second of a device in a matrix product."""
    flops, square = 0.0, jax.jit(lambda w: w @ w)
    for n in _WIDTHS:
        # Scattered numbers: a device that multiplies ones draws less power, and is faster than it can be in a program.
        w = jax.device_put(jax.random.normal(jax.random.key(0), (n, n)).astype(dtype), device)
        seconds = least_seconds(partial(square, w))
        flops = max(flops, 2 * n**3 / seconds)
        if seconds > _LONG:
            break
    return flops


def least_seconds(act: Callable[[], Any]) -> float:
    """The least time of several runs."""
    least = math.inf
    for _ in range(4):
        start = time.perf_counter()
        jax.block_until_ready(act())
        least = min(least, time.perf_counter() - start)
    return max(least, 1e-9)
