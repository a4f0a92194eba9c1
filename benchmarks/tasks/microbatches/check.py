"""The scan over microbatches stacks the probabilities of all classes, for the metrics, which need two numbers of them.

Shown by `jaxviz compiled-memory train.py:step --args "*types()" --agent`.
After public threads on accumulated gradients that save no memory.
"""

import flax.linen as nn
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


class Reference(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(500, 64, name="Embed_0")(tokens)
        for i in range(2):
            y = nn.Conv(64, (3,), name=f"Conv_{i}")(nn.LayerNorm(name=f"LayerNorm_{i}")(x))
            x = x + nn.Dense(64, name=f"Dense_{i}")(nn.gelu(y))
        return nn.Dense(4_000, name="Dense_2")(nn.LayerNorm(name="LayerNorm_2")(x))


def expected(params, tokens, tags):
    log_p = jax.nn.log_softmax(Reference().apply(params, tokens))
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
