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
# # 6 · Out of memory: where do I put the checkpoint?
#
# `jax.checkpoint` trades time for memory: values are not saved for the backward pass but recomputed there. Its place decides how
# much is saved, how much is recomputed, and whether the compiled gradient takes less memory at all.
#
# The program is a small network that takes noise off signals: four residual blocks in a `jax.lax.scan`, each four times wider inside than outside. It takes
# 25 minutes. You need to know what a residual of a gradient is ([4 · partial evaluation and residuals](04_partial_evaluation_and_residuals.ipynb)).

# %%
import functools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxviz
from jaxviz import teach


def block(p, x):
    wide = x @ p["widen"]
    return x + jax.nn.gelu(wide) @ p["narrow"]


def in_layers(one_block):
    """The loss of the network whose blocks are `one_block`."""

    def loss(params, noisy, clean):
        x, _ = jax.lax.scan(lambda x, p: (one_block(p, x), None), noisy, params)
        return jnp.mean((x - clean) ** 2)

    return loss


def kib(nbytes):
    return f"{nbytes / 1024:,.0f} KiB"


loss = in_layers(block)
rng = np.random.default_rng(0)
normal = lambda scale, *shape: jnp.asarray(scale * rng.normal(size=shape), jnp.float32)
params = {"widen": normal(0.2, 4, 32, 128), "narrow": normal(0.1, 4, 128, 32)}
clean = jnp.asarray(np.sin(rng.uniform(0.1, 0.5, (256, 1)) * np.arange(32)), jnp.float32)
noisy = clean + normal(0.3, 256, 32)
args = params, noisy, clean

memory = jaxviz.memory(loss, *args)
kept = memory.derivation.residuals
print("saved for the backward pass, as JAX says: ", kib(kept.nbytes_without_arguments))
print("alive at the peak, by jaxviz's model:     ", kib(memory.peak_nbytes))
print(f"temporaries of the compiled gradient, by XLA on {jax.default_backend()}:", kib(memory.xla.temporaries))

# %% [markdown]
# *Saved* is what one pass hands to the other. The *peak* is the largest amount alive at any time, with arguments and results. *Temporaries* is what XLA
# allocates for the compiled gradient besides its arguments and results. In a scan the three figures are close: the forward loop ends before
# the backward loop starts, and what is saved is stacked in arrays between the two. Which lines is it from?

# %%
for line in kept.by_line():
    print(f"{kib(line.nbytes):>9} in {line.count} residuals, made at line {line.location.line} in {line.location.function}")

# %% [markdown]
# One line saves most: the second of `block`. `gelu` is a formula of some ten steps, and its derivative multiplies by what several of them
# gave. Each of these is a value of 256 × 128 numbers, once for each block.

# %%
worst = kept.by_line()[0].location.line
inside_gelu = [r for r in kept if r.location.line == worst and r.aval.shape == (4, 256, 128)]
for r in inside_gelu:
    print(f"{r.type} {r.expression}")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert kept.by_line()[0].nbytes > 0.75 * kept.nbytes
assert "gelu" in block.__code__.co_names
assert sum(r.nbytes for r in inside_gelu) > 0.9 * kept.by_line()[0].nbytes
assert len(inside_gelu) > 3
assert 8 <= sum(e.outvars[0].aval.shape == (256, 128) for _, e in jaxviz.trace(jax.nn.gelu)(jnp.ones((256, 128))).walk()) <= 12
assert abs(memory.xla.temporaries / kept.nbytes_without_arguments - 1) < 0.25

# %% [markdown]
# ## A checkpoint around each block
#
# No value inside a checkpointed function is saved, unless a *policy* says so. Its inputs are saved, and everything else can
# be recomputed from them.

# %%
each_block = in_layers(jax.checkpoint(block))

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: carried
carried = teach.predict(
    "How many bytes does the gradient of `each_block` save besides its arguments? A batch of signals, `f32[256,32]`, is 32 KiB.",
    truth=lambda: jaxviz.residuals(each_block, *args).nbytes_without_arguments,
    tolerance=0.02,
    because=lambda: "They are "
    + ", ".join(
        f"`{r.expression}` ({r.type}, {kib(r.nbytes)})" for r in jaxviz.residuals(each_block, *args) if r.kind != "argument"
    )
    + ". The first is what each of the four blocks starts from. The other belongs to the mean of squares, which stands in no checkpoint.",
    hints=(
        "What goes into each of the four blocks? The scan stacks it, for the first block too.",
        "The parameters are arguments. And what does the derivative of a square multiply by?",
    ),
)
carried

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
carried.solution("160 KiB")

