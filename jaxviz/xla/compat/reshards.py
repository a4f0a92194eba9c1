"""Which values devices have to exchange, and for which instruction, according to Shardy's layouts for a lowered
program."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxviz.ir.compat.private import _mlir, _passmanager, _sdy, _xla_client
from jaxviz.ir.compat.shardy import _name, operations_in
from jaxviz.xla.compat.hlo_shardings import apart, dims_of

_FIND = "func.func(sdy-populate-op-sharding-rules),func.func(sdy-insert-explicit-reshards{enable-full-version=true})"
_AXIS = re.compile(r'"([^"]+)"(:\(\d+\)\d+)?')
"""An axis in the text of a list of axes, for which MLIR has no Python class."""
_OWN = ("mhlo.copy", "sdy.reshard", "sdy.all_reduce", "sdy.sharding_constraint")
"""Operations that only state or change the sharding of a value."""


@dataclass(frozen=True, slots=True)
class Split:
    """How a value is divided over a mesh.

    Args:
      shape: of the whole value or, in a `shard_map`, of one device's part.
      dims: for each dimension the axes over which it is divided; a part of an axis is written `model:(1)2`.
      nbytes: bytes of the whole value; 0 if its type has no bytes.
    """

    shape: tuple[int, ...]
    dims: tuple[tuple[str, ...], ...]
    nbytes: int = 0

    @property
    def axes(self) -> frozenset[str]:
        return frozenset(a for axes in self.dims for a in axes)

    def along(self, axis: str) -> int | None:
        """The dimension that is divided over an axis, or a part of it; None if the value is replicated over it."""
        name = axis.partition(":")[0]
        return next((i for i, axes in enumerate(self.dims) if any(a.partition(":")[0] == name for a in axes)), None)


@dataclass(frozen=True, slots=True)
class Factor:
    """A dimension of the iteration space of an instruction, such as `k` of a product `[i, k], [k, j] -> [i, j]`.

    Args:
      operands: for each operand which of its dimensions it is; None if it is none of them.
      result: the same for the first result.
      kind: whether the instruction sums over it, needs it whole, permutes it, or works on each part separately.
    """

    operands: tuple[int | None, ...]
    result: int | None
    kind: Literal["sum", "whole", "permuted", "each"]


@dataclass(frozen=True, slots=True)
class Need:
    """A value that devices have to exchange for an instruction.

    Args:
      kind: 'sum' if each device has a part of a sum, 'move' if a value is needed in another layout than it has.
      axes: those that are summed over, or that divide another dimension afterwards, or none.
      path: scopes and name of the instruction that sums, or that needs the value.
      source: the same for the instruction that computes the value; '' for an argument.
      operation: the instruction, such as 'stablehlo.dot_general'.
      operands: its operands, as laid out before the exchange.
      result: its first result.
      factors: how its dimensions correspond; empty if Shardy has no rule for it.
      place: which operand is moved; -1 for a sum, and for a result that changes its layout.
      before, after: the layouts of the value.
      is_asked: whether the program itself requests the layout `after`: by a constraint, a `reshard`, or the specs of a
        `shard_map`.
    """

    kind: Literal["sum", "move"]
    axes: tuple[str, ...]
    path: str
    source: str
    operation: str
    operands: tuple[Split, ...]
    result: Split
    factors: tuple[Factor, ...]
    place: int
    before: Split
    after: Split
    is_asked: bool = False


@dataclass(frozen=True)
class Needs:
    """What Shardy finds in a lowered program.

    Args:
      meshes: the size of each axis, by mesh.
      devices: by mesh the numbers of its devices, if they are not in order.
      arguments, results: their layouts, with their paths as JAX records them, and whether the program specifies them.
      needs: the values to be exchanged.
      constants: the layouts of values that are computed from nothing, each with the path of its instruction.
    """

    meshes: dict[str, dict[str, int]]
    devices: dict[str, tuple[int, ...]]
    arguments: tuple[tuple[str, Split, bool], ...]
    results: tuple[tuple[str, Split, bool], ...]
    needs: tuple[Need, ...]
    constants: tuple[tuple[str, Split], ...]


def needs_of(lowered: Any, partitioned: bytes | None = None) -> Needs:
    """The values that devices have to exchange in a lowered program, which is not changed.

    Args:
      lowered: the result of `jax.jit(f).lower(...)`.
      partitioned: the program inside XLA after the layouts of all values are known and before it is partitioned, as a
        serialized `HloModuleProto`. Without it Shardy is run on the lowered program, which XLA would simplify first:
        most layouts are the same.

    Raises:
      RuntimeError, ValueError: Shardy failed.
    """
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        unpartitioned = _Module(module.operation)
        if partitioned is None:
            moved = module.operation.clone()
            _run("inline,symbol-dce,sdy-propagation-pipeline", moved)
        else:
            moved = _imported(partitioned, unpartitioned)
        _Module(moved).mark_asked()
        _run(_FIND, moved)
        partitioned_ = _Module(moved)
        return Needs(
            unpartitioned.meshes, unpartitioned.devices, unpartitioned.arguments(unpartitioned),
            partitioned_.results(unpartitioned), tuple(partitioned_.needs()), tuple(partitioned_.constants()),
        )  # fmt: skip


def layout_of(text: str, mesh: Mapping[str, int]) -> str:
    """The layout that XLA uses, as a user writes it: `P('data', None)`; '' if no axes of the mesh match."""
    dims = dims_of(text, None, mesh)
    return spec_text(dims) if dims else ""


def spec_text(dims: Sequence[Sequence[str]]) -> str:
    """`P('data', None)` for the axes of each dimension."""
    return f"P({', '.join(axes_in_code(axes) if axes else 'None' for axes in dims)})"


def axes_in_code(axes: Sequence[str]) -> str:
    """`'data'`, or `('data', 'model')`."""
    return repr(axes[0]) if len(axes) == 1 else repr(tuple(axes))


def _run(passes: str, operation: Any) -> None:
    _passmanager.PassManager.parse(f"builtin.module({passes})").run(operation)


def _imported(partitioned: bytes, unpartitioned: _Module) -> Any:
    """XLA's program as MLIR, with the layouts as attributes of Shardy."""
    text = _xla_client._xla.mlir.hlo_to_stablehlo(partitioned)
    module = _mlir.Module.parse(text).operation
    there = list(module.regions[0].blocks[0].operations)
    known = {str(op.attributes["sym_name"]) for op in there}
    for op in unpartitioned.operation.regions[0].blocks[0].operations:
        if op.operation.name == "sdy.mesh" and str(op.attributes["sym_name"]) not in known:
            op.operation.clone(ip=_mlir.InsertionPoint(there[0]))
    name, mesh = max(unpartitioned.meshes.items(), key=lambda pair: len(pair[1]), default=("", {}))

    def attribute(text: str, type_: Any) -> str:
        rank = len(type_.shape) if isinstance(type_, _mlir.RankedTensorType) else 0
        dims = dims_of(text, rank, mesh) or ((),) * rank
        return f"<@{name}, [{', '.join('{' + ', '.join(map(_quoted, axes)) + '}' for axes in dims)}]>"

    def lay_out(op: Any) -> None:
        if "mhlo.sharding" in op.attributes and op.operation.name != "func.func":
            texts = apart(_mlir.StringAttr(op.attributes["mhlo.sharding"]).value)
            types = [r.type for r in op.results]
            if len(texts) == len(types) and all("manual" not in t for t in texts):
                of_each = ", ".join(map(attribute, texts, types))
                op.attributes["sdy.sharding"] = _mlir.Attribute.parse(f"#sdy.sharding_per_value<[{of_each}]>")

    if mesh:
        for op in operations_in(module):
            lay_out(op)
        for function in module.regions[0].blocks[0].operations:
            if function.operation.name == "func.func" and "arg_attrs" in function.attributes:
                types = _mlir.TypeAttr(function.attributes["function_type"]).value.inputs
                function.attributes["arg_attrs"] = _mlir.ArrayAttr.get(
                    [
                        _of_argument(a, t, attribute)
                        for a, t in zip(function.attributes["arg_attrs"], types, strict=True)
                    ]
                )
    return module


