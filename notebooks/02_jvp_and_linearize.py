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
# # 2 · Fifty directions: `jvp` fifty times, or `linearize` once?
#
# Newton's method for a large system asks for the derivative of one function, at one point, in some fifty directions, one after the other.
# `jax.jvp` gives the derivative in a direction. `jax.linearize` gives a function that does. Which one, and what does it spare: a factor
# of fifty, of two, nothing?
#
# This notebook counts it, on a program that needs it. It takes 20 minutes. You should be able to read a jaxpr:
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
# The Jacobian is never formed.


# %%
def at_plate(u):
    return imbalance(u, fuel, is_pipe)


value, tangent = jax.jvp(at_plate, (u,), (v,))

eps = 1e-2
difference = (at_plate(u + eps * v) - at_plate(u - eps * v)) / (2 * eps)
print("jvp and a central difference differ by at most", float(jnp.abs(tangent - difference).max()))

# %% [markdown]
# Its type is `(a, T a) → (b, T b)`: in go a value of type `a` and a *tangent* of it, out come a value and a tangent of type `b`. A tangent
# has the shape and, for floats, the dtype of its value. Here is the type of `imbalance`, and that of its JVP,
# derived in `u`.

# %%
derivation = jaxviz.derive(imbalance, u, fuel, is_pipe)


def signature(program):
    types = [[a.str_short(short_dtypes=True) for a in side] for side in (program.in_avals, program.out_avals)]
    return " → ".join(f"({', '.join(t)})" for t in types)


print("imbalance:", signature(derivation.primal))
print("its JVP:  ", signature(derivation.jvp))

# %% [markdown]
# The last input is the tangent of `u`, the last output that of the result. `fuel` and `is_pipe` have none, since only `u` moves.
# Inside, work on values (*primal*, P) and work on tangents (T) take turns: each equation is followed at once by its
# derivative, which may be several equations, or none.


# %%
def pattern(program):
    return "".join(e.origin.role[0].upper() for e in program.equations)


print(pattern(derivation.jvp))

# %% [markdown]
# So nothing has to be remembered: when an equation's derivative has been computed, the value that it needed is at hand, and may be forgotten.
# The price: for the next direction all of it runs again, the P as well as the T.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert jnp.allclose(tangent, difference, atol=2e-3)
assert tangent.shape == value.shape
assert [a.str_short() for a in derivation.jvp.in_avals] == ["float32[32,32]"] * 2 + ["bool[32,32]", "float32[32,32]"]
assert pattern(derivation.jvp).count("P") == len(derivation.primal.equations)
assert pattern(derivation.jvp).startswith("PTPTPTPT")

# %% [markdown]
# ## Linearize: all of the P, then all of the T
#
# `jax.linearize` takes a point alone. It gives the value, and a function from tangents to tangents that holds for this point. Its type is
# `a → (b, T a ⊸ T b)`. The arrow `⊸` says that the function is *linear*.

# %%
value, push = jax.linearize(at_plate, u)

print("the same derivative:", bool(jnp.allclose(push(v), tangent, atol=1e-6)))
print("linear:", bool(jnp.allclose(push(2 * v - 3 * u), 2 * push(v) - 3 * push(u), atol=1e-4)))

# %% [markdown]
# Two programs stand behind it. The *forward* program does all the work on values; the *linear* program all the work on tangents.

# %%
print("JVP:    ", pattern(derivation.jvp))
print("forward:", pattern(derivation.forward))
print("linear: ", pattern(derivation.linear))

# %% [markdown]
# What took turns is apart now, and what the linear program reads of the forward one has to be kept: the *residuals*. An equation goes into the linear
# program if it reads a tangent, and only then. What a derivative rule computes from values alone is done once, in the forward program (R):

# %%
for e in derivation.forward.equations:
    if e.origin.role == "residual":
        print(f"`{e.primitive.name}` of the derivative rule of `{e.origin.equation.primitive.name}` reads no tangent")

