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
# # 14 · What is inside this model?
#
# You want the attention patterns of a model, the norm of a cotangent in each layer, or what the model would say after layer 2. The model returns
# none of that. This notebook gets it without changing the model: `jaxviz.capture` takes a function, and names of values, which we call *addresses*.
# [A proposal for flax](https://github.com/google/flax/issues/5538) says what is hard to reach otherwise: a value in a plain function, in a loss, in a gradient.
#
# It takes 25 minutes. You need to know what a scan returns ([1 · reading jaxprs](01_reading_jaxprs.ipynb)) and what a cotangent is
# ([4 · partial evaluation and residuals](04_partial_evaluation_and_residuals.ipynb)).
#
# The model is a small GPT with its layers in a scan. Attention is local: a position sees itself and the three before it. As in many models, there are `checkpoint_name`
# and `named_scope`, which compute nothing.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.ad_checkpoint import checkpoint_name

import jaxviz
from jaxviz import teach
from jaxviz.teach.sentences import WORDS, encode, examples, trained, untrained

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


def loss(params, sentences):
    log_p = jax.nn.log_softmax(jax.vmap(model, (None, 0))(params, sentences[:, :-1]))
    return -jnp.mean(jnp.take_along_axis(log_p, sentences[:, 1:, None], axis=-1))


# %% jupyter={"source_hidden": true}
# the training: 400 steps of Adam, some 15 seconds
rng = np.random.default_rng(0)
start = untrained(rng, LAYERS, WIDTH)
params, losses = trained(loss, start, jnp.stack([examples(rng, 32) for _ in range(400)]))
tests = jnp.asarray(examples(rng, 512))
guesses = jax.jit(jax.vmap(model, (None, 0)))(params, tests[:, :-1])[:, -1].argmax(-1)
print(f"the last loss is {losses[-1]:.2f}; {jnp.mean(guesses == tests[:, -1]):.0%} of {len(tests)} new sentences end with the right name")
for row in tests[:3]:
    print("  ", " ".join(WORDS[i] for i in row))

# %% [markdown]
# It has learned sentences in which two people meet, and one of them gives something to the other one. The last word is the name that was not repeated.
# All other names and things are random, which is why the loss is not 0.
#
# ## Addresses
#
# An address is what you would call the value: a variable, an expression, the name in a `checkpoint_name`, or `mlp:out`, which is what the scope `mlp`
# returns. In flax, haiku or equinox that is the path of a module, such as `blocks_0/mlp:out`. A function before it, as in `attention › scores`, tells values apart.

# %%
sentence = encode("Ann and Bob met . Bob gave a ball to")
run = jaxviz.capture(model, "scores", "x @ p['up']", "stream", "mlp:out")
print(run.where(params, sentence))

# %% [markdown]
# `where` has traced the model and run nothing. What is in a scan is stacked, as if the scan had returned it: the first axis has the layers.
# What a function of yours returns has the names of both sides: the expression in `norm`, and `norm(x)` where it is called.
#
# An address that means several values is an error, which lists them:

# %%
try:
    jaxviz.capture(model, "x").where(params, sentence)
except jaxviz.AddressError as error:
    print(error)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert [v.type for v in run.where(params, sentence).values] == ["f32[4,4,10,10]", "f32[4,10,128]", "f32[4,10,32]", "f32[4,10,32]"]
assert len(jaxviz.capture(model, "norm(x) #*").where(params, sentence).values) == 3
assert len(jaxviz.capture(model, "x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-5) #*").where(params, sentence).values) == 3
assert jnp.mean(guesses == tests[:, -1]) > 0.98 and 0.35 < losses[-1] < 0.6

# %% [markdown]
# And the variable `pattern` of `attention`, for this sentence of ten words?

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: size
size = teach.predict(
    "How many bytes does `jaxviz.capture(model, \"pattern\")` return beside the result?",
    truth=lambda: jaxviz.capture(model, "pattern").nbytes(params, sentence),
    because=f"It is f32[{LAYERS},{HEADS},10,10]: a number for each layer, head, and pair of positions, of 4 bytes each.",
    hints=(
        "What does one head of one layer have? The window makes zeros, and no smaller array.",
        f"There are {HEADS} heads in each of {LAYERS} layers.",
    ),
)
size

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
size.solution(6400)

# %%
run = jaxviz.capture(model, "pattern")
logits, seen = jax.jit(run)(params, sentence)
print(seen)

