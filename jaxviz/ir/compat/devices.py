"""Named axes, `shard_map`, and the devices that a jaxpr is run on."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding

from jaxviz.ir.compat.custom_rules import Axis
from jaxviz.ir.compat.jaxprs import device_put_p
from jaxviz.ir.compat.private import _batching, _config, _core, _mesh, _pxla, _shard_map
from jaxviz.ir.compat.values import aval_of, is_tracer
from jaxviz.ir.syntax import Operation


def manual_axes() -> tuple[frozenset[Any], bool]:
    """The axes of the enclosing `shard_map`, and whether its types say what varies along them (check_vma)."""
    return frozenset(jax.sharding.get_abstract_mesh().manual_axes), bool(_config._check_vma.value)


def axis_names(params: Mapping[str, Any]) -> set[Any]:
    """The axis names in an operation's own params, such as a collective's, without those in its bodies."""
    names: set[Any] = set()
    for key in ("axes", "axis_name"):
        value = params.get(key)
        names.update(value if isinstance(value, tuple) else (value,))
    return {a for a in names if a is not None and not isinstance(a, (int, np.integer))}


def varying_everywhere(x: Any) -> Any:
    """A value that varies along all axes of the enclosing `shard_map`, if types record that."""
    axes, typed = manual_axes()
    for name in sorted(axes, key=str) if typed else ():
        if name not in jax.typeof(x).mat.varying:
            x = jax.lax.pcast(x, (name,), to="varying")
    return x


def is_array_like(x: Any) -> bool:
    """Whether it may be an argument or a result of a traced function."""
    try:
        aval_of(x)
    except TypeError:
        return False
    return True


def is_unreduced(aval: Any) -> bool:
    """Whether a value is still to be summed over devices."""
    mat = getattr(aval, "mat", None)
    return mat is not None and bool(mat.unreduced)


def devices_of(operation: Operation) -> dict[Any, int]:
    """The axes that a `shard_map` maps over, each with its size, in the order in which `axis_index` counts devices."""
    mesh, names = operation.params["mesh"], _mapped_over(operation)
    return {name: mesh.shape[name] for name in mesh.axis_names if name in names}


def _mapped_over(operation: Operation) -> Any:
    with operation.context.manager:
        return _shard_map._all_newly_manual_mesh_names(operation.params["mesh"], operation.params["newly_manual_axes"])


@contextlib.contextmanager
def inside_shard_map(operation: Operation) -> Iterator[Any]:
    """JAX's state while it processes the body of a `shard_map`: its axes, its mesh, and whether types record what
    varies.

    Yields:

    the names of the axes that it maps over.
    """
    mesh, manual = operation.params["mesh"], operation.params["newly_manual_axes"]
    names = _mapped_over(operation)
    with (
        operation.context.manager,
        _shard_map._extend_axis_env(mesh, manual),
        _mesh.use_abstract_mesh(_shard_map._as_manual_mesh(mesh, manual)),
        _config._check_vma(operation.params["check_vma"]),
    ):
        yield names


def on_each_device(operation: Operation, fun: Callable[..., Sequence[Any]]) -> Callable[..., Any]:
    """A `shard_map` with another body, a function, whose results are stacked over devices along the first dimension, in
    the order of `devices_of`."""
    p = operation.params
    names = tuple(devices_of(operation))

    def body(*xs: Any) -> list[Any]:
        return [jax.lax.expand_dims(varying_everywhere(x), (0,)) for x in fun(*xs)]

    def mapped(*operands: Any) -> Any:
        with operation.context.manager:
            return jax.shard_map(
                body, mesh=p["mesh"], in_specs=tuple(p["in_specs"]), out_specs=jax.sharding.PartitionSpec(names),
                axis_names=set(names), check_vma=p["check_vma"],
            )(*operands)  # fmt: skip

    return mapped


def type_per_device(aval: Any, spec: Any, params: Mapping[str, Any]) -> Any:
    """The type of one device's part of an input of a `shard_map`."""
    return _core.shard_aval(params["mesh"], params["newly_manual_axes"], params["check_vma"], spec, aval)


def type_of_all(aval: Any, spec: Any, params: Mapping[str, Any]) -> Any:
    """The type of all devices' results together, each of type `aval`."""
    return _core.unshard_aval(params["mesh"], params["check_vma"], spec, aval)


def residual_spec(aval: Any, names: Any, params: Mapping[str, Any]) -> Any:
    """How the devices' values are concatenated: along the first dimension, over the axes along which they vary, or all
    of `names` if types do not record that."""
    return aval.nospec(params["mesh"], params["check_vma"], names)


