"""A softmax over the one chosen score is 1, whatever the score; the probability has to be taken before the choice.

Shown by `jaxviz flow model.py:loss --args "init(jax.random.key(0)), *batch(jax.random.key(1))" --agent`.
After Megatron-LM#894 and minimind#858.
"""

import jax
import jax.numpy as jnp

from benchmarks.tasks.judging import Attempt, Edit, differs, load

KIND = "zero gradient"
CHOICE = """    top, chosen = jax.lax.top_k(logits, k)
    return dispatched(jax.nn.softmax(top, axis=-1), chosen)"""
SOLUTION = Attempt(
    "one expert is weighted by its probability among all, as in the Switch Transformer",
    (
        Edit("moe.py", CHOICE, """    top, chosen = jax.lax.top_k(jax.nn.softmax(logits, axis=-1), k)
    return dispatched(top / jnp.sum(top, axis=-1, keepdims=True) if k > 1 else top, chosen)"""),
    ),
)  # fmt: skip
WRONG = Attempt(
    "the balance of the experts is trained: the gradient is not zero any more, and knows nothing of the loss",
    (Edit("moe.py", "jax.lax.stop_gradient(share)", "share"),),
)


def expected(params, x, labels, k):
    p = jax.nn.softmax(x @ params["router"])
    chosen = jnp.argsort(-p, axis=-1)[:, :k]
    weights = p * jnp.any(jnp.arange(4) == chosen[..., None], axis=1)
    weights = weights / jnp.sum(weights, axis=-1, keepdims=True) if k > 1 else weights
    outputs = [
        jax.nn.relu(x @ up) @ down for up, down in zip(params["experts"]["up"], params["experts"]["down"], strict=True)
    ]
    y = x + sum(weights[:, i : i + 1] * o for i, o in enumerate(outputs))
    balance = 4 * jnp.sum(jax.lax.stop_gradient(jnp.mean(p, axis=0)) ** 2)
    return -jnp.mean(jax.nn.log_softmax(y @ params["out"])[jnp.arange(len(x)), labels]) + 0.01 * balance


def check(folder):
    (model,) = load(folder, "single_expert", model="init loss batch")
    wrong = []
    for k in (1, 2):
        args = model.init(jax.random.key(5)), *model.batch(jax.random.key(6), 24)
        got = jax.value_and_grad(lambda *args: model.loss(*args, k=k))(*args)
        want = jax.value_and_grad(lambda *args: expected(*args, k))(*args)
        wrong += differs(f"with K = {k}, the loss and its gradient", got, want)
    return wrong
