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
# It takes 50 minutes. You need to know the operations of [25 · your own tracer](25_own_tracer.ipynb), and gradients: [26 · your own gradients](26_own_gradients.ipynb).

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
#
# `my.batch(op, inputs, mapped, size, params)` calls your `batched`, or the batching rule of an operation that has its own.

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
y[wrong] += [1.0, 1.2, 0.9]
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
# ## 4. A branch for each example
#
# A robust loss grows like the square near the line, and like the distance far from it, so that an outlier pulls no harder than any other point. For one example that is a
# branch. `my.cond(p, on_true, on_false, *operands)` is `jax.lax.cond`: one equation, whose `branches` are two programs. `p` is a number, and true if it is positive.

# %%
def near(off):  # closer than 0.3
    return off * off


def far(off):  # 0.6 |off| - 0.09, which continues it with the same slope
    return 0.6 * off * (2.0 * my.step(off) - 1.0) - 0.09


def robust(line, x, y):
    off = line["slope"] * x + line["height"] - y
    return my.cond(my.step(0.09 - off * off), near, far, off)


print(my.trace(lambda slope: robust({**line, "slope": slope}, x[5], y[5]), 0.8))

# %% [markdown]
# Now the predicate is mapped too: each example has its own. What does one program compute for all of them?

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: branches
def _of_jax():
    mapped = jax.vmap(lambda off: jax.lax.cond(off * off < 0.09, lambda x: x * x, lambda x: jnp.exp(x), off))
    program = jaxviz.trace(mapped)(jnp.asarray(y))
    return {e.primitive.name for _, e in program.walk()}


branches = teach.predict(
    "`jax.vmap` of a `cond`, whose predicate depends on the example. What is computed for 40 examples?",
    ["for each example the branch that it needs", "both branches, for all examples", "the branch that most examples need"],
    truth=lambda: "both branches, for all examples" if "exp" in _of_jax() and "cond" not in _of_jax() else "for each example the branch that it needs",
    because={
        "both branches, for all examples": "An equation is one operation on an array, so all examples go through the same equations. JAX records both branches, and a select.",
        "for each example the branch that it needs": "Then examples would run through different equations. An array operation is the same for all its elements.",
        "the branch that most examples need": "The others would get wrong results.",
    },
    hints=("One equation is one operation for all 40 examples. Which equations does example 5 need, and which does example 6?",),
)
branches

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
branches.solution("both branches, for all examples")

# %% [markdown]
# A cond has its own batching rule, which `my.batch` calls in place of your `batched`. Write it: `inputs` are the predicate and the operands, and `params["branches"]` two programs.
#
# - `my.all_mapped(program, inputs, mapped, size)` is your `vmap_program`, which also makes copies of outputs that are not mapped.
# - `my.where(p, x, y)` chooses between two arrays: where `p` has fewer axes, they are the first ones.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: choosing
choosing = teach.autodiff.exercise(my, "cond_batched")
choosing


# %% tags=["answer"]
def cond_batched(inputs, mapped, size, params):
    """The list of results for all examples."""
    p, *operands = inputs
    on_true, on_false = params["branches"]
    ...


choosing.answer(cond_batched)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
choosing.solution(my.original("cond_batched"))

# %% [markdown]
# The derivative of a cond is a cond as well, so `my.grad` goes through it. Both losses, fitted by gradient descent:


# %%
def fitted(loss):
    found = line
    for _ in range(200):
        g = my.vmap(my.grad(loss), (False, True, True))(found, x, y)
        found = {name: p - 0.3 * g[name].mean() for name, p in found.items()}
    return found


print("slope 0.8 and height 0.3 made the points")
for f in (loss, robust):
    print(f"{f.__name__:>7}: slope {fitted(f)['slope']:.3f}, height {fitted(f)['height']:.3f}")
limited = my.vmap(my.grad(robust), (False, True, True))(line, x, y)["height"]
print("strongest pull on the height:", float(np.abs(each["height"]).max()), "and robust:", float(np.abs(limited).max()))

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
def _robust_by_jax(line, x, y):
    off = line["slope"] * x + line["height"] - y
    return jax.lax.cond(off * off < 0.09, lambda off: off * off, lambda off: 0.6 * jnp.abs(off) - 0.09, off)


_theirs = jax.vmap(jax.grad(_robust_by_jax), (None, 0, 0))(line, x, y)
assert np.allclose(limited, _theirs["height"], atol=1e-5)
assert np.abs(limited).max() <= 0.6001 < np.abs(each["height"]).max()
assert {"exp", "select_n"} <= _of_jax() and "cond" not in _of_jax()
_error = {f: abs(fitted(f)["slope"] - 0.8) + abs(fitted(f)["height"] - 0.3) for f in (loss, robust)}
assert _error[robust] < _error[loss]

# %% [markdown]
# ## 5. A Hessian
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
# - All examples go through the same equations: a branch for each example becomes both branches and a choice.
# - Transforms compose because each returns a function made of operations: `vmap` of `grad`, `vmap` of a linearized `grad`.
#
# Next: a program that runs many times in one equation, in [28 · your own loops and checkpoints](28_own_loops.ipynb).
