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
# # 8 · My solver takes 8 steps; why does its gradient cost 512?
#
# An adaptive solver stops when it is done. JAX can differentiate a loop backward only if it knows how long the loop can get, so the loop
# is given a bound: at most 512 steps. The solver still takes 8 steps and is as fast as before. Its gradient is not.
#
# This notebook follows one such solver through `scan`, `cond` and `while_loop`, finds what makes its gradient expensive, and fixes it.
# It takes 35 minutes. You should know what a residual is: [4 · partial evaluation and residuals](04_partial_evaluation_and_residuals.ipynb).
#
# ## The solver
#
# `y' = tanh(y w)` from `t = 0` to `t = 1`, for 128 starting points at once. `attempt` makes one step of Heun's method. It takes the step if
# its error is small enough, and sets the length of the next one. No derivative goes
# through that length (`stop_gradient`), as is usual in solvers.

# %%
import time
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxviz
from jaxviz import teach

TOLERANCE = 0.025


def slope(w, y):
    return jnp.tanh(y @ w)


def attempt(w, state):
    t, y, h = state
    k1 = slope(w, y)
    k2 = slope(w, y + h * k1)
    error = 0.5 * h * jnp.max(jnp.abs(k2 - k1))
    good = error < TOLERANCE
    t, y = jnp.where(good, t + h, t), jnp.where(good, y + 0.5 * h * (k1 + k2), y)
    growth = jnp.clip(0.9 * jnp.sqrt(TOLERANCE / error), 0.2, 3.0)
    return t, y, lax.stop_gradient(jnp.minimum(growth * h, 1.0 - t))


def start(y):
    return jnp.array(0.0), y, jnp.array(0.1)


def unfinished(state):
    return state[0] < 1.0


w = jax.random.normal(jax.random.key(0), (64, 64)) / 8
y = jax.random.normal(jax.random.key(1), (128, 64))

# %% [markdown]
# The loop with a bound is a `scan` over at most 512 iterations, each a `cond` that makes a step or returns the state unchanged. It counts its steps.

# %%
def stay(w, state):
    return state


def bounded_solve(w, y, bound=512):
    def iteration(state, _):
        going = unfinished(state)
        return lax.cond(going, attempt, stay, w, state), going

    (_, y, _), steps = lax.scan(iteration, start(y), None, length=bound)
    return y, jnp.sum(steps)


def bounded_loss(w, y, bound=512):
    return jnp.mean(bounded_solve(w, y, bound)[0] ** 2)


# %%
def milliseconds(f, *args, times=4):
    jax.block_until_ready(f(*args))
    took = []
    for _ in range(times):
        began = time.perf_counter()
        jax.block_until_ready(f(*args))
        took.append(1e3 * (time.perf_counter() - began))
    return min(took)


measured, steps = {}, {}
print("bound  steps    solving   gradient")
for bound in (8, 512):
    solve = jax.jit(partial(bounded_solve, bound=bound))
    gradient = jax.jit(jax.grad(partial(bounded_loss, bound=bound))).lower(w, y).compile()
    steps[bound] = solve(w, y)[1]
    measured[bound] = milliseconds(solve, w, y), milliseconds(gradient, w, y)
    print("{:5}  {:5}  {:6.1f} ms  {:6.1f} ms".format(bound, steps[bound], *measured[bound]))

# %% [markdown]
# Solving costs little more than its 8 steps: 504 of 512 iterations only compare two numbers. The time of the gradient grows with the bound.
# To see why, take the loop apart: first the `scan`, then the `cond`.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert steps[8] == steps[512] == 8
assert measured[512][0] < 16 * measured[8][0]
assert measured[512][1] > 8 * measured[8][1]

# %% [markdown]
# ## `scan`: what an iteration saves is stacked
#
# The same method with 8 steps of equal length has no `cond`. Its body reads the state, which changes, and `w`, which does not. Suppose that
# the body also computes `sin(w)`.

