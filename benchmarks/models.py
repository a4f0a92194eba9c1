"""The measured programs: an MLP and transformers as people write them in plain JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Params = dict[str, Any]


def normal(rng: np.random.Generator, *shape: int, scale: float = 0.1) -> jax.Array:
    """Random numbers from NumPy, like all arrays here: JAX would compile something for each shape."""
    return jax.device_put((rng.normal(size=shape) * scale).astype(np.float32))


def full(value: float, *shape: int) -> jax.Array:
    return jax.device_put(np.full(shape, value, np.float32))


def mlp_params(n_layers: int, width: int = 32) -> list[tuple[jax.Array, jax.Array]]:
    rng = np.random.default_rng(0)
    return [(normal(rng, width, width, scale=width**-0.5), full(0.0, width)) for _ in range(n_layers)]


def mlp_loss(params: list[tuple[jax.Array, jax.Array]], x: jax.Array, y: jax.Array) -> jax.Array:
    for w, b in params:
        x = jnp.tanh(x @ w + b)
    return jnp.mean((x - y) ** 2)


def transformer_params(n_layers: int, width: int = 32, hidden: int = 64, vocabulary: int = 50) -> Params:
    rng = np.random.default_rng(0)

    def layer_params() -> Params:
        square = {name: normal(rng, width, width) for name in ("q", "k", "v", "o")}
        scale = {
            "scale1": full(1.0, width),
            "shift1": full(0.0, width),
            "scale2": full(1.0, width),
            "shift2": full(0.0, width),
        }
        return square | scale | {"up": normal(rng, width, hidden), "down": normal(rng, hidden, width)}

    return {"embedding": normal(rng, vocabulary, width), "layers": [layer_params() for _ in range(n_layers)]}


def layer_norm(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift


def attention(p: Params, x: jax.Array, n_heads: int = 4) -> jax.Array:
    n, width = x.shape
    q, k, v = ((x @ p[name]).reshape(n, n_heads, -1).transpose(1, 0, 2) for name in ("q", "k", "v"))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(width // n_heads)
    scores = jnp.where(jnp.tril(jnp.ones((n, n), bool)), scores, -1e9)
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    weights = weights / weights.sum(-1, keepdims=True)
    return (weights @ v).transpose(1, 0, 2).reshape(n, width) @ p["o"]


def layer(p: Params, x: jax.Array) -> jax.Array:
    x = x + attention(p, layer_norm(x, p["scale1"], p["shift1"]))
    return x + jax.nn.gelu(layer_norm(x, p["scale2"], p["shift2"]) @ p["up"]) @ p["down"]


def transformer_loss(params: Params, tokens: jax.Array) -> jax.Array:
    x = params["embedding"][tokens]
    for p in params["layers"]:
        x = layer(p, x)
    return prediction_loss(params, x, tokens)


def remat_transformer_loss(params: Params, tokens: jax.Array) -> jax.Array:
    """Each layer checkpointed; the results of its matrix products are saved."""
    saves = jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
    x = params["embedding"][tokens]
    for p in params["layers"]:
        x = saves(p, x)
    return prediction_loss(params, x, tokens)


def scan_transformer_loss(params: Params, tokens: jax.Array) -> jax.Array:
    """The layers' parameters stacked, and a scan over them."""
    x, _ = jax.lax.scan(lambda x, p: (layer(p, x), None), params["embedding"][tokens], params["layers"])
    return prediction_loss(params, x, tokens)


def prediction_loss(params: Params, x: jax.Array, tokens: jax.Array) -> jax.Array:
    logits = x @ params["embedding"].T
    log_p = logits - jax.scipy.special.logsumexp(logits, -1, keepdims=True)
    return -jnp.take_along_axis(log_p, tokens[:, None], 1).mean()


def transformer(n_layers: int) -> tuple[Any, tuple[Any, ...]]:
    return transformer_loss, (transformer_params(n_layers), jnp.arange(16))


def remat_transformer(n_layers: int) -> tuple[Any, tuple[Any, ...]]:
    return remat_transformer_loss, (transformer_params(n_layers), jnp.arange(16))


def scan_transformer(n_layers: int) -> tuple[Any, tuple[Any, ...]]:
    params = transformer_params(n_layers)
    stacked = jax.tree.map(lambda *leaves: jax.device_put(np.stack(leaves)), *params["layers"])
    return scan_transformer_loss, ({**params, "layers": stacked}, jnp.arange(16))


