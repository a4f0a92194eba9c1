"""What capturing costs: a compiled gradient with values captured, compared with the same without.

The bound of each is on the median of ratios of runs that alternate, on one machine in one process.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxviz

WIDTH, BATCH, LAYERS = 256, 512, 12


def loss(params: Any, x: jax.Array) -> jax.Array:
    def layer(h: jax.Array, p: Any) -> tuple[jax.Array, None]:
        up = jax.nn.gelu(h @ p["up"])
        down = up @ p["down"]
        h = h + down
        return h, None

    h, _ = jax.lax.scan(layer, x, params)
    return jnp.mean(h * h)


def arguments() -> tuple[Any, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    up = jax.random.normal(keys[0], (LAYERS, WIDTH, 4 * WIDTH)) / WIDTH**0.5
    down = 0.1 * jax.random.normal(keys[1], (LAYERS, 4 * WIDTH, WIDTH)) / WIDTH**0.5
    return {"up": up, "down": down}, jax.random.normal(keys[2], (BATCH, WIDTH))


def _captured(*addresses: str, **how: Any) -> Callable[..., Any]:
    captured: Callable[..., Any] = jax.jit(jax.value_and_grad(jaxviz.capture(loss, *addresses, **how), has_aux=True))
    return captured


FORMS: dict[str, tuple[Callable[[], Callable[..., Any]], float]] = {
    "one carry": (lambda: _captured("layer › h"), 1.03),
    "two values of each layer": (lambda: _captured("layer › h", "layer › down"), 1.1),
    "the norm of the widest": (lambda: _captured("layer › up", reduce=jnp.linalg.norm), 1.1),
}
"""What is captured, and the most that it should cost."""


def compare(plain: Callable[..., Any], other: Callable[..., Any], args: Any, n: int) -> float:
    """The median of the ratios of times of runs that alternate."""
    ratios = []
    for f in (plain, other):
        jax.block_until_ready(f(*args))
    for _ in range(n):
        times = []
        for f in (plain, other):
            start = time.perf_counter()
            jax.block_until_ready(f(*args))
            times.append(time.perf_counter() - start)
        ratios.append(times[1] / times[0])
    return statistics.median(ratios)


def main(quick: bool = False) -> None:
    args = jax.block_until_ready(arguments())
    plain = jax.jit(jax.value_and_grad(loss))
    for name, (make, most) in FORMS.items():
        ratio = compare(plain, make(), args, 7 if quick else 25)
        over = "" if ratio <= most else f", more than {most}"
        print(f"{name}: {ratio:.3f} of the time of the gradient{over}")


if __name__ == "__main__":
    main("--quick" in sys.argv)
