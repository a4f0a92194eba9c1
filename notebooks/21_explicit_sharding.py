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
# # 21 · Where does my sharded gradient communicate?
#
# On a mesh with *explicit* axes, the type of an array says how it is split over the devices, and JAX refuses a program in which that is not clear. You do not write the gradient, but its
# types follow from those of your program. So you can say, before anything is compiled, which line makes the devices exchange what, and you can move it.
#
# The program is a block of a network on eight devices: four shares of the examples, and each weight in two halves. It takes 30 minutes. You need to know how a gradient is
# transposed ([5 · transposition](05_transposition.ipynb)). How devices communicate in a `shard_map` is [11 · gradients on devices](11_gradients_on_devices.ipynb).

# %%
import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)  # or XLA_FLAGS=--xla_force_host_platform_device_count=8

import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxviz
from jaxviz import teach

jax.set_mesh(jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit, AxisType.Explicit)))
SPECS = {"up": (None, "model"), "down": ("model", None)}


def block(params, x):
    h = jnp.tanh(x @ params["up"])
    return x + jnp.einsum("bh,hd->bd", h, params["down"], out_sharding=P("data", None))


def loss(params, x, y):
    return jnp.mean((block(params, x) - y) ** 2)


rng = np.random.default_rng(0)
normal = lambda *shape, spec: jax.device_put(jnp.asarray(rng.normal(size=shape) / 8, jnp.float32), P(*spec))
params = {"up": normal(64, 128, spec=SPECS["up"]), "down": normal(128, 64, spec=SPECS["down"])}
x, y = (normal(256, 64, spec=("data", None)) for _ in range(2))
for name, value in {**params, "x": x}.items():
    print(f"{name:5} {jax.typeof(value)}")

# %% jupyter={"source_hidden": true}
# Which devices have which part
import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 3, figsize=(7, 2.4), layout="constrained", width_ratios=[64, 128, 64])
for ax, (name, value) in zip(axes, {"x": x, **params}.items()):
    parts = {}
    for shard in value.addressable_shards:
        parts.setdefault(str(shard.index), (shard.index, []))[1].append(shard.device.id)
    for (rows, columns), ids in parts.values():
        (top, bottom, _), (left, right, _) = rows.indices(value.shape[0]), columns.indices(value.shape[1])
        color = plt.cm.Pastel1(min(ids) % 8)
        ax.fill([left, right, right, left], [top, top, bottom, bottom], color=color, edgecolor="white", linewidth=3)
        ax.text((left + right) / 2, (top + bottom) / 2, ", ".join(map(str, sorted(ids))), ha="center", va="center", fontsize=8)
    ax.set(title=f"{name}: {value.shape[0]} × {value.shape[1]}", xticks=[], yticks=[])
    ax.invert_yaxis()
plt.show()

# %% [markdown]
# `256@data` is a dimension of 256 that is split over the axis `data`, here in four. No dimension of the weights is split over `data`: each of the four shares has a copy of its half.
# Types go on through the program:

# %%
h = jnp.tanh(x @ params["up"])
print(jax.typeof(h))
try:
    h @ params["down"]
    refused = ""
except Exception as error:
    refused = str(error)
print(refused)

# %% [markdown]
# In the second product, the dimension over which it sums is split. JAX does not guess what you want there, so `block` says it: `out_sharding`.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: forward
LINES = {
    "up": 'x @ params["up"]',
    "down": 'jnp.einsum("bh,hd->bd", h, params["down"], …)',
    "add": "x + …",
}


def _communicates():
    found = jaxviz.collectives(block, params, x, argnums=(), compile=False).implied
    (line,) = {c.location.line for c in found}
    return LINES["down"] if line == block.__code__.co_firstlineno + 2 else LINES["up"]


forward = teach.predict(
    "In which operation of `block` do the devices have to exchange something?",
    list(LINES.values()),
    truth=_communicates,
    because={
        LINES["up"]: "Each device has its examples whole, and half of the columns of `up`. That gives it its part of the result.",
        LINES["down"]: "Each device has half of what is summed over. It computes a part of the sum, and the two parts are added up: an all-reduce over `model`.",
        LINES["add"]: "Both have the same type. Each device adds its own part.",
    },
    hints=("Which of the dimensions that are summed over is split?",),
)
forward

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
forward.solution('jnp.einsum("bh,hd->bd", h, params["down"], …)')

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert str(jax.typeof(x)) == "float32[256@data,64]" and str(jax.typeof(h)) == "float32[256@data,128@model]"
assert "ambiguous" in refused and "out_sharding" in refused
assert len({s.data.tobytes() for s in params["up"].addressable_shards}) == 2

