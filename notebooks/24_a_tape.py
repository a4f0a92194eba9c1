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
# # 24 · Can I write a gradient of my own in half an hour?
#
# Yes, and in plain Python: no JAX, no NumPy. You write a *tape*, which records what a program computes, and a walk along it, which gives the gradient. Then your gradient
# trains a network.
#
# It takes 35 minutes. You need Python, and the derivatives of a product and of $\tanh$.
#
# Here is the program: a network with one hidden layer, which tells two moons apart. Its 33 parameters are in one list.

# %%
import math
import random
from math import exp, log, tanh

from jaxviz import teach

HIDDEN = 8


def score(params, x, y):
    """Positive where the network sees the second moon."""
    total = params[-1]
    for i in range(0, 4 * HIDDEN, 4):
        a, b, c, d = params[i : i + 4]
        total = total + d * tanh(a * x + b * y + c)
    return total


def loss(params, points):
    """The mean cross entropy."""
    total = 0.0
    for x, y, moon in points:
        s = score(params, x, y)
        total = total + log(1.0 + exp(s)) - moon * s
    return total * (1 / len(points))


def moons(n):
    for i in range(n):
        angle, moon = random.uniform(0, math.pi), i % 2
        x, y = math.cos(angle), math.sin(angle)
        if moon:
            x, y = 1 - x, 0.4 - y
        yield x + random.gauss(0, 0.1), y + random.gauss(0, 0.1), moon


random.seed(0)
points = list(moons(60))
start = [random.gauss(0, 1) for _ in range(4 * HIDDEN + 1)]
print(len(start), "parameters, loss", round(loss(start, points), 3))

# %% jupyter={"source_hidden": true}
# How the points, and what the network says of the plane, are drawn


