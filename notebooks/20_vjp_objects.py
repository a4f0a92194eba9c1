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
# # 20 · What does the function from `jax.vjp` hold?
#
# `y, pull = jax.vjp(f, *args)` runs the forward pass, and `pull` runs the backward pass later. In between, all that the backward pass needs is in `pull`. It
# is a pytree of arrays, so it can leave a compiled function, wait, and enter another: the two passes need not be one program.
#
# That is how a pipeline is built. The program is a network in three stages, which work on different microbatches at the same time. It takes 35 minutes. You need to know what a
# residual is ([4 · partial evaluation and residuals](04_partial_evaluation_and_residuals.ipynb)) and how a gradient goes into a reference
# ([19 · references](19_references.ipynb)).

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxviz
from jaxviz import teach

STAGES, BATCHES = 3, 6


def stage(w, x):
    return x + jnp.tanh(x @ w["up"]) @ w["down"]


def error(x, y):
    return jnp.mean((x - y) ** 2)


@jax.jit
def loss(weights, xs, ys):
    """On one device, the sum over all microbatches."""
    for w in weights:
        xs = stage(w, xs)
    return BATCHES * error(xs, ys)


def kib(nbytes):
    return f"{nbytes / 1024:,.0f} KiB"


def pointers(tree):
    return {a.unsafe_buffer_pointer() for a in jax.tree.leaves(tree)}


def leaves_nbytes(tree):
    return sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(tree))


rng = np.random.default_rng(0)
normal = lambda *shape: jnp.asarray(rng.normal(size=shape) / 8, jnp.float32)
weights = [{"up": normal(64, 256), "down": normal(256, 64)} for _ in range(STAGES)]
xs, ys = normal(BATCHES, 32, 64), normal(BATCHES, 32, 64)
right = jax.jit(jax.grad(loss))(weights, xs, ys)

w, x = weights[0], xs[0]
y, pull = jax.vjp(stage, w, x)
print("arguments:   ", [a.shape for a in jax.tree.leaves(pull.args_res)])
print("other values:", [r.shape for r in pull.opaque_residuals])

# %% [markdown]
# `args_res` is a list like that of the arguments, and holds those that the backward pass needs as they are. `opaque_residuals` are the values that the forward
# pass computed. What are they? The object knows which line reads them; what `jaxviz.vjp` returns also knows which lines made them.

# %%
jaxviz.residuals(jaxviz.vjp(stage, w, x)[1])

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert [a.shape for a in jax.tree.leaves(pull.args_res)] == [(256, 64), (64, 256), (32, 64)]
assert {r.shape for r in pull.opaque_residuals} == {(32, 256)}
_of_jax, _of_ours = jaxviz.residuals(pull), jaxviz.residuals(jaxviz.vjp(stage, w, x)[1])
assert sorted(r.type for r in _of_jax) == sorted(r.type for r in _of_ours)
assert any("tanh" in r.expression for r in _of_ours) and all(r.location.line for r in _of_jax)

# %% [markdown]
# ## Two programs
#
# Each pass is compiled by itself. The backward pass is nothing but a call: the program is in the structure of `pull`, and the numbers in its leaves.

# %%
forward = jax.jit(lambda w, x: jax.vjp(stage, w, x))
backward = jax.jit(lambda pull, ct: pull(ct))

y, pull = forward(w, x)
w_ct, x_ct = backward(pull, jnp.ones_like(y))
for w in weights:  # compiled once for all stages and microbatches
    for x in xs:
        y, pull = forward(w, x)
        backward(pull, jnp.ones_like(y))
print("compiled:", forward._cache_size(), "forward,", backward._cache_size(), "backward")

# %% [markdown]
# Outside of `jit`, `pull.args_res` holds the very arrays that you passed. Now `pull` is a result of a compiled function.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: held
w, x = weights[0], xs[0]
MATRIX = w["up"].nbytes + w["down"].nbytes


def _shared():
    _, pull = forward(w, x)
    return pointers(pull.args_res[0]) == pointers(w)


