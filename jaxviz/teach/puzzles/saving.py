"""Puzzles on what a gradient saves: rows of a table, softmax, narrow types, pairs, masks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jaxviz.features.residuals.residual_set import residuals
from jaxviz.teach.predict import predict
from jaxviz.teach.puzzles import records
from jaxviz.teach.puzzles.measures import KEPT, PEAK
from jaxviz.teach.puzzles.puzzle import Puzzle, normal, typed

# --- a row of a table -------------------------------------------------------------------------------------------------


def embedded(table, tokens):
    rows = jax.nn.one_hot(tokens, len(table))
    return rows @ table


def _indexed(table, tokens):
    return table[tokens]


_TOKENS = typed(32_768, 256), typed(1_024, dtype=jnp.int32)

ROW = Puzzle(
    "row", "A row of a table",
    "Look up 1,024 tokens in a table of 32,768 rows, with a lower peak.",
    embedded, PEAK, _TOKENS, lambda rng: (normal(rng, 7, 3), rng.integers(0, 7, 5)),
    (
        "What is the type of `rows`?",
        "A product with a one-hot row picks a row. How else can you pick a row of an array?",
        "An array can be indexed by an array of integers. The transpose of that adds to the rows that were picked.",
    ),
    _indexed,
    lambda: predict(
        "What does the gradient of `embedded` with respect to `table` save besides its arguments?",
        truth=lambda: "an array of tokens × rows" if KEPT.of(embedded, _TOKENS, 0) == 4 * 1_024 * 32_768 else "nothing",
        because={
            "nothing": "The derivative with respect to `table` multiplies by the other factor, which is not an "
                       "argument.",
            "the tokens": "They are an argument. The factor that multiplies `table` is computed from them.",
            "an array of tokens × rows": "`rows` is the other factor of the product: 128 MiB of zeros, and 1,024 ones.",
            "an array of tokens × columns": "That is the result, which the derivative of a product does not read.",
        },
        hints=("The derivative of a product with respect to one factor multiplies by the other.",),
    ),
    par_is="little more than the table, its gradient and the rows",
    how="It is the answer at par: the table, its gradient and the rows are arguments and results, and four "
        "bytes a token are saved.",
    lesson="05_transposition",
    wrong=(jax.checkpoint(embedded), lambda table, tokens: table[tokens - 1]),
)  # fmt: skip


# --- the logarithm of a softmax ---------------------------------------------------------------------------------------


def cross_entropy(w, x, labels):
    p = jax.nn.softmax(x @ w)
    return -jnp.mean(jnp.log(p)[jnp.arange(len(x)), labels])


def _log_softmax(w, x, labels):
    logits = x @ w
    right = logits[jnp.arange(len(x)), labels]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - right)


@jax.custom_vjp
def _fused(w, x, labels):
    return _log_softmax(w, x, labels)


def _fused_forward(w, x, labels):
    loss, pull_back = jax.vjp(lambda w: _log_softmax(w, x, labels), w)
    return loss, pull_back(jnp.ones_like(loss))[0]


_fused.defvjp(_fused_forward, lambda gradient, ct: (ct * gradient, None, None))

_LOGITS = typed(256, 8_192), typed(4_096, 256), typed(4_096, dtype=jnp.int32)

SOFTMAX = Puzzle(
    "softmax", "The logarithm of a softmax",
    "A loss over 8,192 words saves arrays of examples × words. Save less, with at most 10 % more FLOPs.",
    cross_entropy, KEPT, _LOGITS, lambda rng: (normal(rng, 4, 6), normal(rng, 5, 4), rng.integers(0, 6, 5)),
    (
        "The derivative of the logarithm saves an array too. Can you avoid that logarithm?",
        "log(softmax(z)) is z - logsumexp(z), and the derivative of a difference saves nothing.",
        "To beat par: the loss is a scalar, so its gradient with respect to `w` is one array times the cotangent. A "
        "`custom_vjp` can compute that array in the forward pass.",
    ),
    _log_softmax,
    lambda: predict(
        "With `z - logsumexp(z)` instead of `log(softmax(z))`, how many arrays of examples × words does the gradient "
        "save?",
        truth=lambda: ["none", "one", "two", "three"][_n_square(_log_softmax)],
        because={
            "none": "The derivative of logsumexp is the softmax.",
            "one": "The derivative of logsumexp is the softmax, which needs the exponentials. The difference needs "
                   "nothing.",
            "two": "What would the derivative of a difference multiply by?",
            "three": "That is more than the loss saves as given.",
        },
    ),
    better=_fused,
    record=records.softmax,
    how="It saves nothing but its arguments, and computes the logits twice; Strassen's method, with seven "
        "products for eight, pays for that.",
    lesson="09_custom_rules",
    wrong=(jax.checkpoint(cross_entropy), lambda w, x, labels: _log_softmax(w, x, labels) / 2),
    extra_work=0.1,
)  # fmt: skip


def _n_square(f: Any) -> int:
    return sum(r.nbytes >= 4 * 8_192 * 4_096 for r in residuals(f, *_LOGITS))


# --- narrow types -----------------------------------------------------------------------------------------------------


def activation(w, x):
    h = (x @ w).astype(jnp.float32)
    return jnp.tanh(h).astype(x.dtype)


def _narrow(w, x):
    return jax.checkpoint(lambda h: jnp.tanh(h.astype(jnp.float32)).astype(h.dtype))(x @ w)


@jax.custom_vjp
def _coarse_tanh(h):
    return jnp.tanh(h.astype(jnp.float32)).astype(h.dtype)


def _coarse_forward(h):
    y = jnp.tanh(h.astype(jnp.float32))
    return y.astype(h.dtype), jnp.round(127 * y).astype(jnp.int8)


_coarse_tanh.defvjp(_coarse_forward, lambda residual, ct: ((ct * (1 - (residual / 127.0) ** 2)).astype(ct.dtype),))


def _eighth(w, x):
    return _coarse_tanh(x @ w)


_HALF = typed(512, 2_048, dtype=jnp.bfloat16), typed(8_192, 512, dtype=jnp.bfloat16)

WIDTH = Puzzle(
    "width", "Wider than before",
    "The product is in bfloat16, and the rest is computed in float32. Save less, with at most 10 % more FLOPs; values "
    "and gradients may differ by 2 %.",
    activation, KEPT, _HALF,
    lambda rng: (normal(rng, 4, 6).astype(jnp.bfloat16), normal(rng, 5, 4).astype(jnp.bfloat16)),
    (
        "The derivative of `tanh` reads a float32 value. Which narrower value is enough to recompute it?",
        "A `jax.checkpoint` saves its arguments. Where must it start so that its argument is the product in bfloat16?",
        "To beat par: tanh is between -1 and 1, and its derivative need not be exact here. An int8 has 255 steps.",
    ),
    _narrow,
    lambda: predict(
        "`x @ w` is 32 MiB in bfloat16. What does the gradient of `activation` save besides its arguments?",
        truth=lambda: {0: "nothing", 32: "32 MiB", 64: "64 MiB", 128: "128 MiB"}[KEPT.of(activation, _HALF, 0) >> 20],
        because={
            "nothing": "The derivative of tanh is 1 - tanh², which is not an argument.",
            "32 MiB": "That would be one value in bfloat16. Which dtype is tanh computed in?",
            "64 MiB": "A float32 value has twice the bytes, and JAX's rule for tanh needs more than one.",
            "128 MiB": "Two float32 arrays: JAX computes the derivative of tanh from its result in two factors, and "
                       "saves both.",
        },
        hints=("The derivative of tanh is computed in float32, and `jaxviz.residuals` lists what JAX's rule saves.",),
    ),
    better=_eighth,
    record=records.width,
    how="It saves nothing but its arguments, and computes the product twice; Strassen's method, with seven "
        "products for eight, pays for that.",
    lesson="06_checkpoints",
    wrong=(jax.checkpoint(activation), lambda w, x: _coarse_tanh(2 * (x @ w))),
    extra_work=0.1,
    tol=0.02,
)  # fmt: skip


# --- pairs ------------------------------------------------------------------------------------------------------------


def attraction(x, y, mass):
    d = x[:, None] - y[None, :]
    return jnp.exp(-d * d) @ mass


def _named_pairs(x, y, mass):
    d = x[:, None] - y[None, :]
    return jnp.exp(checkpoint_name(-d * d, "exponent")) @ mass


_saved_pairs = jax.checkpoint(_named_pairs, policy=jax.checkpoint_policies.save_only_these_names("exponent"))


def _row_by_row(x, y, mass):
    def row(one):
        return jnp.exp(-((one - y) ** 2)) @ mass

    return jax.lax.map(jax.checkpoint(row), x)


_PAIRS = typed(8_192), typed(8_192), typed(8_192)

PAIRS = Puzzle(
    "pairs", "Every pair",
    "Each of 8,192 points is attracted by 8,192 others, and an array of all pairs takes 256 MiB. Lower the peak, with "
    "at most 30 % more FLOPs.",
    attraction, PEAK, _PAIRS, lambda rng: (normal(rng, 4), normal(rng, 5), normal(rng, 5)),
    (
        "Four arrays of pairs are in memory at the peak. Which are saved, and which one is enough to recompute the "
        "others?",
        "Name `-d * d` with `checkpoint_name`, and put a checkpoint with the policy `save_only_these_names` around the "
        "function.",
        "To beat par: no pair needs another pair. `jax.lax.map` computes one row after another; what does it save for "
        "each row?",
    ),
    _saved_pairs,
    lambda: predict(
        "How many arrays of 8,192 × 8,192 does the gradient of `attraction` with respect to `x` save?",
        truth=lambda: ["none", "one", "two", "three"][KEPT.of(attraction, _PAIRS, 0) >> 28],
        because={
            "none": "The derivative of exp is exp, which is already one.",
            "one": "The derivative of exp multiplies by its result. And the derivative of `-d * d`?",
            "two": "The result of exp, and one factor of the product `-d * d`. But a product has two factors.",
            "three": "The result of exp, and both factors of `-d * d`: `-d` and `d` are two arrays.",
        },
    ),
    better=_row_by_row,
    record=records.pairs,
    how="The slope of each result is a number, which one pass over the pairs computes beside the result, 128 "
        "pairs at a time.",
    lesson="08_control_flow_gradients",
    wrong=(jax.checkpoint(attraction), lambda x, y, mass: attraction(x, y, 2 * mass)),
    extra_work=0.3,
)  # fmt: skip


# --- masks ------------------------------------------------------------------------------------------------------------


def rectified(w, x):
    h = x @ w
    return h * (h > 0)


def _named_mask(w, x):
    h = x @ w
    return h * checkpoint_name(h > 0, "positive")


_saved_mask = jax.checkpoint(_named_mask, policy=jax.checkpoint_policies.save_only_these_names("positive"))


@jax.custom_vjp
def _relu_of_bits(h):
    return jnp.maximum(h, 0)


def _bits_forward(h):
    return jnp.maximum(h, 0), jnp.packbits(h > 0)


def _bits_backward(bits, ct):
    return (ct * jnp.unpackbits(bits, count=ct.size).reshape(ct.shape),)


_relu_of_bits.defvjp(_bits_forward, _bits_backward)


def _in_bits(w, x):
    return _relu_of_bits(x @ w)


_LAYER = typed(512, 2_048), typed(8_192, 512)

MASK = Puzzle(
    "mask", "Only the sign",
    "A relu needs to know where its argument is positive. Save less than a float for that, with at most 10 % more "
    "FLOPs.",
    rectified, KEPT, _LAYER, lambda rng: (normal(rng, 4, 6), normal(rng, 5, 4)),
    (
        "`h > 0` is boolean, one byte per element. Which dtype does it have when it is multiplied by `h`, and so "
        "saved?",
        "`jax.nn.relu` saves the boolean, and an array of zeros for the other branch. Either write a `custom_vjp` that "
        "saves only `h > 0`, or name `h > 0` and checkpoint the rest.",
        "To beat par: a byte holds eight signs. See `jnp.packbits`.",
    ),
    _saved_mask,
    lambda: predict(
        "With `jnp.where(h > 0, h, 0.0)` instead of the product, what does the gradient save for each element of `h`?",
        truth=lambda: {1: "1 byte", 4: "4 bytes", 5: "5 bytes"}[_bytes_of_where()],
        because={
            "1 byte": "That is the boolean. The derivative of a `where` chooses between two tangents, and the constant "
                      "has one too.",
            "4 bytes": "That is what the product saves. Is there still a multiplication by a float?",
            "5 bytes": "The boolean, and a float32 array of zeros: the tangent of the constant branch, which JAX saves "
                       "as an array.",
        },
    ),
    better=_in_bits,
    how="One bit for each element: it is the answer that beats par.",
    lesson="04_partial_evaluation_and_residuals",
    wrong=(lambda w, x: jax.nn.relu(x @ w), jax.checkpoint(rectified), lambda w, x: _relu_of_bits(-(x @ w))),
    extra_work=0.1,
)  # fmt: skip


def _bytes_of_where() -> int:
    def chosen(w, x):
        h = x @ w
        return jnp.where(h > 0, h, 0.0)

    return KEPT.of(chosen, _LAYER, 0) // (8_192 * 2_048)


SAVING = (ROW, SOFTMAX, WIDTH, PAIRS, MASK)
