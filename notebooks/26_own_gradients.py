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
# # 26 · How do tangents become gradients, in my own engine?
#
# Split a program in two, run the second half backwards, and a thousand derivatives cost as much as one. You write the split and the backward walk, and train
# a small model with them.
#
# It takes 85 minutes. You need to know the operations and the walks of [25 · your own tracer](25_own_tracer.ipynb), even if you did not write them all,
# and what a transpose is: [5 · transposition](05_transposition.ipynb).

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
# ## 1. Two kinds of equations
#
# Here is the JVP of $x \sin x$ as a program: your walk, traced. Its inputs are the value `a` and the tangent `b`.

# %%
program = my.trace(lambda x: my.sin(x) * x, 1.0)
both = my.trace(lambda x, dx: [out[0] for out in my.jvp(program, [x], [dx])], 1.0, 1.0)
print(both)

# %% [markdown]
# Some of these equations can be computed before the tangent is known. The others must wait for it.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: sorting
sorting = teach.autodiff.exercise(my, "split")
sorting


# %% tags=["answer"]
def split(equations, unknown):
    """Two lists of equations: those that can be computed now, and those that wait for one of the variables `unknown`."""
    ...


sorting.answer(split)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
sorting.solution(my.original("split"))

# %% [markdown]
# This splits the program in two. The values of the first half that the second half reads are the *residuals*: they follow from the split and are not chosen.
# `my.partial_eval(program, n)` returns both halves, with the first `n` inputs known; the first half returns the residuals, then the known outputs.

# %%
forward, linear = my.partial_eval(both, 1)
print(forward, linear, sep="\n\n")

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: kept
def _halves(f, *like):
    return my.linearize_program(my.trace(f, *like))[:2]


kept = teach.predict(
    "`my.tanh(x)` is `1 - 2 / (1 + exp(2x))`, in this engine. How many residuals does its linear half have?",
    truth=lambda: len(_halves(my.tanh, 1.0)[1].inputs) - 1,
    because=lambda: "The rule of exp multiplies by its result, and the rule of 1 / x by the square of its result. The factor 2 is a constant "
    "of the program, and additions save nothing.",
    hints=("Which of its operations are nonlinear?", "Each of them saves one value, if its rule needs one."),
)
kept

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
kept.solution(2)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
_forward, _linear = _halves(my.tanh, 1.0)
assert {e.op for e in linear.equations} <= {"mul", "add", "neg"}
assert {"exp", "recip"} <= {e.op for e in _forward.equations}

# %% [markdown]
# ## 2. Transposing each linear operation
#
# All equations of the second half are linear. For each of these seven operations: what is the cotangent of input number `i`, given the cotangent of the result? That input has
# no value, only a `shape`; the values of the others are in `inputs`.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: turning
turning = teach.autodiff.exercise(my, "transposed")
turning


# %% tags=["answer"]
def transposed(op, i, ct, inputs, shape, params):
    """The cotangent of input number i."""
    match op:
        case "neg":
            return -ct
        case "add":
            return ...
        case "mul":
            return ...
        case "sum":  # along params["axis"]
            return ...
        case "spread":  # params["size"] copies along a new axis params["axis"]
            return ...
        case "dot":
            return ...
        case "swap":
            return ...


turning.answer(transposed)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
turning.solution(my.original("transposed"))

# %% [markdown]
# ## 3. Backwards
#
# Walk the linear equations from the last to the first. A variable that several equations read gets a part of its cotangent from each; the parts are added. When the walk
# reaches the equation that computed the variable, its cotangent is complete.
#
# `inputs` has None for each input in which the program is linear. The others are known, and everything that depends only on them is computed first: `my.split`
# finds those equations. `my.pull(op, inputs, shapes, cts, params)` returns a list of cotangents for one equation: None for a known input.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: backwards
backwards = teach.autodiff.exercise(my, "transpose")
backwards


# %% tags=["answer"]
def transpose(program, inputs, cts):
    """A cotangent for each input that is None, or None if that is zero; None for the inputs that are known."""
    now, later = my.split(program.equations, [v for v, x in zip(program.inputs, inputs) if x is None])
    ...


backwards.answer(transpose)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
backwards.solution(my.original("transpose"))

# %% [markdown]
# That is reverse mode. `my.grad` traces, splits and transposes:

# %%
print(my.grad(lambda x: my.sin(x) * x)(2.0), jax.grad(lambda x: jnp.sin(x) * x)(2.0))
print("and of the gradient:", my.grad(my.grad(lambda x: my.sin(x) * x))(2.0))

# %% [markdown]
# ## 4. A model
#
# Points in two moons, and a network with one hidden layer that classifies them. The loss is a cross entropy, written with your operations.

# %%
rng = np.random.default_rng(0)
angle = rng.uniform(0, np.pi, 100)
moon = np.arange(100) % 2
points = np.stack([np.cos(angle), np.sin(angle)], 1) * np.where(moon, -1, 1)[:, None] + np.where(moon[:, None], [1, 0.4], [0, 0])
points = (points + 0.1 * rng.normal(size=points.shape)).astype(np.float32)
label = moon[:, None].astype(np.float32)
params = {
    "w1": rng.normal(size=(2, 16)).astype(np.float32),
    "b1": np.zeros(16, np.float32),
    "w2": 0.3 * rng.normal(size=(16, 1)).astype(np.float32),
}


def score(params, x, tanh=my.tanh):
    return tanh(x @ params["w1"] + params["b1"]) @ params["w2"]


def loss(params):
    s = score(params, points)
    return my.mean(my.log(1.0 + my.exp(s)) - label * s)


def loss_by_jax(params):
    s = score(params, points, jnp.tanh)
    return jnp.mean(jnp.log(1.0 + jnp.exp(s)) - label * s)


ours, theirs = my.grad(loss)(params), jax.grad(loss_by_jax)(params)
print({name: float(np.abs(ours[name] - theirs[name]).max()) for name in params})

# %% [markdown]
# The engine's operations also take JAX arrays. So `jax.jit` can compile your gradient, which makes training fast.

# %%
value_and_grad = jax.jit(my.value_and_grad(loss))
trained, losses = jax.tree.map(jnp.asarray, params), []
for _ in range(400):
    now, gradient = value_and_grad(trained)
    trained = jax.tree.map(lambda p, g: p - 0.5 * g, trained, gradient)
    losses.append(float(now))

figure, axes = plt.subplots(1, 2, figsize=(8, 2.8), layout="constrained")
axes[0].plot(losses)
axes[0].set(xlabel="step", ylabel="loss")
grid = np.stack(np.meshgrid(np.linspace(-1.6, 2.6, 60), np.linspace(-1.2, 1.6, 60)), -1).astype(np.float32)
axes[1].contourf(*np.moveaxis(grid, -1, 0), np.asarray(score(trained, grid.reshape(-1, 2), jnp.tanh)).reshape(60, 60), cmap="coolwarm", levels=20)
axes[1].scatter(*points.T, c=moon, cmap="coolwarm", edgecolors="black", s=15)
axes[1].set(xticks=[], yticks=[])
plt.show()

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
for _name in params:
    assert np.allclose(ours[_name], theirs[_name], atol=1e-5)
assert losses[-1] < 0.1 < 0.5 < losses[0]
assert np.isclose(my.grad(my.grad(lambda x: my.sin(x) * x))(2.0), jax.grad(jax.grad(lambda x: jnp.sin(x) * x))(2.0))

# %% [markdown]
# `my.as_jax(f)` is a function of JAX whose derivative is yours: it runs the two halves that your split made, the second one transposed. So the explorer shows your backward pass beside
# JAX's, each equation with the line of the rule that made it.

# %%
on_device = jax.tree.map(jnp.asarray, params)
explorer = jaxviz.explore(jaxviz.compare(loss_by_jax, my.as_jax(loss), on_device))
explorer.stage, explorer.beside = "backward", "backward"
explorer

# %%
for name, report in (("yours", jaxviz.residuals(my.as_jax(loss), on_device)), ("JAX's", jaxviz.residuals(loss_by_jax, on_device))):
    print(f"{name}: {len(report)} residuals, {report.nbytes:,} B")

# %% [markdown]
# ## What to remember
#
# - Linearizing sorts equations by whether they depend on a tangent. The variables between the two halves are the residuals.
# - Transposing walks the equations that depend on a tangent backwards, so that each cotangent is complete when it is read.
# - Both are walks over programs, so a gradient can be differentiated and compiled like any other program.
#
# Next: all examples at once, in [27 · your own vmap](27_own_vmap.ipynb).