# %%
timeline = jaxviz.memory(each_block, *args)
print(kib(memory.xla.temporaries), "of temporaries without checkpoints,", kib(timeline.xla.temporaries), "with one around each block")

# %% [markdown]
# XLA does not hold all that `gelu` computes any more, only what belongs to one block at a time. A checkpoint can contain more than one block. To try that,
# let the scan go over pairs of blocks.

# %%
def two_blocks(p, x):
    return block(p["second"], block(p["first"], x))


pairs_of_blocks = {"first": jax.tree.map(lambda p: p[::2], params), "second": jax.tree.map(lambda p: p[1::2], params)}
paired = pairs_of_blocks, noisy, clean

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: pairs
def _differs(written):
    (value, gradient), wanted = (jax.jit(jax.value_and_grad(in_layers(f)))(*paired) for f in (written, two_blocks))
    same = jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-6), (value, gradient), wanted))
    return "" if same else "It is another function: compare it with `two_blocks`, line by line."


pairs = teach.rule(
    "Write `my_pair(p, x)`: the same as `two_blocks`, such that the gradient of `in_layers(my_pair)` saves at most 96 KiB besides its arguments.",
    teach.keeps_at_most(96 * 1024, *paired).of(in_layers),
    teach.Check("has the value and the gradient of two blocks", _differs),
    hints=("Two pairs carry an array of 32 KiB each, and the mean of squares saves a third.", "Put the function `two_blocks` into a checkpoint, as a whole."),
    wrong=(
        two_blocks,
        lambda p, x: jax.checkpoint(block)(p["second"], jax.checkpoint(block)(p["first"], x)),
        lambda p, x: jax.checkpoint(block)(p["first"], x),
    ),
)
pairs


# %% tags=["answer"]
def my_pair(p, x):
    return ...


pairs.answer(my_pair)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
pairs.solution(jax.checkpoint(two_blocks))

# %%
timeline_of_pairs = jaxviz.memory(in_layers(jax.checkpoint(two_blocks)), *paired)
print(f"{'':13}{'saved':>10}{'peak':>12}{'XLA':>12}")
for name, t in {"each block": timeline, "each pair": timeline_of_pairs}.items():
    print(f"{name:13}{kib(t.derivation.residuals.nbytes_without_arguments):>10}{kib(t.peak_nbytes):>12}{kib(t.xla.temporaries):>12}")

# %% [markdown]
# Less is saved, and more memory is taken. While the backward pass goes through a pair, the inside of two blocks is alive instead of that of one.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert timeline_of_pairs.derivation.residuals.nbytes_without_arguments < timeline.derivation.residuals.nbytes_without_arguments
assert timeline_of_pairs.peak_nbytes > 1.2 * timeline.peak_nbytes
assert timeline_of_pairs.xla.temporaries > 1.2 * timeline.xla.temporaries
assert timeline.xla.temporaries < memory.xla.temporaries / 3

# %% [markdown]
# The decision for each value in a block:

# %%
jaxviz.policies(each_block, *args)

# %% [markdown]
# ## What happens inside: how a remat is transposed
#
# A checkpoint is an equation that contains a program, and JAX calls it *remat*. Here is a single block, through the stages of its gradient.

# %%
first = jax.tree.map(lambda p: p[0], params)
one = jaxviz.derive(jax.checkpoint(block), first, noisy, argnums=(0, 1))


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
in_motion.question = "motion"
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
    found = products_again(jax.checkpoint(block), first, noisy, argnums=(0, 1))
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
    found = products_again(in_layers(written), *args)
    return f"In each block, the backward pass recomputes {len(found)} of the products of matrices." if found else ""