# %%
def fixed_loss(w, y):
    def iteration(y, _):
        v = jnp.sin(w)
        k1 = slope(v, y)
        k2 = slope(v, y + k1 / 8)
        return y + (k1 + k2) / 16, None

    return jnp.mean(lax.scan(iteration, y, None, length=8)[0] ** 2)


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: copies
def _copies():
    kept = [r for r in jaxviz.residuals(fixed_loss, w, y) if r.producer is not None and r.producer.primitive.name == "sin"]
    return {(): "once", (8,): "8 times"}[kept[0].lengths] if kept else "not at all"


copies = teach.predict(
    "The body computes `v = sin(w)`, and the derivative of `y @ v` reads `v`. How often is `v` saved for the backward pass?",
    ["not at all", "once", "8 times"],
    truth=_copies,
    because={
        "not at all": "The cotangent of `y` is that of `y @ v` times the transpose of `v`, so the backward pass needs `v`.",
        "8 times": "The 8 values would be equal. `v` is computed from `w` alone, which the loop does not change, and that can be seen without running it.",
        "once": "`v` depends on nothing that the loop changes: a loop-invariant residual. It is computed before the loop, and kept once.",
    },
    hints=("What would the 8 copies differ in?",),
)
copies

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
copies.solution("once")

# %% [markdown]
# The table shows the residuals: those of each iteration are stacked along a new first axis of length 8.

# %%
kept = jaxviz.residuals(fixed_loss, w, y)
for r in sorted(kept, key=lambda r: -r.nbytes):
    print(f"{r.aval.str_short(short_dtypes=True):14} {r.nbytes / 1024:5.0f} KiB  {r.expression}")

# %% [markdown]
# In the explorer the forward program is at the left and the backward program at the right. The backward `scan` runs over the stacks, from the last
# iteration to the first: click one of its inputs, and what made it lights up. Click the numbers beside the source to see which line saves what.

# %%
explorer = jaxviz.explore(fixed_loss, w, y)
explorer.stage, explorer.beside, explorer.height = "forward", "backward", 640
explorer

# %% [markdown]
# In motion (press Space), the scan saves the stacked residuals of all 8 iterations, shown line by line of its body, and the backward scan reads them.

# %%
in_motion = jaxviz.explore(fixed_loss, w, y)
in_motion.question = "motion"
in_motion

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert {r.producer.primitive.name for r in kept if r.aval.shape == (64, 64)} == {"sin", "cos"}
stacked = [r for r in kept if r.lengths == (8,)]
assert stacked and all(r.aval.shape == (8, 128, 64) for r in stacked)
backward = [e for _, e in jaxviz.derive(fixed_loss, w, y).backward.walk() if e.primitive.name == "scan"]
assert [e.params["reverse"] for e in backward] == [True]

# %% [markdown]
# ## `cond`: the branches agree on what they save
#
# A `cond` returns results of the same types, whichever branch runs. Here one branch makes a step, which saves something, and the other returns the state.

# %%
def step_or_stay(w, state):
    return lax.cond(unfinished(state), attempt, stay, w, state)


@jax.jit
def held_by_jax(state):
    """What JAX holds between the forward and the backward pass."""
    _, pull_back = jax.vjp(step_or_stay, w, state)
    return jax.tree.leaves(pull_back)


running = (jnp.array(0.0), y, jnp.array(0.1))
finished = (jnp.array(1.0), y, jnp.array(0.1))

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: held
def bytes_held(state):
    return sum(x.nbytes for x in held_by_jax(state))


def _held():
    share = bytes_held(finished) / bytes_held(running)
    return "nothing" if share < 1e-5 else "the state" if share < 0.9 else "as much as for a step"


