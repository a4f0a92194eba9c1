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
# # 15 · Which part of the model decides?
#
# Looking into a model shows what is there, and not what matters. To know that, change a value and run the rest of the model: *activation patching*
# puts a value of one run into another one, with `jaxviz.replace`. It needs a run for each place. *Attribution patching* estimates all of them from
# one gradient. Here both answer the same question, so that you see where the estimate is wrong.
#
# The model is that of [14 · inside a model](14_inside_a_model.ipynb): a small GPT with local attention, which completes sentences such as
# `Ann and Bob met . Bob gave a ball to`. It takes 35 minutes. You need to know `jaxviz.capture` and cotangents.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.ad_checkpoint import checkpoint_name

import jaxviz
from jaxviz import teach
from jaxviz.teach.sentences import NAMES, WORDS, encode, examples, trained, untrained

LAYERS, WIDTH, HEADS, WINDOW = 4, 32, 4, 4


def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-5)


@jax.named_scope("attention")
def attention(p, x):
    n = len(x)
    q, k, v = jnp.moveaxis((x @ p["qkv"]).reshape(n, 3, HEADS, WIDTH // HEADS), 1, 0)
    ago = jnp.arange(n)[:, None] - jnp.arange(n)
    scores = jnp.einsum("thd,shd->hts", q, k) / (WIDTH // HEADS) ** 0.5
    pattern = jax.nn.softmax(jnp.where((ago >= 0) & (ago < WINDOW), scores, -jnp.inf))
    return jnp.einsum("hts,shd->thd", pattern, v).reshape(n, WIDTH) @ p["out"]


@jax.named_scope("mlp")
def mlp(p, x):
    return jax.nn.gelu(x @ p["up"]) @ p["down"]


def block(x, p):
    x = checkpoint_name(x, "stream")
    x = x + attention(p, norm(x))
    return x + mlp(p, norm(x)), None


def model(params, words):
    x = params["embed"][words] + params["position"][: len(words)]
    x, _ = jax.lax.scan(block, x, params["blocks"])
    return norm(x) @ params["unembed"]


# %% jupyter={"source_hidden": true}
# the training, as in the notebook before; some 15 seconds
def loss(params, sentences):
    log_p = jax.nn.log_softmax(jax.vmap(model, (None, 0))(params, sentences[:, :-1]))
    return -jnp.mean(jnp.take_along_axis(log_p, sentences[:, 1:, None], axis=-1))


rng = np.random.default_rng(0)
start = untrained(rng, LAYERS, WIDTH)
params, losses = trained(loss, start, jnp.stack([examples(rng, 32) for _ in range(400)]))
tests = jnp.asarray(examples(rng, 512))
guesses = jax.jit(jax.vmap(model, (None, 0)))(params, tests[:, :-1])[:, -1].argmax(-1)
print(f"{jnp.mean(guesses == tests[:, -1]):.0%} of {len(tests)} new sentences end with the right name")

# %% [markdown]
# ## Two runs that differ in one word
#
# The clean sentence ends with `Ann`, the corrupted one with `Cid`. One number says which of the two the model wants: the difference of their logits.

# %%
@jax.jit
def score(params, words, yes, no):
    logits = model(params, words)[-1]
    return logits[yes] - logits[no]


def pair(clean, corrupted, yes, no):
    return encode(clean), encode(corrupted), WORDS.index(yes), WORDS.index(no)


first = pair("Ann and Bob met . Bob gave a ball to", "Cid and Bob met . Bob gave a ball to", "Ann", "Cid")
clean, corrupted, yes, no = first
print(f"clean {score(params, clean, yes, no):+.1f}, corrupted {score(params, corrupted, yes, no):+.1f}")

# %% [markdown]
# `stream` is what enters a layer. `jaxviz.replace` makes a function that uses another value there, in the layers given as `iterations`. The corrupted sentence, with the clean stream at all positions of layer 2:

# %%
seen = jax.jit(jaxviz.capture(model, "stream"))(params, clean)[1]
in_layer_2 = jaxviz.replace(score, {"stream": seen["stream"]}, iterations=[2])

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: whole
def _whole():
    runs = (jax.jit(in_layer_2), corrupted), (score, corrupted), (score, clean)
    is_now, was, would = (float(f(params, words, yes, no)) for f, words in runs)
    part = (is_now - was) / (would - was)
    return "that of the clean sentence" if part > 0.99 else "that of the corrupted one" if part < 0.01 else "one in between"


whole = teach.predict(
    "What is `in_layer_2(params, corrupted, yes, no)`?",
    ["that of the clean sentence", "that of the corrupted one", "one in between"],
    truth=_whole,
    because={
        "that of the clean sentence": "The stream is the carry of the scan, and the only thing that goes from one layer to the next. What layers 0 and 1 "
        "computed from the corrupted sentence is gone.",
        "that of the corrupted one": "Layers 0 and 1 have read the corrupted sentence. How does layer 2 get to know about it?",
        "one in between": "It would be, if there were another way from the words to the result than the stream.",
    },
    hints=("What does layer 2 read, besides its parameters?",),
)
whole

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
whole.solution("that of the clean sentence")

# %% [markdown]
# ## One layer, one position
#
# That patch was too large to say which part of the stream matters. A replacement may be a function of the value, or of the value and a place: `at.iteration` is the layer, as a traced
# number, and `at.pick(captured)` the part of a captured array that belongs there.

# %%
zeroed = jaxviz.replace(score, {"stream": lambda x, at: jnp.where(at.iteration == 2, 0.0, x)})
same = jaxviz.replace(score, {"stream": lambda x, at: at.pick(seen["stream"])})
for name, f in {"zeros into layer 2": zeroed, "the same values again": same}.items():
    print(f"{name}: {jax.jit(f)(params, clean, yes, no):+.1f}")

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: one
@jax.jit
def by_hand(params, both, layer, position):
    """The same with a loop of Python's over the layers."""
    clean, corrupted, yes, no = both
    embedded = lambda words: params["embed"][words] + params["position"][: len(words)]
    x, other = embedded(corrupted), embedded(clean)
    for i in range(LAYERS):
        x = jnp.where(i == layer, x.at[position].set(other[position]), x)
        p = jax.tree.map(lambda stacked: stacked[i], params["blocks"])
        x, other = block(x, p)[0], block(other, p)[0]
    logits = (norm(x) @ params["unembed"])[-1]
    return logits[yes] - logits[no]


def _with(new, exchanged=False):
    def patched(params, both, layer, position):
        clean, corrupted, yes, no = both
        if exchanged:
            clean, corrupted = corrupted, clean
        kept = jaxviz.capture(model, "stream")(params, clean)[1]["stream"]
        put = lambda x, at: new(x, at, kept, layer, position)
        return jaxviz.replace(score, {"stream": put})(params, corrupted, yes, no)

    return patched


def _here(x, position):
    return (jnp.arange(len(x)) == position)[:, None]


def _one(x, at, kept, layer, position):
    return jnp.where((at.iteration == layer) & _here(x, position), kept[at.iteration], x)


second = pair("Ann and Bob met . Bob gave a ball to", "Ann and Bob met . Ann gave a ball to", "Ann", "Bob")
third = pair("Hal and Eve met . Eve gave a coin to", "Hal and Eve met . Hal gave a coin to", "Hal", "Eve")
_points = [(params, first, 2, 6), (params, first, 0, 0), (params, second, 1, 5), (params, third, 3, 9), (start, third, 1, 6)]

one = teach.rule(
    "Write `my_patched(params, pair, layer, position)`: the score of the corrupted sentence with the clean stream at this position of this layer, and "
    "nowhere else.",
    teach.computes(by_hand, *_points, tol=1e-3).of(jax.jit).saying("gives the score of a loop edited by hand, for five patches"),
    hints=(
        "`clean, corrupted, yes, no = pair`. Capture `stream` for one of the sentences, and call the replaced `score` with the other one.",
        "`(jnp.arange(len(x)) == position)[:, None]` is true at the position. When is the replacement called: once, or for each layer?",
        "`jnp.where((at.iteration == layer) & here, at.pick(stream), x)`; or `iterations=[layer]`, and the first condition is not needed.",
    ),
    wrong=(
        _with(lambda x, at, kept, layer, position: jnp.where(_here(x, position), kept[at.iteration], x)),
        _with(lambda x, at, kept, layer, position: jnp.where(at.iteration == layer, kept[at.iteration], x)),
        _with(lambda x, at, kept, layer, position: jnp.where((at.iteration == layer) & _here(x, position), 0.0, x)),
        _with(_one, exchanged=True),
        lambda params, both, layer, position: score(params, both[1], *both[2:]),
    ),
)
one


# %% tags=["answer"]
def my_patched(params, pair, layer, position):
    clean, corrupted, yes, no = pair
    return ...


one.answer(my_patched)


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def patched(params, pair, layer, position):
    clean, corrupted, yes, no = pair
    stream = jaxviz.capture(model, "stream")(params, clean)[1]["stream"]

    def new(x, at):
        here = (jnp.arange(len(x)) == position)[:, None]
        return jnp.where(here, at.pick(stream), x)

    return jaxviz.replace(score, {"stream": new}, iterations=[layer])(params, corrupted, yes, no)


one.solution(patched)

# %% [markdown]
# ## The map
#
# `patched` is a function of arrays, and layer and position are arguments. So all 40 patches are two `vmap`s, and one program. What is drawn is the
# effect: 0 if the score stays that of the corrupted sentence, 1 if it becomes that of the clean one.

# %%
def effects(params, pair):
    clean, corrupted, yes, no = pair
    was, would = score(params, corrupted, yes, no), score(params, clean, yes, no)
    over_positions = jax.vmap(lambda layer, n: patched(params, pair, layer, n), (None, 0))
    scores = jax.vmap(over_positions, (0, None))(jnp.arange(LAYERS), jnp.arange(len(clean)))
    return (scores - was) / (would - was)


# %% [markdown]
# Before you draw it: most of the 40 patches cannot have an effect. The stream there is the same in both sentences, or there are too few layers left to
# bring it to the last word. A layer moves information by up to three positions.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: cone
@jax.jit
def _can(params, both):
    """Where the stream differs, and the score depends on it."""
    clean, corrupted, yes, no = both
    _, one = jaxviz.capture(score, "stream", cotangents=True)(params, corrupted, yes, no)
    _, other = jaxviz.capture(score, "stream")(params, clean, yes, no)
    differs = jnp.any(one["stream"] != other["stream"], axis=-1)
    return differs & jnp.any(one.cotangents["stream"] != 0, axis=-1)


cone = teach.predict(
    "`Ann` is at position 0, and the last word at 9. At how many of the 40 places can a patch have an effect?",
    truth=lambda: int(jnp.sum(_can(params, first))),
    because="On entry to layer 0 only position 0 differs. On entry to layer 1 it may be 0 to 3. On entry to layer 2 it may be 0 to 6, but with two layers "
    "left only 3 to 9 reach position 9: 3 to 6. On entry to layer 3, 6 to 9. 1 + 4 + 4 + 4.",
    hints=(
        "On entry to layer n, a difference at position 0 has spread to position 3n at most.",
        "Before layer n there are 4 - n layers to go, so a position below 9 - 3 (4 - n) is too far away. Count those in between for each layer.",
    ),
)
cone

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
cone.solution(13)

# %% jupyter={"source_hidden": true}
# draw(*maps, words=..., titles=...): maps side by side, with their numbers
def draw(*maps, words, titles):
    figure, axes = plt.subplots(1, len(maps), figsize=(6.2 * len(maps), 2.5), layout="constrained", squeeze=False)
    for axis, values, title in zip(axes[0], maps, titles):
        largest = float(jnp.abs(values).max())
        axis.imshow(values, cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto")
        for (layer, position), value in np.ndenumerate(np.asarray(values)):
            if abs(value) >= 0.005:
                colour = "white" if abs(value) > 0.6 * largest else "black"
                axis.text(position, layer, f"{value:.2f}", ha="center", va="center", fontsize=8, color=colour)
        axis.set_xticks(range(len(words)), words)
        axis.set_yticks(range(LAYERS), [f"into layer {i}" for i in range(LAYERS)])
        axis.set_title(title, fontsize=10)


words = "Ann and Bob met . Bob gave a ball to".split()

# %%
draw(jax.jit(effects)(params, first), words=words, titles=["effect of the clean stream at one place: another first name"])

# %% [markdown]
# In each row a few places have nearly all of the effect: there the model keeps the first name. `met` reads it from `Ann`, `gave` from `met`, and `to` from `gave`. Smaller numbers
# are detours. The lens of the notebook before showed nothing of it at `met` and at `gave`.
#
# One sentence may be special. Here are 64 pairs, with other names and things, by one more `vmap`; the map is the mean.

# %%
def pairs(n):
    """Clean sentences in which the second one gives; with another first name, and with the first one as the giver."""
    words = examples(np.random.default_rng(1), n)[:, :-1]
    words[:, 5] = words[:, 2]
    name, giver = words.copy(), words.copy()
    name[:, 0] = [next(i for i in range(len(NAMES)) if i not in (row[0], row[2])) for row in words]
    giver[:, 5] = words[:, 0]
    return (words, name, words[:, 0], name[:, 0]), (words, giver, words[:, 0], words[:, 2])


of_name, of_giver = jax.tree.map(jnp.asarray, pairs(64))
over_pairs = jax.jit(jax.vmap(effects, (None, 0)))
names_effects = over_pairs(params, of_name)
draw(names_effects.mean(0), words=words, titles=["another first name: mean of 64 pairs"])

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
mean = names_effects.mean(0)
assert jnp.allclose(mean[0], jnp.eye(10)[0], atol=1e-3)
assert mean[1].argmax() == 3 and mean[1, 3] > 0.5
assert mean[2].argmax() == 6 and mean[2, 6] > 0.5
assert mean[3, 6] + mean[3, 9] > 0.7
assert not jnp.any(jnp.abs(names_effects) > 1e-3, where=~_can(params, first))
assert jnp.allclose(same(params, clean, yes, no), score(params, clean, yes, no), atol=1e-3)

# %% [markdown]
# The answer also depends on the giver: with `Ann gave` it is `Bob`. In the pairs of `of_giver` only that word differs, at position 5.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: meeting
giver_effects = over_pairs(params, of_giver)
_places = {"Bob, at 5, where it is read": 5, "gave, at 6": 6, "ball, at 8": 8, "to, at 9, where it is used": 9}

meeting = teach.predict(
    "On entry to layer 2, where is most of the effect of the giver?",
    list(_places),
    truth=lambda: next(name for name, n in _places.items() if n == int(giver_effects.mean(0)[2].argmax())),
    because={
        "Bob, at 5, where it is read": "It could be: two layers are enough to bring it from 5 to 9. This model does not wait.",
        "gave, at 6": "The first name is there too at that point, as the first map says. So that is where the two meet, and where it can be decided which of "
        "the two names it is.",
        "ball, at 8": "It could be: 5 → 8 → 9. But the giver is of use only where the two names are. Where is the first name on entry to layer 2?",
        "to, at 9, where it is used": "It could be: 5 → 8 → 9. But the giver is of use only where the two names are. Where is the first name on entry to layer 2?",
    },
    hints=("The giver alone decides nothing. What does it have to be compared with, and where is that?",),
)
meeting

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
meeting.solution("gave, at 6")

# %%
draw(giver_effects.mean(0), words=words, titles=["another giver: mean of 64 pairs"])

# %% [markdown]
# ## All of it from one gradient
#
# Forty runs are nothing here. With 100 layers and 1,000 positions they are 100,000. But a small change of the stream changes the score by the product
# of the change with the cotangent, and one gradient has the cotangents of all places. *Attribution patching* takes the clean stream minus the
# corrupted one for a small change.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: linear
@jax.jit
def _slopes(params, both):
    """The derivatives of the score along each patch, from zeros that are added by hand."""
    clean, corrupted, yes, no = both
    embedded = lambda words: params["embed"][words] + params["position"][: len(words)]

    def run(words, added):
        layer = lambda x, inputs: (block(x + inputs[1], inputs[0])[0], x)
        x, stream = jax.lax.scan(layer, embedded(words), (params["blocks"], added))
        logits = (norm(x) @ params["unembed"])[-1]
        return logits[yes] - logits[no], stream

    zeros = jnp.zeros((LAYERS, len(clean), WIDTH))
    slopes, stream = jax.grad(run, 1, has_aux=True)(corrupted, zeros)
    return jnp.sum(slopes * (run(clean, zeros)[1] - stream), axis=-1)


def _estimated(combine, at=1):
    def estimate(params, both):
        run = jaxviz.capture(score, "stream", cotangents=True)
        _, one = run(params, both[at], *both[2:])
        streams = [run(params, words, *both[2:])[1]["stream"] for words in both[:2]]
        return combine(one.cotangents["stream"], *streams)

    return estimate


linear = teach.rule(
    "Write `my_estimate(params, pair)`: for each layer and position an estimate of how much the patch there changes the score of the corrupted sentence, "
    "as an array `[layers, positions]`.",
    teach.computes(_slopes, (params, first), (params, second), (start, third), tol=1e-3)
    .of(jax.jit)
    .saying("gives the derivatives along the patches, computed by hand"),
    hints=(
        "Capture `stream` in `score` for both sentences. For which of them do you need the cotangents?",
        "The patch is put into the corrupted run: the slope is that at its values.",
        "`jnp.sum(cotangents * (clean - corrupted), axis=-1)`",
    ),
    wrong=(
        _estimated(lambda ct, clean, corrupted: jnp.sum(ct * (clean - corrupted), axis=-1), at=0),
        _estimated(lambda ct, clean, corrupted: jnp.sum(ct * (corrupted - clean), axis=-1)),
        _estimated(lambda ct, clean, corrupted: jnp.sum(ct * clean, axis=-1)),
        _estimated(lambda ct, clean, corrupted: jnp.linalg.norm(ct, axis=-1)),
        _estimated(lambda ct, clean, corrupted: ct * (clean - corrupted)),
    ),
)
linear


# %% tags=["answer"]
def my_estimate(params, pair):
    clean, corrupted, yes, no = pair
    return ...


linear.answer(my_estimate)


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def estimate(params, pair):
    clean, corrupted, yes, no = pair
    _, there = jaxviz.capture(score, "stream")(params, clean, yes, no)
    _, here = jaxviz.capture(score, "stream", cotangents=True)(params, corrupted, yes, no)
    return jnp.sum(here.cotangents["stream"] * (there["stream"] - here["stream"]), axis=-1)


linear.solution(estimate)

# %%
def estimated_effects(params, pair):
    clean, corrupted, yes, no = pair
    return estimate(params, pair) / (score(params, clean, yes, no) - score(params, corrupted, yes, no))


estimates = jax.jit(jax.vmap(estimated_effects, (None, 0)))(params, of_name)
draw(names_effects.mean(0), estimates.mean(0), words=words, titles=["true: 40 runs a pair", "estimated: one gradient a pair"])

# %%
def correlation(one, other):
    return float(jnp.corrcoef(one.ravel(), other.ravel())[0, 1])


of_each = [correlation(a, b) for a, b in zip(names_effects, estimates)]
print(f"correlation of the two maps: {correlation(names_effects.mean(0), estimates.mean(0)):.2f} for the means,")
print(f"for single pairs a median of {np.median(of_each):.2f}, from {min(of_each):.2f} to {max(of_each):.2f}")
print(f"size, estimated for true: {estimates.mean(0).sum() / names_effects.mean(0).sum():.2f}")

# %% [markdown]
# Each map has its own scale. The estimate has the same places, and that is what one uses it for: to choose the patches that are worth a run. But its
# numbers are far too small, and the map of a single pair may be quite wrong.
#
# ## Where they disagree
#
# In the first row the truth is simple: to replace the embedding of `Cid` by that of `Ann` *is* to run the clean sentence, so the effect is 1. Here is the
# score on the way from one embedding to the other, and on the way of the patch at `gave` in layer 2:

# %%
def along(pair, layer, position, t):
    """The score with the stream at one place moved by the fraction `t` towards the clean one."""
    clean, corrupted, yes, no = pair
    stream = jaxviz.capture(model, "stream")(params, clean)[1]["stream"]

    def new(x, at):
        moved = x + t * (at.pick(stream) - x)
        return jnp.where((jnp.arange(len(x)) == position)[:, None], moved, x)

    return jaxviz.replace(score, {"stream": new}, iterations=[layer])(params, corrupted, yes, no)


ts = jnp.linspace(0, 1, 65)
value_and_slope = jax.jit(jax.vmap(jax.value_and_grad(along, 3), (None, None, None, 0)))
lines = {"Ann, into layer 0": value_and_slope(first, 0, 0, ts), "gave, into layer 2": value_and_slope(first, 2, 6, ts)}

# %% jupyter={"source_hidden": true}
# The score along two patches, and the tangents where the estimate takes them
plt.figure(figsize=(6, 3))
for colour, (name, (values, slopes)) in zip(("C0", "C3"), lines.items()):
    plt.plot(ts, values, colour, label=name)
    plt.plot(ts, values[0] + ts * slopes[0], colour, linestyle=":")
plt.xlabel("from the corrupted stream (0) to the clean one (1)")
plt.ylabel("score")
plt.legend(frameon=False);

# %%
for name, (values, slopes) in lines.items():
    mean = jnp.trapezoid(slopes, ts)
    print(f"{name}: true {values[-1] - values[0]:.1f}, slope at the start {slopes[0]:.1f}, mean slope {mean:.1f}, largest {slopes.max():.1f}")

# %% [markdown]
# The score is no straight line: it changes most in the middle of the way, and the slope at the start knows nothing of that. The *mean* slope is the true
# effect, as it has to be, since the integral of a derivative is a difference. So a few gradients along the way give a better estimate of a patch.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
true, guessed = names_effects.mean(0), estimates.mean(0)
assert guessed[1].argmax() == 3 and guessed[2].argmax() == 6
assert correlation(true, guessed) > 0.4 and 0.3 < np.median(of_each) < 0.99 and min(of_each) < np.median(of_each)
assert 0 < guessed.sum() / true.sum() < 0.6
assert giver_effects.mean(0)[2, 6] > 0.5 and jnp.allclose(giver_effects.mean(0)[0], jnp.eye(10)[5], atol=1e-3)
for values, slopes in lines.values():
    assert jnp.allclose(jnp.trapezoid(slopes, ts), values[-1] - values[0], rtol=0.05)
    assert slopes.max() > 2 * slopes[0] and slopes.max() > 2 * slopes[-1]

# %% [markdown]
# ## What to remember
#
# - `jaxviz.replace(f, {address: new})` is `f` with another value, as pure as `f`: layers, positions and sentences are `vmap`s.
# - A patch says what a value decides. A lens, or the size of a value, does not.
# - Cotangent times difference ranks all patches at once. Run those that matter: a model that is sure of something has small slopes there.
#
# Next: a gradient that is zero, in [16 · why is it zero](16_why_is_it_zero.ipynb).
