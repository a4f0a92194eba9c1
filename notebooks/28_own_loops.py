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
# # 28 · How does a gradient go through a loop?
#
# An unrolled loop of a hundred steps has a hundred times as many equations. As one equation that contains a program, it needs its own rules: what
# the gradient saves for each step, and how it runs backwards. A checkpoint is the same kind of equation. You write the rules of both.
#
# It takes 90 minutes. You need to know the walks of [26 · your own gradients](26_own_gradients.ipynb), and should have seen a checkpoint:
# [6 · checkpoints](06_checkpoints.ipynb).

# %%
import inspect

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxviz
from jaxviz import teach

my = teach.autodiff.engine()
my

# %% [markdown]
# ## The program
#
# A pendulum swings with friction. Its angles were measured; how strong are gravity and friction? Each step advances the angle and the speed
# by one time step, so a run is a loop. `my.scan(step, carry, xs, consts)` is `jax.lax.scan`, with the step's other inputs in `consts`.


# %%
def step(state, push, constants):
    """The state is (angle, speed) as an array of 2; `push` is a force from outside, `constants` are (gravity, friction)."""
    angle, speed = my.total(state * [1.0, 0.0]), my.total(state * [0.0, 1.0])
    gravity, friction = my.total(constants * [1.0, 0.0]), my.total(constants * [0.0, 1.0])
    speed = speed + 0.1 * (push - gravity * my.sin(angle) - friction * speed)
    angle = angle + 0.1 * speed
    return angle * np.array([1.0, 0.0]) + speed * np.array([0.0, 1.0]), angle


T = 60
pushes = np.where(np.arange(T) < 5, 4.0, 0.0).astype(np.float32)
start = np.array([0.2, 0.0], np.float32)


def swing(constants):
    return my.scan(step, start, pushes, (constants,))[1]


measured = np.asarray(swing(np.array([3.0, 0.3], np.float32)))
guess = np.array([2.0, 0.1], np.float32)


def loss(constants):
    off = swing(constants) - measured
    return my.mean(off * off)


program = my.trace(loss, guess)
print(program)

# %% [markdown]
# The loop is one equation of any length. Its `params` contain the program of one step:

# %%
(loop,) = (e for e in program.equations if e.op == "scan")
print({name: value for name, value in loop.params.items() if name != "body"})
print(len(loop.params["body"].equations), "equations in the body")

# %% [markdown]
# - The first `n_const` inputs are the same in every iteration; the next `n_carry` are the carry; then come the `xs`, with one slice for each iteration.
# - The body maps (constants, carry, slice) to (carry, ys). The loop returns the last carry and the stacked ys.
#
# ## 1. The tangent of a loop
#
# One loop that carries values and tangents together would be enough for forward mode. But `my.split` could not split it, since all of it depends on a tangent. So write
# two loops: one for the values, which also stacks the carry at the *start* of each iteration, and one for the tangents, which reads these carries.
#
# - `my.parts(params, inputs)` returns three lists: the constants, the carry, and the xs.
# - `my.loop(f, consts, carry, xs, length, reverse)` runs `f(consts, carry, x) -> (carry, y)` as one equation, and returns the last carry and the stacked ys. Each of these
#   may be a list, of lists too; a None in a list stays where it is.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: looping
looping = teach.autodiff.exercise(my, "scan_jvp")
looping


# %% tags=["answer"]
def scan_jvp(inputs, tangents, params):
    """(outputs, tangents of the outputs), each a list: the carry, then the ys."""
    body, m, how = params["body"], params["n_carry"], (params["length"], params["reverse"])
    consts, carry, xs = my.parts(params, inputs)
    dconsts, dcarry, dxs = my.parts(params, my.instantiate_zeros(tangents, inputs))

    def values(consts, carry, x):  # an iteration of the first loop
        outs = my.evaluate(body, *consts, *carry, *x)  # the new carry, then the ys
        return ...

    def moved(consts, dcarry, slices):  # an iteration of the second
        (consts, dconsts), (before, x, dx) = consts, slices
        return ...  # the tangents of the new carry, and those of the ys

    carry, (ys, before) = my.loop(values, consts, carry, xs, *how)
    ...
    return [*carry, *ys], ...


looping.answer(scan_jvp)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
looping.solution(my.original("scan_jvp"))

# %% [markdown]
# ## 2. One iteration, backwards
#
# The second loop is linear: in the tangents of the constants, of the carry, and of the xs. Its transpose maps cotangents of what the loop returns to cotangents of those.
# It is a loop too, and an iteration of it is the transpose of the body: it gets cotangents of the new carry and of the ys, and returns cotangents of the constants,
# of the carry, and of the slice.
#
# Your `transpose` returns None where no cotangent arrives, but what a loop carries or stacks has to be an array.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: iteration
iteration = teach.autodiff.exercise(my, "body_transpose")
iteration


