"""Reads compiled programs that XLA dumped to a folder, on any machine: `XLA_FLAGS=--xla_dump_to=folder`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxviz.report.tables import counted, listed
from jaxviz.xla.compat.compiling import parsed_hlo
from jaxviz.xla.compiled_memory.compiled_program import DUMPED, CompiledProgram
from jaxviz.xla.compiled_memory.messages import DecodeError, message
from jaxviz.xla.compiled_memory.module import Module
from jaxviz.xla.compiled_memory.op_names import OpNames
from jaxviz.xla.compiled_memory.reading import WITHOUT_FUNCTION, function_of, memory_of
from jaxviz.xla.compiled_memory.report import CompiledMemory, Compiler

_AFTER = "after_optimizations"
_PROTO, _TEXT, _BUFFERS = DUMPED, f"{_AFTER}.txt", f"{_AFTER}-buffer-assignment.txt"
_COMPILED_FOR = rf"\.(?:(sm_[\d.]+[a-z]?|gfx\w+?)_)?(?:(\w+)_)?{_AFTER}"
"""`.cpu_after_optimizations`, `.sm_9.0_gpu_after_optimizations`: the device and the backend, if they are part of the
name."""
_HOW = (
    "XLA writes one with XLA_FLAGS='--xla_dump_to=FOLDER --xla_dump_hlo_as_proto' in the environment before JAX starts"
)


def read_dump(folder: str | os.PathLike[str], module: str = "", of: str = "") -> CompiledMemory:
    """See `CompiledMemory.from_dump`.

    Args:
      of: the name of a function, whose program is preferred to larger ones, if there is one.
    """
    path, others = _chosen(Path(folder), module, of)
    program, n_devices = _program(path)
    name = function_of(program.module)
    notes = [f"Read from {path.name}."]
    if others:
        names = listed(sorted({_program_name(p) for p in others}))
        notes.append(
            f"The folder has {counted(len(others), 'other program')}: {names}; module='…', on the command line "
            "--module …, selects the one with the most memory of those whose names contain it."
        )
    if of and name != of and not module:
        notes.append(f"No program in the folder is called {of}: this is the one with the most memory.")
    makers = OpNames(program.module)
    with _naming(path):
        return memory_of(program, makers, name, f"program `{name}`", (), n_devices, (*notes, WITHOUT_FUNCTION))


# --- finding the file -------------------------------------------------------------------------------------------------


def _chosen(folder: Path, module: str, of: str) -> tuple[Path, list[Path]]:
    """The program of a folder with the most memory, of a function if there is one of it, and the others."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    files = sorted(folder.glob(f"*{_PROTO}"))
    of_protos = {p.name.removesuffix(_PROTO) for p in files}
    files += [p for p in sorted(folder.glob(f"*{_TEXT}")) if p.name.removesuffix(_TEXT) not in of_protos]
    if not files:
        raise ValueError(f"{folder} has no compiled program, a file *{_PROTO} or *{_TEXT}; {_HOW}")
    named = [p for p in files if module in p.name]
    if not named:
        names = listed((_program_name(p) for p in files), most=12)
        raise ValueError(f"{folder} has no program with {module!r} in its name; it has {names}")
    named = [p for p in named if of and re.search(rf"\.p?jit_{re.escape(of)}$", _program_name(p))] or named
    chosen = max(named, key=lambda p: (_nbytes(p), p.stat().st_size)) if len(named) > 1 else named[0]
    return chosen, [p for p in files if p != chosen]


def _nbytes(path: Path) -> int:
    """The bytes that a program allocates; 0 if its file is damaged, or its buffer assignment missing."""
    if path.name.endswith(_PROTO):
        with contextlib.suppress(DecodeError):
            held = message("Program", path.read_bytes()).buffer_assignment.buffer_allocations
            return sum(a.size for a in held if not a.is_thread_local)
        return 0
    buffers = _buffers_of(path)
    lines = _lines(buffers) if buffers.is_file() else ()
    read = (found for line in lines if (found := _ALLOCATION.match(line)))
    return sum(int(found[2]) for found in read if ", thread-local" not in found[3])


def _buffers_of(path: Path) -> Path:
    """The file with the buffer assignment of a program that is a text."""
    return path.with_name(path.name.removesuffix(_TEXT) + _BUFFERS)


def _program_name(path: Path) -> str:
    """`module_0006.jit_loss` from `module_0006.jit_loss.cpu_after_optimizations.txt`."""
    return re.sub(rf"{_COMPILED_FOR}\..*", "", path.name)


# --- reading it -------------------------------------------------------------------------------------------------------