def lstm_loss(params: list[Params], xs: jax.Array, target: jax.Array, wrap: Any = lambda cell: cell) -> jax.Array:
    """Layers of LSTM cells over a sequence; `wrap` is applied to each cell, such as `jax.checkpoint`."""
    for p in params:

        def cell(carry: tuple[jax.Array, jax.Array], x: jax.Array, p: Params = p) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(x @ p["in"] + h @ p["hidden"] + p["bias"], 4)
            c = jax.nn.sigmoid(f + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros(p["hidden"].shape[0])
        _, xs = jax.lax.scan(wrap(cell), (zero, zero), xs)
    return jnp.mean((xs - target) ** 2)


def lstm(n_layers: int, width: int = 16, length: int = 20) -> tuple[Any, tuple[Any, ...]]:
    rng = np.random.default_rng(0)
    params = [
        {
            "in": normal(rng, width, 4 * width),
            "hidden": normal(rng, width, 4 * width),
            "bias": full(0.0, 4 * width),
        }
        for _ in range(n_layers)
    ]
    return lstm_loss, (params, full(1.0, length, width), full(0.0, length, width))


def mlp(n_layers: int) -> tuple[Any, tuple[Any, ...]]:
    return mlp_loss, (mlp_params(n_layers), full(1.0, 8, 32), full(1.0, 8, 32))


def experts_loss(p: Params, x: jax.Array) -> jax.Array:
    """Two of eight experts count for each token, and all of them compute on it."""

    def experts(p: Params, x: jax.Array) -> jax.Array:
        best, which = jax.lax.top_k(jax.nn.softmax(x @ p["gate"]), 2)
        sent = jax.nn.one_hot(which, p["gate"].shape[1]) * best[..., None]
        hidden = jax.nn.relu(jnp.einsum("td,edf->tef", x, p["up"]))
        return jnp.einsum("tef,efd,tke->td", hidden, p["down"], sent)

    return jnp.mean(experts(p, x) ** 2)


def mixture_of_experts() -> tuple[Any, tuple[Any, ...]]:
    """As types."""
    of = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return experts_loss, ({"gate": of(128, 8), "up": of(8, 128, 256), "down": of(8, 256, 128)}, of(512, 128))


def accumulate(x: jax.Array, parts: Any) -> jax.Array:
    """The sum of an array and of what functions compute from the sum so far."""
    for part in parts:
        x = x + part(x)
    return x


def accumulate_in_place(x: jax.Array, parts: Any) -> jax.Array:
    """The same sum, in a reference."""
    total = jax.new_ref(x)
    for part in parts:
        jax.ref.addupdate(total, ..., part(total[...]))
    return jax.freeze(total)


def summed_transformer(n_layers: int, add: Any) -> tuple[Any, tuple[Any, ...]]:
    """A transformer whose layers add to a sum with `accumulate` or `accumulate_in_place`."""

    def loss(params: Params, tokens: jax.Array) -> jax.Array:
        parts = [
            part
            for p in params["layers"]
            for part in (
                lambda x, p=p: attention(p, layer_norm(x, p["scale1"], p["shift1"])),
                lambda x, p=p: jax.nn.gelu(layer_norm(x, p["scale2"], p["shift2"]) @ p["up"]) @ p["down"],
            )
        ]
        return prediction_loss(params, add(params["embedding"][tokens], parts), tokens)

    return loss, transformer(n_layers)[1]


def ruled_transformer(n_layers: int, has_jvp_rule: bool) -> tuple[Any, tuple[Any, ...]]:
    """A transformer whose layers have an activation with a custom JVP rule, or a custom VJP rule."""

    def swish(x: jax.Array) -> jax.Array:
        return x * jax.nn.sigmoid(x)

    def slope(x: jax.Array) -> jax.Array:
        s = jax.nn.sigmoid(x)
        return s + x * s * (1.0 - s)

    f: Any
    if has_jvp_rule:
        f = jax.custom_jvp(swish)
        f.defjvp(lambda primals, tangents: (swish(*primals), slope(*primals) * tangents[0]))
    else:
        f = jax.custom_vjp(swish)
        f.defvjp(lambda x: (swish(x), x), lambda x, ct: (slope(x) * ct,))

    def loss(params: Params, tokens: jax.Array) -> jax.Array:
        x = params["embedding"][tokens]
        for p in params["layers"]:
            x = x + attention(p, layer_norm(x, p["scale1"], p["shift1"]))
            x = x + f(layer_norm(x, p["scale2"], p["shift2"]) @ p["up"]) @ p["down"]
        return prediction_loss(params, x, tokens)

    return loss, transformer(n_layers)[1]