# %% [markdown]
# ## The types of the gradient
#
# Each cotangent has a type that depends on the type of its value only, and not on what the program does with it.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: type_of_up
type_of_up = teach.predict(
    "What is the type of the gradient of `loss` in `up`?",
    ["float32[64@data,128]", "float32[64,128@model]", "float32[64,128]", "float32[64@data,128@model]"],
    truth=lambda: str(jax.typeof(jax.jit(jax.grad(loss))(params, x, y)["up"])),
    because=lambda: f"It has the type of `up`, {jax.typeof(params['up'])}: the half that a device has is the half whose gradient it gets. And it is whole: the contributions of all examples are in it.",
    hints=("What will you do with the gradient? Subtract it from `up`, without communication.",),
)
type_of_up

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
type_of_up.solution("float32[64,128@model]")

# %% [markdown]
# But each device saw only a share of the examples. If its gradient is over all of them, the devices must have added up something. Where is that, in the program of the gradient?

# %%
derivation = jaxviz.derive(loss, params, x, y)
for e in derivation.backward.equations:
    print(f"{e.primitive.name:18}", *(f"{a.aval.str_short(short_dtypes=True):22}" for a in e.outvars))

# %% [markdown]
# There is no `psum` in it. Types with `@` are like shapes: the program is that of one device with a large memory, and what the devices exchange is inside of its operations. In a product whose
# summed dimension is split, for instance.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: hidden
def _backward_sums():
    found = jaxviz.collectives(loss, params, x, y, compile=False).implied
    return sum(c.count for c in found if c.stage == "backward" and c.nbytes > 4)


hidden = teach.predict(
    "The forward pass has one all-reduce of a matrix. How many has the backward pass of `jax.grad(loss)`, in `params`?",
    truth=_backward_sums,
    because="One for each weight: its cotangent is a product that sums over the examples, and those are split over `data`. The all-reduce of the forward pass has none as its transpose: the "
    "cotangent of its result is whole on each device, and each takes it for its part.",
    hints=("Look for products in the backward pass above. Which two dimensions does each sum over?", "Over the examples, or over the 128 in the middle?"),
    tolerance=0.001,
)
hidden

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
hidden.solution(2)

# %% [markdown]
# `jaxviz.collectives` lists them with their lines. `compile=False` asks the types only:

# %%
implied = jaxviz.collectives(loss, params, x, y, compile=False)
print(implied)

# %% [markdown]
# Compiled, XLA does the same: the last line of the report says that the types imply the collectives, and no others.

# %%
compiled = jaxviz.collectives(loss, params, x, y)
for c in compiled.compiled:
    print(f"{c.kind} over {', '.join(c.axes)}, {c.stage}, line {c.location.line}: sends {c.total_sent_nbytes:,} B")
print(str(compiled).splitlines()[-1])

# %% [markdown]
# If the block has another one before it, the cotangent of `x` is needed too. That product sums over the 128 that are split over `model`: a third all-reduce, as in the forward pass, with the roles of the two weights exchanged.
# In the explorer, an equation of the backward pass that makes devices exchange something has a ⇄. The selected one is the cotangent of `down`.

# %%
both = jaxviz.collectives(loss, params, x, y, argnums=(0, 1), compile=False)
print("with the gradient in x:", [f"{c.operation} over {', '.join(c.axes)}" for c in both.implied if c.stage == "backward"])
explorer = jaxviz.explore(loss, params, x, y)
explorer.stage, explorer.beside = "forward", "backward"
names = [e.primitive.name for _, e in explorer.derivation.backward.walk()]
explorer.selected = f"backward:{names.index('dot_general')}"
explorer

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
_names = {e.primitive.name for _, e in derivation.backward.walk()}
assert not _names & {"psum", "psum_invariant", "all_gather", "reduce_scatter"}
assert str(compiled).splitlines()[-1] == "The types imply these collectives, and no others."
assert sorted((c.axes, c.stage) for c in compiled.compiled if c.nbytes > 4) == sorted((c.axes, c.stage) for c in implied.implied if c.nbytes > 4)
assert [c.axes for c in both.implied if c.stage == "backward"].count(("model",)) == 1
assert [c.axes for c in implied.implied if c.stage == "backward"] == [("data",), ("data",)]
_first = block.__code__.co_firstlineno
assert {c.location.line for c in implied.implied if c.stage == "backward"} == {_first + 1, _first + 2}
assert str(explorer.equation.outvars[0].aval) == "float32[64,128@model]"

# %% [markdown]
# ## A sum that waits
#
# With `out_sharding` you can also ask for no sum at all: each device keeps its part.

# %%
parts = jnp.einsum("bh,hd->bd", h, params["down"], out_sharding=P("data", None, unreduced={"model"}))
print(jax.typeof(parts))
whole = jax.reshard(parts, P("data", None))
print(jax.typeof(whole))

