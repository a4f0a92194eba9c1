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
# # 1 · What does JAX see of my function?
#
# JAX does not differentiate your Python. It runs your function once, records each operation on arrays, and from then on works
# with this record: the *jaxpr*. If you can read it, you know what will be compiled, differentiated and saved.
#
# This notebook reads the jaxpr of one program, a small classifier of iris flowers. It takes 25 minutes. You need NumPy, and to have seen
# `jax.jit` once.

# %%
import jax
import jax.numpy as jnp
import numpy as np

import jaxviz
from jaxviz import teach

MEAN = jnp.array([5.8, 3.1, 3.8, 1.2])
STD = jnp.array([0.8, 0.4, 1.8, 0.8])


def standardise(x):
    return (x - MEAN) / STD


@jax.jit
def layer(w, b, x):
    return jax.nn.relu(x @ w + b)


def loss(params, x, target):
    h = standardise(x)
    for w, b in params["hidden"]:
        h = layer(w, b, h)
    log_p = jax.nn.log_softmax(h @ params["out"])
    return -jnp.mean(jnp.sum(target * log_p, axis=1))


def normal(seed, *shape):
    return 0.3 * jax.random.normal(jax.random.key(seed), shape)


params = {
    "out": normal(0, 8, 3),
    "hidden": [(normal(1, 4, 8), jnp.zeros(8)), (normal(2, 8, 8), jnp.zeros(8))],
}
x = MEAN + normal(3, 16, 4)
target = jax.nn.one_hot(jnp.arange(16) % 3, 3)

# %% [markdown]
# ## One equation at a time
#
# Before you run the next cell, count the operations in `standardise`: a difference and a quotient. So how many equations?

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: equations
equations = teach.predict(
    "How many equations does the jaxpr of `standardise(x)`, for `x` of shape (16, 4)?",
    truth=lambda: len(jaxviz.trace(standardise)(x).equations),
    because=lambda: "They are "
    + ", ".join(f"`{e.primitive.name}`" for e in jaxviz.trace(standardise)(x).equations)
    + ". `x - MEAN` subtracts a vector from a matrix; in a jaxpr nothing is broadcast silently, so giving it the shape (1, 4) is an equation too.",
    hints=("A jaxpr has no silent broadcasting.", "`MEAN` is f32[4], and `sub` wants two operands of rank 2."),
)
equations

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
equations.solution(4)

# %%
program = jaxviz.trace(standardise)(x)
print(program)

# %% [markdown]
# Read it from left to right:
#
# - `lambda a:f32[4] b:f32[4]; c:f32[16,4].` — what goes in. Behind the semicolon are the arguments. Before it are *constants*: arrays that
#   the function closes over, here `MEAN` and `STD`. A jaxpr together with the arrays for its constants is a *closed* jaxpr.
# - `let` — one equation a line: the variable it makes with its type, the *primitive*, its parameters in brackets, its operands.
# - `in (…,)` — what comes out.
#
# A variable is assigned once and never changed. There is no Python in it: no names of yours, no `if`, no loop.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert [v.shape for v in program.consts] == [(4,), (4,)]
assert all(np.array_equal(held, ours) for held, ours in zip(program.consts, (MEAN, STD)))
assert [e.primitive.name for e in program.equations] == ["broadcast_in_dim", "sub", "broadcast_in_dim", "div"]
assert len({v for e in program.equations for v in e.outvars}) == len(program.equations)

# %% [markdown]
# ## The whole program
#
# Here is the loss. Click an equation, and the line of your source that it came from lights up; click a line, and its equations do.

# %%
explorer = jaxviz.explore(loss, params, x, target)
explorer.selected = "primal:3"
explorer

# %% [markdown]
# ## Your Python runs when JAX traces
#
# `jax.jit` calls your function with *tracers*, objects that know a shape and a dtype and no numbers. The calls of `jnp` on them
# are recorded, and the record is compiled.

# %%
heard = []


@jax.jit
def centred(x):
    heard.append(f"Python runs, with {x.shape}")
    return x - jnp.mean(x, axis=0)


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: runs
def _runs():
    centred.clear_cache()
    heard.clear()
    for rows in (16, 16, 16, 5):
        centred(x[:rows])
    return len(heard)


runs = teach.predict(
    "`centred` is called with 16, 16, 16 and then 5 rows. How often does its Python body run?",
    truth=_runs,
    because=lambda: f"Once for each shape: {'; '.join(heard)}. The other calls find their program in the cache.",
    hints=("What does the cache of `jit` go by?", "By shapes and dtypes. How many different ones are there?"),
)
runs

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
runs.solution(2)

# %% [markdown]
# A Python loop is Python too: it has finished before the jaxpr exists, so the jaxpr contains all its iterations, one after the other.

# %%
def deep(params, h, n):
    for _ in range(n):
        h = layer(*params, h)
    return h


def rolled(params, h, n):
    return jax.lax.scan(lambda h, _: (layer(*params, h), None), h, length=n)[0]


