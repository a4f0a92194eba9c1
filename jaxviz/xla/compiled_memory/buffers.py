"""Where and when a compiled program stores its values: XLA's buffer assignment, joined with the schedule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxviz.xla.compiled_memory.module import HOST, Instruction, Module, Value

Role = Literal["argument", "constant", "result", "temporary", "host"]
"""What memory is for; or that it is the host's, for whatever."""


@dataclass(eq=False, slots=True)
class Buffer:
    """The memory of one value of a compiled program, or of several values that share it, such as a loop's carry.

    Args:
      offset, nbytes: its place in the allocation, in bytes.
      values: the values in it, in order.
      spans: the first and the last position in the schedule of each time that it is needed.
    """

    offset: int
    nbytes: int
    values: list[Value]
    spans: list[tuple[int, int]]

    def is_alive(self, time: int) -> bool:
        """Whether it is needed at a position of the schedule."""
        return any(first <= time <= last for first, last in self.spans)

    def shares_memory(self, other: Buffer) -> bool:
        """Whether its allocation also contains another buffer at some of its bytes, at another time."""
        return self.offset < other.offset + other.nbytes and other.offset < self.offset + self.nbytes


@dataclass(eq=False, slots=True)
class Allocation:
    """Memory that XLA allocates as a whole.

    Args:
      nbytes: its size.
      role: what it is for. Only temporaries share theirs; that of a result may be used by temporaries before.
      parameter: the number of its argument in the compiled program.
      results: for results, their numbers.
      buffers: the buffers in it.
    """

    nbytes: int
    role: Role
    parameter: int = 0
    results: tuple[int, ...] = ()
    buffers: list[Buffer] = field(default_factory=list)


def read_allocations(assignment: Any, module: Module) -> list[Allocation]:
    """The allocations of a compiled program, by its `Assignment` message, with their buffers and when these are alive.

    Thread-local memory, a few bytes on its stack, is not included.
    """
    defined: dict[int, Value] = {
        b.id: (b.defined_at.instruction_id, tuple(b.defined_at.shape_index)) for b in assignment.logical_buffers
    }
    places = _places(module, set(defined.values()))
    allocations = []
    for a in assignment.buffer_allocations:
        if a.is_thread_local:
            continue
        role: Role = "argument" if a.is_entry_computation_parameter else "constant" if a.is_constant else "temporary"
        if a.color == HOST:
            role = "host"
        elif role == "temporary" and a.maybe_live_out:
            role = "result"
        allocation = Allocation(a.size, role, a.parameter_number)
        by_slot: dict[tuple[int, int], list[tuple[Value, tuple[int, int]]]] = {}
        for s in a.assigned:
            value = defined[s.logical_buffer_id]
            if value[0] in module.time:
                by_slot.setdefault((s.offset, s.size), []).append((value, _span(module, value, places[value])))
        for (offset, size), values in by_slot.items():
            allocation.buffers += _buffers(module, offset, size, values, places)
        _end_where_written_over(allocation.buffers)
        if a.maybe_live_out:
            allocation.results = tuple(_results(module, allocation, places))
        allocations.append(allocation)
    return allocations


def _places(module: Module, defined: set[Value]) -> dict[Value, list[Value]]:
    """For each value that is defined somewhere, all places where it occurs, its definition first."""
    seen = set(defined)
    return {value: module.occurrences(value, seen) for value in defined}


_PASS_ON = ("get-tuple-element", "tuple", "bitcast", "optimization-barrier")


def _span(module: Module, value: Value, places: list[Value]) -> tuple[int, int]:
    """From when a value exists until it is last read."""
    maker = module.instructions[value[0]]
    first = module.time[value[0]]
    holder = module.callers.get(maker.computation)
    if maker.opcode == "parameter":
        first = module.span[maker.computation][0]
    last = first
    if maker.opcode == "parameter" and holder is not None and holder.opcode == "while":
        body = module.body(holder)
        if maker.computation != body.id:  # what a condition reads is also passed to the body
            last = module.span[body.id][0]
    for number, _ in places:
        instruction = module.instructions[number]
        computation = module.computations[instruction.computation]
        if number == computation.root and computation.id in module.span:
            last = max(last, module.span[computation.id][1])
        for user, _ in module.users.get(number, ()):
            if user.id not in module.time or user.opcode in _PASS_ON:
                continue
            time = module.time[user.id]
            if user.opcode == "while":  # from then on the carry has its own buffer, possibly this one
                time = min(module.span[c][0] for c in user.called if c in module.span)
            last = max(last, time)
    return first, last


