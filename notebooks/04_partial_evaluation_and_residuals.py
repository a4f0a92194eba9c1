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
# # 4 · What must a gradient remember?
#
# `jax.grad` runs your function forward, and then backward with the values that it saved. These are the *residuals*, and in a large model they take
# most of the memory. Which values are they? Not all that the function computes, and some that stand nowhere in your code.
#
# This notebook answers that for one head of attention. It takes 30 minutes. You should be able to read a jaxpr
# ([1 · reading jaxprs](01_reading_jaxprs.ipynb)).

# %%
import jax
import jax.numpy as jnp
import numpy as np

import jaxviz
from jaxviz import teach


def attention(params, x):
    q, k, v = x @ params["query"], x @ params["key"], x @ params["value"]
    scores = q @ k.T
    weights = jax.nn.softmax(scores)
    return weights @ v


def loss(params, x, target):
    h = jnp.tanh(attention(params, x))
    return jnp.mean((h @ params["out"] - target) ** 2)


def normal(seed, *shape):
    return 0.3 * jax.random.normal(jax.random.key(seed), shape)


params = {name: normal(i, 8, 8) for i, name in enumerate(["query", "key", "value"])} | {"out": normal(3, 8, 2)}
x, target = normal(4, 16, 8), normal(5, 16, 2)

# %% [markdown]
# ## Two halves
#
# Take one line first, $f(x) = \sin x \cdot e^x$. Its derivative along a tangent $\dot x$ is
#
# $$\dot f = (\cos x \cdot e^x + \sin x \cdot e^x)\,\dot x$$
#
# Everything in the bracket depends on $x$ alone. So it can be computed now, before $\dot x$ is known. What remains for later
# is *linear*: tangents are multiplied by known numbers, and added. Splitting a program into what can be computed now and what has to
# wait is *partial evaluation*. Whatever is computed now and read later crosses the cut. That is a residual.
#
# JAX does not form the bracket. It has a rule for each operation: one for the sine, one for the exponential, one for the product.

# %%
def f(x):
    return jnp.sin(x) * jnp.exp(x)


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: of_f
of_f = teach.saved(f, 2.0)
of_f

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
of_f.solution(["sin", "exp", "sin'"])

# %% [markdown]
# A residual is what the *derivative* reads, whether or not the function computes it. Here are the two halves:

# %%
halves = jaxviz.derive(f, 2.0)
print("now:  ", halves.forward, "\n")
print("later:", halves.linear)

# %% [markdown]
# `forward` gives the result, and after it the residuals; `linear` takes them, and the tangent, and gives the tangent of the result. In the
# linear half there is no `sin` and no `exp`. All work that is not linear was done in the first half. In a picture, the residuals are the arrows that cross the cut:

# %%
jaxviz.draw(f, 2.0, stage="forward+linear")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
result, *kept_by_f = halves.forward.jaxpr.jaxpr.outvars
assert len(kept_by_f) == halves.n_residuals == len(halves.linear.invars) - 1
assert {e.primitive.name for e in halves.linear.equations} <= {"mul", "add_any"}
assert {"sin", "exp", "cos"} <= {e.primitive.name for e in halves.forward.equations}
assert np.isclose(jax.jvp(f, (2.0,), (1.0,))[1], (np.cos(2.0) + np.sin(2.0)) * np.exp(2.0))

# %% [markdown]
# ## Each rule saves what it needs
#
# JAX has a derivative rule for each primitive, and the rule decides which values it saves. Here are some of them.

# %%
a, b = jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])
rules = {
    "x + y": lambda x, y: x + y,
    "x * y": lambda x, y: x * y,
    "x / y": lambda x, y: x / y,
    "x @ y": lambda x, y: x @ y,
    "sin(x)": lambda x, y: jnp.sin(x),
    "log(x)": lambda x, y: jnp.log(x),
    "tanh(x)": lambda x, y: jnp.tanh(x),
    "relu(x)": lambda x, y: jax.nn.relu(x),
    "x ** 3": lambda x, y: x**3,
    "sum(x)": lambda x, y: jnp.sum(x),
}
for name, rule in rules.items():
    print(f"{name:8} keeps", ", ".join(r.expression for r in jaxviz.residuals(rule, a, b, argnums=(0, 1))) or "nothing")