held = teach.predict(
    f"The weights of a stage take {kib(MATRIX)}, and six calls of `forward` are waiting for their backward passes. How much memory do the weights take in these six objects?",
    ["none: they are the arrays of `weights`", f"{kib(MATRIX)}: the six share one copy", f"{kib(6 * MATRIX)}: each has its own"],
    truth=lambda: "none: they are the arrays of `weights`" if _shared() else f"{kib(6 * MATRIX)}: each has its own",
    because={
        "none: they are the arrays of `weights`": "So it is without `jit`. The results of a compiled function are new arrays, unless an argument is donated.",
        f"{kib(MATRIX)}: the six share one copy": "Each call of a compiled function returns new arrays.",
        f"{kib(6 * MATRIX)}: each has its own": "The results of a compiled function are new arrays, also those that are arguments handed through.",
    },
    hints=("What does `jax.jit(lambda w: w)(w)` return: `w`, or a copy?", "Compare the `pointers` of the two."),
)
held

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
held.solution("768 KiB: each has its own")

# %%
y, pull = forward(w, x)
is_copy = pointers(pull.args_res[0]).isdisjoint(pointers(w))
results = forward.lower(w, x).compile().memory_analysis().output_size_in_bytes
print("a copy:", is_copy)
print("an object:", kib(leaves_nbytes(pull)), " the results of `forward`, by XLA:", kib(results), " of them y:", kib(y.nbytes))

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert forward._cache_size() == backward._cache_size() == 1
assert is_copy and pointers(jax.vjp(stage, w, x)[1].args_res[0]) == pointers(w)
assert 0 <= results - leaves_nbytes(pull) - y.nbytes < 256
_alone = jax.grad(lambda w, x: jnp.sum(stage(w, x)), argnums=(0, 1))(w, x)
assert jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-4), (w_ct, x_ct), _alone))

# %% [markdown]
# ## Leave out what you have
#
# The weights are the largest part, and the caller has them. `args_res` can be written to: take them out before `pull` leaves the function, and put them back before it is called. An argument
# that has been taken out is `None`, which has no leaves.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: light
def _fails(pair):
    my_forward, my_backward = map(jax.jit, pair)
    y, pull = my_forward(w, x)
    if not jnp.allclose(y, stage(w, x), atol=1e-5):
        return "The first result of `my_forward` is not the value of the stage."
    ct = normal(32, 64)
    found, wanted = my_backward(pull, w, ct), jax.vjp(stage, w, x)[1](ct)
    same = jax.tree.structure(found) == jax.tree.structure(wanted) and jax.tree.all(
        jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-4), found, wanted)
    )
    return "" if same else "`my_backward` does not return the cotangents of the weights and of `x`."


def _too_much(pair):
    _, pull = jax.jit(pair[0])(w, x)
    n = leaves_nbytes(pull)
    return f"The object takes {kib(n)}, and its weights are {kib(MATRIX)}." if n > leaves_nbytes(jax.jit(lambda w, x: jax.vjp(stage, w, x))(w, x)[1]) - MATRIX else ""


def _again(pull, w, ct):
    return jax.vjp(stage, w, pull.args_res[1])[1](ct)


def _all_out(w, x):
    y, pull = jax.vjp(stage, w, x)
    pull.args_res[0], pull.opaque_residuals = None, []
    return y, pull


def _put_back(pull, w, ct):
    pull.args_res[0] = w
    return pull(ct)


light = teach.rule(
    "Write `my_forward(w, x)`, which returns `y` and an object without the weights, and `my_backward(pull, w, ct)`, which returns what `pull(ct)` returns.",
    teach.Check("gives the value and the cotangents", _fails),
    teach.Check("the object does not hold the weights", _too_much),
    hints=("`pull.args_res` is a list: `[weights, x]`.", "`pull.args_res[0] = None` in one, `pull.args_res[0] = w` in the other."),
    wrong=(
        (lambda w, x: jax.vjp(stage, w, x), lambda pull, w, ct: pull(ct)),
        (lambda w, x: jax.vjp(stage, w, x), _put_back),
        (_all_out, _put_back),
        (lambda w, x: jax.vjp(stage, w, x), lambda pull, w, ct: _again(pull, w, 2 * ct)),
    ),
)
light


# %% tags=["answer"]
def my_forward(w, x):
    y, pull = jax.vjp(stage, w, x)
    ...
    return y, pull


