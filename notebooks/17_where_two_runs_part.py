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
# # 17 · Two runs should agree. Where do they part?
#
# A model was rewritten, moved to another precision, or resumed from a checkpoint, and its loss is no longer what it was. Is that rounding, or a mistake? And if
# it is a mistake, in which line? This notebook measures how far rounding goes, and finds the first line that differs by more.
#
# It takes 25 minutes. You should know what a cotangent is ([4 · partial evaluation and residuals](04_partial_evaluation_and_residuals.ipynb)).
#
# ## Two versions of a model
#
# A small language model, with two layers in a Python loop:

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxviz
from jaxviz import teach
from jaxviz.teach.sentences import WORDS, examples

LAYERS, WIDTH = 2, 32


def norm(x, eps=1e-5):
    return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + eps)


def attention(p, x):
    q, k, v = x @ p["query"], x @ p["key"], x @ p["value"]
    scores = q @ k.T / WIDTH**0.5
    seen = jnp.tril(jnp.ones(scores.shape, bool))
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)) @ v @ p["out"]


def mlp(p, x):
    return jax.nn.gelu(x @ p["up"]) @ p["down"]


def model(params, words):
    x = params["embed"][words] + params["position"][: len(words)]
    for p in params["layers"]:
        x = x + attention(p, norm(x))
        x = x + mlp(p, norm(x))
    return norm(x) @ params["embed"].T


def mean_loss(model, params, sentences):
    log_p = jax.nn.log_softmax(jax.vmap(model, (None, 0))(params, sentences[:, :-1]))
    return -jnp.mean(jnp.take_along_axis(log_p, sentences[:, 1:, None], axis=-1))


def loss(params, sentences):
    return mean_loss(model, params, sentences)


# %% [markdown]
# Somebody rewrote it to be faster: the layers are in a scan, the three products of attention are one, `norm` uses `rsqrt`, and `gelu` has a rule that saves less.

# %%
SLOPE = (2 / np.pi) ** 0.5


def gelu_backward(x, ct):
    t = jnp.tanh(SLOPE * (x + 0.044715 * x**3))
    slope = SLOPE * (1 + 0.044715 * x**2)
    return (ct * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * slope),)


def gelu_with(backward):
    @jax.custom_vjp
    def gelu(x):
        return jax.nn.gelu(x)

    gelu.defvjp(lambda x: (jax.nn.gelu(x), x), backward)
    return gelu


def rewrite(eps, gelu):
    def norm(x):
        mean_square = jnp.mean(x**2, axis=-1, keepdims=True)
        return x * jax.lax.rsqrt(mean_square + eps)

    def attention(p, x):
        q, k, v = jnp.split(x @ jnp.concatenate([p["query"], p["key"], p["value"]], axis=1), 3, axis=1)
        scores = q @ k.T / WIDTH**0.5
        seen = jnp.tril(jnp.ones(scores.shape, bool))
        return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)) @ v @ p["out"]

    def mlp(p, x):
        return gelu(x @ p["up"]) @ p["down"]

    def layer(x, p):
        x = x + attention(p, norm(x))
        return x + mlp(p, norm(x)), None

    def model(params, words):
        x = params["embed"][words] + params["position"][: len(words)]
        stacked = jax.tree.map(lambda *ps: jnp.stack(ps), *params["layers"])
        x, _ = jax.lax.scan(layer, x, stacked)
        return norm(x) @ params["embed"].T

    def rewritten(params, sentences):
        return mean_loss(model, params, sentences)

    return rewritten


rewritten = rewrite(1e-6, gelu_with(gelu_backward))

# %% jupyter={"source_hidden": true}
# Parameters, sentences, and a training by gradient descent
def normal(seed, *shape):
    return 0.1 * jax.random.normal(jax.random.key(seed), shape)


