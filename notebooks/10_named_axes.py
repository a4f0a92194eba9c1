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
# # 10 · What is the gradient of a sum over devices?
#
# One function runs on eight devices, or for eight shares of a batch under `vmap`, and a *collective* combines the values of all of them. A gradient goes through it by
# its transpose, which depends on whether the eight results are one value or eight copies.
#
# The program is a small network fitted to 16 points. It takes 20 minutes. You need `jax.vmap` and `jax.grad`, and should know what transposition is:
# [5 · transposition](05_transposition.ipynb). No accelerator is needed: the first cell makes eight devices of the CPU, before JAX starts.

# %%
import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)  # or XLA_FLAGS=--xla_force_host_platform_device_count=8

import jax.numpy as jnp
from jax import lax
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

mesh = Mesh(jax.devices(), ("data",))
print(jax.tree.map(jnp.shape, params))

# %% [markdown]
# ## `vmap` is a transform of programs
#
# Begin without devices. `vmap` runs nothing many times: it walks the program once, and replaces each equation by one that does the work for
# all examples, by the *batching rule* of its primitive. Here is the program for one device's share, and for all eight shares at once.

# %%
xs, ys = x.reshape(8, 2, 3), y.reshape(8, 2)
print(jaxviz.trace(loss)(params, xs[0], ys[0]))

# %%
over_shares = (None, 0, 0)  # in_axes: the parameters are the same for all, x and y are mapped over their first axis
batched = jaxviz.trace(jaxviz.vmap(loss, over_shares))(params, xs, ys)
print(batched)

# %% [markdown]
# An equation with a mapped operand gets a dimension of 8. One without is unchanged: the bias is still `f32[4]` when it is broadcast, and
# `w1` has no copies. So `vmap` knows for each value whether it differs along the axis.
#
# Now take the gradient first, and map it then.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: shape
shape = teach.predict(
    "`jax.vmap(jax.grad(loss), (None, 0, 0))(params, xs, ys)`: `w1` has the shape (3, 4). What is the shape of its gradient?",
    ["(3, 4)", "(8, 3, 4)", "(16, 3, 4)", "(8, 2, 3, 4)"],
    truth=lambda: str(jax.vmap(jax.grad(loss), over_shares)(params, xs, ys)["w1"].shape),
    because={
        "(3, 4)": "`w1` is not mapped, but its gradient is: it is computed from `x`, which is mapped. Nothing here says that the eight "
        "should be added.",
        "(8, 3, 4)": "One gradient for each share. The parameters are the same for all shares, but their cotangents differ.",
        "(16, 3, 4)": "There are 16 examples; how many calls of the gradient are mapped?",
        "(8, 2, 3, 4)": "Within a share, the mean adds up its two examples.",
    },
    hints=("What is computed from a mapped value is mapped.",),
)
shape

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
shape.solution("(8, 3, 4)")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
alone = jaxviz.trace(loss)(params, xs[0], ys[0])
assert [e.primitive for e in batched.equations][:1] == [e.primitive for e in alone.equations][:1]
assert "tanh" in {e.primitive.name for e in batched.equations}
assert {v.aval.shape for v in batched.invars} == {(4,), (3, 4), (8, 2, 3), (8, 2)}
bias = next(e for e in batched.equations if e.primitive.name == "broadcast_in_dim")
assert bias.invars[0].aval.shape == (4,) and 8 not in bias.outvars[0].aval.shape

# %% [markdown]
# ## A name for the axis, and collectives
#
# With `axis_name` the function can refer to the axis that it is mapped over. A *collective* computes from the values of all places along it:
# `psum` their sum, `pmean` their mean, `all_gather` all of them.


# %%
def collectives(x):
    return lax.psum(x, "data"), lax.pmean(x, "data"), lax.all_gather(x, "data")


print(jaxviz.trace(jaxviz.vmap(collectives, axis_name="data", out_axes=None))(jnp.arange(8.0)))

# %% [markdown]
# Under `vmap` the axis is a dimension of an array: `psum` sums over it, and an `all_gather` is the mapped array itself, with no equation. The
# results do not differ along the axis any more, so `out_axes=None` is accepted: *there is one, give me that*. For a value that does differ, it is
# refused:

# %%
try:
    jax.vmap(lambda x: x**2, axis_name="data", out_axes=None)(jnp.arange(8.0))
except ValueError as error:
    print(error)

# %% [markdown]
# On devices, too, JAX has to know which values differ.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
total, mean, gathered = jax.vmap(collectives, axis_name="data", out_axes=None)(jnp.arange(8.0))
assert total == 28 and mean == 3.5 and jnp.array_equal(gathered, jnp.arange(8.0))
mapped = jaxviz.trace(jaxviz.vmap(collectives, axis_name="data", out_axes=None))(jnp.arange(8.0))
assert not any("gather" in e.primitive.name for e in mapped.equations)

# %% [markdown]
# Two collectives make a batch norm: each share knows its own numbers, and all shares have to use one mean and one variance.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: normed
def _of_all(shares):
    return (shares - shares.mean()) / jnp.sqrt(shares.var() + 1e-5)


def _under_vmap(written):
    return lambda shares: jax.vmap(written, axis_name="data")(shares)


_shares = jnp.sin(jnp.arange(24.0)).reshape(8, 3) + jnp.arange(8.0)[:, None]

normed = teach.rule(
    "Write `my_norm(share)`: the share, minus the mean of all shares together, over the root of their variance plus 1e-5.",
    teach.computes(_of_all, (_shares,)).of(_under_vmap).saying("gives what one device gives that has all shares"),
    hints=(
        "The mean of all is `lax.pmean` of the means, since the shares are of one size.",
        "The variance of all is not the mean of the variances: subtract the mean of all first, then take the mean of the squares.",
    ),
    wrong=(
        lambda share: (share - lax.pmean(share.mean(), "data")) / jnp.sqrt(lax.pmean(share.var(), "data") + 1e-5),
        lambda share: (share - share.mean()) / jnp.sqrt(share.var() + 1e-5),
        lambda share: share - lax.pmean(share, "data"),
    ),
)
normed


# %% tags=["answer"]
def my_norm(share):
    mean = ...
    return ...


normed.answer(my_norm)


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def norm_of_all(share):
    off = share - lax.pmean(share.mean(), "data")
    return off / jnp.sqrt(lax.pmean(jnp.mean(off**2), "data") + 1e-5)


normed.solution(norm_of_all)

# %% [markdown]
# ## The transpose of `psum`
#
# `psum` is linear, so a gradient goes through it by its transpose. What is that transpose? Try it by hand first, on numbers $x_1 \ldots x_8$, one on each device.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: through
through = teach.predict(
    "`jax.pmap(jax.grad(lambda x: lax.psum(x, 'data')), 'data')(jnp.ones(8))` gives eight equal numbers. What is each?",
    truth=lambda: int(jax.pmap(jax.grad(lambda x: lax.psum(x, "data")), "data")(jnp.ones(8))[0]),
    because="Each device has a copy of the sum, and each `grad` begins with a cotangent of 1 for its own copy. `x` of one device is in all eight "
    "copies, so it gets a cotangent from each: it is the derivative of the sum of what all devices return.",
    hints=(
        "`grad` runs on each device. On how many devices is a result differentiated?",
        "1 would be the derivative of one total. Here eight devices each have a total of their own.",
    ),
)
through

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
through.solution(8)

# %% [markdown]
# The answer depends on what the sum *is*: copies with a cotangent each, or one value with one cotangent. `shard_map` knows the second kind.
# With `check_vma=True`, its default, the type of each value says along which axes it varies, as `vmap` knew: `{V:data}` in the program below.

# %% jupyter={"source_hidden": true}
# show_collectives(program) prints them with their types, and the rule that one came by
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


# %%
def transposed(collective, check_vma, out_specs):
    f = jax.shard_map(collective, mesh=mesh, in_specs=P("data"), out_specs=out_specs, check_vma=check_vma)
    return jaxviz.derive(f, jnp.ones(8))


for check_vma, spec in ((True, P()), (False, P("data"))):
    print(f"check_vma={check_vma}")
    derivation = transposed(lambda x: lax.psum(x, "data"), check_vma, spec)
    show_collectives(derivation.primal)
    show_collectives(derivation.backward)