held = teach.predict(
    "`jax.vjp(step_or_stay, w, finished)`: the predicate is False, so the branch runs that returns the state. What does JAX hold for the backward pass?",
    ["nothing", "the state", "as much as for a step"],
    truth=_held,
    because={
        "nothing": "The derivative of that branch needs nothing, true. But the forward pass is traced before anybody knows which branch will run, and "
        "its results have one type.",
        "the state": "Its derivative does not read the state: returning it is linear.",
        "as much as for a step": lambda: f"{bytes_held(finished):,} bytes, as for a step. The types of a cond's results cannot depend on its predicate.",
    },
    hints=("A `cond` has one output type.", "The residuals are outputs of the forward pass's `cond`."),
)
held

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
held.solution("as much as for a step")

# %% [markdown]
# The residuals are results of the `cond` in the forward pass. What is in them if no step was made? These are the arrays that JAX holds, and the
# largest magnitude in each. Each of them is zero, or an argument of the function.

# %%
for x in held_by_jax(finished):
    name = next((name for name, given in (("w", w), ("y", y)) if np.array_equal(x, given)), "")
    print(f"{x.dtype}{list(x.shape)}: {np.abs(x).max():.3g} {name}")

# %% [markdown]
# This is the branch `stay` in the forward program. Its first result is the state. The others are filled in so that the
# branches agree: *dummy* residuals.

# %%
forward = jaxviz.derive(lambda w, y: jnp.sum(step_or_stay(w, start(y))[1]), w, y).forward
conditional = next(e for e in forward.equations if e.primitive.name == "cond")
staying = conditional.params["branches"][0]
print(staying)

# %% [markdown]
# Once, this costs little. In a loop it happens in each iteration, and the `scan` stacks the dummies.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert bytes_held(finished) == bytes_held(running) > 100_000
filled_in = [x for x in held_by_jax(finished) if not any(np.array_equal(x, given) for given in (w, y))]
assert not any(map(np.any, filled_in)) and sum(x.shape == (128, 64) for x in filled_in) >= 3
assert staying.outvars[0] in staying.invars and not set(staying.outvars[1:]) & set(staying.invars)
assert "dummy" in {e.origin.role for e in staying.equations}

# %% [markdown]
# ## `while_loop`: forward only
#
# Why a bound at all? A `while_loop` needs none.

# %%
def while_loss(w, y):
    _, y, _ = lax.while_loop(unfinished, partial(attempt, w), start(y))
    return jnp.mean(y**2)


try:
    jax.grad(while_loss)(w, y)
except ValueError as error:
    print(error)

# %% [markdown]
# Each iteration would save something, and the arrays of a compiled program have shapes that are known before it runs. How many iterations a
# `while_loop` makes is known when it has ended: there is no shape for the stack. Forward mode saves no residuals, so it does not have this problem.

# %%
direction = jnp.ones_like(w)
value, rate = jax.jit(lambda w: jax.jvp(lambda w: while_loss(w, y), (w,), (direction,)))(w)
print(f"loss {value:.4f}; it changes by {rate:.4f} for each unit along `direction`")

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: passes
passes = teach.predict(
    "One `jvp` gives the slope along one direction. How many of them does the whole gradient of `while_loss` in `w` take?",
    truth=lambda: w.size,
    because="One for each element of `w`. Reverse mode gives all of them in one pass; that is what the bound is good for.",
    hints=("The gradient has one slope for each element of `w`.",),
)
passes

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
passes.solution(4096)

# %% [markdown]
# `fori_loop` is one or the other, and its name does not say which. Only one of these three can be differentiated backward:

# %%
def known_count(x, n):
    return lax.fori_loop(0, 3, lambda i, x: jnp.sin(x), x)


def given_count(x, n):
    return lax.fori_loop(0, n, lambda i, x: jnp.sin(x), x)


def counted_by_while(x, n):
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x))[1]


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: backward_loop
@lru_cache
def _has_gradient(f):
    try:
        jax.jit(jax.grad(f))(1.0, 3)
    except ValueError:
        return False
    return True



def _counted(x, n):
    for _ in range(n):
        x = jnp.sin(x)
    return x


