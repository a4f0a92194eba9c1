"""How many bytes a loop over microbatches takes for a second gradient, as `jaxviz.lint` says, and as XLA's temporaries
fall if the advice is followed, for real models with float32 parameters and small microbatches.

`python -m benchmarks.microbatches [--quick]`; nothing is run. On a CPU, XLA computes with bfloat16 parameters in copies
of float32, so that its temporaries say nothing about other devices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

import jaxviz
from benchmarks.remat_programs import Case, diffusion, llama, mixture_of_experts, no_wrap, recurrent

N = 4
"""Microbatches."""


def indexed(n_layers: int, width: int) -> Case:
    """Layers whose weights a loop reads by its index, and those of the next one."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        def layer(i: int, h: jax.Array) -> jax.Array:
            return h + jnp.tanh(h @ params["in"][i]) @ params["out"][i] + jnp.tanh(h @ params["in"][(i + 1) % n_layers])

        return jnp.mean(jnp.square(jax.lax.fori_loop(0, n_layers, layer, x)))

    weights = jax.ShapeDtypeStruct((n_layers, width, width), jnp.float32)
    return Case(lambda _: loss, ({"in": weights, "out": weights}, jax.ShapeDtypeStruct((8, width), jnp.float32)))


CASES: Mapping[str, Callable[[], Case]] = {
    "transformer, 32 layers": lambda: llama(32, True, 1024, 2048, length=64, words=100),
    "RNN": lambda: recurrent(16, 32, 4, 512),
    "transformer, 32 layers, 7B": lambda: llama(32, True, batch=1, length=512),
    "MoE transformer, 24 layers": lambda: mixture_of_experts(24, True, batch=1, length=512),
    "diffusion step": lambda: diffusion(24, 1),
    "layers by index": lambda: indexed(12, 512),
}


def carried(loss: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient summed over microbatches, in the carry of a scan."""

    def step(params: Any, batches: Any) -> Any:
        def one(total: Any, batch: Any) -> Any:
            value, gradient = jax.value_and_grad(loss)(params, *batch)
            return jax.tree.map(jnp.add, total, gradient), value

        return jax.lax.scan(one, jax.tree.map(jnp.zeros_like, params), batches)

    return step


def in_place(loss: Callable[..., Any]) -> Callable[..., Any]:
    """The same as `jaxviz.lint` advises."""

    def step(params: Any, batches: Any) -> Any:
        total = jax.tree.map(lambda p: jax.new_ref(jnp.zeros_like(p)), params)

        def one(_: None, batch: Any) -> Any:
            value, pull = jax.vjp(lambda p: loss(p, *batch), params)
            pull.with_refs(total)(jnp.ones_like(value))
            return None, value

        _, values = jax.lax.scan(one, None, batches)
        return jax.tree.map(jax.freeze, total), values

    return step


def advised(loss: Callable[..., Any], params: Any, batches: Any) -> int:
    """The bytes that the advice says."""
    report = jaxviz.lint(carried(loss), params, batches)
    return sum(a.nbytes for a in report if a.rule == "sum-in-carry")


def fall(loss: Callable[..., Any], params: Any, batches: Any) -> int:
    """By how many bytes XLA's temporaries fall."""
    before, after = (
        jax.jit(of(loss)).lower(params, batches).compile().memory_analysis().temp_size_in_bytes
        for of in (carried, in_place)
    )
    return int(before - after)


def typed(case: Case) -> tuple[Callable[..., Any], Any, Any]:
    """The loss of a program, its parameters as types of float32, and those of the microbatches."""
    wide = lambda a: jax.ShapeDtypeStruct(a.shape, jnp.float32) if a.dtype == jnp.bfloat16 else a
    params, *batch = jax.tree.map(wide, case.args)
    stacked = lambda a: jax.ShapeDtypeStruct((N, *a.shape), a.dtype)
    return case.make(no_wrap), params, jax.tree.map(stacked, tuple(batch))


def main(quick: bool) -> None:
    """Prints both figures, and their ratio."""
    print(f"\nBytes of a second gradient in a loop over {N} microbatches, MiB: as advised, XLA's fall, and their ratio")
    for name in list(CASES)[: 2 if quick else None]:
        args = typed(CASES[name]())
        says, found = advised(*args), fall(*args)
        print(f"  {name:28}{says / 2**20:10.1f}{found / 2**20:10.1f}{says / found:8.3f}")


if __name__ == "__main__":
    main("--quick" in sys.argv)