def _of_argument(attributes: Any, type_: Any, attribute: Callable[[str, Any], str]) -> Any:
    if "mhlo.sharding" not in attributes:
        return _mlir.DictAttr.get({})
    text = attribute(_mlir.StringAttr(attributes["mhlo.sharding"]).value, type_)
    return _mlir.DictAttr.get({"sdy.sharding": _mlir.Attribute.parse(f"#sdy.sharding{text}")})


def _quoted(axis: str) -> str:
    name, colon, part = axis.partition(":")
    return f'"{name}"{colon}{part}'


class _Module:
    def __init__(self, operation: Any):
        self.operation = operation
        self.meshes: dict[str, dict[str, int]] = {}
        self.devices: dict[str, tuple[int, ...]] = {}
        self.ops: list[Any] = operations_in(operation)
        for op in self.ops:  # the module's operations
            if op.operation.name == "sdy.mesh":
                name, mesh = str(op.attributes["sym_name"]).strip('"'), _sdy.MeshAttr(op.attributes["mesh"])
                self.meshes[name] = {a.name: a.size for a in map(_sdy.MeshAxisAttr, mesh.axes)}
                self.devices[name] = tuple(mesh.device_ids)
        functions = (op for op in self.ops if op.operation.name == "func.func")
        self.main = next(op for op in functions if str(op.attributes["sym_name"]) == '"main"')
        self.ops = operations_in(self.main.operation)  # all else are bodies of loops and reductions

    # --- layouts ------------------------------------------------------------------------------------------------------

    def split(self, value: Any) -> Split:
        """The layout of a value."""
        attribute = self._attribute(value)
        return self._read(attribute, value.type)

    def _read(self, attribute: Any, type_: Any) -> Split:
        ranked = isinstance(type_, _mlir.RankedTensorType)
        shape = tuple(type_.shape) if ranked else ()
        if attribute is None:
            return Split(shape, ((),) * len(shape), _nbytes(type_) if ranked else 0)
        dims = tuple(
            tuple(map(self._axis, _sdy.DimensionShardingAttr(d).axes))
            for d in _sdy.TensorShardingAttr(attribute).dimension_shardings
        )
        return Split(shape, dims, _nbytes(type_) if ranked else 0)

    def _axis(self, axis: Any) -> str:
        read = _sdy.AxisRefAttr(axis)
        part = read.sub_axis_info
        if part is None:
            return str(read.name)
        info = _sdy.SubAxisInfoAttr(part)
        return f"{read.name}:({info.pre_size}){info.size}"

    def _attribute(self, value: Any) -> Any:
        """The attribute with the sharding of a value; None if there is none."""
        owner = value.owner
        if isinstance(owner, _mlir.Block):
            number = next(i for i, a in enumerate(owner.arguments) if a == value)
            return self._of_argument(owner.owner, number)
        if owner.operation.name in ("sdy.reshard", "sdy.sharding_constraint"):
            return owner.attributes["sharding"]
        if owner.operation.name == "sdy.all_reduce":
            return owner.attributes["out_sharding"]
        number = next(i for i, r in enumerate(owner.results) if r == value)
        if owner.operation.name == "sdy.manual_computation":
            return self._per_value(owner.attributes["out_shardings"])[number]
        attribute_ = _entry(owner.attributes, "sdy.sharding")
        return self._per_value(attribute_)[number] if attribute_ is not None else None

    def _of_argument(self, holder: Any, number: int) -> Any:
        if holder.operation.name == "func.func":
            attributes = holder.attributes["arg_attrs"][number] if "arg_attrs" in holder.attributes else {}
            return _entry(attributes, "sdy.sharding")
        if holder.operation.name == "sdy.manual_computation":
            return None  # the local shape
        attributes = _entry(holder.attributes, "sdy.sharding")
        of_each = self._per_value(attributes) if attributes is not None else []
        return of_each[number] if number < len(of_each) else None

    def _per_value(self, layouts: Any) -> list[Any]:
        if _sdy.TensorShardingAttr.isinstance(layouts):
            return [layouts]
        return list(_sdy.TensorShardingPerValueAttr(layouts).shardings)

    def arguments(self, unpartitioned: _Module) -> tuple[tuple[str, Split, bool], ...]:
        block = self.main.regions[0].blocks[0]
        said = [unpartitioned._of_argument(unpartitioned.main, i) is not None for i in range(len(block.arguments))]
        return tuple(
            (_name(a.location), self.split(a), is_said) for a, is_said in zip(block.arguments, said, strict=True)
        )

    def results(self, unpartitioned: _Module) -> tuple[tuple[str, Split, bool], ...]:
        (returned,) = (op for op in self.ops if op.operation.name == "func.return" and op.operation.parent == self.main)
        results = []
        for i, split in enumerate(self._operands(returned)):
            said = _attributes_of_result(unpartitioned.main, i)
            path = _mlir.StringAttr(said["jax.result_info"]).value if "jax.result_info" in said else ""
            results.append((path, split, "sdy.sharding" in said))
        return tuple(results)

    def mark_asked(self) -> None:
        """Marks the shardings that the program requests, to tell them from those that Shardy adds."""
        for op in self.ops:
            if op.operation.name in ("sdy.reshard", "mhlo.copy") and _name(op.location).rpartition("/")[2] in _EXPLICIT:
                op.attributes[_MARK] = _mlir.UnitAttr.get()

    # --- exchanges ----------------------------------------------------------------------------------------------------

    def needs(self) -> Iterator[Need]:
        for op in self.ops:
            if op.operation.name == "sdy.all_reduce":
                yield self._sum(op)
            elif op.operation.name in ("sdy.reshard", "mhlo.copy"):
                yield from self._move(op)
            elif op.operation.name == "sdy.manual_computation":
                yield from self._into(op)

    def _sum(self, op: Any) -> Need:
        maker = self._origin(op.operands[0])
        axes = tuple("".join(match) for match in _AXIS.findall(str(op.attributes["reduction_axes"])))
        after = self.split(op.results[0])
        operation = "" if maker is None else str(maker.operation.name)
        return Need(
            "sum", axes, _name(op.location), _name(op.location), operation, self._operands(maker), after,
            self._factors(maker), -1, after, after,
        )  # fmt: skip

    def _move(self, op: Any) -> Iterator[Need]:
        before, after = self.split(op.operands[0]), self.split(op.results[0])
        axes = _changed(before, after)
        if not axes:
            return
        maker = self._origin(op.operands[0])
        source = _name(op.operands[0].location)
        is_explicit = _MARK in op.attributes
        uses = [(u.owner, u.operand_number) for u in op.results[0].uses]
        readers = [(reader, place) for reader, place in uses if reader.operation.name not in _PASSED_ON]
        if uses and not readers:
            return  # another sharding follows immediately, or it is a result, whose sharding XLA has decided already
        if is_explicit or not readers:
            yield Need(
                "move", axes, _name(op.location), source, str(maker.operation.name) if maker is not None else "",
                self._operands(maker), before, self._factors(maker), -1, before, after, is_explicit,
            )  # fmt: skip
            return
        for reader, place in readers:
            path = _name(reader.location) or _name(op.location)
            result = self.split(reader.results[0]) if len(reader.results) else after
            yield Need(
                "move", axes, path, source, str(reader.operation.name), self._operands(reader), result,
                self._factors(reader), place, before, after,
            )  # fmt: skip

    def _into(self, op: Any) -> Iterator[Need]:
        """The operands of a `shard_map` whose specs require another sharding."""
        for place, (operand, is_explicit) in enumerate(
            zip(op.operands, self._per_value(op.attributes["in_shardings"]), strict=True)
        ):
            before, after = self.split(operand), self._read(is_explicit, operand.type)
            axes = _changed(before, after)
            if axes:
                path = _name(op.location)
                yield Need(
                    "move", axes, path, _name(operand.location), str(op.operation.name), self._operands(op), after, (),
                    place, before, after, True,
                )  # fmt: skip

    def _origin(self, value: Any) -> Any:
        """The instruction that computes a value, ignoring those that only reshard it; None for an argument."""
        while not isinstance(value.owner, _mlir.Block) and value.owner.operation.name in _OWN:
            value = value.owner.operands[0]
        return None if isinstance(value.owner, _mlir.Block) else value.owner

    def _operands(self, op: Any) -> tuple[Split, ...]:
        """The operands of an instruction, before any of them is moved for it."""
        operands = []
        for value in op.operands if op is not None else ():
            while not isinstance(value.owner, _mlir.Block) and value.owner.operation.name == "sdy.reshard":
                value = value.owner.operands[0]
            operands.append(self.split(value))
        return tuple(operands)

    def _factors(self, op: Any) -> tuple[Factor, ...]:
        if op is None or "sdy.sharding_rule" not in op.attributes:
            return ()
        rule = _sdy.OpShardingRuleAttr(op.attributes["sdy.sharding_rule"])
        operands = [_dims_by_factor(m) for m in rule.operand_mappings]
        results = [_dims_by_factor(m) for m in rule.result_mappings]
        kinds: dict[int, Literal["sum", "whole", "permuted"]] = {
            **dict.fromkeys(rule.permutation_factors, "permuted"),
            **dict.fromkeys(rule.need_replication_factors, "whole"), **dict.fromkeys(rule.reduction_factors, "sum"),
        }  # fmt: skip
        return tuple(
            Factor(tuple(o.get(f) for o in operands), results[0].get(f) if results else None, kinds.get(f, "each"))
            for f in range(len(rule.factor_sizes))
        )

    def constants(self) -> Iterator[tuple[str, Split]]:
        for op in self.ops:
            if op.operation.name in _FROM_NOTHING and not _is_inside_manual(op):
                ranked = (r for r in op.results if isinstance(r.type, _mlir.RankedTensorType))
                yield from ((_name(op.location), self.split(r)) for r in ranked)


