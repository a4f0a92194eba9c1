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
# # 32 · How much work does a derivative take?
#
# Five functions that compute derivatives, or a product, with up to 500 times the work that is needed. The rules are those of [30 · puzzles on memory](30_puzzles_on_memory.ipynb). The
# measure is the FLOPs of the function, as counted by `jaxviz.cost`; par is a known answer.
#
# It takes 40 minutes. You need `jax.jvp`, `jax.vjp` and `jax.grad`: [3 · JVP and linearize](03_jvp_and_linearize.ipynb).

# %%
import jax
import jax.numpy as jnp

import jaxviz
from jaxviz import teach

teach.puzzles.card()

# %% [markdown]
# ## 11. The order of products
#
# This one is about parentheses, and is the key to the next four.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: order
order = teach.puzzles.show("order")
order

# %% tags=["answer"]
def my_product(a, b, c, v):
    return a @ b @ c @ v

order.answer(my_product)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
order.solution(order.puzzle.solution)

# %% [markdown]
# ## 12. Forward or reverse
#
# A Jacobian has a row for each result and a column for each argument. Forward mode computes columns, and reverse mode rows.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: mode
mode = teach.puzzles.show("mode")
mode

# %% tags=["answer"]
def my_velocity(w, t):
    curve = lambda t: jnp.sin(w @ jnp.cos(t * jnp.arange(w.shape[1])))
    return jax.jacrev(curve)(t)

mode.answer(my_velocity)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
mode.solution(mode.puzzle.solution)

# %% [markdown]
# ## 13. A Hessian and one vector
#
# Newton's method, the conjugate gradient and estimates of curvature all need a Hessian times a vector. They do not need the Hessian itself.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: hessian
hessian = teach.puzzles.show("hessian")
hessian

# %% tags=["answer"]
def my_bent(w, x, v):
    of_x = lambda x: jnp.sum(jnp.tanh(w @ x) ** 2)
    return jax.hessian(of_x)(x) @ v

hessian.answer(my_bent)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
hessian.solution(hessian.puzzle.solution)

# %% [markdown]
# ## 14. The trace of a Jacobian
#
# The trace has no vector to multiply by. But you know how the function is defined.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: trace
trace = teach.puzzles.show("trace")
trace

# %% tags=["answer"]
def my_divergence(w, u, x):
    field = lambda x: u @ jnp.tanh(w @ x)
    return jnp.trace(jax.jacrev(field)(x))

trace.answer(my_divergence)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
trace.solution(trace.puzzle.solution)

# %% [markdown]
# ## 15. Both branches
#
# `jax.lax.cond` computes one of its branches. Under `jax.vmap` it cannot. Before you answer, look at the jaxpr:

# %%
def routed(w, xs):
    wave, ramp = lambda x: w @ jnp.sin(x), lambda x: w @ jnp.tanh(x)
    one = lambda x: jax.lax.cond(x[0] > 0, wave, ramp, x)
    return jax.vmap(one)(xs)


typed = jax.ShapeDtypeStruct
program = jaxviz.trace(routed)(typed((512, 512), jnp.float32), typed((1024, 512), jnp.float32))
program

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: branches
branches = teach.puzzles.show("branches")
branches

# %% tags=["answer"]
def my_routed(w, xs):
    wave, ramp = lambda x: w @ jnp.sin(x), lambda x: w @ jnp.tanh(x)
    one = lambda x: jax.lax.cond(x[0] > 0, wave, ramp, x)
    return jax.vmap(one)(xs)

branches.answer(my_routed)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
branches.solution(branches.puzzle.solution)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
of_five = [e.puzzle for e in (order, mode, hessian, trace, branches)]
assert 300 < max(p.given_amount / p.par_amount for p in of_five) < 600
assert {p.measure.name for p in of_five} == {"FLOPs"}
assert not any("cond" in e.primitive.name for _, e in program.walk())

# %%
teach.puzzles.card()

# %% [markdown]
# ## What to remember
#
# - Never form a matrix only to multiply it by a vector: use `jax.jvp` for columns, `jax.vjp` for rows, and one of the other for second derivatives.
# - One argument and many results: forward. Many arguments and one result: reverse.
# - Under `vmap`, a branch that differs between examples becomes a selection; so select early.
#
# Next: [33 · puzzles on NaNs](33_puzzles_on_nans.ipynb).
