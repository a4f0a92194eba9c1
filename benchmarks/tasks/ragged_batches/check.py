"""Each batch is as wide as its longest document, so nearly every batch has a shape of its own.

Shown by `jaxviz run train.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.tasks.judging import Attempt, Edit, compilations, differs, load

KIND = "recompilation"
WIDTH = "    width = max(map(len, docs))\n"
SOLUTION = Attempt(
    "all batches are as wide as the longest document may be",
    (Edit("batches.py", WIDTH, "    width = LONGEST\n"),),
)
WRONG = Attempt(
    "padded behind the documents: the weights count from the end of the padding",
    (
        Edit("batches.py", WIDTH, "    width = LONGEST\n"),
        Edit("batches.py", "row[width - len(doc) :] = doc", "row[: len(doc)] = doc"),
    ),
)


def expected(params, docs):
    """A document at a time, without padding."""
    result = []
    docs = sorted(docs, key=len)
    for i in range(0, len(docs), 4):
        total = weight = 0.0
        for doc in docs[i : i + 4]:
            x = np.asarray(params["embed"])[doc]
            before = (np.cumsum(x, axis=0) - x) / np.maximum(np.arange(len(doc)), 1)[:, None]
            log_p = jax.nn.log_softmax(np.tanh(before) @ np.asarray(params["out"]))
            w = 0.97 ** np.arange(len(doc))[::-1]
            total -= np.sum(w * np.asarray(log_p)[np.arange(len(doc)), doc])
            weight += np.sum(w)
        result.append(total / weight)
    return jnp.array(result)


def check(folder):
    train, model, batches = load(
        folder, "ragged_batches", train="losses", model="init batch_loss", batches="documents batches"
    )
    params, docs = model.init(jax.random.key(6)), batches.documents(11, 26)
    with compilations() as counts:
        actual = train.losses(params, [list(d) for d in docs])
    wrong = differs("the losses", jnp.array(actual), expected(params, docs), rtol=2e-5)
    n = sum(n for name, n in counts.items() if "loss" in name)
    if n == 0:
        return [*wrong, "nothing that is called a loss is compiled"]
    return wrong + ([] if n <= 2 else [f"`batch_loss` is compiled {n} times"])
