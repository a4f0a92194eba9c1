"""Plans of what to save: compared with JAX's checkpoint policies on each block, and with the optimum; and the time of
planning."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxviz
from benchmarks import models, remat_against
from jaxviz.derivation import derive
from jaxviz.features.remat.choices import Part
from jaxviz.features.remat.graph import Graph
from jaxviz.features.remat.search import Search
from jaxviz.ir.syntax import Literal

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
    """Bytes of the residuals that JAX saves, each value counted once."""
    found: list[int] = []

    def hold(*args: Any) -> None:
        _, pull = jax.vjp(lambda p: f(p, *args[1:]), args[0])
        leaves = {id(x): x for x in jax.tree.leaves(pull)}
        found.append(sum(int(x.size) * x.dtype.itemsize for x in leaves.values()))

    jax.make_jaxpr(hold)(*args)
    return found[0]


def flops(f: Callable[..., Any], args: tuple[Any, ...]) -> int:
    """FLOPs of forward and backward, without the rounding of values that a checkpoint saves."""
    return sum(r.cost.flops for r in jaxviz.cost(f, *args).rows if r.primitive != "reduce_precision")


def every_outcome(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Bytes and FLOPs for all sets of names, in a function without loops: number k saves the names whose bits are set
    in k."""
    n = len(graph.candidates)
    sets = np.arange(2**n, dtype=np.uint32)
    nowhere = np.zeros(len(sets), bool)
    wanted = {graph.resolved(a): ~nowhere for a in graph.needed}
    bit = {name: k for k, name in enumerate(graph.candidates)}
    sizes, flops = np.zeros(len(sets), np.int64), np.zeros(len(sets), np.int64)
    for node, work in zip(reversed(graph.nodes), reversed(graph.flops), strict=True):
        made = [wanted.pop(v) for v in node.equation.outvars if v in wanted]
        if not made:
            continue
        here = np.logical_or.reduce(made)
        flops += work * here
        if node.name:
            is_saved = (sets >> bit[node.name]) & 1 == 1
            sizes += node.nbytes * (here & is_saved)
            here &= ~is_saved
        for a in node.equation.invars:
            if not isinstance(a, Literal):
                wanted[graph.resolved(a)] = wanted.get(graph.resolved(a), nowhere) | here
    sizes += sum(v.aval.size * v.aval.dtype.itemsize * wanted[v] for v in graph.inputs if v in wanted)
    return sizes, flops


def with_all_values(search: Search) -> Part:
    """What one checkpoint could save of a function without loops, with every array that an equation computes as a
    candidate, including those that the plan excludes immediately."""
    graph = search.graph
    read = {a for e in graph.flat.equations for a in e.invars}.union(graph.flat.outvars)
    values = [v for e in graph.flat.equations for v in e.outvars if v in read]
    return search.counted.restricted({f"value_{k}": (v,) for k, v in enumerate(values)})


def small_mlp(ws: Any, x: jax.Array) -> jax.Array:
    for w in ws:
        x = jnp.tanh(x @ w) * 2.0 + jnp.sin(x)
    return jnp.mean(x**2)


def small_attention(p: Any, x: jax.Array) -> jax.Array:
    q, k, v = (x @ p[name] for name in ("q", "k", "v"))
    scores = jnp.exp(q @ k.T)
    weights = scores / scores.sum(-1, keepdims=True)
    x = x + jnp.tanh(weights @ v @ p["o"])
    return jnp.sum(jnp.sin(x @ p["up"]) @ p["down"] * x)


def small_norm(p: Any, x: jax.Array) -> jax.Array:
    y = models.layer_norm(x @ p["q"], p["scale1"], p["shift1"])
    return jnp.sum(jnp.exp(y @ p["up"]) @ p["down"])


def small_programs() -> dict[str, tuple[Callable[..., jax.Array], tuple[Any, ...]]]:
    """Functions with up to 25 values that could be saved."""
    params = models.transformer_params(1, 16, 48)["layers"][0]
    x = jax.random.normal(jax.random.key(1), (24, 16))
    return {
        "MLP": (small_mlp, ([params[name] for name in ("q", "k", "v", "o")], x)),
        "attention": (small_attention, (params, x)),
        "layer norm": (small_norm, (params, x)),
    }


def against_all_sets(shares: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)) -> None:
    print(
        "\nPlans compared with the best of all sets of values: FLOPs recomputed, at budgets between the fewest bytes "
        "and all"
    )
    for name, (f, args) in small_programs().items():
        search = Search(derive(f, *args), False)
        graph = with_all_values(search).graph
        sizes, flops = every_outcome(graph)
        budgets = [int(search.least + share * (search.opened.nbytes - search.least)) for share in shares]
        found = [(search.form_within(b).work, int(flops[sizes <= b].min())) for b in budgets]
        listed = ", ".join(f"{ours:,} of {best:,}" for ours, best in found)
        print(f"  {name}, {len(graph.candidates)} values: {listed}")


def against_policies(quick: bool) -> None:
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
    print("\nPlans compared with JAX's policies on each block: FLOPs recomputed at the policy's bytes")
    for name, (make, args) in programs.items():
        plain = make(lambda block: block)
        base = flops(plain, args)
        start = time.perf_counter()
        jaxviz.plan_remat(plain, *args, budget=0.9)
        took = time.perf_counter() - start
        print(f"  {name}: {held(plain, args):,} B saved without a checkpoint; planned in {took:.2f} s")
        for policy in POLICIES:
            saves = getattr(jax.checkpoint_policies, policy)
            with_policy = make(lambda block, saves=saves: jax.checkpoint(block, policy=saves))
            theirs = held(with_policy, args), flops(with_policy, args) - base
            plan = jaxviz.plan_remat(plain, *args, budget=theirs[0])
            planned = plan.apply(plain)
            assert held(planned, args) == plan.nbytes <= theirs[0]
            assert flops(planned, args) - base == plan.flops
            fewer = 1 - plan.flops / theirs[1] if theirs[1] else 0.0
            print(
                f"    {policy:34} {theirs[0]:>10,} B {theirs[1]:>12,} FLOPs; plan {plan.nbytes:>10,} B "
                f"{plan.flops:>12,} FLOPs, "
                f"{fewer:.0%} fewer"
            )


def how_long(n_layers: int) -> None:
    args = models.transformer_params(n_layers, 64, 256), jnp.arange(48)
    jaxviz.plan_remat(models.transformer_loss, models.transformer_params(1, 64, 256), args[1], budget=0.5)
    start = time.perf_counter(), time.process_time()
    plan = jaxviz.plan_remat(models.transformer_loss, *args, budget=0.5)
    took = time.perf_counter() - start[0], time.process_time() - start[1]
    n = len(list(jaxviz.trace(models.transformer_loss)(*args).walk()))
    print(
        f"\nPlanning a transformer of {n_layers} layers, {n:,} equations, {len(plan._search.graph.nodes):,} in the "
        "graph that is solved: "
        f"{took[0]:.2f} s, {took[1]:.2f} s of CPU time"
    )


def main(quick: bool = False) -> None:
    remat_against.main(quick)
    against_policies(quick)
    against_all_sets((0.5,) if quick else (0.1, 0.3, 0.5, 0.7, 0.9))
    how_long(12 if quick else 125)


if __name__ == "__main__":
    main("--quick" in sys.argv)
