"""Communication between devices in library models of real size with sharded parameters: each collective has a line, and
nearly all bytes a cause."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxviz


def placed(tree, *spec):
    """On a mesh of two by four devices: with given shardings, or each array sharded over `model` along its longest
    dimension."""
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("data", "model"))

    def one(t):
        dims = [None] * len(t.shape)
        if not spec and len(dims) >= 2 and max(t.shape) % 4 == 0 and max(t.shape) >= 256:
            dims[int(np.argmax(t.shape))] = "model"
        return jax.ShapeDtypeStruct(t.shape, t.dtype, sharding=NamedSharding(mesh, P(*(spec or dims))))

    return jax.tree.map(one, tree)


def cross_entropy(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1).mean()


def nnx_transformer():
    nnx = pytest.importorskip("flax.nnx")

    class Block(nnx.Module):
        def __init__(self, d, rngs):
            self.first, self.second = nnx.LayerNorm(d, rngs=rngs), nnx.LayerNorm(d, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(num_heads=12, in_features=d, decode=False, rngs=rngs)
            self.up, self.down = nnx.Linear(d, 4 * d, rngs=rngs), nnx.Linear(4 * d, d, rngs=rngs)

        def __call__(self, x):
            x = x + self.attention(self.first(x))
            return x + self.down(nnx.gelu(self.up(self.second(x))))

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.embedding = nnx.Embed(32768, 768, rngs=rngs)
            self.blocks = nnx.List([Block(768, rngs) for _ in range(6)])

        def __call__(self, tokens):
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block(x)
            return self.embedding.attend(x)

    graph, state = nnx.split(nnx.eval_shape(lambda: Model(nnx.Rngs(0))))
    loss = lambda state, tokens: cross_entropy(nnx.merge(graph, state)(tokens)[:, :-1], tokens[:, 1:])
    return loss, (placed(state), placed(jax.ShapeDtypeStruct((16, 512), jnp.int32), "data"))


def linen_vision_transformer():
    nn = pytest.importorskip("flax.linen")

    class Model(nn.Module):
        @nn.compact
        def __call__(self, images):
            x = nn.Conv(768, (16, 16), (16, 16))(images).reshape(images.shape[0], -1, 768)
            for _ in range(6):
                x = x + nn.MultiHeadDotProductAttention(12)(nn.LayerNorm()(x))
                x = x + nn.Dense(768)(nn.gelu(nn.Dense(3072)(nn.LayerNorm()(x))))
            return nn.Dense(1000)(x.mean(1))

    images = jax.ShapeDtypeStruct((32, 224, 224, 3), jnp.float32)
    params = jax.eval_shape(Model().init, jax.random.key(0), images)
    loss = lambda params, images, labels: cross_entropy(Model().apply(params, images), labels)
    return loss, (placed(params), placed(images, "data"), placed(jax.ShapeDtypeStruct((32,), jnp.int32), "data"))


def equinox_mlp():
    eqx = pytest.importorskip("equinox")
    make = lambda: eqx.nn.MLP(1024, 1024, 4096, 6, activation=jax.nn.gelu, key=jax.random.key(0))
    arrays, static = eqx.partition(eqx.filter_eval_shape(make), lambda x: isinstance(x, jax.ShapeDtypeStruct))
    loss = lambda arrays, x, y: jnp.mean((jax.vmap(eqx.combine(arrays, static))(x) - y) ** 2)
    batch = placed(jax.ShapeDtypeStruct((512, 1024), jnp.float32), "data")
    return loss, (placed(arrays), batch, batch)


@pytest.mark.parametrize("make", [nnx_transformer, linen_vision_transformer, equinox_mlp])
def test_each_collective_has_a_line_and_nearly_all_bytes_a_cause(make):
    loss, args = make()
    found = jaxviz.collectives(loss, *args)
    assert found.mesh == {"data": 2, "model": 4}
    assert {c.kind for c in found.compiled} >= {"all-reduce", "all-gather"}
    assert all(c.location is not None for c in found.compiled)
    assert found.explained >= 0.95
    assert all(c.equations for c in found.compiled)
