"""A small language model in Flax Linen, with dropout and remat, and its batch on four devices."""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic):
        h = nn.LayerNorm()(x)
        h = nn.MultiHeadDotProductAttention(num_heads=4, dropout_rate=0.1)(h, h, deterministic=deterministic)
        x = x + h
        h = nn.LayerNorm()(x)
        h = nn.Dense(256)(h)
        h = nn.gelu(h)
        return x + nn.Dense(64)(h)


class LM(nn.Module):
    @nn.compact
    def __call__(self, tokens, deterministic=False):
        x = nn.Embed(128, 64)(tokens)
        for _ in range(2):
            x = nn.remat(Block, static_argnums=(2,))()(x, deterministic)
        return nn.Dense(128)(nn.LayerNorm()(x))


model = LM()
rng = np.random.default_rng(0)
mesh = Mesh(np.array(jax.devices()).reshape(4), ("data",))
by = NamedSharding(mesh, P("data"))
tokens = jax.device_put(rng.integers(0, 128, (8, 16)), by)
params = model.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, tokens)["params"]
tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
opt = tx.init(params)


def train_step(params, opt, tokens, key):
    def loss_fn(p):
        logits = model.apply({"params": p}, tokens, rngs={"dropout": key})
        return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()

    loss, g = jax.value_and_grad(loss_fn)(params)
    u, opt = tx.update(g, opt, params)
    return optax.apply_updates(params, u), opt, loss


step = jax.jit(train_step, donate_argnums=(0, 1))
for i in range(3):
    params, opt, loss = step(params, opt, tokens, jax.random.key(i))
    print(i, float(loss).hex())
