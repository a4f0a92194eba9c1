"""`save_anything_except_these_names` saves everything: since JAX 0.10.2 it ignores the names.

Shown by `jaxviz lint layers.py:loss --args "*types()" --agent`.
After public code that excludes gathered weights from what is saved.
"""

import jax
import jax.numpy as jnp

from benchmarks.tasks.judging import Attempt, Edit, above, differs, load, runs, saved_bytes

KIND = "policy without effect"
BOUND = 14_000_000
POLICY = 'save_anything_except_these_names("unpacked")'
SOLUTION = Attempt(
    "only the results of matrix products are saved, and weights are unpacked again",
    (Edit("layers.py", POLICY, "dots_saveable"),),
)
WRONG = Attempt(
    "nothing is saved: as small, but matrix products are computed again",
    (Edit("layers.py", POLICY, "nothing_saveable"),),
)


def expected(params, x, y):
    def unpacked(p):
        w = p["w"].astype(jnp.float32)
        return jnp.sign(w) * jnp.abs(w) ** 1.25 * p["scale"]

    for i in range(6):
        w = jax.tree.map(lambda a: a[i], params)
        h = x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
        x = x + jax.nn.gelu(h @ unpacked(w["up"])) @ unpacked(w["down"])
    return jnp.mean((x - y) ** 2)


def check(folder):
    (layers,) = load(folder, "unpacked_weights", layers="init loss types block")
    params = layers.init(jax.random.key(2))
    x, y = jax.random.normal(jax.random.key(3), (2, 5, 256))
    got = jax.value_and_grad(layers.loss)(params, x, y)
    wrong = differs("the loss and its gradient", got, jax.value_and_grad(expected)(params, x, y), rtol=2e-2)
    x = jax.ShapeDtypeStruct((128, 256), jnp.float32)
    wrong += above("matrix products of the gradient", runs("dot_general", jax.grad(layers.loss), params, x, x), 6 * 6)
    return wrong + above("bytes saved", saved_bytes(layers.loss, params, x, x), BOUND)
