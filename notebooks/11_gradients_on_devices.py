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
# # 11 · Why is my gradient wrong on eight devices?
#
# A training step that is right on one device is distributed over eight: each has the parameters and a share of the examples. It runs without
# an error, but the loss blows up, or converges to the wrong value. The cause is a sum over the devices that is not there, or one that you did not write.
# At the end you can say for any value over which axis its cotangent was summed, and by which equation.
#
# The program is the network of [10 · named axes](10_named_axes.ipynb). It takes 30 minutes. You need to know the transpose of `psum`.

# %%
import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)  # or XLA_FLAGS=--xla_force_host_platform_device_count=8

import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxviz
from jaxviz import teach

print(jax.devices())


# %%
def loss(params, x, y):
    h = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.mean((h @ params["w2"] - y) ** 2)


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


params = {"w1": 0.5 * normal(1, 3, 4), "b1": jnp.zeros(4), "w2": 0.5 * normal(2, 4)}
x = normal(0, 16, 3)
y = jnp.sin(x[:, 0]) + 0.5 * x[:, 1]

right = jax.jit(jax.grad(loss))(params, x, y)
print(jax.tree.map(jnp.shape, right))

# %% [markdown]
# ## The symptom
#
# `shard_map` runs a function once on each device of a mesh. `P()` says that each device gets the whole, `P("data")` that it gets its share:
# two examples. Each device takes the gradient of its own mean, and `pmean` takes the mean over the devices. The mean of eight means of two is
# the mean of 16, so this should be the gradient of one device.

# %%
mesh = Mesh(jax.devices(), ("data",))


def on_devices(f, check_vma=True, out_specs=P()):
    return jax.shard_map(f, mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=out_specs, check_vma=check_vma)


def mean_of_gradients(params, x, y):
    return lax.pmean(jax.grad(loss)(params, x, y), "data")


# %%
def train(gradient):
    def step(params, _):
        params = jax.tree.map(lambda p, g: p - 0.2 * g, params, gradient(params, x, y))
        return params, loss(params, x, y)

    return jax.jit(lambda params: lax.scan(step, params, length=200)[1])(params)


losses = {
    "one device": train(jax.grad(loss)),
    "eight devices": train(on_devices(mean_of_gradients)),
    "eight, check_vma=False": train(on_devices(mean_of_gradients, check_vma=False)),
}
for name, curve in losses.items():
    print(name.ljust(24), *(f"step {i + 1:3}: {curve[i]:<10.3g}" for i in (0, 1, 9, 199)))

# %% [markdown]
# The same function, and an option that sounds like a check decides whether it trains. Remember this table; it is explained below.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert losses["one device"][-1] < 0.002
assert jnp.isnan(losses["eight devices"][-1])
assert jnp.allclose(losses["eight, check_vma=False"], losses["one device"], rtol=0.05)

# %% jupyter={"source_hidden": true}
# Half of the answer is in the types: show_collectives(program) prints them, and the shares of the examples
over_shares = (None, 0, 0)
xs, ys = x.reshape(8, 2, 3), y.reshape(8, 2)
NAMES = ("psum", "psum_invariant", "pvary", "all_gather", "reduce_scatter")


def collectives_of(program):
    """Those of a number that stands in the program left out."""
    found = (e for _, e in program.walk() if e.primitive.name in NAMES)
    return [e for e in found if not hasattr(e.invars[0], "val")]


def names(program):
    return [e.primitive.name for e in collectives_of(program)]


def show_collectives(program):
    """Each with its types and, if it was made by transposition, what it is the transpose of."""
    for e in collectives_of(program):
        before, after = (v.aval.str_short(short_dtypes=True) for v in (e.invars[0], e.outvars[0]))
        is_transpose = e.origin is not None and e.origin.transform == "transpose"
        rule = e.origin.rule if is_transpose else ""
        print(f"   {e.primitive.name:15} {before:>18} → {after:18} {rule}".rstrip())


# %% [markdown]
# ## With types: who sums the gradient?
#
# Now the loss of the network, on eight devices, with one `pmean`.


# %%
def mean_loss(params, x, y):
    return lax.pmean(loss(params, x, y), "data")