square, h = params["hidden"][1], jnp.ones((16, 8))
for n in (5, 10, 20):
    sizes = [sum(1 for _ in jaxviz.trace(f)(square, h, n=n).walk()) for f in (deep, rolled)]
    print(f"{n:2} layers: {sizes[0]:3} equations as a Python loop, {sizes[1]} with jax.lax.scan")

# %% jupyter={"source_hidden": true}
# Equations by the number of layers
import matplotlib.pyplot as plt

layers = (1, 10, 20, 30, 40)
plt.figure(figsize=(4.5, 2.4))
for f, name in ((deep, "Python loop"), (rolled, "jax.lax.scan")):
    plt.plot(layers, [sum(1 for _ in jaxviz.trace(f)(square, h, n=n).walk()) for n in layers], "o-", label=name)
plt.xlabel("layers")
plt.ylabel("equations")
plt.legend(frameon=False);

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: products
def _count(f, n):
    program = jaxviz.trace(f)(square, h, n=n)
    return sum(e.primitive.name == "dot_general" for _, e in program.walk())


products = teach.predict(
    "`rolled` with 50 layers: how many equations are a product of matrices, a `dot_general`, those inside of others counted?",
    truth=lambda: _count(rolled, 50),
    because=lambda: f"The body of a scan is traced once and stands once in the jaxpr, whatever its length. As a Python loop there are {_count(deep, 50)}.",
    hints=("Look at the table above: what does `scan` cost for another layer?",),
)
products

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
products.solution(1)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert [_count(deep, n) for n in (5, 10)] == [5, 10]
assert len({sum(1 for _ in jaxviz.trace(rolled)(square, h, n=n).walk()) for n in (5, 10, 20)}) == 1
assert np.allclose(deep(square, h, 5), rolled(square, h, 5))

# %% [markdown]
# Now the other way round: here is the jaxpr of a function that you do not see.

# %% tags=["unseen"] jupyter={"source_hidden": true}
# A function, and its jaxpr
def unseen(w, x):
    return jnp.sum(jnp.tanh(x @ w), axis=0) * x[0]


print(jaxviz.trace(unseen)(jnp.ones((4, 4)), jnp.ones((16, 4))))


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: written
def _results(f, name):
    """The types of what a primitive gives, in each of its equations."""
    program = jaxviz.trace(f)(jnp.ones((4, 4)), jnp.ones((16, 4)))
    return sorted(e.outvars[0].aval.str_short(short_dtypes=True) for _, e in program.walk() if e.primitive.name == name)


def _other_operations(f):
    for name in ("dot_general", "tanh", "reduce_sum", "mul"):
        ours, theirs = _results(f, name), _results(unseen, name)
        if len(ours) != len(theirs):
            return f"It has {len(ours)} `{name}`, and the jaxpr above {len(theirs)}."
        if ours != theirs:
            return f"Its `{name}` gives {', '.join(ours)}, and that of the jaxpr above {', '.join(theirs)}."
    return ""


_w = normal(7, 4, 4)

written = teach.rule(
    "Write the function `mine(w, x)` that this jaxpr was made from.",
    teach.computes(unseen, (_w, x), (2 * _w, x - MEAN)),
    teach.Check("computes it with the same operations, on arrays of the same size", _other_operations),
    hints=(
        "Go down the equations, and write the `jnp` call of each: `dot_general` is `@`, `reduce_sum` is `jnp.sum` with an axis.",
        "The equations of slices and reshapes at the end take one row of `x`.",
    ),
    wrong=(
        lambda w, x: jnp.sum(jnp.tanh(x @ w), axis=0),
        lambda w, x: jnp.sum(jnp.tanh(x @ w) * x[0], axis=0),
        lambda w, x: jnp.sum(jnp.tanh(x @ w) * x[0], axis=0) * jnp.tanh(0.0 * x[0] + 1) / jnp.tanh(1.0),
        lambda w, x: jnp.tanh(jnp.sum(x @ w, axis=0)) * x[0],
    ),
)
written


# %% tags=["answer"]
def mine(w, x):
    return ...


written.answer(mine)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
written.solution(lambda w, x: x[0] * jnp.tanh(x @ w).sum(0))

# %% [markdown]
# ## A constant, in three ways
#
# These functions return the same. The root of 8 does not depend on `x`, so it could be computed while JAX traces.

# %%
def with_jnp(x):
    return x / jnp.sqrt(8.0)


def with_numpy(x):
    return x / np.sqrt(8.0, dtype=np.float32)


def with_python(x):
    return x / 8.0**0.5


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: staged
staged = teach.predict(
    "Which function has a square root in its jaxpr?",
    ["with_jnp", "with_numpy", "with_python"],
    truth=lambda: next(
        f.__name__
        for f in (with_jnp, with_numpy, with_python)
        if any(e.primitive.name == "sqrt" for _, e in jaxviz.trace(f)(1.0).walk())
    ),
    because={
        "with_jnp": "`jnp.sqrt` is an equation, though its operand is a number that is known: while JAX traces, every `jnp` operation becomes one. "
        "That is omnistaging. NumPy and plain Python compute at once, and leave a number.",
        "with_numpy": "NumPy knows nothing of tracing: it computes at once, and JAX sees the number 2.828.",
        "with_python": "Python computes `8.0**0.5` before JAX sees anything.",
    },
    hints=("Which of them hands its operand to JAX?",),
)
staged

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
staged.solution("with_jnp")

