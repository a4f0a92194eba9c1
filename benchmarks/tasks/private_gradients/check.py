"""A gradient of all parameters for each example at once, where a sum of clipped ones is enough.

Shown by `jaxviz compiled-memory step.py:private_step --args "*types()" --agent`.
"""

import jax
import jax.numpy as jnp

from benchmarks.tasks.judging import Attempt, Edit, above, differs, load, temporaries

KIND = "out of memory"
BOUND = 40_000_000
OLD = """    value, grads = jax.vmap(jax.value_and_grad(loss), (None, 0, 0))(params, images, labels)
    grads = jax.vmap(clipped)(grads)
    total = noisy(key, jax.tree.map(lambda g: jnp.sum(g, axis=0), grads))"""
SOLUTION = Attempt(
    "a scan that adds the clipped gradients up",
    (
        Edit("step.py", OLD, """    def add(total, example):
        value, grads = jax.value_and_grad(loss)(params, *example)
        return jax.tree.map(jnp.add, total, clipped(grads)), value

    total, value = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), (images, labels))
    total = noisy(key, total)"""),
    ),
)  # fmt: skip
WRONG = Attempt(
    "the mean gradient is clipped, and not that of each example: small, fast, and not private",
    (
        Edit("step.py", OLD, """\
    mean = lambda p: jnp.mean(jax.lax.map(lambda a: jax.checkpoint(loss)(p, *a), (images, labels)))
    value, grads = jax.value_and_grad(mean)(params)
    total = noisy(key, jax.tree.map(lambda g: g * len(labels), clipped(grads)))"""),
    ),
)  # fmt: skip


def expected(loss, params, images, labels, key):
    total, values = jax.tree.map(jnp.zeros_like, params), []
    for image, label in zip(images, labels, strict=True):
        value, g = jax.value_and_grad(loss)(params, image, label)
        norm = jnp.linalg.norm(jnp.concatenate([x.ravel() for x in jax.tree.leaves(g)]))
        total = jax.tree.map(lambda t, g: t + g / jnp.maximum(norm, 1.0), total, g)
        values.append(value)
    keys = dict(zip(sorted(params), jax.random.split(key, len(params)), strict=True))
    new = {
        k: p - 0.05 * (total[k] + 0.5 * jax.random.normal(keys[k], p.shape)) / len(labels) for k, p in params.items()
    }
    return jnp.mean(jnp.stack(values)), new


def reference_loss(params, image, label):
    x = image[None]
    for name in ("conv1", "conv2"):
        numbers = jax.lax.conv_dimension_numbers(x.shape, params[name].shape, ("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, params[name], (1, 1), "SAME", dimension_numbers=numbers))
        b, h, w, c = x.shape
        x = x.reshape(b, h // 2, 2, w // 2, 2, c).max((2, 4))
    return -jax.nn.log_softmax(jax.nn.relu(x.ravel() @ params["dense"]) @ params["out"])[label]


def check(folder):
    step, model = load(folder, "private_gradients", step="private_step types", model="init loss")
    params = model.init(jax.random.key(7))
    images = jax.random.normal(jax.random.key(8), (6, 28, 28, 1)) * jnp.linspace(0.05, 3.0, 6).reshape(6, 1, 1, 1)
    args = params, images, jnp.array([1, 2, 3, 4, 5, 5]), jax.random.key(9)
    (value, new), (value_0, new_0) = step.private_step(*args), expected(reference_loss, *args)
    moved = lambda new: jax.tree.map(jnp.subtract, new, params)
    wrong = differs("the loss", value, value_0) + differs("the change of the parameters", moved(new), moved(new_0))
    of = jax.ShapeDtypeStruct
    types = params, of((64, 28, 28, 1), jnp.float32), of((64,), jnp.int32), args[-1]
    return wrong + above("bytes of temporaries", temporaries(step.private_step, *types), BOUND)