def _program(path: Path) -> tuple[CompiledProgram, int]:
    with _naming(path):
        read = _from_proto(path) if path.name.endswith(_PROTO) else _from_text(path)
        module = Module(read.hlo_module)
        _check(read.buffer_assignment, module)
    placed = read.hlo_module.device_assignment
    n_devices = max(1, placed.replica_count) * max(1, placed.computation_count)
    return CompiledProgram(module, read.buffer_assignment, _compiler(path)), n_devices


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Within the context, an error of reading says that the file is damaged."""
    try:
        yield
    except (DecodeError, LookupError, TypeError, AttributeError, ArithmeticError, ValueError, RuntimeError) as error:
        said = str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(said if str(path.parent) in said else f"{path} is damaged: {said}") from None


def _from_proto(path: Path) -> Any:
    read = message("Program", path.read_bytes())
    if not read.hlo_module.computations:
        raise ValueError(f"{path} has no program")
    if not read.buffer_assignment.buffer_allocations:
        why = (
            "XLA dumps none of a program that JAX reads from its compilation cache: set JAX_ENABLE_COMPILATION_CACHE=0"
        )
        raise ValueError(f"{path} has no buffer assignment, which says where the program stores its values. {why}.")
    return read


def _check(assignment: Any, module: Module) -> None:
    """Whether everything with an allocation is a value of the program, and everything that the program computes has
    one."""
    instruction_of = {buffer.id: buffer.defined_at.instruction_id for buffer in assignment.logical_buffers}
    unknown = set(instruction_of.values()) - module.instructions.keys()
    if unknown:
        n = counted(len(unknown), "instruction")
        raise ValueError(f"its buffers have {n} that are not in the program, such as {min(unknown)}")
    placed = {s.logical_buffer_id for a in assignment.buffer_allocations for s in a.assigned}
    if missing := placed - instruction_of.keys():
        raise ValueError(f"its allocations refer to buffers that it does not describe, such as {min(missing)}")
    placed_instructions = {instruction_of[k] for k in placed}
    computed = (module.instructions[n] for n in module.order if n not in placed_instructions)
    without = [i.name for i in computed if i.opcode in _COMPUTES]
    if without:
        n = counted(len(without), "instruction")
        raise ValueError(f"{n}, such as {without[0]}, have no buffer in it: it seems to be truncated")


_COMPUTES = ("fusion", "dot", "convolution", "copy")
"""Instructions that always have memory of their own."""


def _compiler(path: Path) -> Compiler:
    match = re.search(_COMPILED_FOR, path.name)
    options = path.with_name(f"{_program_name(path)}.debug_options")
    text = options.read_text(errors="replace") if options.is_file() else ""
    flags = re.findall(r'^(?!xla_dump)(xla\w+): "?(.*?)"?$', text, re.MULTILINE)
    written = " ".join(f"--{name}={value}" for name, value in flags)
    device, backend = (match[1] or "", match[2] or "") if match else ("", "")
    return Compiler("", "", backend or "an unknown backend", device, written)


# --- as text ----------------------------------------------------------------------------------------------------------

_ALLOCATION = re.compile(r"allocation (\d+): size (\d+)(.*):")
_VALUE = re.compile(r" value: <(\d+) (\S+?)(?:\{([\d,]*)\})?(?: \(phi\))? @(\d+)> \(size=(\d+),offset=(\d+)\)")
"""`<142 while.3{2} (phi) @0> (size=65536,offset=0)`: its number, the instruction, which element of the result, and its
memory."""


def _from_text(path: Path) -> Any:
    buffers = _buffers_of(path)
    if not buffers.is_file():
        raise ValueError(
            f"{path} has only the program: {buffers.name}, which says where it stores its values, is missing. {_HOW}"
        )
    read = message("Program", b"")
    read.hlo_module.MergeFromString(parsed_hlo(path.read_text(encoding="utf-8")))
    numbers = {i.name: i.id for c in read.hlo_module.computations for i in c.instructions}
    for line in _lines(buffers):
        allocation, value = _ALLOCATION.match(line), _VALUE.match(line)
        if allocation:
            index, size, said = allocation.groups()
            parameter, space = re.search(r", parameter (\d+)", said), re.search(r", color (\d+)", said)
            read.buffer_assignment.buffer_allocations.add(
                index=int(index), size=int(size), is_entry_computation_parameter=parameter is not None,
                parameter_number=int(parameter[1]) if parameter else 0, is_constant=", constant" in said,
                is_thread_local=", thread-local" in said, maybe_live_out=", maybe-live-out" in said,
                color=int(space[1]) if space else 0,
            )  # fmt: skip
        elif value and read.buffer_assignment.buffer_allocations:
            number, name, index, color, size, offset = value.groups()
            if name not in numbers:
                raise ValueError(f"{buffers} has a value of {name}, but {path.name} has no such instruction")
            buffer = read.buffer_assignment.logical_buffers.add(id=int(number), size=int(size), color=int(color))
            buffer.defined_at.instruction_id = numbers[name]
            buffer.defined_at.shape_index.extend(map(int, filter(None, (index or "").split(","))))
            read.buffer_assignment.buffer_allocations[-1].assigned.add(
                logical_buffer_id=int(number), offset=int(offset), size=int(size)
            )
        elif value:
            raise ValueError(f"{buffers} has values before its first allocation")
    if not read.buffer_assignment.buffer_allocations:
        raise ValueError(f"{buffers} has no allocations")
    return read


def _lines(path: Path) -> Iterator[str]:
    """The lines of a buffer assignment, up to other content of the file."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith(("Total bytes used", "Used values")):
            return
        yield line
