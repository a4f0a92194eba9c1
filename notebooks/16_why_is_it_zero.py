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
# # 16 · Why is my gradient zero?
#
# `jax.grad` returns zeros for a parameter that the loss cannot feel, and raises no error. This notebook trains an autoencoder with a discrete code, finds
# out why half of it does not learn, and repairs it with a straight-through estimator. On the way it tells zeros that follow from types from those that follow from values.
#
# It takes 25 minutes. You should know that a derivative goes through a program equation by equation, and not through integers:
# [3 · JVP and linearize](03_jvp_and_linearize.ipynb).
#
# ## The run
#
# The data are 256 short recordings of a wave, each with its own phase, and noise. The encoder maps a recording to a point in the plane. What is stored is only
# the number of the nearest point in a book of 12; the decoder gets that point of the book, and should restore the recording.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxviz
from jaxviz import teach


def encode(params, x):
    h = jax.nn.relu(x @ params["in"] + params["bias"])
    return h @ params["mix"]


def look_up(book, z):
    distances = jnp.sum((z[:, None] - book) ** 2, axis=-1)
    return book[jnp.argmin(distances, axis=1)]


def decode(params, q):
    return q @ params["out"] + params["mean"]


def loss(params, x):
    q = look_up(params["book"], encode(params, x))
    return jnp.mean((decode(params, q) - x) ** 2)


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


params = {"in": 0.3 * normal(0, 16, 24), "bias": jnp.zeros(24), "mix": 0.3 * normal(1, 24, 2), "book": normal(2, 12, 2)}
params |= {"out": 0.3 * normal(3, 2, 16), "mean": jnp.zeros(16)}
phase = jax.random.uniform(jax.random.key(4), (256, 1))
noise = 0.1 * normal(5, 256, 16)
x = jnp.sin(2 * jnp.pi * (jnp.arange(16) / 16 + phase)) + noise


# %%
def train(loss, params, rate=0.3, steps=400):
    def step(params, _):
        value, gradient = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - rate * g, params, gradient), value

    return jax.jit(lambda params: jax.lax.scan(step, params, length=steps))(params)


stuck, losses = train(loss, params)
print(f"the loss goes from {losses[0]:.3f} to {losses[-1]:.3f}; the noise alone is {jnp.mean(noise**2):.3f}")

# %% [markdown]
# It learns, and stops far too early. A loss that falls is no proof that everything learns.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: moved
_SETS = {
    ("bias", "book", "in", "mean", "mix", "out"): "all six",
    ("mean", "out"): "out and mean",
    ("book", "mean", "out"): "book, out and mean",
    ("bias", "in", "mix"): "in, bias and mix",
}
moved = teach.predict(
    "Which parameters has the training changed?",
    list(_SETS.values()),
    truth=lambda: _SETS[tuple(sorted(k for k in params if bool(jnp.any(stuck[k] != params[k]))))],
    because={
        "all six": "Between the encoder and the decoder only a number of a row is passed on. What is the derivative of a row's number?",
        "out and mean": "`book[i]` is differentiable in `book`: a change of the row changes what is read.",
        "book, out and mean": "The encoder decides which row is read, and nothing else. Its parameters have a gradient of zeros.",
        "in, bias and mix": "These are the encoder. Does anything of it reach the loss, besides an integer?",
    },
    hints=("What does the decoder get from the encoder?",),
)
moved

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
moved.solution("book, out and mean")

# %% [markdown]
# ## Ask for the reason
#
# `jaxviz.gradient_flow` takes the loss and its arguments, and says which parameters the gradient reaches, and where it ends on the way to the others.

# %%
flow = jaxviz.gradient_flow(loss, params, x)
flow

# %% [markdown]
# The only path from the encoder to the loss ends in `jnp.argmin`, whose result is an integer. The lines on the way:

# %%
for line in flow.paths["in"]:
    print(line)

# %% [markdown]
# This needs no numbers. The backward program has no equation that computes a cotangent for the encoder: JAX fills in the zeros when it returns.

