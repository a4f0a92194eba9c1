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
# # 25 · Can I write `jax.jvp` myself?
#
# In these notebooks you write an autodiff engine: tracing and tangents here, then gradients, `vmap`, and loops, and at the end it trains a
# transformer. Each correct function of yours becomes
# part of the engine, in the later notebooks too; where you have written none, the notebooks' own is used. So your own code differentiates the models.
#
# It takes 80 minutes. You should have read a jaxpr, and know what `jax.jvp` computes: [3 · JVP and linearize](03_jvp_and_linearize.ipynb).

# %%
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxviz
from jaxviz import teach

my = teach.autodiff.engine()
my

# %% [markdown]
# `my` is the engine: a namespace of short functions. Its file is in the installed package, where the next cell says; in Jupyter, `%pycat {my.__file__}` shows it. On the site it is
# the page *The small engine*. Your correct answers are stored in `answers/my_autodiff.py`; delete the file to start over.
#
# Thirteen operations are yours to differentiate; they are identified by name. `sum` removes one axis and `spread` inserts one; `swap` exchanges the last two. Everything else is built
# from them: `my.tanh` from `exp`, `my.mean` from `sum`.

# %%
print(Path(my.__file__).relative_to(Path(jaxviz.__file__).parents[1]).as_posix())
print(*(op for op in my.IMPLEMENTATIONS if op not in my.JVP_OF))  # the others, such as loops, are for later notebooks
print("tanh(0.5) =", my.tanh(0.5), " NumPy:", np.tanh(0.5))

# %% [markdown]
# ## 1. A tracer records operations
#
# A *tracer* stands for a value that is not known yet. It has a shape. Every operation on it is recorded as an equation, in the tracer's
# *recording*. All operations go through one function, `bind(op, *inputs, **params)`, which decides whether to compute or to record.
#
# - `my.innermost(inputs)`: the recording of the tracers among the inputs, or None. If there are several recordings, the most recent one.
# - `my.compute(op, inputs, params)`: computes, and returns a list of results.
# - `my.shapes_of(op, inputs, params)`: the shapes of the results, without computing.
# - `my.Var(shape)`, `my.Tracer(recording, var)`, and `my.Equation(op, inputs, params, outputs)`, with two tuples.
# - `recording.equations` is a list; `recording.read(x)` returns what an equation stores for its input `x`: a Var or a Const.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: binding
binding = teach.autodiff.exercise(my, "bind")
binding


# %% tags=["answer"]
def bind(op, *inputs, **params):
    """The list of the operation's results: values, or tracers."""
    recording = my.innermost(inputs)
    ...


binding.answer(bind)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
binding.solution(my.original("bind"))

# %% [markdown]
# `my.trace` calls a function with tracers, and returns the program that they recorded. It runs the Python function once:


# %%
def f(x, y):
    print("Python runs")
    return my.sin(x) * y + 3.0


program = my.trace(f, 1.0, 1.0)
print(program)

# %% [markdown]
# ## 2. An interpreter
#
# To evaluate a program, walk over its equations, with a dict from variables to values. `my.read(env, a)` returns the value of a Var or
# a Const. Call `my.bind` for each operation: then the walk can itself be traced, which gives a new program. All transforms below are walks.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: walking
walking = teach.autodiff.exercise(my, "evaluate")
walking


# %% tags=["answer"]
def evaluate(program, *inputs):
    """The outputs, in a list."""
    env = dict(zip(program.inputs, inputs))
    for e in program.equations:
        ...
    return [my.read(env, a) for a in program.outputs]


walking.answer(evaluate)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
walking.solution(my.original("evaluate"))

# %%
print(my.evaluate(program, 2.0, 5.0), np.sin(2.0) * 5 + 3)

# %% [markdown]
# ## 3. What moves when an input moves
#
# Now the mathematics. For each operation: if input number `i` moves by `dx` and the others are constant, how much does the result move? A derivative
# rule answers that, and nothing else. `inputs` and `out` are the operation's inputs and its result, in case the rule needs them. Compute with `my.mul`, `my.cos`, and so on.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: rules
rules = teach.autodiff.exercise(my, "partial")
rules


