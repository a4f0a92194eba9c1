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
# # 13 · The loss is fine. Where does the NaN come from?
#
# A training run stops learning. No loss was ever NaN, but the parameters are. This notebook finds the operation that produced the
# first NaN, with the loop iteration and the example, fixes it, and shows the usual ways in which a finite value has a NaN derivative.
#
# It takes 35 minutes. You should know that a backward pass computes cotangents from values that the forward pass saved:
# [4 · partial evaluation and residuals](04_partial_evaluation_and_residuals.ipynb).
#
# ## The run
#
# Each example is a recording of 12 velocities, measured with noise; a recurrent network predicts the direction of the motion. Speed does not
# matter, so each velocity is normalised to length 1. The author of `unit` thought of the zero vector.

# %%
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

import jaxviz
from jaxviz import teach


def unit(v):
    length = jnp.sqrt(jnp.sum(v**2, axis=-1, keepdims=True))
    return jnp.where(length > 0, v / length, 0.0)


def loss(params, readings, direction):
    def step(h, reading):
        turned = unit(reading @ params["in"])
        return jnp.tanh(turned @ params["mix"] + h @ params["rec"]), None

    h = jnp.zeros((readings.shape[1], params["rec"].shape[0]))
    h, _ = jax.lax.scan(step, h, readings)
    return jnp.mean((h @ params["out"] - direction) ** 2)


@jax.jit
def train_step(params, readings, direction):
    value, gradient = jax.value_and_grad(loss)(params, readings, direction)
    return jax.tree.map(lambda p, g: p - 0.3 * g, params, gradient), value


# %% [markdown]
# The data simulate an object that slows down, batch after batch, until it stops.

# %%
rng = np.random.default_rng(0)


