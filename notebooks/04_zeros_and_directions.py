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
# # 4 · What does a zero derivative cost, and what do fifty derivatives at once?
#
# Directions that are all known beforehand can go through a program together. And where a tangent is zero, there is nothing to compute: JAX knows
# that before any number exists.
#
# The plate of fuel from [3 · JVP and linearize](03_jvp_and_linearize.ipynb) again, with a temperature at each of 32 × 32 points. It takes 20 minutes.
# You should know what `jvp` and `linearize` give.

# %% jupyter={"source_hidden": true}
# The plate: imbalance(u, fuel, is_pipe), a direction v, and cost(program)
import jax
import jax.numpy as jnp
import numpy as np

import jaxviz
from jaxviz import teach

N = 32


def conduction(u):
    wide = jax.lax.pad(u, 0.0, [(1, 1, 0), (1, 1, 0)])
    return 4.0 * u - wide[:-2, 1:-1] - wide[2:, 1:-1] - wide[1:-1, :-2] - wide[1:-1, 2:]


def reaction(u, fuel):
    return fuel * jnp.exp(u / (1.0 + 0.1 * u))


def imbalance(u, fuel, is_pipe):
    return jax.lax.select(is_pipe, u, conduction(u) - reaction(u, fuel))



row, column = np.mgrid[:N, :N]
is_pipe = jnp.asarray((row % 12 == 6) & (column % 12 == 6))
fuel = jnp.asarray(np.where(np.hypot(row - 20, column - 12) < 9, 0.014, 0.002), jnp.float32)
u = jnp.ones((N, N)) / 2  # a temperature at each point
v = jax.random.normal(jax.random.key(0), (N, N))  # a direction: a change of each of them


def at_plate(u):
    return imbalance(u, fuel, is_pipe)


def cost(program):
    return sum((jaxviz.cost_of(e) for e in program.equations), jaxviz.Cost())


derivation = jaxviz.derive(imbalance, u, fuel, is_pipe)
each, first, then = (cost(getattr(derivation, name)) for name in ("jvp", "forward", "linear"))


# %%
print(jaxviz.trace(imbalance)(u, fuel, is_pipe))

# %% [markdown]
# ## All directions at once: `vmap` of `jvp`
#
# Where the directions are known beforehand, there is a third way: one JVP, mapped over them.

# %%
directions = jax.random.normal(jax.random.key(1), (50, N, N))


def in_all(u, directions):
    return jax.vmap(lambda v: jax.jvp(at_plate, (u,), (v,))[1])(directions)


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: mapped
mapped = teach.predict(
    "`u` has 1,024 points, and there are 50 directions. How many numbers does the program of `in_all` take the `exp` of?",
    truth=lambda: cost(jaxviz.trace(in_all)(u, directions)).transcendentals,
    because="`vmap` maps what depends on the mapped argument, and `exp` reads `u`, which is the same for all directions. The primal work stands "
    "in the program once.",
    hints=("Does `exp` read a tangent?", "`vmap` gives an axis to what depends on `directions`, and to nothing else."),
)
mapped

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
mapped.solution(1024)

# %%
together = cost(jaxviz.trace(in_all)(u, directions))
in_turn = first + then * 50
for name, c in [("jvp, 50 times", each * 50), ("linearize once", in_turn), ("vmap of jvp", together)]:
    print(f"{name:15} {c.flops:11,} FLOPs {c.transcendentals:7,} exp")

# %% [markdown]
# It shares the primal work as `linearize` does, and saves no residuals, since primal and tangent work still take turns. But it holds fifty
# tangents at each moment, where one after the other needs one. `jax.jacfwd` is this, with a direction for each input.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert together.transcendentals == N * N
assert abs(together.flops / in_turn.flops - 1) < 0.05
assert jnp.allclose(in_all(u, directions)[7], jax.jvp(at_plate, (u,), (directions[7],))[1], atol=1e-5)

# %% [markdown]
# Write the function that gives the whole Jacobian in this way, for a smaller problem: the temperatures along one row.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: jacobian
def row(t):
    wide = jnp.pad(t, 1)
    return 2.0 * t - wide[:-2] - wide[2:] - 0.1 * jnp.exp(t)


_t = jnp.linspace(0.0, 1.0, 6)


