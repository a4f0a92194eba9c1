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
# # 23 · How long must a training step take at least?
#
# A step takes a quarter of a second. Is that slow? You can tell before you open a profiler: count the work of the step, measure what the device can do in a second, and divide.
# This notebook computes that least time line by line, compares it with the clock, and asks what a larger batch and a checkpoint change.
#
# It takes 30 minutes. You need to know what a gradient computes forward and backward ([4 · partial evaluation and residuals](04_partial_evaluation_and_residuals.ipynb)), and what a
# checkpoint does ([6 · checkpoints](06_checkpoints.ipynb)).
#
# ## A step
#
# A residual network of eight layers, and Adam, without its correction of the first steps. The parameters and the two moments are donated, so each step writes to memory that is there.

# %%
import time
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxviz
from jaxviz import teach

WIDTH, LAYERS, BATCH = 1024, 8, 128


def layer(h, w):
    return h + jax.nn.relu(h @ w), None


def loss(params, x, y):
    h, _ = jax.lax.scan(layer, x, params)
    return jnp.mean((h - y) ** 2)


def adam(params, m, v, g):
    m = 0.9 * m + 0.1 * g
    v = 0.99 * v + 0.01 * g**2
    return params - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v


def train_step(state, x, y):
    params, m, v = state
    return adam(params, m, v, jax.grad(loss)(params, x, y))


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


# %%
def fastest(advance, x, runs=5):
    """The least seconds of several calls, each on the result of the last."""
    x, seconds = jax.block_until_ready(advance(x)), []
    for _ in range(runs):
        start = time.perf_counter()
        x = jax.block_until_ready(advance(x))
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def new_state():
    params = 0.02 * normal(0, LAYERS, WIDTH, WIDTH)
    return params, jnp.zeros_like(params), jnp.zeros_like(params)


def examples(n):
    return normal(1, n, WIDTH), normal(2, n, WIDTH)


train = jax.jit(train_step, donate_argnums=0)
x, y = examples(BATCH)
taken = fastest(lambda state: train(state, x, y), new_state())
print(f"{LAYERS * WIDTH**2 / 1e6:.1f} million parameters, {BATCH} examples: {1e3 * taken:.0f} ms for a step")

# %% [markdown]
# ## The work
#
# A product with a matrix is a multiplication and an addition for each of its numbers and each example: 2 FLOPs. Almost all parameters of a network are in such matrices. That is the forward pass.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: each
params = new_state()[0]
plain = jaxviz.cost(loss, params, x, y)


def _each():
    per_parameter = plain.total.flops / (params.size * BATCH)
    return f"{per_parameter:.0f}"


each = teach.predict(
    "How many FLOPs does the whole gradient take, forward and backward, for each parameter and example?",
    ["2", "4", "6", "8"],
    truth=_each,
    because={
        "2": "That is the forward pass alone.",
        "4": "A product has two factors, and the backward pass needs the cotangent of each.",
        "6": "Forward one product; backward two, one for the cotangent of `h`, which goes on to the layer before, and one for the gradient of `w`. Each has 2 FLOPs.",
        "8": "That would be one product more. With a checkpoint around the layer, there is.",
    },
    hints=("How many products of matrices does the transpose of `h @ w` need?",),
)
each

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
each.solution("6")

# %% [markdown]
# `jaxviz.cost` counts the equations of a step, by line. It runs nothing. The bytes are those of each operation by itself: what it reads and what it writes.

# %%
work = jaxviz.cost(train_step, new_state(), x, y)
work

# %% [markdown]
# Two kinds of lines: products with many FLOPs for each byte, and all others, with less than one. The FLOPs for each byte are the *intensity*.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert work.is_step and abs(plain.backward.flops / plain.forward.flops - 2) < 0.02
assert work.by_primitive["dot_general"].flops > 0.95 * work.total.flops
assert work.by_primitive["dot_general"].intensity > 30
assert all(cost.intensity < 1 for name, cost in work.by_primitive.items() if name != "dot_general")

