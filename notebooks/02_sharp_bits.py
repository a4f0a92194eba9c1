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
# # 2 · Why does my training step stop working under `jax.jit`?
#
# Five mistakes that everybody makes once: branching on a tracer, leaking a tracer, an effect that happens only once, an argument that should be static, and
# a key that is used twice. Here you make each of them in a small training step, read what JAX says, and fix it.
#
# It takes 30 minutes. You should be able to read a jaxpr: [1 · reading jaxprs](01_reading_jaxprs.ipynb).

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxviz
from jaxviz import teach

rng = np.random.default_rng(0)
x = jnp.asarray(rng.normal(size=(32, 4)), jnp.float32)
y = jnp.asarray(x @ np.array([1.0, -2.0, 0.5, 0.0]), jnp.float32)
w = jnp.zeros(4)


def gradient(w):
    return jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)


def first_line(error):
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"


# %% [markdown]
# ## 1. Branching on a tracer
#
# This step clips a gradient that is too long. Without `jit` it works.


# %%
def clipped(g):
    length = jnp.sqrt(jnp.sum(g**2))
    if length > 1.0:
        g = g / length
    return g


print(clipped(gradient(w)))
try:
    jax.jit(clipped)(gradient(w))
except Exception as error:
    print(first_line(error))

# %% [markdown]
# `jit` calls the function with tracers, which have a shape and no value. `if` needs a value. jaxviz can record the path that one call takes, and says
# which value decided; but a compiled function has to be right for all inputs:

# %%
print(jaxviz.trace(clipped)(gradient(w)))

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: decided
_gradients = (jnp.array([3.0, 0.0, 4.0]), jnp.array([0.3, 0.1, -0.2]), jnp.zeros(3))


decided = teach.rule(
    "Write `my_clipped(g)`, which gives what `clipped` gives, for long and for short gradients, and which `jax.jit` can compile.",
    teach.computes(clipped, *((g,) for g in _gradients)).of(jax.jit).saying("under jit it gives what clipped gives"),
    hints=(
        "Compute both outcomes, and choose element by element.",
        "`jnp.where(length > 1.0, …, …)`. Or divide by something that is never less than 1.",
    ),
    wrong=(clipped, lambda g: g / jnp.sqrt(jnp.sum(g**2)), lambda g: jnp.clip(g, -1, 1)),
)
decided


# %% tags=["answer"]
def my_clipped(g):
    length = jnp.sqrt(jnp.sum(g**2))
    return ...


decided.answer(my_clipped)


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def clipped_for_all(g):
    length = jnp.sqrt(jnp.sum(g**2))
    return g / jnp.maximum(length, 1.0)


decided.solution(clipped_for_all)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert decided.answer(lambda g: jnp.where(jnp.sqrt(jnp.sum(g**2)) > 1.0, g / jnp.sqrt(jnp.sum(g**2)), g))
assert decided.answer(lambda g: jax.lax.cond(jnp.sum(g**2) > 1.0, lambda: g / jnp.sqrt(jnp.sum(g**2)), lambda: g))

# %% [markdown]
# ## 2. A leaked tracer
#
# Suppose you want to see the length of the gradient, and append it to a list.

# %%
lengths = []


@jax.jit
def step(w):
    g = gradient(w)
    lengths.append(jnp.sqrt(jnp.sum(g**2)))
    return w - 0.1 * g


step(w)
print(lengths)
try:
    print(lengths[0] + 1.0)
except Exception as error:
    print(first_line(error))

# %% [markdown]
# The list contains not a number but a tracer, from a trace that has ended: a *leak*. A function has to return what it computes.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: told
def _as_wanted(w):
    g = gradient(w)
    return w - 0.1 * g, jnp.sqrt(jnp.sum(g**2))


def _leaks(written):
    before = len(lengths)
    jax.jit(lambda w: written(w))(w)
    leaked = any(isinstance(x, jax.core.Tracer) for x in lengths[before:])
    return "It still puts a tracer into `lengths`." if leaked else ""


