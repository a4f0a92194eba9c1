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
# # 7 · Which values should a checkpoint save, and who decides?
#
# A *policy* decides for each value in a checkpoint whether it is saved. Give names to values, and save those with some names; look at the older kinds of
# policies; then let a planner choose. XLA's figure is printed beside the saved bytes.
#
# The network is that of [6 · checkpoints](06_checkpoints.ipynb): four residual blocks in a scan, which take noise off signals. It takes 25 minutes. You need to know what a
# checkpoint keeps.

# %%
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

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


loss, each_block = in_layers(block), in_layers(jax.checkpoint(block))
rng = np.random.default_rng(0)
normal = lambda scale, *shape: jnp.asarray(scale * rng.normal(size=shape), jnp.float32)
params = {"widen": normal(0.2, 4, 32, 128), "narrow": normal(0.1, 4, 128, 32)}
clean = jnp.asarray(np.sin(rng.uniform(0.1, 0.5, (256, 1)) * np.arange(32)), jnp.float32)
noisy = clean + normal(0.3, 256, 32)
args = params, noisy, clean


def products_again(f, *args, argnums=0):
    """The products of matrices that the backward pass recomputes in each block."""
    backward = jaxviz.derive(f, *args, argnums=argnums).backward
    again = [e for _, e in backward.walk() if e.origin and e.origin.role == "recomputation"]
    return [e for e in again if e.primitive.name == "dot_general"]


def kib(nbytes):
    return f"{nbytes / 1024:,.0f} KiB"


def show(functions):
    print(f"{'':36}{'saved':>10}{'XLA on ' + jax.default_backend():>14}   products recomputed in a block")
    for name, f in functions.items():
        memory = jaxviz.memory(f, *args)
        saved = memory.derivation.residuals.nbytes_without_arguments
        print(f"{name:36}{kib(saved):>10}{kib(memory.xla.temporaries):>14}{len(products_again(f, *args)):4}")


show({"no checkpoint": loss, "a checkpoint around each block": each_block})

# %% [markdown]
# The second column has the temporaries of the compiled gradient. With the checkpoints the gradient takes a small part of the memory, and recomputes one of the two products of each block.
# A policy chooses something between the two.
#
# ## Names
#
# `checkpoint_name(value, "name")` returns the value, and gives it a name. A checkpoint whose policy is `save_only_these_names("name")` saves the values with that name, beside
# its inputs, and recomputes the others.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: named
first = jax.tree.map(lambda p: p[0], params)
KEPT = jax.checkpoint_policies.save_only_these_names("kept")


def _with_policy(written):
    return in_layers(jax.checkpoint(written, policy=KEPT))


def _products(written):
    found = products_again(_with_policy(written), *args)
    return f"In each block it recomputes {len(found)} of the two." if found else ""


def _before(p, x):
    wide = checkpoint_name(x @ p["widen"], "kept")
    return x + jax.nn.gelu(wide) @ p["narrow"]


def _behind(p, x):
    return x + checkpoint_name(jax.nn.gelu(x @ p["widen"]), "kept") @ p["narrow"]


named = teach.rule(
    'Write `my_block(p, x)`: `block` with the name "kept" on one value, such that a checkpoint with the policy `save_only_these_names("kept")` recomputes no product of matrices.',
    teach.computes(block, (first, noisy)),
    teach.keeps_at_most(672 * 1024, *args).of(_with_policy).saying("saves one value of 128 KiB in each block"),
    teach.Check("no product of matrices is recomputed", _products),
    hints=(
        "Which value must be there so that `gelu` can be differentiated without the product before it?",
        "Its derivative reads what goes into it, not what comes out.",
        '`checkpoint_name(x @ p["widen"], "kept")`',
    ),
    wrong=(block, _behind, lambda p, x: checkpoint_name(block(p, x), "kept"), lambda p, x: _behind(p, x) + 0 * _before(p, x)),
)
named


# %% tags=["answer"]
def my_block(p, x):
    wide = x @ p["widen"]
    return x + ...


