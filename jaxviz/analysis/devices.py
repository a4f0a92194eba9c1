"""Where a function runs, and how its residuals are split over devices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxviz.derivation import Derivation
from jaxviz.ir import compat
from jaxviz.ir.emit import as_function
from jaxviz.ir.stack import usual_stack
from jaxviz.ir.syntax import Atom, Program
from jaxviz.report.tables import device_names, device_text
from jaxviz.runtime.stoppable import compiled_by_jax


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a function runs.

    Args:
      devices: such as 'cpu:0', in their order.
      chosen_by: what determined the devices.
    """

    devices: tuple[str, ...]
    chosen_by: str

    def __str__(self) -> str:
        return f"{device_text(self.devices)}, {self.chosen_by}"


def placement_of(derivation: Derivation) -> Placement:
    """Where a derived function runs when called with the arguments that it was derived for.

    As in JAX: on the devices of its committed arguments, or the mesh that it specifies, or the default device.
    """
    for name, v, sharding in zip(derivation.primal.arg_names, derivation.primal.invars, derivation.placed, strict=True):
        if sharding is not None and not is_abstract(sharding):
            path = name or v.aval.str_short(short_dtypes=True)
            return Placement(device_names(sharding.device_set), f"where its argument {path} is")
    for params in _params_in(derivation.primal):
        devices = _devices_named(params)
        if devices:
            return Placement(device_names(devices), "the mesh that it specifies")
    return Placement(device_names([default_device()]), "the default device")


def platform_of(derivation: Derivation) -> str:
    """The platform that it runs on, such as 'cpu'."""
    return placement_of(derivation).devices[0].partition(":")[0]


def default_device() -> jax.Device:
    """Where JAX puts what is not placed otherwise."""
    default = jax.config.jax_default_device  # type: ignore[attr-defined]
    return default if isinstance(default, jax.Device) else jax.local_devices(backend=default)[0]


def _params_in(program: Program) -> list[Mapping[str, Any]]:
    """The params of all equations, including nested ones; once per operation."""
    return [operation.params for operation in dict.fromkeys(e.operation for _, e in program.walk())]


def _devices_named(params: Mapping[str, Any]) -> set[Any]:
    mesh = params.get("mesh")
    if isinstance(mesh, jax.sharding.Mesh):
        return set(mesh.devices.flat)
    return {d for s in _shardings(params) if not is_abstract(s) for d in s.device_set}


def spans_devices(derivation: Derivation) -> bool:
    """Whether a function runs on more than one device, according to its arguments and its program."""
    if any(_is_spread(s) for s in derivation.placed):
        return True
    return any(map(_names_devices, _params_in(derivation.primal)))


def mesh_size(program: Program, placed: Sequence[Any]) -> int:
    """The number of devices of a function, according to its program and the shardings of its arguments."""
    sizes = [s.num_devices for s in placed if s is not None]
    for params in _params_in(program):
        sizes += [getattr(params.get("mesh"), "size", 1), *(s.num_devices for s in _shardings(params))]
    typed = [getattr(aval, "sharding", None) for aval in program.in_avals]
    sizes += [s.mesh.size for s in typed if isinstance(s, jax.sharding.Sharding) and not s.mesh.empty]
    return max(sizes, default=1)


def axes_named(program: Program, placed: Sequence[Any]) -> dict[str, int]:
    """The axes of the largest mesh that a function or its arguments use, each with its size."""
    named = [params.get("mesh") for params in _params_in(program)]
    named += [getattr(s, "mesh", None) for params in _params_in(program) for s in _shardings(params)]
    named += [getattr(s, "mesh", None) for s in placed]
    meshes = [dict(mesh.shape) for mesh in named if mesh is not None]
    return max(meshes, key=lambda axes: (math.prod(axes.values()), len(axes)), default={})


def is_abstract(sharding: Any) -> bool:
    """Whether a sharding is over an abstract mesh."""
    return isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh)


def _is_spread(sharding: Any) -> bool:
    return sharding is not None and sharding.num_devices > 1


def _names_devices(params: Mapping[str, Any]) -> bool:
    mesh = params.get("mesh")
    return (mesh is not None and getattr(mesh, "size", 1) > 1) or any(map(_is_spread, _shardings(params)))


def _shardings(params: Mapping[str, Any]) -> list[jax.sharding.Sharding]:
    named = [params.get("sharding"), *(params.get("in_shardings") or ()), *(params.get("out_shardings") or ())]
    return [s for s in named if isinstance(s, jax.sharding.Sharding)]


def parts_of_array(x: Any) -> int:
    """The number of parts that an array is split into."""
    return (_parts(x.sharding, x) or 1) if getattr(x, "committed", False) else 1


def _parts(sharding: Any, aval: Any) -> int | None:
    if isinstance(sharding, jax.sharding.NamedSharding):
        return _parts_of_spec(sharding.spec, sharding.mesh)
    return int(math.prod(aval.shape) // max(1, math.prod(sharding.shard_shape(aval.shape))))


def _parts_of_spec(spec: Any, mesh: Any) -> int | None:
    if jax.sharding.PartitionSpec.UNCONSTRAINED in spec.partitions:
        return None
    axes = [
        a for names in spec.partitions if names is not None for a in (names if isinstance(names, tuple) else (names,))
    ]
    return int(math.prod(mesh.shape[a] for a in axes))


def input_types(derivation: Derivation) -> list[jax.ShapeDtypeStruct]:
    """The types of a function's inputs, to compile it for, with the shardings of inputs on several devices."""
    return types_to_lower(derivation.primal, derivation.placed)


def types_to_lower(program: Program, placed: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
    """The types of a program's inputs, with the shardings of inputs on several devices."""
    return [
        compat.stand_in(v.type_with_state, s if _is_spread(s) else None)
        for v, s in zip(program.invars, placed, strict=True)
    ]


@usual_stack
def compiled_parts(derivation: Derivation) -> list[int | None]:
    """The number of parts of each residual if the forward program is compiled separately on these devices.

    Raises:
      the errors of compiling.
    """
    forward, inputs = derivation.forward, input_types(derivation)
    compiled = compiled_by_jax(jax.jit(as_function(forward), keep_unused=True).lower(*inputs))
    shardings: dict[Atom, Any] = dict(zip(forward.outvars, jax.tree.leaves(compiled.output_shardings), strict=True))
    shardings |= zip(forward.invars, jax.tree.leaves(compiled.input_shardings), strict=True)
    return [_parts(shardings[a], a.aval) for a in derivation.linearized.residuals]
