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
# # 15 · What does it cost to get rid of the largest tensor?
#
# Three ways, each with its price: a rewrite, a checkpoint, a plan. Then what XLA does with them, and a fourth way, for memory that is not residuals.
#
# The model is the transformer of [14 · the memory of a transformer](14_memory_of_a_transformer.ipynb), whose attention saves values of time × time numbers. It
# takes 25 minutes. You need checkpoints ([7 · checkpoints](07_checkpoints.ipynb)).

# %%
import functools
import warnings

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxviz
from jaxviz import teach

WIDTH, HEADS, WORDS, LAYERS = 32, 4, 64, 2


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


def loss_with(attention):
    """The loss of the transformer, with this attention in it."""

    def loss(params, tokens):
        x = params["embed"][tokens[:, :-1]]
        for i, p in enumerate(params["layers"]):
            with jax.named_scope(f"layer {i}/attention"):
                x = x + attention(p, norm(x))
            with jax.named_scope(f"layer {i}/mlp"):
                x = x + mlp(p, norm(x))
        with jax.named_scope("head"):
            log_p = jax.nn.log_softmax(norm(x) @ params["embed"].T)
            return -jnp.mean(jnp.take_along_axis(log_p, tokens[:, 1:, None], axis=-1))

    return loss


loss = loss_with(attention)
rng = np.random.default_rng(0)
normal = lambda *shape: jnp.asarray(0.1 * rng.normal(size=shape), jnp.float32)
shapes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
params = {"embed": normal(WORDS, WIDTH), "layers": [{n: normal(*s) for n, s in shapes.items()} for _ in range(LAYERS)]}
tokens = jnp.asarray(rng.integers(0, WORDS, (4, 129)), jnp.int32)
kept = jaxviz.residuals(loss, params, tokens)


def size(tree):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def kib(nbytes):
    return f"{nbytes / 1024:,.0f} KiB"


# %% [markdown]
# ## First way: a rewrite, at no cost
#
# The mask need not be applied to the scores with a `where`. Write the same weights so that of size time × time only the exponentials and the
# quotients are saved: the derivative of a sum needs no value.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: leaner
_scores, _causal = normal(4, 4, 128, 128), jnp.tril(jnp.ones((128, 128), bool))


def _too_many(written):
    found = jaxviz.residuals(loss_with(lambda p, x: attention(p, x, written)), params, tokens)
    here = [r for r in found if r.scope == "layer 0/attention" and r.aval.shape == (4, 4, 128, 128)]
    return f"It saves {len(here)}: {', '.join(f'{r.expression} {r.type}' for r in here)}." if len(here) > 2 else ""


def _wrong_weights(written):
    difference = jnp.abs(written(_scores, _causal) - weigh(_scores, _causal)).max()
    return "" if difference < 1e-6 else f"A weight is off by {difference:.3g}."


_padded = jnp.tril(jnp.ones((8, 8), bool)).at[-1].set(False)  # as of a sequence that is filled up: the last row has nothing to look at


def _spoils_the_rest(written):
    def total(scores):
        weights = written(scores, _padded)
        return jnp.sum(jnp.where(_padded.any(-1, keepdims=True), weights, 0.0) ** 2)

    is_nan = bool(jnp.isnan(jax.grad(total)(_scores[0, 0, :8, :8])).any())
    return "With a fully masked row whose result is not used, the gradient of the scores contains NaN." * is_nan


leaner = teach.rule(
    "Write `my_weigh(scores, causal)`: the weights of `weigh`, with two values of time × time saved in each head, and no NaN if a row is fully masked.",
    teach.Check("gives the weights that `weigh` gives", _wrong_weights),
    teach.Check("saves at most two values of time × time per head", _too_many),
    teach.Check("a fully masked row brings no NaN into the gradient", _spoils_the_rest),
    hints=(
        "What could be added to a score so that its exponential is 0?",
        "Make an array of 0 and very negative numbers from the mask alone; it depends on no parameter, so it has no tangent.",
        "In a row of -inf the softmax computes -inf - (-inf). What else is negative enough?",
    ),
    wrong=(
        weigh,
        lambda scores, causal: jax.nn.softmax(scores + jnp.where(causal, 0.0, -jnp.inf)),
        lambda scores, causal: jax.nn.softmax(scores, where=causal),
        lambda scores, causal: jax.nn.softmax(scores * causal),
        lambda scores, causal: jax.nn.softmax(scores) * causal,
    ),
)
leaner


# %% tags=["answer"]
def my_weigh(scores, causal):
    return jax.nn.softmax(...)