# %% tags=["answer"]
def body_transpose(body, inputs, cts):
    """For each input that is None its cotangent, an array; None for the others, which have values."""
    return ...


iteration.answer(body_transpose)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
iteration.solution(my.original("body_transpose"))

# %% [markdown]
# A cond is transposed by it as well: the transposed branches become the branches of a cond. Both return arrays for the same inputs, as branches must.

# %%
print(inspect.getsource(my.cond_transpose))

# %% [markdown]
# Only the cotangents of the loop's results are known at first: of the last carry, and of the ys.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: direction
def _jax_turns_round():
    turned = jax.linear_transpose(lambda c: jax.lax.scan(lambda c, x: (c * x, None), c, jnp.arange(60.0))[0], 1.0)
    return "reverse=True" in str(jax.make_jaxpr(turned)(1.0))


direction = teach.predict(
    "The loop runs from iteration 0 to 59. Whose slice of the xs does the first iteration of its transpose read?",
    ["that of iteration 0", "that of iteration 59"],
    truth=lambda: "that of iteration 59" if _jax_turns_round() else "that of iteration 0",
    because={
        "that of iteration 0": "The cotangent of the carry after iteration 0 comes from iteration 1, and that of iteration 1 from iteration 2.",
        "that of iteration 59": "Only of the last carry is the cotangent known. Each iteration turns it into that of the carry before.",
    },
    hints=("Which carry has a cotangent before any iteration has run backwards?",),
)
direction

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
direction.solution("that of iteration 59")

# %% [markdown]
# ## 3. All iterations, backwards
#
# Write the transpose in five steps, all in one cell. `answer` checks them in order, and stops at the first that is still wrong. For step 1, return None for every input but
# the carry.
#
# 1. The *carry*: its cotangent goes through the loop, which runs the other way. Constants and xs with values are constants and xs of this loop too.
# 2. The *constants*: each iteration has a part of the cotangent of each linear constant, one that is None, and the parts are added. How does a loop compute a sum?
# 3. The *ys*: each iteration takes the cotangents of its own ys.
# 4. The *xs*: each iteration has the cotangent of its own slice, if the xs are None.
# 5. If the loop itself runs from the last slice to the first, the transpose runs from the first to the last.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: reversing
reversing = teach.autodiff.exercise(my, "scan_transpose")
reversing


# %% tags=["answer"]
def scan_transpose(inputs, shapes, cts, params):
    """A cotangent for each input that is None, and None for the others. `shapes` are those of the inputs."""
    body, m = params["body"], params["n_carry"]
    consts, carry, xs = my.parts(params, inputs)  # the body is linear in all of the carry, even where it has values
    ct_carry, ct_ys = cts[:m], cts[m:]

    def backward(consts, carried, slices):  # one iteration
        return ...

    ...


reversing.answer(scan_transpose)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
reversing.solution(my.original("scan_transpose"))

# %% [markdown]
# Now `my.grad` goes through loops, in the two directions that you gave them:

# %%
for e in my.trace(my.grad(loss), guess).equations:
    if e.op == "scan":
        print({name: value for name, value in e.params.items() if name != "body"}, len(e.params["body"].equations), "equations in the body")

# %%
value, gradient = my.value_and_grad(loss)(guess)


def by_jax(constants):
    def step(state, push):
        speed = state[1] + 0.1 * (push - constants[0] * jnp.sin(state[0]) - constants[1] * state[1])
        angle = state[0] + 0.1 * speed
        return jnp.stack([angle, speed]), angle

    return jnp.mean((jax.lax.scan(step, start, pushes)[1] - measured) ** 2)


print("yours:", gradient, " JAX:", jax.jit(jax.grad(by_jax))(guess))

# %% [markdown]
# Now find the constants, by gradient descent with a compiled gradient.

# %%
value_and_grad = jax.jit(my.value_and_grad(loss))
fitted, losses = jnp.asarray(guess), []
for _ in range(300):
    now, g = value_and_grad(fitted)
    fitted, losses = fitted - 0.5 * g, [*losses, float(now)]
print("gravity and friction:", fitted)

plt.figure(figsize=(6, 2.6))
plt.plot(measured, "o", ms=3, label="measured")
plt.plot(swing(guess), lw=1, label="at the guess")
plt.plot(swing(np.asarray(fitted)), label="fitted by your gradient")
plt.xlabel("step")
plt.ylabel("angle")
plt.legend(frameon=False);

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert np.allclose(gradient, jax.jit(jax.grad(by_jax))(guess), rtol=1e-3)
assert losses[-1] < 0.02 * losses[0]
assert np.allclose(fitted, [3.0, 0.3], atol=0.2)