W = (WIDTH, WIDTH)
shapes = {"query": W, "key": W, "value": W, "out": W, "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
params = {"embed": normal(0, len(WORDS), WIDTH), "position": normal(1, 10, WIDTH)}
params["layers"] = [{name: normal(10 * i + j, *shape) for j, (name, shape) in enumerate(shapes.items(), 2)} for i in range(LAYERS)]
rng = np.random.default_rng(0)
batches = jnp.stack([jnp.asarray(examples(rng, 16)) for _ in range(300)])


def losses_of(loss, params):
    def step(params, batch):
        value, gradient = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.5 * g, params, gradient), value

    return np.asarray(jax.jit(lambda p: jax.lax.scan(step, p, batches)[1])(params))


print(f"the loss at the start: {loss(params, batches[0]):.6f} and, rewritten, {rewritten(params, batches[0]):.6f}")
one, other = losses_of(loss, params), losses_of(rewritten, params)

# %% [markdown]
# Equal to six digits at the start; after 300 steps both have learned. Their losses at each step, and the difference:

# %% jupyter={"source_hidden": true}
# The losses and their difference
def plot_apart(**curves):
    fig, (left, right) = plt.subplots(1, 2, figsize=(7, 2.5))
    left.plot(one, label="as it was")
    left.plot(other, lw=0.8, label="rewritten")
    left.set(xlabel="step", ylabel="loss")
    left.legend(frameon=False)
    for label, curve in curves.items():
        right.semilogy(np.maximum(np.abs(curve - one), 1e-8), lw=0.8, label=label.replace("_", " "))
    right.set(xlabel="step", ylabel="difference")
    right.legend(frameon=False)


plot_apart(rewritten=other)

# %% [markdown]
# ## How far rounding goes
#
# A sum in another order is no mistake, and changes the last digit. To see what that does to this training, change the last digit of the parameters yourself: multiply each by
# $1 \pm \epsilon$, where $\epsilon$ is the distance from 1 to the next number of the type, and the sign is random.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: nudge
_some = jnp.array([1e-12, 0.5, -3.0, 1000.0, 7e20, -0.01, 0.0, 1.5])
_many = jnp.exp(jax.random.normal(jax.random.key(3), (4096,)) * 9)


def _apart(written, x=_many):
    return np.asarray(written(jax.random.key(0), x), np.float64) / np.asarray(x, np.float64) - 1


def _not_near(written):
    moved = np.asarray(written(jax.random.key(0), _some))
    if moved.dtype != np.float32 or moved.shape != _some.shape:
        return f"f32[8] becomes {moved.dtype}{list(moved.shape)}."
    off = np.abs(_apart(written))
    if off.max() > 2.5e-7:
        at = int(off.argmax())
        return f"{float(_many[at]):.4g} changes by {off[at]:.2g} of itself; two last digits are at most 2.4e-7."
    return "" if moved[6] == 0 else f"0 becomes {moved[6]:.2g}."


def _too_few(written):
    off = _apart(written)
    if (off != 0).mean() < 0.25:
        return f"Only {(off != 0).mean():.0%} of 4,096 numbers change."
    return "" if min((off > 0).mean(), (off < 0).mean()) > 0.05 else "All changes have the same sign, so they add up in a sum. Is `1 + ε` another number than 1, and `1 - ε`?"


nudge = teach.rule(
    "Write `my_nudge(key, x)`: `x` with other last digits.",
    teach.Check("changes each number by two last digits at most", _not_near),
    teach.Check("changes many, some up and some down", _too_few),
    hints=(
        "`jnp.finfo(x.dtype).eps` is the distance from 1 to the next number.",
        "`jax.random.rademacher(key, x.shape, x.dtype)` is -1 or 1.",
    ),
    wrong=(
        lambda key, x: x,
        lambda key, x: x + jnp.finfo(x.dtype).eps * jax.random.rademacher(key, x.shape, x.dtype),
        lambda key, x: x * (1 + 1e-3 * jax.random.rademacher(key, x.shape, x.dtype)),
        lambda key, x: x * (1 + jnp.finfo(x.dtype).eps),
        lambda key, x: x * (1 + jnp.finfo(x.dtype).eps / 2 * jax.random.rademacher(key, x.shape, x.dtype)),
        lambda key, x: x * jax.random.rademacher(key, x.shape, x.dtype),
    ),
)
nudge


