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
# # 19 · Can a gradient be added up without a second copy?
#
# A batch that does not fit in memory is cut into microbatches, and their gradients are added up. While one is added, the sum and the new gradient
# can both be in memory: twice the size of the parameters. A *reference* is an array that can be written to, and `jax.vjp` can add a gradient to one while it
# is being computed.
#
# The program is a text classifier: a table of words, sixteen layers, a score. It takes 35 minutes. You need to know what the backward pass does
# ([5 · transposition](05_transposition.ipynb)).

# %%
import re

import jax
import jax.numpy as jnp
import numpy as np

import jaxviz
from jaxviz import teach


def loss(params, words, score):
    h = jnp.mean(params["table"][words], axis=1)
    h, _ = jax.lax.scan(lambda h, w: (h + jnp.tanh(h @ w), None), h, params["layers"])
    return jnp.mean((h @ params["out"] - score) ** 2)


def zeros(params):
    return jax.tree.map(jnp.zeros_like, params)


def carried(params, words, scores):
    """The sum of the gradients of all microbatches: the scan carries it."""

    def one(total, batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(params, *batch)), None

    return jax.lax.scan(one, zeros(params), (words, scores))[0]


def kib(nbytes):
    return f"{nbytes / 1024:,.0f} KiB"


rng = np.random.default_rng(0)
normal = lambda *shape: jnp.asarray(rng.normal(size=shape) / 8, jnp.float32)
params = {"table": normal(512, 64), "layers": normal(16, 64, 64), "out": normal(64)}
words, scores = jnp.asarray(rng.integers(0, 512, (8, 8, 12))), normal(8, 8)  # 8 microbatches of 8 texts
args = params, words, scores


def temporaries(f, *args):
    return jaxviz.memory(f, *args, argnums=()).xla.temporaries


right = jax.jit(carried)(*args)
in_carry = temporaries(carried, *args)
print({name: kib(p.nbytes) for name, p in params.items()})
print(f"temporaries of the compiled step, by XLA on {jax.default_backend()}:", kib(in_carry))

# %% [markdown]
# The sum itself is a result of the step, so it is not among the temporaries. They have room for another gradient of the layers. `jaxviz.lint` finds it:

# %%
advice = jaxviz.lint(carried, *args)
print(next(a for a in advice if a.rule == "sum-in-carry"))

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert in_carry > params["layers"].nbytes
assert next(a for a in advice if a.rule == "sum-in-carry").nbytes > 0.75 * params["layers"].nbytes

# %% [markdown]
# ## A reference
#
# `jax.new_ref(x)` makes an array that can be written to, with the values of `x`. Index it to read, assign to write.

# %%
r = jax.new_ref(jnp.zeros(3))
before = r[...]
r[1] = 5.0
jax.ref.addupdate(r, 1, 2.0)  # r[1] += 2.0 does the same
print(r)

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: alias
def _of_before():
    r = jax.new_ref(jnp.zeros(3))
    before = r[...]
    r[1] = 5.0
    jax.ref.addupdate(r, 1, 2.0)
    return {0.0: "[0, 0, 0]", 5.0: "[0, 5, 0]", 7.0: "[0, 7, 0]"}[float(before[1])]


alias = teach.predict(
    "`before` was read before the two writes. What is it now?",
    ["[0, 0, 0]", "[0, 5, 0]", "[0, 7, 0]"],
    truth=_of_before,
    because={
        "[0, 0, 0]": "Reading gives a value, an ordinary array, and no write changes it.",
        "[0, 5, 0]": "No write changes a value. `before` is an ordinary array.",
        "[0, 7, 0]": "So it would be in NumPy, where `r[...]` is a view. Here reading gives a value, an ordinary array.",
    },
    hints=("Is `before` a reference, or an array?", "JAX's arrays never change."),
)
alias

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
alias.solution("[0, 0, 0]")

# %% [markdown]
# Because values never change, everything that JAX knows about arrays still holds; only references need an order. In a jaxpr a reference has a type of its own,
# and reads and writes are equations. A loop can close over one, so the body of a scan can add to an array that it does not carry:

# %%
def sum_of_squares(xs):
    total = jax.new_ref(jnp.zeros(xs.shape[1:]))

    def body(_, x):
        total[...] += x**2
        return None, None

    jax.lax.scan(body, None, xs)
    return jax.freeze(total)  # its value, as an array


print(jax.make_jaxpr(sum_of_squares)(jnp.ones((4, 3))))

# %% [markdown]
# From outside, `sum_of_squares` is a pure function like any other: the reference is made and frozen inside. Such functions can be differentiated. Each read is a read of one
# *version* of the reference, and a gradient saves the versions that it needs:

# %%
def recurrent(w, x):
    h = jax.new_ref(x)

    def step(_, w):
        h[...] = jnp.tanh(w @ h[...])
        return None, None

    jax.lax.scan(step, None, w)
    return jnp.sum(h[...])


versions = jaxviz.residuals(recurrent, params["layers"], params["out"])
versions

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert r[1] == 7.0 and before[1] == 0.0
assert jnp.allclose(sum_of_squares(jnp.ones((4, 3))), 4.0)
_text = str(jax.make_jaxpr(sum_of_squares)(jnp.ones((4, 3))))
assert "Ref{f" in _text and "new_ref" in _text and "freeze" in _text
assert any("another version of its reference" in r.reason for r in versions)


def _by_carry(w, x):
    return jnp.sum(jax.lax.scan(lambda h, w: (jnp.tanh(w @ h), None), x, w)[0])


_given = params["layers"], params["out"]
assert jnp.allclose(jax.jit(jax.grad(recurrent))(*_given), jax.jit(jax.grad(_by_carry))(*_given), atol=1e-6)

# %% [markdown]
# ## A reference to write to, and a gradient
#
# A reference can be an argument too. Then a function can leave something there, with no change in what it returns: here the size of the activations
# after each layer. It works under `jit` and in a scan, where appending to a list of Python would not.


# %%
def sizes(log, i, h):
    log[i] = jnp.sqrt(jnp.mean(h**2))


def logged_by(write):
    """The loss that calls `write(log, i, h)` after layer i."""

    def logged(params, words, score, log):
        def layer(h, numbered):
            w, i = numbered
            h = h + jnp.tanh(h @ w)
            write(log, i, h)
            return h, None

        h = jnp.mean(params["table"][words], axis=1)
        h, _ = jax.lax.scan(layer, h, (params["layers"], jnp.arange(16)))
        return jnp.mean((h @ params["out"] - score) ** 2)

    return logged


log = jax.new_ref(jnp.zeros(16))
jax.jit(logged_by(sizes))(params, words[0], scores[0], log)
print("the loss:", np.asarray(log[...]).round(2))
try:
    jax.grad(logged_by(sizes))(params, words[0], scores[0], log)
    refused = ""
except Exception as error:
    refused = str(error)
print("its gradient:", refused)

# %% [markdown]
# The value is fine, and the gradient is refused: what is written depends on the parameters, and JAX would have to follow it through a reference which has no
# place for a derivative.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: plumbing
def _logs(write):
    log = jax.new_ref(jnp.zeros(16))
    try:
        found = jax.jit(jax.grad(logged_by(write)))(params, words[0], scores[0], log)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition('?')[0]}"
    wanted = jax.jit(jax.grad(loss))(params, words[0], scores[0])
    if not jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-6), found, wanted)):
        return "The gradient is not that of `loss`."
    reference = jax.new_ref(jnp.zeros(16))
    jax.jit(logged_by(sizes))(params, words[0], scores[0], reference)
    return "" if jnp.allclose(log[...], reference[...]) else f"It writes {log[...].round(2)}."


plumbing = teach.rule(
    "Write `my_sizes(log, i, h)`: it writes what `sizes` writes, and the gradient of the loss is still that of `loss`.",
    teach.Check("writes the sizes while the gradient is taken", _logs),
    hints=("What is written should count as a constant for the derivative.", "`jax.lax.stop_gradient`"),
    wrong=(sizes, lambda log, i, h: None, lambda log, i, h: log.__setitem__(0, jax.lax.stop_gradient(jnp.mean(h)))),
)
plumbing


