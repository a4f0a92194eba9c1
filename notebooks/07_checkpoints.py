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
# # 7 · My gradient runs out of memory: where do I put the checkpoint?
#
# `jax.checkpoint` trades time for memory: values are not saved for the backward pass but recomputed there. Its place decides how
# much is saved, how much is recomputed, and whether the peak falls at all.
#
# The program is a small network that takes noise off signals: four residual blocks, each four times wider inside than outside. It takes
# 25 minutes. You need to know what a residual of a gradient is ([5 · partial evaluation and residuals](05_partial_evaluation_and_residuals.ipynb)).

# %%
import functools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.ad_checkpoint import checkpoint_name

import jaxviz
from jaxviz import teach


def block(p, x):
    wide = x @ p["widen"]
    return x + jax.nn.gelu(wide) @ p["narrow"]


def loss(params, noisy, clean):
    x = noisy
    for p in params:
        x = block(p, x)
    return jnp.mean((x - clean) ** 2)


rng = np.random.default_rng(0)
normal = lambda scale, *shape: jnp.asarray(scale * rng.normal(size=shape), jnp.float32)
params = [{"widen": normal(0.2, 32, 128), "narrow": normal(0.1, 128, 32)} for _ in range(4)]
clean = jnp.asarray(np.sin(rng.uniform(0.1, 0.5, (256, 1)) * np.arange(32)), jnp.float32)
noisy = clean + normal(0.3, 256, 32)
args = params, noisy, clean

kept = jaxviz.residuals(loss, *args)
for line in kept.by_line():
    print(f"{line.nbytes / 1024:7.0f} KiB in {line.count:2} residuals, made at line {line.location.line} in {line.location.function}")

# %% [markdown]
# One line saves most: the second of `block`. `gelu` is a formula of some ten steps, and its derivative multiplies by what several of them
# gave. Each of these is a value of 256 × 128 numbers.

# %%
worst = kept.by_line()[0].location.line
inside_gelu = [r for r in kept if r.location.line == worst and r.aval.shape == (256, 128)]
for r in inside_gelu[: len(inside_gelu) // 4]:
    print(f"in the first block: {r.type} {r.expression}")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert kept.by_line()[0].nbytes > 0.75 * kept.nbytes
assert "gelu" in block.__code__.co_names
assert sum(r.nbytes for r in inside_gelu) > 0.9 * kept.by_line()[0].nbytes
assert len(inside_gelu) > 3 * 4
assert 8 <= sum(e.outvars[0].aval.shape == (256, 128) for _, e in jaxviz.trace(jax.nn.gelu)(jnp.ones((256, 128))).walk()) <= 12

# %% [markdown]
# ## A checkpoint around each block
#
# No value inside a checkpointed function is saved, unless a *policy* says so. Its inputs are saved, and everything else can
# be recomputed from them.

# %%
def in_blocks(one_block):
    """The loss, with something else in the place of `block`."""

    def loss(params, noisy, clean):
        x = noisy
        for p in params:
            x = one_block(p, x)
        return jnp.mean((x - clean) ** 2)

    return loss


each_block = in_blocks(jax.checkpoint(block))

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: carried
carried = teach.predict(
    "How many bytes does the gradient of `each_block` keep beside its arguments? A batch of signals, `f32[256,32]`, is 32 KiB.",
    truth=lambda: jaxviz.residuals(each_block, *args).nbytes_without_arguments,
    tolerance=0.02,
    because=lambda: "They are "
    + ", ".join(
        f"`{r.expression}` ({r.nbytes // 1024} KiB, made in {r.location.function.rpartition('.')[2]})"
        for r in jaxviz.residuals(each_block, *args)
        if r.kind != "argument"
    )
    + ". The first three are what a block starts from; the first block starts from an argument. The last belongs to the mean of squares, "
    "which stands in no checkpoint.",
    hints=(
        "What goes into each of the four blocks, and is it an argument of the loss?",
        "The parameters and `noisy` are arguments. And what does the derivative of a square multiply by?",
    ),
)
carried

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
carried.solution("128 KiB")

# %% [markdown]
# A checkpoint can contain more than one block.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: pairs
def _differs(written):
    (value, gradient), wanted = jax.jit(jax.value_and_grad(written))(*args), jax.jit(jax.value_and_grad(loss))(*args)
    same = jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-6), (value, gradient), wanted))
    return "" if same else "It is another function: compare it with `loss`, line by line."


def _first_two(p, q, x):
    return block(q, block(p, x))


def _in_pairs(params, noisy, clean):
    x = jax.checkpoint(_first_two)(params[0], params[1], noisy)
    x = jax.checkpoint(_first_two)(params[2], params[3], x)
    return jnp.mean((x - clean) ** 2)