# %% [markdown]
# A sum saves nothing: its derivative is the sum of the tangents. A product saves its factors, because each multiplies the other's tangent. Each
# of the others saves what its rule multiplies by, divides by, or selects with. Often that is the slope itself, as for `sin(x)`. For `log(x)` it is
# the operand, which the tangent is divided by. `relu(x)` chooses between the tangent and zeros, by a mask. And a rule may save two values where one
# would be enough: which rules do is JAX's decision, and has changed between versions. `exp` is left out above:

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: of_exp
_KINDS = {"argument": "its operand x", "intermediate": "its result exp(x)"}


def _what_exp_keeps():
    (only,) = jaxviz.residuals(jnp.exp, a)
    return _KINDS[only.kind]


of_exp = teach.predict(
    "What does the gradient of `jnp.exp(x)` keep?",
    ["its operand x", "its result exp(x)", "both", "nothing"],
    truth=_what_exp_keeps,
    because={
        "its result exp(x)": "The slope of exp is exp, and that has been computed already: keeping the result costs no work later.",
        "its operand x": "From `x` the exponential would have to be computed a second time.",
        "both": "One of them is enough.",
        "nothing": "The slope depends on `x`, so the backward pass needs `x`, or a value computed from it.",
    },
    hints=("What is the slope of exp at x?",),
)
of_exp

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
of_exp.solution("its result exp(x)")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
kinds = {name: [r.kind for r in jaxviz.residuals(rule, a, b, argnums=(0, 1))] for name, rule in rules.items()}
assert kinds["x + y"] == kinds["sum(x)"] == []
assert kinds["x * y"] == kinds["x @ y"] == ["argument", "argument"]
assert all("intermediate" in kinds[name] for name in ("sin(x)", "tanh(x)", "x ** 3"))
assert kinds["log(x)"] == ["argument"]
assert sorted(r.aval.dtype.name for r in jaxviz.residuals(jax.nn.relu, a)) == ["bool", "float32"]

# %% [markdown]
# So the way a function is written decides what its gradient saves. Here is a polynomial:


# %%
def quartic(x):
    return x * x * x * x


print(jaxviz.residuals(quartic, a).table())

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: frugal
_some = jnp.array([0.0, 0.5, -3.0, 2.0])

frugal = teach.rule(
    "Write `my_quartic(x)`, the same function, whose gradient saves at most one array besides `x`.",
    teach.computes(quartic, (_some,)),
    teach.gradient_of(quartic, (_some,)),
    teach.keeps_at_most(16, _some),
    hints=("Each product saves its factors. How few products, or other operations, make a fourth power?",),
    wrong=(quartic, lambda x: jnp.abs(x) ** 3 * x, lambda x: jnp.square(jnp.square(x)), lambda x: jnp.exp(4 * jnp.log(x))),
)
frugal


# %% tags=["answer"]
def my_quartic(x):
    return ...


frugal.answer(my_quartic)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
frugal.solution(lambda x: x**4)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
def _in_two_steps(x):
    y = x * x
    return y * y


assert frugal.answer(_in_two_steps)

# %% [markdown]
# ## Attention
#
# Now the program from above. Mark what its gradient with respect to `params` saves: go through the lines, and ask for each operation what its derivative
# reads. The variables are those of its jaxpr.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: kept
kept = teach.saved(loss, params, x, target)
kept

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
kept.solution(
    [
        "params['out']",
        "x",
        "dot_general(x, params['query'])",
        "dot_general(x, params['value'])",
        "transpose",
        "exp",
        "broadcast_in_dim",
        "weights",
        "div'",
        "h",
        "tanh'",
        "integer_pow'",
    ]
)

# %% [markdown]
# JAX saves the same: `check` compares with the residuals of `jax.vjp`.

