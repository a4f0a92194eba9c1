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
# # 5 · My gradient runs out of memory: where do I put the checkpoint?
#
# `jax.checkpoint` trades memory for time: a value is not kept for the backward pass but recomputed there. Where it stands decides how
# much is kept, how much is recomputed, and whether the peak moves at all. At the end you place one to fit a budget.
#
# The program is a small network that takes noise off signals: four residual blocks, each four times wider inside than outside. It takes
# 25 minutes. You need to know what a residual of a gradient is ([3 · partial evaluation and residuals](03_partial_evaluation_and_residuals.ipynb)).

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
# One line keeps most: the second of `block`. `gelu` is a formula of some ten steps, and its derivative multiplies by what several of them
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
# Of a function in a checkpoint nothing is kept that was computed inside, unless a *policy* says so. Its inputs are kept, and all else can
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
# What became of each value in a block:

# %%
jaxviz.policies(each_block, *args)

# %% [markdown]
# ## What happens inside: how a remat is transposed
#
# A checkpoint is an equation that holds a program, and JAX calls it *remat*. Here is one block alone, through the stages of its gradient.

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
# - The *forward* program has no remat any more: the block is computed as if there were no checkpoint, and only its inputs are handed on.
# - The *linear* program is one remat. Its body has equations of two roles: *recomputation*, which starts from the kept inputs, and *tangent*.
# - In the *backward* program only the tangents are transposed. The recomputation runs forwards, before the cotangents that read it.
#
# So recomputation is not a trick at run time. It is equations that you can read, in the program of the backward pass.

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
        "neither": "Nothing from inside of the block was kept, and the derivative of `gelu` needs `wide`.",
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
# ## Where it stands
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
    "Around the whole loss, the gradient keeps nothing but arguments. Which of the four has the lowest peak of memory, over both passes?",
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
# - *Kept* is what crosses from the forward to the backward pass. *Peak* is the most that is alive at any time, arguments and results included.
# - Around everything: least kept, most recomputed, and a peak that is still more than half of that without a checkpoint.
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
# ## Policies
#
# A policy is asked about each equation in the checkpoint: may its result be kept? `nothing_saveable` says no and is the default.
# `dots_saveable` says yes to products of matrices, which cost most to recompute. `jaxviz.compare_policies` sets several in the place
# of a function's own.

# %%
compared = jaxviz.compare_policies(each_block, *args, policies=("everything", "dots_saveable", "nothing_saveable"))
compared

# %% [markdown]
# `save_only_these_names` keeps what you gave a name with `checkpoint_name`. The first name below stands at what goes into `gelu`, the second
# at what comes out of it.

# %%
def named_block(p, x):
    wide = checkpoint_name(x @ p["widen"], "before gelu")
    hidden = checkpoint_name(jax.nn.gelu(wide), "after gelu")
    return x + hidden @ p["narrow"]


def saving(*names):
    policy = jax.checkpoint_policies.save_only_these_names(*names)
    return in_blocks(jax.checkpoint(named_block, policy=policy))


for names in (["before gelu"], ["after gelu"], ["before gelu", "after gelu"]):
    found = jaxviz.residuals(saving(*names), *args).nbytes_without_arguments
    print(f"{', '.join(names):24}{kib(found):>9}, {len(products_again(saving(*names), *args))} products recomputed")

# %% [markdown]
# "I keep the activation, so its product need not be recomputed" holds for one of the names and not for the other, at the same
# price in bytes. A name keeps one value, and not what derivatives make of the values before it: `gelu`'s derivative reads `wide`.
#
# And with a slip of the pen, `saving("befor gelu")`?

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: slip
def _slip():
    size = jaxviz.residuals(saving("befor gelu"), *args).nbytes
    cases = {"nothing_saveable": each_block, "everything_saveable": loss, "the right name": saving("before gelu")}
    return next(name for name, f in cases.items() if jaxviz.residuals(f, *args).nbytes == size)


slip = teach.predict(
    "With a misspelt name, what does `save_only_these_names` come to?",
    ["nothing_saveable", "everything_saveable", "the right name", "an error"],
    truth=_slip,
    because={
        "nothing_saveable": "No value has that name, so nothing is kept. The gradient is right, and slower than it was meant to be.",
        "everything_saveable": "The policy keeps only what has one of its names.",
        "the right name": "A name is a string to JAX; it looks for no other that is like it.",
        "an error": "A policy is asked about one equation at a time, and never learns that none had the name. JAX goes on without a word.",
    },
    hints=("The policy is asked of each equation: has it one of these names?", "What is kept where no equation has one?"),
)
slip

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
slip.solution("nothing_saveable")