# %% [markdown]
# Which values are kept? The gradient keeps the same ones: its backward program is made from this linear program. A derivative that depends
# on no value, such as that of `4.0 * u`, keeps no array.

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
# Below, the JVP stands at the left, the two programs at the right. `exp` is selected: at the left its derivative follows it, at the right
# its result goes out of the forward program and into the linear one. Click other equations of the JVP: a T leads to the linear program,
# a P to the forward one.

# %%
explorer = jaxviz.explore(derivation)
explorer.stage, explorer.beside = "jvp", "forward+linear"
explorer.selected = "jvp:" + str([e.primitive.name for e in derivation.jvp.equations].index("exp"))
explorer

# %% [markdown]
# A misconception: *`linearize` computes the Jacobian, and multiplies by it.* The Jacobian of `imbalance` has a row for each result and a
# column for each temperature: 1,024 of each, and on a plate of twice the length four times as many of each.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: held
def _held_by_push(n):
    plate = [jax.ShapeDtypeStruct((n, n), x.dtype) for x in (u, fuel, is_pipe)]
    return jaxviz.residuals(imbalance, *plate).nbytes


_growth = {"as much": 1, "4 times as much": 4, "16 times as much": 16}
held = teach.predict(
    "The Jacobian of 64 × 64 points takes 16 times the memory of that of 32 × 32. And what `push` holds?",
    list(_growth),
    truth=lambda: min(_growth, key=lambda c: abs(_growth[c] - _held_by_push(64) / _held_by_push(32))),
    because={
        "as much": "The linear program has as many equations as before. But the arrays that it reads are those of a larger plate.",
        "4 times as much": lambda: (
            "It holds a few arrays of the size of `u`: "
            + ", ".join(r.expression for r in derivation.residuals if r.nbytes > 4)
            + ". The Jacobian is what the linear program does, not what it holds."
        ),
        "16 times as much": "No row and no column of the Jacobian is computed. `push` is a program, and holds what that reads.",
    },
    hints=("What goes from the forward program into the linear one, and what shape has it?",),
)
held

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
held.solution("4 times as much")

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
assert derivation.check()

# %% [markdown]
# ## Counting
#
# Now the question. `jaxviz.cost_of` counts the FLOPs of an equation as XLA does: a sum or a product of two elements is one, and `exp` is
# counted apart, as a *transcendental*, which takes many instructions.


# %%
def cost(program):
    return sum((jaxviz.cost_of(e) for e in program.equations), jaxviz.Cost())


for name in ("primal", "jvp", "forward", "linear"):
    c = cost(getattr(derivation, name))
    print(f"{name:8} {c.flops:7,} FLOPs {c.transcendentals:6,} exp")

# %% [markdown]
# `jvp` costs what `forward` and `linear` cost together: it is the same work in another order. So for *one* direction there is nothing to win.

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
for n in (1, 2, 5, 50, 1000):
    a, b = each * n, first + then * n
    print(
        f"{n:10} {a.flops:11,} + {a.transcendentals:9,} exp {b.flops:11,} + {b.transcendentals:5,} exp {a.flops / b.flops:11.2f}"
    )

# %% [markdown]
# The other misconception: *fifty directions, fifty times cheaper.* A direction costs the tangent work in either case. What `linearize` spares
# is the primal work: the `exp`, the `div`, the powers. The more of a function is nonlinear, the more that is.
#
# These are the programs as JAX writes them. XLA drops what nobody reads: if you use the tangent alone, that is the part of the primal work
# that no derivative needs, such as the conduction of `u` itself. Its own count of what it compiled:

# %%
tangent_by_jvp = jax.jit(lambda u, v: jax.jvp(at_plate, (u,), (v,))[1])
tangent_by_push = jax.jit(lambda push, v: push(v))

