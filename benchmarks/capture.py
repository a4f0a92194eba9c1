"""What capturing and recording cost: a compiled gradient with values captured, compared with the same without.

The bound of each is on the median of ratios of runs that alternate, on one machine in one process. That of memory is on
what XLA allocates for one run of a record. A recorded call is the call and one of these; the noise, of which the first
calls and then ever fewer take two more, is not in it.
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
from jaxviz.analysis.addresses import address
from jaxviz.features.values.recording import prepared

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


def _record(*addresses: str) -> Callable[..., Any]:
    found = prepared(loss, arguments(), {}, None, False, [address(a) for a in addresses])

    def run(*args: Any) -> Any:
        return found.call(*jax.tree.leaves(args))

    return run


def _recorded(*addresses: str) -> Callable[..., Any]:
    run, call = _record(*addresses), jax.jit(jax.value_and_grad(loss))
    return lambda *args: (call(*args), run(*args))


FORMS: dict[str, tuple[Callable[[], Callable[..., Any]], float]] = {
    "one carry": (lambda: _captured("layer › h"), 1.03),
    "two values of each layer": (lambda: _captured("layer › h", "layer › down"), 1.1),
    "the norm of the widest": (lambda: _captured("layer › up", reduce=jnp.linalg.norm), 1.1),
    "a call of which each layer is recorded": (lambda: _recorded("layer › h"), 1.25),
    "a call of which all values are recorded": (_recorded, 3.0),
}
"""What is captured or recorded, and the most that it should cost."""
MOST_MEMORY = 1.15
"""Of a record of each layer."""


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
    compiled = [jax.jit(f).lower(*args).compile() for f in (jax.value_and_grad(loss), _record("layer › h"))]
    held = [c.memory_analysis().temp_size_in_bytes for c in compiled]
    over = "" if held[1] <= MOST_MEMORY * held[0] else f", more than {MOST_MEMORY}"
    print(f"a record of each layer: {held[1] / held[0]:.3f} of the temporary memory{over}")


if __name__ == "__main__":
    main("--quick" in sys.argv)
