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
# # 29 · Can my own engine train a transformer?
#
# An engine is worth what it differentiates. Yours gets a language model with all its parts: an embedding, causal attention, layer norm, an MLP, a cross entropy, and
# layers in a scan. Three operations are missing, so you add them, with their rules. Then your engine trains the model, JAX checks its gradient,
# and the explorer shows the program that your rules made.
#
# It takes 50 minutes. You need to know what the rules of an engine do, even if you did not write them all: [26 · your own gradients](26_own_gradients.ipynb) and
# [28 · your own loops and checkpoints](28_own_loops.ipynb).

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxviz
from jaxviz import teach

my = teach.autodiff.engine()
my

# %% [markdown]
# ## 1. An engine is open
#
# An operation is an entry in a few tables, and a function that binds it. So far the engine differentiates these:

# %%
print(*my.IMPLEMENTATIONS)

# %% [markdown]
# A layer norm divides by a root. Its derivative needs a rule:
#
# - `my.IMPLEMENTATIONS[op]`: a function of NumPy (or `jax.numpy`), the inputs, and the params.
# - `my.JVP_OF[op]`: a function of (inputs, tangents, params) that returns two lists, the results and their tangents.
#
# The derivative of $x^{-1/2}$ is $-\frac{1}{2} x^{-3/2}$. It is built from operations that the engine has, so nothing else is needed: those can be transposed, split and mapped.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: rsqrt
def _rsqrt_with(rule):
    def add(my):
        my.IMPLEMENTATIONS["rsqrt"] = lambda np, x: 1 / np.sqrt(x)
        my.JVP_OF["rsqrt"] = lambda inputs, tangents, params: (lambda out: ([out], [rule(my, tangents[0], inputs[0], out)]))(
            my.bind("rsqrt", *inputs)[0]
        )

    return add


rsqrt = teach.autodiff.addition(
    my, "rsqrt", "Write `add_rsqrt(my)`, which adds the operation `rsqrt`, 1 / √x, to an engine.", jax.lax.rsqrt, np.array([0.5, 4.0, 9.0]),
    hints=(
        "The result is the root's inverse. Which power of it is the derivative?",
        "With `out` = x^(-1/2), the derivative is `-0.5 * out * out * out`: multiply it by the tangent.",
    ),
    wrong=(
        _rsqrt_with(lambda my, dx, x, out: 0.5 * dx * out * out * out),
        _rsqrt_with(lambda my, dx, x, out: -0.5 * dx * out),
        _rsqrt_with(lambda my, dx, x, out: -dx * out * out * out),
        lambda my: my.IMPLEMENTATIONS.update(rsqrt=lambda np, x: 1 / np.sqrt(x)),
    ),
)
rsqrt


# %% tags=["answer"]
def add_rsqrt(my):
    def rsqrt_jvp(inputs, tangents, params):
        out = my.bind("rsqrt", *inputs)[0]
        return [out], [...]

    my.IMPLEMENTATIONS["rsqrt"] = lambda np, x: ...
    my.JVP_OF["rsqrt"] = rsqrt_jvp


rsqrt.answer(add_rsqrt)


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def add_rsqrt(my):
    def rsqrt_jvp(inputs, tangents, params):
        out = my.bind("rsqrt", *inputs)[0]
        return [out], [-0.5 * tangents[0] * out * out * out]

    my.IMPLEMENTATIONS["rsqrt"] = lambda np, x: 1 / np.sqrt(x)
    my.JVP_OF["rsqrt"] = rsqrt_jvp


rsqrt.solution(add_rsqrt)

# %% [markdown]
# The embedding looks up a row for each character: a product of the table with rows that have a single 1. `one_hot` makes such rows of numbers. They do not move when the
# number moves, so its tangent is zero, which is None.
#
# Its result has another shape than its input. `my.SHAPES_OF[op]` is a function of (inputs, params) that returns a list of shapes; `my.shape(x)` is the shape of an input.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: onehot
def _one_hot_with(shapes=lambda my, x, size: [(*my.shape(x), size)], tangent=lambda my, dx, size: None, of=lambda np, x, size: x[..., None] == np.arange(size)):
    def add(my):
        my.IMPLEMENTATIONS["one_hot"] = lambda np, x, size: 1.0 * of(np, x, size)
        my.JVP_OF["one_hot"] = lambda inputs, tangents, params: (my.bind("one_hot", *inputs, **params), [tangent(my, tangents[0], **params)])
        if shapes is not None:
            my.SHAPES_OF["one_hot"] = lambda inputs, params: shapes(my, inputs[0], **params)

    return add


