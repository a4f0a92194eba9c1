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
# # 22 · Will my checkpoints still do what they do?
#
# JAX is getting a new implementation of `jax.checkpoint`. It is behind the flag `jax_remat3`, which is off by default, so you can find out today what it would change for
# your model. Your gradients stay the same. What is saved and what is computed twice may not, and no error tells you.
#
# The program is a transformer whose attention is sparse: for each word it looks for a threshold, in a loop. It takes 25 minutes. You need to know what a policy decides
# ([7 · policies and plans](07_policies_and_plans.ipynb)) and what a custom rule is ([9 · custom rules](09_custom_rules.ipynb)).

# %%
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

import jaxviz
from jaxviz import teach

STEPS = 24


def threshold(scores):
    """The t for which the sum of max(scores - t, 0) is 1, for each row, by bisection."""
    top = jnp.max(scores, -1, keepdims=True)

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) / 2
        is_above = jnp.sum(jnp.maximum(scores - middle, 0), -1, keepdims=True) > 1
        return jnp.where(is_above, middle, low), jnp.where(is_above, high, middle)

    return jax.lax.fori_loop(0, STEPS, halve, (top - 1, top))[0]


@jax.custom_vjp
def sparsemax(scores):
    return jnp.maximum(scores - threshold(scores), 0)


def sparsemax_fwd(scores):
    t = checkpoint_name(threshold(scores), "threshold")
    return jnp.maximum(scores - t, 0), scores > t


def sparsemax_bwd(is_chosen, ct):
    mean = jnp.sum(jnp.where(is_chosen, ct, 0), -1, keepdims=True) / jnp.sum(is_chosen, -1, keepdims=True)
    return (jnp.where(is_chosen, ct - mean, 0),)


sparsemax.defvjp(sparsemax_fwd, sparsemax_bwd)

# %% [markdown]
# The rule names the threshold, which is one number for each word: with it, the backward pass needs no bisection. The layers are in a scan, with a checkpoint around each.

# %%
def block_with(attend):
    def block(p, x):
        q, k, v = (x @ p[name] for name in "qkv")
        x = x + attend(q @ jnp.swapaxes(k, -1, -2)) @ v @ p["o"]
        wide = checkpoint_name(x @ p["up"], "wide")
        return x + jax.nn.gelu(wide) @ p["down"]

    return block


def in_layers(policy, attend=sparsemax):
    """The loss with a checkpoint around each layer, or with none if `policy` is "no checkpoint"."""

    def loss(params, x, y):
        block = block_with(attend)
        if policy != "no checkpoint":
            block = jax.checkpoint(block, policy=policy)
        x, _ = jax.lax.scan(lambda x, p: (block(p, x), None), x, params)
        return jnp.mean((x - y) ** 2)

    return loss


def kib(nbytes):
    return f"{nbytes / 1024:,.0f} KiB"


rng = np.random.default_rng(0)
normal = lambda *shape: jnp.asarray(rng.normal(size=shape) / shape[-2] ** 0.5, jnp.float32)
params = {**{name: normal(4, 32, 32) for name in "qkvo"}, "up": normal(4, 32, 128), "down": normal(4, 128, 32)}
args = params, normal(8, 64, 32), normal(8, 64, 32)  # 8 texts of 64 words

policies = jax.checkpoint_policies
named = policies.save_only_these_names("wide", "threshold")
for name, policy in {"no checkpoint": "no checkpoint", "no policy": None, "wide, threshold": named}.items():
    memory = jaxviz.memory(in_layers(policy), *args)
    saved = memory.derivation.residuals.nbytes_without_arguments
    print(f"{name:16}saved {kib(saved):>10}, XLA's temporaries on {jax.default_backend()} {kib(memory.xla.temporaries):>10}")


# %% [markdown]
# A third figure is how often the compiled gradient looks for the thresholds of a layer: once in the forward pass, and perhaps again in the backward pass. XLA notes at each loop how often it runs.

# %%
@functools.cache
def compiled(policy, attend, flag):
    """XLA's temporaries and the bisections of each layer, with `jax_remat3` on or off."""
    jax.config.update("jax_remat3", flag)
    try:
        gradient = jax.jit(jax.grad(in_layers(policy, attend))).lower(*args).compile()
    finally:
        jax.config.update("jax_remat3", False)
    loops = re.findall(r'known_trip_count[^}]*"n":"(\d+)"', gradient.as_text())
    return gradient.memory_analysis().temp_size_in_bytes, loops.count(str(STEPS))


@functools.cache
def saved_nbytes(policy, attend, flag):
    jax.config.update("jax_remat3", flag)
    try:
        return jaxviz.residuals(in_layers(policy, attend), *args).nbytes_without_arguments
    finally:
        jax.config.update("jax_remat3", False)