# %%
explorer = jaxviz.explore(loss, params, x)
explorer.beside = "backward"
explorer.select("jnp.argmin(distances, axis=1)")
explorer

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert [leaf.name for leaf in flow.stopped] == ["params['bias']", "params['in']", "params['mix']"]
assert {e.kind for leaf in flow.stopped for e in leaf.endings} == {"integer"}
assert all("argmin" in e.expression for leaf in flow.stopped for e in leaf.endings)
assert not any(e.primitive.name == "dot_general" and e.outvars[0].aval.shape == (16, 24) for _, e in jaxviz.derive(loss, params, x).backward.walk())
assert 0.1 < losses[-1] < 0.3 < losses[0]
gradient = jax.grad(loss)(params, x)
assert not any(np.any(gradient[k]) for k in ("in", "bias", "mix"))

# %% [markdown]
# ## Two kinds of zeros
#
# Here are ten functions of `v`, which has only negative elements. The gradient of each is zero, or almost.

# %%
v = jnp.array([-0.7, -1.2, -3.0])
functions = {
    "argmax": lambda v: 1.0 * jnp.argmax(v),
    "as integers": lambda v: 1.0 * jnp.sum(v.astype(int)),
    "share above 0": lambda v: jnp.mean(v > 0),
    "round": lambda v: jnp.sum(jnp.round(v)),
    "sign": lambda v: jnp.sum(jnp.sign(v)),
    "stop_gradient": lambda v: jnp.sum(jax.lax.stop_gradient(v)),
    "relu": lambda v: jnp.sum(jax.nn.relu(v)),
    "where": lambda v: jnp.sum(jnp.where(v > 0, v**2, 1.0)),
    "clip": lambda v: jnp.sum(jnp.clip(v, -0.5, 0.5)),
    "sum of a softmax": lambda v: jnp.sum(jax.nn.softmax(v)),
}
for name, f in functions.items():
    print(f"{name:16}", jax.grad(f)(v))

# %% [markdown]
# Some of them are zero because of the operation, whatever `v` is. In others, the same program gives another gradient for another `v`.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: by_value
def _can_be_large(name):
    return bool(jnp.any(jnp.abs(jax.grad(functions[name])(jnp.array([0.3, -0.2, 4.0]))) > 1e-3))


by_value = teach.predict(
    "Which of these has a gradient other than zero at another `v`?",
    ["round", "clip", "sum of a softmax", "share above 0"],
    truth=lambda: next(name for name in ("round", "clip", "sum of a softmax", "share above 0") if _can_be_large(name)),
    because={
        "round": "The slope of a staircase is zero on each step; JAX gives zero at the jumps too.",
        "clip": "Between the bounds its slope is 1. All three elements of this `v` are outside.",
        "sum of a softmax": "A softmax adds up to 1 for every `v`, so the exact gradient is zero. What you see above is rounding.",
        "share above 0": "`v > 0` is a boolean. No `v` changes its type.",
    },
    hints=("For which of them can you draw a part of the graph that is not level?",),
)
by_value

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
by_value.solution("clip")

# %% [markdown]
# `gradient_flow` knows both kinds. With `values=False` it runs nothing: what it then calls *stopped* is zero for any numbers. The last column is the number of equations of
# the backward pass: for a zero by type, there is nothing to compute.

# %%
print(f"{'':16} {'by type':12}{'with values':12}{'because of':14}equations")
for name, f in functions.items():
    by_type, with_values = (jaxviz.gradient_flow(f, v, values=values).leaves[0] for values in (False, True))
    kind = with_values.endings[0].kind if with_values.endings else ""
    n = len(jaxviz.derive(f, v).backward.equations)
    print(f"{name:16} {by_type.status:12}{with_values.status:12}{kind:14}{n}")

# %% [markdown]
# The last row is neither. The zero is a theorem about softmax, and no tool that reads types or counts zeros can know it: the rounding errors even look like a small gradient.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
_at = {name: (jaxviz.gradient_flow(f, v, values=False).leaves[0], jaxviz.gradient_flow(f, v).leaves[0]) for name, f in functions.items()}
for name in ("argmax", "as integers", "share above 0", "round", "sign"):
    assert _at[name][0].status == _at[name][1].status == "stopped" and not _can_be_large(name)
    assert not jaxviz.derive(functions[name], v).backward.equations
