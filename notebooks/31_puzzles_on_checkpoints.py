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
# # 31 · Where does the checkpoint go, and what does it save?
#
# Five puzzles with `jax.checkpoint`: around a call, by name, in the bodies of loops. The rules are those of [30 · puzzles on memory](30_puzzles_on_memory.ipynb): an answer must
# compute the same, then it is measured. Par is the result of the planner; in two of the five puzzles you can beat it by far, without a checkpoint.
#
# It takes 50 minutes. You need to know checkpoints and policies: [6 · checkpoints](06_checkpoints.ipynb) and [7 · policies and plans](07_policies_and_plans.ipynb).

# %%
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

import jaxviz
from jaxviz import teach

teach.puzzles.card()

# %% [markdown]
# ## 6. One call
#
# A checkpoint trades bytes for work. Here the work is bounded: no matrix product may be computed twice.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: call
call = teach.puzzles.show("call")
call

# %% tags=["answer"]
def my_block(p, x):
    return x + jax.nn.gelu(x @ p["widen"]) @ p["narrow"]

call.answer(my_block)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
call.solution(call.puzzle.solution)

# %% [markdown]
# ## 7. By name
#
# This time the function does not change, and the answer is a policy.

# %%
def head(w, x):
    scores = checkpoint_name(x @ w["q"] @ (x @ w["k"]).T, "scores")
    weights = checkpoint_name(jax.nn.softmax(scores), "weights")
    return checkpoint_name(weights @ (x @ w["v"]), "mixed")

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: names
names = teach.puzzles.show("names")
names

# %% tags=["answer"]
my_policy = jax.checkpoint_policies.everything_saveable

names.answer(my_policy)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
names.solution(names.puzzle.solution)

# %% [markdown]
# ## 8. The body of a loop
#
# A loop saves the residuals of every step, stacked.

# %%
def rollout(w, h):
    step = lambda h, _: (h + jnp.sin(jnp.tanh(h) @ w), None)
    return jax.lax.scan(step, h, length=16)[0]


typed = jax.ShapeDtypeStruct
jaxviz.memory(rollout, typed((256, 256), jnp.float32), typed((1024, 256), jnp.float32), argnums=(0, 1))

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: body
body = teach.puzzles.show("body")
body

# %% tags=["answer"]
def my_rollout(w, h):
    step = lambda h, _: (h + jnp.sin(jnp.tanh(h) @ w), None)
    return jax.lax.scan(step, h, length=16)[0]

body.answer(my_rollout)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
body.solution(body.puzzle.solution)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
stacked = [r for r in jaxviz.residuals(rollout, *body.puzzle.types, argnums=(0, 1)) if r.lengths == (16,)]
assert sum(r.nbytes for r in stacked) > 0.9 * jaxviz.residuals(rollout, *body.puzzle.types, argnums=(0, 1)).nbytes
beaten = [p.better is not None for p in (call.puzzle, names.puzzle, body.puzzle)]
assert beaten == [False, False, False]

# %% [markdown]
# ## 9. Steps that are not taken
#
# A `while_loop` has no reverse-mode gradient. A loop that can stop early and has one is a `scan` over a `cond`: up to a bound, each iteration either runs a step or does nothing.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: steps
steps = teach.puzzles.show("steps")
steps

# %% tags=["answer"]
def my_roots(a):
    newton = lambda x: x - (x**3 + x - a) / (3 * x**2 + 1)
    again = lambda x: jnp.max(jnp.abs(x**3 + x - a)) > 1e-5
    step = lambda x, _: (jax.lax.cond(again(x), newton, lambda x: x, x), None)
    return jax.lax.scan(step, a, length=64)[0]

steps.answer(my_roots)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
steps.solution(steps.puzzle.solution)

# %% [markdown]
# ## 10. A loop of loops
#
# Now the loop is long, and a step needs only a state. How few states can be in memory at one time?

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: loops
loops = teach.puzzles.show("loops")
loops

# %% tags=["answer"]
def my_orbit(q, p):
    drift = lambda q, p: (q + 0.05 * p, p)
    kick = lambda q, p: p - 0.05 * q * jnp.exp(-q * q)
    step = lambda state, _: (drift(state[0], kick(*state)), None)
    return jax.lax.scan(step, (q, p), length=400)[0]

loops.answer(my_orbit)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
loops.solution(loops.puzzle.solution)

# %%
teach.puzzles.card()

# %% [markdown]
# ## What to remember
#
# - Save what is expensive to compute, and recompute what is cheap: a policy selects values by operation or by name.
# - A checkpoint in the body of a loop applies to every iteration.
# - Two nested loops with checkpoints save about the square root of the number of states that one loop saves.
# - At the end of a loop, an equation often holds; the gradient can be derived from it and needs no step of the loop. The states of invertible steps need not be saved.
#
# Next: [32 · puzzles on work](32_puzzles_on_work.ipynb).
