"""The programs on which checkpoint plans are measured: short code, with the structure and the sizes of real models, and
abstract arguments.

Each is a function of `wrap`, which is applied to its repeated parts: nothing, `jax.checkpoint`, or that with a policy.
The transformers' values have MaxText's names, so that its policies apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
Params = dict[str, Any]

POLICIES = jax.checkpoint_policies
_ATTENTION = ("query_proj", "key_proj", "value_proj")
_MLP = ("mlpwi_0", "mlpwi_1", "mlpwo")
MAXTEXT: Mapping[str, tuple[str, ...]] = {
    "minimal": (*_ATTENTION, "out_proj", *_MLP),
    "minimal_with_context": (*_ATTENTION, "context", "out_proj", *_MLP),
    "save_dot_with_context_except_mlp": (*_ATTENTION, "context", "out_proj"),
    "save_dot_except_mlpwi": (*_ATTENTION, "out_proj", "mlpwo"),
    "save_dot_except_mlp": (*_ATTENTION, "out_proj"),
    "save_qkv_proj": _ATTENTION,
    "save_out_proj": ("out_proj",),
}
"""What MaxText's policies save, by the names it gives to a layer's values.

Its `full` saves nothing; the sets that `minimal_offloaded` and `qkv_proj_offloaded` offload to the host are those of
`minimal` and `save_qkv_proj`.
"""


def no_wrap(f: Callable[..., Any]) -> Callable[..., Any]:
    return f


def saving(policy: Callable[..., Any] | None) -> Wrap:
    return partial(jax.checkpoint, policy=policy)


BUILT_IN: Mapping[str, Wrap] = {
    "jax.checkpoint": saving(None),
    "dots_saveable": saving(POLICIES.dots_saveable),
    "dots_with_no_batch_dims_saveable": saving(POLICIES.dots_with_no_batch_dims_saveable),
}
OF_TRAINERS: Mapping[str, Wrap] = {
    name: saving(POLICIES.save_only_these_names(*names)) for name, names in MAXTEXT.items()
}


@dataclass(frozen=True)
class Case:
    """A program, with the policies that people apply to its parts.

    Args:
      make: the program with its repeated part wrapped; if parts are nested, the second argument wraps the larger one.
      args: abstract arguments; the first is differentiated.
      policies: by name, what is applied to the repeated part.
      is_nested: whether people also write a checkpoint around the larger part.
      is_scanned: whether the repeated part is the body of a scan.
    """

    make: Callable[..., Callable[..., Any]]
    args: tuple[Any, ...]
    policies: Mapping[str, Wrap] = field(default_factory=lambda: BUILT_IN)
    is_nested: bool = False
    is_scanned: bool = False

    @property
    def plain(self) -> Callable[..., Any]:
        return self.make(no_wrap)

    @property
    def variants(self) -> dict[str, Callable[..., Any]]:
        """The program with each of the policies, and with checkpoints around its larger parts."""
        found = {name: self.make(wrap) for name, wrap in self.policies.items()}
        if self.is_nested:
            found["around the larger part"] = self.make(no_wrap, jax.checkpoint)
            found["around both"] = self.make(jax.checkpoint, jax.checkpoint)
        return found


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


half = partial(array, dtype=jnp.bfloat16)


def stacked(n: int, layer: Params, is_scanned: bool) -> Any:
    """The parameters of n layers: stacked for a scan, or as a list."""
    if is_scanned:
        return jax.tree.map(lambda s: array(n, *s.shape, dtype=s.dtype), layer)
    return [layer] * n


def through(block: Callable[..., Any], x: Any, layers: Any, wrap: Wrap) -> Any:
    """Applies the layers to x in sequence."""
    if isinstance(layers, Sequence):
        block = wrap(block)
        for p in layers:
            x = block(x, p)
        return x
    return lax.scan(wrap(lambda x, p: (block(x, p), None)), x, layers)[0]


# --- transformers -----------------------------------------------------------------------------------------------------


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    y = x.astype(jnp.float32)
    return (y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def attention(p: Params, x: jax.Array, n_heads: int, is_causal: bool = True) -> jax.Array:
    b, s, width = x.shape
    heads = lambda y: y.reshape(b, s, n_heads, -1).transpose(0, 2, 1, 3)
    q, k, v = (heads(checkpoint_name(x @ p[w], name)) for w, name in zip("qkv", _ATTENTION, strict=True))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k).astype(jnp.float32) / (width // n_heads) ** 0.5
    if is_causal:
        scores = jnp.where(jnp.tril(jnp.ones((s, s), bool)), scores, -1e9)
    probs = jax.nn.softmax(scores, -1).astype(x.dtype)
    context = jnp.einsum("bhqk,bhkd->bhqd", probs, v).transpose(0, 2, 1, 3).reshape(b, s, width)
    return checkpoint_name(checkpoint_name(context, "context") @ p["o"], "out_proj")


def gated_mlp(p: Params, x: jax.Array) -> jax.Array:
    gate, up = checkpoint_name(x @ p["wi_0"], "mlpwi_0"), checkpoint_name(x @ p["wi_1"], "mlpwi_1")
    return checkpoint_name((jax.nn.silu(gate) * up) @ p["wo"], "mlpwo")


def llama_layer(x: jax.Array, p: Params) -> jax.Array:
    x = x + attention(p, rms_norm(x, p["norm_1"]), 32)
    return x + gated_mlp(p, rms_norm(x, p["norm_2"]))


def mixture(p: Params, x: jax.Array) -> jax.Array:
    """Each token goes to the two experts that its router prefers, as far as they have capacity."""
    tokens = x.reshape(-1, x.shape[-1])
    n, n_experts = tokens.shape[0], p["router"].shape[1]
    room = 2 * n // n_experts
    weights, chosen = lax.top_k(jax.nn.softmax((tokens @ p["router"]).astype(jnp.float32)), 2)
    one_hot = jax.nn.one_hot(chosen, n_experts, dtype=jnp.float32)
    place = jnp.cumsum(one_hot.reshape(-1, n_experts), 0).reshape(one_hot.shape) * one_hot - 1
    sent = jax.nn.one_hot(place.astype(jnp.int32), room, dtype=jnp.float32)
    combine = jnp.einsum("nk,nkec->nec", weights, sent).astype(x.dtype)
    inputs = jnp.einsum("nec,nd->ecd", (combine > 0).astype(x.dtype), tokens)
    gate = checkpoint_name(jnp.einsum("ecd,edf->ecf", inputs, p["wi_0"]), "mlpwi_0")
    up = checkpoint_name(jnp.einsum("ecd,edf->ecf", inputs, p["wi_1"]), "mlpwi_1")
    out = checkpoint_name(jnp.einsum("ecf,efd->ecd", jax.nn.silu(gate) * up, p["wo"]), "mlpwo")
    return jnp.einsum("nec,ecd->nd", combine, out).reshape(x.shape)


def mixture_layer(x: jax.Array, p: Params) -> jax.Array:
    x = x + attention(p, rms_norm(x, p["norm_1"]), 16)
    return x + mixture(p, rms_norm(x, p["norm_2"]))


def language_model(layer: Callable[..., Any]) -> Callable[[Wrap], Callable[..., jax.Array]]:
    def make(wrap: Wrap) -> Callable[..., jax.Array]:
        def loss(params: Params, tokens: jax.Array) -> jax.Array:
            x = through(layer, params["embedding"][tokens], params["layers"], wrap)
            logits = (rms_norm(x, params["norm"]) @ params["out"]).astype(jnp.float32)
            log_p = jax.nn.log_softmax(logits, -1)
            return -jnp.mean(jnp.take_along_axis(log_p, tokens[..., None], -1))

        return loss

    return make


def language_args(
    n: int, is_scanned: bool, width: int, layer: Params, batch: int = 1, length: int = 2048, words: int = 32000
) -> tuple[Any, ...]:
    layer |= {w: half(width, width) for w in "qkvo"} | {"norm_1": half(width), "norm_2": half(width)}
    params = {"embedding": half(words, width), "out": half(width, words), "norm": half(width)}
    return {**params, "layers": stacked(n, layer, is_scanned)}, array(batch, length, dtype=jnp.int32)


def llama(n: int, is_scanned: bool, width: int = 4096, hidden: int = 11008, **sizes: int) -> Case:
    layer = {"wi_0": half(width, hidden), "wi_1": half(width, hidden), "wo": half(hidden, width)}
    args = language_args(n, is_scanned, width, layer, **sizes)
    return Case(language_model(llama_layer), args, {**BUILT_IN, **OF_TRAINERS}, is_scanned=is_scanned)


def mixture_of_experts(n: int, is_scanned: bool, width: int = 2048, hidden: int = 4096, **sizes: int) -> Case:
    layer = {"router": half(width, 8), "wi_0": half(8, width, hidden), "wi_1": half(8, width, hidden)}
    args = language_args(n, is_scanned, width, layer | {"wo": half(8, hidden, width)}, **sizes)
    return Case(language_model(mixture_layer), args, {**BUILT_IN, **OF_TRAINERS}, is_scanned=is_scanned)


def vision_layer(x: jax.Array, p: Params) -> jax.Array:
    x = x + attention(p, layer_norm(x), 12, False)
    hidden = checkpoint_name(layer_norm(x) @ p["up"], "mlpwi_0")
    return x + checkpoint_name(jax.nn.gelu(hidden) @ p["down"], "mlpwo")


def layer_norm(x: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)


def vision_transformer(n: int = 12, batch: int = 64, width: int = 768, size: int = 224) -> Case:
    """ViT-B/16 on images of 224 × 224."""

    def make(wrap: Wrap) -> Callable[..., jax.Array]:
        def loss(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
            x = lax.conv_general_dilated(
                images, params["patches"], (16, 16), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = x.reshape(x.shape[0], -1, x.shape[-1]) + params["positions"]
            x = through(vision_layer, x, params["layers"], wrap)
            log_p = jax.nn.log_softmax(layer_norm(x).mean(1) @ params["out"])
            return -jnp.mean(jnp.take_along_axis(log_p, labels[:, None], -1))

        return loss

    layer = {w: array(width, width) for w in "qkvo"} | {"up": array(width, 4 * width), "down": array(4 * width, width)}
    params = {
        "patches": array(16, 16, 3, width), "positions": array((size // 16) ** 2, width), "out": array(width, 1000),
        "layers": stacked(n, layer, False),
    }  # fmt: skip
    args = params, array(batch, size, size, 3), array(batch, dtype=jnp.int32)
    return Case(make, args, {**BUILT_IN, **OF_TRAINERS})


def diffusion(n: int = 24, batch: int = 32, width: int = 1024, size: int = 32) -> Case:
    """A training step of a diffusion transformer: it samples noise, and the time modulates its blocks."""

    def block(time: jax.Array, x: jax.Array, p: Params) -> jax.Array:
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = jnp.split((time @ p["modulation"])[:, None], 6, -1)
        x = x + gate_1 * attention(p, layer_norm(x) * (1 + scale_1) + shift_1, 16, False)
        hidden = checkpoint_name((layer_norm(x) * (1 + scale_2) + shift_2) @ p["up"], "mlpwi_0")
        return x + gate_2 * checkpoint_name(jax.nn.gelu(hidden) @ p["down"], "mlpwo")

    def make(wrap: Wrap) -> Callable[..., jax.Array]:
        def loss(params: Params, images: jax.Array, seed: jax.Array) -> jax.Array:
            at_time, at_noise = jax.random.split(jax.random.key(seed))
            t = jax.random.uniform(at_time, (images.shape[0],))
            noise = jax.random.normal(at_noise, images.shape)
            angle = t[:, None, None, None] * jnp.pi / 2
            x = jnp.cos(angle) * images + jnp.sin(angle) * noise
            waves = t[:, None] * jnp.exp(jnp.linspace(0.0, 8.0, 128))
            time = jax.nn.silu(jnp.concatenate([jnp.sin(waves), jnp.cos(waves)], -1) @ params["time"])
            b, h, w, c = x.shape
            x = x.reshape(b, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, 4 * c)
            x = x @ params["in"]
            x = through(partial(block, time), x, params["layers"], wrap)
            found = layer_norm(x) @ params["out"]
            target = noise.reshape(b, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 2, 4, 5).reshape(found.shape)
            return jnp.mean((found - target) ** 2)

        return loss

    layer = {w: array(width, width) for w in "qkvo"}
    layer |= {"up": array(width, 4 * width), "down": array(4 * width, width), "modulation": array(width, 6 * width)}
    params = {"time": array(256, width), "in": array(16, width), "out": array(width, 16)}
    args = {**params, "layers": stacked(n, layer, True)}, array(batch, size, size, 4), array(dtype=jnp.int32)
    return Case(make, args, {**BUILT_IN, **OF_TRAINERS}, is_scanned=True)


# --- convolutions -----------------------------------------------------------------------------------------------------


def conv(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def group_norm(x: jax.Array, n_groups: int = 16) -> jax.Array:
    y = x.reshape(*x.shape[:3], n_groups, -1)
    y = (y - y.mean((1, 2, 4), keepdims=True)) * lax.rsqrt(y.var((1, 2, 4), keepdims=True) + 1e-5)
    return y.reshape(x.shape)


def bottleneck(x: jax.Array, p: Params, stride: int) -> jax.Array:
    y = jax.nn.relu(group_norm(conv(x, p["first"])))
    y = jax.nn.relu(group_norm(conv(y, p["second"], stride)))
    y = group_norm(conv(y, p["third"]))
    return jax.nn.relu(y + (conv(x, p["skip"], stride) if "skip" in p else x))


def resnet(lengths: Sequence[int] = (3, 4, 6, 3), batch: int = 64, size: int = 224) -> Case:
    """ResNet-50, in stages of blocks."""

    def make(wrap: Wrap, outer: Wrap = no_wrap) -> Callable[..., jax.Array]:
        def stage(x: jax.Array, blocks: Sequence[Params], stride: int) -> jax.Array:
            for i, p in enumerate(blocks):
                x = wrap(partial(bottleneck, stride=stride if i == 0 else 1))(x, p)
            return x

        def loss(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
            x = jax.nn.relu(group_norm(conv(images, params["stem"], 2)))
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
            for i, blocks in enumerate(params["stages"]):
                x = outer(partial(stage, stride=1 if i == 0 else 2))(x, blocks)
            log_p = jax.nn.log_softmax(x.mean((1, 2)) @ params["out"])
            return -jnp.mean(jnp.take_along_axis(log_p, labels[:, None], -1))

        return loss

    def block(given: int, width: int) -> Params:
        p = {"first": array(1, 1, given, width), "second": array(3, 3, width, width)}
        p["third"] = array(1, 1, width, 4 * width)
        return p | ({"skip": array(1, 1, given, 4 * width)} if given != 4 * width else {})

    stages = []
    given = 64
    for n, width in zip(lengths, (64, 128, 256, 512), strict=True):
        stages.append([block(given if i == 0 else 4 * width, width) for i in range(n)])
        given = 4 * width
    params = {"stem": array(7, 7, 3, 64), "stages": stages, "out": array(given, 1000)}
    return Case(make, (params, array(batch, size, size, 3), array(batch, dtype=jnp.int32)), is_nested=True)


def unet(widths: Sequence[int] = (64, 128, 256, 512), batch: int = 16, size: int = 256) -> Case:
    """A U-Net: two blocks at each resolution on the way down and on the way up, with skip connections."""

    def block(x: jax.Array, p: Params) -> jax.Array:
        y = conv(jax.nn.silu(group_norm(x)), p["first"])
        y = conv(jax.nn.silu(group_norm(y)), p["second"])
        return y + conv(x, p["skip"])

    def make(wrap: Wrap, outer: Wrap = no_wrap) -> Callable[..., jax.Array]:
        def level(x: jax.Array, blocks: Sequence[Params]) -> jax.Array:
            for p in blocks:
                x = wrap(block)(x, p)
            return x

        def loss(params: Params, images: jax.Array, target: jax.Array) -> jax.Array:
            x = conv(images, params["in"])
            skips = []
            for blocks in params["down"]:
                x = outer(level)(x, blocks)
                skips.append(x)
                x = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
            x = outer(level)(x, params["middle"])
            for blocks, skip in zip(params["up"], reversed(skips), strict=True):
                x = jax.image.resize(x, (*skip.shape[:3], x.shape[-1]), "nearest")
                x = outer(level)(jnp.concatenate([x, skip], -1), blocks)
            return jnp.mean((conv(x, params["out"]) - target) ** 2)

        return loss

    def blocks(given: int, width: int) -> list[Params]:
        one = lambda n: {
            "first": array(3, 3, n, width), "second": array(3, 3, width, width), "skip": array(1, 1, n, width)
        }  # fmt: skip
        return [one(given), one(width)]

    given = [widths[0], *widths[:-1]]
    params = {
        "in": array(3, 3, 3, widths[0]), "out": array(3, 3, widths[0], 3),
        "down": [blocks(a, b) for a, b in zip(given, widths, strict=True)], "middle": blocks(widths[-1], widths[-1]),
        "up": [blocks(a + b, b) for a, b in zip([widths[-1], *widths[:0:-1]], reversed(widths), strict=True)],
    }  # fmt: skip
    return Case(make, (params, array(batch, size, size, 3), array(batch, size, size, 3)), is_nested=True)


# --- rollouts ---------------------------------------------------------------------------------------------------------


def recurrent(n_chunks: int = 16, length: int = 32, batch: int = 64, width: int = 512) -> Case:
    """An LSTM over a long sequence, in chunks of time."""

    def make(wrap: Wrap, outer: Wrap = no_wrap) -> Callable[..., jax.Array]:
        def loss(params: Params, xs: jax.Array, target: jax.Array) -> jax.Array:
            def cell(state: Any, x: jax.Array) -> Any:
                h, c = state
                i, f, g, o = jnp.split(x @ params["in"] + h @ params["hidden"] + params["bias"], 4, -1)
                c = jax.nn.sigmoid(f + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
                return (h, c), h

            def chunk(state: Any, xs: jax.Array) -> Any:
                return lax.scan(wrap(cell), state, xs)

            zero = jnp.zeros((xs.shape[2], params["hidden"].shape[0]))
            _, hs = lax.scan(outer(chunk), (zero, zero), xs)
            return jnp.mean((hs @ params["out"] - target) ** 2)

        return loss

    params = {
        "in": array(width, 4 * width), "hidden": array(width, 4 * width), "bias": array(4 * width),
        "out": array(width, 64),
    }  # fmt: skip
    args = params, array(n_chunks, length, batch, width), array(n_chunks, length, batch, 64)
    return Case(make, args, is_nested=True, is_scanned=True)


def neural_ode(n_steps: int = 100, batch: int = 1024, width: int = 64, hidden: int = 256) -> Case:
    """A learned vector field, integrated by the fourth-order Runge-Kutta method."""

    def make(wrap: Wrap, outer: Wrap = no_wrap) -> Callable[..., jax.Array]:
        def loss(params: Params, y: jax.Array, target: jax.Array) -> jax.Array:
            def field(y: jax.Array, t: jax.Array) -> jax.Array:
                z = jnp.tanh(y @ params["in"] + t * params["time"])
                return jnp.tanh(z @ params["middle"] + params["bias"]) @ params["out"]

            def step(y: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
                slope, h = wrap(field), 1 / n_steps
                a = slope(y, t)
                b = slope(y + h / 2 * a, t + h / 2)
                c = slope(y + h / 2 * b, t + h / 2)
                d = slope(y + h * c, t + h)
                return y + h / 6 * (a + 2 * b + 2 * c + d), None

            y, _ = lax.scan(outer(step), y, jnp.arange(n_steps) / n_steps)
            return jnp.mean((y - target) ** 2)

        return loss

    params = {
        "in": array(width, hidden), "time": array(hidden), "middle": array(hidden, hidden), "bias": array(hidden),
        "out": array(hidden, width),
    }  # fmt: skip
    return Case(make, (params, array(batch, width), array(batch, width)), is_nested=True, is_scanned=True)


def molecular_dynamics(n_chunks: int = 20, length: int = 25, n: int = 512) -> Case:
    """Particles under Lennard-Jones forces in a periodic box, by velocity Verlet; differentiated with respect to the
    parameters of the forces."""

    def make(wrap: Wrap, outer: Wrap = no_wrap) -> Callable[..., jax.Array]:
        def loss(params: Params, positions: jax.Array, velocities: jax.Array) -> jax.Array:
            def energy(r: jax.Array) -> jax.Array:
                d = r[:, None] - r[None]
                d = d - jnp.round(d / 10.0) * 10.0
                square = jnp.sum(d * d, -1) + jnp.eye(n)
                six = (params["sigma"] ** 2 / square) ** 3
                return jnp.sum(jnp.where(jnp.eye(n) > 0, 0.0, 2 * params["epsilon"] * (six * six - six)))

            def step(state: Any, _: None) -> Any:
                r, v, a = state
                v = v + 0.5e-3 * a
                r = r + 1e-3 * v
                a = -jax.grad(energy)(r)
                v = v + 0.5e-3 * a
                return (r, v, a), jnp.sum(v * v)

            def chunk(state: Any, _: None) -> Any:
                return lax.scan(wrap(step), state, None, length=length)

            state = positions, velocities, -jax.grad(energy)(positions)
            state, kinetic = lax.scan(outer(chunk), state, None, length=n_chunks)
            return jnp.mean(kinetic) + jnp.sum(state[0] ** 2)

        return loss

    params = {"sigma": array(), "epsilon": array()}
    return Case(make, (params, array(n, 3), array(n, 3)), is_nested=True, is_scanned=True)


def graph_network(n_layers: int = 8, n: int = 10_000, n_edges: int = 100_000, width: int = 128) -> Case:
    """Messages along the edges of a graph, each computed from both ends and the edge's features."""

    def layer(p: Params, senders: jax.Array, receivers: jax.Array, nodes: jax.Array, edges: jax.Array) -> Any:
        given = jnp.concatenate([nodes[senders], nodes[receivers], edges], -1)
        message = jax.nn.silu(given @ p["message_1"]) @ p["message_2"]
        taken = jax.ops.segment_sum(message, receivers, n)
        update = jax.nn.silu(jnp.concatenate([nodes, taken], -1) @ p["update_1"]) @ p["update_2"]
        return layer_norm(nodes + update), edges + message

    def make(wrap: Wrap) -> Callable[..., jax.Array]:
        def loss(params: Params, nodes: jax.Array, edges: jax.Array, senders: jax.Array, receivers: jax.Array) -> Any:
            nodes, edges = nodes @ params["nodes"], edges @ params["edges"]
            for p in params["layers"]:
                nodes, edges = wrap(layer)(p, senders, receivers, nodes, edges)
            return jnp.mean((nodes @ params["out"]) ** 2)

        return loss

    one = {
        "message_1": array(3 * width, width), "message_2": array(width, width), "update_1": array(2 * width, width),
        "update_2": array(width, width),
    }  # fmt: skip
    params = {"nodes": array(16, width), "edges": array(4, width), "out": array(width, 1), "layers": [one] * n_layers}
    at = array(n_edges, dtype=jnp.int32)
    return Case(make, (params, array(n, 16), array(n_edges, 4), at, at))