assert _at["stop_gradient"][0].status == "on purpose"
for name in ("relu", "where", "clip"):
    assert (_at[name][0].status, _at[name][1].status) == ("reached", "zero") and _can_be_large(name)
    assert not np.any(jax.grad(functions[name])(v)) and jaxviz.derive(functions[name], v).backward.equations
assert 0 < np.abs(jax.grad(functions["sum of a softmax"])(v)).max() < 1e-6 and not _can_be_large("sum of a softmax")
assert jax.grad(jnp.round)(0.5) == 0

# %% [markdown]
# ## A gradient for a choice: straight through
#
# `argmin` has no useful derivative, and a softmax over the book would not be a discrete code. The usual way out is to decide that the gradient passes *as if* the encoder's
# point had been used itself: forward the value is `q`, backward the cotangent goes to `z`, unchanged. It is not the gradient of this loss, and it works.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: straight
_z, _q = jnp.array([[0.2, -1.0], [3.0, 0.5]]), jnp.array([[1.0, 0.0], [2.0, 2.0]])


def _to_z(written):
    to_z, to_q = jax.grad(lambda z, q: jnp.sum(written(z, q) * jnp.array([[1.0, 2.0], [-3.0, 0.5]])), (0, 1))(_z, _q)
    if np.any(to_q):
        return f"The cotangent [1, 2] of the first row gives q the gradient {to_q[0]}; it should be zeros."
    return "" if np.array_equal(to_z[0], [1, 2]) else f"The cotangent [1, 2] of the first row gives z the gradient {to_z[0]}."


straight = teach.rule(
    "Write `my_straight(z, q)`, in one line with `jax.lax.stop_gradient`: its value is `q`, and its whole gradient goes to `z`.",
    teach.computes(lambda z, q: q, (_z, _q), (_q, _z)).saying("returns q"),
    teach.Check("passes its cotangent to z as it is, and nothing to q", _to_z),
    hints=(
        "`z + (q - z)` is `q`. What is its derivative in `z`?",
        "Of the two `z` in it, the derivative should see only the first.",
    ),
    wrong=(
        lambda z, q: q,
        lambda z, q: z,
        lambda z, q: z + (q - z),
        lambda z, q: jax.lax.stop_gradient(q),
        lambda z, q: q + jax.lax.stop_gradient(z - q),
        lambda z, q: z + q - jax.lax.stop_gradient(z),
        lambda z, q: jax.lax.stop_gradient(z) + (q - z),
    ),
)
straight


# %% tags=["answer"]
def my_straight(z, q):
    return ...


straight.answer(my_straight)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def straight_through(z, q):
    return z + jax.lax.stop_gradient(q - z)


straight.solution(straight_through)


# %%
def loss_through(params, x):
    z = encode(params, x)
    q = look_up(params["book"], z)
    return jnp.mean((decode(params, straight_through(z, q)) - x) ** 2)


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: lost
_PARTS = {"in": "the weights of the encoder", "book": "the rows of the book", "out": "the weights of the decoder"}


def _lost():
    g = jax.grad(loss_through)(params, x)
    return next((part for name, part in _PARTS.items() if not np.any(g[name])), "none of them")


lost = teach.predict(
    "The encoder has a gradient now. Which parameter has none?",
    [*_PARTS.values(), "none of them"],
    truth=_lost,
    because={
        _PARTS["in"]: "They reach `z`, and the straight-through line passes the cotangent to `z`.",
        _PARTS["book"]: "`q` stands inside of `stop_gradient` only, so all of the cotangent goes to `z`, and nothing to `params['book']`.",
        _PARTS["out"]: "The decoder multiplies by them, after the straight-through line.",
        "none of them": "The whole cotangent goes to `z`. Which parameter does `q` come from?",
    },
    hints=("What have you just decided about the gradient in `q`?",),
)
lost

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
lost.solution("the rows of the book")

# %%
flow = jaxviz.gradient_flow(loss_through, params, x)
print("a finding:", bool(flow), "\n")
print(flow)