derivation = jaxviz.derive(on_devices(mean_loss), params, x, y)

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: places
places = teach.predict(
    "`mean_loss` has one `pmean`. How many equations of its backward program sum over the devices?",
    truth=lambda: names(derivation.backward).count("psum_invariant"),
    because="One for each array of parameters: `w1`, `b1` and `w2`. None of them varies over the devices, but `x` does. Where one is combined with `x`, a `pvary` casts it, and "
    "the transpose of that cast sums its cotangent over the devices. The transpose of the `pmean` sums nothing.",
    hints=(
        "The transpose of the `pmean` is a `pvary`, and a division by 8. So it is not that one.",
        "Which values do not vary, but are combined with one that does?",
    ),
)
places

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
places.solution(3)

# %%
print("forward")
show_collectives(derivation.forward)
print("backward")
show_collectives(derivation.backward)

# %% [markdown]
# You wrote none of those three sums. In the explorer below the sum for `w2` is selected, in the backward program at the right. It says which equation it is
# the transpose of, and the line of the loss where that stands.

# %%
explorer = jaxviz.explore(derivation)
explorer.stage, explorer.beside, explorer.height = "forward", "backward", 640
walked = [e.primitive.name for _, e in derivation.backward.walk()]
explorer.selected = f"backward:{walked.index('psum_invariant')}"
explorer

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
_sums = [e for _, e in derivation.backward.walk() if e.primitive.name == "psum_invariant"]
assert all(e.origin.equation.primitive.name == "pvary" for e in _sums)
assert explorer.equation is _sums[0] and _sums[0].outvars[0].aval.shape == params["w2"].shape

# %% [markdown]
# ## Which of these are right?
#
# `judged` runs a gradient function on the eight devices and looks at what each of them has.


# %% jupyter={"source_hidden": true}
# judged(gradient, check_vma=True), and compared(one gradient) with that of one device
def copies(gradient, check_vma):
    """What each device has, one under the other."""
    alone = lambda *args: jax.tree.map(lambda g: g[None], gradient(*args))
    return jax.jit(on_devices(alone, check_vma, P("data")))(params, x, y)


def compared(found, wanted=right):
    """One gradient with that of one device."""
    found, wanted = ravel_pytree(found)[0], ravel_pytree(wanted)[0]
    factor = found @ wanted / (wanted @ wanted)
    if not jnp.allclose(found, factor * wanted, atol=1e-5):
        return "wrong, by no clean factor"
    return "right" if jnp.isclose(factor, 1) else f"{factor:.3g} times too large"


def judged(gradient, check_vma=True):
    found = copies(gradient, check_vma)
    all_same = all(jnp.allclose(g, g[0], atol=1e-5) for g in jax.tree.leaves(found))
    return compared(jax.tree.map(lambda g: g[0], found)) if all_same else "different on each device"


# %%
gradient_of_mean = jax.grad(mean_loss)
print("the gradient of mean_loss:", judged(gradient_of_mean))

# %% [markdown]
# Here `grad` stands inside of the `shard_map`. What is the gradient of the plain loss, which has no collective?

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: local
local = teach.predict(
    "Inside of `shard_map`, as it is by default: what is `jax.grad(loss)`, without any collective?",
    ["right", "different on each device", "8 times too large"],
    truth=lambda: judged(jax.grad(loss)),
    because={
        "right": "It would be, if the eight losses were averaged. Who divides by 8?",
        "different on each device": "That is so without types. With types the parameters are one value, which the loss casts before it is combined with `x`, and the "
        "transpose of that cast is a sum.",
        "8 times too large": "Each device begins with a cotangent of 1 for its own loss, and the transposes of the three casts sum. That is the gradient of "
        "the sum of eight means, each over two examples. It is summed already.",
    },
    hints=("Does `loss` have the three casts too? Count the sums in `jax.grad(loss)` as above.",),
)
local

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
local.solution("8 times too large")

# %% [markdown]
# And `mean_of_gradients`, with which the notebook began, takes the `pmean` of that. Count the sums in its program: which come from the transposes of casts,
# and which from the `pmean`?

# %%
show_collectives(jaxviz.trace(on_devices(mean_of_gradients))(params, x, y))


# %% [markdown]
# The whole table, with and without types:


# %%
def sum_of_gradients_of_mean(params, x, y):
    return lax.psum(gradient_of_mean(params, x, y), "data")


def mean_of_gradients_of_mean(params, x, y):
    return lax.pmean(gradient_of_mean(params, x, y), "data")


