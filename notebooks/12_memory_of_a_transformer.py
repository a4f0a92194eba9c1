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
# # 12 · What takes a transformer's memory, and what helps?
#
# A training step holds parameters, the optimizer's state, gradients, and the residuals between the two passes. Here you find the largest tensor of a small transformer, the
# rule that saves it, and three ways to get rid of it, each with its price. What counts is XLA's memory for the compiled gradient.
#
# It takes 35 minutes. You need residuals ([4 · partial evaluation and residuals](04_partial_evaluation_and_residuals.ipynb)), checkpoints
# ([6 · checkpoints](06_checkpoints.ipynb)) and custom rules ([9 · custom rules](09_custom_rules.ipynb)). The layers are in a scan, and each part has a scope, so that its residuals can be summed by part.

# %%
import functools
import textwrap
import warnings

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


def loss_with(attention, around_layer=lambda layer: layer):
    """The loss of the transformer, with this attention in it."""

    def layer(x, p):
        with jax.named_scope("attention"):
            x = x + attention(p, norm(x))
        with jax.named_scope("mlp"):
            x = x + mlp(p, norm(x))
        return x, None

    def loss(params, tokens):
        x, _ = jax.lax.scan(around_layer(layer), params["embed"][tokens[:, :-1]], params["layers"])
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

# %% jupyter={"source_hidden": true}
# Helpers: sizes, and a table of what functions save, and of what XLA takes for their gradients
def size(tree):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def kib(nbytes):
    return f"{nbytes / 1024:,.0f} KiB"


@functools.cache
def memory_of(f):
    return jaxviz.memory(f, params, tokens)


plain_flops = jaxviz.cost(loss, params, tokens).total.flops


def show(functions):
    print(f"{'':28}{'saved':>12}{'peak, model':>14}{'XLA on ' + jax.default_backend():>14}{'extra FLOPs':>14}")
    for name, f in functions.items():
        memory = memory_of(f)
        saved = memory.derivation.residuals.nbytes_without_arguments
        extra = jaxviz.cost(f, params, tokens).total.flops / plain_flops - 1
        print(f"{name:28}{kib(saved):>12}{kib(memory.peak_nbytes):>14}{kib(memory.xla.temporaries):>14}{extra:14.1%}")


def squares(f):
    """The saved values of attention with time × time numbers."""
    found = jaxviz.residuals(f, params, tokens)
    return [r for r in found if "attention" in r.scope and r.aval.shape[-2:] == (128, 128)]


temporaries = lambda f: memory_of(f).xla.temporaries
saved = lambda f: memory_of(f).derivation.residuals.nbytes_without_arguments

# %% [markdown]
# ## The bill
#
# Of one training step with Adam, which has two moments for each parameter:

# %%
print("parameters       ", kib(size(params)))
print("Adam's moments   ", kib(2 * size(params)))
print("gradients        ", kib(size(params)))
print("residuals        ", kib(kept.nbytes_without_arguments))
for part in kept.by_scope():
    print(f"   {part.name:18}{kib(part.nbytes):>10}")
print(f"   read by nothing   {kib(kept.nbytes_without_arguments - kept.saved.nbytes):>10}")
print(f"temporaries of the compiled gradient, by XLA on {jax.default_backend()}:", kib(memory.xla.temporaries))

# %% [markdown]
# "My model has so many parameters, so it needs that much memory" is off by far here. Residuals grow with the *batch and the sequence*, and
# parameters do not. XLA's own figure, which also counts what is alive within one layer, is close to what is saved: the backward loop begins when the
# forward loop has saved everything.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert kept.nbytes_without_arguments > 10 * 4 * size(params)
assert sum(part.nbytes for part in kept.by_scope()) == kept.saved.nbytes < kept.nbytes_without_arguments
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
    hints=("How many numbers does one array of each kind have?", "4 × 4 × 128 × 128, beside 4 × 128 × 128 and 4 × 128 × 32."),
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
    return sum(by_length(2 * positions)) / sum(by_length(positions))


