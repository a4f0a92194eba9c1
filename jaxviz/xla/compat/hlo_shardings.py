"""Parses XLA's text for the layout of a value into the mesh axes that divide each of its dimensions."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

Dims = tuple[tuple[str, ...], ...]
"""For each dimension the axes that divide it, the slowest first; a part of an axis is `model:(1)2`."""

_TILES = re.compile(r"devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))(.*)")
_NAMED = re.compile(r"mesh\[(.*?)\](?:, device_ids=\(.*?\))?, \[(.*?)\](?:[,} ]|$)")
_AXIS = re.compile(r"'([^']+)'(:\(\d+\)\d+)?")


def dims_of(text: str, rank: int | None, mesh: Mapping[str, int]) -> Dims | None:
    """The axes that divide each dimension.

    >>> dims_of("{devices=[2,1,4]<=[8] last_tile_dim_replicate}", 2, {"data": 2, "model": 4})
    (('data',), ())

    Args:
      text: as XLA writes it; JAX 0.12 names the axes: `{mesh['data'=2,'model'=4], [{'data'}, {}]}`.
      rank: the number of dimensions; None if it follows from the text.
      mesh: the size of each axis.

    Returns:
      None if the text does not say, as for a value that is on one device or manual, or if no axes of the mesh match.
    """
    return _dims_of(text, rank, tuple(mesh.items()))


@lru_cache(maxsize=4096)
def _dims_of(text: str, rank: int | None, mesh: tuple[tuple[str, int], ...]) -> Dims | None:
    text = text.strip()
    if text.startswith("{replicated"):
        return None if rank is None else ((),) * rank
    named = _NAMED.search(text)
    if named:
        dims = re.findall(r"\{([^}]*)\}", named[2])
        axes = tuple(tuple("".join(axis) for axis in _AXIS.findall(dim)) for dim in dims)
        return axes if rank in (None, len(axes)) else None
    tiles = _TILES.search(text)
    if tiles is None or "manual" in text:
        return None
    shape = _numbers(tiles[1])
    rank = len(shape) - ("last_tile_dim_replicate" in text) if rank is None else rank
    if tiles[4]:
        devices = np.array(_numbers(tiles[4]))
    else:
        reshaped = _numbers(tiles[2])
        devices = np.arange(math.prod(reshaped)).reshape(reshaped)
        devices = devices.transpose(_numbers(tiles[3])) if tiles[3] else devices
    if devices.size != math.prod(size for _, size in mesh) or len(shape) < rank:
        return None
    tiled = devices.reshape(shape)
    return _fitted(tiled, rank, mesh, mesh) or _fitted(tiled, rank, mesh, _primes(mesh))


def _fitted(
    devices: np.ndarray, rank: int, mesh: Sequence[tuple[str, int]], pieces: Sequence[tuple[str, int]]
) -> Dims | None:
    """The mesh axes whose positions change along each dimension of the tiles."""
    places = np.unravel_index(devices, [size for _, size in pieces] or [1])
    dims: list[list[tuple[int, str]]] = [[] for _ in devices.shape]
    for (name, size), place in zip(pieces, places, strict=False):
        along = [d for d in range(devices.ndim) if (np.diff(place, axis=d) != 0).any()]
        if size > 1 and len(along) != 1:
            return None
        for d in along:
            line = np.moveaxis(place, d, 0).reshape(devices.shape[d], -1)[:, 0]
            # The distance along the dimension to the axis's next position: the larger, the slower the axis varies.
            dims[d].append((-int(np.argmax(line != line[0])), name))
    return tuple(_joined([name for _, name in sorted(d)], mesh) for d in dims[:rank])


def _primes(mesh: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """The axes split into the smallest possible parts, each with its size."""
    primes: list[tuple[str, int]] = []
    for name, size in mesh:
        before, left = 1, size
        while left > 1:
            part = next(p for p in range(2, left + 1) if left % p == 0)
            primes.append((name if part == size else f"{name}:({before}){part}", part))
            before, left = before * part, left // part
    return primes


def _joined(names: Sequence[str], mesh: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """Parts of an axis that follow each other, as one part, or as the axis if they form all of it; Shardy takes them
    only like this."""
    full_axes = {f"{name}:(1){size}": name for name, size in mesh}
    axes: list[str] = []
    for part in names:
        before, here = (_PART.fullmatch(n) for n in (axes[-1] if axes else "", part))
        if before and here and before[1] == here[1] and int(before[2]) * int(before[3]) == int(here[2]):
            part = f"{before[1]}:({before[2]}){int(before[3]) * int(here[3])}"
            axes.pop()
        axes.append(full_axes.get(part, part))
    return tuple(axes)


_PART = re.compile(r"(.+):\((\d+)\)(\d+)")


def _numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def apart(text: str) -> list[str]:
    """Splits the layouts of several values, `{{replicated}, {manual}}`; that of a single value is returned alone."""
    inner = text.strip()
    if not inner.startswith("{{"):
        return [inner]
    parts, depth, start = [], 0, 0
    for i, c in enumerate(inner[1:-1], 1):
        if c == "{":
            start = i if depth == 0 else start
            depth += 1
        elif c == "}":
            depth -= 1
            if depth == 0:
                parts.append(inner[start : i + 1])
    return parts
