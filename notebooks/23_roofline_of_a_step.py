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
# Your step takes 40 ms. Is that slow? The work in it answers: so many FLOPs, and so many bytes that have to be moved. A device does so many of each in a second, and a step cannot be faster than
# the slower of the two. This notebook computes that bound from the program, line by line, measures the machine that you sit at, and compares both with the clock.
#
# It takes 25 minutes. You need to know that a gradient has a forward and a backward pass ([4 · partial evaluation and residuals](04_partial_evaluation_and_residuals.ipynb)), and
# what a checkpoint does ([6 · checkpoints](06_checkpoints.ipynb)).

# %%
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxviz
from jaxviz import teach

WIDTH, LAYERS = 1024, 3


def loss(params, x, target):
    def layer(h, w):
        return jnp.tanh(h @ w), None

    h, _ = jax.lax.scan(layer, x, params)
    return jnp.mean((h - target) ** 2)


def step(params, x, target):
    gradient = jax.grad(loss)(params, x, target)
    return params - 0.1 * gradient


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


params = 0.03 * normal(0, LAYERS, WIDTH, WIDTH)


def batch(n):
    return normal(1, n, WIDTH), normal(2, n, WIDTH)


# %% [markdown]
# ## What the step does
#
# `jaxviz.cost` counts the FLOPs and the bytes of every equation, forward and backward, as XLA counts them before it fuses anything. It runs nothing. With a batch of 4:

# %%
small = jaxviz.cost(step, params, *batch(4))
small

# %% [markdown]
# FLOPs divided by bytes is the *intensity*. The products do nearly all of the FLOPs, and the update `params - 0.1 * gradient` moves as many bytes as the line with the products: it reads and writes every
# parameter, for two FLOPs each.
#
# ## What the machine does
#
# Two numbers: FLOPs per second in a large product, and bytes per second of memory. The memory is measured in a loop, since a program's result is new memory, which the host has to provide
# first.

# %%
def least_seconds(f, *args, repeat=4):
    jax.block_until_ready(f(*args))  # compiles
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        jax.block_until_ready(f(*args))
        seconds.append(time.perf_counter() - start)
    return min(seconds)


square, long = normal(3, 1024, 1024), jnp.ones(2**24)
peak = 2 * 1024**3 / least_seconds(jax.jit(lambda w: w @ w), square, repeat=10)
over_memory = jax.jit(lambda x: jax.lax.fori_loop(0, 4, lambda _, x: x * 1.0001, x))
bandwidth = 4 * 2 * long.nbytes / least_seconds(over_memory, long)
ridge = peak / bandwidth
print(f"{peak / 1e9:.0f} GFLOP/s, {bandwidth / 1e9:.1f} GB/s: {ridge:.1f} FLOPs in the time of one byte")

# %% [markdown]
# The last number is the *ridge point*. An operation of a lower intensity waits for memory, and one of a higher intensity for arithmetic. Another device has other numbers, and a busy machine has lower ones.
#
# ## A bound
#
# Arithmetic and transfers can overlap.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: bound
def _roofline(flops, nbytes, peak, bandwidth):
    return max(flops / peak, nbytes / bandwidth)


bound = teach.rule(
    "Write `my_least(flops, nbytes, peak, bandwidth)`: the least seconds for that much work, if transfers and arithmetic overlap.",
    teach.computes(_roofline, (1e9, 1e6, 1e11, 1e10), (1e6, 1e9, 1e11, 1e10), (0.0, 1e9, 1e11, 1e10)).saying(
        "is right for work of many FLOPs, of many bytes, and of no FLOPs"
    ),
    hints=("How long does each take alone? Which of them does the other one wait for?",),
    wrong=(
        lambda flops, nbytes, peak, bandwidth: flops / peak + nbytes / bandwidth,
        lambda flops, nbytes, peak, bandwidth: min(flops / peak, nbytes / bandwidth),
        lambda flops, nbytes, peak, bandwidth: flops / peak,
        lambda flops, nbytes, peak, bandwidth: nbytes / bandwidth,
    ),
)
bound


# %% tags=["answer"]
def my_least(flops, nbytes, peak, bandwidth):
    return ...


bound.answer(my_least)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def least(flops, nbytes, peak, bandwidth):
    return max(flops / peak, nbytes / bandwidth)


bound.solution(least)

# %% [markdown]
# Which bytes? Each equation by itself reads its operands and writes its results. XLA fuses equations, and then values between them are never in memory: `cost.xla()` has the count of the compiled
# program, with the body of a loop once. Whatever it does, the step has to read the parameters and the batch, and to write new parameters. Only with these is it a bound:

# %%
def bytes_at_least(x):
    return 2 * params.nbytes + 2 * x.nbytes


def bound_of(n):
    x, target = batch(n)
    flops = jaxviz.cost(step, params, x, target).total.flops
    return flops, bytes_at_least(x), least(flops, bytes_at_least(x), peak, bandwidth)


