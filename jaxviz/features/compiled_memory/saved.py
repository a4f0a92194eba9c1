"""Saves compiled memory to a file, to compare it with another version later."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from jaxviz.features.compiled_memory.attribution import KINDS
from jaxviz.features.compiled_memory.report import CompiledMemory, Compiler, Held, Moment
from jaxviz.ir.origin import Location
from jaxviz.report.files import write_file
from jaxviz.report.tables import printable

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
            f"{name} has no saved compiled memory; jaxviz.compiled_memory(...).save(path) writes such files, and so does "
            "jaxviz compiled-memory ... --save path"
        )
    if read.get("version") != _VERSION:
        raise ValueError(
            f"{name} is of version {read.get('version')} of these files, written by jaxviz {read.get('jaxviz', '?')}; this one, "
            f"{version('jaxviz-lab')}, reads version {_VERSION}"
        )
    try:
        memory = _memory(read["memory"])
        _check(memory, CompiledMemory, "it")
        return memory
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{name} is damaged: {type(error).__name__}: {error}") from None


def _memory(read: Mapping[str, Any]) -> CompiledMemory:
    of_kind = [KINDS.index(kind) for kind in read["kinds"]]

    def moment(of: Mapping[str, Any]) -> Moment:
        sums = [0] * len(KINDS)
        for k, size in zip(of_kind, of["nbytes"], strict=True):
            sums[k] = int(size)
        return Moment(of["instruction"], of["opcode"], of["is_backward"], tuple(sums))

    held: dict[str, Any] = {name: tuple(map(_held, read[name])) for name in ("at_peak", "values", "fused")}
    held["on_host"] = tuple(map(_held, read.get("on_host", ())))  # files of earlier versions have none
    plain: dict[str, Any] = {
        name: read[name]
        for name in (
            "function", "about", "temp_nbytes", "argument_nbytes", "result_nbytes", "constant_nbytes", "reused_nbytes",
            "peak_at", "n_devices",
        )
    }  # fmt: skip
    return CompiledMemory(
        compiler=Compiler(**read["compiler"]), timeline=tuple(map(moment, read["timeline"])), location=_location(read["location"]),
        notes=tuple(read["notes"]), **plain, **held,
    )  # fmt: skip


def _check(x: Any, wanted: Any, name: str) -> None:
    """Checks a value against the type of its field, since JSON can hold anything else."""
    kinds = get_args(wanted)
    if isinstance(wanted, UnionType):
        _check(x, next(kind for kind in kinds if (x is None) is (kind is NoneType)), name)
        return
    if get_origin(wanted) is Literal:
        fits = x in kinds
    elif get_origin(wanted) is tuple:
        fits = type(x) is tuple
        for i, element in enumerate(x if fits else ()):
            _check(element, kinds[0], f"{name}[{i}]")
    else:
        fits = type(x) is wanted and (wanted is not int or 0 <= x < MOST)
        for f in fields(x) if fits and is_dataclass(x) else ():
            _check(getattr(x, f.name), _types(wanted)[f.name], f.name if name == "it" else f"{name}.{f.name}")
    if not fits:
        raise TypeError(f"{name} is {printable(repr(x), 60)}")


MOST = 1 << 63
"""Numbers of bytes, and lines, are smaller."""


@cache
def _types(of: type) -> dict[str, Any]:
    return get_type_hints(of)


def _held(read: Mapping[str, Any]) -> Held:
    if read["kind"] not in KINDS:
        raise ValueError(f"there is no kind {read['kind']!r}")
    plain: dict[str, Any] = {
        name: read[name] for name in ("kind", "what", "type", "nbytes", "count", "why", "donated_to", "expression")
    }
    return Held(location=_location(read), **plain)


def _location(read: Mapping[str, Any]) -> Location | None:
    return Location(read["file"], read["line"], read["function"] or "") if read["file"] else None
