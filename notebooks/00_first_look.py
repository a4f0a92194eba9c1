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
# # 0 · A first look: what does my gradient save, and why?
#
# `jax.grad` runs your function forward, saves some of the values that it computes, and reads them in the backward
# pass. These saved values are the *residuals*. Here is the gradient of a small network, with everything in it. This takes 10 minutes. You need to have seen `jax.grad` once.

# %%
import jax
import jax.numpy as jnp

import jaxviz
from jaxviz import teach


def predict(params, x):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def loss(params, x, y):
    error = predict(params, x) - y
    return jnp.mean(error**2)


keys = jax.random.split(jax.random.key(0), 3)
sizes = [(4, 16), (16, 16), (16, 2)]
params = [(jax.random.normal(k, s) * 0.3, jnp.zeros(s[1])) for k, s in zip(keys, sizes)]
x, y = jnp.ones((8, 4)), jnp.zeros((8, 2))

explorer = jaxviz.explore(loss, params, x, y)
explorer

# %% [markdown]
# The explorer opens on the whole gradient over time, forward then backward: what runs, which values are saved and for how long, and the memory. Point at
# anything to highlight it in the source; the number beside a line is the bytes that the gradient saves for it.
#
# Click to see the equations, forward beside backward: every pane highlights what an equation was derived from, and what was derived
# from it. Each button at the top is a question, and arranges the panes for the answer; the stages below them go from your
# function to its compiled gradient.
#
# ## The same as a table

# %%
print(jaxviz.residuals(loss, params, x, y))

# %% [markdown]
# Each row names the line of your code that computed the value, and the derivative rule that needs it.
# JAX saves exactly the same values, and you can check it:

# %%
derivation = explorer.derivation
derivation.check()

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert derivation.check()
assert all(r.location.line and r.reason for r in derivation.residuals)

# %% [markdown]
# In this series you first say what you expect, and then see. The questions check themselves: the answers are computed with JAX.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: larger
def _kept(rows):
    return jaxviz.residuals(loss, params, jnp.ones((rows, 4)), jnp.zeros((rows, 2)))


def _why():
    fixed = sum(r.nbytes for r in _kept(8) if r.expression.startswith("params"))
    sizes = " to ".join(f"{_kept(rows).nbytes:,}" for rows in (8, 16))
    return f"It goes from {sizes} bytes. {fixed:,} of them are weights, which do not grow; everything else has a row for each example."


def _growth():
    ratio = _kept(16).nbytes / _kept(8).nbytes
    return "as much" if ratio == 1 else "more, but less than twice as much" if ratio < 2 else "twice as much or more"


larger = teach.predict(
    "Above, the batch has 8 examples. How much does the gradient save with 16?",
    ["as much", "more, but less than twice as much", "twice as much or more"],
    truth=_growth,
    because=_why,
    hints=("Which of the rows above have an 8 in their type?", "And which have none?"),
)
larger

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
larger.solution("more, but less than twice as much")

# %% [markdown]
# ## In motion
#
# The same gradient, played. Press Space: in the forward pass each saved value goes into its bin; in the backward pass the bins are emptied, last one
# first. Below is the memory over time. The arrow keys go step by step.

# %%
in_motion = jaxviz.explore(derivation)
in_motion.question = "motion"
in_motion

# %% [markdown]
# ## The programs
#
# The magics take a call, and show the programs that JAX derives from it. `%jaxpr` shows the traced program.

# %%
# %load_ext jaxviz

# %%
# %jaxpr predict(params, x)

# %% [markdown]
# A *tangent* is how a value changes. `%linearize` splits a function in two: a forward program that does all the nonlinear work and returns residuals,
# and a linear program, from tangents to tangents. Letters start anew in each program: the first arguments of the second are the residuals, in order, and the last is the
# tangent. JVP, which takes tangents along with the values, does both at once, and so it saves nothing.

# %%
# %linearize jnp.tanh(1.0)

# %% [markdown]
# A *cotangent* is how the final result changes with a value. `%vjp` transposes the linear program: cotangents go in, cotangents come out, backwards.

# %%
# %vjp jnp.tanh(1.0)

# %% [markdown]
# ## Python that looks at values
#
# A function whose `if` depends on a value is recorded along the path it takes; the program says so.

# %%
def absolute_or_square(x):
    return x**2 if x > 0 else -x


print(jaxviz.grad(absolute_or_square)(3.0), jaxviz.grad(absolute_or_square)(-3.0))
print(jaxviz.trace(absolute_or_square)(3.0))

# %% [markdown]
# ## Take it with you
#
# One file, without a kernel and without a network.

# %%
explorer.save_html("first_look.html")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
linear = jaxviz.derive(jnp.tanh, 1.0).linear
assert "tanh" not in str(linear)
assert jaxviz.grad(absolute_or_square)(3.0) == jax.grad(absolute_or_square)(3.0) == 6.0
assert jaxviz.grad(absolute_or_square)(-3.0) == jax.grad(absolute_or_square)(-3.0) == -1.0

# %% [markdown]
# ## Go on
#
# Each of the other notebooks is about one program and one question, and has exercises. Four paths lead through them:
#
# - *See it in an hour.* What a gradient saves, and how it comes from a derivative: [4 · partial evaluation and residuals](04_partial_evaluation_and_residuals.ipynb),
#   [5 · transposition](05_transposition.ipynb).
# - *Less memory.* For a gradient that runs out of it: [4 · partial evaluation and residuals](04_partial_evaluation_and_residuals.ipynb), [6 · checkpoints](06_checkpoints.ipynb),
#   [7 · policies and plans](07_policies_and_plans.ipynb), [8 · gradients of control flow](08_control_flow_gradients.ipynb),
#   [12 · the memory of a transformer](12_memory_of_a_transformer.ipynb), [19 · references](19_references.ipynb), [22 · checkpoints in 2027](22_checkpoints_in_2027.ipynb).
# - *When it is wrong.* An error under `jit`, or a gradient that is NaN, zero or too large: [2 · sharp bits](02_sharp_bits.ipynb),
#   [11 · gradients on devices](11_gradients_on_devices.ipynb), [13 · finding a NaN](13_finding_a_nan.ipynb), [16 · why is it zero](16_why_is_it_zero.ipynb),
#   [17 · where two runs part](17_where_two_runs_part.ipynb).
# - *Build your own.* Your functions become an autodiff engine: [24 · a tape](24_a_tape.ipynb), [25 · your own tracer](25_own_tracer.ipynb),
#   [26 · your own gradients](26_own_gradients.ipynb), [27 · your own vmap](27_own_vmap.ipynb), [28 · your own loops and checkpoints](28_own_loops.ipynb),
#   [29 · your own transformer](29_own_transformer.ipynb).
#
# The notebooks of the first three paths take 20 to 35 minutes each; those with puzzles, from [30 · puzzles on memory](30_puzzles_on_memory.ipynb) on, take 40 to 50 minutes, and those
# in which you build an engine take 50 to 90 minutes. The page *Tutorials* of the site lists all of them.
# If you have a program of your own and a question about it, the how-tos of the site are shorter.
#
# Next: [1 · reading jaxprs](01_reading_jaxprs.ipynb), if you cannot read one yet.