def batch(n):
    direction = rng.normal(size=(8, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    speed = np.exp(rng.normal(size=(12, 8, 1)))
    readings = speed * (direction + 0.3 * rng.normal(size=(12, 8, 3)))
    if 36 <= n <= 40:
        readings[7, 3] *= 0.0 if n == 40 else 10.0 ** (35 - n)
    return readings.astype(np.float32), direction.astype(np.float32)


def normal(rows, columns):
    return (rng.normal(size=(rows, columns)) / rows**0.5).astype(np.float32)


params = {"in": normal(3, 8), "mix": normal(8, 16), "rec": normal(16, 16) / 2, "out": normal(16, 3)}
batches = [batch(n) for n in range(60)]

# %%
history, losses = [params], []
for readings, direction in batches:
    new, value = train_step(history[-1], readings, direction)
    history.append(new)
    losses.append(float(value))

# %% jupyter={"source_hidden": true}
# The loss at each step
import matplotlib.pyplot as plt

plt.figure(figsize=(6, 2.4))
plt.plot(losses, ".-")
plt.xlabel("step")
plt.ylabel("loss");

# %% [markdown]
# Learning stops suddenly, and every later batch has the same loss. All losses are finite. The parameters show more:

# %%
finite = [all(np.all(np.isfinite(p)) for p in after.values()) for after in history[1:]]
n_bad = finite.index(False)
good, bad = history[n_bad], batches[n_bad]
print(f"step {n_bad} has a loss of {losses[n_bad]:.3f}; after it:")
for name, p in history[n_bad + 1].items():
    print(f"  params[{name!r}]: {np.isnan(p).sum()} of {p.size} are NaN")

# %% [markdown]
# `good` and `bad` are the parameters and the batch of that step, so you can reproduce it at any time. But why is the loss not NaN
# afterwards, with such parameters?

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: hidden
def _of_nan(unit=unit):
    out = np.asarray(unit(np.full(3, np.nan, np.float32)))
    return "NaN" if np.isnan(out).all() else "zeros" if not out.any() else "something else"


hidden = teach.predict(
    "`reading @ params['in']` is NaN from now on. What does `unit` return for a vector of NaNs?",
    ["NaN", "zeros", "an error"],
    truth=_of_nan,
    because={
        "NaN": "NaN goes through arithmetic, but `where` is not arithmetic: it chooses.",
        "an error": "To the hardware, NaN is an ordinary floating-point value. Nothing is raised.",
        "zeros": "`nan > 0` is False, so `where` takes the zeros. The network gets only zeros and returns 0, and the loss is the mean of "
        "`direction**2`, which is 1/3.",
    },
    hints=("What is `float('nan') > 0`?",),
)
hidden

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
hidden.solution("zeros")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert n_bad == 40 and np.all(np.isfinite(losses))
assert np.allclose(losses[n_bad + 1 :], 1 / 3, atol=1e-6) and max(losses[10:n_bad]) < 0.2
assert np.isnan(history[n_bad + 1]["in"]).all()

# %% [markdown]
# So a finite loss says little about the gradient. Check the gradient or the parameters.
#
# ## What `jax_debug_nans` says

# %%
with jax.debug_nans(True):
    try:
        train_step(good, *bad)
    except FloatingPointError as error:
        print(error)

# %% [markdown]
# There is a NaN, and it came from a `scan`. Which operation, in which iteration, forward or backward? To JAX, a `scan` is one operation at
# run time, so nothing more can be said from the outside.
#
# ## What `jaxviz.find_nan` says
#
# First, make your own guess. `unit` of a vector of zeros divides 0 by 0, and `where` takes the other side.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: origin
_BIRTHS = {
    ("forward", "div"): "v / length, in the forward pass",
    ("forward", "select_n"): "jnp.where, in the forward pass: it lets the NaN through",
    ("backward", "mul"): "the derivative of v / length, in the backward pass",
}


@lru_cache
def _birth(unit=unit):
    found = jaxviz.find_nan(lambda v: jnp.sum(unit(v)), np.zeros(3, np.float32))
    event = found.became_nan or found.born
    return _BIRTHS[event.phase, event.primitive]


origin = teach.predict(
    "Which operation produces the NaN that reaches the gradient?",
    list(_BIRTHS.values()),
    truth=_birth,
    because={
        _BIRTHS["forward", "div"]: "That is a NaN, but `where` does not select it: the loss is finite. The NaN goes nowhere.",
        _BIRTHS["forward", "select_n"]: "It works as intended: the value is 0, and the loss is finite.",
        _BIRTHS["backward", "mul"]: "`where` sends a cotangent of 0 to the side that it did not select. The derivative of `v / length` "
        "multiplies that by `1 / length**2`, which is infinite, and zero times infinity is NaN.",
    },
    hints=("The loss is finite.", "Both sides of a `where` are differentiated. What does the side that was not selected get?"),
)
origin

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
origin.solution("the derivative of v / length, in the backward pass")

# %%
report = jaxviz.find_nan(loss, good, *bad)
report

# %% [markdown]
# Read it from the top. *What* is not finite: only the gradient in `params['in']`. *Where it was born*: the derivative of `sqrt` at 0 is infinite,
# and it is computed in the forward pass, since it is a residual. *Where it became NaN*: in the division of the backward pass. Both are in
# iteration 7, at the example with index 3. Then follow the cause, what to write instead, and the lines from there to the result.
#
# `%nan loss(good, *bad)` shows the same.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert report.results == ("the gradient in params['in']",)
assert (report.born.operation, report.born.phase, report.born.made) == ("sqrt", "forward", "infinity")
assert (report.became_nan.operation, report.became_nan.phase) == ("div", "backward")
assert report.born.cause.id == "unsafe-where"
for event in (report.born, report.became_nan):
    assert event.index[0] == 3
    assert [(i.index, i.length) for i in event.iterations] == [(7, 12)]

# %% [markdown]
# ## Go there
#
# `jaxviz.step` runs the forward and the backward pass equation by equation, and goes into loops. To run to the first value that is not finite:

# %%
s = jaxviz.step(loss, good, *bad)
s.run(non_finite=True)

# %% [markdown]
# It stops in iteration 7 of the forward pass. The widget above is live, and follows `s`: once all cells have run, it is at the end. The
# cells below show where `s` was in between.
#
# Go back in time, to the start of that iteration, and forward by one equation, which is `reading @ params["in"]`. The picture shows the
# zero row.

# %%
s.to(iteration=7).next()

# %% [markdown]
# Continue past the values that are not finite in the forward pass, to the first such value in the backward pass. The backward pass runs from the last
# iteration to the first, so iterations 11 to 8 are done.

# %%
velocity = s.shown[0].name
while s.stage == "forward":
    s.run(non_finite=True)
s

# %% [markdown]
# At the end of the backward pass, every value of the forward pass has its cotangent, for each iteration. These are the cotangents of `reading @ params["in"]`:

# %%
s.run()
for i in (8, 7, 6):
    ct = np.asarray(s.cotangents[velocity, i])
    examples = np.flatnonzero(np.isnan(ct).any(axis=1))
    print(f"iteration {i}: {np.isnan(ct).sum()} of {ct.size} are NaN, in the examples {examples}")

# %% [markdown]
# One reading of one example, in one iteration. The cotangent of `params["in"]` is a sum over all of them, so one NaN is enough.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
cts = [np.isnan(np.asarray(s.cotangents[velocity, i])) for i in range(12)]
assert [i for i, c in enumerate(cts) if c.any()] == [7] and s.is_done
assert cts[7][3].all() and cts[7].sum() == 8

# %% [markdown]
# ## The remedy: make the input safe
#
# A `where` after the division fixes the value. The derivative also needs a safe division, so a second `where` is needed before the division:
# the *double where*.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: safe
def _slope_at_zero(f):
    slope = np.asarray(jax.jit(jax.jacobian(f))(np.zeros(3, np.float32)))
    if not np.all(np.isfinite(slope)):
        return "At [0, 0, 0] it is not finite. Which operation gets a 0 there?"
    if np.abs(slope).max() > 10:
        return f"At [0, 0, 0] it is {slope.max():.3g}. That is finite, but one step with it still ruins the parameters."
    return ""


def _only_outside(v):
    length = jnp.linalg.norm(v, axis=-1, keepdims=True)
    return jnp.where(length == 0, 0.0, v / length)


def _safe_division_only(v):
    length = jnp.sqrt(jnp.sum(v**2, axis=-1, keepdims=True))
    return jnp.where(length > 0, v / jnp.where(length > 0, length, 1.0), 0.0)


def _plus_epsilon(v):
    return v / jnp.sqrt(jnp.sum(v**2, axis=-1, keepdims=True) + 1e-12)


some = np.array([[3.0, 4.0, 0.0], [-0.1, 0.2, 0.3]], np.float32)
safe = teach.rule(
    "Write `unit` so that its gradient is finite everywhere, and small at the zero vector.",
    teach.computes(unit, (some,), (0 * some,)).of(jax.jit),
    teach.gradient_of(jax.jit(unit), (some,)).of(jax.jit).saying("has the gradient of unit where that is finite"),
    teach.Check("its derivative at the zero vector is finite, and at most 10", _slope_at_zero),
    hints=(
        "Two operations have no finite derivative at 0: the division and the square root.",
        "Let `squared = jnp.sum(v**2, …)`, and make that safe, before the square root.",
        "`jnp.where(squared > 0, v / jnp.sqrt(jnp.where(squared > 0, squared, 1.0)), 0.0)`",
    ),
    wrong=(unit, _only_outside, _safe_division_only, _plus_epsilon, lambda v: v),
)
safe


# %% tags=["answer"]
def my_unit(v):
    squared = jnp.sum(v**2, axis=-1, keepdims=True)
    return ...


safe.answer(my_unit)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def safe_unit(v):
    squared = jnp.sum(v**2, axis=-1, keepdims=True)
    moves = squared > 0
    return jnp.where(moves, v / jnp.sqrt(jnp.where(moves, squared, 1.0)), 0.0)


safe.solution(safe_unit)

# %% [markdown]
# Why is the inner `where` not a problem itself? `where` does not multiply: in the backward pass it *chooses* between the cotangent and 0, so an infinity does
# not get past it. The outer one gives the value, and the inner one stops the cotangent.
#
# A shorter way is to add a small number under the root. Its slope at 0 is finite then, and enormous. Whether that does harm depends on what it is multiplied by. Two functions, with
# the same small number:

# %%
def nearly_length(v):
    return jnp.sqrt(jnp.sum(v**2, axis=-1) + 1e-12)


def nearly_unit(v):
    return v / nearly_length(v)


for f in (nearly_length, nearly_unit):
    print(f"{f.__name__}: the largest derivative at [0, 0, 0] is {np.abs(jax.jit(jax.jacobian(f))(np.zeros(3, np.float32))).max():.3g}")

# %% [markdown]
# In a length, the slope of the root is multiplied by that of `v**2`, which is 0 at 0: the small number is enough. `unit` also divides `v` by the small root, and nothing there is 0.
#
# The failing step, and the whole run, with `safe_unit`:

# %%
unit_as_it_was, unit = unit, safe_unit
train_step.clear_cache()
found = jaxviz.find_nan(loss, good, *bad)
print("find_nan:", found)
after, mended = params, []
for readings, direction in batches:
    after, value = train_step(after, readings, direction)
    mended.append(float(value))
print(f"loss of the last ten batches: {np.mean(mended[-10:]):.3f}; it was {np.mean(losses[-10:]):.3f}")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
_at_zero = lambda f: float(np.abs(jax.jit(jax.jacobian(f))(np.zeros(3, np.float32))).max())
assert _at_zero(nearly_length) == 0 and 1e5 < _at_zero(nearly_unit) < np.inf
assert found is None
assert all(np.all(np.isfinite(p)) for p in after.values())
assert np.mean(mended[-10:]) < 0.1 < np.mean(losses[-10:])

# %% [markdown]
# ## See a NaN coming
#
# `jaxviz.probe(x, "name")` returns `x` unchanged. Under `jaxviz.watch` it records each value of `x`, also in a `scan` under `jit`,
# and its cotangent. A watch is shown as a plot; with `display(w)` before the loop, the plot follows the training. The lengths, with the original
# `unit`:

# %%
def unit(v):
    length = jaxviz.probe(jnp.sqrt(jnp.sum(v**2, axis=-1, keepdims=True)), "length")
    return jnp.where(length > 0, v / length, 0.0)


train_step.clear_cache()
now = history[30]
with jaxviz.watch("length") as w:
    for readings, direction in w.steps(batches[30:41]):
        now, _ = train_step(now, readings, direction)
w

# %% jupyter={"source_hidden": true}
# The least length and the largest cotangent at each step
print("step   least length   cotangent")
for n in np.unique(w["length"].steps):
    least = w["length"].min[w["length"].steps == n].min()
    largest = w["length"].cotangents.norm[w["length"].cotangents.steps == n].max()
    print(f"{30 + n:4} {least:14.1e} {largest:11.1e}")

# %% [markdown]
# From step 36 on, the least length shrinks several times at each step, and in the last steps the cotangent grows: you can see the NaN coming
# several steps ahead. Even with `safe_unit`, the derivative of a direction *is* large near 0. At 0 itself it is 0.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
lengths, cotangents = w["length"], w["length"].cotangents
least = [lengths.min[lengths.steps == n].min() for n in range(11)]
largest = [cotangents.norm[cotangents.steps == n].max() for n in range(11)]
assert all(3 < a / b < 40 for a, b in zip(least[6:9], least[7:10])) and least[10] == 0
assert largest[9] > 2 * largest[8] > 4 * largest[7] and largest[9] > 5 * max(largest[:8]) and np.isnan(largest[10])
assert np.max(jax.jit(jax.jacobian(safe_unit))(np.array([1e-4, 0, 0], np.float32))) > 1e3

# %% [markdown]
# ## The usual causes
#
# ### At the edge of a domain
#
# A function can be finite at the edge of its domain but have an infinite slope there. Infinity is not NaN yet. Evaluate each of these at `x = 0`:

# %%
at_zero = {
    "sqrt(x)": jnp.sqrt,
    "log(x)": jnp.log,
    "x ** 1.5": lambda x: x**1.5,
    "abs(x)": jnp.abs,
    "cbrt(x) ** 3": lambda x: jnp.cbrt(x) ** 3,
}

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: edge
@lru_cache
def _value_and_slope(name):
    return tuple(float(x) for x in jax.jit(jax.value_and_grad(at_zero[name]))(0.0))


def _says(name):
    value, slope = _value_and_slope(name)
    return f"At 0 its value is {value:g} and its slope {slope:g}."


edge = teach.predict(
    "Which of them has a finite value at 0 and the slope NaN?",
    list(at_zero),
    truth=lambda: next(n for n in at_zero if np.isfinite(_value_and_slope(n)[0]) and np.isnan(_value_and_slope(n)[1])),
    because={name: (lambda name=name: _says(name)) for name in at_zero}
    | {
        "cbrt(x) ** 3": lambda: _says("cbrt(x) ** 3") + " It is x, with slope 1. But the chain rule multiplies the slope of the power, 0, by the "
        "slope of the root, which is infinite."
    },
    hints=("An infinite slope alone gives an infinity.", "Zero times infinity is NaN. Where is such a product?"),
)
edge

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
edge.solution("cbrt(x) ** 3")

# %% [markdown]
# The rule of thumb: an infinite slope times a zero from elsewhere. With `where`, the zero is the cotangent of the side that is not selected.
#
# ### Overflow
#
# The largest `float16` is 65504. Here is the textbook sigmoid:

# %%
def sigmoid(x):
    return 1 / (1 + jnp.exp(-x))


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: overflow
@lru_cache
def _sigmoid_at(x):
    value, slope = jax.jit(jax.value_and_grad(sigmoid))(x)
    return f"exp(-x) is {float(jnp.exp(-x)):.6g}, the value {float(value):.3g}, the slope {float(slope):.3g}."


_points = [kind(x) for kind in (np.float16, np.float32) for x in (-12, -8, 0, 3, 12)]


def _off(written):
    for x in _points:
        value, slope = jax.jit(jax.value_and_grad(lambda x: written(x)))(x)
        wanted = 1 / (1 + np.exp(-np.float64(x)))
        if not (abs(value - wanted) < 2e-3 and abs(slope - wanted * (1 - wanted)) < 2e-3):
            return f"For x = {x} in {x.dtype} the value is {float(value):.3g} and the slope {float(slope):.3g}; {wanted:.3g} and {wanted * (1 - wanted):.3g} are correct."
    return ""


overflow = teach.rule(
    "Write `my_sigmoid(x)` with `jnp.exp`, with a finite and correct slope from -12 to 12, in float16 too. Do not use `jax.nn` yet.",
    teach.Check("has the correct value and slope", _off),
    hints=(
        lambda: _sigmoid_at(np.float16(-12)),
        "For negative x, write it as e / (1 + e), with `e = exp(x)`, which is small there.",
        "`where` computes both sides, so make both finite: take the exponential of `-jnp.abs(x)`. Or halve the exponent: a tanh is a scaled sigmoid.",
    ),
    wrong=(sigmoid, lambda x: jnp.where(x > 0, sigmoid(x), jnp.exp(x) / (1 + jnp.exp(x))), lambda x: sigmoid(jnp.clip(x, -5, 5))),
)
overflow


# %% tags=["answer"]
def my_sigmoid(x):
    return ...


overflow.answer(my_sigmoid)


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def stable_sigmoid(x):
    small = jnp.exp(-jnp.abs(x))
    return jnp.where(x >= 0, 1, small) / (1 + small)


overflow.solution(stable_sigmoid)

# %%
found = jaxviz.find_nan(sigmoid, np.float16(-12))
slope = jax.grad(jax.nn.sigmoid)(np.float16(-12))
print(found)
print("\njax.nn.sigmoid has the slope", slope)

# %% [markdown]
# ### A fully masked row
#
# Attention masks scores with -inf. If a whole row is masked, its `logsumexp` is also -inf, the logarithm of an empty sum. So
# the result is replaced for such rows, and the value is fine. There are two ways to mask:

# %%
def chosen(scores, mask):
    total = jax.nn.logsumexp(jnp.where(mask, scores, -jnp.inf), axis=-1)
    return jnp.where(mask.any(axis=-1), total, 0.0)


def added(scores, mask):
    total = jax.nn.logsumexp(scores + jnp.where(mask, 0.0, -jnp.inf), axis=-1)
    return jnp.where(mask.any(axis=-1), total, 0.0)


scores = rng.normal(size=(3, 4)).astype(np.float32)
mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]], bool)
print(chosen(scores, mask), added(scores, mask))

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: masked
@lru_cache
def _bad(f):
    return bool(np.isnan(jax.jit(jax.grad(lambda s: jnp.sum(f(s, mask))))(scores)).any())