# %% [markdown]
# *Stopped on purpose*: you asked for it, so the report is not a finding, and a test that asserts `not flow` passes. Whether you meant the book too is a question that only you can answer. Read the table
# once after adding a `stop_gradient`.
#
# ## A loss of its own for the book
#
# The book should move to the points that chose it, without pulling these; and the points should stay near their rows, with a smaller weight. Each is a squared distance in which one of the two
# stands still.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: pulled
def _only_book(written):
    to_z, to_q = jax.grad(written, (0, 1))(_z, _q)
    wanted = 2 * (_q - _z) / _q.size
    if np.any(to_z):
        return f"It moves z too: its gradient in z has {np.count_nonzero(to_z)} elements that are not zero."
    return "" if np.allclose(to_q, wanted) else f"In the first row its gradient in q is {to_q[0]}, and that of the mean square is {wanted[0]}."


pulled = teach.rule(
    "Write `my_pull(fixed, moving)`: the mean square of the difference, whose gradient reaches `moving` alone.",
    teach.computes(lambda z, q: jnp.mean((z - q) ** 2), (_z, _q), (_q, _z)).saying("returns the mean square"),
    teach.Check("moves the second argument, and not the first", _only_book),
    hints=("Which of the two should the gradient not see?",),
    wrong=(
        lambda z, q: jnp.mean((z - q) ** 2),
        lambda z, q: jnp.mean((z - jax.lax.stop_gradient(q)) ** 2),
        lambda z, q: jnp.mean(jax.lax.stop_gradient(z - q) ** 2),
        lambda z, q: jnp.sum((jax.lax.stop_gradient(z) - q) ** 2),
    ),
)
pulled


# %% tags=["answer"]
def my_pull(fixed, moving):
    return jnp.mean(...)


pulled.answer(my_pull)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def pull(fixed, moving):
    return jnp.mean((jax.lax.stop_gradient(fixed) - moving) ** 2)


pulled.solution(pull)


# %%
def full_loss(params, x):
    z = encode(params, x)
    q = look_up(params["book"], z)
    restored = decode(params, straight_through(z, q))
    return jnp.mean((restored - x) ** 2) + pull(z, q) + 0.25 * pull(q, z)


trained, _ = train(full_loss, params)
for name, p in (("at the start", params), ("as it was", stuck), ("straight through", trained)):
    print(f"{name:17} error of the restored recordings {loss(p, x):.3f}")

# %% jupyter={"source_hidden": true}
# Points of the encoder and rows of the book
fig, axes = plt.subplots(1, 2, figsize=(6.4, 2.8))
for ax, p, title in zip(axes, (stuck, trained), ("as it was", "straight through")):
    z = encode(p, x)
    ax.scatter(*z.T, s=4, color="0.7")
    used = np.unique(look_up(p["book"], z), axis=0)
    ax.scatter(*p["book"].T, marker="x", color="0.4", label="never chosen")
    ax.scatter(*used.T, color="C1", label="chosen")
    ax.set_title(title)
    low, high = z.min(0), z.max(0)
    ax.set_xlim(low[0] - 0.3, high[0] + 0.3)
    ax.set_ylim(low[1] - 0.3, high[1] + 0.3)
axes[0].legend(frameon=False, fontsize=8);

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert [leaf.name for leaf in flow.on_purpose] == ["params['book']"] and not flow
full = jaxviz.gradient_flow(full_loss, params, x)
assert not full and len(full.reached) == 6
assert loss(trained, x) < 0.5 * loss(stuck, x)
_ring = encode(trained, x)
_radius = jnp.linalg.norm(_ring - _ring.mean(0), axis=1)
assert _radius.min() > 0.4 * _radius.mean() and len(np.unique(look_up(trained["book"], _ring), axis=0)) >= 6

# %% [markdown]
# The points form a ring now, as the phases of the waves do, and the rows of the book that are chosen lie along it.
#
# ## A part of it is zero
#
# A parameter counts as reached if one of its elements is. The column *not zero* says how many are:

# %%
flow = jaxviz.gradient_flow(full_loss, trained, x)
for leaf in flow.leaves:
    print(f"{leaf.name:15} {leaf.nonzero}")