named.answer(my_block)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
named.solution(_before)

# %%
def named_block(p, x):
    wide = checkpoint_name(x @ p["widen"], "before gelu")
    hidden = checkpoint_name(jax.nn.gelu(wide), "after gelu")
    return x + hidden @ p["narrow"]


def with_policy(policy):
    return in_layers(jax.checkpoint(named_block, policy=policy))


def saving(*names):
    return with_policy(jax.checkpoint_policies.save_only_these_names(*names))


show({", ".join(names): saving(*names) for names in (["before gelu"], ["after gelu"], ["before gelu", "after gelu"])})

# %% [markdown]
# "I save the activation, so the product before it is not recomputed" is true of the name before `gelu`, and false of the name after it, although both save
# the same number of bytes: the derivative of `gelu` reads its input, `wide`, and not its output.
#
# And with a typo, `saving("befor gelu")`?

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: slip
def _slip():
    size = jaxviz.residuals(saving("befor gelu"), *args).nbytes
    cases = {"nothing_saveable": each_block, "everything_saveable": loss, "the right name": saving("before gelu")}
    return next(name for name, f in cases.items() if jaxviz.residuals(f, *args).nbytes == size)


slip = teach.predict(
    "With a misspelt name, which policy has the same effect as `save_only_these_names`?",
    ["nothing_saveable", "everything_saveable", "the right name", "an error"],
    truth=_slip,
    because={
        "nothing_saveable": "No value has that name, so nothing is kept. The gradient is right, and slower than it was meant to be.",
        "everything_saveable": "The policy saves only values with one of its names.",
        "the right name": "A name is a string to JAX; it does not look for similar ones.",
        "an error": "A policy is asked about one equation at a time, and cannot know that none had the name. JAX raises no error and gives no warning.",
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
before, after = (jaxviz.residuals(saving(n), *args).nbytes_without_arguments for n in ("before gelu", "after gelu"))
assert before == after
assert len(products_again(saving("before gelu"), *args)) == 0
assert len(products_again(saving("after gelu"), *args)) == len(products_again(each_block, *args)) == 1
assert "'befor gelu'" in note and "'before gelu', 'after gelu'" in note
assert jaxviz.memory(each_block, *args).xla.temporaries < jaxviz.memory(loss, *args).xla.temporaries / 3

# %% [markdown]
# ## Every other block
#
# The body of a scan is one program: a name in it saves its value in all iterations, or in none. To save `wide` in every other block, the body needs two blocks.

# %%
def two_blocks(p, x):
    return block(p["second"], block(p["first"], x))


halves = {"first": jax.tree.map(lambda p: p[::2], params), "second": jax.tree.map(lambda p: p[1::2], params)}
paired = halves, noisy, clean

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: budget
def _too_many(written):
    found = products_again(in_layers(written), *paired)
    return f"For each pair of blocks it recomputes {len(found)}." if len(found) > 1 else ""


def same_gradient(f, g, *args):
    (value, gradient), wanted = (jax.jit(jax.value_and_grad(h))(*args) for h in (f, g))
    return jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-6), (value, gradient), wanted))


def _differs(written):
    is_same = same_gradient(in_layers(written), in_layers(two_blocks), *paired)
    return "" if is_same else "It is another function: compare it with `two_blocks`, line by line."


def _alternating(p, x):
    keeping = jax.checkpoint(_before, policy=KEPT)
    return jax.checkpoint(block)(p["second"], keeping(p["first"], x))