# %% tags=["answer"]
def my_sizes(log, i, h):
    log[i] = ...


plumbing.answer(my_sizes)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def sizes_only(log, i, h):
    log[i] = jnp.sqrt(jnp.mean(jax.lax.stop_gradient(h) ** 2))


plumbing.solution(sizes_only)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert "with a differentiated value on a non-differentiated array reference" in refused
assert log[...].min() > 0 and log[...][-1] > 3 * log[...][0]

# %% [markdown]
# ## A gradient that goes into a reference
#
# What `jax.vjp` returns has a method `with_refs`. It takes a reference for each argument, and the gradient goes there instead of being returned.

# %%
total = jax.new_ref(jnp.full(3, 100.0))
_, pull = jax.vjp(lambda x: jnp.sum(x**2), jnp.array([1.0, 2.0, 3.0]))

# %% tags=["unseen"] jupyter={"source_hidden": true}
# pull.with_refs(total)(1.0), twice
pull.with_refs(total)(1.0)
pull.with_refs(total)(1.0)

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: twice
twice = teach.predict(
    "`total` holds 100s, and `pull.with_refs(total)(1.0)` was called twice. What is `total[0]`?",
    truth=lambda: float(total[0]),
    because="The gradient is added to what is there, each time: 100 + 2 + 2. So one reference can take the gradients of many backward passes.",
    hints=("The gradient of the first element is 2.", "Does the second call overwrite what the first one wrote?"),
    tolerance=0.001,
)
twice

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
twice.solution(104)

# %% [markdown]
# Now the step of the classifier. The tree of references has the structure of the parameters; the scan closes over it, and carries nothing.


# %%
def step_that(add):
    """The step in which `add(total, params, batch)` adds the gradient of a microbatch to references."""

    def step(params, words, scores):
        total = jax.tree.map(jax.new_ref, zeros(params))
        jax.lax.scan(lambda _, batch: (add(total, params, batch), None), None, (words, scores))
        return jax.tree.map(jax.freeze, total)

    return step


def add_afterwards(total, params, batch):
    gradient = jax.grad(loss)(params, *batch)
    jax.tree.map(lambda r, g: jax.ref.addupdate(r, ..., g), total, gradient)


afterwards = temporaries(step_that(add_afterwards), *args)
print("carried:", kib(in_carry), " with add_afterwards:", kib(afterwards))

# %% [markdown]
# It is not enough to have references. In `add_afterwards` the gradient is computed first, so it has been in memory as a whole.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: in_place
def _differs(add):
    found = jax.jit(step_that(add))(*args)
    same = jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-5), found, right))
    return "" if same else "The sum is another one. Is the gradient of the whole microbatch added, and once?"


def _too_large(add):
    taken = temporaries(step_that(add), *args)
    return f"XLA takes {kib(taken)} of temporaries, and {kib(in_carry)} for `carried`." if taken > 0.6 * in_carry else ""


def _only_layers(total, params, batch):
    _, pull = jax.vjp(lambda layers: loss({**params, "layers": layers}, *batch), params["layers"])
    pull.with_refs(total["layers"])(1.0)


def _twice(total, params, batch):
    _, pull = jax.vjp(lambda p: loss(p, *batch), params)
    pull.with_refs(total)(2.0)


in_place = teach.rule(
    "Write `my_add(total, params, batch)`, such that `step_that(my_add)` returns what `carried` returns, and XLA takes at most 60 % of its temporaries.",
    teach.Check("gives the sum of the gradients of all microbatches", _differs),
    teach.Check("takes at most 60 % of the temporaries", _too_large),
    hints=(
        "The backward pass has to add, so it has to know where to.",
        "`pull` returns the gradient of one microbatch. `pull.with_refs` takes references for it, and adds to them instead.",
        "What you call then takes the cotangent of `value`, which is 1.",
    ),
    wrong=(add_afterwards, _only_layers, _twice),
)
in_place


# %% tags=["answer"]
def my_add(total, params, batch):
    value, pull = jax.vjp(lambda p: loss(p, *batch), params)
    ...


