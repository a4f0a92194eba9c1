"""A compiled program: its instructions in execution order, and where each value goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from jaxviz.ir.origin import Location

Value = tuple[int, tuple[int, ...]]
"""An instruction's id, and the index in its result if that is a tuple."""

_TYPES = {
    1: ("bool", 8), 2: ("i8", 8), 3: ("i16", 16), 4: ("i32", 32), 5: ("i64", 64), 6: ("u8", 8), 7: ("u16", 16),
    8: ("u32", 32), 9: ("u64", 64), 10: ("f16", 16), 11: ("f32", 32), 12: ("f64", 64), 15: ("c64", 64),
    16: ("bf16", 16), 18: ("c128", 128), 19: ("f8_e5m2", 8), 20: ("f8_e4m3fn", 8), 21: ("i4", 4), 22: ("u4", 4),
    23: ("f8_e4m3b11fnuz", 8), 24: ("f8_e5m2fnuz", 8), 25: ("f8_e4m3fnuz", 8), 26: ("i2", 2), 27: ("u2", 2),
    28: ("f8_e4m3", 8), 29: ("f8_e3m4", 8), 32: ("f4_e2m1fn", 4), 33: ("f8_e8m0fnu", 8),
}  # fmt: skip
"""XLA's numbers of element types → JAX's short names, and bits."""

