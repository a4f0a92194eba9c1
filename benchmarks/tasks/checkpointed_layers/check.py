"""Outside of loops and without a barrier, XLA merges both computations of a value, or does the second one at once.

Shown by `jaxviz compiled-memory network.py:loss --args "*types()" --agent`: values of all layers at the peak.
After jax#13999, jax#27748 and pytorch/xla#3455.
"""

import jax
import jax.numpy as jnp

from benchmarks.tasks.judging import Attempt, Edit, above, differs, load, temporaries

KIND = "policy without effect"
BOUND = 50_000_000
LOOP = """    for w in params:
        x = layer(x, w)
    return x"""
STACKED = """\
    stacked = jax.tree.map(lambda *layers: jnp.stack(layers), *params)
    return jax.lax.scan(lambda x, w: (layer(x, w), None), x, stacked)[0]"""
SOLUTION = Attempt("a scan over the layers, stacked within the function", (Edit("network.py", LOOP, STACKED),))
WRONG = Attempt(
    "a checkpoint around pairs of layers, which XLA undoes as well",
    (
        Edit("network.py", LOOP, """    two = jax.checkpoint(lambda x, a, b: layer(layer(x, a), b), prevent_cse=False)
    for i in range(0, len(params), 2):
        x = two(x, params[i], params[i + 1])
    return x"""),
    ),
)  # fmt: skip


def expected(params, x, y):
    for w in params:
        h = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
        h = jnp.tanh((h + w["shift"]) @ w["up"])
        x = x + (h * jax.nn.sigmoid(h)) @ w["down"]
    return jnp.mean(jnp.abs(x - y) ** 1.5)


def check(folder):
    (network,) = load(folder, "checkpointed_layers", network="init loss types")
    params = network.init(jax.random.key(5), 4)
    x, y = jax.random.normal(jax.random.key(6), (2, 7, 128))
    got = jax.value_and_grad(network.loss)(params, x, y)
    wrong = differs("the loss and its gradient", got, jax.value_and_grad(expected)(params, x, y))
    x = jax.ShapeDtypeStruct((2048, 128), jnp.float32)
    types = jax.eval_shape(lambda: network.init(jax.random.key(0), 8))
    return wrong + above("bytes of temporaries", temporaries(jax.grad(network.loss), types, x, x), BOUND)
