"""The state comes back with other types: the moments in float32, and the scale no longer weakly typed.

Shown by `jaxviz run train.py`.
After jax#3163, optax#1440 and mujoco#2306.
"""

import jax
import jax.numpy as jnp

from benchmarks.tasks.judging import Attempt, Edit, compilations, differs, load

KIND = "recompilation"
MOMENTS = """        "mu": jax.tree.map(jnp.zeros_like, params),
        "nu": jax.tree.map(jnp.zeros_like, params),
"""
F32 = MOMENTS.replace("jnp.zeros_like", "lambda p: jnp.zeros(p.shape, jnp.float32)")
SOLUTION = Attempt(
    "the moments are float32 and the scale is an array from the start",
    (Edit("optimizer.py", MOMENTS, F32), Edit("scaling.py", "return 2.0**12", "return jnp.float32(2.0**12)")),
)
WRONG = Attempt(
    "only the moments: the scale is a number of Python in the first step", (Edit("optimizer.py", MOMENTS, F32),)
)


def expected(init, key, steps):
    p, losses = init(key), []
    mu = nu = jax.tree.map(lambda x: jnp.zeros(x.shape), p)

    def model(p, x, y):
        out = (jnp.tanh(x.astype(jnp.bfloat16) @ p["up"]) @ p["down"])[:, 0]
        return jnp.mean((out.astype(jnp.float32) - y) ** 2)

    for i in range(steps):
        x = jax.random.normal(jax.random.fold_in(key, i), (32, 16))
        value, g = jax.value_and_grad(model)(p, x, jnp.sin(x.sum(-1)))
        mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g.astype(jnp.float32), mu, g)
        nu = jax.tree.map(lambda n, g: 0.99 * n + 0.01 * g.astype(jnp.float32) ** 2, nu, g)
        a, b = 1 - 0.9 ** (i + 1), 1 - 0.99 ** (i + 1)
        move = lambda p, m, n: (p - 0.01 * m / a / (jnp.sqrt(n / b) + 1e-8)).astype(p.dtype)
        p = jax.tree.map(move, p, mu, nu)
        losses.append(float(value))
    return p, losses


def check(folder):
    (train,) = load(folder, "second_step", train="run init loss")
    with compilations() as counts:
        actual = train.run(jax.random.key(7), 6)
    wrong = differs("what run returns", actual, expected(train.init, jax.random.key(7), 6), rtol=3e-2)
    n = sum(n for name, n in counts.items() if "step" in name)
    return wrong + ([] if n == 1 else [f"`step` is compiled {n} times"])