positions = teach.number("length", 256, 192, 320)  # the first, unless teach.seed is called
factor = teach.predict(
    f"By what factor do all residuals together grow from {positions} positions to {2 * positions}? Within 3 % is right.",
    truth=_factor,
    tolerance=0.03,
    because=lambda: f"The square part has a factor of {by_length(2 * positions)[0] / by_length(positions)[0]:.2f}, the rest one of "
    f"{by_length(2 * positions)[1] / by_length(positions)[1]:.2f}, and at {positions} positions the square part is {by_length(positions)[0] / sum(by_length(positions)):.0%} of the whole.",
    hints=(
        "One part grows by 4, the other by 2.",
        lambda: f"At {positions} positions they are {kib(by_length(positions)[0])} and {kib(by_length(positions)[1])}.",
    ),
)
factor

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
four, two = by_length(positions)
factor.solution((4 * four + 2 * two) / (four + two))

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
slope = lambda sizes: np.log(sizes[-1] / sizes[0]) / np.log(lengths[-1] / lengths[0])
assert abs(slope(square) - 2) < 0.02
assert abs(slope(rest) - 1) < 0.02

# %% [markdown]
# ## Which rules save it
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
# it. *What if* has a switch for each checkpoint that could be there.

# %%
explorer = jaxviz.explore(loss, params, tokens)
explorer.stage, explorer.beside, explorer.filter = "forward", "backward", "4,4,128,128"
explorer

# %% [markdown]
# ## First way: a rule, at no cost
#
# `jax.nn.softmax` divides exponentials by their sum, and the rules of these two operations save both. Together they need less: the derivative of a softmax can be written
# with its result alone. If $w$ is the softmax and $\bar w$ its cotangent, that of the scores is $w\,(\bar w - \sum w\,\bar w)$, with the sum along the last axis. A masked
# score has the weight 0, so the mask is not needed either.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: leaner
_scores, _causal, _cotangent = normal(4, 4, 128, 128), jnp.tril(jnp.ones((128, 128), bool)), normal(4, 4, 128, 128)


def with_rule(halves):
    """`weigh` with a rule: what its forward half saves, and what its backward half makes of that and a cotangent."""
    forward, backward = halves

    @jax.custom_vjp
    def own(scores, causal):
        return weigh(scores, causal)

    own.defvjp(forward, lambda saved, weights_bar: (backward(saved, weights_bar), None))
    return own


def _too_many(own):
    saved = squares(loss_with(lambda p, x: attention(p, x, own)))
    return f"It saves {len(saved)}: {', '.join(f'{r.expression} {r.type}' for r in saved)}." if len(saved) > 1 else ""


def _wrong_weights(own):
    weights, _ = jax.vjp(lambda scores: own(scores, _causal), _scores)  # `forward` runs where it is differentiated
    difference = jnp.abs(weights - weigh(_scores, _causal)).max()
    return "" if difference < 1e-6 else f"A weight is off by {difference:.3g}."


def _wrong_rule(own):
    ours, right = (jax.vjp(lambda scores: f(scores, _causal), _scores)[1](_cotangent)[0] for f in (own, weigh))
    difference = jnp.abs(ours - right).max()
    return "" if difference < 1e-6 else f"A cotangent of a score is off by {difference:.3g}."


def _forward(scores, causal):
    weights = weigh(scores, causal)
    return weights, weights


def _backward(weights, weights_bar):
    return weights * (weights_bar - jnp.sum(weights * weights_bar, -1, keepdims=True))


leaner = teach.rule(
    "Write both halves of a rule for `weigh`: `forward(scores, causal)` returns the weights, and what is to be saved; `backward(saved, weights_bar)` returns the cotangent of "
    "the scores. Of size time × time, one value may be saved.",
    teach.Check("gives the weights that `weigh` gives", _wrong_weights).of(with_rule),
    teach.Check("gives the cotangent of the scores", _wrong_rule).of(with_rule),
    teach.Check("saves one value of time × time", _too_many).of(with_rule),
    hints=(
        "Which value does the formula read, besides the cotangent?",
        "`forward` returns the same array twice.",
        "`weights * (weights_bar - jnp.sum(weights * weights_bar, -1, keepdims=True))`",
    ),
    wrong=(
        (lambda scores, causal: (scores, weigh(scores, causal)), _backward),
        (_forward, lambda weights, weights_bar: weights * weights_bar),
        (_forward, lambda weights, weights_bar: weights * (weights_bar - jnp.sum(weights * weights_bar))),
        (lambda s, c: (weigh(s, c), (weigh(s, c), c & (s > -9))), lambda saved, bar: _backward(saved[0], bar)),
        (lambda s, c: (weigh(s, c), (s, c)), lambda saved, bar: jax.vjp(lambda s: weigh(s, saved[1]), saved[0])[1](bar)[0] * 2),
    ),
)
leaner


# %% tags=["answer"]
def forward(scores, causal):
    return weigh(scores, causal), ...


def backward(saved, weights_bar):
    return ...