def my_backward(pull, w, ct):
    ...
    return pull(ct)


light.answer((my_forward, my_backward))

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def without_weights(w, x):
    y, pull = jax.vjp(stage, w, x)
    pull.args_res[0] = None
    return y, pull


def with_weights(pull, w, ct):
    pull.args_res[0] = w
    return pull(ct)


light.solution((without_weights, with_weights))

# %% [markdown]
# Newer versions of JAX have this as an option: `jax.vjp(stage, w, x, saveable_args=(False, True))` leaves a mark instead of `None`, so that you get a clear error if you forget to
# put the weights back. `jaxviz.vjp` takes the option with any version.

# %%
y, pull = jaxviz.vjp(stage, w, x, saveable_args=(False, True))
print("jaxviz:", kib(leaves_nbytes(pull)))
try:
    y, pull = jax.vjp(stage, w, x, saveable_args=(False, True))
    print(f"JAX {jax.__version__}:", kib(leaves_nbytes(pull)))
    pull(y)
except (TypeError, ValueError) as refusal:
    print(f"JAX {jax.__version__}:", str(refusal).partition("\n")[0])

# %% [markdown]
# And if there is a checkpoint around the stage, then the forward pass computes nothing for the backward pass: without the weights, only `x` is left in the object.


# %%
def sizes(stage):
    _, pull = jax.eval_shape(lambda w, x: jax.vjp(stage, w, x), w, x)
    x_nbytes = leaves_nbytes(pull.args_res[1])
    return leaves_nbytes(pull.args_res[0]), x_nbytes, leaves_nbytes(pull.opaque_residuals)


print(f"{'':16}{'weights':>10}{'x':>10}{'computed':>10}")
for name, f in {"the stage": stage, "checkpointed": jax.checkpoint(stage)}.items():
    print(f"{name:16}", *(f"{kib(n):>9}" for n in sizes(f)))

# %% [markdown]
# A trap: only an argument that is read *as it is* counts as an argument. The two layers below are one array, and each is read by its index. Scanned over, the array is needed as it is:

# %%
def indexed(ws, x):
    for i in range(2):
        x = x + jnp.tanh(x @ ws[i])
    return x


def scanned(ws, x):
    return jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, ws)[0]


ws = normal(2, 64, 64)
for f in (indexed, scanned):
    _, pull = jax.vjp(f, ws, x)
    print(f"{f.__name__:8} ws: {jax.tree.map(jnp.shape, pull.args_res[0])}, others: {[r.shape for r in pull.opaque_residuals]}")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert sizes(jax.checkpoint(stage)) == (MATRIX, x.nbytes, 0)
assert sizes(stage)[:2] == (MATRIX, x.nbytes) and sizes(stage)[2] >= 32 * 256 * 4
_of_indexed, _of_scanned = (jax.vjp(f, ws, x)[1] for f in (indexed, scanned))
assert not hasattr(_of_indexed.args_res[0], "shape")
assert [r.shape for r in _of_indexed.opaque_residuals].count((64, 64)) == 2
assert _of_scanned.args_res[0].shape == ws.shape and (64, 64) not in [r.shape for r in _of_scanned.opaque_residuals]
assert leaves_nbytes(jaxviz.vjp(stage, w, x, saveable_args=(False, True))[1]) == sum(sizes(stage)[1:])

# %% [markdown]
# ## A pipeline
#
# Each stage gets a list of what it does, in which order: `("F", 2)` is the forward pass of microbatch 2, `("B", 2)` its backward pass. In each tick, a stage does the next thing in its list if
# what it needs has arrived: the output of the stage before, or the cotangent from the stage behind. The gradients in the weights are added in place.

# %%
forward, error_ct = jax.jit(without_weights), jax.jit(jax.grad(error))


@jax.jit
def backward(pull, w, total, ct):
    """Adds the cotangent of the weights to `total`, and returns that of the input."""
    pull.args_res[0] = w
    _, x_ct = pull.with_refs(total, jax.ad.GradValue())(ct)
    return x_ct