onehot = teach.autodiff.addition(
    my, "one_hot", "Write `add_one_hot(my)`: the operation `one_hot` has the param `size`, and makes a row of that length of each number, with 1 at the number's place and 0 elsewhere.",
    lambda x: jax.nn.one_hot(x, 4), np.array([0.0, 3.0, 1.0]), np.array([[2.0], [1.0]]), size=4,
    hints=(
        "`x[..., None] == np.arange(size)` compares each number with all places.",
        "`my.SHAPES_OF[\"one_hot\"] = lambda inputs, params: [(*my.shape(inputs[0]), params[\"size\"])]`, and the rule returns None as the tangent.",
    ),
    wrong=(
        _one_hot_with(shapes=None),
        _one_hot_with(shapes=lambda my, x, size: [(size, *my.shape(x))]),
        _one_hot_with(tangent=lambda my, dx, size: my.spread(dx, len(my.shape(dx)), size)),
        _one_hot_with(of=lambda np, x, size: x[..., None] > np.arange(size)),
    ),
)
onehot


# %% tags=["answer"]
def add_one_hot(my):
    my.IMPLEMENTATIONS["one_hot"] = lambda np, x, size: ...
    my.SHAPES_OF["one_hot"] = lambda inputs, params: ...
    my.JVP_OF["one_hot"] = lambda inputs, tangents, params: ...


onehot.answer(add_one_hot)


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def add_one_hot(my):
    my.IMPLEMENTATIONS["one_hot"] = lambda np, x, size: x[..., None] == np.arange(size)
    my.SHAPES_OF["one_hot"] = lambda inputs, params: [(*my.shape(inputs[0]), params["size"])]
    my.JVP_OF["one_hot"] = lambda inputs, tangents, params: (my.bind("one_hot", *inputs, **params), [None])


onehot.solution(add_one_hot)

# %% [markdown]
# A softmax subtracts the largest score first, so that no exponential overflows. `max` removes the last axis. Its tangent is that of the largest element; where several are equal, JAX takes
# the mean of theirs. `my.step(x)` is 1 where `x` is positive and 0 elsewhere, which is enough to find the largest.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: largest
def _max_with(tangent, shapes=lambda my, x: [my.shape(x)[:-1]]):
    def add(my):
        my.IMPLEMENTATIONS["max"] = lambda np, x: np.max(x, -1)
        my.SHAPES_OF["max"] = lambda inputs, params: shapes(my, inputs[0])

        def rule(inputs, tangents, params):
            (x,), (dx,), (out,) = inputs, tangents, my.bind("max", *inputs)
            axis, n = len(my.shape(x)) - 1, my.shape(x)[-1]
            is_max = 1.0 - my.step(my.spread(out, axis, n) - x)
            return [out], [tangent(my, dx, is_max, axis, n)]

        my.JVP_OF["max"] = rule

    return add


largest = teach.autodiff.addition(
    my, "max", "Write `add_max(my)`: the operation `max` is the largest element along the last axis.",
    lambda x: jnp.max(x, -1), np.array([1.0, 5.0, 2.0]), np.array([[3.0, -1.0, 3.0], [0.0, 2.0, 1.0]]),
    hints=(
        "Copy the result along the last axis with `my.spread`. Where is it larger than x, and where is it not?",
        "`1.0 - my.step(copies - x)` is 1 at the largest elements. How many are there?",
        "The tangent is `my.sum(is_max * dx, axis) / my.sum(is_max, axis)`, where `axis` is `len(my.shape(x)) - 1`.",
    ),
    wrong=(
        _max_with(lambda my, dx, is_max, axis, n: my.sum(dx * is_max, axis)),
        _max_with(lambda my, dx, is_max, axis, n: my.sum(dx, axis)),
        _max_with(lambda my, dx, is_max, axis, n: None),
        _max_with(lambda my, dx, is_max, axis, n: my.sum(dx * is_max, axis) / my.sum(is_max, axis), shapes=lambda my, x: [my.shape(x)]),
    ),
)
largest


