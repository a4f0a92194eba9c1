"""The collectives of a compiled program: what each moves, between which devices and along which axes of the mesh, how
often, and for which equations."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from jaxviz.higher_order import is_scan, scan_length
from jaxviz.ir.origin import Location
from jaxviz.ir.own_code import is_own
from jaxviz.ir.syntax import Atom
from jaxviz.report.data import Data
from jaxviz.xla.compat.reshards import Need
from jaxviz.xla.compiled_memory.attribution import Attribution
from jaxviz.xla.compiled_memory.module import Instruction, Module
from jaxviz.xla.compiled_memory.op_names import paths_of
from jaxviz.xla.compiled_memory.places import Places

KINDS = (
    "all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute", "collective-broadcast",
    "ragged-all-to-all",
)  # fmt: skip
"""XLA's collectives."""
SUMMED = ("all-reduce", "reduce-scatter")


def kind_of(opcode: str) -> str:
    """The collective that an instruction performs or starts; '' if it is none, or only waits for one."""
    kind = opcode.removesuffix("-start")
    return kind if kind in KINDS else ""


@dataclass(frozen=True, eq=False)
class ExchangeCause:
    """Why devices exchange a value.

    Args:
      text: the cause, in a sentence.
      kind: 'written' for a collective of the program itself, or its transpose; 'cotangent' for the cotangent of a value
        that is replicated, or gathered, on devices that read different parts of another; 'sum' for a sum over a split
        dimension; 'asked' for a sharding that the program requests; 'move' for one that an operation needs.
      number: the number of the equation that needs it.
      value: the exchanged value, or the value whose cotangent is exchanged, if known.
      need: Shardy's record of it; None for a collective of the program itself.
    """

    text: str
    kind: str
    number: int
    value: Atom | None = None
    need: Need | None = None


@dataclass(frozen=True, eq=False)
class Exchange:
    """A collective, or one of several that XLA combined.

    Args:
      instruction: its instruction in the compiled program.
      kind: one of `KINDS`.
      n_together: how many the instruction combines.
      axes: the mesh axes along which devices exchange values; () if they are along none.
      group_size: the number of devices that exchange values.
      type: the type of one device's operand.
      nbytes: bytes on one device of the exchanged array, before or after, whichever is larger.
      result_nbytes: bytes of one device's result.
      sent: the minimum bytes that a device sends.
      trips: how often it runs in one run of the program; None if unknown.
      size: the number of elements of one device's operand.
      paths: JAX's names for what it is for, or for the argument that it moves.
      numbers: the numbers of the equations that it is named after.
      served: if it moves a value, the numbers of the equations that read the result.
      cause: why it is there; None if that is unknown.
    """

    instruction: Instruction
    kind: str
    n_together: int
    axes: tuple[str, ...]
    group_size: int
    type: str
    nbytes: int
    result_nbytes: int
    sent: int
    trips: int | None
    size: int
    paths: tuple[str, ...]
    numbers: tuple[int, ...]
    served: tuple[int, ...] = ()
    cause: ExchangeCause | None = None

    @property
    def number(self) -> int | None:
        """The number of the equation that it is for; None if unknown."""
        if self.cause is not None:
            return self.cause.number
        return self.numbers[0] if self.numbers else None