def _exps(written):
    n = cost(jaxviz.trace(lambda t: written(row, t))(_t)).transcendentals
    return "" if n <= 6 else f"The program takes {n} exponentials, and `row` 6: the directions do not share them."


jacobian = teach.rule(
    "Write `my_jacobian(f, t)` for a vector `t`: column `j` is the derivative of `f` in the direction of `t[j]`.",
    teach.computes(lambda t: jax.jacobian(row)(t), (_t,)).of(lambda written: lambda t: written(row, t)).saying("gives what jax.jacobian gives"),
    teach.Check("shares the primal work among the directions", _exps),
    hints=(
        "The directions are the rows of `jnp.eye(len(t))`.",
        "`jax.vmap` stacks along axis 0; a column lies along axis 1. `out_axes=1`, or a transpose.",
    ),
    wrong=(
        lambda f, t: jax.vmap(lambda v: jax.jvp(f, (t,), (v,))[1])(jnp.eye(len(t)) * jnp.arange(1.0, 7.0)),
        lambda f, t: jnp.stack([jax.jvp(f, (t,), (v,))[1] for v in jnp.eye(len(t))], 1),
        lambda f, t: jax.jvp(f, (t,), (jnp.ones_like(t),))[1],
    ),
)
jacobian


# %% tags=["answer"]
def my_jacobian(f, t):
    return ...


jacobian.answer(my_jacobian)


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def columns(f, t):
    return jax.vmap(lambda v: jax.jvp(f, (t,), (v,))[1], out_axes=1)(jnp.eye(len(t)))


jacobian.solution(columns)

# %%
import matplotlib.pyplot as plt

plt.figure(figsize=(3, 2.6))
plt.imshow(columns(row, jnp.linspace(0.0, 1.0, 24)), cmap="RdBu", vmin=-2.5, vmax=2.5)
plt.colorbar(label="which temperature moves which")
plt.axis("off");

# %% [markdown]
# ## A tangent that is zero is not computed
#
# `fuel` does not move here. Its tangent is a *symbolic zero*: JAX knows that it is zero before any number exists, and the derivative rules
# leave out what only passes zeros on. In `reaction`, a product of two things, one of the two terms of the product rule is missing from the
# program.
#
# The other way round, let `fuel` move and `u` stay.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: slices
in_fuel = jaxviz.derive(imbalance, u, fuel, is_pipe, argnums=1)
slices = teach.predict(
    "`imbalance` has four `slice`s. How many has the linear program of its derivative in `fuel` alone?",
    truth=lambda: sum(e.primitive.name == "slice" for _, e in in_fuel.linear.walk()),
    because="The slices take `u` alone, which does not move. Their tangents are symbolic zeros, and nothing is written down for them.",
    hints=("What do the slices read: `u`, `fuel` or both?",),
)
slices

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
slices.solution(0)

# %%
print(in_fuel.linear)
print(jaxviz.residuals(imbalance, u, fuel, is_pipe, argnums=1).table())

# %% [markdown]
# That is the whole derivative in `fuel`: times `exp(…)`, a sign, and the choice at the pipes. One array of zeros is among the residuals: `select_n` takes
# two arrays, and there the symbolic zero of `u`'s tangent has to be written out.
#
# What if you pass the zero yourself?


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: zeros
def _equations(f, *args):
    return len(jax.make_jaxpr(f)(*args).eqns)


def _more():
    held = _equations(lambda u, v: jax.jvp(at_plate, (u,), (v,)), u, v)
    both = lambda u, fuel: imbalance(u, fuel, is_pipe)
    return _equations(lambda u, fuel, v, z: jax.jvp(both, (u, fuel), (v, z)), u, fuel, v, jnp.zeros_like(fuel)) - held