# %% tags=["answer"]
def add_max(my):
    def max_jvp(inputs, tangents, params):
        (x,), (dx,), (out,) = inputs, tangents, my.bind("max", *inputs)
        axis, n = len(my.shape(x)) - 1, my.shape(x)[-1]
        ...

    my.IMPLEMENTATIONS["max"] = lambda np, x: np.max(x, -1)
    my.SHAPES_OF["max"] = lambda inputs, params: ...
    my.JVP_OF["max"] = max_jvp


largest.answer(add_max)


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def add_max(my):
    def max_jvp(inputs, tangents, params):
        (x,), (dx,), (out,) = inputs, tangents, my.bind("max", *inputs)
        axis, n = len(my.shape(x)) - 1, my.shape(x)[-1]
        is_max = 1.0 - my.step(my.spread(out, axis, n) - x)
        return [out], [my.sum(is_max * dx, axis) / my.sum(is_max, axis)]

    my.IMPLEMENTATIONS["max"] = lambda np, x: np.max(x, -1)
    my.SHAPES_OF["max"] = lambda inputs, params: [my.shape(inputs[0])[:-1]]
    my.JVP_OF["max"] = max_jvp


largest.solution(add_max)

# %% jupyter={"source_hidden": true}
# Where you have not added an operation, the notebook's own is used
for _name, _add in {"rsqrt": add_rsqrt, "one_hot": add_one_hot, "max": add_max}.items():
    if _name not in my.IMPLEMENTATIONS:
        _add(my)

# %% [markdown]
# Each of them gets a function. Here is the gradient of `max` as your engine records it: the transposes of the operations in your rule.

# %%
my.rsqrt = lambda x: my.bind("rsqrt", x)[0]
my.one_hot = lambda x, size: my.bind("one_hot", x, size=size)[0]
my.largest = lambda x: my.bind("max", x)[0]
print(my.trace(lambda x: my.grad(lambda x: my.total(my.largest(x)))(x), np.ones((2, 3))))

# %% [markdown]
# ## 2. The model
#
# It reads a window of characters, and predicts the next one at each position. Everything is made of your operations; rows are positions.

# %%
TEXT = "a loop runs forward and its gradient runs back. "
CHARACTERS = sorted(set(TEXT))
V, T, WIDTH, LAYERS = len(CHARACTERS), 16, 32, 3
FUTURE = np.triu(np.full((T, T), -1e9, np.float32), 1)  # what a position must not see


def rows(x, f):
    """x, with a number for each row, f(row), copied along the row."""
    return my.spread(f(x), 1, my.shape(x)[1])


def norm(x):
    x = x - rows(x, lambda x: my.sum(x, 1) * (1 / my.shape(x)[1]))
    return x * rows(x, lambda x: my.rsqrt(my.sum(x * x, 1) * (1 / my.shape(x)[1]) + 1e-5))


def log_softmax(x):
    x = x - rows(x, my.largest)
    return x - rows(x, lambda x: my.log(my.sum(my.exp(x), 1)))


# %% [markdown]
# A layer is attention and an MLP. No position sees a later one.

# %%
def attention(p, x):
    q, k, v = x @ p["query"], x @ p["key"], x @ p["value"]
    pattern = my.exp(log_softmax(q @ my.swap(k) * WIDTH**-0.5 + FUTURE))
    return pattern @ v @ p["out"]


def block(x, p):
    x = x + attention(p, norm(x))
    hidden = norm(x) @ p["up"]
    return x + (hidden * my.step(hidden)) @ p["down"], None


def model(params, window):
    x = my.one_hot(window, V) @ params["embed"] + params["position"]
    x, _ = my.scan(block, x, params["blocks"])
    return log_softmax(norm(x) @ params["unembed"])


def loss_of_one(params, window, following):
    return -my.total(my.one_hot(following, V) * model(params, window)) * (1 / T)


# %% [markdown]
# That is the loss of one window. Your `vmap` makes it that of all windows of the text, with the scan inside.

