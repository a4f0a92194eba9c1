"""Finding where a NaN is born, beside compiling and running the plain gradient once: time, and XLA's temporary memory."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import jaxviz
from benchmarks import models
from benchmarks.derivation import forget, seconds
from jaxviz.analysis import find_nan as finding
from jaxviz.emit import as_function
from jaxviz.transforms.flags import flag_program

MOST_TIME, MOST_MEMORY = 3.0, 1.5


def broken_transformer(n_layers: int) -> tuple[Any, tuple[Any, ...]]:
    """One scale in one layer is so large that a product overflows."""
    loss, (params, tokens) = models.transformer(n_layers)
    params["layers"][n_layers // 2]["scale1"] = params["layers"][n_layers // 2]["scale1"].at[3].set(1e38)
    return loss, (params, tokens)


def recurrent_loss(w: jax.Array, xs: jax.Array) -> jax.Array:
    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(h @ w + x)
        return h, jnp.sqrt(jnp.sum(h**2))

    return jnp.mean(lax.scan(step, jnp.zeros(w.shape[0]), xs)[1])


def broken_scan(length: int, width: int = 32) -> tuple[Any, tuple[Any, ...]]:
    """In one step the norm of zeros is taken."""
    return recurrent_loss, (jnp.zeros((width, width)), jnp.ones((length, width)).at[length // 2].set(0.0))


def plain(f: Callable[..., Any], args: tuple[Any, ...]) -> int:
    """Compiles and runs the gradient; bytes of XLA's temporary memory."""
    compiled = jax.jit(jax.value_and_grad(f)).lower(*args).compile()
    jax.block_until_ready(compiled(*args))
    return int(compiled.memory_analysis().temp_size_in_bytes)


def temporary(f: Callable[..., Any], args: tuple[Any, ...]) -> int:
    """Bytes of XLA's temporary memory in the program with flags."""
    subject = finding._subject(f, args, {}, 0, None)
    flagged = as_function(flag_program(subject.program).program)
    compiled = finding.run_once(subject.program, flagged).lower(*subject.inputs).compile()
    return int(compiled.memory_analysis().temp_size_in_bytes)


def main(quick: bool = False) -> None:
    programs = {"transformer of 12 layers": broken_transformer(12), "scan of 1,000 steps": broken_scan(1000)}
    print("\nfind_nan, beside the gradient compiled and run once (both from nothing)")
    print(f"{'':26}  {'gradient':>9}  {'find_nan':>9}  {'ratio':>6}  asked  {'memory':>7}  asked  found at")
    for name, (f, args) in programs.items():
        pairs = []
        for _ in range(1 if quick else 5):
            forget()
            theirs = seconds(lambda f=f, args=args: plain(f, args))
            forget()
            pairs.append((theirs, seconds(lambda f=f, args=args: jaxviz.find_nan(f, *args))))
        theirs, ours = (statistics.median(t) for t in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        memory = temporary(f, args) / plain(f, args)
        report = jaxviz.find_nan(f, *args)
        assert report is not None
        assert report.born is not None
        print(
            f"{name:26}  {theirs:7.2f} s  {ours:7.2f} s  {ratio:5.2f}x  < {MOST_TIME:.0f}x  {memory:6.2f}x  < {MOST_MEMORY:.1f}x  "
            f"{report.born.short}"
        )


if __name__ == "__main__":
    main()