budget = teach.rule(
    "Write `my_pair(p, x)`: the same as `two_blocks`, so that the gradient of `in_layers(my_pair)` saves at most 416 KiB besides its arguments, and recomputes one product "
    "of matrices in each pair of blocks.",
    teach.keeps_at_most(416 * 1024, *paired).of(in_layers),
    teach.Check("its backward pass recomputes at most one product of matrices in each pair", _too_many),
    teach.Check("has the value and the gradient of two blocks", _differs),
    hints=(
        "With a checkpoint around each block, both recompute one product. Which value is to be saved in one of the two?",
        "Put a checkpoint around each of the two blocks; one of them has a policy.",
        '`jax.checkpoint(named_block, policy=jax.checkpoint_policies.save_only_these_names("before gelu"))` for one, and `jax.checkpoint(block)` for the other.',
    ),
    wrong=(
        two_blocks,
        jax.checkpoint(two_blocks),
        lambda p, x: jax.checkpoint(block)(p["second"], jax.checkpoint(block)(p["first"], x)),
        lambda p, x: jax.checkpoint(lambda p, x: block(p["second"], _before(p["first"], x)), policy=KEPT)(p, x),
        lambda p, x: jax.checkpoint(_before, policy=KEPT)(p["second"], jax.checkpoint(_before, policy=KEPT)(p["first"], x)),
        lambda p, x: _alternating(p, x) + 1,
    ),
)
budget


# %% tags=["answer"]
def my_pair(p, x):
    return ...


budget.answer(my_pair)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
budget.solution(_alternating)

# %% [markdown]
# ## Older versions: functions of equations
#
# JAX also has policies that need no names. `dots_saveable` saves products of matrices, and `nothing_saveable` is what a checkpoint without a policy does.
# `jaxviz.compare_policies` tries several in place of a function's own.

# %%
policies = jax.checkpoint_policies
compared = jaxviz.compare_policies(saving("before gelu"), *args, policies=("everything", "as it is", "dots_saveable", "nothing_saveable"))
compared

# %% [markdown]
# Such a policy is a function that JAX calls for each equation. Older programs have functions of their own; the one below saves what `tanh` gives, inside `gelu`. With the flag
# `jax_remat3`, which is off by default, `jax.checkpoint` is implemented anew, and JAX asks such a function only about products of matrices, convolutions and values with
# a name.

# %%
def saved_with(flag, policy):
    jax.config.update("jax_remat3", flag)
    try:
        return jaxviz.residuals(with_policy(policy), *args).nbytes_without_arguments
    finally:
        jax.config.update("jax_remat3", False)


def of_tanh(primitive, *types, **params):
    return primitive.name == "tanh"


by_name = policies.save_only_these_names("before gelu")
for name, policy in {"by name": by_name, "a function of equations": of_tanh, "no policy": None}.items():
    print(f"{name:26}{kib(saved_with(False, policy)):>10}, with jax_remat3:{kib(saved_with(True, policy)):>10}")

# %% [markdown]
# With the flag, the function has no effect, and JAX raises no error. A name means the same in both.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert compared["nothing_saveable"].nbytes == jaxviz.residuals(each_block, *args).nbytes
assert compared["dots_saveable"].nbytes == compared["as it is"].nbytes
assert saved_with(True, of_tanh) == saved_with(True, None) < saved_with(False, of_tanh)
assert saved_with(True, by_name) == saved_with(False, by_name) == before

# %% [markdown]
# ## Let the planner place them
#
# `jaxviz.plan_remat` looks for the fewest FLOPs within a budget of residuals, arguments included. It knows what each value takes to recompute, and finds no names in `loss`.

# %%
plan = jaxviz.plan_remat(loss, *args, budget="800 KiB")
plan

# %%
compared.plot()

# %% [markdown]
# Each point on the line is a plan. `plan.apply(loss)` is a plain JAX function.

# %%
planned = plan.apply(loss)
print("equal gradients:", same_gradient(planned, loss, *args))
show({"no checkpoint": loss, "planned": planned})

# %% [markdown]
# `plan.code()` is for your source: it puts a checkpoint around the body of the scan, which is around each block, and a name on the value that you named above. `prevent_cse=False`
# is for a checkpoint in a scan, where XLA cannot merge what is recomputed with what was computed before.