# %% [markdown]
# ## 4. What is saved for each step
#
# The second loop reads what the first one stacked. The explorer shows JAX's backward pass beside yours: `my.as_jax(f)` is a function of JAX with your derivative.

# %%
explorer = jaxviz.explore(jaxviz.compare(by_jax, my.as_jax(loss), jnp.asarray(guess)))
explorer.stage, explorer.beside = "backward", "backward"
explorer


# %%
def kept(f, *like):
    """Bytes of the residuals of your gradient."""
    _, linear, _ = my.linearize_program(my.trace(f, *like))
    return sum(4 * int(np.prod(v.shape)) for v in linear.inputs[: len(linear.inputs) - len(like)])


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: stacked
def _of_jax(f):
    return jaxviz.residuals(f, jnp.asarray(guess)).nbytes_without_arguments


stacked = teach.predict(
    "The gradient of the run saves something for each step. Which one saves fewer bytes for 60 steps?",
    ["your loop", "JAX's loop"],
    truth=lambda: "your loop" if kept(loss, guess) < _of_jax(by_jax) else "JAX's loop",
    because=lambda: f"Yours saves {kept(loss, guess):,} B, JAX's {_of_jax(by_jax):,} B. Your second loop starts each iteration from the carry, and "
    "recomputes the sine; JAX splits the body too, and stacks what the tangents read, such as the cosine. Less memory, more work: "
    "`jax.checkpoint` around the body does the same.",
    hints=("What does your second loop read, and what does it compute from that?",),
)
stacked

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
stacked.solution("your loop" if kept(loss, guess) < _of_jax(by_jax) else "JAX's loop")

# %% [markdown]
# ## 5. A checkpoint
#
# `my.checkpoint(f)` is also one equation, which contains the program of `f`. Its values should not be saved, but recomputed from its inputs in the backward pass. Only its
# tangent rule decides that: `my.split` puts everything that does not depend on a tangent into the first half.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: again
again = teach.autodiff.exercise(my, "checkpoint_jvp")
again


# %% tags=["answer"]
def checkpoint_jvp(inputs, tangents, params):
    """(outputs, tangents of the outputs), each a list."""
    body, dots = params["body"], my.instantiate_zeros(tangents, inputs)
    outs = my.bind("checkpoint", *inputs, body=body)
    return outs, ...


again.answer(checkpoint_jvp)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
again.solution(my.original("checkpoint_jvp"))

# %% [markdown]
# Eight layers, without checkpoints, with a checkpoint around each layer, and with one around all of them:


# %%
def layer(x):
    return my.sin(my.exp(my.sin(x)))


def layers(wrap_layer=lambda f: f, wrap_all=lambda f: f):
    def all_of_them(x):
        for _ in range(8):
            x = wrap_layer(layer)(x)
        return x

    return lambda x: my.total(wrap_all(all_of_them)(x))


x = np.linspace(0, 1, 100, dtype=np.float32)
versions = {
    "none": layers(),
    "each layer": layers(wrap_layer=my.checkpoint),
    "all": layers(wrap_all=my.checkpoint),
}
bytes_kept = {name: kept(f, x) for name, f in versions.items()}
gradients = {name: my.grad(f)(x) for name, f in versions.items()}
sines = {name: sum(e.op in ("sin", "cos", "exp") for e in my.trace(my.grad(f), x).equations) for name, f in versions.items()}
plt.figure(figsize=(5, 2.4))
plt.bar(list(bytes_kept), [n / 1024 for n in bytes_kept.values()])
plt.ylabel("KiB saved");

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert all(np.allclose(g, gradients["none"], rtol=1e-3, atol=1e-4) for g in gradients.values())
assert bytes_kept["none"] > 2 * bytes_kept["each layer"] > 2 * bytes_kept["all"]

# %% [markdown]
# ## What to remember
#
# - An equation can contain a program. A transform needs a rule for it, which calls the transform on the inner program.
# - A loop stacks what it saves. What it does not save, it recomputes; the rule decides which.
# - The backward pass of a loop is a loop in reverse. It carries cotangents: those of the carry, and sums for the constants. Cotangents of the ys go in, those of the xs come out.
#
# You have written the core of `jax.jvp`, `jax.linearize`, `jax.grad`, `jax.vmap`, `jax.lax.scan` and `jax.checkpoint`; it is in `answers/my_autodiff.py`.
#
# Next: it trains a language model, in [29 · your own transformer](29_own_transformer.ipynb).
