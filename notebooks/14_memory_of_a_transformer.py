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
# # 14 · Which tensor of my transformer takes the memory?
#
# A training step holds parameters, the optimizer's state, gradients, and the residuals between the two passes. Here you find which of these
# is largest in a small transformer, which tensor in it, and which rule saves it.
#
# It takes 25 minutes. You need residuals ([5 · partial evaluation and residuals](05_partial_evaluation_and_residuals.ipynb)) and checkpoints
# ([7 · checkpoints](07_checkpoints.ipynb)).

# %%
import functools
import textwrap

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxviz
from jaxviz import teach

WIDTH, HEADS, WORDS, LAYERS = 32, 4, 64, 3


def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-5)


def weigh(scores, causal):
    return jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))


def attention(p, x, weigh=weigh):
    batch, time, _ = x.shape
    q, k, v = jnp.moveaxis((x @ p["qkv"]).reshape(batch, time, 3, HEADS, WIDTH // HEADS), 2, 0)
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / (WIDTH // HEADS) ** 0.5
    weights = weigh(scores, jnp.tril(jnp.ones((time, time), bool)))
    return jnp.einsum("bhts,bshd->bthd", weights, v).reshape(batch, time, WIDTH) @ p["out"]


def mlp(p, x):
    return jax.nn.relu(x @ p["up"]) @ p["down"]


# %% [markdown]
# The layers are in a scan. Each part has a scope, so that its residuals can be summed by part.

# %%
def loss_with(attention):
    """The loss of the transformer, with this attention in it."""

    def layer(x, p):
        with jax.named_scope("attention"):
            x = x + attention(p, norm(x))
        with jax.named_scope("mlp"):
            x = x + mlp(p, norm(x))
        return x, None

    def loss(params, tokens):
        x, _ = jax.lax.scan(layer, params["embed"][tokens[:, :-1]], params["layers"])
        with jax.named_scope("head"):
            log_p = jax.nn.log_softmax(norm(x) @ params["embed"].T)
            return -jnp.mean(jnp.take_along_axis(log_p, tokens[:, 1:, None], axis=-1))

    return loss


loss = loss_with(attention)
rng = np.random.default_rng(0)
normal = lambda *shape: jnp.asarray(0.1 * rng.normal(size=shape), jnp.float32)
shapes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
params = {"embed": normal(WORDS, WIDTH), "layers": {n: normal(LAYERS, *s) for n, s in shapes.items()}}
tokens = jnp.asarray(rng.integers(0, WORDS, (4, 129)), jnp.int32)

memory = jaxviz.memory(loss, params, tokens)
kept = memory.derivation.residuals
kept.plot()

# %% [markdown]
# ## The bill
#
# Of one training step with Adam, which has two moments for each parameter:

# %%
def size(tree):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def kib(nbytes):
    return f"{nbytes / 1024:,.0f} KiB"


print("parameters       ", kib(size(params)))
print("Adam's moments   ", kib(2 * size(params)))
print("gradients        ", kib(size(params)))
print("residuals beside ", kib(kept.nbytes_without_arguments))
for part in kept.by_scope():
    print(f"   {part.name:18}{kib(part.nbytes):>10}")
print("the compiled gradient, besides its arguments and results: ", kib(memory.xla.temporaries), f"of temporaries by XLA on {jax.default_backend()}")

# %% [markdown]
# "My model has so many parameters, so it needs that much memory" is off by far here. Residuals grow with the *batch and the sequence*, and
# parameters do not. XLA's own figure, which also counts what is alive within one layer, is close to what is saved: the layers are in a scan, whose backward loop begins when the
# forward loop has saved everything.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert kept.nbytes_without_arguments > 10 * 4 * size(params)
assert abs(memory.xla.temporaries / kept.nbytes_without_arguments - 1) < 0.25
assert jaxviz.derive(loss, params, tokens).check()

# %% [markdown]
# Attention leads. But of all its tensors, which? The sequence is 128 long, the batch 4, and there are 4 heads.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: eater
KINDS = {
    "the queries, keys and values": (4, 128, 4, 8),
    "the scores and what is made of them, time × time": (4, 4, 128, 128),
    "what goes into the norms and comes out": (4, 128, 32),
    "the hidden layer of the MLP": (4, 128, 128),
}
by_kind = {kind: sum(r.nbytes for r in kept if r.aval.shape in (shape, (LAYERS, *shape))) for kind, shape in KINDS.items()}

eater = teach.predict(
    "Which of these takes most of the residuals?",
    list(KINDS),
    truth=lambda: max(by_kind, key=by_kind.get),
    because=lambda: "; ".join(f"{kind}: {kib(n)}" for kind, n in sorted(by_kind.items(), key=lambda item: -item[1])) + ".",
    hints=("How many numbers has one of each?", "4 × 4 × 128 × 128, beside 4 × 128 × 128 and 4 × 128 × 32."),
)
eater

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
eater.solution("the scores and what is made of them, time × time")

# %% [markdown]
# ## What grows with the sequence
#
# A type is enough to ask: no array of that length is made.

# %%
@functools.cache
def by_length(time):
    found = jaxviz.residuals(loss, params, jax.ShapeDtypeStruct((4, time + 1), jnp.int32))
    square = sum(r.nbytes for r in found if r.aval.shape[-2:] == (time, time))
    return square, found.nbytes_without_arguments - square


lengths = [16, 48, 160, 500]
square, rest = zip(*map(by_length, lengths))
plt.loglog(lengths, np.array(square) / 2**20, "o-", label="time × time")
plt.loglog(lengths, np.array(rest) / 2**20, "o-", label="all else")
plt.xticks(lengths, lengths)
plt.minorticks_off()
plt.xlabel("sequence length")
plt.ylabel("MiB of residuals")
plt.legend(frameon=False);

# %% [markdown]
# On these axes a power is a straight line, and its exponent is the slope: that of one line is twice that of the other.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: factor
def _factor():
    return sum(by_length(512)) / sum(by_length(256))


factor = teach.predict(
    "By what factor do all residuals together grow from 256 positions to 512? Within 3 % is right.",
    truth=_factor,
    tolerance=0.03,
    because=lambda: f"The square part has a factor of {by_length(512)[0] / by_length(256)[0]:.2f}, the rest one of "
    f"{by_length(512)[1] / by_length(256)[1]:.2f}, and at 256 positions the square part is {by_length(256)[0] / sum(by_length(256)):.0%} of the whole.",
    hints=(
        "One part grows by 4, the other by 2.",
        lambda: f"At 256 positions they are {kib(by_length(256)[0])} and {kib(by_length(256)[1])}.",
    ),
)
factor

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
factor.solution(3.61)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
slope = lambda sizes: np.log(sizes[-1] / sizes[0]) / np.log(lengths[-1] / lengths[0])
assert abs(slope(square) - 2) < 0.02
assert abs(slope(rest) - 1) < 0.02

# %% [markdown]
# Now without jaxviz, as one would estimate it for a model that does not exist yet.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: formula
def _kept_for(batch, time):
    return jaxviz.residuals(loss, params, jax.ShapeDtypeStruct((batch, time + 1), jnp.int32)).nbytes_without_arguments


def _off(written):
    for batch, time in ((4, 128), (4, 512), (1, 300)):
        ratio = written(batch, time) / _kept_for(batch, time)
        if not 0.85 < ratio < 1.15:
            return f"For a batch of {batch} and {time} positions it gives {ratio:.2f} times of what is kept, {_kept_for(batch, time):,} B."
    return ""


_a, _b = (_kept_for(1, n) for n in (128, 256))

formula = teach.rule(
    "Write `my_bytes(batch, time)`: the bytes that the gradient saves besides its arguments, within 15 %, in plain Python arithmetic. You may take two figures from the curves.",
    teach.Check("is within 15 % for three sizes", _off),
    hints=(
        "It is batch × (a · time² + b · time). Two lengths give two equations for a and b.",
        "`_kept_for(batch, time)` asks for a figure. With 128 and 256 positions: a = (K₂₅₆ - 2 K₁₂₈) / (256² - 2 · 128²).",
    ),
    wrong=(lambda batch, time: 4 * batch * time**2, lambda batch, time: _kept_for(4, 128) * batch / 4 * time / 128, lambda batch, time: _kept_for(4, 128)),
)
formula


# %% tags=["answer"]
def my_bytes(batch, time):
    return ...


formula.answer(my_bytes)


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def estimate(batch, time):
    a = (_b - 2 * _a) / (256**2 - 2 * 128**2)
    b = (_a - a * 128**2) / 128
    return batch * (a * time**2 + b * time)


formula.solution(estimate)

# %% [markdown]
# ## Which rules save them
#
# The values with time × time numbers, of all layers, and why each is saved:

# %%
for r in kept:
    if r.scope == "attention" and r.aval.shape[-2:] == (128, 128):
        why, _, read = r.reason.partition("; ")
        print(f"{r.type}, {kib(r.nbytes)}, made in {r.location.function}")
        print(textwrap.indent(textwrap.fill(why, 110), "    "))

# %% [markdown]
# Each derivative *rule* saves its own residuals. JAX does not check whether the complete backward pass reads them.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: unread
ROLES = {
    "the mask": lambda r: r.aval.dtype == bool,
    "the -inf that stands where the mask is false": lambda r: "where(" in r.expression and r.aval.dtype != bool,
    "the exponentials": lambda r: r.producer is not None and r.producer.primitive.name == "exp",
    "the quotients, which are the weights": lambda r: r.producer is not None and r.producer.primitive.name == "div",
}
_squared = [r for r in kept if r.scope == "attention" and r.aval.shape[-2:] == (128, 128)]

unread = teach.predict(
    "Which of these is saved, but read by no equation of the backward pass?",
    list(ROLES),
    truth=lambda: next(name for name, fits in ROLES.items() if any(fits(r) and not r.is_read for r in _squared)),
    because={
        "the mask": "The cotangent goes through `where` by the mask.",
        "the -inf that stands where the mask is false": "`where(causal, scores, -inf)` is a `select_n` of two arrays. Its rule keeps both for a tangent "
        "of either; -inf has none. `jax.grad` outside of `jit` holds the array all the same; under `jit` XLA sees that nobody reads it.",
        "the exponentials": "The derivative of exp multiplies by exp.",
        "the quotients, which are the weights": "The product with the values is linear in each factor: the derivative of one is the other.",
    },
    hints=(
        "What does the backward pass do with a cotangent, where the forward pass chose, took an exponential, or multiplied?",
        "Which of the four has a tangent of zero, whatever the parameters do?",
    ),
)
unread

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
unread.solution("the -inf that stands where the mask is false")

# %%
for r in _squared:
    print(f"{r.type:22} {r.expression[:60]:62} {r.reason.partition('; ')[2] or 'read by nothing'}")

# %% [markdown]
# The same in the explorer. Its residuals are filtered by the type; a click on one lights up the line, and in the backward program who reads
# it. *What if* has a switch for each checkpoint that could be there, and for what it saves.

# %%
explorer = jaxviz.explore(loss, params, tokens)
explorer.stage, explorer.beside, explorer.filter = "forward", "backward", "4,4,128,128"
explorer

# %% [markdown]
# A tensor can also be made smaller: half the bits are half the bytes that JAX saves.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: halved
def _squares(f):
    found = jaxviz.residuals(f, params, tokens)
    return sum(r.nbytes for r in found if r.aval.shape[-4:] == (4, 4, 128, 128) and r.aval.dtype != bool)


def _not_halved(written):
    ratio = _squares(loss_with(lambda p, x: attention(p, x, written))) / _squares(loss)
    return "" if ratio <= 0.51 else f"Without the mask, the saved values of time × time are {ratio:.0%} of the original."


def _far_off(written):
    scores, causal = normal(4, 4, 128, 128), jnp.tril(jnp.ones((128, 128), bool))
    off = float(jnp.abs(written(scores, causal).astype(jnp.float32) - weigh(scores, causal)).max())
    return "" if off < 0.01 else f"A weight is off by {off:.3g}."


def _in_bfloat16(scores, causal):
    return weigh(scores.astype(jnp.bfloat16), causal)


halved = teach.rule(
    "Write `my_weigh(scores, causal)`: the weights of `weigh` to two digits, with half of the bytes of time × time kept.",
    teach.Check("gives the weights, to two digits", _far_off),
    teach.Check("half of the bytes are kept", _not_halved),
    hints=("Which dtype has 16 bits, and the range of float32?", "Where is the cast: before the saved values, or after?"),
    wrong=(weigh, lambda scores, causal: weigh(scores, causal).astype(jnp.bfloat16), lambda scores, causal: jnp.zeros(scores.shape, jnp.bfloat16)),
)
halved


# %% tags=["answer"]
def my_weigh(scores, causal):
    return ...


halved.answer(my_weigh)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
halved.solution(_in_bfloat16)

# %%
def memory_in(dtype):
    """The memory of the gradient whose scores, and what is made of them, are of this type."""
    return jaxviz.memory(loss_with(lambda p, x: attention(p, x, lambda scores, causal: weigh(scores.astype(dtype), causal))), params, tokens)


in_types = {name: memory_in(name) for name in ("float32", "bfloat16", "float16")}
for name, m in in_types.items():
    print(f"{name:10}{kib(m.derivation.residuals.nbytes_without_arguments):>12} saved{kib(m.xla.temporaries):>12} of temporaries by XLA on {jax.default_backend()}")
is_widened = in_types["bfloat16"].xla.temporaries > 0.9 * in_types["float32"].xla.temporaries
print("Here XLA holds bfloat16 as float32:", "what is saved takes as much memory as before." if is_widened else "no.")

# %% [markdown]
# JAX saves as many bytes for either type of 16 bits. What XLA holds depends on the device and on its version. A CPU has no arithmetic in bfloat16, so XLA computes in float32 there; some versions also
# hold in float32 what is saved, and the temporaries hardly change. Look at both figures, on the device that you train on.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
saved_in = {name: m.derivation.residuals.nbytes_without_arguments for name, m in in_types.items()}
assert saved_in["bfloat16"] == saved_in["float16"] < 0.75 * saved_in["float32"]
assert in_types["float16"].xla.temporaries < 0.75 * in_types["float32"].xla.temporaries
assert is_widened == (in_types["bfloat16"].xla.temporaries > 1.2 * in_types["float16"].xla.temporaries)

# %% [markdown]
# ## What to remember
#
# - The tensor is what softmax makes of the scores: time × time numbers for each head, example and layer, several times over. It grows with
#   the square of the sequence, and parameters do not.
# - A rule saves what it may need; JAX does not check whether it is read in the end. Under `jit` XLA does.
# - Ask XLA for its figure too: with the layers in a scan it is close to what is saved, except for what XLA drops or holds in another type.
#
# `jaxviz.residuals(loss, params, batch).by_scope()` gives these figures for your own model.
#
# Next: how to get rid of that tensor, in [15 · three ways to less memory](15_three_ways_to_less_memory.ipynb).