in_place.answer(my_add)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def add_in_place(total, params, batch):
    value, pull = jax.vjp(lambda p: loss(p, *batch), params)
    pull.with_refs(total)(jnp.ones_like(value))


in_place.solution(add_in_place)

# %%
by_references = step_that(add_in_place)
print("with add_in_place:", kib(temporaries(by_references, *args)))

# %% jupyter={"source_hidden": true}
# XLA's temporaries for networks of 4 to 32 layers
import matplotlib.pyplot as plt


def deep(step, n_layers):
    types = {**params, "layers": jax.ShapeDtypeStruct((n_layers, 64, 64), jnp.float32)}
    return temporaries(step, types, words, scores) / 1024


depths = [4, 8, 16, 32]
curves = {name: [deep(step, n) for n in depths] for name, step in {"carried": carried, "with add_in_place": by_references}.items()}
plt.figure(figsize=(6, 2.6), layout="constrained")
for name, curve in curves.items():
    plt.plot(depths, curve, ".-", label=name)
plt.plot(depths, [n * 64 * 64 * 4 / 1024 for n in depths], ":", color="gray", label="a gradient of the layers")
plt.xlabel("layers")
plt.ylabel("KiB")
plt.legend(frameon=False);

# %% [markdown]
# Most of what grows with the number of layers was the second gradient of the layers, and that is gone. What is left are the residuals of one microbatch.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
_grows = {name: curve[-1] - curve[0] for name, curve in curves.items()}
_saved = [
    jaxviz.residuals(loss, {**params, "layers": jax.ShapeDtypeStruct((n, 64, 64), jnp.float32)}, words[0], scores[0]).nbytes_without_arguments
    for n in (4, 32)
]
assert abs(_grows["with add_in_place"] / ((_saved[1] - _saved[0]) / 1024) - 1) < 0.1
assert 0.9 < (_grows["carried"] - _grows["with add_in_place"]) / (28 * 16) < 1.1 and _grows["with add_in_place"] < 0.4 * _grows["carried"]

# %% [markdown]
# Here the additions are *inside* of the backward pass. For the layers that is its loop: in each of sixteen iterations, the gradient of one layer is added
# to its row of the sum, and that is all that is in memory of it.


# %%
def additions(step, *args):
    return [e for _, e in jaxviz.trace(step)(*args).walk() if e.primitive.name == "addupdate"]


for add in (add_afterwards, add_in_place):
    print(add.__name__)
    for e in additions(step_that(add), *args):
        print(f"    {e.invars[0].aval.str_short():22} += {e.invars[1].aval.str_short()}")

# %% [markdown]
# In the explorer, the selected equation is the one that adds to the layers. It stands in the scan of the backward pass, which stands in the scan over the microbatches.

# %%
explorer = jaxviz.explore(by_references, *args, argnums=())
walked = [e for _, e in explorer.derivation.primal.walk()]
adds = [i for i, e in enumerate(walked) if e.primitive.name == "addupdate"]
explorer.selected = f"primal:{next(i for i in adds if walked[i].invars[1].aval.shape == (64, 64))}"
explorer

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert afterwards > 0.98 * in_carry > 1.6 * temporaries(by_references, *args)
_of_layers = [e for e in additions(by_references, *args) if e.invars[1].aval.shape == (64, 64)]
assert len(_of_layers) == 1 and _of_layers[0].invars[0].aval.shape == (64, 64)
assert any(e.invars[1].aval.shape == (16, 64, 64) for e in additions(step_that(add_afterwards), *args))
assert explorer.equation.primitive.name == "addupdate"

# %% [markdown]
# ## Which parameters need it?
#
# The layers, the table and `out` each got a reference. `with_refs` can also be told `jax.ad.GradValue()`, which returns the gradient as always; so let one
# parameter have a reference, and carry the others.


