"""The messages in which XLA stores a compiled program and its buffer assignment: the fields that are used here.

Their numbers are XLA's (`xla/service/hlo.proto`, `xla/xla_data.proto`) and stable across versions; other fields are
ignored.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

__all__ = ["DecodeError", "message"]

_PACKAGE = "jaxviz.xla"

_FIELDS: dict[str, dict[str, tuple[int, str]]] = {
    "Layout": {"minor_to_major": (1, "int64*"), "memory_space": (8, "int64")},
    "Shape": {
        "element_type": (2, "int32"), "dimensions": (3, "int64*"),
        "tuple_shapes": (4, "Shape*"), "layout": (5, "Layout"),
    },
    "Metadata": {
        "op_name": (2, "string"), "source_file": (3, "string"),
        "source_line": (4, "int32"), "stack_frame_id": (15, "int32"),
    },
    "Instruction": {
        "name": (1, "string"), "opcode": (2, "string"), "shape": (3, "Shape"), "metadata": (7, "Metadata"),
        "parameter_number": (9, "int64"), "tuple_index": (13, "int64"), "backend_config": (43, "bytes"),
        "replica_groups": (49, "ReplicaGroup*"), "source_target_pairs": (52, "SourceTarget*"),
        "collective_device_list": (87, "DeviceList"), "iota_device_list": (92, "Iota"),
        "mesh_device_list": (93, "MeshDevices"), "custom_call_target": (28, "string"), "id": (35, "int64"),
        "operand_ids": (36, "int64*"), "called_computation_ids": (38, "int64*"),
    },
    "ReplicaGroup": {"replica_ids": (1, "int64*")},
    "SourceTarget": {"source": (1, "int64"), "target": (2, "int64")},
    "Iota": {
        "n_groups": (1, "int64"), "group_size": (2, "int64"), "reshaped": (3, "int64*"), "transposed": (4, "int32*"),
    },
    "DeviceList": {"replica_groups": (1, "ReplicaGroup*"), "iota": (2, "Iota")},
    "MeshAxis": {"name": (1, "string"), "size": (2, "int64")},
    "TiledDevices": {"reshaped": (1, "int64*"), "transposed": (2, "int32*")},
    "DeviceMesh": {"axes": (1, "MeshAxis*"), "device_ids": (2, "int64*"), "iota": (3, "TiledDevices")},
    "SubAxis": {"before": (1, "int64"), "size": (2, "int64")},
    "AxisRef": {"axis": (1, "int64"), "part": (2, "SubAxis")},
    "MeshDevices": {"mesh": (1, "DeviceMesh"), "axes": (2, "AxisRef*")},
    "Computation": {
        "name": (1, "string"), "instructions": (2, "Instruction*"), "id": (5, "int64"), "root_id": (6, "int64"),
    },
    "Sequence": {"instruction_ids": (1, "int64*")},
    "Scheduled": {"key": (1, "int64"), "value": (2, "Sequence")},
    "Schedule": {"sequences": (1, "Scheduled*")},
    "FileLocation": {
        "file_name_id": (1, "int32"), "function_name_id": (2, "int32"), "line": (3, "int32"), "column": (4, "int32"),
        "end_line": (5, "int32"), "end_column": (6, "int32"),
    },
    "StackFrame": {"file_location_id": (1, "int32"), "parent_frame_id": (2, "int32")},
    "StackFrames": {
        "file_names": (1, "string*"), "function_names": (2, "string*"), "file_locations": (3, "FileLocation*"),
        "stack_frames": (4, "StackFrame*"),
    },
    "DeviceAssignment": {"replica_count": (1, "int32"), "computation_count": (2, "int32")},
    "Module": {
        "name": (1, "string"), "device_assignment": (15, "DeviceAssignment"), "computations": (3, "Computation*"),
        "entry_computation_id": (6, "int64"), "schedule": (7, "Schedule"),
        "stack_frame_index": (17, "StackFrames"),
    },
    "Location": {"shape_index": (3, "int64*"), "instruction_id": (4, "int64")},
    "LogicalBuffer": {"id": (1, "int64"), "size": (2, "int64"), "defined_at": (3, "Location"), "color": (4, "int64")},
    "Assigned": {"logical_buffer_id": (1, "int64"), "offset": (2, "int64"), "size": (3, "int64")},
    "Allocation": {
        "index": (1, "int64"), "size": (2, "int64"), "is_thread_local": (3, "bool"),
        "is_entry_computation_parameter": (5, "bool"), "parameter_number": (6, "int64"),
        "maybe_live_out": (7, "bool"), "color": (8, "int64"), "assigned": (9, "Assigned*"),
        "parameter_shape_index": (10, "int64*"), "is_tuple": (11, "bool"), "is_constant": (12, "bool"),
    },
    "Assignment": {"logical_buffers": (1, "LogicalBuffer*"), "buffer_allocations": (3, "Allocation*")},
    "Program": {"hlo_module": (1, "Module"), "buffer_assignment": (3, "Assignment")},
}  # fmt: skip
"""Message → field → its number and its type; a star marks a repeated field."""

_Field = descriptor_pb2.FieldDescriptorProto
_PLAIN = {
    "int64": _Field.TYPE_INT64, "int32": _Field.TYPE_INT32, "string": _Field.TYPE_STRING, "bytes": _Field.TYPE_BYTES,
    "bool": _Field.TYPE_BOOL,
}  # fmt: skip


@cache
def _pool() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="jaxviz_xla.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        described = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            label = _Field.LABEL_REPEATED if kind.endswith("*") else _Field.LABEL_OPTIONAL
            added = described.field.add(name=field, number=number, label=label)
            kind = kind.removesuffix("*")
            added.type = _PLAIN.get(kind, _Field.TYPE_MESSAGE)
            if kind not in _PLAIN:
                added.type_name = f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


@cache
def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def message(name: str, serialized: bytes) -> Any:
    """Parses a message with this name; without bytes, a new one.

    Raises:
      DecodeError: the bytes are not such a message.
    """
    return _class(name).FromString(serialized)