def run(order_of):
    """The gradients; in each tick what each stage does, and the bytes in its objects after that."""
    todo = [list(order_of(s, STAGES, BATCHES)) for s in range(STAGES)]
    outputs, cts, waiting, ticks = {(0, m): x for m, x in enumerate(xs)}, {}, {}, []
    totals = [jax.tree.map(lambda p: jax.new_ref(jnp.zeros_like(p)), w) for w in weights]
    while any(todo):
        arrived = {"F": outputs, "B": cts}
        ready = [s for s in range(STAGES) if todo[s] and (s, todo[s][0][1]) in arrived[todo[s][0][0]]]
        if not ready:
            raise RuntimeError(f"Every stage waits for another one, in tick {len(ticks)}.")
        done = [""] * STAGES
        for s in ready:
            kind, m = todo[s].pop(0)
            done[s] = f"{kind}{m}"
            if kind == "F":
                y, waiting[s, m] = forward(weights[s], outputs.pop((s, m)))
                if s + 1 < STAGES:
                    outputs[s + 1, m] = y
                else:
                    cts[s, m] = error_ct(y, ys[m])
            else:
                cts[s - 1, m] = backward(waiting.pop((s, m)), weights[s], totals[s], cts.pop((s, m)))
        held = [sum(leaves_nbytes(pull) for (at, _), pull in waiting.items() if at == s) for s in range(STAGES)]
        ticks.append((done, held))
    return jax.tree.map(jax.freeze, totals), ticks


def all_forward_first(stage, stages, batches):
    return [("F", m) for m in range(batches)] + [("B", m) for m in range(batches)]


gradients, ticks = run(all_forward_first)
same = jax.tree.map(lambda a, b: bool(jnp.allclose(a, b, atol=1e-5)), gradients, right)
print("as jax.grad on one device:", jax.tree.all(same))

# %% jupyter={"source_hidden": true}
# show(ticks): what each stage does, and what it holds
def show(**runs):
    figure, axes = plt.subplots(2, len(runs), figsize=(5.2 * len(runs), 3.4), layout="constrained", sharex=True, squeeze=False)
    for (name, ticks), (above, below) in zip(runs.items(), axes.T):
        for t, (done, _) in enumerate(ticks):
            for s, text in enumerate(done):
                if text:
                    above.barh(s, 1, left=t - 0.5, color="#9ecae1" if text[0] == "F" else "#fdae6b", edgecolor="white")
                    above.text(t, s, text, ha="center", va="center", fontsize=7)
        above.set(yticks=range(STAGES), yticklabels=[f"stage {s}" for s in range(STAGES)], title=name.replace("_", " "))
        above.invert_yaxis()
        for s in range(STAGES):
            below.plot([held[s] / 1024 for _, held in ticks], drawstyle="steps-mid", label=f"stage {s}")
        below.set(xlabel="tick", ylabel="KiB held", ylim=(0, 1.1 * max(max(h) for t in runs.values() for _, h in t) / 1024))
        below.legend(frameon=False, fontsize=7)
    plt.show()


# %%
show(all_forward_first=ticks)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert jax.tree.all(same)
assert max(held[0] for _, held in ticks) == BATCHES * sum(sizes(stage)[1:])

# %% [markdown]
# When the first backward pass begins, each stage holds the objects of all six microbatches. But the last stage could have begun its first backward pass in the tick after its first forward pass. In the order called
# *1F1B*, a stage does just as many forward passes as it takes for the first cotangent to come back to it, and from then on one backward and one forward pass in turn.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: alive
alive = teach.predict(
    "In that order, how many objects does the first of the three stages hold at most? It has six microbatches.",
    truth=lambda: STAGES,
    because="The first microbatch passes three stages before its cotangent turns round. In that time the first stage does three forward passes; from then on each backward pass "
    "makes room for one forward pass. It does not depend on the number of microbatches.",
    hints=("How many forward passes can the first stage do until the first microbatch has been through the last one?", "And how many objects does a pair of one B and one F add?"),
    tolerance=0.001,
)
alive

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
alive.solution(3)

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: order
def _runs(order):
    try:
        gradients, ticks = run(order)
    except (RuntimeError, KeyError) as failure:
        return str(failure)
    if len(ticks) > 2 * (BATCHES + STAGES - 1):
        return f"It takes {len(ticks)} ticks, and all forward passes first take {2 * (BATCHES + STAGES - 1)}."
    if not jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-5), gradients, right)):
        return "The gradient is another one: is each microbatch in it?"
    return ""