_LOOP, _CALLS = "while", ("while", "call", "conditional", "async-start")
HOST = 5
"""XLA's number of the host's memory, in layouts and for allocations, for all backends."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The type of an array in a compiled program.

    Args:
      text: `f32[3,4]`.
      nbytes: of its elements, without padding; None where the element type is not known.
      order: its dimensions from the fastest varying on; () where the backend does not say.
      on_host: whether it is in the memory of the host.
      size: how many elements it has.
    """

    text: str
    nbytes: int | None
    order: tuple[int, ...] = ()
    on_host: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One instruction. Its fields are XLA's, except `path`: JAX's name for it, such as `jit(f)/jvp()/dot_general`; and
    `message`: its `Instruction` message."""

    id: int
    name: str
    opcode: str
    path: str
    operands: tuple[int, ...]
    called: tuple[int, ...]
    computation: int
    shape: Any
    parameter: int = 0
    tuple_index: int = 0
    target: str = ""
    frame: int = 0
    source: tuple[str, int] = ("", 0)
    message: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Computation:
    """A sequence of instructions.

    Args:
      parameters: ids of its parameters, in order.
      order: ids of all instructions in scheduled order, or else with operands first.
      is_scheduled: whether XLA determined the order in which they run.
    """

    id: int
    name: str
    root: int
    parameters: tuple[int, ...]
    order: tuple[int, ...]
    is_scheduled: bool


class Module:
    """A compiled program.

    Args:
      read: its `Module` message.

    Raises:
      ValueError: it has no schedule, so the lifetimes of its values are unknown.
    """

    def __init__(self, read: Any):
        self.name = str(read.name)
        self.instructions: dict[int, Instruction] = {}
        self.computations: dict[int, Computation] = {}
        scheduled = {s.key: tuple(s.value.instruction_ids) for s in read.schedule.sequences}
        for c in read.computations:
            for i in c.instructions:
                self.instructions[i.id] = _instruction(i, c.id)
            parameters = sorted((i.parameter_number, i.id) for i in c.instructions if i.opcode == "parameter")
            order = scheduled.get(c.id) or tuple(i.id for i in c.instructions)
            numbers = tuple(number for _, number in parameters)
            self.computations[c.id] = Computation(c.id, c.name, c.root_id, numbers, order, c.id in scheduled)
        if read.entry_computation_id not in scheduled:
            raise ValueError(f"the compiled program {self.name or '?'} has no schedule")
        self.entry = self.computations[read.entry_computation_id]
        self._frames = read.stack_frame_index
        self.order: list[int] = []
        """Ids of the instructions in execution order, with bodies of loops and of branches once, in their place."""
        self.time: dict[int, int] = {}
        """The position of each in that order."""
        self.span: dict[int, tuple[int, int]] = {}
        """For each computation in that order, its first and its last position."""
        self._lay_out(self.entry)

    def _lay_out(self, computation: Computation) -> None:
        start = len(self.order)
        for number in computation.order:
            instruction = self.instructions[number]
            if instruction.opcode in _CALLS:
                # XLA lists a loop's body before its condition, but the condition runs first.
                called = instruction.called[::-1] if instruction.opcode == _LOOP else instruction.called
                for other in called:
                    if self.computations[other].is_scheduled and other not in self.span:
                        self._lay_out(self.computations[other])
            self.time[number] = len(self.order)
            self.order.append(number)
        self.span[computation.id] = start, max(start, len(self.order) - 1)

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        """Its instructions by name, also those inside fusions."""
        return {i.name: i for i in self.instructions.values()}

    def inside(self, instruction: Instruction) -> Iterator[Instruction]:
        """An instruction, and those of the computations that it calls, such as what is fused into it."""
        yield instruction
        for c in instruction.called:
            for number in self.computations[c].order:
                yield from self.inside(self.instructions[number])

    @cached_property
    def users(self) -> dict[int, list[tuple[Instruction, int]]]:
        """For each instruction its readers, with the operand indices."""
        users: dict[int, list[tuple[Instruction, int]]] = {}
        for instruction in self.instructions.values():
            for place, operand in enumerate(instruction.operands):
                users.setdefault(operand, []).append((instruction, place))
        return users

    @cached_property
    def callers(self) -> dict[int, Instruction]:
        """For each computation that a loop, a branch, a call or a fusion runs, that instruction."""
        holders = (*_CALLS, "fusion")
        return {c: i for i in self.instructions.values() if i.opcode in holders for c in i.called}

    def body(self, loop: Instruction) -> Computation:
        """The body of a loop."""
        return self.computations[loop.called[0]]

    def shape(self, value: Value) -> Shape:
        """The type of a value."""
        shape = self.instructions[value[0]].shape
        for k in value[1]:
            shape = shape.tuple_shapes[k]
        name, bits = _TYPES.get(shape.element_type, ("tuple" if shape.tuple_shapes else "?", 0))
        nbytes = -(-prod(shape.dimensions) * bits // 8) if bits else None
        text = f"{name}[{','.join(map(str, shape.dimensions))}]"
        return Shape(
            text, nbytes, tuple(shape.layout.minor_to_major), shape.layout.memory_space == HOST, prod(shape.dimensions)
        )

    # --- the uses of a value ------------------------------------------------------------------------------------------

    def passed_on(self, value: Value) -> Iterator[Value]:
        """The places where a value occurs next without being computed with: in a tuple, as the parameter of a loop's
        body, …"""
        number, index = value
        instruction = self.instructions[number]
        for user, place in self.users.get(number, ()):
            match user.opcode:
                case "bitcast" | "optimization-barrier" | "async-done":
                    yield user.id, index
                case "tuple":
                    yield user.id, (place, *index)
                case "get-tuple-element" if index and index[0] == user.tuple_index:
                    yield user.id, index[1:]
                case "while":
                    yield from ((self.computations[c].parameters[0], index) for c in user.called)
                    yield user.id, index
                case "call" | "async-start":
                    yield from ((self.computations[c].parameters[place], index) for c in user.called)
                case "conditional" if place > 0:
                    yield self.computations[user.called[place - 1]].parameters[0], index
        computation = self.computations[instruction.computation]
        holder = self.callers.get(computation.id)
        is_condition = holder is not None and holder.opcode == _LOOP and holder.called[0] != computation.id
        if number == computation.root and holder is not None and holder.opcode in _CALLS and not is_condition:
            yield holder.id, index

    def occurrences(self, value: Value, seen: set[Value] | None = None) -> list[Value]:
        """All places where a value occurs, its definition first, without those in `seen`, which are added to it."""
        places, seen = [value], {value} if seen is None else seen
        for place in places:
            for other in self.passed_on(place):
                if other not in seen:
                    seen.add(other)
                    places.append(other)
        return places

    def made_of(self, value: Value) -> Iterator[Value]:
        """The original of a value that its instruction only passes on: the inverse of `passed_on`, also into and out of
        fusions."""
        number, index = value
        instruction = self.instructions[number]
        operands = instruction.operands
        match instruction.opcode:
            case "bitcast" | "optimization-barrier" | "async-done":
                yield operands[0], index
            case "tuple" if index:
                yield operands[index[0]], index[1:]
            case "get-tuple-element":
                yield operands[0], (instruction.tuple_index, *index)
            case "while":
                yield self.body(instruction).root, index
            case "call" | "fusion" | "async-start":
                yield from ((self.computations[c].root, index) for c in instruction.called[:1])
            case "conditional":
                yield from ((self.computations[c].root, index) for c in instruction.called)
            case "all-reduce" | "all-reduce-start" | "all-gather" | "all-to-all" if index and index[0] < len(operands):
                yield operands[index[0]], ()  # several of them at once
            case "parameter":
                yield from self._passed(instruction, index)

    def _passed(self, parameter: Instruction, index: tuple[int, ...]) -> Iterator[Value]:
        holder = self.callers.get(parameter.computation)
        if holder is None:
            return
        if holder.opcode == _LOOP:
            yield holder.operands[0], index
        elif holder.opcode == "conditional":
            yield holder.operands[1 + holder.called.index(parameter.computation)], index
        else:
            yield holder.operands[parameter.parameter], index

    def lines(self, instruction: Instruction) -> Iterator[Location]:
        """The lines that JAX recorded for an instruction, innermost first."""
        return lines_of(self._frames, instruction.frame, instruction.source)


def lines_of(index: Any, frame: int, source: tuple[str, int]) -> Iterator[Location]:
    """The lines that JAX recorded for an instruction, innermost first.

    Args:
      index: the `StackFrames` message of its module.
      frame: the number of its innermost frame there.
      source: its file and line, if it has no frame.
    """
    left = len(index.stack_frames)
    if not 0 < frame <= left and source[0]:
        yield Location(*source, "")
    while 0 < frame <= len(index.stack_frames) and left:
        here = index.stack_frames[frame - 1]
        at = index.file_locations[here.file_location_id - 1]
        function = index.function_names[at.function_name_id - 1] if at.function_name_id else ""
        file = index.file_names[at.file_name_id - 1]
        yield Location(file, at.line, function, at.column, at.end_line, at.end_column)
        frame, left = here.parent_frame_id, left - 1


def _instruction(read: Any, computation: int) -> Instruction:
    metadata = read.metadata
    return Instruction(
        read.id, read.name, read.opcode, metadata.op_name, tuple(read.operand_ids), tuple(read.called_computation_ids),
        computation, read.shape, read.parameter_number, read.tuple_index, read.custom_call_target,
        metadata.stack_frame_id, (metadata.source_file, metadata.source_line), read,
    )  # fmt: skip