told = teach.rule(
    "Write `my_step(w)`: it gives the next `w`, and the length of the gradient.",
    teach.Check("nothing leaks out of it", _leaks),
    teach.computes(_as_wanted, (w,), (w + 0.5,)).of(jax.jit).saying("under jit it gives both"),
    hints=("A function may return a tuple.",),
    wrong=(step.__wrapped__, lambda w: (step.__wrapped__(w), 0.0)),
)
told


# %% tags=["answer"]
def my_step(w):
    g = gradient(w)
    return ...


told.answer(my_step)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
told.solution(_as_wanted)

# %% [markdown]
# ## 3. An effect that happens only once
#
# Counting calls, printing, writing to a file: that is Python, and Python runs while JAX traces.

# %%
calls = 0


@jax.jit
def counted(w):
    global calls
    calls += 1
    return w - 0.1 * gradient(w)


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: effects
def _calls():
    runs, now = [], w
    anew = jax.jit(lambda w: (runs.append(w), w - 0.1 * gradient(w))[1])
    for _ in range(10):
        now = anew(now)
    anew(np.zeros(4, np.float64))
    anew(jnp.zeros(4, jnp.float16))
    return len(runs)


effects = teach.predict(
    "`counted` is called ten times, each time with its last result; then with NumPy's zeros of 64 bits, then with zeros of 16 bits. What is `calls` in the end?",
    truth=_calls,
    because="Once for each new type of the argument. JAX turns the 64 bits into 32, a type that it has seen; 16 bits are new.",
    hints=("When does the body run as Python?", "Which of the twelve calls has a type that has not been seen? By default JAX has no 64 bits."),
)
effects

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
effects.solution(2)

# %% [markdown]
# To print in each call, use `jax.debug.print`, which is an equation of the program. To record values of each call, `jaxviz.probe` is one too.

# %%
@jax.jit
def printing(w):
    jax.debug.print("the largest weight is {}", jnp.max(w))
    return w - 0.1 * gradient(w)


now = printing(printing(w))
print([e.primitive.name for e in jaxviz.trace(printing.__wrapped__)(w).equations][:2], "…")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert any("debug" in e.primitive.name for _, e in jaxviz.trace(printing.__wrapped__)(w).walk())

# %% [markdown]
# ## 4. An argument that should be static
#
# How many steps? As an argument it is a tracer too, and `range` wants a number.


# %%
def steps(w, n):
    for _ in range(n):
        w = w - 0.1 * gradient(w)
    return w


try:
    jax.jit(steps)(w, 3)
except Exception as error:
    print(first_line(error))

jaxviz.watch_compilations()  # records compilations, for the cell below
compiled = jax.jit(steps, static_argnames="n")
print(compiled(w, n=3))

# %% [markdown]
# *Static* arguments are part of what is compiled: a new value compiles a new program. jaxviz says which argument it was:

# %%
for n in (3, 3, 4):
    compiled(w, n=n)
why = jaxviz.explain_recompile(compiled)
print(why)

# %% [markdown]
# So an argument that takes many values should not be static.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: loops
def _compiles(written):
    traces = []
    f = jax.jit(lambda w, n: (traces.append(n), written(w, n))[1])
    for n in (0, 1, 5, 20):
        f(w, n)
    return "" if len(traces) == 1 else f"It was compiled {len(traces)} times for four values of n."


loops = teach.rule(
    "Write `my_steps(w, n)` so that `jax.jit(my_steps)`, with no static argument, is compiled once, whatever `n` is.",
    teach.computes(steps, (w, 0), (w, 5)).of(lambda f: jax.jit(lambda w, n: f(w, n))).saying("under jit it gives what steps gives"),
    teach.Check("is compiled once for all n", _compiles),
    hints=("JAX has loops of its own, which are equations.", "`jax.lax.fori_loop(0, n, body, w)`, where `body(i, w)` gives the next `w`."),
    wrong=(steps, lambda w, n: w - 0.1 * n * gradient(w)),
)
loops