# %%
def reference_for(*names):
    def step(params, words, scores):
        total = {name: jax.new_ref(jnp.zeros_like(params[name])) for name in names}

        def one(rest, batch):
            value, pull = jax.vjp(lambda p: loss(p, *batch), params)
            (gradient,) = pull.with_refs({name: total.get(name, jax.ad.GradValue()) for name in params})(jnp.ones_like(value))
            return {name: rest[name] + gradient[name] for name in rest}, None

        rest = {name: jnp.zeros_like(p) for name, p in params.items() if name not in names}
        rest, _ = jax.lax.scan(one, rest, (words, scores))
        return {**rest, **jax.tree.map(jax.freeze, total)}

    return step


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: which
def _falls(names):
    return in_carry - temporaries(reference_for(*names), *args)


which = teach.predict(
    "The gradient of a microbatch in the table is 512 × 64 numbers, all but a few rows zero. For which parameters do XLA's temporaries "
    "fall by more than 10 % if they alone get a reference?",
    ["only the table", "only the layers", "the table and the layers", "all three"],
    truth=lambda: {
        (True, False): "only the table",
        (False, True): "only the layers",
        (True, True): "the table and the layers",
    }[_falls(["table"]) > 0.1 * in_carry, _falls(["layers"]) > 0.1 * in_carry],
    because={
        name: lambda: f"With a reference for the table alone, XLA takes {kib(temporaries(reference_for('table'), *args))}, for the layers alone "
        f"{kib(temporaries(reference_for('layers'), *args))}, with none {kib(in_carry)}. A scatter of a few rows into zeros, added to the sum, is something XLA knows how "
        "to do in the sum itself. It does not see that a loop over layers fills one array that is then added to another."
        for name in ("only the table", "only the layers", "the table and the layers", "all three")
    },
    hints=("The temporaries of `carried` were little more than one of the two parameters.", "XLA sees the addition that follows. When can it do it at once?"),
)
which

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
which.solution("only the layers")

# %%
steps = {"none": carried, "table": reference_for("table"), "layers": reference_for("layers"), "all": by_references}
for name, step in steps.items():
    print(f"reference for {name:8}{kib(temporaries(step, *args)):>10}")

# %% [markdown]
# So measure before you rewrite: what a loop of the backward pass computes, as for stacked layers, is worth a reference. For the others XLA already adds in place, and in some
# versions of JAX a reference for the table even takes more.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert temporaries(steps["table"], *args) > 0.95 * in_carry
assert temporaries(steps["layers"], *args) < 0.6 * in_carry
for step in steps.values():
    assert jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-5), jax.jit(step)(*args), right))

# %% [markdown]
# ## Weights that are read by index
#
# `scan` slices its inputs in order, and its transpose puts each gradient into its place. A network that visits its layers in another order, some of them more than once, has to read
# them by index, and then the gradient of *each read* is a whole array of zeros with one layer in it. If they are in a reference, the gradient of each read is added to its layer only:

# %%
order = jnp.asarray(rng.integers(0, 16, 24))


def by_index(layers, h):
    h, _ = jax.lax.scan(lambda h, i: (h + jnp.tanh(h @ layers[i]), None), h, order)
    return jnp.mean(h**2)


def by_reference(layers, h):
    layers = jax.new_ref(layers)
    h, _ = jax.lax.scan(lambda h, i: (h + jnp.tanh(h @ layers[i]), None), h, order)
    return jnp.mean(h**2)


h = normal(8, 64)
for f in (by_index, by_reference):
    cost, taken = jaxviz.cost(f, params["layers"], h).total, jaxviz.memory(f, params["layers"], h).xla
    print(f"{f.__name__:13} as JAX writes it: {kib(cost.bytes_read + cost.bytes_written):>10} read and written; XLA's temporaries: {kib(taken.temporaries)}")

