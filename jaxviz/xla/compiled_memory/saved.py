"""Saves compiled memory to a file, to compare it with another version later."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jaxviz.report.stored import Format, from_plain
from jaxviz.xla.compiled_memory.attribution import KINDS
from jaxviz.xla.compiled_memory.report import CompiledMemory

_FORMAT = Format(
    "compiled memory of jaxviz", 1, "memory", "saved compiled memory",
    "jaxviz.compiled_memory(...).save(path) writes such files, and so does jaxviz compiled-memory ... --save path",
)  # fmt: skip


def save(memory: CompiledMemory, path: str | os.PathLike[str]) -> Path:
    """See `CompiledMemory.save`."""
    return _FORMAT.write(memory, path)


def load(path: str | os.PathLike[str]) -> CompiledMemory:
    """See `CompiledMemory.load`."""
    return _FORMAT.read(path, _memory)


def order_kinds(data: Any) -> None:
    """Puts the kinds of a timeline in the order of `KINDS`, which may have been another where it was written."""
    for moment in data["timeline"]:
        sums = dict.fromkeys(KINDS, 0) | dict(zip(data["kinds"], moment["nbytes"], strict=True))
        moment["nbytes"] = [sums.pop(kind) for kind in KINDS]
        if sums:
            raise ValueError(f"there is no kind {next(iter(sums))!r}")


def _memory(data: Any) -> CompiledMemory:
    order_kinds(data)
    memory: CompiledMemory = from_plain(CompiledMemory, data)
    return memory