leaner.answer((forward, backward))

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
leaner.solution((_forward, _backward))

# %% [markdown]
# A rewrite that is often tried is to *add* the mask: 0, or a very negative number. A sum needs no value for its derivative, so neither the mask nor the array of -inf is saved.
# JAX has a rule for softmax, too. It is off by default, behind a flag:

# %%
own_rule = loss_with(lambda p, x: attention(p, x, with_rule((_forward, _backward))))
added_mask = loss_with(lambda p, x: attention(p, x, lambda scores, causal: jax.nn.softmax(scores + jnp.where(causal, 0.0, -1e9))))
with_flag = loss_with(attention)
jax.config.update("jax_softmax_custom_jvp", True)
show({"with JAX's own rule": with_flag})
jax.config.update("jax_softmax_custom_jvp", False)
show({"as it was": loss, "a mask that is added": added_mask, "a rule": own_rule})

# %% [markdown]
# With the added mask JAX saves less, and XLA takes about as much as before: no equation reads the -inf, so the compiled gradient did not hold it anyway. What it no longer holds is the mask, one byte for each
# number, and the same mask in all layers. The rule leaves out one of the two large arrays of each layer, and XLA's figure falls by as much. JAX's own rule takes as little.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
one_square = LAYERS * 4 * 4 * 128 * 128 * 4
assert saved(loss) - saved(added_mask) > 1024 * 1024
assert temporaries(added_mask) > 0.95 * temporaries(loss)
assert abs((temporaries(loss) - temporaries(own_rule)) / one_square - 1) < 0.25
assert jaxviz.cost(own_rule, params, tokens).total.flops <= plain_flops
assert any(not r.is_read for r in squares(loss))
assert abs(temporaries(with_flag) / temporaries(own_rule) - 1) < 0.05

# %% [markdown]
# ## Second way: a checkpoint around attention
#
# The time × time values can also be computed again, from the queries and keys, which are small.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: none_kept
@functools.cache
def compiled(f):
    return jax.jit(jax.value_and_grad(f)).lower(params, tokens).compile()


def same(f):
    """Whether a loss has the value and the gradient of `loss`."""
    close = lambda a, b: bool(jnp.allclose(a, b, atol=1e-5))
    return jax.tree.all(jax.tree.map(close, compiled(f)(params, tokens), compiled(loss)(params, tokens)))


@functools.partial(jax.jit, static_argnums=0)
def _of_attention(f, p, x):
    return jax.value_and_grad(lambda p, x: jnp.sum(jnp.sin(f(p, x))), (0, 1))(p, x)


def _attention_differs(written):
    p, x = jax.tree.map(lambda leaf: leaf[0], params["layers"]), jnp.sin(jnp.arange(2 * 8 * WIDTH)).reshape(2, 8, WIDTH)
    both = [_of_attention(f, p, x) for f in (written, attention)]
    close = jax.tree.map(lambda a, b: bool(jnp.allclose(a, b, atol=1e-5)), *both)
    return "" if jax.tree.all(close) else "They differ, at `x` of f32[2,8,32]."


def _square_kept(written):
    left = squares(loss_with(written))
    return f"{len(left)} are saved, such as {left[0].expression}: {left[0].type}." if left else ""


none_kept = teach.rule(
    "Write `my_attention(p, x)`: `attention`, but its gradient saves no value of time × time numbers.",
    teach.Check("the gradient saves nothing of time × time", _square_kept),
    teach.Check("its result and its gradient are those of `attention`", _attention_differs),
    hints=("One line of *6 · checkpoints* does it.", "`jax.checkpoint` around `attention`; which policy would undo it?"),
    wrong=(
        attention,
        jax.checkpoint(attention, policy=jax.checkpoint_policies.dots_saveable),
        lambda p, x: attention(p, x, jax.checkpoint(weigh)),
        lambda p, x: x @ p["out"],
    ),
)
none_kept


# %% tags=["answer"]
def my_attention(p, x):
    return ...


none_kept.answer(my_attention)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
none_kept.solution(jax.checkpoint(attention))

# %% [markdown]
# Two near misses are instructive. `dots_saveable` saves matrix products, and the scores are one. A checkpoint around `weigh`
# alone saves its arguments: the scores, again, beside the weights that the product with the values needs.