# %% tags=["answer"]
def my_nudge(key, x):
    sign = jax.random.rademacher(key, x.shape, x.dtype)
    return x * ...


nudge.answer(my_nudge)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def nudged(key, x):
    return x * (1 + jnp.finfo(x.dtype).eps * jax.random.rademacher(key, x.shape, x.dtype))


nudge.solution(nudged)

# %%
leaves, tree = jax.tree.flatten(params)
keys = jax.random.split(jax.random.key(7), len(leaves))
moved = jax.tree.unflatten(tree, [nudged(key, leaf) for key, leaf in zip(keys, leaves)])
rounded = losses_of(loss, moved)

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: grown
def _growth():
    apart = np.abs(rounded - one)
    return ("nothing" if apart[-50:].max() < 1e-6 else "to the fifth digit" if apart[-50:].max() < 1e-5 else "visibly")


grown = teach.predict(
    "The same program, with other last digits at the start: how much do the losses of the last 50 steps differ?",
    ["nothing", "to the fifth digit", "visibly"],
    truth=_growth,
    because=lambda: f"At the start by {abs(rounded - one)[:3].max():.0e}, and in the last 50 steps by up to {abs(rounded - one)[-50:].max():.0e}: "
    "a training amplifies a difference, and so it cannot be told from its end whether that was a mistake.",
    hints=("A step of gradient descent maps parameters to parameters. What do 300 of them do to a small difference?",),
)
grown

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
grown.solution("visibly")

# %%
plot_apart(rewritten=other, other_last_digits=rounded)

# %% [markdown]
# At the end the two curves look alike. In the first steps they do not: the rewritten model is off by far more than last digits, long before it matters. So compare early, compare values and not the loss, and
# divide by what rounding does.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
_first = np.abs(rounded - one)[:3].max(), np.abs(other - one)[:3].max()
assert f"{loss(params, batches[0]):.5f}"[:6] == f"{rewritten(params, batches[0]):.5f}"[:6]
assert _first[0] < 3e-6 and _first[1] > 100 * max(_first[0], 1e-7)
assert np.abs(rounded - one)[-50:].max() > 100 * _first[0]
assert max(one[-20:].mean(), other[-20:].mean()) < 1 < one[0]
_lean, _full = (jaxviz.residuals(f, jnp.ones(8)).nbytes for f in (gelu_with(gelu_backward), jax.nn.gelu))
assert _lean < _full

# %% [markdown]
# ## The first line that differs
#
# `jaxviz.divergence` runs both once, forward and backward, and pairs their values: iteration $i$ of the scan with the $i$-th layer of the Python loop. What rounding may change it measures, as you did,
# in each value: both run again with other last digits. The first value that differs by much more is where they part.

# %%
found = jaxviz.divergence(loss, rewritten, params, batches[0])
found

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: culprit
def _causes():
    """How far the keys of the first layer change, in last digits, with each of the changes alone."""
    x = params["embed"][batches[0, 0]] + 0.0
    w = params["layers"][0]
    square = jnp.mean(x**2, axis=-1, keepdims=True)
    y = x / jnp.sqrt(square + 1e-5)
    fused = jnp.split(y @ jnp.concatenate([w["query"], w["key"], w["value"]], axis=1), 3, axis=1)[1]
    others = {"the fused product": fused, "rsqrt": x * jax.lax.rsqrt(square + 1e-5) @ w["key"], "another eps": x / jnp.sqrt(square + 1e-6) @ w["key"]}
    keys = y @ w["key"]
    return {name: float(jnp.linalg.norm(k - keys) / jnp.linalg.norm(keys)) / np.finfo(np.float32).eps for name, k in others.items()}


