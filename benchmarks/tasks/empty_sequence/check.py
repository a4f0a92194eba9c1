"""The softmax of a document without tokens is NaN; `where` hides it, but not in the backward pass.

Shown by `jaxviz nan train.py:loss --args "init(jax.random.key(0)), *batch()" --agent`.
After pytorch#41508.
"""

import jax
import jax.numpy as jnp

from benchmarks.tasks.judging import Attempt, Edit, differs, load

KIND = "NaN"
INF = "jnp.where(mask, scores, -jnp.inf)"
SOLUTION = Attempt(
    "the largest finite number in place of infinity, in both uses",
    (Edit("model.py", INF, "jnp.where(mask, scores, jnp.finfo(scores.dtype).min)"),),
)
WRONG = Attempt(
    "NaNs in the gradient replaced with zeros: the other documents' gradient is lost with them",
    (
        Edit("train.py", "    log_p = log_probabilities(params", "    log_p = log_probabilities(finite(params)"),
        Edit("train.py", "def loss(", """@jax.custom_vjp
def finite(params):
    return params


finite.defvjp(lambda p: (p, None), lambda _, g: (jax.tree.map(jnp.nan_to_num, g),))


def loss("""),
    ),
)  # fmt: skip


def expected(params, tokens, lengths, labels):
    """A document at a time, without padding."""
    total = 0.0
    rows = [(t[:n], y) for t, n, y in zip(tokens, [int(n) for n in lengths], labels, strict=True) if n]
    for t, label in rows:
        x = params["embed"][t]
        y = params["scale"] * x / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
        q, k, v = jnp.split(y @ params["qkv"], 3, axis=-1)
        x = x + jax.nn.softmax(q @ k.T / 32**0.5) @ v
        document = jax.nn.softmax((x @ params["pool"])[:, 0]) @ x
        total -= jax.nn.log_softmax(document @ params["out"])[label]
    return total / max(len(rows), 1)


def check(folder):
    train, model = load(folder, "empty_sequence", train="loss batch", model="init log_probabilities")
    wrong = []
    tokens = jax.random.randint(jax.random.key(11), (5, 9), 0, 100)
    fresh = tokens, jnp.array([0, 9, 4, 0, 1]), jnp.array([4, 3, 2, 1, 0])
    given = jax.random.randint(jax.random.key(1), (6, 12), 0, 100), jnp.array([12, 3, 0, 7, 1, 12]), jnp.arange(6) % 5
    for key, args in ((0, given), (5, fresh)):
        params = model.init(jax.random.key(key))
        got = jax.value_and_grad(train.loss)(params, *args)
        wrong += differs("the loss and its gradient", got, jax.value_and_grad(expected)(params, *args))
    return wrong
