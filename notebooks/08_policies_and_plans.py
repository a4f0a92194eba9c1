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
# # 8 · Which values should a checkpoint save, and who decides?
#
# A *policy* decides for each value in a checkpoint whether it is saved. Choose one, write one, use names; then let a planner choose; and check whether
# XLA follows.
#
# The network is that of [7 · checkpoints](07_checkpoints.ipynb): four residual blocks that take noise off signals. It takes 25 minutes. You need to know what a
# checkpoint keeps.

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


# %% jupyter={"source_hidden": true}
# in_blocks(one_block), products_again(f, *args) and kib(nbytes), as in the notebook before
def in_blocks(one_block):
    """The loss, with something else in the place of `block`."""

    def loss(params, noisy, clean):
        x = noisy
        for p in params:
            x = one_block(p, x)
        return jnp.mean((x - clean) ** 2)

    return loss


each_block = in_blocks(jax.checkpoint(block))
gelu_alone = in_blocks(lambda p, x: x + jax.checkpoint(jax.nn.gelu)(x @ p["widen"]) @ p["narrow"])
kept = jaxviz.residuals(loss, *args)
plain_flops = jaxviz.cost(loss, *args).total.flops


def products_again(f, *args, argnums=0):
    """The lines of the products of matrices that the backward pass recomputes."""
    backward = jaxviz.derive(f, *args, argnums=argnums).backward
    again = [e for _, e in backward.walk() if e.origin and e.origin.role == "recomputation"]
    return [e for e in again if e.primitive.name == "dot_general"]


def kib(nbytes):
    return f"{nbytes / 1024:,.0f} KiB"

# %% [markdown]
# ## Policies
#
# A policy is called for each equation in the checkpoint: may its result be saved? `nothing_saveable` says no and is the default.
# `dots_saveable` says yes to products of matrices, which cost most to recompute. `jaxviz.compare_policies` tries several in place
# of a function's own.

# %%
compared = jaxviz.compare_policies(each_block, *args, policies=("everything", "dots_saveable", "nothing_saveable"))
compared

# %% [markdown]
# `save_only_these_names` saves values that you named with `checkpoint_name`. The first name below is on the input of `gelu`,
# the second on its result.

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
# price in bytes. A name saves one value, and not what derivatives compute from the values before it: `gelu`'s derivative reads `wide`.
#
# And with a typo, `saving("befor gelu")`?

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
        "everything_saveable": "The policy saves only values with one of its names.",
        "the right name": "A name is a string to JAX; it looks for no other that is like it.",
        "an error": "A policy is asked about one equation at a time, and never learns that none had the name. JAX goes on without a word.",
    },
    hints=("The policy is asked about each equation: does it have one of these names?", "What is saved if no equation has one?"),
)
slip

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
slip.solution("nothing_saveable")

# %% [markdown]
# jaxviz reports it:

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
# A policy is a function. JAX calls it with the primitive of an equation, the types of its inputs and its params, and it says whether the result may be kept.
# The types have a `shape`.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: policy
def _with(policy):
    return in_blocks(jax.checkpoint(block, policy=policy))


def _wide_only(prim, *types, **params):
    return prim.name == "dot_general" and types[0].shape[-1] == 32


policy = teach.rule(
    "Write `my_policy(prim, *types, **params)`, which saves the product `x @ p['widen']` in each block, and nothing else.",
    teach.keeps_at_most(4 * 128 * 1024 + 128 * 1024, *args).of(_with),
    teach.Check(
        "no product is recomputed, but for what the derivatives do not read",
        lambda written: f"It recomputes {len(found)}: the policy says no to them." if (found := products_again(_with(written), *args)) else "",
    ),
    teach.Check("says no to the other product", lambda written: "It would also save `gelu(wide) @ p['narrow']`."
                * bool(written(_narrow.primitive, *(v.aval for v in _narrow.invars), **_narrow.params))),
    hints=(
        "`prim.name` is 'dot_general' for a product of matrices.",
        "How do the inputs of the two products differ? `types[0].shape` is that of the left factor.",
    ),
    wrong=(
        jax.checkpoint_policies.dots_saveable,
        jax.checkpoint_policies.everything_saveable,
        jax.checkpoint_policies.nothing_saveable,
        lambda prim, *types, **params: prim.name == "dot_general" and types[0].shape[-1] == 128,
    ),
)
_narrow = [e for _, e in jaxviz.trace(block)(params[0], noisy).walk() if e.primitive.name == "dot_general"][1]
policy


# %% tags=["answer"]
def my_policy(prim, *types, **params):
    return ...


policy.answer(my_policy)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
policy.solution(_wide_only)

# %% [markdown]
# ## Place checkpoints yourself
#
# The gradient may save 640 KiB besides its arguments, less than a quarter of what it saves now, and no product of matrices may be recomputed.
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
    "Write `my_loss`: the same loss, whose gradient saves at most 640 KiB besides its arguments and recomputes no matrix product.",
    teach.keeps_at_most(640 * 1024, *args),
    teach.Check("its backward pass recomputes no product of matrices", _products),
    teach.Check("has the value and the gradient of `loss`", _differs),
    hints=(
        "Which value must be saved so that `gelu` can be differentiated without its product? It is 128 KiB in each block.",
        "Put `jax.checkpoint(..., policy=...)` around each block. Two policies that you met above will do.",
        "`jax.checkpoint(block, policy=jax.checkpoint_policies.dots_saveable)`",
    ),
    wrong=(loss, each_block, jax.checkpoint(loss), gelu_alone, saving("after gelu"), lambda p, x, y: jnp.mean(x - y)),
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
# ## Let the planner place them
#
# `jaxviz.plan_remat` looks for the fewest FLOPs within a budget of residuals, arguments included. Between your answer and a checkpoint
# around each block, JAX has no other policy; the planner can save a value in one block and not in another.

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
# `plan.code()` is for your source. There a name is in a loop over the blocks, and saves the value in all of them or in none: its
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
# ## What XLA does
#
# Residuals are what JAX hands from one pass to the other. Under `jax.jit` both passes are one program, and XLA decides what is in memory when. It
# may find that a recomputed value is the same as one that it already has, and merge the two. Its own figure is what it takes for
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
# The FLOPs of the compiled program show whether XLA recomputes anything. This depends on the version of JAX.

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
# ## What to remember
#
# - Save what is expensive to recompute: products, by `dots_saveable` or by name, before the nonlinearity and not behind it. A name
#   that is misspelt saves nothing, and raises no error.
# - The planner weighs every value by its bytes and its FLOPs; a name in a loop saves its value in all blocks or in none.
# - The saved bytes, the modelled peak and XLA's memory are three different figures. Look at the last one too: where XLA undoes a checkpoint, a scan
#   makes it hold.
#
# `jaxviz.policies(loss, *args)` shows the decision for each value in your own checkpoints.
#
# Next: loops and branches, in [9 · gradients of control flow](09_control_flow_gradients.ipynb). The same for a transformer is in
# [14 · the memory of a transformer](14_memory_of_a_transformer.ipynb).