# %%
checkpointed = loss_with(jax.checkpoint(attention))
misses = {
    "with dots_saveable": loss_with(jax.checkpoint(attention, policy=jax.checkpoint_policies.dots_saveable)),
    "around weigh": loss_with(lambda p, x: attention(p, x, jax.checkpoint(weigh))),
}
show({"as it was": loss, "around attention": checkpointed} | misses)
for name, f in misses.items():
    print(name, [f"{r.expression} {r.type}" for r in squares(f)])

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert not squares(checkpointed)
assert temporaries(checkpointed) < 0.6 * temporaries(loss)
for f in misses.values():
    assert any(r.aval.shape == (LAYERS, 4, 4, 128, 128) for r in squares(f))
    assert temporaries(f) > 1.3 * temporaries(checkpointed)

# %% [markdown]
# ## Third way: a plan that halves the residuals
#
# The planner considers all values of a layer together, with their bytes and the FLOPs that it takes to recompute them.

# %%
plan = jaxviz.plan_remat(loss, params, tokens, budget=0.5)
planned = plan.apply(loss)
print(plan.summary)
kept = jaxviz.residuals(loss, params, tokens)
print("equal gradients:", same(planned), " half the bytes:", plan.nbytes <= kept.nbytes / 2)
plan.plot()

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert same(planned)
assert jaxviz.residuals(planned, params, tokens).nbytes == plan.nbytes <= kept.nbytes / 2
assert plan.flops < 0.1 * plain_flops

# %% [markdown]
# ## What each costs
#
# All of them side by side, and with them a checkpoint around each whole layer, as in [6 · checkpoints](06_checkpoints.ipynb).

# %%
ways = {
    "as it was": loss,
    "a rule": own_rule,
    "checkpoint around attention": checkpointed,
    "checkpoint around each layer": loss_with(attention, jax.checkpoint),
    "plan": planned,
}
show(ways)

# %%
for name, f in ways.items():
    plt.plot([step.total / 2**20 for step in memory_of(f).steps], label=name)
plt.xlabel("equation: forward, then backward")
plt.ylabel("MiB alive (model)")
plt.legend(frameon=False);

# %% [markdown]
# The curve of `as it was` is a mountain: residuals accumulate layer by layer, and are consumed in reverse. The rule lowers it at no FLOPs. A checkpoint around each layer
# takes least memory and most work. XLA's column has the same order as the saved bytes. These values are in memory at the
# peak of the first, in the compiled program:

# %%
jaxviz.compiled_memory(jax.grad(loss), params, tokens)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert sorted(ways, key=lambda name: temporaries(ways[name])) == sorted(ways, key=lambda name: saved(ways[name]))
assert min(ways, key=lambda name: temporaries(ways[name])) == "checkpoint around each layer"
extra = {name: jaxviz.cost(f, params, tokens).total.flops - plain_flops for name, f in ways.items()}
assert max(extra, key=extra.get) == "checkpoint around each layer"
assert extra["plan"] < extra["checkpoint around attention"] / 4
assert extra["a rule"] <= 0
assert all(same(f) for f in ways.values())

# %% [markdown]
# A tensor can also be made smaller. With scores of 16 bits JAX saves half the bytes for them. What XLA holds depends on the device and on its version: a CPU has no arithmetic in bfloat16, so XLA
# computes in float32 there, and some versions also hold in float32 what is saved.

# %%
def memory_in(dtype):
    """The memory of the gradient whose scores, and what is made of them, are of this type."""
    return jaxviz.memory(loss_with(lambda p, x: attention(p, x, lambda scores, causal: weigh(scores.astype(dtype), causal))), params, tokens)


in_types = {name: memory_in(name) for name in ("float32", "bfloat16", "float16")}
for name, m in in_types.items():
    print(f"{name:10}{kib(m.derivation.residuals.nbytes_without_arguments):>12} saved{kib(m.xla.temporaries):>12} of temporaries by XLA on {jax.default_backend()}")
is_widened = in_types["bfloat16"].xla.temporaries > 0.9 * in_types["float32"].xla.temporaries
print("Here XLA holds bfloat16 as float32:", "what is saved takes as much memory as before." if is_widened else "no.")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
saved_in = {name: m.derivation.residuals.nbytes_without_arguments for name, m in in_types.items()}
assert saved_in["bfloat16"] == saved_in["float16"] < 0.75 * saved_in["float32"]
assert in_types["float16"].xla.temporaries < 0.75 * in_types["float32"].xla.temporaries
assert is_widened == (in_types["bfloat16"].xla.temporaries > 1.2 * in_types["float16"].xla.temporaries)

