"""The instructions of a program, before and after XLA compiles it, with the source lines of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxviz.ir.origin import Location
from jaxviz.xla.compiled_memory.messages import message
from jaxviz.xla.compiled_memory.module import lines_of


@dataclass(frozen=True, slots=True)
class HloInstruction:
    """An instruction.

    Args:
      opcode: such as `dot`.
      lines: the lines that JAX recorded for it, innermost first; () for one of XLA's own.
    """

    opcode: str
    lines: tuple[Location, ...]


def instructions_of(serialized: bytes) -> tuple[HloInstruction, ...]:
    """The instructions of a module's message, in all computations, including those of fusions and bodies.

    If JAX recorded no line for one of them, such as a parameter, it has the lines of the calling instruction.
    """
    module = message("Module", serialized)
    known: dict[tuple[int, str, int], tuple[Location, ...]] = {}
    called_by = {c: i for of in module.computations for i in of.instructions for c in i.called_computation_ids}
    of_callers: dict[int, tuple[Location, ...]] = {}
    home = {i.id: of.id for of in module.computations for i in of.instructions}

    def lines(i: Any) -> tuple[Location, ...]:
        at = i.metadata
        key = at.stack_frame_id, at.source_file, at.source_line
        if key not in known:
            known[key] = tuple(lines_of(module.stack_frame_index, key[0], key[1:]))
        return known[key] or of_caller(home[i.id])

    def of_caller(computation: int) -> tuple[Location, ...]:
        if computation not in of_callers:
            of_callers[computation] = ()  # in case of recursion
            if computation in called_by:
                of_callers[computation] = lines(called_by[computation])
        return of_callers[computation]

    return tuple(HloInstruction(i.opcode, lines(i)) for of in module.computations for i in of.instructions)


def before_xla(lowered: Any) -> tuple[HloInstruction, ...]:
    """The instructions that JAX passes to XLA."""
    return instructions_of(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())


def after_xla(compiled: Any) -> tuple[HloInstruction, ...] | None:
    """The instructions of the compiled program; None if the backend does not expose it."""
    modules = compiled.runtime_executable().hlo_modules()
    if not modules:
        return None
    return tuple(i for module in modules for i in instructions_of(module.as_serialized_hlo_module_proto()))