def _buffers(
    module: Module, offset: int, size: int, values: list[tuple[Value, tuple[int, int]]],
    places: dict[Value, list[Value]],
) -> Iterator[Buffer]:  # fmt: skip
    """The values of one allocation, with those that have to share memory combined."""
    in_slot = {value for value, _ in values}
    home = {place: value for value, _ in values for place in places[value]}
    group = {value: value for value in in_slot}

    def root(value: Value) -> Value:
        while group[value] != value:
            value = group[value]
        return value

    for value in in_slot:
        for place in _same_memory(module, value, places[value]):
            if place in home:
                group[root(home[place])] = root(value)
    together: dict[Value, list[tuple[Value, tuple[int, int]]]] = {}
    for value, span in sorted(values, key=lambda v: (v[1], v[0])):
        together.setdefault(root(value), []).append((value, span))
    for g in together.values():
        yield Buffer(offset, size, [v for v, _ in g], _joined(sorted(span for _, span in g)))


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    intervals: list[tuple[int, int]] = []
    for first, last in spans:
        if intervals and first <= intervals[-1][1] + 1:
            intervals[-1] = intervals[-1][0], max(intervals[-1][1], last)
        else:
            intervals.append((first, last))
    return intervals


def _end_where_written_over(buffers: list[Buffer]) -> None:
    """In the step that reads one value and overwrites it with another one, the memory belongs to the new one."""
    begin: dict[int, list[Buffer]] = {}
    for buffer in buffers:
        for first, _ in buffer.spans:
            begin.setdefault(first, []).append(buffer)
    for buffer in buffers:
        for k, (first, last) in enumerate(buffer.spans):
            others = (other for other in begin.get(last, ()) if other is not buffer)
            if first < last and any(map(buffer.shares_memory, others)):
                buffer.spans[k] = first, last - 1


def _same_memory(module: Module, value: Value, places: list[Value]) -> Iterator[Value]:
    """The values that XLA has to store in the same place: a loop's carry, the branches of a conditional, and in-place
    updates."""
    for number, index in places:
        for user, place in module.users.get(number, ()):
            if user.opcode == "while":
                yield user.id, index
                yield from ((module.computations[c].parameters[0], index) for c in user.called)
            elif user.opcode == "dynamic-update-slice" and place == 0:
                yield user.id, index
            elif user.opcode == "fusion":
                yield from _updated_in_place(module, user, place)
        computation = module.computations[module.instructions[number].computation]
        holder = module.callers.get(computation.id)
        if number == computation.root and holder is not None and holder.opcode in ("while", "conditional", "call"):
            yield holder.id, index


def _updated_in_place(module: Module, fusion: Instruction, place: int) -> Iterator[Value]:
    """The results of a fusion that update a slice of one of its operands in place."""
    inside = module.computations[fusion.called[0]]
    root = module.instructions[inside.root]
    results = [((k,), o) for k, o in enumerate(root.operands)] if root.opcode == "tuple" else [((), root.id)]
    for index, number in results:
        instruction = module.instructions[number]
        while instruction.opcode in ("bitcast", "copy") and instruction.operands:
            instruction = module.instructions[instruction.operands[0]]
        while instruction.opcode == "dynamic-update-slice":
            instruction = module.instructions[instruction.operands[0]]
            while instruction.opcode in ("bitcast", "copy") and instruction.operands:
                instruction = module.instructions[instruction.operands[0]]
            if instruction.id == inside.parameters[place]:
                yield fusion.id, index


def _results(module: Module, allocation: Allocation, places: dict[Value, list[Value]]) -> Iterator[int]:
    """The results of the program that are in an allocation."""
    root = module.entry.root
    is_tuple = module.instructions[root].opcode == "tuple"
    for buffer in allocation.buffers:
        for value in buffer.values:
            for number, index in places[value]:
                if number == root and (index or not is_tuple):
                    yield index[0] if index else 0