leaner.answer(my_weigh)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def added(scores, causal):
    return jax.nn.softmax(scores + jnp.where(causal, 0.0, -1e9))


leaner.solution(added)

# %% jupyter={"source_hidden": true}
# lean: the loss with a mask that is added
lean = loss_with(lambda p, x: attention(p, x, lambda s, c: jax.nn.softmax(s + jnp.where(c, 0.0, -1e9))))
jaxviz.compare(loss, lean, params, tokens)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert _spoils_the_rest(added) == "" and _spoils_the_rest(weigh) == ""
kept_lean = jaxviz.residuals(lean, params, tokens)
assert kept_lean.nbytes < 0.75 * kept.nbytes
assert kept.nbytes - kept_lean.nbytes > sum(r.nbytes for r in kept if r.aval.shape == (4, 4, 128, 128)) / 3
assert jaxviz.cost(lean, params, tokens).total.flops <= jaxviz.cost(loss, params, tokens).total.flops
assert not any(r.aval.dtype == bool and r.aval.ndim == 4 for r in kept_lean)

# %% [markdown]
# Fully masked rows come from padding masks, not from causal masks. A section on such rows, whose results are not
# used, is in [16 · finding a NaN](16_finding_a_nan.ipynb).

# %% [markdown]
# ## Second way: a checkpoint around attention
#
# The remaining time × time values can be computed from the queries and keys, which are small. Write `my_attention` so that no value of time × time
# numbers is saved.

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
    p, x = params["layers"][0], jnp.sin(jnp.arange(2 * 8 * WIDTH)).reshape(2, 8, WIDTH)
    both = [_of_attention(f, p, x) for f in (written, attention)]
    close = jax.tree.map(lambda a, b: bool(jnp.allclose(a, b, atol=1e-5)), *both)
    return "" if jax.tree.all(close) else "They differ, at `x` of f32[2,8,32]."


def _square_kept(written):
    found = jaxviz.residuals(loss_with(written), params, tokens)
    left = [r for r in found if r.aval.shape[-2:] == (128, 128) and "attention" in r.scope]
    return f"{len(left)} are saved, such as {left[0].expression}: {left[0].type}." if left else ""