@dataclass(frozen=True, eq=False)
class Reading:
    """A compiled program, the equations that it comes from, and the axes of its meshes."""

    module: Module
    places: Places
    axes: Axes
    n_devices: int

    @cached_property
    def attribution(self) -> Attribution:
        return Attribution(self.module, self.places, self.n_devices)

    def exchanges(self) -> list[Exchange]:
        """Its collectives, in the order in which they run."""
        instructions = [i for i in self.module.instructions.values() if kind_of(i.opcode)]
        at = self.module.time
        instructions.sort(key=lambda i: (at.get(i.id, len(at)), i.id))
        return [e for i in instructions for e in self._of(i)]

    def _of(self, instruction: Instruction) -> Iterator[Exchange]:
        kind = kind_of(instruction.opcode)
        if kind == "collective-permute":
            pairs = [(p.source, p.target) for p in instruction.message.source_target_pairs]
            axes = self.axes.between(pairs)
            size = len({d for pair in pairs for d in pair})
        else:
            groups = groups_of(instruction.message, self.n_devices)
            axes, size = self.axes.along(groups), max(map(len, groups))
        operands = instruction.operands
        # The operands of an all-to-all are parts of one exchange; those of the other collectives are separate values.
        parts = [operands] if kind in ("all-to-all", "ragged-all-to-all") else [(o,) for o in operands]
        of_part = self._numbers(instruction, parts)
        trips = self._trips(instruction, of_part[0])
        paths = tuple(paths_of(instruction)) or (re.sub(r"\\(.)", r"\1", instruction.path),)
        for place, (part, numbers) in enumerate(zip(parts, of_part, strict=True)):
            shapes = [self.module.shape((o, ())) for o in part[: 1 if kind == "ragged-all-to-all" else None]]
            operand_nbytes = sum(s.nbytes or 0 for s in shapes)
            text = shapes[0].text if len(shapes) == 1 else f"{len(shapes)} × {shapes[0].text}"
            resized = {"all-gather": operand_nbytes * size, "reduce-scatter": operand_nbytes // size}
            result_nbytes = resized.get(kind, operand_nbytes)
            nbytes = max(operand_nbytes, result_nbytes)
            served = () if kind in SUMMED else self._served(instruction, (place,) if len(parts) > 1 else ())
            yield Exchange(
                instruction, kind, len(parts), axes, size, text, nbytes, result_nbytes, sent_by(kind, nbytes, size),
                trips, sum(s.size for s in shapes), paths, numbers, served,
            )  # fmt: skip

    def _numbers(self, instruction: Instruction, parts: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """For each part of an instruction the numbers of its equations."""
        named = [self.places.tags.named(path) for path in paths_of(instruction)]
        every = tuple(dict.fromkeys(n for numbers in named for n in numbers))
        if len(parts) == 1 and every:
            return [every]
        of_parts: list[tuple[int, ...]] = []
        for place, part in enumerate(parts):
            traced = self.attribution.traced((part[0], ()))
            numbers = traced.numbers if traced is not None else ()
            if every and not set(numbers) <= set(every):
                numbers = ()
            if not numbers and len(named) == len(parts):
                numbers = named[place]
            if not numbers and not every:
                numbers = self._served(instruction, (place,) if len(parts) > 1 else ())
            of_parts.append(numbers or every)
        return of_parts

    def _served(self, instruction: Instruction, index: tuple[int, ...]) -> tuple[int, ...]:
        """The numbers of the readers of a value."""
        readers = self.attribution.serving((instruction.id, index))
        return readers.numbers if readers is not None else ()

    def _trips(self, instruction: Instruction, numbers: Sequence[int]) -> int | None:
        trips, computation = 1, instruction.computation
        lengths = [scan_length(e) for n in numbers[:1] for e in self.places.makers[n].within if is_scan(e)]
        while computation in self.module.callers:
            holder = self.module.callers[computation]
            if holder.opcode == "while":
                known = _known_trips(holder.message.backend_config)
                inner = lengths.pop() if lengths else None
                if known is None and inner is None:
                    return None
                trips *= known if known is not None else inner or 1
            computation = holder.computation
        return trips


@dataclass(frozen=True, slots=True)
class MovedByLine(Data):
    """What devices exchange for a line, as a compiled program says it alone; an asynchronous collective counts as one.

    Args:
      kind: one of `KINDS`.
      location: the user's line that JAX recorded; None if it recorded none.
      count: how many there are.
      group_size: the number of devices that exchange values.
      sent: the minimum bytes that a device sends in one run of the program, as far as the loops' trips are known.
      is_known: whether they are.
    """

    kind: str
    location: Location | None
    count: int
    group_size: int
    sent: int
    is_known: bool


def moved_by_line(module: Module, n_devices: int) -> tuple[MovedByLine, ...]:
    """What devices exchange in a compiled program, the most bytes first."""
    rows: dict[tuple[Any, ...], list[tuple[int, bool]]] = {}
    for i in module.instructions.values():
        if not (kind := kind_of(i.opcode)):
            continue
        pairs = i.message.source_target_pairs
        size = len({d for p in pairs for d in (p.source, p.target)}) or max(map(len, groups_of(i.message, n_devices)))
        nbytes = sum(module.shape((o, ())).nbytes or 0 for o in i.operands)
        sent = sent_by(kind, nbytes * size if kind == "all-gather" else nbytes, size)
        trips = [_known_trips(loop.message.backend_config) for loop in _loops(module, i)]
        line = next((at for at in module.lines(i) if is_own(at.file)), None)
        place = None if line is None else Location(line.file, line.line, line.function)
        rows.setdefault((kind, place, size), []).append((sent * math.prod(n or 1 for n in trips), None not in trips))
    found = (
        MovedByLine(kind, place, len(of), size, sum(sent for sent, _ in of), all(known for _, known in of))
        for (kind, place, size), of in rows.items()
    )
    return tuple(sorted(found, key=lambda row: -row.sent))


def _loops(module: Module, instruction: Instruction) -> Iterator[Instruction]:
    """The loops that contain an instruction, innermost first."""
    computation = instruction.computation
    while (holder := module.callers.get(computation)) is not None:
        if holder.opcode == "while":
            yield holder
        computation = holder.computation


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


# --- groups of devices ------------------------------------------------------------------------------------------------

Groups = tuple[tuple[int, ...], ...]


def groups_of(read: Any, n_devices: int) -> Groups:
    """The groups of devices of an instruction, each as indices in the order in which XLA counts them.

    Args:
      read: its `Instruction` message.
      n_devices: the number of devices; an instruction without groups has all of them in one.
    """
    if read.HasField("mesh_device_list"):
        return _of_mesh(read.mesh_device_list)
    devices = read.collective_device_list if read.HasField("collective_device_list") else None
    if read.HasField("iota_device_list"):
        return _of_iota(read.iota_device_list)
    if devices is not None and devices.HasField("iota"):
        return _of_iota(devices.iota)
    listed = devices.replica_groups if devices is not None and devices.replica_groups else read.replica_groups
    groups = tuple(tuple(group.replica_ids) for group in listed)
    return groups if any(groups) else (tuple(range(n_devices)),)


def _of_iota(iota: Any) -> Groups:
    return _rows(_order(iota).reshape(iota.n_groups, iota.group_size))


def _order(iota: Any) -> np.ndarray:
    devices = np.arange(math.prod(iota.reshaped)).reshape(tuple(iota.reshaped))
    return devices.transpose(tuple(iota.transposed)) if iota.transposed else devices


def _of_mesh(listed: Any) -> Groups:
    mesh = listed.mesh
    sizes = [axis.size for axis in mesh.axes]
    if mesh.device_ids:
        devices = np.array(mesh.device_ids)
    elif mesh.HasField("iota"):
        devices = _order(mesh.iota)
    else:
        devices = np.arange(math.prod(sizes))
    # If only part of an axis is meant, split the axis: what comes before the part, the part, and what comes after.
    dims: list[int] = []
    parts: dict[int, list[tuple[int, int]]] = {}
    for ref in listed.axes:
        part = (ref.part.before, ref.part.size) if ref.HasField("part") else (1, sizes[ref.axis])
        parts.setdefault(ref.axis, []).append(part)
    chosen: dict[tuple[int, int], int] = {}
    for axis, size in enumerate(sizes):
        reached = 1
        for before, n in sorted(parts.get(axis, [])):
            dims.append(before // reached)
            chosen[axis, before] = len(dims)
            dims.append(n)
            reached = before * n
        dims.append(size // reached)
    order = [chosen[ref.axis, ref.part.before if ref.HasField("part") else 1] for ref in listed.axes]
    rest = [d for d in range(len(dims)) if d not in order]
    grouped = devices.reshape(dims).transpose(rest + order)
    return _rows(grouped.reshape(-1, math.prod(dims[d] for d in order)))


def _rows(devices: np.ndarray) -> Groups:
    return tuple(tuple(map(int, row)) for row in devices)


@dataclass(frozen=True)
class Axes:
    """The axes of a program's meshes.

    Args:
      meshes: the size of each axis, by mesh.
      order: by mesh the positions of its devices in XLA's order, if they are not in order.
    """

    meshes: Mapping[str, Mapping[str, int]]
    order: Mapping[str, Sequence[int]]

    def along(self, groups: Groups) -> tuple[str, ...]:
        """The axes along which the devices of each group are arranged; () if there are none."""
        return self._axes_of.get(_canonical(groups), ())

    def between(self, pairs: Sequence[tuple[int, int]]) -> tuple[str, ...]:
        """The axes along which pairs of devices differ; () if the devices belong to no mesh."""
        n = 1 + max(max(pair) for pair in pairs) if pairs else 0
        for name, mesh in self.meshes.items():
            places = self._places(name)
            if n <= places.size:
                where = {int(d): at for at, d in np.ndenumerate(places)}
                differs = {
                    k for a, b in pairs for k, (x, y) in enumerate(zip(where[a], where[b], strict=True)) if x != y
                }
                if differs:
                    return tuple(axis for k, axis in enumerate(mesh) if k in differs)
        return ()

    def _places(self, name: str) -> np.ndarray:
        sizes = tuple(self.meshes[name].values())
        order = self.order.get(name) or range(math.prod(sizes))
        return np.array(tuple(order)).reshape(sizes)

    @cached_property
    def _axes_of(self) -> dict[frozenset[frozenset[int]], tuple[str, ...]]:
        axes_of: dict[frozenset[frozenset[int]], tuple[str, ...]] = {}
        for name, mesh in self.meshes.items():
            places, names = self._places(name), list(mesh)
            for n in range(1, len(names) + 1):
                for chosen in itertools.combinations(range(len(names)), n):
                    rest = [k for k in range(len(names)) if k not in chosen]
                    rows = places.transpose([*rest, *chosen]).reshape(-1, math.prod(places.shape[k] for k in chosen))
                    axes = tuple(names[k] for k in chosen if places.shape[k] > 1) or tuple(names[k] for k in chosen)
                    axes_of.setdefault(_canonical(_rows(rows)), axes)
        return axes_of


def _canonical(groups: Groups) -> frozenset[frozenset[int]]:
    return frozenset(map(frozenset, groups))