class Picture:
    def __init__(self, params=None):
        self.params = params

    def _repr_html_(self):
        colours = ("#3b78c9", "#d2603a")
        place = lambda x, y: (70 * (x + 1.4), 70 * (1.4 - y))
        shapes = []
        for i in range(24 * 15) if self.params else ():
            x, y = -1.4 + i % 24 / 24 * 3.8, 1.4 - i // 24 / 15 * 2.6
            s = score(self.params, x + 1.9 / 24, y - 1.3 / 15)
            s = max(-4.0, min(4.0, getattr(s, "number", s)))
            left, top = place(x, y)
            shapes.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="11.2" height="12.2" fill="{colours[s > 0]}" opacity="{abs(s) / 8:.2f}"/>'
            )
        for x, y, moon in points:
            left, top = place(x, y)
            shapes.append(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="4" fill="{colours[moon]}" stroke="white"/>')
        said = "Points in two moons" + (", and the side of the network's line on which each part of the plane lies" if self.params else "")
        return f'<svg viewBox="0 0 266 182" width="400" style="max-width:100%" role="img" aria-label="{said}">{"".join(shapes)}</svg>'


Picture()

# %% [markdown]
# ## 1. A tape
#
# If an input of an operation moves a little, so does the result. By how many times as much is the *slope*: if `a` moves by `da`, the product `a * b` moves by `b * da`.
# Each operation appends one entry to the tape for each of its inputs: the output, the input and the slope.
#
# An input that is a `Value` gets an entry. One that is a plain number is a constant, and gets none.


# %%
tape = []  # entries: (output, input, slope)


class Value:
    def __init__(self, number, *inputs):  # inputs: pairs of an input and the slope
        self.number = number
        tape.extend((self, x, slope) for x, slope in inputs if isinstance(x, Value))

    def __add__(self, other):
        return add(self, other)

    def __mul__(self, other):
        return multiply(self, other)

    def __sub__(self, other):
        return add(self, multiply(-1.0, other))

    __radd__, __rmul__ = __add__, __mul__


def number(x):
    return x.number if isinstance(x, Value) else x


def add(a, b):
    return Value(number(a) + number(b), (a, 1.0), (b, 1.0))


def exp(a):
    y = math.exp(number(a))
    return Value(y, (a, y))


def log(a):
    return Value(math.log(number(a)), (a, 1 / number(a)))


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: operations
def _slopes(f, numbers):
    """The slopes that an operation records for its inputs, those to the same input added."""
    inputs = [Value(n) for n in numbers]
    before = len(tape)
    out = f(*inputs)
    entries = tape[before:]
    del tape[before:]
    return out, [sum(slope for o, x, slope in entries if o is out and x is given) for given in inputs]


def _difference(f, numbers, i, h=1e-5):
    moved = [[n + sign * h * (j == i) for j, n in enumerate(numbers)] for sign in (1, -1)]
    up, down = (number(f(*map(Value, each))) for each in moved)
    return (up - down) / (2 * h)


_TRIED = (("multiply", (3.0, -2.0)), ("multiply", (0.5, 4.0)), ("tanh", (0.7,)), ("tanh", (-1.5,)))
_NUMBERS = {"multiply": lambda a, b: a * b, "tanh": math.tanh}


def _call(name, numbers):
    return f"`{name}({', '.join(map(str, numbers))})`"


def _wrong_numbers(written):
    for name, numbers in _TRIED:
        out = written[name == "tanh"](*map(Value, numbers))
        if not isinstance(out, Value):
            return f"{_call(name, numbers)} returns {'None. Is a `return` missing?' if out is None else f'a {type(out).__name__}, not a `Value`.'}"
        if not math.isclose(out.number, _NUMBERS[name](*numbers)):
            return f"{_call(name, numbers)} is {out.number:.6g}, and should be {_NUMBERS[name](*numbers):.6g}."
    return ""


def _wrong_slopes(written):
    for name, numbers in _TRIED:
        f = written[name == "tanh"]
        _, slopes = _slopes(f, numbers)
        for i, slope in enumerate(slopes):
            if not math.isclose(slope, _difference(f, numbers, i), rel_tol=1e-4):
                return f"For {_call(name, numbers)} it records the slope {slope:.6g} to input {i}; numerical differences give {_difference(f, numbers, i):.6g}."
    return ""


def _constants_recorded(written):
    before = len(tape)
    out = written[0](2.0, Value(3.0))
    n, slope = len(tape) - before, tape[-1][2] if len(tape) > before else None
    del tape[before:]
    return "" if (out.number, n, slope) == (6.0, 1, 2.0) else f"`multiply(2.0, Value(3.0))` gives {out.number} and {n} entries; it should give 6.0 and one entry, of slope 2.0."


operations = teach.rule(
    "Write `multiply(a, b)` and `tanh(a)`, like `add` and `exp` above.",
    teach.Check("return the right numbers", _wrong_numbers),
    teach.Check("record slopes that agree with numerical differences", _wrong_slopes),
    teach.Check("take plain numbers too, without an entry", _constants_recorded),
    hints=(
        "If `a` moves and `b` stays, by what is the move multiplied?",
        "The derivative of tanh at $a$ is $1 - \\tanh(a)^2$: it follows from the result.",
        "`return Value(number(a) * number(b), (a, number(b)), (b, number(a)))`",
    ),
    wrong=(
        (lambda a, b: Value(number(a) * number(b), (a, number(a)), (b, number(b))), lambda a: Value(math.tanh(number(a)), (a, 1 - math.tanh(number(a)) ** 2))),
        (lambda a, b: Value(number(a) * number(b), (a, number(b)), (b, number(a))), lambda a: Value(math.tanh(number(a)), (a, 1 - number(a) ** 2))),
        (lambda a, b: Value(number(a) * number(b), (a, 1.0), (b, 1.0)), lambda a: Value(math.tanh(number(a)), (a, 1.0))),
        (lambda a, b: Value(a.number * b.number, (a, b.number), (b, a.number)), lambda a: Value(math.tanh(a.number), (a, 1 - math.tanh(a.number) ** 2))),
        (lambda a, b: number(a) * number(b), lambda a: math.tanh(number(a))),
    ),
)
operations


# %% tags=["answer"]
def multiply(a, b):
    return ...


def tanh(a):
    return ...


operations.answer((multiply, tanh))


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def _multiply(a, b):
    return Value(number(a) * number(b), (a, number(b)), (b, number(a)))


def _tanh(a):
    y = math.tanh(number(a))
    return Value(y, (a, 1 - y * y))


operations.solution((_multiply, _tanh))

# %% [markdown]
# From here on the notebook uses your functions if they are right, and its own if not.

# %%
multiply, tanh = (multiply, tanh) if operations.answer((multiply, tanh)) else (_multiply, _tanh)


def f(x):
    return x * x + 3.0 * x


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: entries
def _entries(f, *numbers):
    before = len(tape)
    f(*map(Value, numbers))
    n = len(tape) - before
    del tape[before:]
    return n


entries = teach.predict(
    "`f` has three operations. How many entries does `f(Value(2.0))` append to the tape?",
    truth=lambda: _entries(f, 2.0),
    because="`x * x` has two inputs, though both are `x`; `3.0 * x` has one, as 3.0 is a constant; the sum has two.",
    hints=("There is an entry for each input of an operation, unless the input is a plain number.",),
)
entries

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
entries.solution(5)

# %%
tape.clear()
x = Value(2.0)
y = f(x)
names = {x: "x", y: "y", tape[0][0]: "x * x", tape[2][0]: "3 * x"}
for output, given, slope in tape:
    print(f"{names[output]:>6} moves by {slope} × {names[given]}")

# %% [markdown]
# No sorting is needed: a value exists before anything is computed from it, so the entries of which it is the output come before those of which it is an input.
#
# ## 2. Backwards along the tape
#
# How far does `y` move if `x` moves by one? Start at the end: `y` moves with itself, by 1. Then walk from the last entry to the first. If it is known how far `y` moves with an
# entry's output, the entry says how far with its input.
#
# Your walk returns a dict from values to slopes. Entries that do not lead to `out` do not matter.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: walk
def _square(x, y):
    return x * x


def _both(x, y):
    return x * y + tanh(x * 0.5) * y


def _first(x, y):
    return x + y + x


def _long(x, y):
    z = x * y
    return exp(z) * z + z


def _gradient(walk, f, numbers):
    """The slopes to all inputs, with other entries before and behind those of `f`."""
    before = len(tape)
    inputs = [Value(n) for n in numbers]
    inputs[0] * inputs[1]
    out = f(*inputs)
    (out * inputs[0]) + inputs[1]
    try:
        found = walk(out)
        return found and [found.get(x, 0.0) for x in inputs]
    finally:
        del tape[before:]


def _wrong_walk(*functions):
    says = {_square: "x * x", _both: "x * y + tanh(0.5 * x) * y", _first: "x + y + x", _long: "exp(x * y) * (x * y) + x * y"}

    def fails(walk):
        for f in functions:
            numbers = (1.5, -0.5)
            found = _gradient(walk, f, numbers)
            if not found:
                return "It returns None. Is a `return` missing?" if found is None else "It returns an empty dict."
            for i, slope in enumerate(found):
                true = _difference(f, numbers, i)
                if not math.isclose(slope, true, rel_tol=1e-4, abs_tol=1e-7):
                    return f"For `{says[f]}` at x = 1.5, y = -0.5 it gives {slope:.6g} for {'xy'[i]}; numerical differences give {true:.6g}."
        return ""

    return fails


def _overwrites(out):
    slopes = {out: 1.0}
    for output, given, slope in reversed(tape):
        if output in slopes:
            slopes[given] = slope * slopes[output]
    return slopes


def _not_reversed(out):
    slopes = {out: 1.0}
    for output, given, slope in tape:
        slopes[given] = slopes.get(given, 0.0) + slope * slopes.get(output, 0.0)
    return slopes


def _no_chain(out):
    slopes = {out: 1.0}
    for output, given, slope in reversed(tape):
        if output in slopes:
            slopes[given] = slopes.get(given, 0.0) + slope
    return slopes


def _from_the_end(out):
    slopes = {tape[-1][0]: 1.0}
    for output, given, slope in reversed(tape):
        if output in slopes:
            slopes[given] = slopes.get(given, 0.0) + slope * slopes[output]
    return slopes


walk = teach.rule(
    "Write `backward(out)`: the slope of `out` in each value that it was computed from.",
    teach.Check("is right if a value is used twice in one operation", _wrong_walk(_square)),
    teach.Check("is right for a product of sums and a chain of operations", _wrong_walk(_both, _first)),
    teach.Check("is right if a value in the middle is used three times", _wrong_walk(_long)),
    hints=(
        "Begin with `slopes = {out: 1.0}`, and walk over `reversed(tape)`.",
        "If `y` moves by `s` with the output, and the output by `slope` with the input, then `y` moves by `slope * s` with the input, along this way.",
        "There may be several ways from a value to `out`. What happens to the slope of the first when the second is found?",
    ),
    wrong=(_overwrites, _not_reversed, _no_chain, _from_the_end, lambda out: {}),
)
walk


# %% tags=["answer"]
def backward(out):
    """The slopes of `out`, in a dict by value."""
    slopes = {out: 1.0}
    for output, given, slope in reversed(tape):
        ...
    return slopes


walk.answer(backward)


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def _backward(out):
    slopes = {out: 1.0}
    for output, given, slope in reversed(tape):
        if output in slopes:
            slopes[given] = slopes.get(given, 0.0) + slope * slopes[output]
    return slopes


walk.solution(_backward)

# %% [markdown]
# That is backpropagation. A value that is used twice gets a part of its slope from each use, and the parts are *added*; when the walk reaches the entries that computed it, its slope is complete.

# %%
backward = backward if walk.answer(backward) else _backward
print("slope of f at 2:", backward(y)[x])

# %% [markdown]
# Is it right for the network? Move each parameter a little, and compare. `score` has not changed: it calls `tanh`, which is now yours.


# %%
def gradient(params, points):
    tape.clear()
    values = [Value(p) for p in params]
    out = loss(values, points)
    slopes = backward(out)
    return out.number, [slopes[v] for v in values]


def numerically(params, points, i, h=1e-5):
    up, down = ([p + sign * h * (j == i) for j, p in enumerate(params)] for sign in (1, -1))
    return (number(loss(up, points)) - number(loss(down, points))) / (2 * h)


few = points[:6]
_, slopes = gradient(start, few)
differences = [abs(s - numerically(start, few, i)) for i, s in enumerate(slopes)]
print(f"largest slope {max(map(abs, slopes)):.3f}, largest difference {max(differences):.1e}")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert max(differences) < 1e-7
assert max(map(abs, slopes)) > 0.01
tape.clear()
_x = Value(2.0)
_y = f(_x)
assert backward(_y)[_x] == 7.0
_computed = set()
for _output, _given, _ in reversed(tape):
    assert _given not in _computed
    _computed.add(_output)

# %% [markdown]
# ## 3. Train with it
#
# A hundred steps, downhill.

# %%
params, losses = start, []
for step in range(100):
    now, slopes = gradient(params, points)
    losses.append(now)
    params = [p - 5.0 * s for p, s in zip(params, slopes)]
print(" ".join(f"{now:.3f}" for now in losses[::11]))
Picture(params)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert losses[-1] < 0.1 < 0.5 < losses[0], losses
_right = [(number(score(params, x, y)) > 0) == bool(moon) for x, y, moon in points]
assert sum(_right) >= 58, sum(_right)

# %% [markdown]
# ## 4. What it costs
#
# The walk needs the whole tape, back to the first entry: nothing on it can be dropped before the walk has passed.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: example
def _of_points(n):
    return _entries(lambda *values: loss(values, points[:n]), *start)


example = teach.predict(
    "How many entries does each further point of a batch add to the tape? 10 % off is fine.",
    truth=lambda: _of_points(11) - _of_points(10),
    because=lambda: f"A hidden unit has seven operations and eleven entries, which makes {11 * HIDDEN}; the others are the loss. That is {(_of_points(11) - _of_points(10)) / len(start):.1f} times as many as there are parameters.",
    tolerance=0.1,
    hints=(
        "Count the operations of one hidden unit in `score`, and the inputs of each that are Values: `x` and `y` are plain numbers.",
        "`a * x` and `b * y` have one such input each, the three sums and the product with `d` two each, `tanh` one.",
    ),
)
example

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
example.solution(97)

# %%
import sys

for n in (1, 10, 60):
    gradient(start, points[:n])
    nbytes = sum(sys.getsizeof(entry) + sys.getsizeof(entry[2]) for entry in tape)
    print(f"{n:2} points: {len(tape):5} entries, {nbytes / 1024:4.0f} KiB for these and their slopes; {len(start)} parameters")

# %% [markdown]
# The tape grows with the batch, and the parameters do not. That is where the memory of training goes, and what much of this course is about. But must every slope be saved?

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: constant
def _is_constant(f, n):
    return len({tuple(_slopes(f, numbers)[1]) for numbers in ((0.3, 2.0)[:n], (1.1, -0.7)[:n])}) == 1


constant = teach.predict(
    "Which operation's slopes are the same wherever it is computed, so that nothing has to be saved for it?",
    ["add", "multiply", "tanh", "exp"],
    truth=lambda: next(name for name, f, n in (("add", add, 2), ("multiply", multiply, 2), ("tanh", tanh, 1), ("exp", exp, 1)) if _is_constant(f, n)),
    because={
        "add": "Its slopes are 1. So a gradient has to save the inputs of products and the results of `tanh` and `exp`, and nothing for sums.",
        "multiply": "Its slopes are its inputs: the other factor each.",
        "tanh": "Its slope is 1 - y², so it needs the result, or the input to compute it again.",
        "exp": "Its slope is its result.",
    },
    hints=("Which of the four is linear?",),
)
constant

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
constant.solution("add")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert _of_points(60) - _of_points(59) == _of_points(11) - _of_points(10)
assert 4 * 1 + 3 * 2 + 1 == 11 and _of_points(60) > 50 * len(start)
assert not any(_is_constant(f, n) for f, n in ((multiply, 2), (tanh, 1), (exp, 1)))

# %% [markdown]
# Which values JAX saves for a gradient, and how it finds out, is the subject of [4 · partial evaluation and residuals](04_partial_evaluation_and_residuals.ipynb).
#
# ## 5. Forwards
#
# The same tape can be walked from its beginning. That answers the other question: how far does *everything* move if *one* value moves?


# %%
def forward(given):
    """How far each value moves if `given` moves by one."""
    moves = {given: 1.0}
    for output, x, slope in tape:
        if x in moves:
            moves[output] = moves.get(output, 0.0) + slope * moves[x]
    return moves


tape.clear()
values = [Value(p) for p in params]
out = loss(values, few)
print("forwards ", [round(forward(v)[out], 6) for v in values[:4]])
print("backwards", [round(backward(out)[v], 6) for v in values[:4]])

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: walks
def _walks():
    before, given = len(tape), [Value(p) for p in params]
    of = loss(given, few)
    n = sum(of in forward(p) for p in given)
    del tape[before:]
    return n


walks = teach.predict(
    "The backward walk gives the whole gradient of `loss` at once. How many forward walks does that take?",
    truth=_walks,
    because="One for each parameter. A forward walk takes one input to all results, and a backward walk takes one result to all inputs; a loss is one result.",
    hints=("The line 'forwards' above shows four numbers. How often did `forward` walk for it?",),
)
walks

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
walks.solution(33)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
_back = backward(out)
assert all(math.isclose(forward(v)[out], _back[v], rel_tol=1e-9, abs_tol=1e-12) for v in values)

# %% [markdown]
# ## 6. What JAX does otherwise
#
# A tape holds the numbers of one run. Python runs again for each gradient, an `if` simply takes its branch, and `backward` returns plain numbers, so that there is no second derivative.
#
# JAX transforms operations. `jit` records them without numbers, once for all inputs of a shape, so that they can be compiled; `vmap` replaces each by one on a batch; and a derivative consists
# of operations too, which can be differentiated again.


# %%
def absolute(x):
    return x if number(x) > 0 else -1.0 * x


tape.clear()
x = Value(-2.0)
slope = backward(absolute(x))[x]
print("slope:", slope, type(slope).__name__)

# %% [markdown]
# If you have JAX here, which differentiates the same `score`, this compares a gradient:

# %%
try:
    import jax
except ImportError:
    print("JAX is not installed here.")
else:
    tape.clear()
    values = [Value(p) for p in start]
    slopes = backward(score(values, 0.5, 0.25))
    tanh, mine = jax.numpy.tanh, tanh
    theirs = jax.grad(score)(start, 0.5, 0.25)
    tanh = mine
    print("yours:", round(slopes[values[0]], 6), " JAX's:", round(float(theirs[0]), 6))

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert slope == -1.0 and isinstance(slope, float)
if "jax" in globals():
    assert all(abs(slopes[v] - float(t)) < 1e-4 for v, t in zip(values, theirs))
    assert float(jax.grad(jax.grad(jax.numpy.tanh))(0.5)) < 0
    assert "2.5" not in str(jax.make_jaxpr(jax.numpy.tanh)(2.5))
    _traced = []
    _counted = jax.jit(lambda x: _traced.append(x) or x * x)
    assert [float(_counted(x)) for x in (2.0, 3.0)] == [4.0, 9.0] and len(_traced) == 1
    _batch = jax.numpy.array([0.5, -1.0])
    assert jax.numpy.allclose(jax.vmap(jax.grad(jax.numpy.tanh))(_batch), 1 - jax.numpy.tanh(_batch) ** 2)
    try:
        jax.jit(lambda x: x if x > 0 else -x)(1.0)
        raise AssertionError("jit takes a branch")
    except jax.errors.TracerBoolConversionError:
        pass

# %% [markdown]
# ## What to remember
#
# - A tape is a list of entries: output, input, slope. An operation appends one for each input.
# - The gradient is one walk over it, backwards. Where a value is used more than once, the parts are added.
# - The tape is kept until the walk, and grows with the batch. A sum needs nothing of it; a product needs its factors, and `tanh` and `exp` their results.
# - A tape holds the numbers of one run. JAX transforms operations, and the result can be transformed again.
#
# Next: record operations instead of numbers, in [25 · your own tracer](25_own_tracer.ipynb).