# %% [markdown]
# `{U:model}` is *unreduced* over `model`: the value is the sum of what the devices have, and `reshard` computes it. Until then only what is linear is allowed:

# %%
operations = {"parts + parts": lambda p: p + p, "jnp.sum(parts)": jnp.sum, "jnp.tanh(parts)": jnp.tanh, "parts + 1.0": lambda p: p + 1.0, "parts * parts": lambda p: p * p}
for name, f in operations.items():
    try:
        print(f"{name:16}{jax.typeof(f(parts))}")
    except Exception as error:
        print(f"{name:16}{type(error).__name__}")

# %% [markdown]
# `parts + 1.0` would add 1 on each of the two devices. So a sum can wait for another one. A block with two branches:


# %%
def two_branches(h, w, g, v):
    first = jnp.einsum("bh,hd->bd", h, w, out_sharding=P("data", None))
    second = jnp.einsum("bh,hd->bd", g, v, out_sharding=P("data", None))
    return first + second


branches = h, params["down"], jnp.cos(h), 2 * params["down"]
print([f"{c.kind} over {', '.join(c.axes)}" for c in jaxviz.collectives(two_branches, *branches, argnums=()).compiled])

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: waits
def _type(f):
    found, wanted = jax.typeof(jax.jit(f)(*branches)), jax.typeof(two_branches(*branches))
    return "" if found == wanted else f"It returns {found}, and `two_branches` {wanted}."


def _sums(f):
    found = sum(c.count for c in jaxviz.collectives(f, *branches, argnums=()).compiled)
    return f"XLA compiles it to {found} collectives." if found != 1 else ""


def _left(h, w, g, v):
    parts = P("data", None, unreduced={"model"})
    return jnp.einsum("bh,hd->bd", h, w, out_sharding=parts) + jnp.einsum("bh,hd->bd", g, v, out_sharding=parts)


def _first_only(h, w, g, v):
    return jnp.einsum("bh,hd->bd", h, w, out_sharding=P("data", None))


waits = teach.rule(
    "Write `my_branches`: `two_branches` with one all-reduce.",
    teach.Check("returns what two_branches returns, in the same type", _type),
    teach.computes(two_branches, branches).saying("has its value"),
    teach.Check("has one collective", _sums),
    hints=("Keep the parts of both, and add them. Is that allowed?", "`jax.reshard(first + second, P(\"data\", None))`"),
    wrong=(two_branches, _left, _first_only, lambda *args: jax.reshard(two_branches(*args), P("data", None))),
)
waits


# %% tags=["answer"]
def my_branches(h, w, g, v):
    parts = P("data", None, unreduced={"model"})
    first = jnp.einsum("bh,hd->bd", h, w, out_sharding=...)
    second = jnp.einsum("bh,hd->bd", g, v, out_sharding=...)
    return ...


waits.answer(my_branches)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def one_sum(h, w, g, v):
    parts = P("data", None, unreduced={"model"})
    first = jnp.einsum("bh,hd->bd", h, w, out_sharding=parts)
    second = jnp.einsum("bh,hd->bd", g, v, out_sharding=parts)
    return jax.reshard(first + second, P("data", None))


waits.solution(one_sum)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
def _allowed(f):
    try:
        f(parts)
    except Exception:
        return False
    return True


assert [_allowed(f) for f in operations.values()] == [True, True, False, False, False]
assert jnp.allclose(whole, np.asarray(h) @ np.asarray(params["down"]), atol=1e-4)
assert len(jaxviz.collectives(two_branches, *branches, argnums=()).compiled) == 2

# %% [markdown]
# ## A gradient that waits
#
# Now the gradient in the weights, in a loop over microbatches. Each of eight microbatches adds to the same gradient, and each has its all-reduces:


# %%
def mean_loss(params, xs, ys):
    losses = jax.lax.scan(lambda _, batch: (None, loss(params, *batch)), None, (xs, ys))[1]
    return jnp.mean(losses)


def sent(f):
    """The all-reduces over `data` in the compiled backward pass: how many, and the bytes that each device sends."""
    found = [c for c in jaxviz.collectives(f, params, xs, ys).compiled if c.axes == ("data",) and c.stage == "backward"]
    return sum(c.count * c.trips for c in found), sum(c.total_sent_nbytes for c in found)


xs, ys = (normal(8, 64, 64, spec=(None, "data", None)) for _ in range(2))
print("all-reduces: {}, bytes: {:,}".format(*sent(mean_loss)))

# %% [markdown]
# They could be added up unreduced, in the loop, and summed over the devices once after it. You do not write the backward pass, but its types follow from yours. What you need is a type whose
# cotangents are unreduced. It is called *reduced*, and differs from a copy on each device in nothing else:

# %%
up = jax.reshard(params["up"], P(None, "model", reduced={"data"}))
print("the value:    ", jax.typeof(up))
print("its cotangent:", jax.typeof(jax.jit(jax.grad(lambda up: loss({**params, "up": up}, x, y)))(up)))
summed = jax.jit(jax.grad(lambda parts: jnp.sum(jax.reshard(parts, P("data", None)) ** 2)))
print("the value:    ", jax.typeof(parts), " its cotangent:", jax.typeof(summed(parts)))

# %% [markdown]
# To cast a copy to *reduced* moves nothing. The transpose of that cast is the all-reduce, so where you cast is where the backward pass sums.


# %%
def reduced(params):
    return {name: jax.reshard(p, P(*SPECS[name], reduced={"data"})) for name, p in params.items()}

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: cast
def _value(f):
    found, wanted = (jax.jit(jax.value_and_grad(g))(params, xs, ys) for g in (f, mean_loss))
    if jax.tree.map(jax.typeof, found) != jax.tree.map(jax.typeof, wanted):
        return f"The types of its gradient are {jax.tree.map(jax.typeof, found[1])}."
    same = jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-5), found, wanted))
    return "" if same else "Its value or its gradient is another one."


def _times(f):
    times, _ = sent(f)
    return f"It has {times} all-reduces over `data`." if times > 2 else ""


def _in_the_loop(params, xs, ys):
    return jnp.mean(jax.lax.scan(lambda _, batch: (None, loss(reduced(params), *batch)), None, (xs, ys))[1])


cast = teach.rule(
    "Write `my_loss(params, xs, ys)`: `mean_loss`, with one all-reduce over `data` for each weight in its backward pass. `reduced(params)` casts both weights.",
    teach.Check("has the value and the gradient of mean_loss, in the same types", _value),
    teach.Check("has two all-reduces over data in the compiled backward pass", _times),
    hints=("How often is the cast transposed, if it stands in the body of the scan? And outside?", "`mean_loss` takes parameters of any type."),
    wrong=(mean_loss, _in_the_loop, lambda params, xs, ys: mean_loss(params, xs[:1], ys[:1])),
)
cast


# %% tags=["answer"]
def my_loss(params, xs, ys):
    return ...


cast.answer(my_loss)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
cast.solution(lambda params, xs, ys: mean_loss(reduced(params), xs, ys))


# %%
def cast_before(params, xs, ys):
    return mean_loss(reduced(params), xs, ys)


def cast_inside(params, xs, ys):
    losses = jax.lax.scan(lambda _, batch: (None, loss(reduced(params), *batch)), None, (xs, ys))[1]
    return jnp.mean(losses)


for f in (mean_loss, cast_inside, cast_before):
    times, nbytes = sent(f)
    print(f"{f.__name__:12} {times:2} all-reduces over data, {nbytes:>8,} B")

# %% [markdown]
# Eight times less, and by the types: nobody has to hope that a compiler moves something out of a loop. The report points at the line of the cast. The all-reduces over `model` in the forward pass stay where they were.

# %%
report = jaxviz.collectives(cast_before, params, xs, ys, compile=False)
for c in report.implied:
    print(f"{c.operation:12} {c.stage:9} over {', '.join(c.axes):6} {c.times:>3} times, line {c.location.line}")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert [sent(f)[0] for f in (mean_loss, cast_inside, cast_before)] == [16, 16, 2]
assert sent(mean_loss)[1] == sent(cast_inside)[1] == 8 * sent(cast_before)[1]
assert str(jax.typeof(up)).endswith("{R:data}") and str(jax.typeof(summed(parts))).endswith("{R:model}")
assert str(jax.typeof(jax.jit(jax.grad(lambda up: loss({**params, "up": up}, x, y)))(up))).endswith("{U:data}")
assert not jaxviz.collectives(lambda p: reduced(p), params, argnums=()).compiled
assert {c.location.line for c in report.implied if c.stage == "backward" and c.axes == ("data",)} == {reduced.__code__.co_firstlineno + 1}

# %% [markdown]
# ## What to remember
#
# - The type of a cotangent follows from the type of its value: split stays split, a copy gets a copy, reduced gets unreduced, and unreduced gets reduced.
# - A product that sums over a split dimension makes devices exchange. In the backward pass that is the gradient of each weight, since it sums over the examples. No equation says so; the types do, and
#   `jaxviz.collectives(loss, …, compile=False)` lists them with their lines.
# - `unreduced` lets a sum wait. A cast to `reduced` costs nothing, and its transpose is the all-reduce: put it outside of the loop.
#
# Next: [22 · checkpoints in 2027](22_checkpoints_in_2027.ipynb).
