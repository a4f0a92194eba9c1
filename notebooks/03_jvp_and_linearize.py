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
# # 3 · Fifty directions: `jvp`, `linearize` or `vmap`?
#
# Newton's method for a large system needs the derivative of one function, at one point, in some fifty directions.
# `jax.jvp` gives the derivative in one direction. `jax.linearize` gives a function that does. And `jax.vmap` sends many directions through at once. Which one is
# better, and by how much: a factor of fifty, of two, none? And what if a derivative is zero?
#
# This notebook measures it, on a program that needs it. It takes 30 minutes. You should be able to read a jaxpr:
# [1 · reading jaxprs](01_reading_jaxprs.ipynb).
#
# ## The program
#
# A plate of fuel reacts, and heats itself. Heat flows to its rim and into cooling pipes, which are held at zero. At each point `imbalance`
# says how much more heat flows away than the reaction makes; the plate is in its steady state where that is zero.

# %%
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

# %%
row, column = np.mgrid[:N, :N]
is_pipe = jnp.asarray((row % 12 == 6) & (column % 12 == 6))
fuel = jnp.asarray(np.where(np.hypot(row - 20, column - 12) < 9, 0.014, 0.002), jnp.float32)
u = jnp.ones((N, N)) / 2  # a temperature at each point
v = jax.random.normal(jax.random.key(0), (N, N))  # a direction: a change of each of them

print(jaxviz.trace(imbalance)(u, fuel, is_pipe))

# %% [markdown]
# ## JVP: two numbers where there was one
#
# `jax.jvp` takes a point and a direction, and gives the value and the derivative in that direction: the Jacobian times the vector `v`.
# The Jacobian is never formed. The derivative, a *tangent*, has the shape of the value.

# %%
def at_plate(u):
    return imbalance(u, fuel, is_pipe)


value, tangent = jax.jvp(at_plate, (u,), (v,))

eps = 1e-2
difference = (at_plate(u + eps * v) - at_plate(u - eps * v)) / (2 * eps)
print("jvp and a central difference differ by at most", float(jnp.abs(tangent - difference).max()))

# %% [markdown]
# In its program, work on values (*primal*, P) and work on tangents (T) take turns: each equation is followed at once by its
# derivative, which may be several equations, or none.

# %%
derivation = jaxviz.derive(imbalance, u, fuel, is_pipe)


def pattern(program):
    return "".join(e.origin.role[0].upper() for e in program.equations)


print(pattern(derivation.jvp))

# %% [markdown]
# So nothing has to be saved: when an equation's derivative is computed, the value that it needs is still there, and can be freed afterwards.
# The cost: for the next direction everything runs again, the P as well as the T.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert jnp.allclose(tangent, difference, atol=2e-3)
assert tangent.shape == value.shape
assert pattern(derivation.jvp).count("P") == len(derivation.primal.equations)
assert pattern(derivation.jvp).startswith("PTPTPTPT")

# %% [markdown]
# ## Linearize: all of the P, then all of the T
#
# `jax.linearize` takes a point alone. It gives the value, and a *linear* function from tangents to tangents that holds for this point. It makes two programs: the *forward* program
# does all the work on values, the *linear* program all the work on tangents.

# %%
value, push = jax.linearize(at_plate, u)

print("the same derivative:", bool(jnp.allclose(push(v), tangent, atol=1e-6)))
print("JVP:    ", pattern(derivation.jvp))
print("forward:", pattern(derivation.forward))
print("linear: ", pattern(derivation.linear))

# %% [markdown]
# An equation goes into the linear program if it reads a tangent, and only then. What a derivative rule computes from values alone is done once, in the forward program (R). The values of
# the forward program that the linear program reads have to be saved: these are the *residuals*. A derivative that depends on no value, such as that of `4.0 * u`, saves no array.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: kept
kept = teach.saved(
    reaction,
    u,
    fuel,
    question="The derivative of `reaction` in `u`: which values does `linearize` keep for its linear function?",
)
kept

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
kept.solution(["u", "fuel", "add", "div'", "exp"])