# %% tags=["answer"]
def my_steps(w, n):
    return ...


loops.answer(my_steps)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
loops.solution(lambda w, n: jax.lax.fori_loop(0, n, lambda i, w: w - 0.1 * gradient(w), w))

# %% [markdown]
# A static argument must also be hashable, because it is part of the cache key:

# %%
try:
    jax.jit(lambda sizes: jnp.zeros(sizes), static_argnums=0)([2, 3])
except Exception as error:
    print(first_line(error))
print(jax.jit(lambda sizes: jnp.zeros(sizes), static_argnums=0)((2, 3)).shape)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert loops.answer(lambda w, n: jax.lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] - 0.1 * gradient(s[1])), (0, w))[1])
assert why.count == 2

# %% [markdown]
# ## 5. A key that is used twice
#
# JAX's random numbers have no state: what comes out is a function of the key. Here is dropout for four examples, with one key.


# %%
def dropout(key, x):
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2 * x, 0.0)


def dropped(key, xs):
    return jnp.stack([dropout(key, x) for x in xs])


ones = jnp.ones((8, 32))
key = jax.random.key(0)

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: keys
def _repeats(written):
    kept = np.asarray(written(key, ones)) > 0
    equal = [i for i in range(1, 8) if (kept[i] == kept[0]).all()]
    return "All rows drop the same elements." if len(equal) == 7 else f"Rows 0 and {equal[0]} are equal." if equal else ""


def _another_each_call(written):
    a, b = (np.asarray(written(k, ones)) for k in jax.random.split(key))
    return "With another key it drops the same elements: it does not use the key." * bool((a == b).all())


def _half(written):
    out = np.asarray(written(key, jnp.ones((40, 64))))
    return "" if set(np.unique(out)) == {0.0, 2.0} and abs((out > 0).mean() - 0.5) < 0.05 else "Half of the elements should be 0, the others doubled."


keys = teach.rule(
    "Write `my_dropped(key, xs)`: each row is dropped out independently of the others.",
    teach.Check("drops half, and doubles the rest", _half),
    teach.Check("no two rows drop the same", _repeats),
    teach.Check("depends on the key", _another_each_call),
    hints=("`jax.random.split(key, n)` makes n keys of one.", "`jax.vmap(dropout)` takes a key for each row. Or draw once for all: what does `dropout(key, xs)` do?"),
    wrong=(dropped, lambda key, xs: jnp.stack([dropout(jax.random.key(i), x) for i, x in enumerate(xs)]), lambda key, xs: xs),
)
keys


# %% tags=["answer"]
def my_dropped(key, xs):
    return ...


keys.answer(my_dropped)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
keys.solution(lambda key, xs: jax.vmap(dropout)(jax.random.split(key, len(xs)), xs))

# %%
figure, axes = plt.subplots(1, 2, figsize=(8, 2), layout="constrained")
for ax, picture, title in zip(axes, (dropped(key, ones), dropout(key, ones)), ("one key, used eight times", "one draw for all rows")):
    ax.imshow(picture, cmap="gray_r")
    ax.set(title=title, xticks=[], yticks=[])
plt.show()

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert keys.answer(dropout)
assert bool((dropped(key, ones) == dropped(key, ones)[0]).all())

# %% [markdown]
# ## What to remember
#
# - A tracer has a type and no value. Decide with `where` or `cond`, loop with `fori_loop` or `scan`, and make static only what takes few values.
# - Return what a function computes. `jax.checking_leaks()` finds tracers that left it in another way.
# - Python runs once for each type; an effect in each call has to be an equation.
# - A key is used once. Split it, or draw everything at once.
#
# Next: three ways to the same derivative, in [3 · JVP and linearize](03_jvp_and_linearize.ipynb).