none_kept = teach.rule(
    "Write `my_attention(p, x)`: `attention`, but its gradient saves no value of time × time numbers.",
    teach.Check("the gradient saves nothing of time × time", _square_kept),
    teach.Check("its result and its gradient are those of `attention`", _attention_differs),
    hints=("One line of notebook 7 does it.", "`jax.checkpoint` around `attention`; which policy would undo it?"),
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
# alone saves its arguments: the scores, again.

# %%
misses = {
    "dots_saveable": jax.checkpoint(attention, policy=jax.checkpoint_policies.dots_saveable),
    "around weigh": lambda p, x: attention(p, x, jax.checkpoint(weigh)),
}
for name, f in misses.items():
    found = jaxviz.residuals(loss_with(f), params, tokens)
    print(name, [f"{r.expression} {r.type}" for r in found if r.aval.shape == (4, 4, 128, 128)])

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
for f in misses.values():
    found = jaxviz.residuals(loss_with(f), params, tokens)
    assert any(r.aval.shape == (4, 4, 128, 128) for r in found)

# %% [markdown]
# ## Third way: a plan that halves the residuals
#
# The planner considers all values of both layers together, with their bytes and the FLOPs that it takes to recompute them.

# %%
plan = jaxviz.plan_remat(loss, params, tokens, budget=0.5)
planned = plan.apply(loss)
print(plan.summary)
print("equal gradients:", same(planned), " half the bytes:", plan.nbytes <= kept.nbytes / 2)
plan.plot()

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert same(planned)
assert jaxviz.residuals(planned, params, tokens).nbytes == plan.nbytes <= kept.nbytes / 2
assert plan.flops < 0.1 * jaxviz.cost(loss, params, tokens).total.flops

# %% [markdown]
# ## What it costs, and what XLA makes of it
#
# All three side by side. *Saved* and *peak* are from the program that JAX differentiates; *temporaries* is the memory that XLA allocates
# for the compiled step on this backend, where it may merge recomputed values with existing ones.

# %%
ways = {
    "as it was": loss,
    "another mask": lean,
    "checkpoint": loss_with(jax.checkpoint(attention)),
    "plan": planned,
}
timelines = {name: jaxviz.memory(f, params, tokens) for name, f in ways.items()}
plain_flops = jaxviz.cost(loss, params, tokens).total.flops
print(f"on {jax.default_backend():15}{'saved':>10}{'peak, model':>14}{'extra FLOPs':>14}{'temporaries, XLA':>19}")
for name, f in ways.items():
    found = timelines[name].derivation.residuals.nbytes_without_arguments
    extra = jaxviz.cost(f, params, tokens).total.flops / plain_flops - 1
    xla = compiled(f).memory_analysis().temp_size_in_bytes
    print(f"{name:18}{kib(found):>10}{kib(timelines[name].peak_nbytes):>14}{extra:14.1%}{kib(xla):>19}")

# %%
for name in ways:
    plt.plot([step.total / 2**20 for step in timelines[name].steps], label=name)
plt.xlabel("equation: forward, then backward")
plt.ylabel("MiB alive (model)")
plt.legend(frameon=False);

# %% [markdown]
# The curve of `as it was` is a mountain: residuals accumulate layer by layer, and are consumed in reverse. Another mask lowers it at no FLOPs.
# A checkpoint saves least between the passes, but its peak includes one layer's recomputed attention. These values are in memory at the
# peak of the first:

# %%
timelines["as it was"]

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
peaks = {name: t.peak_nbytes for name, t in timelines.items()}
keeps = {name: t.derivation.residuals.nbytes for name, t in timelines.items()}
assert min(keeps, key=keeps.get) == "checkpoint"
assert max(peaks, key=peaks.get) == "as it was"
assert peaks["checkpoint"] - keeps["checkpoint"] > 2 * 4 * 4 * 128 * 128 * 4
assert all(same(f) for f in ways.values())
extra = {name: jaxviz.cost(f, params, tokens).total.flops - plain_flops for name, f in ways.items()}
assert extra["plan"] < extra["checkpoint"] / 4
assert extra["another mask"] <= 0
temporaries = {name: compiled(f).memory_analysis().temp_size_in_bytes for name, f in ways.items()}
assert jax.default_backend() != "cpu" or temporaries["another mask"] > 0.98 * temporaries["as it was"]

# %% [markdown]
# For `another mask` the last column may not change: XLA removes arrays that nothing reads. Then the first way helps only
# outside `jit`. If the column does not change for the other two, XLA undid the checkpoint. It cannot do so in a loop over
# the layers, as in [7 · checkpoints](07_checkpoints.ipynb):

# %%
def loss_in_scan(attention):
    def layer(x, p):
        x = x + attention(p, norm(x))
        return x + mlp(p, norm(x)), None

    def loss(params, tokens):
        x, _ = jax.lax.scan(layer, params["embed"][tokens[:, :-1]], params["layers"])
        log_p = jax.nn.log_softmax(norm(x) @ params["embed"].T)
        return -jnp.mean(jnp.take_along_axis(log_p, tokens[:, 1:, None], axis=-1))

    return loss


stacked = params | {"layers": jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["layers"])}
scanned = jax.jit(jax.value_and_grad(loss_in_scan(jax.checkpoint(attention)))).lower(stacked, tokens).compile()
in_scan = scanned.memory_analysis().temp_size_in_bytes
in_loop, as_it_was = (compiled(ways[name]).memory_analysis().temp_size_in_bytes for name in ("checkpoint", "as it was"))
print(f"as it was {kib(as_it_was)}, checkpoint {kib(in_loop)}, checkpoint in a scan {kib(in_scan)}")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert jax.default_backend() != "cpu" or in_scan < 0.8 * as_it_was

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
# Arguments that are *copied first* are read after the result is written, so XLA allocates other memory for them. That is XLA's choice
# on this backend; `jaxviz.donation` reads it from the compiled program.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert not any(d.result for d in of_argument("tokens"))
assert all(d.result for name in ("params", "mean", "square") for d in of_argument(name))
assert donated().spared >= 2 * size(params)

# %% [markdown]
# ## What to remember
#
# - Writing the mask as a sum removes more than a third of the memory that grows with time × time, at no cost. A checkpoint around attention removes all of it, for
#   the FLOPs in the table; a plan removes half of all residuals, for far fewer.
# - XLA's own figure, on your machine, shows whether the compiled program also takes less; if not, write the layers as a scan.
# - Donate what a step replaces, and check with `jaxviz.donation` that a result reuses its memory.
#
# `jaxviz.residuals(loss, params, batch).by_scope()` gives these figures for your own model.
#
# Next: the other thing that can go wrong in a training step, in [16 · finding a NaN](16_finding_a_nan.ipynb).
