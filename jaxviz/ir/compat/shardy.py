"""Shardy, the pass by which XLA decides how values are laid out over a mesh: run on a lowered program, without
compiling it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxviz.ir.compat.private import _mlir, _passmanager, _sdy


@dataclass(frozen=True, slots=True)
class Propagated:
    """The layout of an instruction's results, or of a program's arguments.

    Args:
      path: its scopes and its name, such as `jit(f)/while/body/sin`; '' for the arguments.
      shapes: the shape of each result, whole or, in a `shard_map`, of one device's part.
      parts: over how many devices each of these is divided.
    """

    path: str
    shapes: tuple[tuple[int, ...], ...]
    parts: tuple[int, ...]


def propagated(lowered: Any) -> tuple[Propagated, list[Propagated]]:
    """The arguments of a lowered program, and its instructions one by one, as laid out by Shardy.

    Args:
      lowered: the result of `jax.jit(f).lower(...)`; it is modified in place.

    Raises:
      RuntimeError: Shardy failed.
    """
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        _passmanager.PassManager.parse("builtin.module(sdy-propagation-pipeline)").run(module.operation)
        reader = _ShardingReader(module)
        for op in operations_in(module.operation):
            reader.read_layout(op)
        return reader.arguments, reader.propagated


def operations_in(root: Any) -> list[Any]:
    """An MLIR operation and all those in it, which come first.

    Raises:
      KeyboardInterrupt: the user stops it.
    """
    operations: list[Any] = []

    def visit(op: Any) -> Any:
        operations.append(op)
        return _mlir.WalkResult.ADVANCE

    try:
        root.walk(visit)
    except RuntimeError as error:
        # What MLIR makes of any exception in the callback, and so of an interrupt.
        if KeyboardInterrupt.__name__ in str(error):
            raise KeyboardInterrupt from None
        raise
    return operations


def told_of(lowered: Any) -> str:
    """Everything in a lowered program that XLA's result depends on, apart from flags: its text, and the names of its
    instructions, without the lines."""
    module = lowered.compiler_ir("stablehlo").operation
    return "\n".join([module.get_asm(), *(_name(op.location) for op in operations_in(module))])


class _ShardingReader:
    def __init__(self, module: Any):
        self.sizes: dict[str, dict[str, int]] = {}
        """By mesh, the size of each axis."""
        self.read: dict[Any, tuple[int, ...]] = {}
        self.propagated: list[Propagated] = []
        for op in module.body.operations:
            attributes = op.operation.attributes
            if op.operation.name == "sdy.mesh":
                axes = map(_sdy.MeshAxisAttr, _sdy.MeshAttr(attributes["mesh"]).axes)
                self.sizes[str(attributes["sym_name"]).strip('"')] = {a.name: a.size for a in axes}
        (main,) = (op for op in module.body.operations if str(op.operation.attributes["sym_name"]) == '"main"')
        attributes_of = main.arg_attrs if "arg_attrs" in main.attributes else [{} for _ in main.arguments]
        parts = [self.parts([a["sdy.sharding"]])[0] if "sdy.sharding" in a else 1 for a in attributes_of]
        self.arguments = Propagated("", tuple(tuple(a.type.shape) for a in main.arguments), tuple(parts))

    def read_layout(self, op: Any) -> None:
        shapes = tuple(tuple(r.type.shape) if isinstance(r.type, _mlir.RankedTensorType) else () for r in op.results)
        if shapes:
            attributes = op.attributes
            layout = next((attributes[key] for key in _LAYOUTS if key in attributes), None)
            parts = (1,) * len(shapes) if layout is None else self.of_results(layout)
            self.propagated.append(Propagated(_name(op.location), shapes, parts))

    def of_results(self, layouts: Any) -> tuple[int, ...]:
        if layouts not in self.read:
            one = _sdy.TensorShardingAttr.isinstance(layouts)
            shardings = [layouts] if one else _sdy.TensorShardingPerValueAttr(layouts).shardings
            self.read[layouts] = self.parts(shardings)
        return self.read[layouts]

    def parts(self, shardings: Sequence[Any]) -> tuple[int, ...]:
        return tuple(
            math.prod(
                self.size(str(sharding.mesh_or_ref), _sdy.AxisRefAttr(axis))
                for dimension in sharding.dimension_shardings
                for axis in _sdy.DimensionShardingAttr(dimension).axes
            )
            for sharding in map(_sdy.TensorShardingAttr, shardings)
        )

    def size(self, mesh: str, axis: Any) -> int:
        part = axis.sub_axis_info
        return int(_sdy.SubAxisInfoAttr(part).size if part is not None else self.sizes[mesh.strip('@"')][axis.name])


_LAYOUTS = ("sdy.sharding", "sharding", "out_shardings")
"""The attributes with the shardings of results: for instructions, for sharding constraints, and for a `shard_map`."""


def _name(location: Any) -> str:
    parts = str(location).split('"', 2)
    return parts[1] if len(parts) == 3 else ""