# %% [markdown]
# ## The device
#
# Two numbers describe it: FLOPs in a second, in a large product, and bytes in a second, of an array that no cache can hold. It is scaled in place, because the host would first have to provide new memory.


# %%
class Speed(NamedTuple):
    flops: float
    bandwidth: float

    @property
    def ridge(self):
        return self.flops / self.bandwidth


def measure():
    w, long = normal(3, WIDTH, WIDTH) / WIDTH**0.5, jnp.ones(2**25)
    times_w, scaled = jax.jit(lambda a: a @ w), jax.jit(lambda x: 1.0001 * x, donate_argnums=0)
    return Speed(2 * WIDTH**3 / fastest(times_w, w, runs=12), 2 * long.nbytes / fastest(scaled, long, runs=12))


here = measure()
h200 = Speed(726e12, 3.6e12)  # products of bfloat16, as measured on one
for name, speed in {"here": here, "an H200": h200}.items():
    print(f"{name:8} {speed.flops / 1e9:9,.0f} GFLOP/s {speed.bandwidth / 1e9:7,.0f} GB/s, ridge {speed.ridge:6.1f} FLOPs for each byte")

# %% [markdown]
# At the *ridge*, computing takes as long as moving. An operation of a lower intensity waits for memory; one of a higher intensity waits for arithmetic. The figures
# of the H200 are those of the page *What was measured on which device*. A machine that is busy with something else has lower ones, which change from one minute to the next.
#
# While one operation computes, its bytes can be on their way. So it takes at least as long as the slower of the two.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: least_time
class _Work(NamedTuple):
    flops: float
    nbytes: float


def _of_parts(costs, speed):
    return sum(max(c.flops / speed.flops, c.nbytes / speed.bandwidth) for c in costs)


def _wrong_time(answer):
    speed = Speed(100.0, 10.0)
    for what, costs in {
        "one operation of 500 FLOPs and 20 bytes": [_Work(500, 20)],
        "one of 100 FLOPs and 40 bytes": [_Work(100, 40)],
        "both of them, one after the other": [_Work(500, 20), _Work(100, 40)],
        "a copy of 70 bytes": [_Work(0, 70)],
    }.items():
        ours, right = answer(costs, speed), _of_parts(costs, speed)
        if abs(ours - right) > 1e-6 * right:
            return f"At 100 FLOPs and 10 bytes in a second, {what} takes at least {right:g} s; you say {ours:g}."
    return ""


least_time = teach.rule(
    "Write `my_least(costs, speed)`: the least seconds for operations that run one after the other. Each of `costs` has `.flops` and `.nbytes`; `speed` has `.flops` and `.bandwidth`.",
    teach.Check("is the least time of operations, one after the other", _wrong_time),
    hints=(
        "For one operation: how long does it compute, how long does it move, and which of the two does it wait for?",
        "A product cannot compute while the operation before it still moves bytes. So each has its own maximum.",
    ),
    wrong=(
        lambda costs, speed: sum(c.flops / speed.flops + c.nbytes / speed.bandwidth for c in costs),
        lambda costs, speed: max(sum(c.flops for c in costs) / speed.flops, sum(c.nbytes for c in costs) / speed.bandwidth),
        lambda costs, speed: sum(min(c.flops / speed.flops, c.nbytes / speed.bandwidth) for c in costs),
        lambda costs, speed: sum(c.flops for c in costs) / speed.flops,
        lambda costs, speed: max(max(c.flops / speed.flops, c.nbytes / speed.bandwidth) for c in costs),
    ),
)
least_time


# %% tags=["answer"]
def my_least(costs, speed):
    return ...


least_time.answer(my_least)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def least(costs, speed):
    return sum(max(c.flops / speed.flops, c.nbytes / speed.bandwidth) for c in costs)


least_time.solution(least)

# %% [markdown]
# Here are the step's primitives on this machine, at best. Each circle is as large as its time:

# %% jupyter={"source_hidden": true}
# The roofline, with each group of equations as a circle
def roofline(costs, speed, title):
    names, costs = zip(*costs.items())
    intensity = np.geomspace(0.05, 4 * max(speed.ridge, max(c.intensity for c in costs)), 200)
    plt.figure(figsize=(6, 3))
    plt.loglog(intensity, np.minimum(speed.flops, intensity * speed.bandwidth) / 1e9, color="0.3")
    seconds = np.array([least([c], speed) for c in costs])
    rate = [c.flops / s / 1e9 for c, s in zip(costs, seconds)]
    plt.scatter([c.intensity for c in costs], rate, s=1500 * seconds / seconds.sum(), alpha=0.6)
    for i in np.argsort(-seconds)[:3]:
        plt.annotate(names[i], (costs[i].intensity, rate[i]), (8, -18), textcoords="offset points", fontsize=8)
    plt.axvline(speed.ridge, color="0.7", lw=0.8)
    plt.ylim(top=2.5 * speed.flops / 1e9)
    plt.xlabel("FLOPs for each byte")
    plt.ylabel("GFLOP/s")
    plt.title(title)


roofline({name: c for name, c in work.by_primitive.items() if c.flops}, here, "the step, by primitive, at best")
one_by_one = least([row.cost for row in work.rows], here)
print(f"one by one, the operations take at least {1e3 * one_by_one:.0f} ms; the step takes {1e3 * taken:.0f} ms")

# %% [markdown]
# The explorer draws it too: press *Roofline*. It measures the kernel's device when you ask, so it needs the kernel. A click on a circle selects its line.

# %%
explorer = jaxviz.explore(loss, params, x, y)
explorer.question = "cost"
explorer

# %% [markdown]
# ## What does not have to move
#
# One by one is not a bound. XLA fuses operations, and a value between two of them is then never in memory. Adam has twelve elementwise operations. What is left of their bytes if all of them are fused?

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: moved
def _update_bytes():
    types = (params,) * 4
    return sum(leaf.size * leaf.dtype.itemsize for leaf in (*types, *jax.eval_shape(adam, *types))) // params.size


_CHOICES = {8: "8: two arrays", 16: "16: four arrays", 28: "28: seven arrays", 112: "112: what twelve operations read and write"}
moved = teach.predict(
    "How many bytes must `adam(params, m, v, g)` move at least for each parameter, read and written, in float32?",
    list(_CHOICES.values()),
    truth=lambda: _CHOICES[_update_bytes()],
    because={
        "8: two arrays": "The parameters are read and written. What else goes in and out?",
        "16: four arrays": "That is what it reads: parameters, two moments and gradient. Three arrays are written as well.",
        "28: seven arrays": "It reads the parameters, two moments and the gradient, and writes all but the gradient. All else can stay in registers.",
        "112: what twelve operations read and write": "That is what they move one by one. Fused, most of it stays in registers.",
    },
    hints=("What are the arguments, and what are the results?",),
)
moved

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
moved.solution("28: seven arrays")

# %% [markdown]
# A bound that holds for every compiler counts only arguments and results, each once. They must be too large for a cache:


# %%
def of_all(f, *args):
    """The FLOPs of a function, and the bytes of its arguments and results."""
    leaves = jax.tree.leaves((args, jax.eval_shape(f, *args)))
    flops = sum(jaxviz.cost_of(e).flops for e in jaxviz.trace(f)(*args).equations)
    return _Work(flops, sum(leaf.size * leaf.dtype.itemsize for leaf in leaves))


updated = of_all(adam, params, params, params, params)
update, g = jax.jit(adam, donate_argnums=(0, 1, 2)), normal(4, *params.shape)
by_xla = update.lower(*new_state(), g).compile().cost_analysis()["bytes accessed"]
adam_rows = [row.cost for row in work.rows if row.location.function == "adam"]
adam_takes = fastest(lambda state: update(*state, g), new_state())
print(f"bytes for each parameter: fused {updated.nbytes / params.size:.0f}, ", end="")
print(f"one by one {sum(c.nbytes for c in adam_rows) / params.size:.0f}, in XLA's program for {jax.default_backend()} {by_xla / params.size:.0f}")
print(f"time: fused at least {1e3 * least([updated], here):.1f} ms, one by one {1e3 * least(adam_rows, here):.1f} ms, measured {1e3 * adam_takes:.1f} ms")

