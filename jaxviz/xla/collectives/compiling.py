"""Compiles a lowered program so that XLA exposes its partitioning: once for a program and flags, interruptibly."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxviz.analysis.lowering import Lowering
from jaxviz.runtime.stoppable import compiled_once
from jaxviz.xla.collectives.partitioner_log import Warned, reading_log
from jaxviz.xla.compat.compiling import compiled_afresh
from jaxviz.xla.compiled_memory.compiled_program import NO_ROOM, compiler_of, folder_for_dump
from jaxviz.xla.compiled_memory.messages import message
from jaxviz.xla.compiled_memory.report import Compiler

_PASS = "shardy-xla"
"""The pass after which XLA knows the layout of each value; it partitions the program right after it."""


@dataclass(frozen=True, eq=False)
class Partitioned:
    """A program as compiled by XLA.

    Args:
      module: the compiled program, as a serialized `HloModuleProto`.
      before: the same before partitioning, with the layouts of all values; None if it is not known.
      unknown: why not, or ''.
      warned: the reshards that XLA warned about; None if its log could not be read.
      compiler: the compiler.
      compiled: JAX's object for the compiled program.
    """

    module: bytes
    before: bytes | None
    unknown: str
    warned: tuple[Warned, ...] | None
    compiler: Compiler
    compiled: Any = field(repr=False)


def partitioned(lowering: Lowering) -> Partitioned:
    """Compiles a program, or returns the earlier result if it has been compiled with the same flags.

    Raises:
      KeyboardInterrupt: the user stops it.
      the errors of compiling.
    """
    result = compiled_once(lowering.lowered, "partitioned", lambda: _compile(lowering), is_alone=True)
    lowering.take(result.compiled)
    return result


def _compile(lowering: Lowering) -> Partitioned:
    with folder_for_dump(len(lowering.lowered.as_text())) as folder, reading_log() as log:
        with compiled_afresh():  # a program from JAX's own cache has neither layouts nor a log
            compiled = lowering.lowered.compile(compiler_options=_options(folder) if folder else None)
        before = _before(Path(folder)) if folder else None
    executable = compiled.runtime_executable()
    compiler = compiler_of(compiled)
    unknown = f"XLA on {compiler.backend} does not expose the program that it partitions" if folder else NO_ROOM
    (module,) = executable.hlo_modules()[:1]
    return Partitioned(
        module.as_serialized_hlo_module_proto(), before, unknown if before is None else "",
        log.warned if log.is_read else None, compiler, compiled,
    )  # fmt: skip


def _options(folder: str) -> dict[str, Any]:
    return {"xla_dump_to": folder, "xla_dump_hlo_as_proto": True, "xla_dump_hlo_pass_re": _PASS}


def _before(folder: Path) -> bytes | None:
    """The largest program that XLA exposed after the pass."""
    programs: list[bytes] = []
    for file in folder.glob(f"*after_{_PASS}*.pb"):
        with contextlib.suppress(OSError):
            program = message("Program", file.read_bytes())
            programs.append(program.hlo_module.SerializeToString())
    return max(programs, key=len, default=None)
