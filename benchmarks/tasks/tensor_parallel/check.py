"""The rule for the output of the model also takes that of attention, which is split over the wrong dimension.

Shown by `jaxviz collectives train.py:loss --args "*types()" --agent`.
"""

import jax
import numpy as np

from benchmarks.tasks.judging import Attempt, Edit, above, collectives, differs, load

KIND = "resharding"
RULE = '    (r"(^|/)out$", P(None, "model")),\n'
SOLUTION = Attempt(
    "only the output of the model is split as that rule says",
    (Edit("shardings.py", RULE, '    (r"^out$", P(None, "model")),\n'),),
)
WRONG = Attempt(
    "all parameters on all devices: nothing to gather, and nothing is parallel",
    (Edit("shardings.py", "NamedSharding(mesh, spec(path, x))", "NamedSharding(mesh, P())"),),
)


def expected(params, tokens):
    import jax.numpy as jnp

    x = params["embed"][tokens[:, :-1]]
    norm = lambda x: x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    for w in params["layers"]:
        y = norm(x)
        q, k, v = (jnp.einsum("btd,dhk->bhtk", y, w["attention"]["qkv"][:, i]) for i in range(3))
        scores = jax.nn.softmax(q @ k.mT / 4, where=jnp.tri(x.shape[1], dtype=bool), axis=-1)
        x = x + jnp.einsum("bhtk,hkd->btd", scores @ v, w["attention"]["out"])
        x = x + jax.nn.gelu(norm(x) @ w["mlp"]["up"]) @ w["mlp"]["down"]
    log_p = jax.nn.log_softmax(norm(x) @ params["out"])
    return -jnp.mean(jnp.take_along_axis(log_p, tokens[:, 1:, None], axis=-1))


def check(folder):
    train, model, _ = load(folder, "tensor_parallel", train="types compiled", model="init loss", shardings="shardings")
    params = model.init(jax.random.key(4))
    tokens = jax.random.randint(jax.random.key(5), (8, 33), 0, 512)
    got = jax.value_and_grad(model.loss)(params, tokens)
    wrong = differs("the loss and its gradient", got, jax.value_and_grad(expected)(params, tokens))
    types, _ = train.types(8)
    if jax.tree.map(lambda x: x.shape, types) != jax.tree.map(lambda x: x.shape, params):
        return [*wrong, "the parameters have other shapes"]
    size = lambda shape: int(np.prod(shape))
    layers = [x for name in ("layers", "out") for x in jax.tree.leaves(types[name])]
    share = sum(size(x.sharding.shard_shape(x.shape)) for x in layers) / sum(size(x.shape) for x in layers)
    wrong += above("the part of the parameters on a device", round(share, 3), 1 / 6)
    out = jax.tree.map(lambda x: x.sharding, types)
    compiled = jax.jit(jax.grad(model.loss), out_shardings=out).lower(types, train.types(8)[1]).compile()
    found = collectives(compiled.as_text())
    unwanted = {kind: n for kind, n in found.items() if kind not in ("all-reduce", "reduce-scatter")}
    return wrong + [f"{n} × {kind}" for kind, n in unwanted.items()]