for name, f, args in [("jvp ", tangent_by_jvp, (u, v)), ("push", tangent_by_push, (push, v))]:
    counted = f.lower(*args).compile().cost_analysis()
    print(f"{name} {counted['flops']:8,.0f} FLOPs {counted.get('transcendentals', 0.0):7,.0f} exp")

# %% [markdown]
# The tangent work and the nonlinear part of the primal work stay. No compiler can share that between two calls, because the second call
# begins when the first is over.

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
# ## Directions one after the other: the steady state
#
# Newton's step solves `J d = -imbalance(u)` for `d`. Conjugate gradients solves it with products `J p` alone, and chooses each direction `p` by
# what the products before gave. So all the directions of a step share a point, and none is known before the last has been answered.


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


# %%
linearize_at = jax.jit(lambda u: jax.linearize(at_plate, u))
steady, steps = jnp.zeros((N, N)), []
for _ in range(3):
    value, push = linearize_at(steady)
    step, n = solve(lambda p: tangent_by_push(push, p), -value)
    print(f"imbalance {jnp.abs(value).max():.1e}, then {n} directions from one linearization")
    steady, steps = steady + step, [*steps, n]
print(f"imbalance {jnp.abs(at_plate(steady)).max():.1e} at the end")

# %% [markdown]
# A detail that is worth having: `push` is a pytree whose leaves are the residuals. So it goes in and out of jitted functions, and
# `tangent_by_push` was compiled once, for all steps.

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for ax, picture, title in zip(axes, (fuel, steady), ("fuel", "temperature, steady")):
    figure.colorbar(ax.imshow(picture, cmap="inferno"), ax=ax)
    ax.scatter(*np.argwhere(is_pipe)[:, ::-1].T, marker="o", facecolors="none", edgecolors="cyan")
    ax.set(title=title, xticks=[], yticks=[])
plt.show()

# %%
n = sum(steps)
a, b = each * n, first * len(steps) + then * n
print(f"{len(steps)} steps, {n} directions")
print(f"jvp each time:  {a.flops:10,} FLOPs {a.transcendentals:8,} exp")
print(f"linearize once: {b.flops:10,} FLOPs {b.transcendentals:8,} exp")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert all(30 < n < 90 for n in steps)
assert jnp.abs(at_plate(steady)).max() <= 1e-5
assert tangent_by_push._cache_size() == 1

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
# It shares the primal work as `linearize` does, and keeps no residuals, since primal and tangent work still take turns. But it holds fifty
# tangents at each moment, where one after the other needs one. `jax.jacfwd` is this, with a direction for each input.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert together.transcendentals == N * N
assert abs(together.flops / in_turn.flops - 1) < 0.05
assert jnp.allclose(in_all(u, directions)[7], jax.jvp(at_plate, (u,), (directions[7],))[1], atol=1e-5)

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

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert still.nbytes == 0
all_moved = jaxviz.derive(imbalance, u, fuel, is_pipe, argnums=(0, 1, 2))
assert len(all_moved.jvp.in_avals) == 3 + 2
assert not jax.jvp(hot_share, (u,), (v,))[1]
assert jax.jvp(hot_points, (u,), (v,))[1].dtype == jax.dtypes.float0

# %% [markdown]
# ## What to keep of this
#
# - Directions one after the other, at one point, as an iterative solver asks for them: `linearize` once. It spares the primal work of all directions but one,
#   keeps the residuals, and never more than the ratio of `jvp` to `linear`, which you can count.
# - All directions known beforehand: `vmap` of `jvp`. It shares the primal work too, and keeps nothing.
# - One direction: `jvp`. `linearize` would do the same work, and keep residuals for nothing.
# - An argument that does not move is left out of the differentiation, and its tangent is no work at all. Zeros that you pass are computed with.
#
# `jaxviz.derive(f, x)` has the programs of a function of yours, to be counted in the same way.
#
# Next: who decides what goes into the forward program and what has to be kept, in
# [3 · partial evaluation and residuals](03_partial_evaluation_and_residuals.ipynb).