# %% [markdown]
# Rows of the book that no point chooses have no gradient, and stay where they are: *dead codes*. The same holds for words of an embedding that are not in the batch, and experts that
# a router does not pick. The structure is right, and the values decide.
#
# ## All of it is zero, at these values
#
# To make the hidden layer sparse, somebody starts its biases at −6.

# %%
sparse = params | {"bias": jnp.full(24, -6.0)}

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: revived
_CURES = {
    "a smaller learning rate": lambda: train(full_loss, sparse, rate=0.03)[0],
    "ten times as many steps": lambda: train(full_loss, sparse, steps=4000)[0],
    "a leaky relu": lambda: None,
}


def _leaky_moves():
    slope = jax.grad(lambda b: jnp.sum(jax.nn.leaky_relu(x @ sparse["in"] + b)))(sparse["bias"])
    return bool(jnp.all(slope > 0))


def _moves(cure):
    return _leaky_moves() if cure == "a leaky relu" else bool(np.any(_CURES[cure]()["bias"] != sparse["bias"]))


revived = teach.predict(
    "Every unit of the hidden layer is off for every recording. What brings them back?",
    list(_CURES),
    truth=lambda: next(cure for cure in _CURES if _moves(cure)),
    because={
        "a smaller learning rate": "Any rate times zero is zero: no step moves them.",
        "ten times as many steps": "After each of them the biases are what they were, −6.",
        "a leaky relu": "Its slope below zero is 0.01 and not 0, so the cotangent gets through, and the units can return.",
    },
    hints=("What is the slope of `relu` where all its inputs are negative?",),
)
revived

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
revived.solution("a leaky relu")

# %%
print("by type, a finding:", bool(jaxviz.gradient_flow(full_loss, sparse, x, values=False)), "\n")
dead = jaxviz.gradient_flow(full_loss, sparse, x)
for leaf in dead.zero:
    print(f"{leaf.name}: {leaf.endings[0]}")

# %% [markdown]
# Types say nothing here: there is a path. The values say where it ends: the slope of the `relu` is zero in every element, and so `mix` is multiplied by zeros. Two different endings, one cause.
# Nothing is wrong with the structure, so look at the values: the biases, the scale of the inputs, or a step that was too large.
#
# ## In a test
#
# What follows from types can be asserted without running a step, with the shapes alone. It fails on the loss we began with:

# %%
shapes = jax.eval_shape(lambda: params)
for f in (loss, full_loss):
    print(f"{f.__name__:10} every parameter is reached:", not jaxviz.gradient_flow(f, shapes, x, values=False))

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
_rows = next(leaf.count for leaf in flow.leaves if leaf.name == "params['book']")
assert 0 < _rows.nonzero_rows < _rows.rows == 12
assert len(np.unique(look_up(trained["book"], encode(trained, x)), axis=0)) == _rows.nonzero_rows
assert [leaf.name for leaf in dead.zero] == ["params['bias']", "params['in']", "params['mix']"]
assert [leaf.endings[0].kind for leaf in dead.zero] == ["slope", "slope", "zero factor"]
assert not jaxviz.gradient_flow(full_loss, sparse, x, values=False)
assert np.isclose(jax.grad(jax.nn.leaky_relu)(-6.0), 0.01)
assert jaxviz.gradient_flow(loss, shapes, x, values=False) and not jaxviz.gradient_flow(full_loss, shapes, x, values=False)

# %% [markdown]
# ## What to remember
#
# - A falling loss does not show that every parameter learns. Compare the parameters before and after, or ask `jaxviz.gradient_flow(loss, params, x)`; `%flow` shows it for your own.
# - Zero by type: integers, booleans, `round`, `sign`, `stop_gradient`. No numbers change it, and a test can find it without running.
# - Zero by value: a `relu` that is off, a `where` or `clip` that takes the other side, rows that nobody reads. There the numbers have to change.
# - `z + stop_gradient(q - z)` is `q` forward and `z` backward. Whatever stands only inside of `stop_gradient` needs a loss of its own.
#
# Next: two runs that should agree, and do not, in [17 · where two runs part](17_where_two_runs_part.ipynb).
