"""The number of line crossings in the graph pane with every box open, in our own layout and in Graphviz's, for six
graphs. Needs Node."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import jaxviz
from benchmarks import models
from jaxviz.page.schema import encode

WIDGETS = Path(__file__).parents[1] / "widgets"

Case = tuple[Any, tuple[Any, ...]]


def mlp() -> Case:
    return models.mlp_loss, (models.mlp_params(3), jnp.ones((8, 32)), jnp.zeros((8, 32)))


def unet() -> Case:
    """A small U-Net: two convolutions at each of four sizes, with skip connections."""

    def conv(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def block(x: jax.Array, p: tuple[jax.Array, jax.Array]) -> jax.Array:
        for w in p:
            x = jax.nn.relu(conv(x, w))
        return x

    def loss(params: dict[str, Any], images: jax.Array, target: jax.Array) -> jax.Array:
        x, skips = images, []
        for p in params["down"]:
            x = block(x, p)
            skips.append(x)
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = block(x, params["middle"])
        for p, skip in zip(params["up"], reversed(skips), strict=True):
            x = jax.image.resize(x, (*skip.shape[:3], x.shape[-1]), "nearest")
            x = block(jnp.concatenate([x, skip], -1), p)
        return jnp.mean((conv(x, params["out"]) - target) ** 2)

    def weights(given: int, made: int) -> tuple[jax.Array, jax.Array]:
        return models.full(0.1, 3, 3, given, made), models.full(0.1, 3, 3, made, made)

    params = {
        "down": [weights(1, 4), weights(4, 8), weights(8, 16)],
        "middle": weights(16, 32),
        "up": [weights(48, 16), weights(24, 8), weights(12, 4)],
        "out": models.full(0.1, 1, 1, 4, 1),
    }
    images = models.full(1.0, 2, 32, 32, 1)
    return loss, (params, images, images)


def rnn() -> Case:
    """A loop with a branch in each iteration."""

    def loss(params: dict[str, jax.Array], xs: jax.Array) -> jax.Array:
        def cell(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            h = jnp.tanh(params["w"] @ h + params["u"] @ x)
            h = jax.lax.cond(h[0] > 0, jnp.cos, jnp.sin, h)
            return h, params["v"] @ h

        return jnp.mean(jax.lax.scan(cell, jnp.zeros(16), xs)[1] ** 2)

    params = {"w": models.full(0.1, 16, 16), "u": models.full(0.1, 16, 8), "v": models.full(0.1, 3, 16)}
    return loss, (params, models.full(1.0, 32, 8))


GRAPHS = {
    "MLP": (mlp, ("jvp",)),
    "transformer layer": (lambda: models.transformer(1), ("jvp", "backward")),
    "U-Net": (unet, ("primal", "jvp")),
    "scan with a cond": (rnn, ("jvp",)),
}
"""The programs, with the stages of each that a quick run shows."""


def measured() -> dict[tuple[str, str], dict[str, Any]]:
    """For each program and stage the number of boxes, and for our layout and Graphviz's the crossings, the width in
    pixels and the milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i, (make, _) in enumerate(GRAPHS.values()):
            function, args = make()
            paths.append(Path(folder, f"{i}.view"))
            paths[-1].write_bytes(encode(jaxviz.explore(function, *args).view))
        command = ["node", "bench/run.mjs", *map(str, paths)]
        ran = subprocess.run(command, cwd=WIDGETS, capture_output=True, text=True, check=True)
    return {
        (name, found["stage"]): found
        for name, stages in zip(GRAPHS, json.loads(ran.stdout), strict=True)
        for found in stages
    }


def main(quick: bool = False) -> None:
    print("\nCrossing lines in the graph, with every box open: jaxviz's layout and Graphviz's; widths; time")
    for (name, stage), found in measured().items():
        if quick and stage not in GRAPHS[name][1]:
            continue
        (ours, theirs), (wide, wider), (own, other) = (found[key] for key in ("crossings", "width", "milliseconds"))
        print(
            f"  {name + ', ' + stage:28}{found['boxes']:4} boxes {ours:6} {theirs:4}    target: no more than Graphviz"
            f"    {wide:6.0f} {wider:6.0f} px    {own:5.0f} {other:5.0f} ms"
        )


if __name__ == "__main__":
    main()