culprit = teach.predict(
    "The mean of the squares in the first `norm` agrees, and the keys after it are off in the fourth digit. Which change is the cause?",
    ["the fused product", "rsqrt", "another eps"],
    truth=lambda: max(_causes(), key=_causes().get),
    because={
        "the fused product": "Each column of the product is a sum of the same numbers as before. In another order, it changes in the last digits.",
        "rsqrt": "`x * rsqrt(y)` and `x / sqrt(y)` differ in the last digits, and the report says hundreds of times that.",
        "another eps": "It is 1e-6 here, and was 1e-5. The mean square of the small embeddings is about 0.02, and 9e-6 of that is no last digit.",
    },
    hints=("Which of them is not the same mathematics?",),
)
culprit

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
culprit.solution("another eps")

# %% [markdown]
# Mend it, and compare again. One mistake can hide another one behind it.

# %%
rewritten = rewrite(1e-5, gelu_with(gelu_backward))
found = jaxviz.divergence(loss, rewritten, params, batches[0])
print(found)

# %% [markdown]
# Every value of the forward pass agrees now. Backward, the cotangent of the result of `gelu` agrees, and that of its operand does not: its own rule is wrong. The loss could not have shown that, and no
# test of the forward pass either.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert (found.parting.phase, found.parting.expression) == ("cotangent", 'x @ p["up"]') and found.parting.noise > 1000
assert max(p.noise for p in found.partings[: found.turn] if p.is_real) < 10
assert any("gelu" in text for text in found.parting.alone)

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: mended
_points = jnp.array([-3.0, -0.5, 0.0, 0.2, 1.0, 4.0])


def _wrong_slope(x, ct):
    t = jnp.tanh(SLOPE * (x + 0.044715 * x**3))
    return (ct * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * SLOPE),)


def _no_ct(x, ct):
    return (jax.vjp(jax.nn.gelu, x)[1](jnp.ones_like(x))[0],)


mended = teach.rule(
    "Write `my_backward(x, ct)`, the right backward rule of `jax.nn.gelu(x)`: a tuple of one cotangent. "
    "Correct the one above, or ask JAX.",
    teach.computes(lambda x, ct: jax.vjp(jax.nn.gelu, x)[1](ct), (_points, jnp.ones(6)), (_points, 2 * _points + 1)).saying(
        "returns the cotangent of x"
    ),
    hints=(
        "What is the derivative of `0.044715 * x**3`?",
        "`jax.vjp(jax.nn.gelu, x)` returns the value, and the function that you need.",
    ),
    wrong=(gelu_backward, _wrong_slope, _no_ct, lambda x, ct: jax.vjp(jax.nn.gelu, x)[1](ct)[0]),
)
mended


# %% tags=["answer"]
def my_backward(x, ct):
    return (ct * ...,)


mended.answer(my_backward)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def right_backward(x, ct):
    t = jnp.tanh(SLOPE * (x + 0.044715 * x**3))
    slope = SLOPE * (1 + 3 * 0.044715 * x**2)
    return (ct * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * slope),)


mended.solution(right_backward)

# %%
rewritten = rewrite(1e-5, gelu_with(right_backward))
print(jaxviz.divergence(loss, rewritten, params, batches[0]).summary)

# %% [markdown]
# ## Another precision
#
# Two precisions differ by much, and should. So what rounding may change is then measured in the coarser type, and the answer is the same kind of sentence:

# %%
in_half = jaxviz.divergence(loss, params, batches[0], against="bfloat16")
print(in_half.summary)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
agreed = jaxviz.divergence(loss, rewritten, params, batches[0])
assert agreed.parting is None and agreed.worst < 10 and in_half.parting is None
assert max(p.relative for p in in_half.partings if p.is_real) > 1e-3

# %% [markdown]
# `against="float64"` and `against="op-by-op"` work in the same way. If the report names a line here, that line needs the higher precision.
#
# ## A run that was resumed
#
# Two programs are compared in one call. A run has many, and two processes. Here a training with Adam is stopped after three steps, its state is saved, and it goes on in another process.

