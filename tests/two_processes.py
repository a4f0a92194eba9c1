"""Derived gradients over eight devices: the programs, and a worker that runs them as one of two processes with four
devices each.

Run as `python two_processes.py COORDINATOR PROCESS OUTFILE`.
"""

from __future__ import annotations

import os
import sys
import traceback

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxviz

N_DEVICES = 8
PARAMS = {"w": np.linspace(-0.5, 0.5, 12, dtype=np.float32).reshape(4, 3), "b": np.float32([0.1, -0.2, 0.3])}
X = np.linspace(0.1, 1.6, 64, dtype=np.float32).reshape(16, 4)
Y = np.linspace(-1.0, 1.0, 48, dtype=np.float32).reshape(16, 3)


def loss(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w"] + params["b"]) - y) ** 2)


def loss_of_one_device(params, x, y):
    """The mean over all devices; also their number, counted in two ways."""
    return lax.pmean(loss(params, x, y), "i"), (lax.psum(1, "i"), lax.axis_size("i"))


def global_arrays(mesh):
    """The arguments, of which a process holds only the shards on its own devices; and their shardings."""
    whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("i"))
    shardings = ({"w": whole, "b": whole}, rows, rows)
    place = lambda x, sharding: jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
    return jax.tree.map(place, (PARAMS, X, Y), shardings), shardings


def rows_of_own_devices(mesh):
    """For `pmap` each process passes the rows of its own devices, with these along the first dimension."""
    own = np.array([d.process_index == jax.process_index() for d in mesh.devices])
    return [a.reshape(N_DEVICES, -1, a.shape[-1])[own] for a in (X, Y)]


def with_shard_map(m, mesh):
    specs = {"in_specs": (P(), P("i"), P("i")), "out_specs": (P(), (P(), P()))}
    mapped = jax.shard_map(loss_of_one_device, mesh=mesh, **specs)
    return jax.jit(m.value_and_grad(mapped, (0, 1), has_aux=True))(*global_arrays(mesh)[0])


def with_shardings(m, mesh):
    args, shardings = global_arrays(mesh)
    results = NamedSharding(mesh, P()), shardings[:2]
    return jax.jit(m.value_and_grad(loss, (0, 1)), in_shardings=shardings, out_shardings=results)(*args)


def with_pmap(m, mesh):
    derived = m.value_and_grad(loss_of_one_device, (0, 1), has_aux=True)
    return jax.pmap(derived, axis_name="i", in_axes=(None, 0, 0))(PARAMS, *rows_of_own_devices(mesh))


def pmap_derived(m, mesh):
    def total(params, x, y):
        losses, (n, _) = jax.pmap(loss_of_one_device, axis_name="i", in_axes=(None, 0, 0))(params, x, y)
        return jnp.sum(losses * n)

    return m.value_and_grad(total, (0, 1))(PARAMS, *rows_of_own_devices(mesh))


PROGRAMS = (with_shard_map, with_shardings, with_pmap, pmap_derived)
PER_PROCESS = ("pmap_derived",)
"""While tracing, JAX considers a pmap to be over the devices of its own process only."""


def held_here(x):
    """What this process holds of an array: everything, or its rows."""
    if x.ndim == 0:
        return np.asarray(x.addressable_data(0))
    rows = {s.index[0].start or 0: s.data for s in x.addressable_shards}
    return np.concatenate([rows[start] for start in sorted(rows)])


def run(m):
    """For each program, what this process holds of the leaves of its result.

    Args:
      m: `jax` or `jaxviz`.
    """
    mesh = Mesh(np.array(jax.devices()[:N_DEVICES]), ("i",))
    results = {}
    for program in PROGRAMS:
        for path, x in jax.tree_util.tree_leaves_with_path(program(m, mesh)):
            results[f"{program.__name__} {jax.tree_util.keystr(path)}"] = held_here(x)
    return results


def main(coordinator, process, outfile):
    # "[::]", the coordinator's default address, does not exist on a machine without IPv6.
    jax.distributed.initialize(coordinator, 2, int(process), coordinator_bind_address=coordinator)
    assert (jax.local_device_count(), jax.device_count()) == (N_DEVICES // 2, N_DEVICES)
    np.savez(outfile, **{f"{m.__name__} {name}": x for m in (jax, jaxviz) for name, x in run(m).items()})
    jax.distributed.shutdown()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # immediately: JAX's own shutdown waits for the other process
