"""The collectives of a compiled program: what each moves, between which devices, how often, and for which equations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxviz.higher_order import is_scan, scan_length
from jaxviz.xla.collectives.groups import Axes, groups_of
from jaxviz.xla.compiled_memory.attribution import Attribution
from jaxviz.xla.compiled_memory.module import Instruction, Module
from jaxviz.xla.compiled_memory.op_names import paths_of
from jaxviz.xla.compiled_memory.places import Places

KINDS = (
    "all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute", "collective-broadcast",
    "ragged-all-to-all",
)  # fmt: skip
"""XLA's collectives."""


def kind_of(opcode: str) -> str:
    """The collective that an instruction performs or starts; '' if it is none, or only waits for one."""
    kind = opcode.removesuffix("-start")
    return kind if kind in KINDS else ""


@dataclass(frozen=True, eq=False)
class Exchange:
    """A collective, or one of several that XLA combined.

    Args:
      instruction: its instruction in the compiled program.
      kind: one of `KINDS`.
      place: its operand, if the instruction combines several; otherwise -1.
      n_together: how many the instruction combines.
      axes: the mesh axes along which devices exchange values; () if they are along none.
      group_size: the number of devices that exchange values.
      type: the type of one device's operand.
      operand_nbytes, result_nbytes: bytes of one device's operand and result.
      sent: the minimum bytes that a device sends.
      trips: how often it runs in one run of the program; None if unknown.
      size: the number of elements of one device's operand.
      paths: JAX's names for what it is for, or for the argument that it moves.
      numbers: the numbers of the equations that it is named after.
      served: if it moves a value, the numbers of the equations that read the result.
    """

    instruction: Instruction
    kind: str
    place: int
    n_together: int
    axes: tuple[str, ...]
    group_size: int
    type: str
    operand_nbytes: int
    result_nbytes: int
    sent: int
    trips: int | None
    size: int
    paths: tuple[str, ...]
    numbers: tuple[int, ...]
    served: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes on one device of the exchanged array, before or after, whichever is larger."""
        return max(self.operand_nbytes, self.result_nbytes)


@dataclass(frozen=True, eq=False)
class Reading:
    """A compiled program, parsed.

    Args:
      read: its `Module` message.
      module: the program.
      places: the equations that it comes from.
      axes: the axes of its meshes.
      n_devices: the number of devices that it runs on.
    """

    read: Any
    module: Module
    places: Places
    axes: Axes
    n_devices: int

    def exchanges(self) -> list[Exchange]:
        """Its collectives, in the order in which they run."""
        raw = {i.id: i for c in self.read.computations for i in c.instructions}
        instructions = [i for i in self.module.instructions.values() if kind_of(i.opcode)]
        at = self.module.time
        instructions.sort(key=lambda i: (at.get(i.id, len(at)), i.id))
        return [e for i in instructions for e in self._of(i, raw[i.id], raw)]

    def _of(self, instruction: Instruction, read: Any, raw: dict[int, Any]) -> Iterator[Exchange]:
        kind = kind_of(instruction.opcode)
        if kind == "collective-permute":
            pairs = [(p.source, p.target) for p in read.source_target_pairs]
            axes = self.axes.between(pairs)
            size = len({d for pair in pairs for d in pair})
        else:
            groups = groups_of(read, self.n_devices)
            axes, size = self.axes.along(groups), max(map(len, groups))
        operands = instruction.operands
        # The operands of an all-to-all are parts of one exchange; those of the other collectives are separate values.
        parts = [operands] if kind in ("all-to-all", "ragged-all-to-all") else [(o,) for o in operands]
        of_part = self._numbers(instruction, parts)
        trips = self._trips(instruction, raw, of_part[0])
        paths = tuple(paths_of(instruction)) or (re.sub(r"\\(.)", r"\1", instruction.path),)
        for place, (part, numbers) in enumerate(zip(parts, of_part, strict=True)):
            shapes = [self.module.shape((o, ())) for o in part[: 1 if kind == "ragged-all-to-all" else None]]
            operand_nbytes = sum(s.nbytes or 0 for s in shapes)
            text = shapes[0].text if len(shapes) == 1 else f"{len(shapes)} × {shapes[0].text}"
            result_nbytes = (
                operand_nbytes * size
                if kind == "all-gather"
                else operand_nbytes // size
                if kind == "reduce-scatter"
                else operand_nbytes
            )
            yield Exchange(
                instruction, kind, place if len(parts) > 1 else -1, len(parts), axes, size, text, operand_nbytes,
                result_nbytes,
                sent_by(kind, max(operand_nbytes, result_nbytes), size), trips, sum(s.size for s in shapes), paths,
                numbers, self._served(instruction, kind, place if len(parts) > 1 else -1),
            )  # fmt: skip

    def _numbers(self, instruction: Instruction, parts: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """For each part of an instruction the numbers of its equations."""
        attribution = Attribution(self.module, self.places, self.n_devices)
        named = [self.places.tags.named(path) for path in paths_of(instruction)]
        every = tuple(dict.fromkeys(n for numbers in named for n in numbers))
        if len(parts) == 1 and every:
            return [every]
        of_parts: list[tuple[int, ...]] = []
        for place, part in enumerate(parts):
            traced = attribution.traced((part[0], ()))
            numbers = traced.numbers if traced is not None else ()
            if every and not set(numbers) <= set(every):
                numbers = ()
            if not numbers and len(named) == len(parts):
                numbers = named[place]
            if not numbers and not every:
                served = attribution.serving((instruction.id, (place,) if len(parts) > 1 else ()))
                numbers = served.numbers if served is not None else ()
            of_parts.append(numbers or every)
        return of_parts

    def _served(self, instruction: Instruction, kind: str, place: int) -> tuple[int, ...]:
        """The numbers of the readers of a moved value."""
        if kind in ("all-reduce", "reduce-scatter"):
            return ()
        attribution = Attribution(self.module, self.places, self.n_devices)
        readers = attribution.serving((instruction.id, (place,) if place >= 0 else ()))
        return readers.numbers if readers is not None else ()

    def _trips(self, instruction: Instruction, raw: dict[int, Any], numbers: Sequence[int]) -> int | None:
        trips, computation = 1, instruction.computation
        lengths = [scan_length(e) for n in numbers[:1] for e in self.places.found[n].within if is_scan(e)]
        while computation in self.module.callers:
            holder = self.module.callers[computation]
            if holder.opcode == "while":
                known = _known_trips(raw[holder.id].backend_config)
                inner = lengths.pop() if lengths else None
                if known is None and inner is None:
                    return None
                trips *= known if known is not None else inner or 1
            computation = holder.computation
        return trips


def _known_trips(config: bytes) -> int | None:
    """The trip count of a loop, as XLA records it."""
    try:
        return int(json.loads(config)["known_trip_count"]["n"])
    except (ValueError, KeyError, TypeError):
        return None


def sent_by(kind: str, nbytes: int, n: int) -> int:
    """The minimum bytes that each of n devices has to send for a collective on an array of this many bytes.

    An all-reduce sends each part of the array twice: once to be summed, and once the sum.
    """
    if kind == "collective-permute":
        return nbytes
    return (2 if kind == "all-reduce" else 1) * nbytes * (n - 1) // n
