"""Puzzles on gradients without NaN: where, norms, masks, and a custom rule."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.arguments import Argnums
from jaxviz.features.nans.find import find_nan
from jaxviz.higher_order import of
from jaxviz.ir.trace import trace
from jaxviz.teach.checks import has_right_rule
from jaxviz.teach.predict import predict
from jaxviz.teach.puzzles import records
from jaxviz.teach.puzzles.measures import KEPT, OPERATIONS, Function
from jaxviz.teach.puzzles.puzzle import Puzzle, normal, typed
from jaxviz.teach.rule import Check


def finite(*args: Any, argnums: Argnums = 0) -> Check:
    """Checks that neither the sum of the results nor its gradient has a NaN or an infinity."""

    def fails(written: Function) -> str:
        summed = functools.wraps(written)(lambda *arguments: jnp.sum(written(*arguments)))
        report = find_nan(summed, *args, argnums=argnums)
        return "" if report is None else f"{report.summary}."

    return Check("its gradient is finite where the function as given has a NaN or infinite gradient", fails)


# --- where ------------------------------------------------------------------------------------------------------------


def sinc(x):
    return jnp.where(x != 0, jnp.sin(x) / x, 1.0)


def _twice_where(x):
    safe = jnp.where(x != 0, x, 1.0)
    return jnp.where(x != 0, jnp.sin(safe) / safe, 1.0)


def _next_to_zero(x):
    near = jnp.where(x == 0, 1e-4, x)
    return jnp.sin(near) / near


_LINE = (typed(1_000),)
_AT_ZERO = np.array([0.0, 1.5, -2.0, 0.0], np.float32)

WHERE = Puzzle(
    "where", "The gradient at zero",
    "`jnp.where` handles zero, but the gradient there is still NaN. Make it 0, in few operations.",
    sinc, OPERATIONS, _LINE, lambda rng: (normal(rng, 4),),
    (
        "The branch that is not chosen is computed too. Its cotangent is 0, and what is 0 times infinity?",
        "The division must not see the zero: replace it *before* the division, with a second `jnp.where`.",
        "To beat par: one `jnp.where` is enough if 0 is replaced by a number so small that sin(x) / x is 1 in float32.",
    ),
    _twice_where,
    lambda: predict(
        "What is the gradient of `sinc` at 0?",
        truth=lambda: "NaN" if np.isnan(jax.grad(sinc)(0.0)) else "0",
        because={
            "0": "That is correct for the function. But the branch that is not chosen has a derivative too, and it is "
                 "added.",
            "1": "That is the value, not the gradient.",
            "NaN": "The branch that is not chosen gets the cotangent 0, and its derivative divides by 0: 0 times "
                   "infinity is NaN, which is added to the other gradient.",
            "infinite": "It would be, if the branch with the division had been chosen.",
        },
    ),
    better=_next_to_zero,
    record=records.where,
    par_is="the count with a second `jnp.where`",
    how="It adds 1e-30, which changes zero alone, and a rule computes the slope from the sine and the cosine.",
    lesson="13_finding_a_nan",
    wrong=(lambda x: jnp.where(x == 0, 1.0, jnp.sin(x) / x), lambda x: jnp.sinc(x / jnp.pi),
           lambda x: jnp.sin(x) / (x + 1e-4)),
    right=_twice_where,
    points=((_AT_ZERO,),),
    checks=(finite(_AT_ZERO),),
)  # fmt: skip


# --- a norm -----------------------------------------------------------------------------------------------------------


def distances(a, b):
    return jnp.sqrt(jnp.sum((a - b) ** 2, -1))


def _safe_distances(a, b):
    squares = jnp.sum((a - b) ** 2, -1)
    apart = squares > 0
    return jnp.where(apart, jnp.sqrt(jnp.where(apart, squares, 1.0)), 0.0)


def _nearly(a, b):
    return jnp.sqrt(jnp.sum((a - b) ** 2, -1) + 1e-30)


_POINTS = typed(1_000, 3), typed(1_000, 3)
_SAME = np.array([[1, 2, 3], [0, 1, 0]], np.float32), np.array([[1, 2, 3], [2, 1, 0]], np.float32)

NORM = Puzzle(
    "norm", "At distance zero",
    "Two particles at the same place have distance 0, and the gradient is NaN. Make it 0, in few operations.",
    distances, OPERATIONS, _POINTS, lambda rng: (normal(rng, 2, 3), normal(rng, 2, 3)),
    (
        "The derivative of a square root at 0 is infinite. What is it multiplied by?",
        "The root must not see the zero: replace it before the root with a `jnp.where`, and use another one after it.",
        "To beat par: the argument of the root need not be exactly 0. Adding 1e-30 changes no other value in float32, "
        "and the root of 1e-30 has a finite derivative. It is enormous, and here it is multiplied by that of the "
        "squares, which is 0.",
    ),
    _safe_distances,
    lambda: predict(
        "Does `jnp.linalg.norm(a - b)` have a gradient without NaN if `a` equals `b`?",
        truth=lambda: "no" if np.isnan(jax.grad(jnp.linalg.norm)(jnp.zeros(2))).any() else "yes",
        because={
            "yes": "It is written the way you would write it: the root of a sum of squares.",
            "no": "It is also the root of a sum of squares, and JAX has no custom rule for it.",
        },
    ),
    better=_nearly,
    record=records.norm,
    par_is="the count with two `jnp.where`",
    how="A rule divides the cotangent once for each pair of particles, and uses the difference for both gradients.",
    lesson="13_finding_a_nan",
    wrong=(lambda a, b: jnp.linalg.norm(a - b, axis=-1),
           lambda a, b: jnp.sqrt(jnp.sum((a - b) ** 2, -1) + 1e-3),
           lambda a, b: jnp.where(jnp.all(a == b, -1), 0.0, distances(a, b))),
    argnums=(0, 1),
    right=_safe_distances,
    points=(_SAME,),
    checks=(finite(*_SAME, argnums=(0, 1)),),
)  # fmt: skip


# --- a mask -----------------------------------------------------------------------------------------------------------


def entropy(logits, mask):
    log_p = jax.nn.log_softmax(jnp.where(mask, logits, -jnp.inf))
    return -jnp.sum(jnp.exp(log_p) * log_p, -1)


def _masked_entropy(logits, mask):
    log_p = jax.nn.log_softmax(jnp.where(mask, logits, -jnp.inf))
    return -jnp.sum(jnp.exp(log_p) * jnp.where(mask, log_p, 0.0), -1)


def _large_and_finite(logits, mask):
    log_p = jax.nn.log_softmax(jnp.where(mask, logits, -1e9))
    return -jnp.sum(jnp.exp(log_p) * log_p, -1)


def _kept_entropy(logits, mask):
    p = jax.nn.softmax(logits, where=mask)
    return jax.nn.logsumexp(logits, -1, where=mask) - jnp.sum(p * logits, -1)


_ACTIONS = typed(100, 50), typed(100, 50, dtype=jnp.bool)
_SOME = np.array([[1, 2, 3], [0, 1, 5]], np.float32), np.array([[True, True, False], [True, False, True]])

MASKED = Puzzle(
    "entropy", "Masked actions",
    "The entropy is NaN if some actions are masked. Correct it and its gradient, in few operations.",
    entropy, OPERATIONS, _ACTIONS, lambda rng: (normal(rng, 2, 3), np.ones((2, 3), bool)),
    (
        "What is `exp(log_p) * log_p` if `log_p` is -inf?",
        "0 times infinity is NaN. A `jnp.where` on one of the factors keeps the infinity out of the product.",
        "To beat par: why use infinity? The exponential of -1e9 is also 0, and 0 times 1e9 is 0.",
    ),
    _masked_entropy,
    lambda: predict(
        "One action in a row is masked. For which actions is the gradient of `entropy` NaN: for this one, or for all "
        "others in the row?",
        truth=_which_are_nan,
        because={
            "this one": "Its logit is not read at all: `jnp.where` chooses the constant, so its gradient is 0.",
            "the others": "The entropy of the row is NaN, and so is everything computed from it. The masked logit is "
                          "not read at all, so its gradient is 0.",
            "none": "The value is already NaN.",
        },
        hints=("Which logits does `jnp.where` let through?",),
    ),
    better=_large_and_finite,
    record=records.entropy,
    par_is="the count with one more `jnp.where`",
    how="The gradient of an entropy is -p (log p + H), and a rule computes it with the exponentials of the value.",
    lesson="13_finding_a_nan",
    wrong=(lambda logits, mask: entropy(logits, True),
           lambda logits, mask: jnp.nan_to_num(entropy(logits, mask)), _kept_entropy),
    right=_kept_entropy,
    points=(_SOME,),
    checks=(finite(*_SOME),),
)  # fmt: skip


def _which_are_nan() -> str:
    is_nan = np.isnan(jax.grad(lambda logits: jnp.sum(entropy(logits, _SOME[1])))(_SOME[0]))
    return "the others" if (is_nan == _SOME[1]).all() else "this one" if (is_nan != _SOME[1]).all() else "none"


# --- a custom rule ----------------------------------------------------------------------------------------------------


def softplus(x):
    return jnp.log(1 + jnp.exp(x))


@jax.custom_jvp
def _own_softplus(x):
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


@_own_softplus.defjvp
def _own_rule(primals, tangents):
    return _own_softplus(*primals), jax.nn.sigmoid(primals[0]) * tangents[0]


@jax.custom_vjp
def _from_argument(x):
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


_from_argument.defvjp(lambda x: (_from_argument(x), x), lambda x, ct: (ct * jax.nn.sigmoid(x),))


def _no_rule(written: Function) -> str:
    own = any(of(e).has_custom_rule for _, e in trace(written)(*_LINE).walk())
    return "" if own else "There is no `custom_jvp` or `custom_vjp` in its program."


def _costly(written: Function) -> str:
    count, most = (OPERATIONS.of(f, _LINE, 0) for f in (written, jax.nn.softplus))
    return "" if count <= most else f"It takes {count:,}, and that of `jax.nn.softplus` {most:,}."


_FAR = np.array([0.0, 100.0, -100.0, 1.0], np.float32)

RULE = Puzzle(
    "softplus", "A custom rule",
    "`log(1 + exp(x))` is infinite at 100, and its gradient is NaN. Write it with a custom rule whose gradient saves "
    "at most one array.",
    softplus, KEPT, _LINE, lambda rng: (normal(rng, 4),),
    (
        "From which `x` on does `exp(x)` overflow? max(x, 0) + log1p(exp(-|x|)) is the same value, and never does.",
        "The derivative is the sigmoid. Use `@jax.custom_jvp`, and `@f.defjvp` for a function of `(primals, tangents)` "
        "that returns the value and its tangent.",
        "To beat par: you choose what the rule of a `custom_vjp` saves, and the argument is in memory anyway.",
    ),
    _own_softplus,
    lambda: predict(
        "`exp(x)` overflows at 100. What is the gradient of `softplus` there?",
        truth=lambda: "NaN" if np.isnan(jax.grad(softplus)(100.0)) else "1",
        because={
            "0": "The gradient of the logarithm, 1 / (1 + inf), is 0. But that is only one factor.",
            "1": "That is correct for the function. But it is computed from `exp(100)`.",
            "infinite": "The gradient of `exp` is. What is it multiplied by?",
            "NaN": "exp(x) / (1 + exp(x)) is infinity over infinity.",
        },
    ),
    better=_from_argument,
    par_is="one array in float32, as with a `custom_jvp` that uses the sigmoid",
    how="The rule reads the argument: it is the answer that beats par.",
    lesson="09_custom_rules",
    wrong=(jax.nn.softplus, jax.checkpoint(jax.nn.softplus), jax.nn.relu),
    right=jax.nn.softplus,
    points=((_FAR,),),
    checks=(
        Check("has a custom rule", _no_rule),
        Check("its gradient takes no more operations than the gradient of `jax.nn.softplus`", _costly),
        finite(_FAR),
        has_right_rule((1.0,), (100.0,)),
    ),
)  # fmt: skip

NANS = (WHERE, NORM, MASKED, RULE)
