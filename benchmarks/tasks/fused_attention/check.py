"""The backward pass takes the mean of a softmax's cotangent over each chunk, and not over all keys.

Shown by `jaxviz divergence plain.py:loss --args "init(jax.random.key(0)), *batch(jax.random.key(1))" --save a.jaxviz`,
then `jaxviz divergence fused.py:loss` with the same arguments and `--against a.jaxviz --agent`.
After axon#644.
"""

import jax
import jax.numpy as jnp

from benchmarks.tasks.judging import Attempt, Edit, differs, equations, load

KIND = "divergence"
SOLUTION = Attempt(
    "the mean of all keys is the product of the result and its cotangent",
    (
        Edit("fused.py", "(q, k, v, largest", "(q, k, v, out, largest"),
        Edit("fused.py", "q, k, v, log_total", "q, k, v, out, log_total"),
        Edit("fused.py", "        mean = jnp.sum(p * p_bar, axis=-1, keepdims=True)\n", ""),
        Edit("fused.py", "    def step(q_bar, k_v):\n", """    mean = jnp.sum(out * out_bar, axis=-1, keepdims=True)

    def step(q_bar, k_v):
"""),
    ),
)  # fmt: skip
WRONG = Attempt(
    "one chunk for all keys up to 1,024: the same fault in longer ones, and the whole matrix in memory",
    (
        Edit("fused.py", "    chunk = min(chunk, len(k))\n    q = q", "    chunk = min(1024, len(k))\n    q = q"),
        Edit("fused.py", "chunk = min(chunk, len(k))\n\n    def", "chunk = min(1024, len(k))\n\n    def"),
    ),
)  # fmt: skip


def expected(params, x, y):
    q, k, v = (x @ params[name] for name in "qkv")
    return jnp.mean((jax.nn.softmax(q @ k.T / 32**0.5) @ v @ params["out"] - y) ** 2)


def check(folder):
    plain, fused = load(folder, "fused_attention", plain="init batch", fused="attention forward backward")
    params = plain.init(jax.random.key(4))
    wrong = []
    for tokens, chunk in ((32, 64), (96, 32), (160, 16)):
        x, y = jax.random.normal(jax.random.key(tokens), (2, tokens, 32))
        got = jax.value_and_grad(lambda *args: fused.loss(*args, chunk=chunk))(params, x, y)
        want = jax.value_and_grad(expected)(params, x, y)
        wrong += differs(f"{tokens} tokens in chunks of {chunk}, the loss and its gradient", got, want)
    jaxpr = jax.make_jaxpr(jax.grad(lambda *args: fused.loss(*args, chunk=16)))(params, x, y).jaxpr
    if any(v.aval.shape == (160, 160) for e, _ in equations(jaxpr) for v in e.outvars if hasattr(v.aval, "shape")):
        wrong.append("there is a matrix of all queries with all keys")
    return wrong