# %% jupyter={"source_hidden": true}
# The patterns, a row of pictures for each layer; black is 1
words = [WORDS[i] for i in sentence]
figure, axes = plt.subplots(LAYERS, HEADS, figsize=(8, 8), sharex=True, sharey=True, layout="constrained")
for layer in range(LAYERS):
    for head in range(HEADS):
        axes[layer, head].imshow(seen["pattern"][layer, head], cmap="Greys", vmin=0, vmax=1)
    axes[layer, 0].set_ylabel(f"layer {layer}")
    axes[layer, 0].set_yticks(range(10), words, fontsize=7)
for axis in axes[-1]:
    axis.set_xticks(range(10), words, fontsize=7, rotation=90)
figure.suptitle("which words (columns) a position (row) reads, in each head");

# %% [markdown]
# Four diagonals wide, as the window says. The scores needed no return through `attention`, `block`, the scan and `model`.
#
# ## Under transforms
#
# `run` is a function of arrays, without callbacks or a global store. So it may be mapped, compiled and differentiated like any other one, and any other
# function may be captured: the loss, for instance, with its `vmap` over sentences.

# %%
batch = tests[:64]
in_loss = jaxviz.capture(loss, "stream")
mapped = jax.vmap(jaxviz.capture(model, "stream"), (None, 0))

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: first
def _axes():
    of_loss = jax.eval_shape(in_loss, params, batch)[1]["stream"].shape[0]
    of_map = jax.eval_shape(mapped, params, batch[:, :-1])[1]["stream"].shape[0]
    return f"{'layers' if of_loss == LAYERS else 'sentences'} in `in_loss`, {'layers' if of_map == LAYERS else 'sentences'} in `mapped`"


first = teach.predict(
    "What is the first axis of the `stream` that each of them returns?",
    [f"{a} in `in_loss`, {b} in `mapped`" for a in ("layers", "sentences") for b in ("layers", "sentences")],
    truth=_axes,
    because={
        "layers in `in_loss`, layers in `mapped`": "What does `vmap` do to a result of the function that it maps?",
        "sentences in `in_loss`, layers in `mapped`": "It is the other way round. Which of the two transforms is outside?",
        "sentences in `in_loss`, sentences in `mapped`": "In `in_loss` the value is one of a scan whose carry has an axis of sentences.",
        "layers in `in_loss`, sentences in `mapped`": "In `in_loss` the `vmap` is inside: the scan's carry has an axis of sentences, and the scan stacks it "
        "over layers. In `mapped` it is outside, and gives each result an axis in front.",
    },
    hints=("In one of them, capture takes the value out of the mapped scan; in the other one, the whole is mapped.",),
)
first

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
first.solution("layers in `in_loss`, sentences in `mapped`")

# %% [markdown]
# A value while a gradient is taken is the auxiliary result of a differentiated function:

# %%
(value, seen), gradient = jax.jit(jax.value_and_grad(in_loss, has_aux=True))(params, batch)
print(f"loss {value:.3f}, {seen}")

# %% [markdown]
# `cotangents=True` returns the derivative of the loss with respect to each captured value, too. By hand, one adds zeros to the value, and
# differentiates with respect to these.

# %%
both = jaxviz.capture(loss, "stream", cotangents=True)
value, seen = jax.jit(both)(params, batch)
print(seen.cotangents)

# %% [markdown]
# Captured values are results of the forward pass, so a gradient keeps no more residuals than before. A training step takes the gradient itself, and
# nothing in that gradient has an address: give `capture` the loss that the step differentiates, as here.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
plain = jaxviz.residuals(loss, params, batch)
with_captured = jaxviz.residuals(lambda params, batch: in_loss(params, batch)[0], params, batch)
assert plain.nbytes == with_captured.nbytes
_value, _gradient = jax.jit(jax.value_and_grad(loss))(params, batch)
assert jnp.allclose(value, _value)
for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(_gradient)):
    assert jnp.allclose(a, b, atol=1e-5)

# %% [markdown]
# ## Less than the value
#
# For 64 sentences the stream has 320 KiB, and in a real model gigabytes. `reduce=` is applied to each value before it leaves, within the scan, and to each
# cotangent:

# %%
print(in_loss.where(params, batch).summary)
print(jaxviz.capture(loss, "stream", reduce=lambda x: jnp.max(jnp.abs(x))).where(params, batch).summary)

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: norms
@jax.jit
def by_hand(params, batch):
    """The norms, from zeros that are added to the stream."""

    def one(added, words):
        x = params["embed"][words] + params["position"][: len(words)]
        x, _ = jax.lax.scan(lambda x, inputs: block(x + inputs[1], inputs[0]), x, (params["blocks"], added))
        return norm(x) @ params["unembed"]

    def of_zeros(added):
        log_p = jax.nn.log_softmax(jax.vmap(one, (1, 0))(added, batch[:, :-1]))
        return -jnp.mean(jnp.take_along_axis(log_p, batch[:, 1:, None], axis=-1))

    cotangent = jax.grad(of_zeros)(jnp.zeros((LAYERS, len(batch), batch.shape[1] - 1, WIDTH)))
    return jnp.sqrt(jnp.sum(cotangent**2, axis=(1, 2, 3)))


def _of_values(params, batch):
    return jaxviz.capture(loss, "stream", reduce=jnp.linalg.norm)(params, batch)[1]["stream"]


def _of_all(params, batch):
    return jnp.linalg.norm(jaxviz.capture(loss, "stream", cotangents=True)(params, batch)[1].cotangents["stream"])


def _after_layers(params, batch):
    run = jaxviz.capture(loss, "x + mlp(p, norm(x))", cotangents=True, reduce=jnp.linalg.norm)
    return run(params, batch)[1].cotangents["x + mlp(p, norm(x))"]


def _of_rows(params, batch):
    return jnp.linalg.norm(jaxviz.capture(loss, "stream", cotangents=True)(params, batch)[1].cotangents["stream"], axis=-1)


norms = teach.rule(
    "Write `my_norms(params, batch)`: for each layer the norm of the cotangent of `stream` in `loss`, as one array of four numbers.",
    teach.computes(by_hand, (params, tests[:8]), (start, tests[8:16]))
    .of(jax.jit)
    .saying("gives the norms that a loss edited by hand gives, before training and after"),
    hints=(
        "`jaxviz.capture(loss, \"stream\", cotangents=True)` returns a pair. What of its second part are cotangents?",
        "All of a layer's numbers go into one norm: those of all sentences, positions and channels. `reduce` sees one layer at a time.",
        "`reduce=jnp.linalg.norm`, and then `seen.cotangents[\"stream\"]`.",
    ),
    wrong=(_of_values, _of_all, _after_layers, _of_rows),
)
norms


# %% tags=["answer"]
def my_norms(params, batch):
    return ...


norms.answer(my_norms)


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def cotangent_norms(params, batch):
    _, seen = jaxviz.capture(loss, "stream", cotangents=True, reduce=jnp.linalg.norm)(params, batch)
    return seen.cotangents["stream"]


norms.solution(cotangent_norms)

# %% [markdown]
# ## What would it say after two layers?
#
# Each layer adds something to the stream, and at the end `norm` and `unembed` make logits of it. The *logit lens* applies these two to the stream after each layer, as
# if the layers that follow were not there.
#
# The model has to look back nine words, to `Ann`, and each attention reads at most three words back. Before you look through the lens:

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: reach
@jax.jit
def _changed(params, sentence, other):
    after = lambda words: jaxviz.capture(model, "x + mlp(p, norm(x))")(params, words)[1]["x + mlp(p, norm(x))"]
    return jnp.any(after(sentence)[:, -1] != after(other)[:, -1], axis=-1)


reach = teach.predict(
    "After how many layers can the stream at the last word, `to`, depend on the first word, at the earliest?",
    truth=lambda: 1 + int(jnp.argmax(_changed(params, sentence, sentence.at[0].set(WORDS.index("Cid"))))),
    because="Each layer moves information by up to three positions: 0 → 3 → 6 → 9. The other parts of a layer do not mix positions. With another first word the "
    "stream at `to` is the same, bit by bit, after fewer layers.",
    hints=("`ago < WINDOW`: a position reads those 0, 1, 2 and 3 before it.", "`to` is at position 9, `Ann` at 0."),
)
reach

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
reach.solution(3)

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: lens
@jax.jit
def _by_hand(params, words):
    """The lens of a model that is edited to return the stream."""

    def layer(x, p):
        x, _ = block(x, p)
        return x, x

    _, after = jax.lax.scan(layer, params["embed"][words] + params["position"][: len(words)], params["blocks"])
    return jax.nn.softmax(norm(after) @ params["unembed"])


def _lens_of(address, last):
    return lambda params, words: last(params, jaxviz.capture(model, address)(params, words)[1][address])


_unembedded = lambda params, x: jax.nn.softmax(norm(x) @ params["unembed"])