# %%
numbers = np.array([CHARACTERS.index(c) for c in TEXT * 2], np.float32)
windows = np.stack([numbers[i : i + T] for i in range(len(TEXT))])
following = np.stack([numbers[i + 1 : i + 1 + T] for i in range(len(TEXT))])


def loss(params):
    return my.mean(my.vmap(loss_of_one, (False, True, True))(params, windows, following))


rng = np.random.default_rng(0)
normal = lambda *shape: (rng.normal(size=shape) * shape[-2] ** -0.5).astype(np.float32)
of_layer = {"query": (WIDTH, WIDTH), "key": (WIDTH, WIDTH), "value": (WIDTH, WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
params = {
    "embed": normal(V, WIDTH),
    "position": 0.1 * normal(T, WIDTH),
    "blocks": {name: 0.5 * normal(LAYERS, *shape) for name, shape in of_layer.items()},
    "unembed": 0.1 * normal(WIDTH, V),
}
program = my.trace(lambda embed: loss({**params, "embed": embed}), params["embed"])
print(len(program.equations), "equations, of which one is the loop over the layers:", *(e.op for e in program.equations if e.op == "scan"))

# %% [markdown]
# The model is untrained, and its weights are small. What is its loss on the text, before it has learned anything?

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: guess
guess = teach.predict(
    f"The loss is the mean of -log p of the character that follows. About what is it for this untrained model, with {V} characters?",
    truth=lambda: float(loss(params)),
    because=lambda: f"It gives all {V} characters about the same probability, and -log(1 / {V}) is {np.log(V):.2f}.",
    tolerance=0.08,
    hints=("Which probability does it give to each character?", "The natural logarithm."),
)
guess

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
guess.solution(np.log(V))

# %% [markdown]
# ## 3. The gradient, compared
#
# The engine's operations also compute with JAX's arrays, and with JAX's tracers. So JAX can differentiate the same function, by its own rules.

# %%
params = jax.tree.map(jnp.asarray, params)
value, gradient = jax.jit(my.value_and_grad(loss))(params)
by_jax = jax.jit(jax.grad(loss))(params)
apart = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max() / jnp.abs(b).max()), gradient, by_jax)
print("relative difference:", jax.tree.map(lambda d: f"{d:.0e}", apart))

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
def _norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def _model_by_jax(params, window):
    def block(x, p):
        h = _norm(x)
        scores = jnp.where(jnp.tri(T), (h @ p["query"]) @ (h @ p["key"]).T * WIDTH**-0.5, -jnp.inf)
        x = x + jax.nn.softmax(scores) @ (h @ p["value"]) @ p["out"]
        return x + jax.nn.relu(_norm(x) @ p["up"]) @ p["down"], None

    x = params["embed"][window] + params["position"]
    return jax.nn.log_softmax(_norm(jax.lax.scan(block, x, params["blocks"])[0]) @ params["unembed"])


def _loss_by_jax(params):
    log_p = jax.vmap(_model_by_jax, (None, 0))(params, jnp.asarray(windows, int))
    return -jnp.mean(jnp.take_along_axis(log_p, jnp.asarray(following, int)[..., None], -1))


# A model that is written for JAX, with nothing of the engine, has the same loss and gradient
_value, _gradient = jax.jit(jax.value_and_grad(_loss_by_jax))(params)
assert np.isclose(value, _value, rtol=1e-5)
for _ours, _same, _other in zip(jax.tree.leaves(gradient), jax.tree.leaves(by_jax), jax.tree.leaves(_gradient)):
    assert np.allclose(_ours, _same, atol=2e-4 * np.abs(_same).max())
    assert np.allclose(_ours, _other, atol=2e-4 * np.abs(_other).max())
assert [e.op for e in program.equations].count("scan") == 1

# %% [markdown]
# ## 4. The explorer shows your program
#
# `my.as_jax(f)` is `f` as a function of JAX whose derivative is yours: its forward and its backward program are those that the engine records, with the line of
# the rule that made each equation. So every report of jaxviz is about your engine. Here is one window, backward and forward. The loop over the layers is selected, which your
# `scan_transpose` made; click an equation in it to see the rule that it is from. What that loop recomputes has the lines of the model.

# %%
def first_window(params):
    return loss_of_one(params, windows[0], following[0])