# %% [markdown]
# The rule behind it is called *omnistaging*, and the form above says it. What is computed inside the function may be computed by the program in each call;
# what is computed outside is computed once. Use that:

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: no_div
no_div = teach.rule(
    "`standardise` divides 16 × 4 numbers. Write it with no `div` in its jaxpr: multiply instead.",
    teach.computes(standardise, (x,), (jnp.zeros((2, 4)),)),
    teach.traces_to(
        lambda p: all(e.primitive.name not in ("div", "integer_pow", "pow") for _, e in p.walk()),
        "has no `div` in its jaxpr, nor a power",
        x,
    ),
    hints=(
        "`(x - MEAN) * (1 / STD)` has a `div` all the same: of four numbers. What did omnistaging say?",
        "Work out `1 / STD` outside of the function.",
    ),
    wrong=(standardise, lambda x: (x - MEAN) * (1 / STD), lambda x: x - MEAN),
)
no_div


# %% tags=["answer"]
def my_standardise(x):
    return ...


no_div.answer(my_standardise)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
SCALE = 1 / STD


def scaled(x):
    return (x - MEAN) * SCALE


no_div.solution(scaled)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
for f in (with_numpy, with_python):
    assert "sqrt" not in str(jaxviz.trace(f)(1.0))
    assert "2.828427" in str(jaxviz.trace(f)(1.0))
half = jaxviz.trace(lambda x: (x - MEAN) * (1 / STD))(x)
assert [e.outvars[0].aval.shape for e in half.equations if e.primitive.name == "div"] == [(4,)]

# %% [markdown]
# ## A jaxpr is flat: pytrees
#
# `loss` takes a dict of a list of tuples. A jaxpr takes arrays. The arguments are flattened into their leaves, in a fixed order, and
# the structure is restored outside the jaxpr.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: first
first = teach.predict(
    "`params` was written as a dict with 'out' first, then 'hidden'. Which array is the first argument of the jaxpr of `loss`?",
    ["params['out']", "params['hidden'][0][0]", "params['hidden'][0][1]", "x"],
    truth=lambda: jaxviz.trace(loss)(params, x, target).arg_names[0],
    because=lambda: f"The order is {', '.join(jaxviz.trace(loss)(params, x, target).arg_names)}: 'hidden' sorts before 'out', and dicts are taken apart in the order of their sorted keys.",
    hints=("The order may not depend on how a dict was written, since equal dicts are equal.", "`sorted(params)`"),
)
first

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
first.solution("params['hidden'][0][0]")

# %% [markdown]
# Here are all of them, in the order of flattening; lists and tuples go from the first to the last:

# %%
traced = jaxviz.trace(loss)(params, x, target)
for variable, name in zip(traced.invars, traced.arg_names):
    print(variable.aval.str_short(short_dtypes=True).ljust(10), name)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
leaves = jax.tree.leaves((params, x, target))
assert [v.aval.shape for v in traced.invars] == [leaf.shape for leaf in leaves]

# %% [markdown]
# ## Calls inside of calls
#
# A function under `jax.jit` stays one equation in its caller's jaxpr, `jit`, and its own jaxpr is a parameter of that equation. So does
# a function with a custom derivative rule, such as `jax.nn.relu`: a `custom_jvp_call`. The rule itself is not in the jaxpr; it is traced when
# you differentiate.

# %%
for depth, e in traced.walk():
    for _, inside in e.programs:
        print("    " * depth + f"{e.primitive.name} of {inside.name}: {len(inside.equations)} equations")

# %% [markdown]
# As a picture, with the first level of calls opened. In the explorer above, the key G shows such a graph, whose boxes open and close.

# %%
jaxviz.draw(loss, params, x, target, depth=1)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
calls = [e for _, e in traced.walk() if e.programs]
assert [e.primitive.name for e in calls].count("custom_jvp_call") == len(params["hidden"])
assert sum(inside.name == "layer" for e in calls for _, inside in e.programs) == len(params["hidden"])
assert str(jaxviz.trace(loss)(params, x, target).jaxpr) == str(jax.make_jaxpr(loss)(params, x, target))

# %% [markdown]
# ## What to remember
#
# - A jaxpr is a list of typed equations, each variable assigned once; constants stand before the semicolon.
# - It is what remains when your Python has run: loops are unrolled, branches taken, broadcasts explicit.
# - Everything from `jnp` is in it; what NumPy and Python computed is a number.
# - Arguments are leaves, in the order of sorted keys. Jitted functions, loops and custom rules are equations that hold jaxprs.
#
# `%load_ext jaxviz` and then `%jaxpr loss(params, x, target)` show it for your own functions.
#
# Next: what a tracer cannot do, in [2 · sharp bits](02_sharp_bits.ipynb).
