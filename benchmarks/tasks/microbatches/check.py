"""The scan over microbatches stacks the probabilities of all classes, for the metrics, which need two numbers of them.

Shown by `jaxviz compiled-memory train.py:step --args "*types()" --agent`.
"""

import jax
import jax.numpy as jnp

from benchmarks.tasks.judging import Attempt, Edit, above, differs, load, temporaries

KIND = "out of memory"
BOUND = 20_000_000
SOLUTION = Attempt(
    "each microbatch returns what the metrics need of it",
    (
        Edit("losses.py", '    return loss, {"log_p": log_p, "loss": loss}', """\
    entropy = -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
    hits = jnp.argmax(log_p, axis=-1) == tags
    return loss, {"loss": loss, "entropy": jnp.mean(entropy), "hits": jnp.mean(hits)}"""),
        Edit("losses.py", """    log_p = outputs["log_p"].reshape(*tags.shape, -1)
    entropy = -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
""", ""),
        Edit("losses.py", "jnp.mean(jnp.argmax(log_p, axis=-1) == tags)", 'jnp.mean(outputs["hits"])'),
        Edit("losses.py", "jnp.exp(jnp.mean(entropy))", 'jnp.exp(jnp.mean(outputs["entropy"]))'),
    ),
)  # fmt: skip
WRONG = Attempt(
    "a checkpoint of the loss: the probabilities are results, which no checkpoint takes away",
    (Edit("train.py", "jax.grad(microbatch_loss, has_aux", "jax.grad(jax.checkpoint(microbatch_loss), has_aux"),),
)


def reference(params, tokens):
    """The logits, in plain JAX."""
    p = params["params"]

    def norm(w, x):
        centred = x - x.mean(-1, keepdims=True)
        return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * w["scale"] + w["bias"]

    x = p["Embed_0"]["embedding"][tokens]
    for i in range(2):
        y, w = jnp.pad(norm(p[f"LayerNorm_{i}"], x), ((0, 0), (1, 1), (0, 0))), p[f"Conv_{i}"]
        y = sum(y[:, j : j + x.shape[1]] @ w["kernel"][j] for j in range(3)) + w["bias"]
        x = x + jax.nn.gelu(y) @ p[f"Dense_{i}"]["kernel"] + p[f"Dense_{i}"]["bias"]
    return norm(p["LayerNorm_2"], x) @ p["Dense_2"]["kernel"] + p["Dense_2"]["bias"]


def expected(params, tokens, tags):
    log_p = jax.nn.log_softmax(reference(params, tokens))
    loss = -jnp.mean(jnp.take_along_axis(log_p, tags[..., None], axis=-1))
    entropy = jnp.mean(-jnp.sum(jnp.exp(log_p) * log_p, axis=-1))
    return loss, {"loss": loss, "accuracy": jnp.mean(log_p.argmax(-1) == tags), "perplexity": jnp.exp(entropy)}


def check(folder):
    train, model = load(folder, "microbatches", train="step types", model="init")
    params = model.init(jax.random.key(2))
    tokens = jax.random.randint(jax.random.key(3), (32, 8), 0, 500)
    tags = tokens * 7 % 4_000
    grads, metrics = jax.grad(expected, has_aux=True)(params, tokens, tags)
    new, got = jax.jit(train.step)(params, tokens, tags)
    wrong = differs("the metrics", got, metrics)
    wrong += differs("the change of the parameters", jax.tree.map(lambda a, b: (a - b) / 0.1, params, new), grads)
    batch = jax.ShapeDtypeStruct((64, 64), jnp.int32)
    return wrong + above("bytes of temporaries", temporaries(train.step, params, batch, batch), BOUND)
