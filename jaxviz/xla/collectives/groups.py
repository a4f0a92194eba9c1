"""Which devices exchange values, and along which axes of the mesh they are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

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