def _alive(order, s, batches):
    return np.cumsum([1 if kind == "F" else -1 for kind, _ in order(s, STAGES, batches)])


def _holds(order):
    for s in range(STAGES):
        most = max(_alive(order, s, BATCHES))
        if most > STAGES - s:
            return f"Stage {s} holds {most} objects at once; {STAGES - s} are enough."
    return ""


order = teach.rule(
    "Write `my_order(stage, stages, batches)`: the list of pairs of a stage in the order 1F1B. Stage 0 is the first.",
    teach.Check("gives the right gradients in as many ticks as all forward passes first", _runs),
    teach.Check("holds at most `stages - stage` objects", _holds),
    hints=(
        "How many forward passes does the last stage do before its first backward pass, and how many the one before it?",
        "`ahead = stages - stage` forward passes first. Then, for each microbatch `m`, `(\"B\", m)`, and the forward pass of `m + ahead` if there is one.",
    ),
    wrong=(
        all_forward_first,
        lambda stage, stages, batches: [(kind, m) for m in range(batches) for kind in "FB"],
        lambda stage, stages, batches: [("F", m) for m in range(batches)] + [("B", m) for m in reversed(range(batches))],
    ),
)
order


# %% tags=["answer"]
def my_order(stage, stages, batches):
    ahead = ...
    pairs = [("F", m) for m in range(ahead)]
    return pairs


order.answer(my_order)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def one_forward_one_backward(stage, stages, batches):
    ahead = stages - stage
    later = [[("B", m), ("F", m + ahead)] for m in range(batches)]
    pairs = [("F", m) for m in range(ahead)] + sum(later, [])
    return [(kind, m) for kind, m in pairs if m < batches]


order.solution(one_forward_one_backward)

# %%
in_turn, ticks_in_turn = run(one_forward_one_backward)
show(all_forward_first=ticks, one_forward_one_backward=ticks_in_turn)
for name, of in {"all forward first": ticks, "1F1B": ticks_in_turn}.items():
    print(f"{name:18} {len(of)} ticks, at most", ", ".join(kib(max(held[s] for _, held in of)) for s in range(STAGES)))

# %% [markdown]
# If a forward and a backward pass take equally long, the time is the same, and so are the empty places, which belong to filling and draining the pipeline. The memory is not. More microbatches make the empty
# places matter less, and then only the first schedule holds more.
#
# Nothing here knows about schedules but two lists. The same objects can be kept in the memory of the host, written to a file, or sent to another device, as any pytree can.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert len(ticks) == len(ticks_in_turn) == 2 * (BATCHES + STAGES - 1)
_most = [[max(held[s] for _, held in of) for s in range(STAGES)] for of in (ticks, ticks_in_turn)]
_one = sum(sizes(stage)[1:])
assert _most[0] == [BATCHES * _one] * 3 and all(m <= (STAGES - s) * _one for s, m in enumerate(_most[1])) and _most[1][0] == 3 * _one
assert jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-5), in_turn, right))
assert [max(_alive(f, 0, 2 * BATCHES)) for f in (all_forward_first, one_forward_one_backward)] == [2 * BATCHES, STAGES]
_, pull = jax.jit(lambda w, x: jax.vjp(stage, w, x))(w, x)
_elsewhere = jax.tree.map(np.asarray, pull)  # in the memory of NumPy
for _a, _b in zip(jax.tree.leaves(pull(x)), jax.tree.leaves(jax.tree.map(jnp.asarray, _elsewhere)(x)), strict=True):
    assert jnp.allclose(_a, _b)

# %% [markdown]
# ## What to remember
#
# - `pull` is a pytree: `args_res` are the arguments that the backward pass needs as they are, `opaque_residuals` what the forward pass computed. `jaxviz.residuals(pull)` lists both.
# - Return it from one compiled function, and call it in another. Each is compiled once, for all microbatches and all stages of the same shape.
# - As a result of a compiled function it contains copies of the weights. Take them out of `args_res`, and put them back.
# - A schedule decides how many objects wait at a time: all microbatches, or as many as there are stages behind.
#
# Next: [21 · explicit sharding](21_explicit_sharding.ipynb).
