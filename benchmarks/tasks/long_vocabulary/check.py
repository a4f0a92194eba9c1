"""The logits of all tokens take the memory, not the layers: the loss has to be computed in parts.

Shown by `jaxviz compiled-memory train.py:loss --args "*types()" --agent`.
"""

import jax
import jax.numpy as jnp

from benchmarks.tasks.judging import Attempt, Edit, above, differs, load, temporaries

KIND = "out of memory"
BOUND = 96 << 20
WHOLE = '    return jnp.mean(smoothed(x @ params["unembed"], tokens[:, 1:]))'
SOLUTION = Attempt(
    "the loss of a few tokens at a time, computed again in the backward pass",
    (
        Edit("train.py", WHOLE, """    part = jax.checkpoint(lambda x, labels: smoothed(x @ params["unembed"], labels))
    n = 8
    parts = [jnp.moveaxis(a.reshape(a.shape[0], n, -1, *a.shape[2:]), 1, 0) for a in (x, tokens[:, 1:])]
    return jnp.mean(jax.lax.map(lambda a: part(*a), tuple(parts)))"""),
    ),
)  # fmt: skip
WRONG = Attempt(
    "a checkpoint around the whole loss: the backward pass computes the logits of all tokens again, at once",
    (Edit("train.py", WHOLE, """    whole = jax.checkpoint(lambda x, w, labels: jnp.mean(smoothed(x @ w, labels)))
    return whole(x, params["unembed"], tokens[:, 1:])"""),),
)  # fmt: skip


def expected(params, tokens, hidden):
    logits = hidden(params, tokens[:, :-1]) @ params["unembed"]
    soft = 0.9 * jax.nn.one_hot(tokens[:, 1:], logits.shape[-1]) + 0.1 / logits.shape[-1]
    return -jnp.mean(jnp.sum(soft * jax.nn.log_softmax(logits), axis=-1))


def check(folder):
    train, model = load(folder, "long_vocabulary", train="loss types step", model="init hidden layer")
    params = model.init(jax.random.key(5), 300)
    tokens = jax.random.randint(jax.random.key(6), (2, 65), 0, 300)
    got = jax.value_and_grad(train.loss)(params, tokens)
    wrong = differs("the loss and its gradient", got, jax.value_and_grad(expected)(params, tokens, reference_hidden))
    types = jax.eval_shape(lambda: model.init(jax.random.key(0), 32_000)), jax.ShapeDtypeStruct((4, 257), jnp.int32)
    return wrong + above("bytes of temporaries", temporaries(jax.grad(train.loss), *types), BOUND)


def reference_hidden(params, tokens):
    x = params["embed"][tokens]
    norm = lambda x: x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    for i in range(len(params["layers"]["out"])):
        w = jax.tree.map(lambda a: a[i], params["layers"])
        b, t, d = x.shape
        q, k, v = jnp.moveaxis((norm(x) @ w["qkv"]).reshape(b, t, 3, 4, d // 4), 2, 0)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (d // 4) ** 0.5
        scores = jax.nn.softmax(scores, where=jnp.tri(t, dtype=bool), axis=-1)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(b, t, d) @ w["out"]
        x = x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"]
    return norm(x)