# %% tags=["answer"]
def partial(op, i, dx, inputs, out, params):
    """The tangent of the result; None if it stays whatever the input does."""
    match op:
        case "neg":
            return -dx
        case "add":
            return ...
        case "mul":
            return ...
        case "sin":
            return my.mul(dx, my.cos(inputs[0]))
        case "cos":
            return ...
        case "exp":
            return ...
        case "log":
            return ...
        case "recip":  # 1 / x
            return ...
        case "step":  # 1 where x > 0, else 0
            return ...
        case "sum":
            return my.sum(dx, **params)
        case "spread":
            return ...
        case "dot":  # inputs[0] @ inputs[1]
            return ...
        case "swap":
            return ...


rules.answer(partial)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
rules.solution(my.original("partial"))

# %% [markdown]
# If several inputs move, the contributions are added, since a derivative is linear. `my.push(op, inputs, tangents, params)` does that for one equation: it
# returns the list of results and the list of their tangents. A zero tangent is None, and costs nothing.

# %%
print(my.push("mul", [2.0, 5.0], [1.0, 10.0], {}))
print(my.push("mul", [2.0, 5.0], [1.0, None], {}))

# %% [markdown]
# ## 4. Forward mode
#
# Another walk, with two dicts: one for values, one for tangents.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: moving
moving = teach.autodiff.exercise(my, "jvp")
moving


# %% tags=["answer"]
def jvp(program, inputs, tangents):
    """The outputs, and their tangents; None is a tangent of zero."""
    ...


moving.answer(jvp)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
moving.solution(my.original("jvp"))

# %% [markdown]
# The slope at a hundred points, in one walk: the values are arrays, and each element moves by one.


# %%
def wave(x):
    return my.sin(my.exp(x)) * x


x = np.linspace(-1.0, 2.0, 100, dtype=np.float32)
(y,), (slope,) = my.jvp(my.trace(wave, x), [x], [np.ones_like(x)])
plt.figure(figsize=(6, 2.6))
plt.plot(x, y, label="wave(x)")
plt.plot(x, slope, lw=1, label="its slope, by your rules")
for i in range(5, 100, 12):
    plt.plot(x[i] + np.array([-0.1, 0.1]), y[i] + slope[i] * np.array([-0.1, 0.1]), color="black", lw=2)
plt.ylim(-7, 7)
plt.legend(frameon=False);

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
_wanted = jax.vmap(jax.grad(lambda x: jnp.sin(jnp.exp(x)) * x))(x)
assert np.allclose(slope, _wanted, atol=1e-4)
assert my.push("mul", [2.0, 5.0], [1.0, 10.0], {})[1] == [25.0]

# %% [markdown]
# ## 5. Compared with JAX
#
# A small network, and a direction in which its weights move. Your walk is Python code that calls operations; JAX traces it like any other function, so the explorer
# can show both programs: JAX's on the left, yours on the right.


# %%
def network(w1, w2, x, tanh):
    return tanh(x @ w1) @ w2


rng = np.random.default_rng(0)
w1, w2, x = (rng.normal(size=s).astype(np.float32) for s in ((3, 8), (8, 1), (5, 3)))
d1, d2 = np.ones_like(w1), np.ones_like(w2)


def by_jax(w1, w2, d1, d2):
    return jax.jvp(lambda w1, w2: network(w1, w2, x, jnp.tanh), (w1, w2), (d1, d2))[1]


def by_mine(w1, w2, d1, d2):
    program = my.trace(lambda w1, w2: network(w1, w2, x, my.tanh), w1, w2)
    return my.jvp(program, [w1, w2], [d1, d2])[1][0]


args = tuple(map(jnp.asarray, (w1, w2, d1, d2)))
print("largest difference:", float(jnp.abs(by_jax(*args) - by_mine(*args)).max()))

# %%
explorer = jaxviz.explore(jaxviz.compare(by_jax, by_mine, *args))
explorer.stage, explorer.beside = "primal", "primal"
explorer

# %% [markdown]
# For JAX, `tanh` is one operation with its own rule; yours is built from `exp`, and takes more equations for the same result.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert np.allclose(by_jax(*args), by_mine(*args), atol=1e-4)
_names = [{e.primitive.name for _, e in jaxviz.trace(g)(*args).walk()} for g in (by_jax, by_mine)]
assert "tanh" in _names[0] and "tanh" not in _names[1] and "exp" in _names[1]

# %% [markdown]
# ## What to remember
#
# - A tracer is an object that records the operations on it. Python runs once, and prints and branches are not recorded.
# - A rule gives the tangent of one operation's result. A transform is a walk over equations; tracing the walk gives a new program.
# - A value that does not move has no tangent, and needs no equation.
#
# Next: turn tangents into gradients, in [26 · your own gradients](26_own_gradients.ipynb).