versions = {
    "grad(loss)": jax.grad(loss),
    "pmean(grad(loss))": mean_of_gradients,
    "grad(pmean(loss))": gradient_of_mean,
    "psum(grad(pmean(loss)))": sum_of_gradients_of_mean,
    "pmean(grad(pmean(loss)))": mean_of_gradients_of_mean,
}
table = {(name, vma): judged(f, vma) for name, f in versions.items() for vma in (True, False)}
print(f"{'':26}{'with types':26}without, as under pmap")
for name in versions:
    print(f"{name:26}{table[name, True]:26}{table[name, False]}")

# %% [markdown]
# Look at the eight devices: the gradient in the first bias, as each of them has it, with types above and without below.

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(2, 1, figsize=(7, 3.6), layout="constrained", sharex=True)
for ax, vma in zip(axes, (True, False)):
    rows = {name: copies(f, vma)["b1"][:, 0] / right["b1"][0] for name, f in versions.items()}
    ax.imshow([[float(v) for v in row] for row in rows.values()], cmap="RdBu_r", vmin=-7, vmax=9, aspect="auto")
    for i, row in enumerate(rows.values()):
        for j, value in enumerate(row):
            ax.text(j, i, f"{value:.1f}", ha="center", va="center", fontsize=7, color="white" if value > 5 else "black")
    ax.set(yticks=range(len(rows)), yticklabels=list(rows), title=f"check_vma={vma}: times that of one device")
axes[1].set(xticks=range(8), xlabel="device")
plt.show()

# %% [markdown]
# Each line follows from two sentences.
#
# - **With types**, a gradient in what does not vary is summed over the devices, once, by the transpose of the cast. Put the collective into the loss, and
#   leave the gradient alone.
# - **Without**, each device has a copy of the parameters, and gets the derivative *of the sum of what all devices return* in its own copy. In
#   `grad(pmean(loss))` the eight copies of the mean cancel its division by 8, and what is left is the gradient of its own loss, not summed. Leave the
#   loss alone, and average the gradient.
#
# The last line is right both times, but for different reasons: with types the gradient is already the mean, and the outer `pmean` leaves it unchanged;
# without types the outer `pmean` is what averages the gradient.
# The second sentence, computed with no collective in the gradient:


# %%
def sum_of_returned(all_params):  # one copy of the parameters for each device
    return jnp.sum(jax.vmap(mean_loss, axis_name="data")(all_params, xs, ys))


eight_copies = jax.tree.map(lambda p: jnp.stack([p] * 8), params)
by_hand = jax.jit(jax.grad(sum_of_returned))(eight_copies)
off = jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), by_hand, copies(gradient_of_mean, False))
print("the largest differences:", off)

# %% [markdown]
# All of this is about a `grad` *inside* of the mapped function. From outside, `shard_map` says which arguments and results are the same
# everywhere, by its specs, and JAX sums by those:

# %%
outside = [compared(jax.jit(jax.grad(on_devices(mean_loss, vma)))(params, x, y)) for vma in (True, False)]
print(outside)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert table == {
    ("grad(loss)", True): "8 times too large",
    ("grad(loss)", False): "different on each device",
    ("pmean(grad(loss))", True): "8 times too large",
    ("pmean(grad(loss))", False): "right",
    ("grad(pmean(loss))", True): "right",
    ("grad(pmean(loss))", False): "different on each device",
    ("psum(grad(pmean(loss)))", True): "8 times too large",
    ("psum(grad(pmean(loss)))", False): "8 times too large",
    ("pmean(grad(pmean(loss)))", True): "right",
    ("pmean(grad(pmean(loss)))", False): "right",
}
assert max(jax.tree.leaves(off)) < 1e-5
_own = jax.vmap(jax.grad(loss), over_shares)(params, xs, ys)
for _a, _b in zip(jax.tree.leaves(copies(gradient_of_mean, False)), jax.tree.leaves(_own)):
    assert jnp.allclose(_a, _b, atol=1e-5)
for _f, _n in ((jax.grad(loss), 3), (mean_of_gradients, 6)):
    assert names(jaxviz.trace(on_devices(_f))(params, x, y)).count("psum_invariant") == _n
assert outside == ["right", "right"]

# %% [markdown]
# ## The missing sum that raises no error
#
# A gradient that differs between devices is worse than one that is too large. `pmap` with `out_axes=None`, and `shard_map` without types with
# `out_specs=P()`, are promises that all devices have the same value. They are not checked: you get the first device's value.