masked = teach.predict(
    "Which of the two has NaN in its gradient?",
    ["chosen", "added", "both", "neither"],
    truth=lambda: {(True, True): "both", (True, False): "chosen", (False, True): "added", (False, False): "neither"}[
        _bad(chosen), _bad(added)
    ],
    because={
        "chosen": "The NaN is produced there too, but it meets a `where` on its way to the scores.",
        "both": "Both produce a NaN in the backward pass. Does it reach the scores in both?",
        "neither": "The derivative of `logsumexp` for that row is NaN times a cotangent of 0.",
        "added": "In the backward pass, `+` passes on its cotangent, NaN included. `where` chooses 0 for the masked elements: it is the inner `where` of a double where.",
    },
    hints=("The outer `where` sends a cotangent of 0 into a NaN.", "What do `+` and `where` do with a cotangent of NaN?"),
)
masked

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
masked.solution("added")

# %%
print(jaxviz.find_nan(lambda scores: jnp.sum(added(scores, mask)), scores))

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert np.array_equal(chosen(scores, mask), added(scores, mask)) and np.all(np.isfinite(chosen(scores, mask)))
assert [_bad(chosen), _bad(added)] == [False, True]
assert np.isinf(_value_and_slope("sqrt(x)")[1])
assert found.born.cause.id == "overflow-of-exp" and np.isfinite(slope)