# %% [markdown]
# JAX raises no error. jaxviz says it:

# %%
for note in jaxviz.policies(saving("befor gelu"), *args).notes:
    print(note)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert compared["nothing_saveable"].nbytes == jaxviz.residuals(each_block, *args).nbytes
before, after = (jaxviz.residuals(saving(n), *args).nbytes_without_arguments for n in ("before gelu", "after gelu"))
assert before == after
assert len(products_again(saving("before gelu"), *args)) == 0
assert len(products_again(saving("after gelu"), *args)) == 4
assert "'befor gelu'" in note and "'before gelu', 'after gelu'" in note

# %% [markdown]
# ## Place it yourself
#
# The gradient may keep 640 KiB beside its arguments, less than a quarter of what it keeps now, and no product of matrices may be recomputed.
#
# Change `my_loss` and whatever it calls; there is more than one answer.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: budget
def _products(written):
    found = products_again(written, *args)
    at = sorted({jaxviz.ir.origin.locate(e.source).line for e in found if e.source is not None})
    return f"It recomputes {len(found)}, of line {', '.join(map(str, at))} of their cell." if found else ""


def same_gradient(f):
    (value, gradient), wanted = jax.jit(jax.value_and_grad(f))(*args), jax.jit(jax.value_and_grad(loss))(*args)
    return jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-6), (value, gradient), wanted))


def _differs(written):
    return "" if same_gradient(written) else "It is another function: compare it with `loss`, line by line."


budget = teach.rule(
    "Write `my_loss`: the same loss, whose gradient keeps at most 640 KiB beside the arguments and recomputes no product of matrices.",
    teach.keeps_at_most(640 * 1024, *args),
    teach.Check("its backward pass recomputes no product of matrices", _products),
    teach.Check("has the value and the gradient of `loss`", _differs),
    hints=(
        "Which value must be kept so that `gelu` can be differentiated without its product? It is 128 KiB in each block.",
        "Put `jax.checkpoint(..., policy=...)` around each block. Two policies that you met above will do.",
        "`jax.checkpoint(block, policy=jax.checkpoint_policies.dots_saveable)`",
    ),
    wrong=(loss, each_block, jax.checkpoint(loss), places["around gelu alone"], saving("after gelu"), lambda p, x, y: jnp.mean(x - y)),
)
budget


# %% tags=["answer"]
def my_loss(params, noisy, clean):
    x = noisy
    for p in params:
        x = ...
    return jnp.mean((x - clean) ** 2)


budget.answer(my_loss)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
budget.solution(saving("before gelu"))

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert budget.answer(in_blocks(jax.checkpoint(block, policy=jax.checkpoint_policies.dots_saveable)))
assert 640 * 1024 < kept.nbytes_without_arguments / 4

# %% [markdown]
# ## Let the planner place it
#
# `jaxviz.plan_remat` looks for the fewest FLOPs within a budget of residuals, arguments included. Between your answer and a checkpoint
# around each block no policy of JAX's stands; the planner keeps one block's values and not another's.

# %%
plan = jaxviz.plan_remat(loss, *args, budget="560 KiB")
plan

# %%
compared.plot()

# %% [markdown]
# Each point on the line is a plan; a policy above or right of the line could do with fewer bytes or fewer FLOPs. `plan.apply(loss)` is a plain
# JAX function.

# %%
planned = plan.apply(loss)
print("equal gradients:", same_gradient(planned))
print("kept:", kib(kept.nbytes), "->", kib(jaxviz.residuals(planned, *args).nbytes))

# %% [markdown]
# `plan.code()` is for your source. There a name stands in a loop over the blocks, and keeps the value in each of them or in none: its
# first comment tells what that comes to.

# %%
print(plan.code())

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert jaxviz.residuals(planned, *args).nbytes == plan.nbytes <= 560 * 1024
yours = jaxviz.residuals(saving("before gelu"), *args).nbytes
assert compared["nothing_saveable"].nbytes < plan.nbytes < yours == compared["dots_saveable"].nbytes
assert same_gradient(planned)
assert plan.written.trade != plan.after
assert plan.written.trade.nbytes <= 560 * 1024

# %% [markdown]
# ## What XLA makes of it
#
# Residuals are what JAX hands from one pass to the other. Under `jax.jit` both passes are one program, and XLA decides what lies in memory when.
# It may find that a value recomputed is a value that it has already, and merge the two. Its own figure is what it takes for
# *temporaries*: `jaxviz.memory(...).xla`, from the compiled program.
#
# In a `jax.lax.scan` the forward loop ends before the backward loop starts, and what passes between them is an array of all iterations.

