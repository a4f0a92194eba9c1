"""Where a function runs, and how its residuals are laid out over devices: into how many parts each is divided."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxviz.derivation import Derivation
from jaxviz.higher_order import bodies, of
from jaxviz.higher_order.jit import JIT
from jaxviz.higher_order.shard_map import SHARD_MAP
from jaxviz.ir import compat
from jaxviz.ir.emit import as_function
from jaxviz.ir.stack import usual_stack
from jaxviz.ir.syntax import Atom, Literal, Program
from jaxviz.progress import counting
from jaxviz.report.tables import device_names, device_text


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a function runs.

    Args:
      devices: such as 'cpu:0', in their order.
      chosen_by: what decided that.
    """

    devices: tuple[str, ...]
    chosen_by: str

    def __str__(self) -> str:
        return f"{device_text(self.devices)}, {self.chosen_by}"


def placement_of(derivation: Derivation) -> Placement:
    """Where a derived function runs, called with the arguments that it was derived for.

    As in JAX: where its arguments lie that were put somewhere; else on the mesh that it names; else on the default device.
    """
    for name, v, sharding in zip(derivation.primal.arg_names, derivation.primal.invars, derivation.placed, strict=True):
        if sharding is not None:
            path = name or v.aval.str_short(short_dtypes=True)
            return Placement(device_names(sharding.device_set), f"where its argument {path} lies")
    for params in _params_in(derivation.primal):
        found = _devices_named(params)
        if found:
            return Placement(device_names(found), "the mesh that it names")
    default = jax.config.jax_default_device  # type: ignore[attr-defined]
    device = default if isinstance(default, jax.Device) else jax.devices(default)[0]
    return Placement(device_names([device]), "the default device")


def _params_in(program: Program) -> list[Mapping[str, Any]]:
    """Those of all equations, nested ones too; of several that are of one operation once."""
    return [operation.params for operation in dict.fromkeys(e.operation for _, e in program.walk())]


def _devices_named(params: Mapping[str, Any]) -> set[Any]:
    mesh = params.get("mesh")
    if isinstance(mesh, jax.sharding.Mesh):
        return set(mesh.devices.flat)
    return {
        d
        for s in _shardings(params)
        if not (isinstance(s, jax.sharding.NamedSharding) and isinstance(s.mesh, jax.sharding.AbstractMesh))
        for d in s.device_set
    }


def spans_devices(derivation: Derivation) -> bool:
    """Whether a function runs on more than one device, as far as its arguments and its program tell."""
    if any(_is_spread(s) for s in derivation.placed):
        return True
    return any(map(_names_devices, _params_in(derivation.primal)))


def _is_spread(sharding: Any) -> bool:
    return sharding is not None and sharding.num_devices > 1


def _names_devices(params: Mapping[str, Any]) -> bool:
    mesh = params.get("mesh")
    return (mesh is not None and getattr(mesh, "size", 1) > 1) or any(map(_is_spread, _shardings(params)))


def _shardings(params: Mapping[str, Any]) -> list[jax.sharding.Sharding]:
    named = [params.get("sharding"), *(params.get("in_shardings") or ()), *(params.get("out_shardings") or ())]
    return [s for s in named if isinstance(s, jax.sharding.Sharding)]


def parts_of(derivation: Derivation, atoms: Sequence[Atom]) -> list[int | None]:
    """Into how many parts each of some values of the forward program is divided; 1 for one that each device has whole.

    None where the program does not say, but leaves it to XLA: see `compiled_parts`.
    """
    forward = derivation.forward
    placed: dict[Atom, int | None] = {
        v: _parts(s, v.aval) for v, s in zip(forward.invars, derivation.placed, strict=True) if _is_spread(s)
    }
    find = _Parts()
    return [find(forward, a, lambda v: placed.get(v)) for a in atoms]


class _Parts:
    def __init__(self) -> None:
        self.producers: dict[Program, dict[Atom, tuple[Any, int]]] = {}

    def __call__(self, program: Program, atom: Atom, of_input: Callable[[Atom], int | None]) -> int | None:
        if isinstance(atom, Literal):
            return None
        if program not in self.producers:
            self.producers[program] = {v: (e, k) for e in program.equations for k, v in enumerate(e.outvars)}
        made = self.producers[program].get(atom)
        typed = _parts_by_type(atom.aval)
        if made is None or typed is not None:
            return of_input(atom) if typed is None else typed
        equation, place = made
        params = equation.params
        if of(equation) is SHARD_MAP:
            mesh = params["mesh"]
            on_one = self(params["jaxpr"], params["jaxpr"].outvars[place], lambda _: None)
            if on_one is None and len(params["newly_manual_axes"]) < len(mesh.axis_names):
                return None  # over the other axes XLA may divide it further
            parts = _parts_of_spec(params["out_specs"][place], mesh)
            return parts * (on_one or 1) if parts is not None else None
        asked = params["out_shardings"][place] if of(equation) is JIT else None
        if equation.primitive is compat.sharding_constraint_p:
            asked = params["sharding"]
        if isinstance(asked, jax.sharding.Sharding):
            return _parts(asked, atom.aval)
        inside = [b for b in bodies(equation) if b.has_results]
        if len(inside) != 1:
            return None
        body = inside[0]
        operand_of = {v: equation.invars[i] for v, i in zip(body.program.invars, body.operands, strict=True)}

        def of_operand(v: Atom) -> int | None:
            return self(program, operand_of[v], of_input) if v in operand_of else None

        return self(body.program, body.program.outvars[place], of_operand)


def _parts(sharding: Any, aval: Any) -> int | None:
    if isinstance(sharding, jax.sharding.NamedSharding):
        return _parts_of_spec(sharding.spec, sharding.mesh)
    return int(math.prod(aval.shape) // max(1, math.prod(sharding.shard_shape(aval.shape))))


def _parts_of_spec(spec: Any, mesh: Any) -> int | None:
    if jax.sharding.PartitionSpec.UNCONSTRAINED in spec:
        return None
    axes = [a for names in spec if names is not None for a in (names if isinstance(names, tuple) else (names,))]
    return int(math.prod(mesh.shape[a] for a in axes))


def _parts_by_type(aval: Any) -> int | None:
    """For a value whose type says how it is laid out, over a mesh of explicit axes."""
    sharding = getattr(aval, "sharding", None)
    if sharding is None or jax.sharding.AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    return _parts_of_spec(sharding.spec, sharding.mesh)


def input_types(derivation: Derivation) -> list[jax.ShapeDtypeStruct]:
    """The types of a function's inputs, to compile it for, with the layout of those that lie on several devices."""
    return [
        jax.ShapeDtypeStruct(
            v.aval.shape, v.aval.dtype, sharding=s if _is_spread(s) else None, weak_type=v.aval.weak_type
        )
        for v, s in zip(derivation.primal.invars, derivation.placed, strict=True)
    ]


@usual_stack
def compiled_parts(derivation: Derivation) -> list[int | None]:
    """Into how many parts each residual is divided where the forward program is compiled by itself, on these devices.

    Raises:
      what compiling raises.
    """
    forward, inputs = derivation.forward, input_types(derivation)
    with counting("compiling"):
        compiled = jax.jit(as_function(forward), keep_unused=True).lower(*inputs).compile()
    shardings: dict[Atom, Any] = dict(zip(forward.outvars, jax.tree.leaves(compiled.output_shardings), strict=True))
    shardings |= zip(forward.invars, jax.tree.leaves(compiled.input_shardings), strict=True)
    return [_parts(shardings[a], a.aval) for a in derivation.linearized.residuals]