explorer = jaxviz.explore(my.as_jax(first_window), params)
explorer.stage, explorer.beside = "backward", "forward"
backward = [e for _, e in explorer.derivation.backward.walk()]
loop = next(e for e in backward if e.primitive.name == "scan")
explorer.selected = f"backward:{backward.index(loop)}"
explorer

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
from jaxviz.ir.origin import own_line as _own_line

assert explorer.equation is loop
assert [e.primitive.name for e in backward].count("exp") >= 2
assert all(_own_line(e.source) for e in backward if e.primitive.name in ("mul", "exp", "dot_general"))

# %% [markdown]
# What does it save for the backward pass, for all windows? JAX's gradient of the same function is in the second row.

# %%
mine, theirs = jaxviz.residuals(my.as_jax(loss), params), jaxviz.residuals(loss, params)
used = [jaxviz.memory(f, params).xla.temporaries for f in (my.as_jax(loss), loss)]
print("             saved     XLA's temporaries   values that the loop over the layers stacks")
for name, report, temporaries in zip(("your engine", "JAX"), (mine, theirs), used):
    stacked = [r.type for r in report if r.type.startswith(f"{LAYERS} × ")]
    print(f"{name:>11}: {report.nbytes_without_arguments / 2**20:4.1f} MiB {temporaries / 2**20:12.1f} MiB {len(stacked):12}")

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: saves
saves = teach.predict(
    "What does your engine save of each layer, for the backward pass?",
    ["the input of the layer", "the attention pattern", "every value that a derivative multiplies by"],
    truth=lambda: "the input of the layer" if [r.type for r in mine if " × " in r.type] == [f"{LAYERS} × f32[{len(windows)},{T},{WIDTH}]"] else "every value that a derivative multiplies by",
    because={
        "the input of the layer": "Your second loop reads the carry at the start of each iteration, and recomputes the layer from it: a checkpoint around each layer.",
        "the attention pattern": "JAX saves it. Your second loop recomputes it, from the carry at the start of the iteration.",
        "every value that a derivative multiplies by": "JAX does, since it splits the body as well. Your rule for a scan makes a second loop instead, which recomputes them.",
    },
    hints=("How many values are stacked by your loop?", "What did your `scan_jvp` stack for the second loop?"),
)
saves

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
saves.solution("the input of the layer")

# %% [markdown]
# ## 5. Training
#
# Adam, with your gradient; `jax.jit` compiles it. The text is so short that the model learns it by heart.

# %%
value_and_grad = jax.jit(my.value_and_grad(loss))


@jax.jit
def adam(params, mean, square, gradient, n):
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, square, gradient)
    move = lambda p, m, s: p - 3e-3 * (m / (1 - 0.9**n)) / (jnp.sqrt(s / (1 - 0.99**n)) + 1e-8)
    return jax.tree.map(move, params, mean, square), mean, square


trained, losses = params, []
mean = square = jax.tree.map(jnp.zeros_like, params)
for n in range(1, 151):
    now, gradient = value_and_grad(trained)
    trained, mean, square = adam(trained, mean, square, gradient, n)
    losses.append(float(now))

plt.figure(figsize=(6, 2.4))
plt.plot(losses)
plt.xlabel("step")
plt.ylabel("loss")
plt.show()

# %% [markdown]
# It continues a text by the most probable character, again and again. It gets the first 16.

# %%
predict = jax.jit(model)
written = TEXT[:T]
for _ in range(2 * len(TEXT) - T):
    window = np.array([CHARACTERS.index(c) for c in written[-T:]], np.float32)
    written += CHARACTERS[int(predict(trained, window)[-1].argmax())]
print(written)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert abs(losses[0] - np.log(V)) < 0.3 and losses[-1] < 0.2
assert written == TEXT * 2
assert mine.nbytes_without_arguments < 0.5 * theirs.nbytes_without_arguments and used[0] < 0.7 * used[1]

# %% [markdown]
# ## What to remember
#
# - An engine is its rules. An operation with an implementation, a shape and a tangent is differentiated, mapped and trained like all others.
# - A derivative that is written with differentiable operations needs no rule for transposition: the operations have theirs.
# - A program of equations with lines can be shown, measured and compared, whoever derived it.
#
# Next: [30 · puzzles on memory](30_puzzles_on_memory.ipynb).
