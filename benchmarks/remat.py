"""Plans of what to save beside JAX's checkpoint policies, set on each block: bytes kept, and FLOPs computed again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxviz
from benchmarks import models

POLICIES = ("dots_saveable", "dots_with_no_batch_dims_saveable", "nothing_saveable")

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def transformer_with(wrap: Wrap) -> Callable[..., jax.Array]:
    block = wrap(models.layer)

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x = params["embedding"][tokens]
        for p in params["layers"]:
            x = block(p, x)
        return models.prediction_loss(params, x, tokens)

    return loss


def conv_block(p: Any, x: jax.Array) -> jax.Array:
    y = jax.lax.conv_general_dilated(x, p["first"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    y = jax.nn.gelu((y - y.mean((1, 2), keepdims=True)) * jax.lax.rsqrt(y.var((1, 2), keepdims=True) + 1e-5))
    y = jax.lax.conv_general_dilated(y, p["second"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.gelu(x + y)


def conv_net_with(wrap: Wrap) -> Callable[..., jax.Array]:
    block = wrap(conv_block)

    def loss(params: Any, x: jax.Array) -> jax.Array:
        for p in params:
            x = block(p, x)
        return jnp.mean(x**2)

    return loss


def conv_net(n_blocks: int) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(0), 2 * n_blocks)
    kernel = lambda key: jax.random.normal(key, (3, 3, 16, 16)) * 0.1
    params = [{"first": kernel(keys[2 * i]), "second": kernel(keys[2 * i + 1])} for i in range(n_blocks)]
    return params, jnp.ones((4, 16, 16, 16))


def lstm_with(wrap: Wrap) -> Callable[..., jax.Array]:
    """The body of each layer's scan is the block."""
    return lambda params, xs, target: models.lstm_loss(params, xs, target, wrap)


def held(f: Callable[..., Any], args: tuple[Any, ...]) -> int:
    """Bytes of the residuals that JAX holds, each value once."""
    found: list[int] = []

    def hold(*args: Any) -> None:
        _, pull = jax.vjp(lambda p: f(p, *args[1:]), args[0])
        leaves = {id(x): x for x in jax.tree.leaves(pull)}
        found.append(sum(int(x.size) * x.dtype.itemsize for x in leaves.values()))

    jax.make_jaxpr(hold)(*args)
    return found[0]


def flops(f: Callable[..., Any], args: tuple[Any, ...]) -> int:
    """Of forward and backward, but for the rounding of what a checkpoint saves."""
    return sum(r.cost.flops for r in jaxviz.cost(f, *args).rows if r.primitive != "reduce_precision")


def main(quick: bool = False) -> None:
    layers = 3 if quick else 12
    lstm_args = models.lstm(1, length=32 if quick else 512)[1]
    programs: dict[str, tuple[Callable[[Wrap], Callable[..., Any]], tuple[Any, ...]]] = {
        f"transformer, {layers} layers": (
            transformer_with,
            (models.transformer_params(layers, 64, 256), jnp.arange(48)),
        ),
        f"conv net, {layers} blocks": (conv_net_with, conv_net(layers)),
        f"LSTM, {lstm_args[1].shape[0]} steps": (lstm_with, lstm_args),
    }
    print("\nPlans beside JAX's policies on each block: FLOPs computed again at the policy's bytes, bytes at its FLOPs")
    for name, (make, args) in programs.items():
        plain = make(lambda block: block)
        base = flops(plain, args)
        start = time.perf_counter()
        jaxviz.plan_remat(plain, *args, budget=0.9)
        print(
            f"  {name}: {held(plain, args):,} B kept without a checkpoint; planned in {time.perf_counter() - start:.2f} s"
        )
        for policy in POLICIES:
            saves = getattr(jax.checkpoint_policies, policy)
            with_policy = make(lambda block, saves=saves: jax.checkpoint(block, policy=saves))
            theirs = held(with_policy, args), flops(with_policy, args) - base
            try:
                plan = jaxviz.plan_remat(plain, *args, budget=theirs[0])
            except ValueError as error:
                print(
                    f"    {policy:34} {theirs[0]:>10,} B {theirs[1]:>12,} FLOPs; no plan: {str(error).split(':')[-1]}"
                )
                continue
            fewer = 1 - plan.flops / theirs[1] if theirs[1] else 0.0
            enough = min(p.nbytes for p in (plan.point, *plan.front) if p.flops <= theirs[1])
            print(
                f"    {policy:34} {theirs[0]:>10,} B {theirs[1]:>12,} FLOPs; plan {plan.nbytes:>10,} B {plan.flops:>12,} FLOPs, "
                f"{fewer:.0%} fewer; {enough:,} B at its FLOPs"
            )


if __name__ == "__main__":
    main()