CASES: Mapping[str, Callable[[], Case]] = {
    "transformer, unrolled": lambda: llama(8, False),
    "transformer, scanned": lambda: llama(32, True),
    "MoE transformer, unrolled": lambda: mixture_of_experts(6, False),
    "MoE transformer, scanned": lambda: mixture_of_experts(24, True),
    "ViT": vision_transformer,
    "diffusion step": diffusion,
    "ResNet": resnet,
    "U-Net": unet,
    "RNN": recurrent,
    "neural ODE": neural_ode,
    "MD rollout": molecular_dynamics,
    "GNN": graph_network,
}
SMALL: Mapping[str, Callable[[], Case]] = {
    "transformer, unrolled": lambda: llama(4, False, 64, 128, length=128, words=100),
    "transformer, scanned": lambda: llama(8, True, 64, 128, length=128, words=100),
    "MoE transformer, unrolled": lambda: mixture_of_experts(3, False, 64, 64, length=128, words=100),
    "MoE transformer, scanned": lambda: mixture_of_experts(6, True, 64, 64, length=128, words=100),
    "ViT": lambda: vision_transformer(3, 2, 48, 64),
    "diffusion step": lambda: diffusion(6, 2, 64, 16),
    "ResNet": lambda: resnet((1, 2, 2, 1), 2, 64),
    "U-Net": lambda: unet((16, 32), 2, 32),
    "RNN": lambda: recurrent(6, 8, 4, 32),
    "neural ODE": lambda: neural_ode(20, 64, 8, 32),
    "MD rollout": lambda: molecular_dynamics(5, 6, 32),
    "GNN": lambda: graph_network(3, 100, 500, 32),
}
"""The same at sizes that XLA compiles in seconds."""