# %%
stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)


def in_scan(one_block):
    def loss(stacked, noisy, clean):
        x, _ = jax.lax.scan(lambda x, p: (one_block(p, x), None), noisy, stacked)
        return jnp.mean((x - clean) ** 2)

    return loss


written = {
    "Python loop": (in_blocks(block), each_block, args),
    "scan": (in_scan(block), in_scan(jax.checkpoint(block)), (stacked, noisy, clean)),
}

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: undone
@functools.cache
def compiled(name, how):
    """The gradient as XLA compiled it; `how` is 0 without checkpoints and 1 with them."""
    *functions, inputs = written[name]
    return jax.jit(jax.grad(functions[how])).lower(*inputs).compile()


def temporaries(name, how):
    return compiled(name, how).memory_analysis().temp_size_in_bytes


def _undone():
    halved = tuple(name for name in written if temporaries(name, 1) < temporaries(name, 0) / 2)
    return {(): "neither", ("Python loop",): "only the Python loop", ("scan",): "only the scan"}.get(halved, "both")


undone = teach.predict(
    "A checkpoint around each block leaves a small part of the residuals. In which form does it at least halve XLA's temporaries too, with JAX "
    f"{jax.__version__} on this {jax.default_backend()}?",
    ["neither", "only the Python loop", "only the scan", "both"],
    truth=_undone,
    because=lambda: "; ".join(
        f"{name}: {kib(temporaries(name, 0))} without, {kib(temporaries(name, 1))} with the checkpoints" for name in written
    )
    + ". XLA can merge two equations of one program, and may choose not to; it does not merge those of two loops.",
    hints=("Which of the two lets XLA see that a value is computed twice from the same inputs?",),
)
undone

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
undone.solution(_undone())

# %%
print(f"on {jax.default_backend():32}{'kept':>10}{'peak, model':>14}{'temporaries, XLA':>19}")
for name, (*functions, inputs) in written.items():
    for how, f in enumerate(functions):
        modelled = jaxviz.memory(f, *inputs)
        bytes_kept = modelled.derivation.residuals.nbytes_without_arguments
        label = f"{name}, {('without', 'with checkpoints')[how]}"
        print(f"{label:35}{kib(bytes_kept):>10}{kib(modelled.peak_nbytes):>14}{kib(temporaries(name, how)):>19}")

# %% [markdown]
# Whether XLA recomputed anything can be told from the FLOPs of what it compiled. It is not the same in each version of JAX.

# %%
plain, checkpointed = (compiled("Python loop", how).cost_analysis()["flops"] for how in (0, 1))
told = jaxviz.cost(each_block, *args).total.flops / plain_flops
print(f"Python loop: the checkpoints were to cost {told - 1:.0%} more FLOPs; compiled they cost {checkpointed / plain - 1:.0%} more.")
is_undone = checkpointed / plain - 1 < (told - 1) / 2
print("XLA merged what was to be recomputed: it undid them." if is_undone else "XLA does as it is told.")

# %% [markdown]
# The residuals and the model are the same on each backend; the last column and the last line are of this one alone. So ask for both figures, on
# the machine that runs out of memory: `jaxviz.memory(f, *args).compare()` and `jaxviz.compare_policies(..., xla=True)` say it in a sentence.
# Where XLA undoes a checkpoint, a loop over layers written as a scan is what makes it hold.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert temporaries("scan", 1) < temporaries("scan", 0) / 2
assert jaxviz.residuals(written["scan"][1], stacked, noisy, clean).nbytes < kept.nbytes / 4
assert jax.default_backend() != "cpu" or _undone() in ("only the scan", "both")

# %% [markdown]
# ## What to keep of this
#
# - Put a checkpoint around what is repeated, one layer at a time, and not around all of it. It keeps its inputs, and what is recomputed
#   are equations of the backward program.
# - A policy keeps what is dear to recompute: products, by `dots_saveable` or by name, before the nonlinearity and not behind it. A name
#   that is misspelt keeps nothing, and raises nothing.
# - What is kept, the peak of the model and what XLA takes are three figures. Look at the last one too: where XLA undoes a checkpoint, a scan
#   makes it hold.
#
# `jaxviz.policies(loss, *args)` tells what became of each value in a checkpoint of yours.
#
# Next: loops and branches, in [6 · gradients of control flow](06_control_flow_gradients.ipynb). The same for a transformer is in
# [9 · the memory of a transformer](09_memory_of_a_transformer.ipynb).
