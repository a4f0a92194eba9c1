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
# # 33 · How do I write a function whose gradient is never NaN?
#
# Four functions whose value is correct, or nearly, but whose gradient is NaN at some inputs. The rules are those of [30 · puzzles on memory](30_puzzles_on_memory.ipynb); in addition, `jaxviz.find_nan` must find
# nothing at the hard inputs. The measure is the number of operations of the gradient, so that safety stays cheap.
#
# It takes 40 minutes. You need to know how NaNs get into gradients: [13 · finding a NaN](13_finding_a_nan.ipynb).

# %%
import jax
import jax.numpy as jnp

from jaxviz import teach

teach.puzzles.card()

# %% [markdown]
# ## 16. The gradient at zero
#
# The author of this function thought of zero.

# %%
def sinc(x):
    return jnp.where(x != 0, jnp.sin(x) / x, 1.0)


print(sinc(jnp.float32(0.0)), jax.grad(sinc)(0.0))

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: where
where = teach.puzzles.show("where")
where

# %% tags=["answer"]
def my_sinc(x):
    return jnp.where(x != 0, jnp.sin(x) / x, 1.0)

where.answer(my_sinc)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
where.solution(where.puzzle.solution)

# %% [markdown]
# ## 17. At distance zero
#
# A distance of zero has no gradient, since the distance grows in every direction. In a simulation, 0 is a good choice.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: norm
norm = teach.puzzles.show("norm")
norm

# %% tags=["answer"]
def my_distances(a, b):
    return jnp.sqrt(jnp.sum((a - b) ** 2, -1))

norm.answer(my_distances)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
norm.solution(norm.puzzle.solution)

# %% [markdown]
# ## 18. Masked actions
#
# An action that an agent may not take has a logit of -inf, so its probability is 0, as it should be.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: entropy
entropy = teach.puzzles.show("entropy")
entropy

# %% tags=["answer"]
def my_entropy(logits, mask):
    log_p = jax.nn.log_softmax(jnp.where(mask, logits, -jnp.inf))
    return -jnp.sum(jnp.exp(log_p) * log_p, -1)

entropy.answer(my_entropy)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
entropy.solution(entropy.puzzle.solution)

# %% [markdown]
# ## 19. A custom rule
#
# Here the value overflows before the gradient does. Fix it, and write the derivative yourself: `jaxviz.check_rule` compares your rule with numerical differences.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: softplus
softplus = teach.puzzles.show("softplus")
softplus

# %% tags=["answer"]
def my_softplus(x):
    return jnp.log(1 + jnp.exp(x))

softplus.answer(my_softplus)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
softplus.solution(softplus.puzzle.solution)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert jnp.isnan(jax.grad(sinc)(0.0)) and sinc(jnp.float32(0.0)) == 1
assert jnp.isinf(softplus.puzzle.function(jnp.float32(100.0))) and jnp.isnan(jax.grad(softplus.puzzle.function)(100.0))
assert jax.nn.softmax(jnp.array([0.0, -jnp.inf]))[1] == 0
assert not jax.grad(lambda a: norm.puzzle.better(a, jnp.ones(3)))(jnp.ones(3)).any()
assert jnp.abs(jax.jacobian(lambda v: v / norm.puzzle.better(v, jnp.zeros(3)))(jnp.zeros(3))).max() > 1e5
assert {e.puzzle.measure.name for e in (where, norm, entropy)} == {"operations"}

# %%
teach.puzzles.card()

# %% [markdown]
# ## What to remember
#
# - A `jnp.where` chooses between two values, but both are computed, and so are their gradients. Choose before the dangerous operation.
# - A small number under a root is enough where its enormous slope is multiplied by 0, as at distance zero. In a unit vector it is not:
#   [13 · finding a NaN](13_finding_a_nan.ipynb) has both. A huge number instead of infinity is often enough.
# - If you know the derivative better than the formula does, write it as a custom rule.
#
# Next: [34 · puzzles on rules and devices](34_puzzles_on_rules_and_devices.ipynb).