# %%
derivation = jaxviz.derive(loss, params, x, target)
residuals = derivation.residuals
print(residuals.summary)
print(derivation.check())

# %% [markdown]
# Both halves side by side, with one residual selected: the weights of attention, $n \times n$ numbers. On the left is where they are
# computed, on the right what reads them, and in the inspector why. Click other equations.

# %%
weights = next(r for r in residuals if r.producer is not None and r.producer.primitive.name == "div")
equations = [e for _, e in derivation.forward.walk()]

explorer = jaxviz.explore(derivation)
explorer.stage, explorer.beside = "forward", "linear"
explorer.selected = f"forward:{equations.index(weights.producer)}"
explorer

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert derivation.check()
assert explorer.equation is weights.producer
assert sum(r.aval.shape == (16, 16) for r in residuals) == 2

# %% [markdown]
# The same gradient in motion. Press Space: each expression fills its bin in the forward pass, and the backward pass takes it out again, the last one first.

# %%
in_motion = jaxviz.explore(derivation)
in_motion.question = "motion"
in_motion

# %% [markdown]
# ## What grows
#
# Two of the residuals are $n \times n$: every position with every other. The rest have one row for a position, or none.

# %%
import matplotlib.pyplot as plt

lengths = (16, 32, 64, 128, 256)
square, rest = [], []
for n in lengths:
    found = jaxviz.residuals(loss, params, normal(4, n, 8), normal(5, n, 2))
    square.append(sum(r.nbytes for r in found if r.aval.shape == (n, n)) / 1024)
    rest.append(found.nbytes / 1024 - square[-1])
plt.figure(figsize=(6, 2.6))
plt.bar(range(len(lengths)), square, label="n × n")
plt.bar(range(len(lengths)), rest, bottom=square, label="all else")
plt.xticks(range(len(lengths)), lengths)
plt.xlabel("positions")
plt.ylabel("KiB saved")
plt.legend(frameon=False);

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: size
def _size(n):
    return jaxviz.residuals(loss, params, normal(4, n, 8), normal(5, n, 2)).nbytes


def _why_so_large():
    found = jaxviz.residuals(loss, params, normal(4, positions, 8), normal(5, positions, 2))
    square = sum(r.nbytes for r in found if r.aval.shape == (positions, positions))
    return f"{square:,} bytes of it are the n × n values, {square / found.nbytes:.0%}: twice the length is four times the bytes."


positions = teach.number("positions", 1024, 1536, 2048)  # the first, unless teach.seed is called
size = teach.predict(
    f"How many bytes does it keep for {positions:,} positions? Within a tenth is right; write `5 MiB` or a number.",
    truth=lambda: _size(positions),
    because=_why_so_large,
    tolerance=0.1,
    hints=(
        f"Two values have {positions:,} × {positions:,} numbers of 4 bytes.",
        lambda: f"Those two alone take {2 * 4 * positions**2:,} bytes. The rest is a few hundred bytes for each position.",
    ),
)
size

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
size.solution(2 * 4 * positions**2 + 300 * positions)

# %% [markdown]
# The arguments that you differentiate matter too. With respect to `params` alone, `params['query']` is not saved: it multiplies no tangent, because the tangent of `x` is
# zero. Differentiate with respect to `x` as well, and it is saved:

# %%
for argnums in (0, (0, 1)):
    found = jaxviz.residuals(loss, params, x, target, argnums=argnums)
    print(argnums, [r.expression for r in found if r.kind == "argument"])

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
of_arguments = [
    {r.expression for r in jaxviz.residuals(loss, params, x, target, argnums=n) if r.kind == "argument"}
    for n in (0, (0, 1))
]
assert of_arguments[1] - of_arguments[0] == {"params['query']", "params['key']", "params['value']"}
assert _size(128) > 2.5 * _size(64)