# %% [markdown]
# XLA's own count lies between the two: it has made a few loops of the many operations. Now all of the step. Its update begins when the scan has the whole gradient, so the times add up:

# %%
gradient = of_all(jax.grad(loss), params, x, y)
bound = least([gradient, updated], here)
print(f"gradient {1e3 * least([gradient], here):.1f} ms + update {1e3 * least([updated], here):.1f} ms = {1e3 * bound:.1f} ms at least")
print(f"measured {1e3 * taken:.1f} ms, {taken / bound:.1f} times as long")

# %% [markdown]
# The gradient is bound by arithmetic and the update by memory. The bound leaves out what is saved in the forward pass, that not every product reaches the speed of the measured one, and whatever else the machine is doing.
# If the factor is large, `jaxviz.profile` says on which line the time is. A factor below 1 means that the machine was busier while you measured its speed.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert len(adam_rows) == 12 and round(sum(c.nbytes for c in adam_rows) / params.size) == 112
assert abs(gradient.flops / plain.total.flops - 1) < 0.01
assert updated.nbytes <= by_xla < sum(c.nbytes for c in adam_rows)
assert gradient.flops / here.flops > gradient.nbytes / here.bandwidth
assert updated.flops / here.flops < updated.nbytes / here.bandwidth
assert bound < one_by_one
assert taken > 0.25 * bound, "the machine was several times busier when its speed was measured"

# %% [markdown]
# ## The batch
#
# The parameters are read once, whatever the batch. A product of `(batch, n_in)` and `(n_in, n_out)` reads both factors and writes the result, with `size` bytes for a number.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: smallest
def _intensity(batch, n_in, n_out, size):
    return 2 * batch * n_in * n_out / (size * (batch * n_in + n_in * n_out + batch * n_out))


def _off_the_ridge(answer):
    for n_in, n_out, size, ridge in ((1024, 4096, 4, 20.0), (8192, 8192, 2, 201.7), (512, 512, 4, 20.0)):
        batch = answer(n_in, n_out, size, ridge)
        reached = _intensity(batch, n_in, n_out, size)
        if not abs(reached / ridge - 1) < 0.01:
            return (
                f"For {n_in} × {n_out} numbers of {size} bytes and a ridge of {ridge}, you say {batch:.4g}: that product has "
                f"{reached:.4g} FLOPs for each byte."
            )
    return ""


smallest = teach.rule(
    "Write `my_batch(n_in, n_out, size, ridge)`: the batch for which that product has an intensity of `ridge`. It need not be a whole number.",
    teach.Check("a product with that batch is at the ridge", _off_the_ridge),
    hints=(
        "Write the FLOPs and the bytes with the unknown `batch` in them. Two of the three arrays grow with it.",
        "`2 * batch * n_in * n_out == ridge * size * (batch * n_in + n_in * n_out + batch * n_out)`. Solve for `batch`.",
    ),
    wrong=(
        lambda n_in, n_out, size, ridge: ridge,
        lambda n_in, n_out, size, ridge: ridge * size / 2,
        lambda n_in, n_out, size, ridge: ridge * size * n_in * n_out / (2 * n_in * n_out - ridge * size * n_in),
        lambda n_in, n_out, size, ridge: ridge * n_in * n_out / (2 * n_in * n_out - ridge * (n_in + n_out)),
    ),
)
smallest


# %% tags=["answer"]
def my_batch(n_in, n_out, size, ridge):
    return ...


smallest.answer(my_batch)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def batch_at_ridge(n_in, n_out, size, ridge):
    return ridge * size * n_in * n_out / (2 * n_in * n_out - ridge * size * (n_in + n_out))


smallest.solution(batch_at_ridge)

# %%
print(f"here, {WIDTH} × {WIDTH} in float32:        {batch_at_ridge(WIDTH, WIDTH, 4, here.ridge):6.1f}")
print(f"on an H200, 8,192 × 8,192 in bfloat16: {batch_at_ridge(8192, 8192, 2, h200.ridge):6.1f}, with a ridge of {h200.ridge:.1f}")