lens = teach.rule(
    "Write `my_lens(params, words)`: the probabilities of each word after each layer, at each position, as an array `[layers, positions, words]`.",
    teach.computes(_by_hand, (params, sentence), (params, tests[0, :7]), (start, tests[1, :-1]))
    .of(jax.jit)
    .saying("gives the probabilities that a model edited by hand gives"),
    teach.computes(jax.jit(lambda params, words: jax.nn.softmax(model(params, words))), (params, sentence))
    .of(lambda my: jax.jit(lambda params, words: my(params, words)[-1]))
    .saying("gives after the last layer what the model itself says"),
    hints=(
        "Which expression of `block` is the stream *after* a layer? `stream` is the one before it.",
        "`x + mlp(p, norm(x))` is what `block` returns.",
        "`norm`, `@ params[\"unembed\"]` and `jax.nn.softmax` work on the whole stack at once: they use the last axis.",
    ),
    wrong=(
        _lens_of("stream", _unembedded),
        _lens_of("x + mlp(p, norm(x))", lambda params, x: norm(x) @ params["unembed"]),
        _lens_of("x + mlp(p, norm(x))", lambda params, x: jax.nn.softmax(x @ params["unembed"])),
        _lens_of("mlp:out", _unembedded),
        lambda params, words: jax.nn.softmax(model(params, words)),
    ),
)
lens


# %% tags=["answer"]
def my_lens(params, words):
    return ...


lens.answer(my_lens)


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def logit_lens(params, words):
    _, seen = jaxviz.capture(model, "x + mlp(p, norm(x))")(params, words)
    return jax.nn.softmax(norm(seen["x + mlp(p, norm(x))"]) @ params["unembed"])


lens.solution(logit_lens)

# %%
through = jax.jit(logit_lens)(params, sentence)

# %% jupyter={"source_hidden": true}
# The most probable word after each layer, and its probability
figure, axis = plt.subplots(figsize=(9, 2.6))
image = axis.imshow(through.max(-1), cmap="Blues", vmin=0, vmax=1, aspect="auto")
for layer in range(LAYERS):
    for position in range(10):
        p = through[layer, position].max()
        colour = "white" if p > 0.6 else "black"
        axis.text(position, layer, WORDS[through[layer, position].argmax()], ha="center", va="center", fontsize=9, color=colour)
axis.set_xticks(range(10), words)
axis.set_yticks(range(LAYERS), [f"after layer {i}" for i in range(LAYERS)])
axis.set_title("the next word, through the lens", fontsize=10)
figure.colorbar(image, label="probability");

# %% [markdown]
# Of a word such as `and`, which follows every first name, the lens is sure early. The last column is the question. The same column for 512
# sentences, by one `vmap` around the lens:

# %%
of_answers = jax.jit(jax.vmap(lambda row: logit_lens(params, row[:-1])[:, -1, row[-1]]))(tests)
plt.figure(figsize=(4.5, 2.4))
plt.violinplot(np.asarray(of_answers), range(LAYERS), showmeans=True)
plt.xticks(range(LAYERS))
plt.xlabel("after layer")
plt.ylabel("probability of the answer");

# %% [markdown]
# After layers 0 and 1 nothing of the first two names has arrived at `to`. The best guess is then one of eight names, or of seven, since the repeated
# one may have arrived. Layer 2 is the first that can do better, and layer 3 is sure.
#
# Now look at `gave` in the lens. It says `a`, as it should: that is its next word. Does that mean that the stream at `gave` has nothing to do with
# the answer? No. The lens shows what `unembed` reads, and a layer may leave things in the stream for other layers. `Ann` has to pass between 0
# and 9, and no column shows where. That takes another experiment.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
mean = of_answers.mean(0)
assert mean[0] < 0.25 and mean[1] < 0.25 and mean[3] > 0.85 and mean[2] > mean[1]
assert WORDS[through[-1, 6].argmax()] == "a" and WORDS[through[-1, 9].argmax()] == "Ann"
assert jaxviz.capture(loss, "stream").nbytes(params, batch) == 320 * 1024

# %% [markdown]
# ## What to remember
#
# - `jaxviz.capture(f, *addresses)` is `f` with more results, and as pure as `f`. `.where(...)` says what they are, and how large, before it runs.
# - Values in a scan are stacked. `cotangents=True` returns the derivatives of a loss; `reduce=` keeps both small.
# - A lens shows what can be read off at the end, not what is there.
#
# Next: put other values there, and see what changes, in [15 · which part decides](15_which_part_decides.ipynb).