def row(policy, attend=sparsemax, flag=False):
    temporaries, bisections = compiled(policy, attend, flag)
    return f"{kib(saved_nbytes(policy, attend, flag)):>10}{kib(temporaries):>10}{bisections:3}"


print(f"{'':16}{'saved':>10}{'XLA':>10}  bisections")
for name, policy in {"no checkpoint": "no checkpoint", "no policy": None, "wide, threshold": named}.items():
    print(f"{name:16}{row(policy)}")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert [compiled(policy, sparsemax, False)[1] for policy in ("no checkpoint", None, named)] == [1, 2, 1]
assert compiled(named, sparsemax, False)[0] < compiled("no checkpoint", sparsemax, False)[0] / 2
_threshold = 4 * 8 * 64 * 4
assert saved_nbytes(named, sparsemax, False) - saved_nbytes(policies.save_only_these_names("wide"), sparsemax, False) == _threshold
assert jnp.allclose(jnp.sum(sparsemax(args[1]), -1), 1, atol=1e-5)

# %% [markdown]
# ## The same, with the flag
#
# These four policies are in use. The last is a function that JAX asks about each equation: save what `tanh` gives, inside of `gelu`.


# %%
def of_tanh(primitive, *types, **params):
    return primitive.name == "tanh"


in_use = {
    "no policy": None,
    "products": policies.dots_saveable,
    "wide, threshold": named,
    "a function": of_tanh,
}
for name, policy in in_use.items():
    print(f"{name:16}{row(policy)}")

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: changed
def _changed():
    found = [name for name, p in in_use.items() if saved_nbytes(p, sparsemax, True) != saved_nbytes(p, sparsemax, False)]
    return " and ".join(found) if found else "none of them"


changed = teach.predict(
    "With which of these policies does the gradient save other values, once the flag is on?",
    ["none of them", "a function", "wide, threshold", "wide, threshold and a function", "products and a function"],
    truth=_changed,
    because=lambda: "; ".join(f"{name}: {kib(saved_nbytes(p, sparsemax, False))} → {kib(saved_nbytes(p, sparsemax, True))}" for name, p in in_use.items())
    + ". With the flag, JAX asks a policy about products of matrices and names only, and not about `tanh`. And of names only about those that stand in the function: it does not look into the rule of a "
    "`custom_vjp`, where `threshold` has its name.",
    hints=("A policy is to become data: names, and not code that runs for each equation.", "One of the two names stands in another place than the other."),
)
changed

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
changed.solution("wide, threshold and a function")

# %%
for name, policy in in_use.items():
    print(f"{name:16}{row(policy)}   with jax_remat3: {row(policy, flag=True)}")

# %% [markdown]
# The function does nothing any more. The name `threshold` does nothing either, and the bisection runs twice. If you had measured the bytes alone, you would hardly have seen it.
#
# For a model of your own, `jaxviz.compare` takes a function and two sets of flags:

# %%
comparison = jaxviz.compare(in_layers(of_tanh), in_layers(of_tanh), *args, flags=({}, {"jax_remat3": True}))
print(comparison.summary)

# %% [markdown]
# In a test, `jaxviz.policies(loss, …).without_effect` lists the policies that are not asked. It looks into the new checkpoints of JAX 0.12 and later; in older versions compare the bytes.

# %%
jax.config.update("jax_remat3", True)
without_effect = jaxviz.policies(in_layers(of_tanh), *args).without_effect
jax.config.update("jax_remat3", False)
print(f"JAX {jax.__version__}:", [found.short for found in without_effect])

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
for _policy in (None, policies.dots_saveable):
    assert saved_nbytes(_policy, sparsemax, True) == saved_nbytes(_policy, sparsemax, False)
assert saved_nbytes(of_tanh, sparsemax, True) == saved_nbytes(None, sparsemax, True) < saved_nbytes(of_tanh, sparsemax, False)
assert saved_nbytes(named, sparsemax, True) == saved_nbytes(named, sparsemax, False) - _threshold
assert (compiled(named, sparsemax, False)[1], compiled(named, sparsemax, True)[1]) == (1, 2)
assert "saved bytes" in comparison.summary
assert bool(without_effect) == (jax.__version_info__ >= (0, 12))


def _gradient(flag):
    jax.config.update("jax_remat3", flag)
    found = jax.jit(jax.grad(in_layers(named)))(*args)
    jax.config.update("jax_remat3", False)
    return found


assert jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-6), _gradient(False), _gradient(True)))

# %% [markdown]
# ## A name where it is seen
#
# The name has to stand in the function around which the checkpoint is. So the threshold must be computed there, and given to the function with the rule:

# %%
@jax.custom_vjp
def above(scores, t):
    """max(scores - t, 0), differentiated as if `t` were the threshold of the scores."""
    return jnp.maximum(scores - t, 0)


def above_fwd(scores, t):
    return above(scores, t), scores > t


def above_bwd(is_chosen, ct):
    return *sparsemax_bwd(is_chosen, ct), jnp.zeros_like(ct[..., :1])


above.defvjp(above_fwd, above_bwd)

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: outside
scores = 3.0 * normal(4, 6, 9)


def _same_gradient(attend):
    ct = normal(4, 6, 9)
    try:
        found, wanted = (jax.vjp(f, scores)[1](ct)[0] for f in (attend, sparsemax))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return "" if jnp.allclose(found, wanted, atol=1e-5) else "Its gradient is another one."


def _searches(flag):
    def fails(attend):
        _, bisections = compiled(named, attend, flag)
        return f"{'With' if flag else 'Without'} the flag, each layer looks for its thresholds {bisections} times." if bisections != 1 else ""

    return fails


def _on_the_result(scores):
    return checkpoint_name(sparsemax(scores), "threshold")


def _differentiated(scores):
    return above(checkpoint_name(scores, "threshold"), threshold(jax.lax.stop_gradient(scores)))


outside = teach.rule(
    "Write `my_attention(scores)`: `sparsemax`, such that the policy `named` saves the thresholds, with the flag and without.",
    teach.computes(sparsemax, (scores,)),
    teach.Check("has the gradient of sparsemax", _same_gradient),
    teach.Check("the compiled gradient has one bisection in each layer, without the flag", _searches(False)),
    teach.Check("and with it", _searches(True)),
    hints=(
        "`above(scores, t)`, where `t` has its name.",
        "The bisection is not to be differentiated: `threshold(jax.lax.stop_gradient(scores))`.",
        '`t = checkpoint_name(threshold(jax.lax.stop_gradient(scores)), "threshold")`',
    ),
    wrong=(sparsemax, _on_the_result, _differentiated, lambda scores: above(scores, threshold(jax.lax.stop_gradient(scores)))),
)
outside


# %% tags=["answer"]
def my_attention(scores):
    t = ...
    return above(scores, t)


outside.answer(my_attention)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def named_outside(scores):
    t = checkpoint_name(threshold(jax.lax.stop_gradient(scores)), "threshold")
    return above(scores, t)


outside.solution(named_outside)

# %%
for name, attend in {"named in the rule": sparsemax, "named outside": named_outside}.items():
    print(f"{name:18}{row(named, attend)}   with jax_remat3: {row(named, attend, flag=True)}")

# %% [markdown]
# A name takes the place of the function of equations too: `tanh` is recomputed from `wide`, without the product before it. In the explorer, at the right, is what the backward pass recomputes
# with both names.

# %%
explorer = jaxviz.explore(in_layers(named, named_outside), *args)
explorer.stage, explorer.beside = "forward", "backward"
recomputed = [i for i, (_, e) in enumerate(explorer.derivation.backward.walk()) if e.origin and e.origin.role == "recomputation"]
explorer.selected = f"backward:{recomputed[0]}"
explorer

# %% [markdown]
# A list of names is data: you can keep it in a configuration, compare it, and store it with a run. What JAX makes of it depends on the version:

# %%
names = ["threshold", "wide"]  # as it would stand in a file
print(f"JAX {jax.__version__}:", re.sub(r" at 0x\w+", "", repr(policies.save_only_these_names(*names))))

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert saved_nbytes(named, named_outside, True) == saved_nbytes(named, named_outside, False) == saved_nbytes(named, sparsemax, False)
assert [compiled(named, named_outside, flag)[1] for flag in (False, True)] == [1, 1]


def _products_again(policy):
    again = [e for _, e in jaxviz.derive(in_layers(policy, named_outside), *args).backward.walk() if e.origin and e.origin.role == "recomputation"]
    return [e.primitive.name for e in again].count("dot_general")


assert _products_again(named) == _products_again(None) - 1

# %% [markdown]
# ## To the host instead
#
# A policy of names can also send a value to the memory of the host, and get it back in the backward pass. Nothing is computed again, and the memory of the device has room.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: offloading
@functools.cache
def residual_types(policy):
    residuals = jaxviz.residuals(in_layers(policy, named_outside), *args)
    return [r.type for r in residuals if r.kind != "argument"]


def _is_policy(policy):
    return "" if callable(policy) else f"It is {policy!r}, and no policy: `jax.checkpoint_policies` makes them."


def _moves(policy):
    on_host = [t for t in residual_types(policy) if "host" in t]
    return "" if on_host == ["4 × f32<host>[8,64,128]"] else f"On the host are {on_host}."


