"""The replicated weights meet the varying state within the scan, so their gradients are summed in each iteration.

Shown by `jaxviz collectives rnn.py:loss --args "*types()" --agent`.
"""

import jax
import jax.numpy as jnp

from benchmarks.tasks.judging import Attempt, Edit, above, differs, equations, load

KIND = "resharding"
BEFORE = '        h = jnp.zeros((xs.shape[0], WIDTH)) + params["start"]\n'
SOLUTION = Attempt(
    "the weights are made varying before the scan, so that the sum is after its transpose",
    (Edit("rnn.py", BEFORE, '        params = jax.lax.pcast(params, "data", to="varying")\n' + BEFORE),
     Edit("rnn.py", '        h = jax.lax.pcast(h, "data", to="varying")\n', "")),
)  # fmt: skip
WRONG = Attempt(
    "no sum at all: each device's loss, and gradients of its own part of the batch",
    (Edit("rnn.py", '        return jax.lax.pmean(jnp.mean(losses), "data")', "        return jnp.mean(losses)"),
     Edit("rnn.py", "out_specs=P())", "out_specs=P(), check_vma=False)")),
)  # fmt: skip
OVER_DEVICES = "psum all_gather reduce_scatter all_to_all ppermute pmax pmin"


def expected(params, xs, ys):
    h, total = jnp.broadcast_to(params["start"], (len(xs), 32)), 0.0
    for x, y in zip(jnp.swapaxes(xs, 0, 1), jnp.swapaxes(ys, 0, 1), strict=True):
        z = x @ params["input"] + h @ params["state"] + params["bias"]
        gate = jax.nn.sigmoid(z[:, :32])
        h = gate * h + (1 - gate) * jnp.tanh(z[:, 32:])
        total += jnp.mean((h @ params["out"] - y) ** 2)
    return total / xs.shape[1]


def check(folder):
    rnn, cells = load(folder, "sharded_scan", rnn="make_loss types", cells="init")
    loss = rnn.make_loss()
    params = cells.init(jax.random.key(3))
    xs = jax.random.normal(jax.random.key(4), (8, 6, 8))
    args = params, xs, jnp.cos(xs.sum(-1)) * jnp.arange(8)[:, None]
    wrong = differs("the loss and its gradient", jax.value_and_grad(loss)(*args), jax.value_and_grad(expected)(*args))
    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    jaxpr = jax.make_jaxpr(jax.grad(loss))(params, f32(16, 64, 8), f32(16, 64)).jaxpr
    kinds = tuple(OVER_DEVICES.split())
    times = sum(n for e, n in equations(jaxpr) if e.primitive.name.startswith(kinds))
    if times == 0:
        wrong.append("the devices do not communicate at all")
    return wrong + above("times that the devices communicate", times, 10)