def _slope_is_off(written):
    slope = jax.jit(jax.grad(lambda x, n: written(x, n)))
    for n in (0, 3, 8):
        found, wanted = float(slope(1.0, n)), float(jax.grad(_counted)(1.0, n))
        if not abs(found - wanted) < 1e-5:
            return f"For n = {n} its slope at 1 is {found:.4f}, and that of {n} sines {wanted:.4f}."
    return ""


backward_loop = teach.rule(
    "Write `my_count(x, n)`: the sine of x, `n` times, for `n` up to 8, with a gradient under `jax.jit`, where `n` is a tracer.",
    teach.Check("gives n sines", lambda f: "" if np.allclose([jax.jit(f)(1.0, n) for n in (0, 3, 8)], [_counted(1.0, n) for n in (0, 3, 8)]) else "Its value is wrong."),
    teach.Check("has a gradient under jit, for any n", _slope_is_off),
    hints=(
        "For which of the three is the number of iterations known when it is traced?",
        "Make 8 iterations, and let those with `i >= n` change nothing.",
        "`lax.fori_loop(0, 8, lambda i, x: jnp.where(i < n, …, …), x)`",
    ),
    wrong=(known_count, given_count, counted_by_while),
)
backward_loop


# %% tags=["answer"]
def my_count(x, n):
    return ...


backward_loop.answer(my_count)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
backward_loop.solution(lambda x, n: lax.fori_loop(0, 8, lambda i, x: jnp.where(i < n, jnp.sin(x), x), x))

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert np.allclose(rate, np.sum(gradient(w, y)), rtol=1e-3)
assert np.allclose(value, np.mean(np.square(solve(w, y)[0])))
assert [_has_gradient(f) for f in (known_count, given_count, counted_by_while)] == [True, False, False]

# %% [markdown]
# ## The bounded loop: a stack of dummies
#
# Now both together: a `scan` stacks what each iteration saves, and each iteration saves as much as a step.

# %%
few, many = (jaxviz.residuals(partial(bounded_loss, bound=n), w, y).nbytes for n in (8, 512))
print(f"bound 8 keeps {few / 2**20:.1f} MiB, bound 512 {many / 2**20:.1f} MiB: the 8 steps saved {few / many:.1%} of that")

# %% [markdown]
# `jaxviz.residuals` says what may be a dummy, and in which branch; `jaxviz.lint` says what to do. JAX's own
# `jax.ad_checkpoint.print_saved_residuals` has one line for each of these: "output of scan".

# %%
kept = jaxviz.residuals(bounded_loss, w, y)
largest = max(kept, key=lambda r: r.nbytes)
print(f"{kept.nbytes / 2**20:.0f} MiB in {len(kept)} residuals. {largest.reason}\n")
print(jaxviz.lint(bounded_loss, w, y))

# %% [markdown]
# Counting operations does not help here: for a `cond` the most expensive branch counts, in each iteration, which is 64 times the actual work.
# The memory shows it: the forward pass fills the stacks, 504 of 512 slots with dummies, and the backward pass reads them.

# %%
for bound in (8, 512):
    print(f"bound {bound:3}: {jaxviz.cost(partial(bounded_loss, bound=bound), w, y).total.flops:.2g} FLOPs, counted")
jaxviz.memory(bounded_loss, w, y)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
in_stacks = [r for r in kept if r.lengths == (512,)]
assert sum(r.nbytes for r in in_stacks) > 0.99 * kept.nbytes
assert "dummy" in largest.reason and "cond" in largest.reason
assert "cond-dummy" in {a.rule for a in jaxviz.lint(bounded_loss, w, y)}

# %% [markdown]
# ## The remedy: checkpoint the body
#
# Under `jax.checkpoint` an iteration saves only its inputs, and the backward pass recomputes the rest when it reaches the iteration. Then the
# branch is known, and a finished iteration has nothing to compute. The place of the checkpoint matters.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: lean
def final_state(w, y):
    return solve(w, y)[0]


@lru_cache
def _gradient_of(solve):
    return jax.jit(jax.grad(lambda w, y: jnp.mean(solve(w, y) ** 2))).lower(w, y).compile()


