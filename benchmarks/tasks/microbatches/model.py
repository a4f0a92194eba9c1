"""A tagger: a token's class from its neighbours (Flax)."""

import flax.linen as nn
import jax.numpy as jnp

TOKENS, CLASSES = 500, 4_000


class Tagger(nn.Module):
    width: int = 64

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(TOKENS, self.width)(tokens)
        for _ in range(2):
            y = nn.LayerNorm()(x)
            y = nn.Conv(self.width, (3,))(y)
            x = x + nn.Dense(self.width)(nn.gelu(y))
        return nn.Dense(CLASSES)(nn.LayerNorm()(x))


def init(key):
    return Tagger().init(key, jnp.zeros((1, 8), jnp.int32))