# %% [markdown]
# ## Be the partial evaluator
#
# Write the two halves of $g(x) = \log(1 + x^2)$ yourself. `forward(x)` gives the result and a tuple of residuals. `linear(residuals,
# x_dot)` gives the tangent of the result; it may only multiply and add. JAX saves $g'$ as two numbers for each `x`; one is enough.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: cut
def g(x):
    return jnp.log(1 + x**2)


def _tangent(x, x_dot):
    return jax.jvp(g, (x,), (x_dot,))[1]


def _joined(pair):
    forward, linear = pair
    return lambda x, x_dot: linear(forward(x)[1], x_dot)


_points = [(jnp.array([0.0, 0.5, -3.0]), jnp.array([1.0, 1.0, 2.0])), (2.0, -1.0)]
_held = jax.ShapeDtypeStruct((4,), jnp.float32)


def _bytes_crossing(pair):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(pair[0], _held)[1]))


def _linear_operations(pair):
    residuals = jax.eval_shape(pair[0], _held)[1]
    return {e.primitive.name for _, e in jaxviz.trace(pair[1])(residuals, _held).walk()}


cut = teach.rule(
    "Write `forward` and `linear`, the two halves of `g`.",
    teach.computes(g, (jnp.array([0.0, 0.5, -3.0]),)).of(lambda pair: lambda x: pair[0](x)[0]).saying("forward gives what g gives"),
    teach.computes(_tangent, *_points).of(_joined).saying("linear gives the tangent that jax.jvp gives"),
    teach.Check(
        "linear only multiplies and adds",
        lambda pair: ""
        if _linear_operations(pair) <= {"mul", "add", "sub", "neg", "add_any", "convert_element_type"}
        else f"It has {', '.join(sorted(_linear_operations(pair)))} in its jaxpr. What depends on x alone can be done in forward.",
    ),
    teach.Check(
        "one number crosses for each x",
        lambda pair: "" if _bytes_crossing(pair) <= 16 else f"For four numbers of 4 bytes it saves {_bytes_crossing(pair)} bytes.",
    ),
    hints=(
        "The slope of g at x is 2x / (1 + x²).",
        "`forward` can compute the slope and return it as the only residual.",
        "`linear` is then a product of two numbers.",
    ),
    wrong=(
        (lambda x: (g(x), (x,)), lambda kept, x_dot: 2 * kept[0] / (1 + kept[0] ** 2) * x_dot),
        (lambda x: (g(x), (2 * x, 1 / (1 + x**2))), lambda kept, x_dot: kept[0] * kept[1] * x_dot),
        (lambda x: (g(x), (1 / (1 + x**2),)), lambda kept, x_dot: kept[0] * x_dot),
        (lambda x: (x, (2 * x / (1 + x**2),)), lambda kept, x_dot: kept[0] * x_dot),
    ),
)
cut


# %% tags=["answer"]
def forward(x):
    return jnp.log(1 + x**2), (...,)


def linear(residuals, x_dot):
    return ...


cut.answer((forward, linear))

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def forward(x):
    y = 1 + x**2
    return jnp.log(y), (2 * x / y,)


def linear(residuals, x_dot):
    (slope,) = residuals
    return slope * x_dot


cut.solution((forward, linear))

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
of_g = jaxviz.residuals(g, jnp.ones(4))
assert sum(r.aval.shape == (4,) for r in of_g) == 2

# %% [markdown]
# To make JAX use your own halves, give it a *custom rule*: [9 · custom rules](09_custom_rules.ipynb).

# %% [markdown]
# ## What to remember
#
# - Linearizing cuts a function in two. The first half does all that depends on the inputs; the second is linear in the tangents.
# - Residuals are what crosses: the values that derivatives read. Sums need none, products their factors, and other operations what their rules
#   multiply by, divide by or select with. The same function, written with other operations, saves other values.
# - Some are values of your function, some are arguments, which take no further memory, and some are computed by a rule.
# - The arguments that you differentiate matter too.
#
# Next: how the linear half is transposed to run backward, in [5 · transposition](05_transposition.ipynb). How residuals can be
# recomputed instead of saved is in [6 · checkpoints](06_checkpoints.ipynb).