def _keeps(policy):
    return "" if "4 × f32[8,64,1]" in residual_types(policy) else f"What is saved: {residual_types(policy)}."


def _policy(saved, offloaded, src="device", dst="pinned_host"):
    return policies.save_and_offload_only_these_names(
        names_which_can_be_saved=saved, names_which_can_be_offloaded=offloaded, offload_src=src, offload_dst=dst
    )


offloading = teach.rule(
    "Write `my_policy`: it sends `wide` to the host, and keeps the thresholds on the device.",
    teach.Check("is a policy", _is_policy),
    teach.Check("wide goes to the host, and nothing else", _moves),
    teach.Check("the thresholds are saved", _keeps),
    hints=(
        "Look in `policies` for one that saves some names and offloads others.",
        "It takes `names_which_can_be_saved`, `names_which_can_be_offloaded`, both lists, `offload_src` and `offload_dst`.",
        'From "device" to "pinned_host".',
    ),
    wrong=(named, _policy(["wide"], ["threshold"]), _policy([], ["wide", "threshold"]), _policy([], ["wide"]), None),
)
offloading


# %% tags=["answer"]
my_policy = ...

offloading.answer(my_policy)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
offloading.solution(_policy(["threshold"], ["wide"]))

# %%
to_host = policies.save_and_offload_only_these_names(
    names_which_can_be_saved=["threshold"],
    names_which_can_be_offloaded=["wide"],
    offload_src="device",
    offload_dst="pinned_host",
)
print(residual_types(to_host))
for name, policy in {"saved": named, "to the host": to_host}.items():
    print(f"{name:12}{row(policy, named_outside)}   with jax_remat3: {row(policy, named_outside, flag=True)}")

# %% [markdown]
# `f32<host>` is a type with a place. XLA's figure does not fall on a CPU, where the memory of the device is that of the host, and nothing is moved: look at it on the device that you train on. And some
# versions ignore this policy with the flag. Yours:

# %%
is_ignored = saved_nbytes(to_host, named_outside, True) == saved_nbytes(None, named_outside, True)
print(f"JAX {jax.__version__}, with jax_remat3:", "ignored" if is_ignored else "not ignored")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
if jax.default_backend() == "cpu":
    assert compiled(to_host, named_outside, False)[0] == compiled(named, named_outside, False)[0]
assert is_ignored or saved_nbytes(to_host, named_outside, True) == saved_nbytes(named, named_outside, True)

# %% [markdown]
# ## The author decides
#
# So far, whoever writes `jax.checkpoint` decides. The author of `sparsemax` knows better: a threshold is always worth four bytes. Newer versions of JAX have a rule for that,
# `defremat`, which needs the flags `jax_remat3` and `jax_custom_vjp3`. It has three functions. The first runs in the forward pass, and returns the value and what to keep; the second runs in the backward pass, and makes of that and the
# arguments the value again and what the third needs; the third is the backward rule.

# %%
def keep(scores):
    t = threshold(scores)
    return jnp.maximum(scores - t, 0), t


def again(t, scores):
    return jnp.maximum(scores - t, 0), scores > t


def with_own_rule():
    jax.config.update("jax_custom_vjp3", True)
    f = jax.custom_vjp(lambda scores: jnp.maximum(scores - threshold(scores), 0))
    f.defremat(keep, again, sparsemax_bwd)
    return f


if has_rule := hasattr(jax.custom_vjp, "defremat"):
    own = with_own_rule()
    for name, policy in {"no policy": None, "wide": policies.save_only_these_names("wide")}.items():
        print(f"{name:12}{row(policy, sparsemax, flag=True)}   with defremat: {row(policy, own, flag=True)}")
    jax.config.update("jax_custom_vjp3", False)
else:
    print(f"JAX {jax.__version__} does not have it.")

# %% [markdown]
# With such a version, the thresholds are saved even where no policy is, and each layer looks for them once.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
if has_rule:
    assert compiled(None, own, True)[1] == 1 and compiled(None, sparsemax, True)[1] == 2
    assert saved_nbytes(None, own, True) - saved_nbytes(None, sparsemax, True) == _threshold

# %% [markdown]
# ## What to remember
#
# - Names mean the same with `jax_remat3` as without, if they stand in the function around which the checkpoint is, and so do the policies for products. A function of equations is not asked about anything else, and a name inside of a custom rule is not seen.
# - Nothing raises an error. Compare before you switch: `jaxviz.compare(loss, loss, …, flags=({}, {"jax_remat3": True}))`.
# - Offloading is a policy of names too. Measure it on your device and with your version.
# - With `defremat` the author of a function decides what is kept of it, whatever the policy.
#
# Next: [23 · a roofline of one step](23_roofline_of_a_step.ipynb).
