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
# # 30 · Which residuals does my gradient not need?
#
# Five puzzles. Each is a function of at most five lines that works, but takes too much memory. Rewrite it.
#
# - Your answer must compute the same: its values and gradients are compared with those of the function as given, computed by JAX on random inputs.
# - Then it is measured, for arrays of realistic size. They are never allocated: the engine's reports need only types.
# - *Par* is the result of the planner, `jaxviz.plan_remat`, which adds checkpoints to the function and changes nothing else. Where it does not apply, par is a known answer.
# - To beat par, rewrite the function. Less than par is a *birdie*, half of par or less an *eagle*, a tenth an *albatross*, a hundredth a *condor*.
# - The *record* is the best answer known, measured as yours is. How it is done is shown with the known answers.
#
# Each form names the notebook that teaches what is needed, has hints, shown one at a time, and can reveal known answers. Your best answers are stored in `answers/my_puzzles.py`.
#
# It takes 45 minutes. You need to know what a residual is ([4 · partial evaluation and residuals](04_partial_evaluation_and_residuals.ipynb)), and to beat par,
# how to write a `custom_vjp` ([9 · custom rules](09_custom_rules.ipynb)). This is the score card:

# %%
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

import jaxviz
from jaxviz import teach

teach.puzzles.card()

# %% [markdown]
# ## 1. A warm-up
#
# Mathematically, an embedding is a matrix product in which one factor is mostly zeros.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: row
row = teach.puzzles.show("row")
row

# %% tags=["answer"]
def my_embedded(table, tokens):
    rows = jax.nn.one_hot(tokens, len(table))
    return rows @ table

row.answer(my_embedded)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
row.solution(row.puzzle.solution)

# %% [markdown]
# ## 2. A loss over many words
#
# You can look up what is saved and why: `jaxviz.residuals` also accepts the types of the arguments.

# %%
def cross_entropy(w, x, labels):
    p = jax.nn.softmax(x @ w)
    return -jnp.mean(jnp.log(p)[jnp.arange(len(x)), labels])


typed = jax.ShapeDtypeStruct
types = typed((256, 8192), jnp.float32), typed((4096, 256), jnp.float32), typed((4096,), jnp.int32)
jaxviz.residuals(cross_entropy, *types)

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: softmax
softmax = teach.puzzles.show("softmax")
softmax

# %% tags=["answer"]
def my_cross_entropy(w, x, labels):
    p = jax.nn.softmax(x @ w)
    return -jnp.mean(jnp.log(p)[jnp.arange(len(x)), labels])

softmax.answer(my_cross_entropy)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
softmax.solution(softmax.puzzle.solution)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
softmax_puzzle = softmax.puzzle
assert types == softmax_puzzle.types
large = [r for r in jaxviz.residuals(cross_entropy, *types) if r.nbytes == 4 * 4096 * 8192]
assert len(large) >= 2
assert jaxviz.residuals(cross_entropy, *types).nbytes_without_arguments == softmax_puzzle.given_amount

# %% [markdown]
# ## 3. Half of the bytes
#
# Models multiply in bfloat16, and compute numerically sensitive parts in float32. The gradient saves what the sensitive part reads.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: width
width = teach.puzzles.show("width")
width

# %% tags=["answer"]
def my_activation(w, x):
    h = (x @ w).astype(jnp.float32)
    return jnp.tanh(h).astype(x.dtype)

width.answer(my_activation)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
width.solution(width.puzzle.solution)

# %% [markdown]
# ## 4. Every pair
#
# Broadcasting silently makes a large array from two small ones. Here the peak counts, not only the residuals: everything in memory at one time, in either pass.

# %%
def attraction(x, y, mass):
    d = x[:, None] - y[None, :]
    return jnp.exp(-d * d) @ mass


jaxviz.memory(attraction, *[typed((8192,), jnp.float32)] * 3)

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: pairs
pairs = teach.puzzles.show("pairs")
pairs

# %% tags=["answer"]
def my_attraction(x, y, mass):
    d = x[:, None] - y[None, :]
    return jnp.exp(-d * d) @ mass

pairs.answer(my_attraction)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
pairs.solution(pairs.puzzle.solution)

# %% [markdown]
# ## 5. Only the sign
#
# The last one looks easy. Try your first idea, and look at the residuals that the result reports.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: mask
mask = teach.puzzles.show("mask")
mask

# %% tags=["answer"]
def my_rectified(w, x):
    h = x @ w
    return h * (h > 0)

mask.answer(my_rectified)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
mask.solution(mask.puzzle.solution)

# %% [markdown]
# Where do you stand? `print(teach.puzzles.card().share())` is the same as text, without any code.

# %%
teach.puzzles.card()

# %% [markdown]
# ## What to remember
#
# - For each saved value, ask what reads it, and whether that could be rewritten so that nothing does.
# - The gradient of a scalar is one array per argument, and a custom rule can compute it in the forward pass.
# - The dtype of a residual is a choice, too: float32, bfloat16, a byte, a bit.
# - A large broadcast array can become a loop over its rows.
#
# Next: [31 · puzzles on checkpoints](31_puzzles_on_checkpoints.ipynb).