# %% [markdown]
# With two bytes for a number, the batch is the ridge, and a little more: each row does 2 FLOPs for each number of the matrix. In a language model, a row is a *token*: a training step has thousands of them, and a decoder
# that answers 16 people has 16. It waits for its weights. The step here, with other batches:


# %%
def bound_of(n):
    return least([of_all(jax.grad(loss), params, *examples(n)), updated], here)


sizes = (1, 16, 64, 256)
times = {n: fastest(lambda state, data=examples(n): train(state, *data), new_state(), runs=3) for n in sizes}
for n in sizes:
    print(f"batch {n:4}: at least {1e3 * bound_of(n):6.1f} ms, measured {1e3 * times[n]:6.1f} ms, {1e3 * times[n] / n:7.2f} ms for each example")

# %% jupyter={"source_hidden": true}
# The same as a plot
plt.figure(figsize=(6, 2.8))
plt.loglog(sizes, [1e3 * bound_of(n) for n in sizes], "--", color="0.3", label="at least")
plt.loglog(sizes, [1e3 * times[n] for n in sizes], "o-", label="measured")
plt.xticks(sizes, sizes)
plt.minorticks_off()
plt.xlabel("batch")
plt.ylabel("ms for a step")
plt.legend(frameon=False);

# %% [markdown]
# For small batches the bound is flat: parameters, moments and gradient move, and the examples hardly count. For large ones it rises with the batch.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert h200.ridge < batch_at_ridge(8192, 8192, 2, h200.ridge) < 1.1 * h200.ridge
assert bound_of(2) < 1.1 * bound_of(1)
assert bound_of(512) > 1.5 * bound_of(256)
assert times[1] > 5 * times[256] / 256

# %% [markdown]
# ## A checkpoint
#
# With `jax.checkpoint` around each layer, only the inputs of the layers are saved. In the backward pass each layer is computed again.


# %%
def checkpointed(params, x, y):
    h, _ = jax.lax.scan(jax.checkpoint(layer), x, params)
    return jnp.mean((h - y) ** 2)


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: dearer
_CASES = ["1, and 1", "4/3, and 1", "4/3, and 4/3", "3/2, and 1", "2, and 2"]


def _factor(n):
    before, after = (of_all(jax.grad(f), params, *examples(n)) for f in (loss, checkpointed))
    return least([after], h200) / least([before], h200)


def _factors():
    name = lambda n: min(("1", "4/3", "3/2", "2"), key=lambda text: abs(Fraction(text) - _factor(n)))
    return f"{name(4096)}, and {name(1)}"


dearer = teach.predict(
    "By which factor does the least time of the gradient grow, with the two figures of the H200: for a batch of 4,096, and for a batch of 1?",
    _CASES,
    truth=_factors,
    because={
        "1, and 1": "A batch of 4,096 is far right of the ridge: one more product takes its time.",
        "4/3, and 1": "Four products instead of three, where arithmetic is the bound. With one example the parameters are the bound, and the arithmetic, whether for three products or for four, is done while they move.",
        "4/3, and 4/3": "That is the factor of the FLOPs. Are they the bound in both cases?",
        "3/2, and 1": "The gradient has three products for each layer. How many are there with one more?",
        "2, and 2": "Only the forward pass is repeated, and it is the smaller part of the work.",
    },
    hints=("How many products does a layer have, and how many more are there now?", "Which side of the ridge is each of the two on?"),
)
dearer

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
dearer.solution("4/3, and 1")

# %%
once, again = jax.jit(jax.grad(loss)), jax.jit(jax.grad(checkpointed))
rounds = [[fastest(lambda _: f(params, x, y), None, runs=2) for f in (once, again)] for _ in range(4)]  # in turn
seconds = dict(zip((once, again), np.min(rounds, axis=0)))
for name, f, run in (("as written", loss, once), ("checkpoint", checkpointed, again)):
    memory, flops = jaxviz.memory(f, params, x, y), of_all(jax.grad(f), params, x, y).flops
    print(f"{name}: {flops / 1e9:.1f} GFLOP, {1e3 * seconds[run]:.0f} ms; XLA's temporaries {memory.xla.temporaries / 2**20:.1f} MiB")

