"""The log is in the carry of a checkpointed scan, so each step saves the whole of it.

Shown by `jaxviz residuals fit.py:misfit --args "*types()" --agent`.
After jax#15906.
"""

import jax
import jax.numpy as jnp

from benchmarks.tasks.judging import Attempt, Edit, above, differs, load, temporaries

KIND = "out of memory"
BOUND = 12_000_000
BODY = """        positions, velocities, log = state
        earlier = jnp.where(i < DELAY, first, log["positions"][i - DELAY])
        positions, velocities = leapfrog(charges, positions, velocities, earlier)
        return (positions, velocities, record(log, i, positions, velocities)), None

    (_, _, log), _ = jax.lax.scan(step, (positions, velocities, log), jnp.arange(steps))
    return log["positions"], log["energy"]"""
CHECKPOINT = "    @partial(jax.checkpoint, static_argnums=())\n"
SOLUTION = Attempt(
    "the carry has the last few positions, and the scan stacks what is recorded",
    (
        Edit("simulation.py", BODY, """        positions, velocities, last = state
        positions, velocities = leapfrog(charges, positions, velocities, last[0])
        last = jnp.concatenate([last[1:], positions[None]])
        return (positions, velocities, last), (positions, 0.5 * jnp.sum(velocities**2))

    last = jnp.broadcast_to(first, (DELAY, *first.shape))
    return jax.lax.scan(step, (positions, velocities, last), jnp.arange(steps))[1]"""),
    ),
)  # fmt: skip
WRONG = Attempt(
    "no checkpoint: the log is not saved any more, but the distances of all pairs are, in each step",
    (Edit("simulation.py", CHECKPOINT, ""),),
)


def expected(charges, start, observed):
    x, v = start
    rows, energies = [], []

    def force(x, earlier):
        d = x[:, None] - earlier
        r2 = jnp.sum(d * d, -1) + 1e-2
        return jnp.einsum("i,j,ij,ijk->ik", charges, charges, r2**-1.5, d)

    for i in range(len(observed)):
        earlier = start[0] if i < 4 else rows[i - 4]
        v = v + 5e-4 * force(x, earlier)
        x = x + 1e-3 * v
        v = v + 5e-4 * force(x, earlier)
        rows.append(x)
        energies.append(0.5 * jnp.sum(v * v))
    energy = jnp.stack(energies)
    return jnp.mean((jnp.stack(rows) - observed) ** 2) + 1e-4 * jnp.mean((energy - energy[0]) ** 2)


def check(folder):
    fit, simulation = load(folder, "long_rollout", fit="misfit types", simulation="simulate")
    keys = jax.random.split(jax.random.key(3), 4)
    start = jax.random.uniform(keys[0], (5, 3)), jax.random.normal(keys[1], (5, 3))
    args = 3 * jax.random.normal(keys[2], (5,)), start, jax.random.normal(keys[3], (8, 5, 3))
    got = jax.value_and_grad(fit.misfit)(*args)
    wrong = differs("the misfit and its gradient", got, jax.value_and_grad(expected)(*args))
    trajectory, energy = simulation.simulate(args[0], *start, 8)
    if (trajectory.shape, energy.shape) != ((8, 5, 3), (8,)):
        wrong.append("`simulate` does not return the trajectory and the energies")
    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    types = f32(32), (f32(32, 3), f32(32, 3)), f32(1_000, 32, 3)
    return wrong + above("bytes of temporaries", temporaries(jax.grad(fit.misfit), *types), BOUND)
