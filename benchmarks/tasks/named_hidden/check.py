"""The name is on a copy that nothing reads; and to save the product of both branches would not help, either.

Shown by `jaxviz lint model.py:loss --args "*types()" --agent`.
"""

import jax
import jax.numpy as jnp

from benchmarks.tasks.judging import Attempt, Edit, above, differs, load, runs, saved_bytes

KIND = "policy without effect"
BOUND = 20_000_000
WIDE = '    wide = jax.nn.silu(x @ w["gate"]) * (x @ w["up"])\n'
SOLUTION = Attempt(
    "both matrix products have the name, and what follows reads the named values",
    (
        Edit("model.py", WIDE, """    gate, up = checkpoint_name((x @ w["gate"], x @ w["up"]), "mlp_wide")
    wide = jax.nn.silu(gate) * up
"""),
        Edit("model.py", 'checkpoint_name(wide, "mlp_wide")', "wide"),
    ),
)  # fmt: skip
WRONG = Attempt(
    "what follows reads the named value, but the gradients of silu and of the product need what it was computed from",
    (
        Edit("model.py", WIDE, WIDE.replace("jax.nn", 'checkpoint_name(jax.nn')[:-1] + ', "mlp_wide")\n'),
    ),
)  # fmt: skip


def expected(params, x, y):
    for i in range(6):
        w = jax.tree.map(lambda a: a[i], params)
        h = w["scale"] * x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
        x = x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]
    return jnp.mean((x - y) ** 2)


def check(folder):
    (model,) = load(folder, "named_hidden", model="loss init types")
    params = model.init(jax.random.key(3))
    x, y = jax.random.normal(jax.random.key(4), (2, 2, 5, 128))
    got = jax.value_and_grad(model.loss)(params, x, y)
    wrong = differs("the loss and its gradient", got, jax.value_and_grad(expected)(params, x, y))
    x = jax.ShapeDtypeStruct((4, 128, 128), jnp.float32)
    wrong += above("matrix products of the gradient", runs("dot_general", jax.grad(model.loss), params, x, x), 9 * 6)
    return wrong + above("bytes saved", saved_bytes(model.loss, params, x, x), BOUND)
