"""The cost of probes: a training step of the 12-layer transformer, plain, with probes that nobody watches, and watched
in each way."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxviz
from benchmarks.models import Params, layer, prediction_loss, transformer_loss, transformer_params

N_LAYERS = 12


def probed_loss(params: Params, tokens: jax.Array) -> jax.Array:
    """`transformer_loss` with a probe after each layer, and one of the loss."""
    x = params["embedding"][tokens]
    for i, p in enumerate(params["layers"]):
        x = jaxviz.probe(layer(p, x), f"layer{i}")
    return jaxviz.probe(prediction_loss(params, x, tokens), "loss")


def debug_loss(params: Params, tokens: jax.Array) -> jax.Array:
    """The same values passed to `jax.debug.callback`, in full, without their cotangents."""
    x = params["embedding"][tokens]
    for p in params["layers"]:
        x = layer(p, x)
        jax.debug.callback(lambda x: None, x)
    loss = prediction_loss(params, x, tokens)
    jax.debug.callback(lambda x: None, loss)
    return loss


def training_step(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    @jax.jit
    def step(params: Params, tokens: jax.Array) -> tuple[Params, jax.Array]:
        value, grads = jax.value_and_grad(loss)(params, tokens)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), value

    return step


Way = tuple[str, Callable[..., Any], Callable[[], Any]]
"""A name, a step, and the context in which it runs."""


def ways() -> list[Way]:
    plain, probed, debugged = map(training_step, (transformer_loss, probed_loss, debug_loss))
    watching = lambda **options: lambda: jaxviz.watch("*", **options)
    return [
        ("plain", plain, contextlib.nullcontext),
        ("plain again", plain, contextlib.nullcontext),
        ("probes, nothing watched", probed, contextlib.nullcontext),
        ("the loss watched", probed, lambda: jaxviz.watch("loss", cotangents=False)),
        ("summaries of values", probed, watching(cotangents=False)),
        ("summaries of values and cotangents", probed, watching()),
        ("whole values and cotangents", probed, watching(what="value")),
        ("jax.debug.callback, whole values", debugged, contextlib.nullcontext),
    ]


def measured(
    ways_made: list[Way], params: Params, tokens: jax.Array, rounds: int, steps: int
) -> dict[str, tuple[list[float], str]]:
    """For each way the seconds of a step in each round, interleaved, and the cost that the watch itself reports."""
    found: dict[str, tuple[list[float], str]] = {}
    for number in range(rounds + 1):
        for name, step, context in ways_made:
            with context() as w:
                p, value = step(params, tokens)
                jax.block_until_ready(value)
                jax.effects_barrier()
                start = time.perf_counter()
                for _ in range(steps):
                    p, value = step(p, tokens)
                jax.block_until_ready(value)
                jax.effects_barrier()
                seconds = (time.perf_counter() - start) / steps
            if number:  # the first round compiles
                found.setdefault(name, ([], ""))[0].append(seconds)
                found[name] = found[name][0], str(w.cost) if w is not None else ""
    return found


def main(quick: bool = False) -> None:
    made = ways()
    for width, n_tokens, rounds, steps in ((32, 16, 25, 20), (256, 256, 8, 3)):
        params, tokens = transformer_params(N_LAYERS, width, 2 * width), jnp.arange(n_tokens) % 50
        found = measured(made, params, tokens, 3 if quick else rounds, steps)
        least = min(found["plain"][0])
        print(f"\nA training step of the {N_LAYERS}-layer transformer, width {width}, {n_tokens} tokens; 13 probes")
        for name, (seconds, cost) in found.items():
            # Relative to the plain step of the same round, since the speed of the machine varies.
            ratio = statistics.median(s / p for s, p in zip(seconds, found["plain"][0], strict=True))
            print(
                f"  {name:38s} {min(seconds) * 1e3:7.2f} ms  {min(seconds) / least:5.2f} of plain ({ratio:.2f} median) "
                f" {cost}"
            )


if __name__ == "__main__":
    main()