_MARK = "jaxviz_asked"
_PASSED_ON = ("sdy.reshard", "func.return", "stablehlo.return")
_EXPLICIT = ("sharding_constraint", "reshard", "mesh_cast", "auto_axes", "explicit_axes")
"""Operations by which a program requests a sharding."""
_FROM_NOTHING = (
    "stablehlo.iota", "stablehlo.broadcast_in_dim", "stablehlo.rng_bit_generator", "sdy.constant", "stablehlo.constant",
)  # fmt: skip


def _is_inside_manual(op: Any) -> bool:
    holder = op.parent
    while holder is not None:
        if holder.operation.name == "sdy.manual_computation":
            return True
        holder = holder.parent if hasattr(holder, "parent") else None
    return False


def _entry(attributes: Any, name: str) -> Any:
    """An attribute by name, or None."""
    return attributes[name] if name in attributes else None  # noqa: SIM401  MLIR's dictionaries have no other way


def _attributes_of_result(function: Any, number: int) -> Any:
    return function.attributes["res_attrs"][number] if "res_attrs" in function.attributes else {}


def _dims_by_factor(mapping: Any) -> dict[int, int]:
    dims = enumerate(map(_sdy.DimMappingAttr, _sdy.TensorMappingAttr(mapping).dim_mappings))
    return {f: i for i, d in dims for f in d.factor_indices}


def _changed(before: Split, after: Split) -> tuple[str, ...]:
    """The axes that divide another dimension, or another part of it, afterwards."""
    if before.dims == after.dims:
        return ()
    pairs: Sequence[tuple[tuple[str, ...], tuple[str, ...]]] = list(zip(before.dims, after.dims, strict=False))
    left = [a for b, c in pairs for k, a in enumerate(b) if c[k : k + 1] != (a,)]
    return tuple(dict.fromkeys(left))


def _nbytes(type_: Any) -> int:
    element = type_.element_type
    width = getattr(element, "width", 0)
    if isinstance(element, _mlir.ComplexType):
        width = 2 * _mlir.FloatType(element.element_type).width
    return -(-int(math.prod(type_.shape)) * int(width) // 8)
