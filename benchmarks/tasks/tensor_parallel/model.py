"""A decoder whose layers are split over devices."""

import jax
import jax.numpy as jnp

WIDTH, HEADS, DIM, WIDE, VOCABULARY, LAYERS = 64, 8, 16, 256, 512, 2


def init(key):
    keys = iter(jax.random.split(key, 2 + 4 * LAYERS))
    normal = lambda *shape, fan_in: jax.random.normal(next(keys), shape) * fan_in**-0.5
    layer = lambda: {
        "attention": {
            "qkv": normal(WIDTH, 3, HEADS, DIM, fan_in=WIDTH),
            "out": normal(HEADS, DIM, WIDTH, fan_in=HEADS * DIM),
        },
        "mlp": {"up": normal(WIDTH, WIDE, fan_in=WIDTH), "down": normal(WIDE, WIDTH, fan_in=WIDE)},
    }
    return {
        "embed": normal(VOCABULARY, WIDTH, fan_in=1),
        "layers": [layer() for _ in range(LAYERS)],
        "out": normal(WIDTH, VOCABULARY, fan_in=WIDTH),
    }


def normed(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def attention(x, w):
    q, k, v = jnp.moveaxis(jnp.einsum("btd,dchk->btchk", x, w["qkv"]), 2, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * DIM**-0.5
    scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), scores, -1e30)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    return jnp.einsum("bthk,hkd->btd", mixed, w["out"])


def mlp(x, w):
    return jax.nn.gelu(x @ w["up"]) @ w["down"]


def loss(params, tokens):
    x = params["embed"][tokens[:, :-1]]
    for w in params["layers"]:
        x = x + attention(normed(x), w["attention"])
        x = x + mlp(normed(x), w["mlp"])
    logits = normed(x) @ params["out"]
    labels = jax.nn.one_hot(tokens[:, 1:], VOCABULARY)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - jnp.sum(labels * logits, axis=-1))