def _other_gradient(solve):
    off = np.abs(_gradient_of(solve)(w, y) - gradient(w, y)).max()
    return "" if off < 1e-4 else f"They differ by up to {off:.3g}."


def _sets_aside_too_much(solve):
    n = _gradient_of(solve).memory_analysis().temp_size_in_bytes / 2**20
    why = "Values that were not saved are recomputed, including dummies, before the backward pass begins."
    return "" if n < 40 else f"XLA sets {n:.0f} MiB aside. {why}"


def _around_everything(w, y):
    return jax.checkpoint(final_state)(w, y)


lean = teach.rule(
    "Write the bounded solver so that its gradient saves no dummies: at most one state for each of the 512 iterations.",
    teach.computes(final_state, (w, y)).of(jax.jit),
    teach.keeps_at_most(17 * 2**20, w, y),
    teach.Check("the gradient of the loss is as before", _other_gradient),
    teach.Check("the compiled gradient takes less than 40 MiB of temporaries", _sets_aside_too_much),
    hints=(
        "A checkpoint around everything recomputes the whole loop at once. How much should be recomputed at a time?",
        "`lax.scan(jax.checkpoint(iteration), …)`",
    ),
    wrong=(final_state, _around_everything),
)
lean


# %% tags=["answer"]
def my_solve(w, y):
    def iteration(state, _):
        return lax.cond(unfinished(state), attempt, stay, w, state), None

    return lax.scan(..., start(y), None, length=512)[0][1]


lean.answer(my_solve)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def lean_solve(w, y, bound=512):
    def iteration(state, _):
        return lax.cond(unfinished(state), attempt, stay, w, state), None

    return lax.scan(jax.checkpoint(iteration), start(y), None, length=bound)[0][1]


lean.solution(lean_solve)

# %% [markdown]
# Around the branch alone is another place. There the `cond` still returns the inputs of the checkpoint. Whether `w` is among them, in each
# iteration, depends on the version of JAX:

# %% jupyter={"source_hidden": true}
# around_the_branch(w, y), and what both places stack
def around_the_branch(w, y):
    def iteration(state, _):
        return lax.cond(unfinished(state), jax.checkpoint(attempt), stay, w, state), None

    return lax.scan(iteration, start(y), None, length=512)[0][1]


for name, f in {"around the branch": around_the_branch, "around the body": lean_solve}.items():
    stacks = [r.type for r in jaxviz.residuals(f, w, y) if r.lengths and r.nbytes > 2**20]
    print(f"JAX {jax.__version__}, {name}: a stack of {', and one of '.join(stacks)}")

# %% [markdown]
# What it changes, side by side. It computes each step twice, so there are more FLOPs; and yet it is faster, as the table at the end shows.

# %%
def lean_loss(w, y, bound=512):
    return jnp.mean(lean_solve(w, y, bound) ** 2)


print(str(jaxviz.compare(bounded_loss, lean_loss, w, y)).partition("\n\nequations of f")[0])

# %% [markdown]
# `jaxviz.grad` has it as an option, for code that you would rather not change: with `cond_residuals="recompute"` each `cond` saves its operands, and the
# backward pass runs the branch again. JAX itself behaves as shown above; the option is explicit so that you know when it is on.

# %%
recomputing = jaxviz.derive(bounded_loss, w, y, cond_residuals="recompute")
for r in sorted(recomputing.residuals, key=lambda r: -r.nbytes)[:3]:
    print(f"{r.aval.str_short(short_dtypes=True):16} {r.kind:12} {r.expression}")

# %% [markdown]
# ## What is left, and how to get rid of it
#
# One state for each iteration is still 512 states, of which 504 are the same. Nest the loop: a `scan` of 8, of `scan`s of 8, of
# `scan`s of 8, each iteration a checkpointed `cond`. A level that finds the work done skips everything below it, and saves 8 states, not 512.

