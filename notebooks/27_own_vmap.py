# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 27 · Which examples pull hardest, without a loop over them?
#
# The gradient of a mean hides the contribution of each example. `vmap` of a gradient gives one gradient per example, in one program. You write it: a rule for each operation,
# and a walk.
#
# It takes 35 minutes. You need to know the operations of [25 · your own tracer](25_own_tracer.ipynb), and gradients: [26 · your own gradients](26_own_gradients.ipynb).

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxviz
from jaxviz import teach

my = teach.autodiff.engine()
my

# %% [markdown]
# ## 1. One operation, for all examples
#
# A *mapped* input has the examples along axis 0. An input that is not mapped is the same for all examples. The result is mapped: its examples must also be along
# axis 0. `size` is the number of examples.
#
# `my.bind(op, *inputs, **params)` applies an operation, and returns a list of results. Operations take arrays of the same shape: nothing is broadcast automatically,
# but `my.spread(x, axis, size)` makes copies. `dot` also multiplies stacks of matrices, and `swap` exchanges the last two axes of any array.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: batching
batching = teach.autodiff.exercise(my, "batched")
batching


# %% tags=["answer"]
def batched(op, inputs, mapped, size, params):
    """The list of results, with the examples along axis 0. `mapped` tells for each input whether it is mapped; at least one is."""
    if op in ("sum", "spread"):
        return ...
    return ...


batching.answer(batched)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
batching.solution(my.original("batched"))

# %% [markdown]
# ## 2. A program, for all examples

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: mapping
mapping = teach.autodiff.exercise(my, "vmap_program")
mapping


# %% tags=["answer"]
def vmap_program(program, inputs, mapped, size):
    """The outputs, and for each whether it is mapped."""
    ...


mapping.answer(vmap_program)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
mapping.solution(my.original("vmap_program"))

# %%
shifted = my.trace(lambda x, y: my.exp(y) * x, 1.0, 1.0)
print(shifted)
print(my.trace(lambda xs, y: my.vmap_program(shifted, [xs, y], [True, False], 3)[0], np.ones(3), 1.0))

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: exps
def _exps(mapped):
    like = [np.ones(3) if m else 1.0 for m in mapped]
    made = my.trace(lambda *xs: my.vmap_program(shifted, xs, mapped, 3)[0], *like)
    return sum(int(np.prod(v.shape)) for e in made.equations if e.op == "exp" for v in e.outputs)


exps = teach.predict(
    "`exp(y) * x`, for a thousand examples of `x` and one `y`: how many exponentials are computed?",
    truth=lambda: _exps([True, False]),
    because="`exp` reads only `y`, which is not mapped, so its equation does not change. A loop over the examples would compute it each time.",
    hints=("Look at the two programs above. Which equations have an axis of 3?",),
)
exps

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
exps.solution(1)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert _exps([True, False]) == 1 and _exps([False, True]) == 3

# %% [markdown]
# ## 3. A gradient for each example
#
# A line is fitted to points, a few of which are outliers. The gradient of each example's loss is a transform of a transform: your `vmap` of your `grad`.

# %%
rng = np.random.default_rng(1)
x = np.linspace(-1, 1, 40, dtype=np.float32)
y = (0.8 * x + 0.3 + 0.05 * rng.normal(size=40)).astype(np.float32)
wrong = [5, 17, 30]
y[wrong] += [1.0, -1.2, 0.9]
line = {"slope": np.float32(0.8), "height": np.float32(0.3)}


def loss(line, x, y):
    off = line["slope"] * x + line["height"] - y
    return off * off


each = my.vmap(my.grad(loss), (False, True, True))(line, x, y)
pull = np.hypot(each["slope"], each["height"])
print({name: g.shape for name, g in each.items()})

plt.figure(figsize=(6, 2.6))
plt.scatter(x, y, c=pull, cmap="viridis", s=20 + 60 * pull)
plt.plot(x, line["slope"] * x + line["height"], color="black", lw=1)
plt.colorbar(label="length of its gradient");

# %% [markdown]
# `jax.vmap(jax.grad(loss))` returns the same numbers. Here are JAX's program and yours, side by side.

# %%
def by_jax(line, x, y):
    return jax.vmap(jax.grad(loss), (None, 0, 0))(line, x, y)


def by_mine(line, x, y):
    return my.vmap(my.grad(loss), (False, True, True))(line, x, y)


args = jax.tree.map(jnp.asarray, (line, x, y))
explorer = jaxviz.explore(jaxviz.compare(by_jax, by_mine, *args))
explorer.stage, explorer.beside = "primal", "primal"
explorer

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
for _a, _b in zip(jax.tree.leaves(each), jax.tree.leaves(by_jax(*args))):
    assert np.allclose(_a, _b, atol=1e-5)
assert sorted(np.argsort(pull)[-3:]) == wrong

# %% [markdown]
# ## 4. A Hessian
#
# One more composition: all columns of a second derivative at once. Each column is the derivative of the gradient along one row of the identity.


# %%
def bowl(x):
    return my.total(my.exp(x) * x) + my.total(x) * my.total(x)


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: columns
def _hessian_by_jax(x):
    return jax.hessian(lambda x: jnp.sum(jnp.exp(x) * x) + jnp.sum(x) ** 2)(x)


_point = np.array([0.3, -0.5, 1.0], np.float32)

columns = teach.rule(
    "Write `hessian(x)`: the 3 × 3 second derivatives of `bowl`, by `my.grad`, `my.linearize` or `my.jvp`, and `my.vmap`.",
    teach.computes(_hessian_by_jax, (_point,)).saying("gives what jax.hessian gives"),
    hints=(
        "`my.linearize(f, x)` returns the outputs, and a function `pushed` from a tangent to the list of their tangents.",
        "With `f = my.grad(bowl)`, `pushed(v)[0]` is one column. `my.vmap(…, (True,))` takes the rows of `np.eye(3)`.",
    ),
    example="outs, pushed = my.linearize(my.grad(bowl), x); return my.vmap(lambda v: pushed(v)[0], (True,))(np.eye(3))",
    wrong=(lambda x: my.grad(bowl)(x), lambda x: my.linearize(my.grad(bowl), x)[1](np.ones(3, np.float32))[0] * np.eye(3)),
)
columns


# %% tags=["answer"]
def hessian(x):
    return ...


columns.answer(hessian)


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def hessian(x):
    outs, pushed = my.linearize(my.grad(bowl), x)
    return my.vmap(lambda v: pushed(v)[0], (True,))(np.eye(3, dtype=np.float32))


columns.solution(hessian)

# %% [markdown]
# ## What to remember
#
# - `vmap` is a walk: an operation with a mapped input becomes an operation on all examples. The rest does not change.
# - The rules are about axes, and almost all of them are the same.
# - Transforms compose because each returns a function made of operations: `vmap` of `grad`, `vmap` of a linearized `grad`.
#
# Next: programs inside equations, in [28 · your own loops and checkpoints](28_own_loops.ipynb).
