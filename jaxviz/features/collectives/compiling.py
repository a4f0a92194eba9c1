"""A lowered program compiled so that XLA shows how it divides it: once for each program and flags, in a way that can be stopped."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from jaxviz.analysis.lowering import Lowering
from jaxviz.features.collectives.partitioner_log import Log, Warned, reading_log
from jaxviz.features.compiled_memory.messages import message
from jaxviz.features.compiled_memory.report import Compiler
from jaxviz.ir import compat
from jaxviz.ir.sharing import cleared
from jaxviz.progress import counting

_KEPT = 8
"""How many compiled programs are kept."""
_PASS = "shardy-xla"
"""The pass after which XLA knows the layout of each value; it divides the program right after it."""
_GLANCE = 0.05
"""Seconds between two looks at whether the user wants to stop."""


@dataclass(frozen=True, eq=False)
class Partitioned:
    """What XLA made of a program.

    Args:
      module: the compiled program, as a serialized `HloModuleProto`.
      before: the same before XLA divided it, with the layouts of all values; None where XLA did not show it.
      warned: the reshards that XLA warned of; None where its log could not be read.
      compiler: what compiled it.
    """

    module: bytes
    before: bytes | None
    warned: tuple[Warned, ...] | None
    compiler: Compiler


@cleared
@lru_cache(maxsize=_KEPT)
def _kept(key: str) -> list[Partitioned]:
    """Where what a program was compiled to is put."""
    return []


def partitioned(lowering: Lowering) -> Partitioned:
    """What XLA makes of a program, compiled or, if it has been compiled with the same flags, as it was then.

    Raises:
      KeyboardInterrupt: the user stops it. XLA itself cannot be stopped: it finishes in a thread of its own, and what it made is kept.
      the errors of compiling.
    """
    key = _key(lowering)
    kept = _kept(key)
    if not kept:
        with counting("compiling"):
            _in_a_thread(lambda: kept.append(_compile(lowering)))
    return kept[0]


def _key(lowering: Lowering) -> str:
    flags = os.environ.get("XLA_FLAGS", ""), os.environ.get("LIBTPU_INIT_ARGS", "")
    backend = jax.default_backend(), jax.devices()[0].device_kind, version("jaxlib")
    settings = repr(sorted((k, v) for k, v in jax.config.values.items() if "compil" in k or "shardy" in k))
    told = "\n".join([compat.told_of(lowering.lowered), *flags, *backend, settings])
    return hashlib.sha256(told.encode()).hexdigest()


def _in_a_thread(work: Callable[[], None]) -> None:
    """Does work so that the user can stop waiting for it."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="jaxviz compiling", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_GLANCE)
    if raised:
        raise raised[0]


def _compile(lowering: Lowering) -> Partitioned:
    with tempfile.TemporaryDirectory(prefix="jaxviz-") as folder, reading_log() as log:
        with compat.compiled_afresh():  # where JAX's own cache has it, neither the layouts nor the log are
            compiled = lowering.lowered.compile(compiler_options=_options(folder))
        before = _before(Path(folder))
    (module,) = compiled.runtime_executable().hlo_modules()[:1]
    return Partitioned(
        module.as_serialized_hlo_module_proto(), before, _warned(log), _compiler(compiled.runtime_executable()),
    )  # fmt: skip


def _options(folder: str) -> dict[str, Any]:
    return {
        "xla_dump_to": folder, "xla_dump_hlo_as_proto": True, "xla_dump_hlo_pass_re": _PASS,
    }  # fmt: skip


def _before(folder: Path) -> bytes | None:
    """The largest program that XLA showed after the pass."""
    found: list[bytes] = []
    for file in folder.glob(f"*after_{_PASS}*.pb"):
        with contextlib.suppress(OSError):
            program = message("Program", file.read_bytes())
            found.append(program.hlo_module.SerializeToString())
    return max(found, key=len, default=None)


def _warned(log: Log) -> tuple[Warned, ...] | None:
    return log.warned if log.is_read else None


def _compiler(executable: Any) -> Compiler:
    device = executable.local_devices()[0]
    flags = os.environ.get("XLA_FLAGS", "")
    return Compiler(version("jax"), version("jaxlib"), device.platform, device.device_kind, flags)
