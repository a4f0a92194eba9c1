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
# # 34 · Can I change a gradient, shorten a program, send less?
#
# The last five puzzles: a gradient that differs from the function's own, a gradient that does not need the loop, a loop that is traced once, and two functions that run on eight devices. The rules are those of
# [30 · puzzles on memory](30_puzzles_on_memory.ipynb).
#
# It takes 40 minutes. You need custom rules ([9 · custom rules](09_custom_rules.ipynb)) and collectives ([10 · named axes](10_named_axes.ipynb)). You need no devices: the functions run on eight shares under `vmap`,
# and are measured on an abstract mesh.

# %%
import jax
import jax.numpy as jnp

import jaxviz
from jaxviz import teach

teach.puzzles.card()

# %% [markdown]
# ## 20. Straight through
#
# Networks with low-bit weights are trained with a gradient that differs from the function's own.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: straight
straight = teach.puzzles.show("straight")
straight

# %% tags=["answer"]
def my_quantized(x):
    return jnp.round(4 * jnp.clip(x, -1, 1)) / 4

straight.answer(my_quantized)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
straight.solution(straight.puzzle.solution)

# %% [markdown]
# ## 21. Where a loop ends
#
# Kepler's equation has no closed-form solution, so it is solved by iteration.

# %%
def kepler(m, e):
    step = lambda x, _: (m + e * jnp.sin(x), None)
    return jax.lax.scan(step, m, length=100)[0]


planets = jax.ShapeDtypeStruct((10_000,), jnp.float32)
jaxviz.memory(kepler, planets, planets, argnums=(0, 1))

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: implicit
implicit = teach.puzzles.show("implicit")
implicit

# %% tags=["answer"]
def my_kepler(m, e):
    step = lambda x, _: (m + e * jnp.sin(x), None)
    return jax.lax.scan(step, m, length=100)[0]

implicit.answer(my_kepler)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
implicit.solution(implicit.puzzle.solution)

# %% [markdown]
# ## 22. Rolled up
#
# Every equation is traced, transformed and compiled. A model with 100 layers can have the equations of one.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: rolled
rolled = teach.puzzles.show("rolled")
rolled

# %% tags=["answer"]
def my_deep(ws, x):
    for w in ws:
        x = x + jnp.tanh(x @ w)
    return x

rolled.answer(my_deep)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
rolled.solution(rolled.puzzle.solution)

# %% [markdown]
# ## 23. One collective
#
# Every message has latency, however short it is. So one message is better than two.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: collective
collective = teach.puzzles.show("collective")
collective

# %% tags=["answer"]
def my_variance(x):
    n = jax.lax.axis_size("devices") * x.size
    mean = jax.lax.psum(jnp.sum(x), "devices") / n
    return jax.lax.psum(jnp.sum((x - mean) ** 2), "devices") / n

collective.answer(my_variance)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
collective.solution(collective.puzzle.solution)

# %% [markdown]
# ## 24. Do not send everything
#
# For long messages, the bytes count.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: gather
gather = teach.puzzles.show("gather")
gather

# %% tags=["answer"]
def my_log_sum(x):
    everything = jax.lax.all_gather(x, "devices", tiled=True)
    return jax.nn.logsumexp(everything)

gather.answer(my_log_sum)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
gather.solution(gather.puzzle.solution)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert jnp.all(jax.vmap(jax.grad(straight.puzzle.function))(jnp.linspace(-2, 2, 9)) == 0)
assert jaxviz.memory(kepler, planets, planets, argnums=(0, 1)).peak_nbytes == implicit.puzzle.given_amount
x = jnp.float32(0.3) + 0.5 * jnp.sin(kepler(jnp.float32(0.3), jnp.float32(0.5)))
assert jnp.allclose(x, kepler(jnp.float32(0.3), jnp.float32(0.5)), rtol=1e-6)

# %%
teach.puzzles.card()

# %% [markdown]
# ## What to remember
#
# - You can define any derivative with a custom rule: for rounding, for the end of a loop, for anything without a useful derivative.
# - JAX sees a Python loop as its unrolled iterations. A `scan` is one equation.
# - Send sums instead of their terms, and send them together.
#
# That is the end of the series, which began with [0 · a first look](00_first_look.ipynb).
