"""Saves compiled memory to a file, to compare it with another version later."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from jaxviz.ir.origin import Location
from jaxviz.report.files import write_file
from jaxviz.report.tables import printable
from jaxviz.xla.compiled_memory.attribution import KINDS
from jaxviz.xla.compiled_memory.report import CompiledMemory

_FORMAT, _VERSION = "compiled memory of jaxviz", 1
"""The header of a file; the version is that of its fields."""


def save(memory: CompiledMemory, path: str | os.PathLike[str]) -> Path:
    """See `CompiledMemory.save`."""
    head = {"format": _FORMAT, "version": _VERSION, "jaxviz": version("jaxviz-lab")}
    text = json.dumps({**head, "memory": memory.to_dict()}, indent=1)
    return write_file(path, text)


def load(path: str | os.PathLike[str]) -> CompiledMemory:
    """See `CompiledMemory.load`."""
    name = os.fspath(path)
    try:
        read = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError):  # not text, or not JSON
        read = None
    if not isinstance(read, dict) or read.get("format") != _FORMAT:
        raise ValueError(
            f"{name} has no saved compiled memory; jaxviz.compiled_memory(...).save(path) writes such files, and so "
            "does jaxviz compiled-memory ... --save path"
        )
    if read.get("version") != _VERSION:
        raise ValueError(
            f"{name} is of version {read.get('version')} of these files, written by jaxviz {read.get('jaxviz', '?')}; "
            f"this one, {version('jaxviz-lab')}, reads version {_VERSION}"
        )
    try:
        return _memory(read["memory"])
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{name} is damaged: {type(error).__name__}: {error}") from None


def _memory(read: Any) -> CompiledMemory:
    """The report of this data; the kinds of a timeline may be in another order, and files of earlier versions have no
    `on_host`."""
    for moment in read["timeline"]:
        sums = dict.fromkeys(KINDS, 0) | dict(zip(read["kinds"], moment["nbytes"], strict=True))
        moment["nbytes"] = [sums.pop(kind) for kind in KINDS]
        if sums:
            raise ValueError(f"there is no kind {next(iter(sums))!r}")
    memory: CompiledMemory = _read(CompiledMemory, {"on_host": [], **read})
    return memory


def _read(kind: Any, data: Any, name: str = "") -> Any:
    """A value of the type of a field from plain data; raises a TypeError where JSON holds anything else."""
    kinds = get_args(kind)
    if isinstance(kind, UnionType):
        return None if data is None else _read(kinds[0], data, name)
    if get_origin(kind) is tuple and type(data) is list:
        return tuple(_read(kinds[0], one, f"{name}[{i}]") for i, one in enumerate(data))
    if is_dataclass(kind) and isinstance(kind, type) and type(data) is dict:
        inside = f"{name}." if name else ""
        return kind(**{
            key: _location(data, inside) if key == "location" else _read(of, data[key], inside + key)
            for key, of in _types(kind).items()
        })  # fmt: skip
    if data in kinds if get_origin(kind) is Literal else type(data) is kind and (kind is not int or 0 <= data < MOST):
        return data
    raise TypeError(f"{name or 'it'} is {printable(repr(data), 60)}")


def _location(data: Mapping[str, Any], inside: str) -> Location | None:
    at = data.get("location", data)
    types = {"file": str, "line": int, "function": str}
    return (
        Location(**{key: _read(of, at[key], f"{inside}location.{key}") for key, of in types.items()})
        if at["file"]
        else None
    )


MOST = 1 << 63
"""Numbers of bytes, and lines, are smaller."""


@cache
def _types(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}