pairs = teach.rule(
    "Write `my_loss`: the same loss, with at least one checkpoint, whose gradient saves at most 64 KiB besides its arguments, and more than nothing.",
    teach.keeps_at_most(64 * 1024, *args),
    teach.Check(
        "saves something", lambda f: "" if jaxviz.residuals(f, *args).nbytes_without_arguments else "It saves nothing: all four blocks are in one checkpoint."
    ),
    teach.Check("has the value and the gradient of `loss`", _differs),
    hints=("Four blocks carry three arrays of 32 KiB from one to the next. Which of them can be left out?", "Put two blocks into a function, and a checkpoint around that."),
    wrong=(loss, each_block, jax.checkpoint(loss), lambda p, x, y: jnp.mean((jax.checkpoint(block)(p[0], x) - y) ** 2)),
)
pairs


# %% tags=["answer"]
def my_loss(params, noisy, clean):
    x = ...
    return jnp.mean((x - clean) ** 2)


pairs.answer(my_loss)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
pairs.solution(_in_pairs)

# %% [markdown]
# The decision for each value in a block:

# %%
jaxviz.policies(each_block, *args)

# %% [markdown]
# ## What happens inside: how a remat is transposed
#
# A checkpoint is an equation that contains a program, and JAX calls it *remat*. Here is a single block, through the stages of its gradient.

# %%
one = jaxviz.derive(jax.checkpoint(block), params[0], noisy, argnums=(0, 1))


def roles(stage):
    found = {}
    for _, e in getattr(one, stage).walk():
        name = "the remat itself" if e.programs else e.origin.role if e.origin else "as written"
        found[name] = found.get(name, 0) + 1
    return found


for stage in ("primal", "forward", "linear", "backward"):
    print(f"{stage:9}", ", ".join(f"{n} {role}" for role, n in roles(stage).items()))

# %% [markdown]
# - The *forward* program has no remat any more: the block is computed as if there were no checkpoint, and only its inputs are saved.
# - The *linear* program is one remat. Its body has equations of two roles: *recomputation*, which starts from the saved inputs, and *tangent*.
# - In the *backward* program only the tangents are transposed. The recomputation runs forwards, before the cotangents that read it.
#
# So recomputation is not a run-time trick. It consists of equations that you can read in the program of the backward pass.

# %%
explorer = jaxviz.explore(one)
explorer.stage, explorer.beside, explorer.selected = "forward", "backward", "backward:1"
explorer

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert set(roles("forward")) == {"primal"}
assert set(roles("linear")) == {"the remat itself", "recomputation", "tangent"}
assert {r.kind for r in one.residuals} == {"argument"}
inside = [e.origin.role for _, e in one.backward.walk() if not e.programs]
assert "tangent" not in inside
assert inside.index("cotangent") == inside.count("recomputation")

# %% [markdown]
# In motion (press Space): the values that the block computes in the forward pass are freed when it returns. In the backward pass, recomputation fills the
# dashed bin with them again, and the cotangents empty it.

# %%
in_motion = jaxviz.explore(one)
in_motion.motion = True
in_motion

# %% [markdown]
# The block has two products of matrices, and they are nearly all of its work. "The forward pass is run again" would mean both.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: again
def products_again(f, *args, argnums=0):
    """The lines of the products of matrices that the backward pass recomputes."""
    backward = jaxviz.derive(f, *args, argnums=argnums).backward
    again = [e for _, e in backward.walk() if e.origin and e.origin.role == "recomputation"]
    return [e for e in again if e.primitive.name == "dot_general"]


WIDEN, NARROW = "x @ p['widen']", "gelu(wide) @ p['narrow']"


def _again():
    found = products_again(jax.checkpoint(block), params[0], noisy, argnums=(0, 1))
    wide = [e.outvars[0].aval.shape == (256, 128) for e in found]
    return {(): "neither", (True,): f"only {WIDEN}", (False,): f"only {NARROW}"}.get(tuple(wide), "both")


again = teach.predict(
    "Which of its two products does the backward pass of one checkpointed block recompute?",
    ["neither", f"only {WIDEN}", f"only {NARROW}", "both"],
    truth=_again,
    because={
        "neither": "Nothing inside the block was saved, and the derivative of `gelu` needs `wide`.",
        f"only {WIDEN}": f"The derivatives of `gelu` and of the second product read what follows from `wide`. The result of `{NARROW}` is read "
        "by no derivative, only by a sum, so JAX drops it: dead code.",
        f"only {NARROW}": "Who would read its result? It goes into a sum, and the derivative of a sum needs no value.",
        "both": "Look for a reader of each product's result among the derivatives. What nobody reads is dead code, and JAX drops it.",
    },
    hints=(
        "Which derivative reads the result of the first product, and which that of the second?",
        "The result of the second is only added to `x`.",
    ),
)
again

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
again.solution(f"only {WIDEN}")

# %% [markdown]
# What if no product may be recomputed?

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: cheap
def _products(written):
    found = products_again(in_blocks(written), *args)
    return f"The backward pass recomputes {len(found)} products of matrices." if found else ""


