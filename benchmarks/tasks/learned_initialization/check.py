"""Adam divides by a square root that is zero for words that a task does not have; its derivative there is infinite.

Shown by `jaxviz nan meta.py:meta_loss --args "init(jax.random.key(0)), tasks(jax.random.key(0))" --agent`.
After optax#882.
"""

import jax
import jax.numpy as jnp

from benchmarks.tasks.judging import Attempt, Edit, differs, load

KIND = "NaN"
SOLUTION = Attempt(
    "a small number under the root",
    (Edit("adapt.py", "optax.adam(RATE, eps=1e-3)", "optax.adam(RATE, eps=1e-3, eps_root=1e-8)"),),
)
WRONG = Attempt(
    "no derivative of the inner gradients: finite, but the first-order approximation",
    (
        Edit("adapt.py", "        updates, state = optimizer", """        grads = jax.lax.stop_gradient(grads)
        updates, state = optimizer"""),
    ),
)  # fmt: skip


def expected(params, tasks):
    """Adam by hand, with a root whose derivative at zero is zero."""

    def model(p, words, y):
        x = jnp.mean(p["words"][words], axis=1)
        return jnp.mean((jnp.tanh(x @ p["hidden"]) @ p["out"] - y) ** 2)

    def root(v):
        return jnp.where(v > 0, jnp.sqrt(jnp.where(v > 0, v, 1.0)), 0.0)

    def of_a_task(support, query):
        p = params
        m = v = jax.tree.map(jnp.zeros_like, params)
        for i in range(1, 5):
            g = jax.grad(model)(p, *support)
            m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
            v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
            move = lambda p, m, v: p - 0.03 * (m / (1 - 0.9**i)) / (root(v / (1 - 0.999**i)) + 1e-3)
            p = jax.tree.map(move, p, m, v)
        return model(p, *query)

    return jnp.mean(jax.vmap(of_a_task)(*tasks))


def check(folder):
    meta, adapt = load(folder, "learned_initialization", meta="meta_loss tasks", adapt="init adapted task_loss")
    args = adapt.init(jax.random.key(8)), meta.tasks(jax.random.key(9))
    wrong = differs("the loss", meta.meta_loss(*args), expected(*args), rtol=1e-2)
    return wrong + differs("the gradient", jax.grad(meta.meta_loss)(*args), jax.grad(expected)(*args), rtol=0.1)