# %% [markdown]
# Below, the JVP stands at the left, the two programs at the right. `exp` is selected: at the left its derivative follows it. Click other equations of the JVP: a T leads to the linear program,
# a P to the forward one.

# %%
explorer = jaxviz.explore(derivation)
explorer.stage, explorer.beside = "jvp", "forward+linear"
explorer.selected = "jvp:" + str([e.primitive.name for e in derivation.jvp.equations].index("exp"))
explorer

# %% [markdown]
# `push` is not the Jacobian, which has a row for each result and a column for each temperature. It is a program, and holds what that reads:

# %%
print(f"the Jacobian {4 * u.size**2 / 1024:,.0f} KiB, push {sum(x.nbytes for x in jax.tree.leaves(push)) / 1024:,.0f} KiB")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert pattern(derivation.forward).count("P") == len(derivation.primal.equations)
assert set(pattern(derivation.linear)) == {"T"}
_apart = pattern(derivation.forward) + pattern(derivation.linear)
assert sorted(_apart.replace("R", "T")) == sorted(pattern(derivation.jvp))
assert {r.kind for r in jaxviz.residuals(lambda u: 4.0 * u, u)} <= {"literal"}
assert abs(sum(x.nbytes for x in jax.tree.leaves(push)) - derivation.residuals.nbytes) < 64
assert sum(x.nbytes for x in jax.tree.leaves(push)) < 4 * u.size**2 / 50
assert derivation.check()

# %% [markdown]
# ## Counting
#
# `jaxviz.cost_of` counts the FLOPs of an equation as XLA does: a sum or a product of two elements is one, and `exp` is
# counted apart, as a *transcendental*, which takes many instructions.

# %%
def cost(program):
    return sum((jaxviz.cost_of(e) for e in program.equations), jaxviz.Cost())


for name in ("primal", "jvp", "forward", "linear"):
    c = cost(getattr(derivation, name))
    print(f"{name:8} {c.flops:7,} FLOPs {c.transcendentals:6,} exp")

# %% [markdown]
# `jvp` costs what `forward` and `linear` cost together: it is the same work in another order. So for *one* direction there is nothing to gain.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: limit
limit = teach.predict(
    "Take a million directions: the FLOPs of a million calls of `jvp`, divided by those of one `linearize` and a million calls of `push`?",
    truth=lambda: cost(derivation.jvp).flops / cost(derivation.linear).flops,
    because=lambda: (
        "The forward program is paid once and does not matter; what is left is `jvp` over `linear`, "
        f"{cost(derivation.jvp).flops:,} / {cost(derivation.linear).flops:,}. However many directions, it is never a million times."
    ),
    tolerance=0.05,
    hints=(
        "n directions: n × jvp on one side, forward + n × linear on the other.",
        "For a large n the forward program does not matter. Divide two numbers of the table.",
    ),
)
limit

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
limit.solution(cost(derivation.jvp).flops / cost(derivation.linear).flops)

# %%
each, first, then = (cost(getattr(derivation, name)) for name in ("jvp", "forward", "linear"))
print("directions     jvp each time            linearize once          FLOPs, times")
for n in (1, 5, 50, 1000):
    a, b = each * n, first + then * n
    print(
        f"{n:10} {a.flops:11,} + {a.transcendentals:9,} exp {b.flops:11,} + {b.transcendentals:5,} exp {a.flops / b.flops:11.2f}"
    )

# %% [markdown]
# Fifty directions are far from fifty times cheaper. A direction costs the tangent work in either case. What `linearize` saves
# is the primal work: the `exp`, the `div`, the powers. The more of a function is nonlinear, the more that is.
# No compiler can share it between two calls of `jvp`, because the second call begins when the first is over. XLA's own count of the compiled functions:

# %%
tangent_by_jvp = jax.jit(lambda u, v: jax.jvp(at_plate, (u,), (v,))[1])
tangent_by_push = jax.jit(lambda push, v: push(v))