# %% [markdown]
# The FLOPs are certain, and the clock of a machine with other work may not show them. A checkpoint that repeats only elementwise operations adds hardly any: [7 · policies and plans](07_policies_and_plans.ipynb).
#
# ## MFU
#
# *Model FLOPs utilization* is the share of the device's arithmetic that went into the model. FLOPs that a checkpoint repeats are not the model's.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: utilization
def _wrong_share(answer):
    for what, arguments, right in (
        ("60 FLOPs of a model, run as they are, take 2 s", (2.0, _Work(60, 5), _Work(60, 5)), 0.3),
        ("60 FLOPs of a model, 80 with what is repeated, take 2 s", (2.0, _Work(60, 5), _Work(80, 5)), 0.3),
    ):
        ours = answer(*arguments, Speed(100.0, 10.0))
        if abs(ours - right) > 1e-6:
            return f"At 100 FLOPs in a second, {what}: the MFU is {right:.0%}; you say {ours:.0%}."
    return ""


utilization = teach.rule(
    "Write `my_mfu(seconds, written, run, speed)`: the MFU of a gradient that takes `seconds`. `written.flops` are the FLOPs of the model's gradient without checkpoints, and `run.flops` "
    "those of what was run.",
    teach.Check("is the share of the device's FLOPs that went into the model", _wrong_share),
    hints=("How many FLOPs could the device have done in that time?", "Of those, which count: `written` or `run`?"),
    wrong=(
        lambda seconds, written, run, speed: run.flops / (seconds * speed.flops),
        lambda seconds, written, run, speed: written.flops / run.flops,
        lambda seconds, written, run, speed: written.flops / seconds / speed.bandwidth,
        lambda seconds, written, run, speed: written.flops**2 / run.flops / (seconds * speed.flops),
    ),
)
utilization


# %% tags=["answer"]
def my_mfu(seconds, written, run, speed):
    return ...


utilization.answer(my_mfu)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def mfu(seconds, written, run, speed):
    return written.flops / (seconds * speed.flops)


utilization.solution(mfu)

# %%
recomputing = of_all(jax.grad(checkpointed), params, x, y)
for name, run, ran in (("as written", once, gradient), ("checkpoint", again, recomputing)):
    share = mfu(seconds[run], gradient, ran, here)
    print(f"{name}: MFU {share:.0%}, and with what is repeated {share * ran.flops / gradient.flops:.0%}")

# %% [markdown]
# With what is repeated, it is the *hardware's* utilization. It can rise while training becomes slower, and MFU cannot: of two ways to compute one gradient, the one with the higher MFU is the faster.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert abs(recomputing.flops / gradient.flops - 4 / 3) < 0.01 and recomputing.nbytes == gradient.nbytes
assert jaxviz.residuals(checkpointed, params, x, y).nbytes_without_arguments < jaxviz.residuals(loss, params, x, y).nbytes_without_arguments
assert (mfu(seconds[once], gradient, gradient, here) > mfu(seconds[again], gradient, recomputing, here)) == (seconds[once] < seconds[again])
assert 0.02 < mfu(seconds[once], gradient, gradient, here) < 4

# %% [markdown]
# ## What to remember
#
# - A gradient takes 6 FLOPs for each parameter and example or token; with a checkpoint around the layers, 8.
# - An operation takes at least its FLOPs divided by the device's, or its bytes divided by the bandwidth, whichever is more. The ridge is where the two are equal.
# - Only arguments and results have to move. What single operations move beyond that, a compiler can save.
# - In bfloat16, a product with fewer rows than the ridge waits for its matrix. There a checkpoint may be free; with more rows, one around the layers costs a third more.
# - MFU does not count what is repeated.
#
# Next: all of a gradient in 40 lines, in [24 · a tape](24_a_tape.ipynb).