zeros = teach.predict(
    "`jax.jvp` in `u` and `fuel`, with `jnp.zeros_like(fuel)` as the tangent of `fuel`. How many equations has its program more than that of "
    "`jax.jvp` in `u` alone?",
    truth=_more,
    because="The other term of the product rule, which multiplies by your zeros, and the sum of both terms. Nobody looks into an array of zeros, and "
    "while `jit` traces there is nothing in it to look at. To hold an argument fixed, do not differentiate in it: close over it, or leave it "
    "out of `argnums`.",
    hints=(
        "While `jit` traces, can anybody see what is in the array?",
        "Write down the tangent of `fuel * exp(…)` where both factors move, and where one does.",
    ),
)
zeros

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
zeros.solution(2)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
names = [e.primitive.name for _, e in in_fuel.linear.walk()]
assert sorted(names) == ["mul", "neg", "select_n"]
assert any(r.producer is not None and r.producer.primitive.name == "broadcast_in_dim" for r in in_fuel.residuals)
_in_u = sum(e.primitive.name == "mul" for e in jaxviz.derive(reaction, u, fuel, argnums=0).linear.equations)
_in_both = sum(e.primitive.name == "mul" for e in jaxviz.derive(reaction, u, fuel, argnums=(0, 1)).linear.equations)
assert _in_both == _in_u + 1

# %% [markdown]
# ## Integers and booleans: `float0`
#
# `is_pipe` is an input, and a boolean does not move: there is no small step from False to True. Its tangents have a dtype of their own,
# `float0`, which has one value and takes no memory. Passing zeros of its own dtype is refused:

# %%
try:
    jax.jvp(imbalance, (u, fuel, is_pipe), (v, v, jnp.zeros_like(is_pipe)))
except TypeError as error:
    print(error)

still = np.zeros(is_pipe.shape, jax.dtypes.float0)
value, tangent = jax.jvp(imbalance, (u, fuel, is_pipe), (v, v, still))
print("a float0 tangent of", still.size, "elements takes", still.nbytes, "bytes")

# %% [markdown]
# A `float0` tangent is always a symbolic zero; no program has an input for it. A result that is an integer or a boolean has a `float0` tangent
# too. So a derivative that goes through one is lost, without a warning:


# %%
def hot_points(u):
    return jnp.sum(u > 0.4)


def hot_share(u):
    return hot_points(u) / u.size


print("tangent of the number of hot points is float0:", jax.jvp(hot_points, (u,), (v,))[1].dtype == jax.dtypes.float0)
print("tangent of their share:", jax.jvp(hot_share, (u,), (v,))[1])

# %% [markdown]
# To have a derivative, count smoothly: let each point be hot by a degree.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: smooth
def _no_slope(written):
    slope = jax.grad(lambda u: jnp.sum(written(u)))(u)
    return "" if float(jnp.abs(slope).max()) > 0 else "Its gradient is zero everywhere: somewhere a boolean or an integer is in the way."


def _off(written):
    cold, hot = written(jnp.zeros((4, 4))), written(jnp.ones((4, 4)))
    return "" if cold < 0.05 and hot > 0.95 else f"Where all is at 0 it gives {float(cold):.3g}, where all is at 1 {float(hot):.3g}; the share is 0 and 1 there, within 0.05."


smooth = teach.rule(
    "Write `my_share(u)`: about the share of points above 0.4, with a gradient.",
    teach.Check("is about the share", _off),
    teach.Check("has a gradient", _no_slope),
    hints=("A sigmoid goes from 0 to 1.", "`jax.nn.sigmoid((u - 0.4) / width)`: how narrow must it be?"),
    wrong=(hot_share, lambda u: jnp.mean(jnp.where(u > 0.4, 1.0, 0.0)), lambda u: jnp.mean(u) + 0.1),
)
smooth


# %% tags=["answer"]
def my_share(u):
    return jnp.mean(...)


smooth.answer(my_share)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
smooth.solution(lambda u: jnp.mean(jax.nn.sigmoid((u - 0.4) / 0.1)))

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert still.nbytes == 0
all_moved = jaxviz.derive(imbalance, u, fuel, is_pipe, argnums=(0, 1, 2))
assert len(all_moved.jvp.in_avals) == 3 + 2
assert not jax.jvp(hot_share, (u,), (v,))[1]
assert jax.jvp(hot_points, (u,), (v,))[1].dtype == jax.dtypes.float0

# %% [markdown]
# ## What to remember
#
# - All directions known beforehand: `vmap` of `jvp`. It shares the primal work, and saves nothing; but all tangents are there at once.
# - An argument that does not move is left out of the differentiation, and its tangent is no work at all. Zeros that you pass are computed with.
# - A derivative that goes through an integer or a boolean is lost, without a warning.
#
# Next: who decides what goes into the forward program and what must be saved, in
# [5 · partial evaluation and residuals](05_partial_evaluation_and_residuals.ipynb).
