"""A compiled program with its buffer assignment: from the backend, or from a dump where the backend does not report it,
as on GPUs."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from jaxviz.analysis.lowering import Lowering
from jaxviz.ir.stack import usual_stack
from jaxviz.runtime.stoppable import compiled_once
from jaxviz.xla.compat.compiling import compiled_afresh
from jaxviz.xla.compiled_memory.messages import message
from jaxviz.xla.compiled_memory.module import Module
from jaxviz.xla.compiled_memory.report import Compiler

DUMPED = "after_optimizations.hlo.pb"
"""The end of the name of the file to which XLA dumps a compiled program with its buffer assignment."""

_silent: set[str] = set()
"""The platforms that have not reported a buffer assignment: programs are compiled with a dump there."""


@dataclass(frozen=True, eq=False)
class CompiledProgram:
    """A compiled program, where it stores its values, as an `Assignment` message, and its compiler."""

    module: Module
    assignment: Any
    compiler: Compiler


def program_of(lowering: Lowering) -> CompiledProgram:
    """The compiled program of a lowered gradient or training step; compiles it, unless that has been done.

    Raises:
      ValueError: XLA neither reports nor dumps its buffer assignment.
      the errors of compiling.
    """
    if jax.default_backend() not in _silent:
        report = reported(lowering.compiled)
        if report is not None:
            return report
    compiled, program = program_of_lowered(lowering.lowered)
    lowering.take(compiled)
    return program


def reported(compiled: Any) -> CompiledProgram | None:
    """The program of a `jax.stages.Compiled`; None if the backend does not report where it stores its values."""
    return reported_by(compiled.runtime_executable())


def reported_by(executable: Any) -> CompiledProgram | None:
    """The same for what XLA has compiled, as JAX holds it."""
    serialized = serialized_assignment(executable.get_compiled_memory_stats())
    compiler = _compiler_of(executable)
    if not serialized:
        _silent.add(compiler.backend)
        return None
    return CompiledProgram(module_of(executable), message("Assignment", serialized), compiler)


def compiled_module(compiled: Any) -> Module:
    """The instructions of a `jax.stages.Compiled`."""
    return module_of(compiled.runtime_executable())


def module_of(executable: Any) -> Module:
    """The instructions of what XLA has compiled, as JAX holds it."""
    return Module(message("Module", executable.hlo_modules()[0].as_serialized_hlo_module_proto()))


def serialized_assignment(stats: Any) -> bytes:
    """XLA's buffer assignment; empty if the backend does not provide it."""
    return bytes(getattr(stats, "serialized_buffer_assignment_proto", b"") or b"")


@usual_stack
def program_of_lowered(lowered: Any, how: str = "") -> tuple[Any, CompiledProgram]:
    """Compiles a `jax.stages.Lowered` with a dump: the `jax.stages.Compiled`, and the program.

    Once for each program and flags.

    Args:
      lowered: the program.
      how: what else distinguishes it from others with the same text; see `compiled_once`.

    Raises:
      ValueError: XLA dumps no buffer assignment, or no temporary folder has room for it.
      the errors of compiling.
    """
    return compiled_once(lowered, f"with its buffers dumped, {how}", lambda: _dumped(lowered))


def _dumped(lowered: Any) -> tuple[Any, CompiledProgram]:
    with folder_for_dump(len(lowered.as_text())) as folder:
        if folder is None:
            raise ValueError(f"{NO_ROOM}, to learn where it stores its values")
        with compiled_afresh():  # nothing is dumped for a program from JAX's own cache
            compiled = lowered.compile(compiler_options={"xla_dump_to": folder, "xla_dump_hlo_as_proto": True})
        files = sorted(Path(folder).glob(f"*{DUMPED}"), key=lambda file: file.stat().st_size)
        read = message("Program", files[-1].read_bytes() if files else b"")
    compiler = compiler_of(compiled)
    if not read.buffer_assignment.buffer_allocations:
        raise ValueError(
            f"XLA on {compiler.backend} neither reports nor dumps where a compiled program stores its values"
        )
    return compiled, CompiledProgram(Module(read.hlo_module), read.buffer_assignment, compiler)


NO_ROOM = (
    "No temporary folder has room for the program that XLA writes (set the environment variable TMPDIR to one that has)"
)
_ROOM, _ROOM_FOR_EACH = 64 << 20, 64
"""The free bytes that a folder needs, at least and for each character of the program."""


@contextlib.contextmanager
def folder_for_dump(n: int) -> Iterator[str | None]:
    """A temporary folder for what XLA writes of a program with that many characters; None if it may not have enough
    room: XLA ends the process if the disk is full."""
    with contextlib.ExitStack() as stack:
        folder = None
        with contextlib.suppress(OSError):
            temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxviz-", ignore_cleanup_errors=True))
            if shutil.disk_usage(temporary).free >= max(_ROOM, _ROOM_FOR_EACH * n):
                folder = temporary
        yield folder


def compiler_of(compiled: Any) -> Compiler:
    """The compiler of a `jax.stages.Compiled`, with its versions and flags."""
    return _compiler_of(compiled.runtime_executable())


def _compiler_of(executable: Any) -> Compiler:
    device = executable.local_devices()[0]
    flags = os.environ.get("XLA_FLAGS", "")
    return Compiler(version("jax"), version("jaxlib"), device.platform, device.device_kind, flags)