# %%
first = jax.jit(jax.grad(loss))(params, xs[0], ys[0])
by_pmap = jax.pmap(gradient_of_mean, "data", in_axes=over_shares, out_axes=None)(params, xs, ys)
print("first two examples:", first["b1"])
print("pmap, out_axes=None:", by_pmap["b1"])
print("all 16 examples:   ", right["b1"])
apart = train(on_devices(gradient_of_mean, check_vma=False))
print("trained so:", apart[-1], "rather than", losses["one device"][-1])

# %% [markdown]
# With types, a gradient that is not summed does not pass for one that is. `lax.pcast(…, to="varying")` casts the parameters *outside* of what is
# differentiated, so JAX adds no sum. But the promise is checked, as `vmap` checked it:


# %%
def not_summed(params, x, y):
    return jax.grad(loss)(lax.pcast(params, "data", to="varying"), x, y)


print(judged(not_summed))
try:
    on_devices(not_summed)(params, x, y)
    refused = False
except ValueError as error:
    refused = True
    print(next(line for line in str(error).splitlines() if line.startswith("out_specs is")))

# %% [markdown]
# That cast is also useful: it makes a function that is right with and without types.


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: untyped
def _is_wrong(check_vma):
    return lambda gradient: (
        "" if (found := judged(gradient, check_vma)) == "right" else f"With check_vma={check_vma} it is {found}."
    )


untyped = teach.rule(
    "Write the gradient on each device, so that it is right with types and without, and sums only three arrays over the devices.",
    teach.Check("is right under `check_vma=False`, as under `pmap`", _is_wrong(False)),
    teach.Check("is right under `check_vma=True`", _is_wrong(True)),
    teach.traces_to(
        lambda program: names(program).count("psum_invariant") == 3, "sums three arrays over the devices", params, x, y
    ).of(on_devices),
    hints=(
        "Without types `pmean(grad(loss))` is right. With types, which cast is missing?",
        "Cast `params` to varying before you differentiate: then JAX adds no sum, and the program is the same with and without types.",
        "`params = lax.pcast(params, 'data', to='varying')`",
    ),
    wrong=(
        jax.grad(loss),
        mean_of_gradients,
        gradient_of_mean,
        sum_of_gradients_of_mean,
        mean_of_gradients_of_mean,
        not_summed,
    ),
)
untyped


# %% tags=["answer"]
def my_gradient(params, x, y):
    return ...


untyped.answer(my_gradient)


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def summed_once(params, x, y):
    own = lax.pcast(params, "data", to="varying")
    return lax.pmean(jax.grad(loss)(own, x, y), "data")


untyped.solution(summed_once)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert jnp.allclose(by_pmap["b1"], first["b1"], atol=1e-6) and not jnp.allclose(by_pmap["b1"], right["b1"], atol=1e-3)
assert refused and judged(not_summed) == "different on each device"
assert apart[-1] > 0.1

# %% [markdown]
# ## The same under `vmap`
#
# An axis of `vmap` has no types either, so JAX adds no sum. With one `psum` around the gradient it no longer differs, and
# `out_axes=None` is accepted:

# %%
summing = jaxviz.vmap(lambda *share: lax.psum(jaxviz.grad(loss)(*share), "data"), over_shares, None, axis_name="data")
summed = jax.jit(summing)(params, xs, ys)
print(jax.tree.map(jnp.shape, summed), compared(summed))

# %% [markdown]
# This is the gradient of the *sum* of the eight losses, as was `jax.grad(loss)` under `shard_map`; with `pmean` it is the gradient of the mean. The sums in
# its program, again one for each array of parameters:

# %%
for _, e in jaxviz.trace(summing)(params, xs, ys).walk():
    if e.primitive.name == "psum":
        print(*(v.aval.str_short(short_dtypes=True) for v in (*e.invars, *e.outvars)), sep=" → ")

# %% [markdown]
# A loss that has its `pmean` already is the earlier mistake in another form. Under `vmap` the result of a collective counts as eight copies, each with
# a cotangent of its own, and the transpose of `pmean` adds those up: the gradient is that of the share's own loss, and not yet of the mean.
# With a `psum` around it, as if the loss were not divided by eight:

# %%
twice = jaxviz.vmap(
    lambda *share: lax.psum(jaxviz.grad(mean_loss)(*share), "data"), over_shares, None, axis_name="data"
)
doubly = jax.jit(twice)(params, xs, ys)
print(compared(doubly))

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert jax.tree.map(jnp.shape, summed) == jax.tree.map(jnp.shape, right)
assert compared(summed) == "8 times too large"
assert [e.primitive.name for _, e in jaxviz.trace(summing)(params, xs, ys).walk()].count("psum") == 3
assert compared(doubly) == "8 times too large"

# %% [markdown]
# ## A mean of means
#
# One mistake is left that no type can find. A batch of 13 examples is padded to 16, and a mask says which are real. The devices have unequal numbers of
# them, the last one none, so the mean of their means is not the mean.

# %%
real = (jnp.arange(16) < 13).astype(jnp.float32)


def masked_loss(params, x, y, real):
    h = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.sum(real * (h @ params["w2"] - y) ** 2) / jnp.sum(real)


def on_eight(f):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=(P(), P("data"), P("data"), P("data")), out_specs=P()))


print("real examples on each device:", [int(n) for n in real.reshape(8, 2).sum(1)])


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: masked
def _mean_of_masked(params, x, y, real):
    some = jnp.maximum(real, 1e-6)  # the last device has no example: 0 / 0
    return lax.pmean(masked_loss(params, x, y, some), "data")


def _squares(params, x, y, real):
    return jnp.sum(real * (jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"] - y) ** 2)


masked = teach.rule(
    "Write the loss on each device so that it, and its gradient with `jax.grad`, are those of `masked_loss` on one device. `check_vma` is as by default.",
    teach.computes(masked_loss, (params, x, y, real), (params, x, y, jnp.ones(16)))
    .of(on_eight)
    .saying("gives what masked_loss gives on one device"),
    teach.computes(jax.grad(masked_loss), (params, x, y, real))
    .of(lambda f: on_eight(jax.grad(f)))
    .saying("has the gradient of masked_loss on one device"),
    hints=(
        "What is divided, and by what? Sum both over the devices first.",
        "`lax.psum` of the masked squares, over `lax.psum` of the number of real examples.",
    ),
    wrong=(
        _mean_of_masked,
        lambda *args: lax.pmean(_squares(*args), "data") / lax.psum(jnp.sum(args[3]), "data"),
        lambda *args: _squares(*args) / lax.psum(jnp.sum(args[3]), "data"),
    ),
)
masked


# %% tags=["answer"]
def my_loss(params, x, y, real):
    h = jnp.tanh(x @ params["w1"] + params["b1"])
    squares = real * (h @ params["w2"] - y) ** 2
    return ...


masked.answer(my_loss)


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def loss_of_all(params, x, y, real):
    h = jnp.tanh(x @ params["w1"] + params["b1"])
    squares = real * (h @ params["w2"] - y) ** 2
    return lax.psum(jnp.sum(squares), "data") / lax.psum(jnp.sum(real), "data")


masked.solution(loss_of_all)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
_wanted = jax.grad(masked_loss)(params, x, y, real)
assert compared(on_eight(jax.grad(loss_of_all))(params, x, y, real), _wanted) == "right"
assert compared(on_eight(jax.grad(_mean_of_masked))(params, x, y, real), _wanted) == "wrong, by no clean factor"
assert real.reshape(8, 2).sum(1)[-1] == 0

# %% [markdown]
# ## The step, put right
#
# The first table again: with the mean in the loss and nothing else, or with parameters that vary and one mean of their gradient.

# %%
for name, gradient in {"grad(pmean(loss))": gradient_of_mean, "summed once": summed_once}.items():
    curve = train(on_devices(gradient))
    print(name.ljust(24), *(f"step {i + 1:3}: {curve[i]:<10.3g}" for i in (0, 1, 9, 199)))
    assert jnp.allclose(curve, losses["one device"], rtol=0.05)

# %% [markdown]
# ## What to remember
#
# - With types JAX sums the gradient of a value that does not vary: put the collective into the loss. Under `pmap` and `check_vma=False` it sums nothing:
#   average the gradient.
# - Compare the gradient with that of one device. If it differs between devices, it was not summed. If it is eight times too large, it is already a sum, and a mean over the devices
#   does not change that. If it is wrong by an odd factor, look for a mean of means.
#
# Next: [12 · the memory of a transformer](12_memory_of_a_transformer.ipynb).