def replicated_spec(aval: Any) -> Any:
    return _shard_map._repspec(aval)


def effects_outside(effects: Iterable[Any], mesh: Any) -> frozenset[Any]:
    """The effects of a body that concern more than the axes of its mesh."""
    return frozenset(_core.filter_named_axis_effects(set(effects), mesh.axis_names))


def axes_summed(spec: Any, params: Mapping[str, Any]) -> tuple[Any, ...]:
    """The axes along which each device has the same value, so that without types a cotangent is summed over them."""
    return tuple(_shard_map._unmentioned2(params["mesh"], spec, params["newly_manual_axes"]))


def mapped_specs(specs: Sequence[Any], dims: Sequence[int | None], axis: Axis, what: str) -> list[Any]:
    """The specs of values that have a new mapped dimension; jax's ValueError if the axis is in use already."""
    names = axis.spmd_name or axis.explicit_mesh_axis
    used = {n for spec in specs for n in _shard_map.used_axis_names(spec)}
    if names is not None and used.intersection(names):
        kind = "vmap spmd_axis_name" if axis.spmd_name is not None else "vmapped away explicit mesh axis"
        raise ValueError(f"{kind} cannot appear in shard_map {what}")
    return [s if d is None else _pxla.batch_spec(s, d, axis.spmd_name) for s, d in zip(specs, dims, strict=True)]


def axis_per_device(axis: Axis, mesh: Any) -> Axis:
    """A mapped axis on one device of a mesh: its part, if `spmd_axis_name` shards it over the mesh."""
    if axis.spmd_name is None:
        return axis
    n = math.prod(mesh.shape[name] for name in axis.spmd_name)
    return _batching.AxisData(axis.name, axis.size // n, axis.spmd_name, axis.explicit_mesh_axis)


def abstract_moves(jaxpr: Any) -> list[int]:
    """The equations of a jaxpr that move values to the devices of an abstract mesh: the transposes of moves between
    memories."""
    moves = ((i, e.params["devices"]) for i, e in enumerate(jaxpr.eqns) if e.primitive is device_put_p)
    return [i for i, devices in moves if any(map(_is_abstract, devices))]


def output_shardings(compiled: Any, n: int) -> list[Any]:
    """The shardings of the arrays of a compiled program's results.

    What is then in its arguments of mutable types comes before them, which `compiled.output_shardings` fails on.

    Args:
      n: how many arrays the results are.
    """
    try:
        return list(jax.tree.leaves(compiled.output_shardings))
    except ValueError:
        shardings = compiled._executable._out_shardings
        return list(shardings[len(shardings) - n :])


def on_meshes_of(values: Iterable[Any], jaxpr: Any, moves: Iterable[int]) -> Any:
    """A jaxpr whose moves go to the devices of these values, or of the mesh that is set: outside `jit`, JAX does not
    move to an abstract mesh.

    Args:
      values: its arguments and constants.
      jaxpr, moves: the jaxpr, and the equations from `abstract_moves`.
    """
    placed = [getattr(x, "sharding", None) for x in values if isinstance(x, jax.Array) and not is_tracer(x)]
    meshes = [s.mesh for s in placed if isinstance(s, NamedSharding)]
    of = {mesh.abstract_mesh: mesh for mesh in (_mesh.get_concrete_mesh(), *meshes)}
    on_mesh = lambda d: NamedSharding(of[d.mesh], d.spec, memory_kind=d.memory_kind)
    eqns = list(jaxpr.eqns)
    for i in moves:
        devices = [on_mesh(d) if _is_abstract(d) and d.mesh in of else d for d in eqns[i].params["devices"]]
        eqns[i] = eqns[i].replace(params={**eqns[i].params, "devices": tuple(devices)})
    return jaxpr.replace(eqns=eqns)


def _is_abstract(sharding: Any) -> bool:
    return isinstance(getattr(sharding, "mesh", None), AbstractMesh)


def jaxpr_as_fun(jaxpr: Any) -> Callable[..., list[Any]]:
    """The function of a ClosedJaxpr, like `jax.extend.core.jaxpr_as_fun`, but with the user's `jax_debug_nans`.

    JAX's function switches it off while it runs, and afterwards it stays off in this thread for calls whose program is
    already compiled.
    """
    moves = abstract_moves(jaxpr.jaxpr)

    def fun(*args: Any) -> list[Any]:
        opened = on_meshes_of((*jaxpr.consts, *args), jaxpr.jaxpr, moves) if moves else jaxpr.jaxpr
        return list(_core.eval_jaxpr(opened, jaxpr.consts, *args))

    return fun