cheap = teach.rule(
    "Write `my_block(p, x)`: `block`, so that the gradient of the loss saves less than half of what it saved, and recomputes no product of matrices.",
    teach.computes(block, (first, noisy)),
    teach.keeps_at_most(kept.nbytes_without_arguments // 2, *args).of(in_layers),
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
    "around gelu alone": in_layers(lambda p, x: x + jax.checkpoint(jax.nn.gelu)(x @ p["widen"]) @ p["narrow"]),
}

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: place
@functools.cache
def timeline_of(name):
    return jaxviz.memory(places[name], *args)


def taken(name):
    t = timeline_of(name)
    return f"{kib(t.peak_nbytes)} at the peak of the model, {kib(t.xla.temporaries)} of temporaries by XLA"


place = teach.predict(
    "Around the whole loss, the gradient saves nothing but arguments. With which of the four does the compiled gradient take least memory?",
    list(places),
    truth=lambda: min(places, key=lambda name: timeline_of(name).xla.temporaries),
    because={
        "no checkpoint": lambda: f"All residuals are alive when the backward pass begins: {taken('no checkpoint')}.",
        "around the whole loss": lambda: "Before the first cotangent can go back through the last block, the forward pass of all four is "
        f"recomputed, and all that the derivatives need is saved then: {taken('around the whole loss')}. It is as much as without a checkpoint.",
        "around each block": lambda: f"{taken('around each block')}: what each block starts from, and what is inside of "
        "one block, recomputed and used up before the next one is.",
        "around gelu alone": lambda: f"{taken('around gelu alone')}: the values before and after each `gelu` are still kept.",
    },
    hints=("What is alive at the moment when the backward pass goes through the last block?",),
)
place

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
place.solution("around each block")

# %%
plain_flops = jaxviz.cost(loss, *args).total.flops
print(f"{'':24}{'saved':>10}{'peak':>12}{'XLA':>12}   extra FLOPs")
for name, f in places.items():
    extra = jaxviz.cost(f, *args).total.flops / plain_flops - 1
    t = timeline_of(name)
    saved = t.derivation.residuals.nbytes_without_arguments
    print(f"{name:24}{kib(saved):>10}{kib(t.peak_nbytes):>12}{kib(t.xla.temporaries):>12}{extra:13.1%}")
    plt.plot([step.total / 2**20 for step in t.steps], label=name)
plt.xlabel("equation: forward, then backward")
plt.ylabel("MiB alive (model)")
plt.legend(frameon=False);

# %% [markdown]
# - Around everything: nothing saved, everything recomputed, and no less memory. The forward pass is only run twice.
# - Around each block: one block's inside at a time. That is what a checkpoint is for.
# - Around `gelu` alone: almost no extra work, since it has no product in it, and about half of the memory.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
bytes_kept = {n: timeline_of(n).derivation.residuals.nbytes_without_arguments for n in places}
flops = {n: jaxviz.cost(f, *args).total.flops for n, f in places.items()}
peaks = {n: timeline_of(n).peak_nbytes for n in places}
temporaries = {n: timeline_of(n).xla.temporaries for n in places}
assert bytes_kept["around the whole loss"] == 0
assert max(flops, key=flops.get) == "around the whole loss"
assert abs(peaks["around the whole loss"] / peaks["no checkpoint"] - 1) < 0.01
assert temporaries["around the whole loss"] > 0.98 * temporaries["no checkpoint"]
assert sorted(places, key=peaks.get)[:2] == sorted(places, key=temporaries.get)[:2] == ["around each block", "around gelu alone"]
assert flops["around gelu alone"] < 1.03 * flops["no checkpoint"]
assert temporaries["around gelu alone"] < 0.6 * temporaries["no checkpoint"]
assert not products_again(places["around gelu alone"], *args)

# %% [markdown]
# ## What to remember
#
# - Put a checkpoint around what is repeated: around one layer, in a scan over the layers, and not around the whole loss. It keeps its inputs,
#   and what is recomputed are equations of the backward program.
# - Values that nothing reads are not recomputed; values that are cheap to recompute deserve their own checkpoint.
# - Look at what XLA takes, not only at what is saved: a checkpoint around everything saves nothing and takes as much memory.
#
# Next: checkpoints that save some values, in [7 · policies and plans](07_policies_and_plans.ipynb), which also shows what XLA does with layers in a Python loop. Loops and branches are
# [8 · gradients of control flow](08_control_flow_gradients.ipynb).