# %% [markdown]
# ## And in a Python loop?
#
# The same layers, one after the other in Python. There XLA sees both passes in one program without a loop, and may merge what is to be recomputed with what it has. Compare a loop with
# a loop, and a scan with a scan.

# %%
def loop_with(attention):
    def loss(params, tokens):
        x = params["embed"][tokens[:, :-1]]
        for i in range(LAYERS):
            p = jax.tree.map(lambda leaf: leaf[i], params["layers"])
            x = x + attention(p, norm(x))
            x = x + mlp(p, norm(x))
        log_p = jax.nn.log_softmax(norm(x) @ params["embed"].T)
        return -jnp.mean(jnp.take_along_axis(log_p, tokens[:, 1:, None], axis=-1))

    return loss


in_loop, in_checked_loop = loop_with(attention), loop_with(jax.checkpoint(attention))
show({"scan": loss, "scan, checkpoint": checkpointed, "loop": in_loop, "loop, checkpoint": in_checked_loop})
for form, (plain, checked) in {"scan": (loss, checkpointed), "loop": (in_loop, in_checked_loop)}.items():
    print(f"In the {form}, the checkpoint around attention changes XLA's temporaries by {temporaries(checked) / temporaries(plain) - 1:+.0%}.")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert saved(in_checked_loop) < 0.5 * saved(in_loop)
assert same(in_loop)

# %% [markdown]
# ## Parameters and the optimizer's state: donation
#
# The rest of the memory is small here, but large in a model with many parameters and short sequences. A step returns new parameters and
# new moments; as long as the caller holds the old ones, both are in memory. `donate_argnums` declares that the caller does not read them any
# more, so XLA may write a result into an argument's memory.

# %%
def step(params, mean, square, tokens):
    value, grads = jax.value_and_grad(loss)(params, tokens)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g**2, square, grads)
    params = jax.tree.map(lambda p, m, s: p - 1e-3 * m / (jnp.sqrt(s) + 1e-8), params, mean, square)
    return params, mean, square, value

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: for_nothing
@functools.cache
def donated():
    mean, square = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))  # the same arrays twice could not be donated
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of what this exercise asks for
        return jaxviz.donation(jax.jit(step, donate_argnums=(0, 1, 2, 3)), params, mean, square, tokens)


def of_argument(name):
    return [d for d in donated().donated if d.path.split("[")[0] == name]


for_nothing = teach.predict(
    "All four arguments of `step` are donated. For which of them does this have no effect, on any device?",
    ["params", "mean", "square", "tokens"],
    truth=lambda: next(n for n in ("params", "mean", "square", "tokens") if not any(d.result for d in of_argument(n))),
    because=lambda: f"`tokens`: {of_argument('tokens')[0].reason}. Each leaf of the other three has a result of the same type.",
    hints=("A result can reuse the memory of an argument with the same shape and dtype. Which results does `step` have?",),
)
for_nothing

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
for_nothing.solution("tokens")

# %%
print(donated().summary)
for name in ("params", "mean", "square", "tokens"):
    spared = sum(d.nbytes for d in of_argument(name) if d.is_spared)
    copied = sum(d.nbytes for d in of_argument(name) if d.is_copied)
    print(f"{name:8}{kib(sum(d.nbytes for d in of_argument(name))):>10} donated{kib(spared):>10} spared{kib(copied):>10} copied first")

# %% [markdown]
# The call takes less memory, and not always by all that is donated: an argument that is *copied first* is read after the result is written, and other temporaries may be needed. That is XLA's choice
# on this backend; `jaxviz.donation` reads it from the compiled program.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert not any(d.result for d in of_argument("tokens"))
assert all(d.result for name in ("params", "mean", "square") for d in of_argument(name))
assert donated().spared >= size(params)

# %% [markdown]
# ## What to remember
#
# - The tensor is what softmax makes of the scores: time × time numbers for each head, example and layer, several times over.
# - A rule of your own saves one of two large arrays at no cost. A checkpoint recomputes all of them, around attention or around the whole layer, for
#   the FLOPs in the table; a plan halves what is saved, for far fewer.
# - What JAX saves and nobody reads, XLA drops by itself: to remove it lowers the first figure and not the second. Compare XLA's figures, of programs that differ in one thing, with the layers in a scan.
# - Donate what a step replaces, and check with `jaxviz.donation` that a result reuses its memory.
#
# `jaxviz.residuals(loss, params, batch).by_scope()` gives these figures for your own model.
#
# Next: the other thing that can go wrong in a training step, in [13 · finding a NaN](13_finding_a_nan.ipynb).
