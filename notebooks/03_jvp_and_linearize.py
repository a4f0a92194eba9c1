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
# # 3 · Fifty directions: `jvp` fifty times, or `linearize` once?
#
# Newton's method for a large system needs the derivative of one function, at one point, in some fifty directions, one after the other.
# `jax.jvp` gives the derivative in a direction. `jax.linearize` gives a function that does. Which one is better, and what does it save: a
# factor of fifty, of two, nothing?
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
# So nothing has to be saved: when an equation's derivative is computed, the value that it needs is still there, and can be freed afterwards.
# The cost: for the next direction everything runs again, the P as well as the T.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert jnp.allclose(tangent, difference, atol=2e-3)
assert tangent.shape == value.shape
assert [a.str_short() for a in derivation.jvp.in_avals] == ["float32[32,32]"] * 2 + ["bool[32,32]", "float32[32,32]"]
assert pattern(derivation.jvp).count("P") == len(derivation.primal.equations)
assert pattern(derivation.jvp).startswith("PTPTPTPT")

# %% [markdown]
# The rule of one operation is short. That of `reaction` follows from them; write it, and nothing else than it needs.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: byhand
def _reaction_jvp(u, fuel, v):
    return jax.jvp(lambda u: reaction(u, fuel), (u,), (v,))


def _exps(written):
    n = sum(e.primitive.name == "exp" for _, e in jaxviz.trace(written)(u, fuel, v).walk())
    return "" if n <= 1 else f"It computes {n} exponentials; the derivative of exp is its result, which is there already."


byhand = teach.rule(
    "Write `my_reaction_jvp(u, fuel, v)`: the value of `reaction`, and its tangent where `u` moves by `v` and `fuel` stays.",
    teach.computes(_reaction_jvp, (u, fuel, v), (2 * u, fuel, u)),
    teach.Check("one exponential is computed", _exps),
    hints=(
        "With w = 1 + u / 10 the exponent is u / w, and its slope 1 / w².",
        "The tangent is the value times the slope of the exponent times v.",
    ),
    wrong=(
        lambda u, fuel, v: (reaction(u, fuel), reaction(u, fuel) * v),
        lambda u, fuel, v: (reaction(u, fuel), reaction(u, fuel) / (1 + 0.1 * u) ** 2 * v),
        lambda u, fuel, v: reaction(u, fuel) / (1 + 0.1 * u) ** 2 * v,
    ),
)
byhand


# %% tags=["answer"]
def my_reaction_jvp(u, fuel, v):
    value = fuel * jnp.exp(u / (1.0 + 0.1 * u))
    return value, ...


byhand.answer(my_reaction_jvp)


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def reaction_jvp(u, fuel, v):
    wide = 1.0 + 0.1 * u
    value = fuel * jnp.exp(u / wide)
    return value, value / wide**2 * v


byhand.solution(reaction_jvp)

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
# It consists of two programs. The *forward* program does all the work on values; the *linear* program all the work on tangents.

# %%
print("JVP:    ", pattern(derivation.jvp))
print("forward:", pattern(derivation.forward))
print("linear: ", pattern(derivation.linear))

# %% [markdown]
# The P and T equations are separate now, and the values of the forward program that the linear program reads have to be saved: the *residuals*. An equation goes into the linear
# program if it reads a tangent, and only then. What a derivative rule computes from values alone is done once, in the forward program (R):

# %%
for e in derivation.forward.equations:
    if e.origin.role == "residual":
        print(f"`{e.primitive.name}` of the derivative rule of `{e.origin.equation.primitive.name}` reads no tangent")

# %% [markdown]
# Which values are saved? The gradient saves the same ones: its backward program is the transpose of this linear program. A derivative that
# depends on no value, such as that of `4.0 * u`, saves no array.

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
# The other misconception: *fifty directions, fifty times cheaper.* A direction costs the tangent work in either case. What `linearize` saves
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
# ## What to remember
#
# - Directions one after the other, at one point, as an iterative solver asks for them: `linearize` once. It saves the primal work of all directions but one, at
#   the cost of the residuals, and never more than the ratio of `jvp` to `linear`, which you can count.
# - One direction: `jvp`. `linearize` would do the same work, and save residuals without need.
#
# `jaxviz.derive(f, x)` has the programs of your own function, which you can count in the same way.
#
# Next: directions that are all known at once, and derivatives that are zero, in [4 · zeros and directions](04_zeros_and_directions.ipynb).