for name, f, args in [("jvp ", tangent_by_jvp, (u, v)), ("push", tangent_by_push, (push, v))]:
    counted = f.lower(*args).compile().cost_analysis()
    print(f"{name} {counted['flops']:8,.0f} FLOPs {counted.get('transcendentals', 0.0):7,.0f} exp")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert each.flops == first.flops + then.flops
assert each.transcendentals == N * N
assert then.transcendentals == 0
_compiled = [f.lower(*a).compile().cost_analysis() for f, a in ((tangent_by_jvp, (u, v)), (tangent_by_push, (push, v)))]
assert each.flops > _compiled[0]["flops"] > _compiled[1]["flops"]
assert _compiled[0]["transcendentals"] == N * N
assert not _compiled[1].get("transcendentals")

# %% [markdown]
# ## One direction after the other: the steady state
#
# Newton's step solves `J d = -imbalance(u)` for `d`. Conjugate gradients solves it with products `J p` alone, and chooses each direction `p` by
# what the products before gave. So all the directions of a step share a point, and none is known before the last has been answered. Let `linearize` go through that point once.

# %%
def solve(product, r):
    x, p, rr = jnp.zeros_like(r), r, jnp.vdot(r, r)
    goal, n = 1e-6 * rr, 0
    while rr > goal:
        q = product(p)
        a = rr / jnp.vdot(p, q)
        x, r = x + a * p, r - a * q
        before, rr = rr, jnp.vdot(r, r)
        p, n = r + rr / before * p, n + 1
    return x, n

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: newton
def _misses(written):
    start = jnp.zeros((N, N))
    off = float(jnp.abs(written(start) - (start + solve(lambda p: jax.jvp(at_plate, (start,), (p,))[1], -at_plate(start))[0])).max())
    return "" if off < 1e-3 else f"From zeros, its step is off by {off:.2g} somewhere."


def _linearizations(written):
    traced = []
    global at_plate
    kept_one = at_plate

    def counting(u):
        traced.append(u.shape)
        return kept_one(u)

    at_plate = counting
    try:
        written(jnp.zeros((N, N)))
    finally:
        at_plate = kept_one
    return "" if len(traced) <= 2 else f"It runs `at_plate` {len(traced)} times: linearize it once, and push all directions through that."


newton = teach.rule(
    "Write `newton_step(u)`: `u` plus the `d` that solves `J d = -imbalance(u)`, found by `solve(product, r)` with one linearization of `at_plate`.",
    teach.Check("is Newton's step", _misses),
    teach.Check("linearizes once", _linearizations),
    hints=("`jax.linearize(at_plate, u)` gives the value and `push`.", "`solve` gives the solution, and the number of directions that it took."),
    wrong=(
        lambda u: u + solve(lambda p: jax.jvp(at_plate, (u,), (p,))[1], -at_plate(u))[0],
        lambda u: u - at_plate(u),
    ),
)
newton


# %% tags=["answer"]
def newton_step(u):
    value, push = ...
    return ...


newton.answer(newton_step)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def newton_once(u):
    value, push = jax.linearize(at_plate, u)
    return u + solve(push, -value)[0]


newton.solution(newton_once)

# %%
import matplotlib.pyplot as plt

linearize_at = jax.jit(lambda u: jax.linearize(at_plate, u))
steady, steps = jnp.zeros((N, N)), []
for _ in range(3):
    value, push = linearize_at(steady)
    step, n = solve(lambda p: tangent_by_push(push, p), -value)
    print(f"imbalance {jnp.abs(value).max():.1e}, then {n} directions from one linearization")
    steady, steps = steady + step, [*steps, n]
print(f"imbalance {jnp.abs(at_plate(steady)).max():.1e} at the end")

figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for ax, picture, title in zip(axes, (fuel, steady), ("fuel", "temperature, steady")):
    figure.colorbar(ax.imshow(picture, cmap="inferno"), ax=ax)
    ax.scatter(*np.argwhere(is_pipe)[:, ::-1].T, marker="o", facecolors="none", edgecolors="cyan")
    ax.set(title=title, xticks=[], yticks=[])
plt.show()

# %% [markdown]
# `push` is a pytree whose leaves are the residuals, so it goes in and out of jitted functions, and `tangent_by_push` was compiled once for all steps.
#
# ## All directions at once: `vmap` of `jvp`
#
# Where the directions are known beforehand, there is a third way: one JVP, mapped over them. `jax.jacfwd` is this, with a direction for each input.

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
# tangents at each moment, where one after the other needs one.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert all(30 < n < 90 for n in steps)
assert jnp.abs(at_plate(steady)).max() <= 1e-5
assert tangent_by_push._cache_size() == 1
assert together.transcendentals == N * N
assert abs(together.flops / in_turn.flops - 1) < 0.05
assert jnp.allclose(in_all(u, directions)[7], jax.jvp(at_plate, (u,), (directions[7],))[1], atol=1e-5)

# %% [markdown]
# ## A tangent that is zero is not computed
#
# `fuel` does not move here. Its tangent is a *symbolic zero*: JAX knows that it is zero before any number exists, and the derivative rules
# leave out what only passes zeros on. In `reaction`, one of the two terms of the product rule is missing from the
# program. What if you pass the zero yourself?

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: zeros
def _equations(f, *args):
    return len(jax.make_jaxpr(f)(*args).eqns)


def _more():
    held = _equations(lambda u, v: jax.jvp(at_plate, (u,), (v,)), u, v)
    both = lambda u, fuel: imbalance(u, fuel, is_pipe)
    return _equations(lambda u, fuel, v, z: jax.jvp(both, (u, fuel), (v, z)), u, fuel, v, jnp.zeros_like(fuel)) - held


zeros = teach.predict(
    "Take `jax.jvp` in `u` and `fuel`, with `jnp.zeros_like(fuel)` as the tangent of `fuel`. How many more equations does its program have "
    "than that of `jax.jvp` in `u` alone?",
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

# %% [markdown]
# ## A tangent that cannot be anything else
#
# An integer or a boolean has no small steps. Its tangent has a dtype of its own, `float0`, and is always zero. So a derivative that goes through one is lost, without a warning:

# %%
def hot_points(u):
    return jnp.sum(u > 0.4)


def hot_share(u):
    return hot_points(u) / u.size


print("tangent of the number of hot points is float0:", jax.jvp(hot_points, (u,), (v,))[1].dtype == jax.dtypes.float0)
print("tangent of their share:", jax.jvp(hot_share, (u,), (v,))[1])

# %% [markdown]
# To have a derivative, count smoothly: a point is hot by a degree between 0 and 1.

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
_in_u = sum(e.primitive.name == "mul" for e in jaxviz.derive(reaction, u, fuel, argnums=0).linear.equations)
_in_both = sum(e.primitive.name == "mul" for e in jaxviz.derive(reaction, u, fuel, argnums=(0, 1)).linear.equations)
assert _in_both == _in_u + 1
assert not jax.jvp(hot_share, (u,), (v,))[1]
assert jax.jvp(hot_points, (u,), (v,))[1].dtype == jax.dtypes.float0

# %% [markdown]
# ## What to remember
#
# - Directions one after the other, at one point: `linearize` once. It saves the primal work of all directions but one, at the cost of the residuals.
# - One direction: `jvp`. Many that are known beforehand: `vmap` of `jvp`, which saves nothing, but holds all tangents at once.
# - An argument that does not move is left out of the differentiation, and its tangent is no work. Zeros that you pass are computed with.
# - A derivative that goes through an integer or a boolean is lost, without a warning.
#
# Next: who decides what goes into the forward program and what must be saved, in
# [4 · partial evaluation and residuals](04_partial_evaluation_and_residuals.ipynb).