# %% [markdown]
# With a reference, the program that JAX hands over moves five times fewer bytes. But XLA's memory is the same: on this backend it turns the zeros and the sum into an update of one
# layer by itself. You need the reference where your compiler does not.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
_moved = [jaxviz.cost(f, params["layers"], h).total for f in (by_index, by_reference)]
_moved = [c.bytes_read + c.bytes_written for c in _moved]
assert 4.5 < _moved[0] / _moved[1] < 5.5
_backward = jaxviz.derive(by_index, params["layers"], h).backward
assert any(e.primitive.name == "add_any" and e.outvars[0].aval.shape == (16, 64, 64) for _, e in _backward.walk())
_backward = jaxviz.derive(by_reference, params["layers"], h).backward
assert [e.invars[1].aval.shape for _, e in _backward.walk() if e.primitive.name == "addupdate"] in ([(64, 64)], [(1, 64, 64)])
_taken = [jaxviz.memory(f, params["layers"], h).xla.temporaries for f in (by_index, by_reference)]
assert abs(_taken[0] / _taken[1] - 1) < 0.02
_same = [jax.jit(jax.grad(f))(params["layers"], h) for f in (by_index, by_reference)]
assert jnp.allclose(*_same, atol=1e-6)

# %% [markdown]
# ## What JAX refuses
#
# Each of these four uses a reference. The first is all inside of the function.

# %%
def inside(x):
    r = jax.new_ref(x)
    r[...] = jnp.sin(r[...])
    return jnp.sum(r[...] ** 2)


def returned(x):
    return jax.new_ref(x)


def of_reference(r):
    return jnp.sum(r[...] ** 2)


def for_each(x):
    count = jax.new_ref(jnp.zeros(()))

    def one(x):
        count[...] += x
        return x**2

    return jnp.sum(jax.vmap(one)(x))


x = jnp.arange(3.0)
attempts = {
    "jax.grad(inside)(x)": lambda: jax.grad(inside)(x),
    "jax.jit(returned)(x)": lambda: jax.jit(returned)(x),
    "jax.grad(of_reference)(jax.new_ref(x))": lambda: jax.grad(of_reference)(jax.new_ref(x)),
    "for_each(x)": lambda: for_each(x),
}


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: refusals
def _said(attempt):
    try:
        attempt()
    except Exception as error:
        return str(error).strip().splitlines()[0]
    return ""


refusals = teach.predict(
    "How many of the four attempts does JAX refuse?",
    truth=lambda: sum(bool(_said(attempt)) for attempt in attempts.values()),
    because="Only the first works. A reference cannot leave the function that makes it; the gradient in a reference would have to be one itself; and the examples of a `vmap` cannot share one "
    "that they write to.",
    hints=("Is there one that no outside code can tell from a pure function?", "What order would the examples of a `vmap` write in?"),
)
refusals

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
refusals.solution(3)

# %%
for name, attempt in attempts.items():
    try:
        attempt()
        print(f"{name}: fine")
    except Exception as error:
        print(f"{name}: {re.sub(r' at [^ ]+:[0-9]+', '', str(error)).strip()[:200]}")

# %% [markdown]
# What to do instead: return `jax.freeze(r)` or `r[...]`; take the array as the argument, and make the reference inside; and under `vmap`, return what each example adds, and sum afterwards.


# %%
def of_value(x):
    return of_reference(jax.new_ref(x))


def counted(x):
    squares, added = jax.vmap(lambda x: (x**2, x))(x)
    return jnp.sum(squares), jnp.sum(added)


print(jax.jit(lambda x: jax.freeze(returned(x)))(x), jax.grad(of_value)(x), counted(x))

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
_errors = [_said(attempt) for attempt in attempts.values()]
assert _errors[0] == "" and "cannot be returned" in _errors[1] and all(_errors[2:])
assert jnp.allclose(jax.grad(of_value)(x), 2 * x)

# %% [markdown]
# ## What to remember
#
# - A reference is an array that can be written to; reading one gives a value that never changes. If it is made and frozen inside of a function, the function is pure and
#   can be differentiated.
# - `pull.with_refs(total)(ct)` adds the gradient to `total` while it is computed. That saves the second copy of what a loop of the backward pass computes: of stacked layers.
# - Adding a finished gradient to a reference saves nothing, and what XLA adds in place anyway needs none. Look at XLA's temporaries.
# - What is written to a reference from outside needs `stop_gradient`.
#
# Next: [20 · VJP objects](20_vjp_objects.ipynb), on the other things that the function from `jax.vjp` can do.