# %%
def nested_solve(w, state, depth=3):
    if depth == 0:
        return attempt(w, state)

    def iteration(state, _):
        return lax.cond(unfinished(state), partial(nested_solve, depth=depth - 1), stay, w, state), None

    return lax.scan(jax.checkpoint(iteration), state, None, length=8)[0]


def nested_loss(w, y, depth=3):
    return jnp.mean(nested_solve(w, start(y), depth)[1] ** 2)


# %%
versions = {
    "as it was": gradient,  # compiled in the first section
    "checkpointed body": jax.jit(jax.grad(lean_loss)).lower(w, y).compile(),
    "cond_residuals='recompute'": jax.jit(jaxviz.grad(bounded_loss, cond_residuals="recompute")).lower(w, y).compile(),
    "nested and checkpointed": jax.jit(jax.grad(nested_loss)).lower(w, y).compile(),
}
found = {}
print("bound of 512                  gradient  XLA's memory")
for name, compiled in versions.items():
    space = compiled.memory_analysis().temp_size_in_bytes / 2**20
    found[name] = milliseconds(compiled, w, y), space
    print(f"{name:28} {found[name][0]:6.1f} ms  {space:8.1f} MiB")

# %% jupyter={"source_hidden": true}
# Milliseconds against the bound: as it was, with the body checkpointed, and nested
import matplotlib.pyplot as plt

bounds = (8, 64, 512)
timed = {
    "as it was": lambda n: jax.grad(partial(bounded_loss, bound=n)),
    "checkpointed body": lambda n: jax.grad(partial(lean_loss, bound=n)),
    "nested": lambda n: jax.grad(partial(nested_loss, depth=bounds.index(n) + 1)),
}
plt.figure(figsize=(5, 2.8))
for name, made in timed.items():
    known = {512: found[next(k for k in found if k.startswith(name))][0]} | ({8: measured[8][1]} if name == "as it was" else {})
    plt.loglog(bounds, [known.get(n) or milliseconds(jax.jit(made(n)), w, y, times=2) for n in bounds], "o-", label=name)
plt.xticks(bounds, bounds)
plt.minorticks_off()
plt.xlabel("bound; 8 steps are made")
plt.ylabel("ms for a gradient")
plt.legend(frameon=False);

# %% [markdown]
# The last line is the answer to the question at the top: a gradient that costs about what 8 steps cost, in a loop that may make 512.
#
# The first line is JAX working as intended. The report that made this known, with a loop nested as here, is
# [JAX issue 8239](https://github.com/jax-ml/jax/issues/8239); its answer is the checkpoint.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert all(np.allclose(gradient(w, y), other(w, y), rtol=1e-3, atol=1e-5) for other in versions.values())
assert found["checkpointed body"][1] < 0.3 * found["as it was"][1]
assert found["checkpointed body"][0] < found["as it was"][0]
assert found["cond_residuals='recompute'"][1] < 0.3 * found["as it was"][1]
assert found["nested and checkpointed"][1] < 0.2 * found["checkpointed body"][1]
assert found["nested and checkpointed"][0] < 0.2 * found["as it was"][0]
assert jaxviz.cost(lean_loss, w, y).total.flops > jaxviz.cost(bounded_loss, w, y).total.flops
assert jaxviz.residuals(lean_loss, w, y).nbytes < 0.3 * kept.nbytes
assert not [r for r in recomputing.residuals if "dummy" in r.reason]

# %% [markdown]
# ## What to remember
#
# - A `scan` stacks what each iteration saves, and saves once what the loop does not change. A `while_loop` has no size for that stack, so it
#   has only forward mode.
# - The branches of a `cond` save the same types, so the one that saves less fills in dummies; in a loop these are stacked, up to the bound.
# - `jax.checkpoint` on the body of the `scan` saves only the inputs of each iteration. Around the whole loop it only delays the peak.
#
# `jaxviz.lint(loss, params, x)` finds such conds in your own program, with their bytes.
#
# Next: a loop that needs no gradient of its own, because you know a better one, in [9 · custom rules](09_custom_rules.ipynb).