cheap = teach.rule(
    "Write `my_block(p, x)`: `block`, so that the gradient of the loss saves less than half of what it saved, and recomputes no product of matrices.",
    teach.computes(block, (params[0], noisy)),
    teach.keeps_at_most(kept.nbytes_without_arguments // 2, *args).of(in_blocks),
    teach.Check("recomputes no product of matrices", _products),
    hints=("Most of the residuals are inside one call.", "A checkpoint takes a function: `jax.checkpoint(jax.nn.gelu)`."),
    wrong=(block, jax.checkpoint(block), lambda p, x: x + jax.nn.relu(x @ p["widen"]) @ p["narrow"]),
)
cheap


# %% tags=["answer"]
def my_block(p, x):
    return x + ...


cheap.answer(my_block)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
cheap.solution(lambda p, x: x + jax.checkpoint(jax.nn.gelu)(x @ p["widen"]) @ p["narrow"])

# %% [markdown]
# ## Where to put it
#
# "More in the checkpoint, less memory" is half of the truth. Four places for it:

# %%
places = {
    "no checkpoint": loss,
    "around the whole loss": jax.checkpoint(loss),
    "around each block": each_block,
    "around gelu alone": in_blocks(lambda p, x: x + jax.checkpoint(jax.nn.gelu)(x @ p["widen"]) @ p["narrow"]),
}

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: place
def kib(nbytes):
    return f"{nbytes / 1024:,.0f} KiB"


@functools.cache
def timeline(name):
    return jaxviz.memory(places[name], *args)


place = teach.predict(
    "Around the whole loss, the gradient saves nothing but arguments. Which of the four has the lowest peak of memory, over both passes?",
    list(places),
    truth=lambda: min(places, key=lambda name: timeline(name).peak_nbytes),
    because={
        "no checkpoint": "All residuals are alive when the backward pass begins.",
        "around the whole loss": lambda: "Before the first cotangent can go back through the last block, the forward pass of all four is "
        f"recomputed, and all that the derivatives need is alive at once: {kib(timeline('around the whole loss').peak_nbytes)}. Nothing "
        "was kept, but the peak is only put off.",
        "around each block": lambda: f"{kib(timeline('around each block').peak_nbytes)}: what each block starts from, and what is inside of "
        "one block, recomputed and used up before the next one is.",
        "around gelu alone": lambda: f"{kib(timeline('around gelu alone').peak_nbytes)}: the values before and after each `gelu` are still kept.",
    },
    hints=("What is alive at the moment when the backward pass goes through the last block?",),
)
place

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
place.solution("around each block")

# %%
plain_flops = jaxviz.cost(loss, *args).total.flops
print(f"{'':24}{'kept':>10}{'peak':>12}   extra FLOPs")
for name, f in places.items():
    extra = jaxviz.cost(f, *args).total.flops / plain_flops - 1
    kept_here = timeline(name).derivation.residuals.nbytes_without_arguments
    print(f"{name:24}{kib(kept_here):>10}{kib(timeline(name).peak_nbytes):>12}{extra:13.1%}")
    plt.plot([step.total / 2**20 for step in timeline(name).steps], label=name)
plt.xlabel("equation: forward, then backward")
plt.ylabel("MiB alive (model)")
plt.legend(frameon=False);

# %% [markdown]
# - *Kept* is what is saved between the passes. *Peak* is the largest amount alive at any time, including arguments and results.
# - Around everything: least saved, most recomputed, and a peak that is still more than half of that without a checkpoint.
# - Around each block: the teeth of a comb. One block's inside at a time is what a checkpoint is for.
# - Around `gelu` alone: almost no extra work, since it has no product in it, and a good part of the memory.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
bytes_kept = {n: timeline(n).derivation.residuals.nbytes_without_arguments for n in places}
flops = {n: jaxviz.cost(f, *args).total.flops for n, f in places.items()}
peaks = {n: timeline(n).peak_nbytes for n in places}
assert bytes_kept["around the whole loss"] == 0
assert max(flops, key=flops.get) == "around the whole loss"
assert 0.6 < peaks["around the whole loss"] / peaks["no checkpoint"] < 0.9
assert flops["around gelu alone"] < 1.03 * flops["no checkpoint"]
assert peaks["around gelu alone"] < 0.6 * peaks["no checkpoint"]
assert not products_again(places["around gelu alone"], *args)

# %% [markdown]
# ## What to remember
#
# - Put a checkpoint around what is repeated, one layer at a time, and not around all of it. It keeps its inputs, and what is recomputed
#   are equations of the backward program.
# - Values that nothing reads are not recomputed; values that are cheap to recompute deserve their own checkpoint.
# - The saved bytes and the peak are two different figures. One checkpoint around everything lowers the first, but hardly the second.
#
# Next: checkpoints that save some values, in [8 · policies and plans](08_policies_and_plans.ipynb). Loops and branches are
# [9 · gradients of control flow](09_control_flow_gradients.ipynb).