# %%
@jax.jit
def adam(state, batch):
    gradient = jax.grad(loss)(state["params"], batch)
    n = state["step"] + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradient)
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g**2, state["square"], gradient)
    move = lambda p, m, s: p - 3e-3 * (m / (1 - 0.9**n)) / (jnp.sqrt(s / (1 - 0.99**n)) + 1e-8)
    return {"params": jax.tree.map(move, state["params"], mean, square), "mean": mean, "square": square, "step": n}


def train(path, resume):
    zeros = jax.tree.map(jnp.zeros_like, params)
    state = {"params": params, "mean": zeros, "square": zeros, "step": jnp.int32(0)}
    recorder = jaxviz.Recorder(path)
    for i in range(5):
        if i == 3:
            saved = {name: state[name] for name in ("params", "mean", "square")}
            state = resume(saved, i) if resume else state
        state = recorder(adam, state, batches[i])
    return state


def resumed(saved, n):
    return {**saved, "step": jnp.int32(0)}


whole, after = train("whole.jaxviz", None), train("resumed.jaxviz", resumed)

# %% [markdown]
# A `Recorder` writes 23 numbers for each value and cotangent to a file, from which no array can be restored: norms, a hash, a random projection. Two files, from two machines or two versions of JAX, can be compared:

# %%
found = jaxviz.divergence("whole.jaxviz", "resumed.jaxviz")
print(found.summary)

# %% [markdown]
# Calls 0 to 2 agree, and so do the parameters and the moments that call 3 gets. The number of the step is not among what was saved.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: far
def _step_length(n):
    return (1 - 0.99**n) ** 0.5 / (1 - 0.9**n)


far = teach.predict(
    "Adam divides its moments by `1 - 0.9**n` and `1 - 0.99**n`. With `n = 1` in place of `n = 4`, its step becomes…",
    ["longer", "shorter", "neither"],
    truth=lambda: "longer" if _step_length(1) > 1.01 * _step_length(4) else "shorter",
    because={
        "longer": "The mean is divided by 0.1 and not by 0.344, so it is 3.4 times as large; the square is divided by 0.01 and not by 0.039, and its root is "
        "twice as large. The quotient is 1.7 times as long.",
        "shorter": "Both corrections are divisions by a number below 1. Which of the two has more effect?",
        "neither": "Both corrections change, and the second one stands under a root.",
    },
    hints=("Compute `sqrt(1 - 0.99**n) / (1 - 0.9**n)` for both.",),
)
far

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
far.solution("longer")

# %%
train("mended.jaxviz", lambda saved, n: {**saved, "step": jnp.int32(n)})
print(jaxviz.divergence("whole.jaxviz", "mended.jaxviz").summary)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert found.call[0] == 3 and found.parting.expression == "state['step']" and found.agreed == 2
_mended = jaxviz.divergence("whole.jaxviz", "mended.jaxviz")
assert _mended.parting is None and _mended.worst == 0
assert culprit.answer("another eps") and _causes()["another eps"] > 100 > 10 * max(_causes()["rsqrt"], _causes()["the fused product"])
assert 1.6 < _step_length(1) / _step_length(4) < 1.8
from pathlib import Path

for _name in ("whole", "resumed", "mended"):
    Path(f"{_name}.jaxviz").unlink()

# %% [markdown]
# ## What to remember
#
# - The end of a training cannot tell rounding from a mistake, because training amplifies both. Compare one step, value by value.
# - Measure what rounding may change: other last digits at the start. What differs by hundreds of times as much is a mistake, however small it is.
# - `jaxviz.divergence(f, g, *args)` names the first such value, forward and then backward; `%divergence` does so for your own.
# - For runs of many steps, in two processes, write records with `jaxviz.Recorder`. They name the first call, and what it was given.
#
# Next: what a gradient is if the numbers are complex, in [18 · complex numbers](18_complex_numbers.ipynb).