sizes = (4, 32, 256, 1024)
run = jax.jit(step)
measured = {n: least_seconds(run, params, *batch(n), repeat=3) for n in sizes}
print("batch   GFLOP   MiB   at least    takes")
for n in sizes:
    flops, nbytes, seconds = bound_of(n)
    print(f"{n:5} {flops / 1e9:7.2f} {nbytes / 2**20:5.0f} {seconds * 1e3:7.1f} ms {measured[n] * 1e3:7.1f} ms")

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: cheaper
def _per_example():
    return (bound_of(4)[2] / 4) / (bound_of(1024)[2] / 1024)


cheaper = teach.predict(
    "By the bound, an example in a batch of 4 costs more than one in a batch of 1,024. Which bytes are the reason?",
    ["the examples", "the parameters", "the residuals"],
    truth=lambda: "the parameters" if 2 * params.nbytes > 10 * 2 * batch(4)[0].nbytes and _per_example() > 1 else "?",
    because={
        "the examples": "There are as many of these for each example in either batch.",
        "the parameters": "They are read and written once in a step, for 4 examples or for 1,024. In the small batch that is nearly all of the traffic.",
        "the residuals": "They grow with the batch, and are not among the bytes of this bound.",
    },
    hints=("Which of them does not depend on the size of the batch?",),
)
cheaper

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
cheaper.solution("the parameters")

# %% jupyter={"source_hidden": true}
# The roofline, and the steps below it
x_axis = np.geomspace(0.3, 3000, 100)
plt.figure(figsize=(6, 3))
plt.loglog(x_axis, np.minimum(peak, x_axis * bandwidth) / 1e9, color="0.3", label="roofline")
for n in sizes:
    flops, nbytes, _ = bound_of(n)
    plt.loglog(flops / nbytes, flops / measured[n] / 1e9, "o", label=f"batch {n}")
plt.axvline(ridge, color="0.7", lw=0.8)
plt.xlabel("FLOPs per byte")
plt.ylabel("GFLOP/s")
plt.legend(frameon=False, fontsize=8);

# %% [markdown]
# A point below the roof may have something to gain. Or the bound leaves something out, such as values between equations that the compiled program does write to memory. A point above the roof means that the machine was
# busier when you measured its speed.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
_groups = {g.named(60): g.total for g in small.groups}
_products = next(c for name, c in _groups.items() if "h @ w" in name and "tanh" not in name)
assert _products.flops > 0.85 * small.total.flops and small.total.intensity < 1
_update = sum(c.nbytes for name, c in _groups.items() if "0.1 * gradient" in name)
assert 0.9 * _products.nbytes < _update < 1.1 * _products.nbytes
assert sum(c.flops for name, c in _groups.items() if "0.1 * gradient" in name) == 2 * params.size
for _n in sizes:
    assert 0.1 * bound_of(_n)[2] < measured[_n]
assert small.xla().nbytes < small.total.nbytes and bytes_at_least(batch(4)[0]) < small.xla().nbytes
assert 2 * params.nbytes > 0.9 * bytes_at_least(batch(4)[0])

# %% [markdown]
# Which lines are left of the ridge, and wait for memory? In the explorer, open *What does it cost* and then *Roofline*: it measures the kernel's device, and draws each line of the gradient as a point, as large as the
# time that it takes at best. The bytes are those of the equations by themselves.

# %%
explorer = jaxviz.explore(loss, params, *batch(32))
explorer

# %% [markdown]
# ## The batch that makes a product bound by arithmetic
#
# Take one product, of a batch of $m$ rows and a matrix of $k \times n$.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: intensity
def counted(m, k, n, size):
    dtype = {4: jnp.float32, 2: jnp.bfloat16}[size]
    a, b = jax.ShapeDtypeStruct((m, k), dtype), jax.ShapeDtypeStruct((k, n), dtype)
    return jaxviz.cost(lambda a, b: a @ b, a, b).forward.intensity


intensity = teach.rule(
    "Write `my_intensity(m, k, n, size)`: FLOPs per byte of the product of `[m, k]` and `[k, n]`, with `size` bytes for an element. "
    "It reads both and writes the result.",
    teach.computes(counted, (4, 1024, 1024, 4), (512, 256, 1024, 2), (3, 16, 5, 4)).saying("is what jaxviz.cost counts, for three products"),
    hints=("Each element of the result is `k` products and `k` additions, as XLA counts: `2 * m * k * n`.", "Three arrays are in memory."),
    wrong=(
        lambda m, k, n, size: m * k * n / (size * (m * k + k * n + m * n)),
        lambda m, k, n, size: 2 * m * k * n / (size * (m * k + k * n)),
        lambda m, k, n, size: 2 * m * k * n / (m * k + k * n + m * n),
        lambda m, k, n, size: 2 * m / size,
    ),
)
intensity


# %% tags=["answer"]
def my_intensity(m, k, n, size):
    return 2 * m * k * n / ...


intensity.answer(my_intensity)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def of_product(m, k, n, size):
    return 2 * m * k * n / (size * (m * k + k * n + m * n))


intensity.solution(of_product)

# %% [markdown]
# On one H200 we measured products of bfloat16 at 726 TFLOP/s, and the memory at 3.6 TB/s.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: rows
def _least_rows(ridge, width, size):
    return next(m for m in range(1, 10**6) if of_product(m, width, width, size) >= ridge)