# %% [markdown]
# ## A harmless NaN raises no alarm
#
# The gradient of `chosen` produces a NaN in each call, but none reaches a result. So does the original `unit`, in its forward pass. `find_nan` returns None
# for these, and lists them on request. `jax_debug_nans` checks the result of every operation, used or not:

# %%
still = np.zeros(3, np.float32)
alarm = jaxviz.find_nan(unit_as_it_was, still)
print("find_nan:", alarm)
print(jaxviz.find_nan(unit_as_it_was, still, harmless=True))
with jax.debug_nans(True):
    try:
        unit_as_it_was(still)
    except FloatingPointError as error:
        print("\njax_debug_nans:", str(error).splitlines()[0])

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
harmless = jaxviz.find_nan(lambda scores: jnp.sum(chosen(scores, mask)), scores, harmless=True)
assert harmless.harmless and not harmless.results
assert alarm is None

# %% [markdown]
# ## What to remember
#
# - A finite loss says nothing about its gradient. Keep the parameters and the batch of the step before the first NaN, and call `find_nan`.
# - An infinite slope times a cotangent of 0 is NaN. A `where` after an operation fixes its value; a second one before it fixes its gradient.
# - A small number under a root, or clipping, gives a finite slope that may be enormous. That is enough where it is multiplied by 0, as in a length, and does harm elsewhere, as in a
#   unit vector. Look at the gradient there.
#
# `%nan loss(params, batch)` finds a NaN in your own program.
#
# Next: look at any value, finite or not, in [14 · inside a model](14_inside_a_model.ipynb).