# %%
print(plan.code())

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert jaxviz.residuals(planned, *args).nbytes == plan.nbytes <= 800 * 1024
assert plan.nbytes == jaxviz.residuals(saving("before gelu"), *args).nbytes
assert same_gradient(planned, loss, *args)
assert plan.written.trade == plan.after
assert "jax.lax.scan(jax.checkpoint(" in plan.code() and 'checkpoint_name(x @ p["widen"]' in plan.code()

# %% [markdown]
# ## The same blocks in a Python loop
#
# Here each block is traced on its own, and under `jax.jit` both passes are one program without a loop. XLA may find that a recomputed value is the same as one that it already has, and merge the two.

# %%
def in_loop(one_block):
    def loss(params, noisy, clean):
        x = noisy
        for i in range(4):
            x = one_block(jax.tree.map(lambda p: p[i], params), x)
        return jnp.mean((x - clean) ** 2)

    return loss


written = {"scan": (loss, each_block), "Python loop": (in_loop(block), in_loop(jax.checkpoint(block)))}

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: undone
@functools.cache
def memory_of(form, how):
    """The memory of a form without checkpoints, if `how` is 0, or with them, if it is 1."""
    return jaxviz.memory(written[form][how], *args)


def temporaries(form, how):
    return memory_of(form, how).xla.temporaries


def _undone():
    halved = tuple(form for form in written if temporaries(form, 1) < temporaries(form, 0) / 2)
    return {(): "neither", ("Python loop",): "only the Python loop", ("scan",): "only the scan"}.get(halved, "both")


undone = teach.predict(
    "A checkpoint around each block leaves a small part of the residuals in either form. In which does it at least halve XLA's temporaries too, with JAX "
    f"{jax.__version__} on this {jax.default_backend()}?",
    ["neither", "only the Python loop", "only the scan", "both"],
    truth=_undone,
    because=lambda: "; ".join(
        f"{form}: {kib(temporaries(form, 0))} without, {kib(temporaries(form, 1))} with the checkpoints" for form in written
    )
    + ". XLA can merge two equations of one program, and may choose not to; it does not merge those of two loops.",
    hints=("Which of the two lets XLA see that a value is computed twice from the same inputs?",),
)
undone

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
undone.solution(_undone())

# %%
print(f"on {jax.default_backend():32}{'saved':>10}{'peak, model':>14}{'temporaries, XLA':>19}")
for form in written:
    for how, name in enumerate(("without", "with checkpoints")):
        memory = memory_of(form, how)
        saved = memory.derivation.residuals.nbytes_without_arguments
        print(f"{f'{form}, {name}':35}{kib(saved):>10}{kib(memory.peak_nbytes):>14}{kib(memory.xla.temporaries):>19}")

# %% [markdown]
# Compare a loop with a loop, and a scan with a scan: without checkpoints, the scan takes more, since it stacks all that it saves. What the loop takes depends on
# the version of JAX and on the backend; `jaxviz.memory(f, *args).compare()` says it in a sentence, on the machine that runs out of memory.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert temporaries("scan", 1) < temporaries("scan", 0) / 2
assert temporaries("scan", 0) > temporaries("Python loop", 0)
for form in written:
    assert memory_of(form, 1).derivation.residuals.nbytes_without_arguments < memory_of(form, 0).derivation.residuals.nbytes_without_arguments / 8

# %% [markdown]
# ## What to remember
#
# - Save what is expensive to recompute: a product, by a name before the nonlinearity, and not after it. A name
#   that is misspelt saves nothing, and raises no error.
# - A policy that is a function of equations is an older version: with `jax_remat3` JAX asks it about little. A name means the same in both.
# - A checkpoint goes around the body of a scan, by hand or by the planner, and a name in it holds in all iterations or in none.
# - Look at XLA's memory too: in a Python loop XLA may undo a checkpoint, and in a scan it does not.
#
# `jaxviz.policies(loss, *args)` shows the decision for each value in your own checkpoints.
#
# Next: loops and branches, in [8 · gradients of control flow](08_control_flow_gradients.ipynb). The same for a transformer is in
# [12 · the memory of a transformer](12_memory_of_a_transformer.ipynb).
