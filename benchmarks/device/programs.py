"""The programs whose compiled memory and time are measured: loops, attention, convolutions, donated steps, values moved
to the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from benchmarks.device.device import is_accelerator, size
from benchmarks.remat_programs import array, half, llama


@dataclass(frozen=True)
class Subject:
    """A program.

    Args:
      fun: a loss, or a training step.
      args: abstract arguments.
      step: whether it is a training step, which is compiled as it is.
    """

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    step: bool = False

    def jitted(self) -> Any:
        """What JAX compiles: the step, or the value and gradient of the loss."""
        return self.fun if self.step else jax.jit(jax.value_and_grad(self.fun))


def block(h: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(h @ w) * jnp.sin(h)


def scanned(ws: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.sum(lax.scan(lambda h, w: (block(h, w), None), x, ws)[0] ** 2)


def scanned_with_checkpoints(ws: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.sum(lax.scan(jax.checkpoint(lambda h, w: (block(h, w), None)), x, ws)[0] ** 2)


def unrolled(ws: jax.Array, x: jax.Array) -> jax.Array:
    for w in ws:
        x = block(x, w)
    return jnp.sum(x**2)


def attention(layers: Any, x: jax.Array, fused: bool) -> jax.Array:
    """Layers of attention, by cuDNN's kernel if `fused`."""
    b, n, width = x.shape
    how = "cudnn" if fused and is_accelerator() else None
    for p in layers:
        heads = [(x @ p[name]).reshape(b, n, -1, 64) for name in "qkv"]
        found = jax.nn.dot_product_attention(*heads, is_causal=True, implementation=how)
        x = x + found.reshape(b, n, width) @ p["o"]
    return jnp.mean(x.astype(jnp.float32) ** 2)


def convolutions(kernels: Any, x: jax.Array) -> jax.Array:
    for kernel in kernels:
        x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.gelu(x)
    return jnp.mean(x**2)


def _error(ws: Any, x: jax.Array) -> jax.Array:
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


@partial(jax.jit, donate_argnums=(0, 1))
def donated_step(ws: Any, momentum: Any, x: jax.Array) -> Any:
    value, grads = jax.value_and_grad(_error)(ws, x)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda w, m: w - 0.1 * m, ws, momentum), momentum, value


def named(policy: Any) -> Callable[..., Any]:
    """A scan whose body names what it computes, under a policy."""

    @partial(jax.checkpoint, policy=policy)
    def body(x: jax.Array, w: jax.Array) -> Any:
        y = checkpoint_name(jnp.tanh(x @ w), "hidden")
        return jnp.sin(checkpoint_name(y @ w, "output")), None

    def named_loss(ws: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(lax.scan(body, x, ws)[0] ** 2)

    return named_loss


OFFLOADED = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=["hidden", "output"],
    offload_src="device",
    offload_dst="pinned_host",
)
SAVED = jax.checkpoint_policies.save_only_these_names("hidden", "output")


def offload_args() -> tuple[Any, ...]:
    return array(size(4, 16), *[size(64, 2048)] * 2), array(size(256, 16384), size(64, 2048))


def subjects() -> dict[str, Subject]:
    width, rows, n = size(64, 2048), size(256, 16384), size(4, 8)
    w, x, stack = array(width, width), array(rows, width), array(n, width, width)
    tokens = half(size(2, 8), size(32, 2048), size(128, 1024))
    layer = {name: half(*[size(128, 1024)] * 2) for name in "qkvo"}
    kernel = array(3, 3, *[size(8, 64)] * 2)
    image = array(size(2, 32), *[size(16, 128)] * 2, size(8, 64))
    transformer = llama(
        size(2, 4), True, size(64, 2048), size(128, 5504), length=size(64, 2048), words=size(100, 32000)
    )
    return {
        "scan": Subject(scanned, (stack, x)),
        "scan with checkpoints": Subject(scanned_with_checkpoints, (stack, x)),
        "unrolled": Subject(unrolled, ([w] * n, x)),
        "attention": Subject(partial(attention, fused=False), ([layer] * 2, tokens)),
        "attention by cuDNN": Subject(partial(attention, fused=True), ([layer] * 2, tokens)),
        "convolutions": Subject(convolutions, ([kernel] * 4, image)),
        "donated step": Subject(donated_step, ([w] * n, [w] * n, x), step=True),
        "offloaded scan": Subject(named(OFFLOADED), offload_args()),
        "transformer, scanned": Subject(transformer.plain, transformer.args),
    }