# %% [markdown]
# - **With types**, `psum` takes what varies and gives what does not (`psum_invariant`). Its transpose gives the one cotangent to every device: `pvary`,
#   which computes nothing and only changes the type. So `x` of a device gets 1 here.
# - **Without** (`check_vma=False`, and `pmap`), all values have one type. The sum is eight copies, and the transpose of `psum` is `psum`: 8.
#
# Transposition goes both ways: the transpose of `pvary` is `psum_invariant`. And whoever reads an `all_gather` on each device sends a cotangent back
# to each share, so these are summed and distributed:

# %%
for check_vma in (True, False):
    print(f"check_vma={check_vma}")
    show_collectives(transposed(lambda x: lax.all_gather(x, "data", tiled=True), check_vma, P("data")).backward)


# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
def _through(collective, check_vma, spec):
    d = transposed(collective, check_vma, spec)
    return names(d.primal), names(d.backward)


assert _through(lambda x: lax.psum(x, "data"), True, P()) == (["psum_invariant"], ["pvary"])
assert _through(lambda x: lax.psum(x, "data"), False, P("data")) == (["psum"], ["psum"])
for check_vma in (True, False):
    _ones = jax.shard_map(
        jax.grad(lambda x: lax.psum(x[0], "data")),
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P("data"),
        check_vma=check_vma,
    )(jnp.ones(8))
    assert jnp.array_equal(_ones, jnp.ones(8) * (1 if check_vma else 8))
    _gather = _through(lambda x: lax.all_gather(x, "data", tiled=True), check_vma, P("data"))
    assert _gather == (["all_gather"], ["reduce_scatter"])

# %% [markdown]
# A collective that only moves values: `lax.ppermute(x, "data", pairs)` sends from the first to the second device of each pair. Its transpose sends back.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: ring
def _forwards(x):
    return jax.shard_map(lambda x: lax.ppermute(x, "data", [(i, (i + 1) % 8) for i in range(8)]), mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)


def _turned(written):
    return jax.shard_map(written, mesh=mesh, in_specs=P("data"), out_specs=P("data"))


ring = teach.rule(
    "On a ring of eight, each device sends its value to the next: `[(0, 1), (1, 2), … (7, 0)]`. Write what its transpose does with the cotangents.",
    teach.computes(lambda ct: jax.linear_transpose(_forwards, jnp.ones(8))(ct)[0], (jnp.arange(8.0),)).of(_turned).saying("gives what jax.linear_transpose gives"),
    hints=("A cotangent goes back to where the value came from.",),
    wrong=(lambda ct: lax.ppermute(ct, "data", [(i, (i + 1) % 8) for i in range(8)]), lambda ct: ct),
)
ring


# %% tags=["answer"]
def my_ring_back(ct):
    return ...


ring.answer(my_ring_back)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
ring.solution(lambda ct: lax.ppermute(ct, "data", [(i, (i - 1) % 8) for i in range(8)]))

# %%
import matplotlib.pyplot as plt

sent = {"x": jnp.arange(8.0), "psum(x)": jnp.full(8, 28.0), "around the ring": _forwards(jnp.arange(8.0)), "and back": _turned(
    lambda ct: lax.ppermute(ct, "data", [(i, (i - 1) % 8) for i in range(8)]))(_forwards(jnp.arange(8.0)))}  # fmt: skip
figure, ax = plt.subplots(figsize=(6, 2), layout="constrained")
ax.imshow([[float(v) for v in row] for row in sent.values()], cmap="Blues", vmax=40)
for i, row in enumerate(sent.values()):
    for j, value in enumerate(row):
        ax.text(j, i, f"{value:.0f}", ha="center", va="center")
ax.set(yticks=range(len(sent)), yticklabels=list(sent), xticks=range(8), xlabel="device")
plt.show()

# %% [markdown]
# ## What to remember
#
# - `vmap` replaces equations by batched ones. What does not differ along an axis is unchanged, and `vmap` and the types of `shard_map` know what does.
# - The transpose of `psum` is `pvary` where the sum is one value, and `psum` where each device has a copy. The transpose of `pvary` is a sum.
# - The transpose sends back what was sent.
#
# Next: a gradient that is eight times too large, in [11 · gradients on devices](11_gradients_on_devices.ipynb).