rows = teach.predict(
    "How many rows must a batch have there, for a matrix of 8,192 × 8,192 in bfloat16, so that the product is bound by arithmetic? Within a tenth is right.",
    truth=lambda: _least_rows(726 / 3.6, 8192, 2),
    because=lambda: "For a few rows the matrix is nearly all of the traffic, 2 FLOPs for 2 bytes in each row: the intensity is about the number of rows, and the ridge point is "
    f"{726 / 3.6:.0f}. The rest is for the rows themselves.",
    tolerance=0.1,
    hints=("What is the ridge point?", "If `m` is small, `my_intensity(m, k, n, 2)` is nearly `m`."),
)
rows

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
rows.solution(212)

# %% [markdown]
# The products of a decoder that makes one token for each of 16 requests are far below that, however wide the model is. They wait for their weights, and by this bound 32 requests take as long as 16, to within a hundredth.
#
# ## What a checkpoint costs

# %%
def checkpointed(params, x, target):
    @jax.checkpoint
    def layer(h, w):
        return jnp.tanh(h @ w), None

    h, _ = jax.lax.scan(layer, x, params)
    return jnp.mean((h - target) ** 2)


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: again
_FACTORS = {"as many": 1.0, "4/3 as many": 4 / 3, "3/2 as many": 1.5, "twice as many": 2.0}


def _factor():
    ours, theirs = (jaxviz.cost(f, params, *batch(256)).total.flops for f in (checkpointed, loss))
    return min(_FACTORS, key=lambda name: abs(_FACTORS[name] - ours / theirs))


again = teach.predict(
    "Each layer is computed again in the backward pass. How many FLOPs does the gradient take, compared with the one before?",
    list(_FACTORS),
    truth=_factor,
    because={
        "as many": "Recomputing is work, too.",
        "4/3 as many": "Forward there is one product in each layer, and backward two: one for the cotangent of `h`, and one for that of `w`. One of three is repeated.",
        "3/2 as many": "How many products does a layer have in the backward pass?",
        "twice as many": "Only the forward pass is repeated, and the backward pass has twice as many FLOPs as that.",
    },
    hints=("Count the products of a layer: forward, backward, and computed again.",),
)
again

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
again.solution("4/3 as many")

# %% [markdown]
# So where a step is bound by arithmetic, the bound rises by that factor; where it is bound by memory, a checkpoint may cost nothing. `jaxviz.plan_remat` counts in the same way what a plan costs.
#
# ## MFU
#
# *Model FLOPs utilization* is the share of the peak that the step reached, where only the FLOPs of the model count, and not those that are repeated:

# %%
flops = jaxviz.cost(loss, params, *batch(1024)).total.flops
mfu = flops / measured[1024] / peak
print(f"MFU with a batch of 1,024: {mfu:.0%}; with 4: {jaxviz.cost(loss, params, *batch(4)).total.flops / measured[4] / peak:.0%}")

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: utilized
def _utilized():
    before, after = (jaxviz.cost(f, params, *batch(1024)).total.flops for f in (loss, checkpointed))
    slower = after / before  # as many FLOPs in a second as before
    return "lower" if 1 / slower < 0.99 else "the same"


utilized = teach.predict(
    "With the checkpoint the device is as busy as before, and the step takes longer. The MFU becomes…",
    ["lower", "the same", "higher"],
    truth=_utilized,
    because={
        "lower": "The model's FLOPs are the same, and the time is longer. That is what MFU is for: repeated work is no progress.",
        "the same": "That would be the utilization of the hardware, which counts the repeated FLOPs too.",
        "higher": "Only if the repeated FLOPs counted, and the time did not.",
    },
    hints=("Which FLOPs count?",),
)
utilized

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
utilized.solution("lower")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
_ours, _theirs = (jaxviz.cost(f, params, *batch(256)).total.flops for f in (checkpointed, loss))
assert abs(_ours / _theirs - 4 / 3) < 0.01
assert of_product(16, 8192, 8192, 2) < of_product(32, 8192, 8192, 2) < 726 / 3.6 / 4
assert abs(jaxviz.cost(loss, params, *batch(256)).backward.flops / jaxviz.cost(loss, params, *batch(256)).forward.flops - 2) < 0.02
_time_of = lambda m: least(2 * m * 8192**2, 2 * (2 * m * 8192 + 8192**2), 726e12, 3.6e12)
assert 1 < _time_of(32) / _time_of(16) < 1.01
assert 0 < mfu < 10

# %% [markdown]
# ## What to remember
#
# - A step takes at least its FLOPs divided by the peak, and at least its bytes divided by the bandwidth. The larger one bounds it.
# - The ridge point is their quotient. In bfloat16, a product with fewer rows than that waits for its matrix.
# - Elementwise work, such as the update of an optimizer, is far left of the ridge: its bytes count, and its FLOPs do not.
# - A checkpoint repeats one product of three. MFU does not count it.
#
# `jaxviz.cost(step, *args)` counts your own step.
#
# Next: a gradient of your own, in plain Python, in [24 · a tape](24_a_tape.ipynb).
