"""The params of an equation as lines of text, and the shardings of its operands and results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from jax.sharding import AxisType, NamedSharding, PartitionSpec, Sharding
from jax.tree_util import PyTreeDef

from jaxviz.higher_order import of
from jaxviz.higher_order.jit import JIT
from jaxviz.higher_order.shard_map import SHARD_MAP
from jaxviz.ir import compat
from jaxviz.ir.syntax import Equation
from jaxviz.report.tables import shortened


def called(equation: Equation) -> str:
    """The name of the function that an equation with nested programs calls, such as the `f` of a jit; or ''."""
    return str(equation.params.get("name", "")) if equation.programs else ""


def visible_params(equation: Equation) -> list[str]:
    """`name=value` for each param of interest, axes first; for each axis of a shard_map `i=8`."""
    if of(equation) is JIT:
        shardings = (n for n in ("in_shardings", "out_shardings") if any(map(_is_sharding, equation.params[n])))
        return [
            f"name={equation.params.get('name', '')}",
            *(f"{n}={_param_text(equation.params[n])}" for n in shardings),
        ]
    if of(equation) is SHARD_MAP:
        return _shard_map_params(equation.params)
    if "_prim" in equation.params:
        return [f"{name}={_param_text(value)}" for name, value in compat.hi_params(equation.params).items()]
    shown: list[str] = []
    nested = {label.split("[")[0] for label, _ in equation.programs}
    names = sorted(equation.params, key=lambda name: not compat.axis_names({name: equation.params[name]}))
    for name in names:
        value = equation.params[name]
        if name not in nested and value is not None and not isinstance(value, PyTreeDef):  # such as of indices
            shown.append(f"{name}={_param_text(value)}")
    return shown


def _shard_map_params(params: Mapping[str, Any]) -> list[str]:
    mesh, axes, others = params["mesh"], *_mapped_axes(params)
    shown = [_mesh_text(mesh, axes)]
    if others:
        shown.append(f"others=({_mesh_text(mesh, others)})")
    if not params["check_vma"]:
        shown.append("check_vma=False")
    return shown + [f"{name}={_param_text(params[name])}" for name in ("in_specs", "out_specs")]


def _mapped_axes(params: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """The axes of its mesh that a shard_map maps over, and those that no enclosing shard_map maps over either."""
    mesh, mapped = params["mesh"], params["newly_manual_axes"]
    types = zip(mesh.axis_names, mesh.axis_types, strict=True)
    others = [a for a, kind in types if a not in mapped and kind != AxisType.Manual]
    return [a for a in mesh.axis_names if a in mapped], others


def _mesh_text(mesh: Any, axes: Iterable[Any]) -> str:
    return " ".join(f"{a}={mesh.shape[a]}" for a in axes)


def layouts(params: Mapping[str, Any]) -> list[str]:
    """What runs the body of a shard_map, then the sharding of each operand and each result."""
    axes, others = _mapped_axes(params)
    place = f"place along {', '.join(map(str, axes))}" if others else "device"
    return [place, *map(_spec_text, (*params["in_specs"], *params["out_specs"]))]


def _spec_text(spec: Any) -> str:
    return str(spec).replace(",)", ")")


def nbytes_per_device(aval: Any) -> int:
    """The bytes of a value on one device, or -1 if its type is not sharded."""
    sharding: Any = getattr(aval, "sharding", None)
    if not _is_sharding(sharding) or all(part is None for part in sharding.spec.partitions):
        return -1
    return int(math.prod(sharding.shard_shape(aval.shape)) * aval.dtype.itemsize)


def _param_text(value: Any, limit: int = 200) -> str:
    name = None if hasattr(value, "dtype") else getattr(value, "__name__", None)
    return shortened(" ".join(str(name or _layout_text(value)).split()), limit)


def _is_sharding(value: Any) -> bool:
    return isinstance(value, Sharding)


def _layout_text(value: Any) -> Any:
    """A short form of a sharding, a spec, or a tuple of them; anything else as it is."""
    if isinstance(value, PartitionSpec):
        return _spec_text(value)
    if isinstance(value, NamedSharding):
        kind = value.memory_kind
        where = f" in {kind}" if kind not in (None, "device") else ""
        return f"{_spec_text(value.spec)} over {_mesh_text(value.mesh, value.mesh.axis_names)}{where}"
    if value is compat.UNSPECIFIED:
        return "_"
    if isinstance(value, tuple) and any(isinstance(v, (PartitionSpec, NamedSharding)) for v in value):
        return f"({', '.join(str(_layout_text(v)) for v in value)})"
    return value
