"""An array in 23 numbers, by which it is compared with the same array of another run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.ir import compat
from jaxviz.ir.syntax import Program

NAMES = ("norm", "max", "mean", "zeros", "not finite", "bits", "bits of the rest")
"""The statistics, each of the finite elements: the Euclidean norm, the largest magnitude, the mean, how many are zero,
how many are not finite, and both halves of a sum of their bits, which tells whether two arrays are the same."""
NORM, MAX, MEAN, ZEROS, BAD, *BITS = range(len(NAMES))
N_SKETCH = 16
SKETCH = slice(len(NAMES), len(NAMES) + N_SKETCH)
WIDTH = SKETCH.stop
_ODD = np.uint32(2654435761)
_MIXED = np.uint32(0x85EBCA6B)
_OF_ARRAY = 0xC2B2AE35
_FIRST = np.uint32(0)
_FAR = 2.0**96


MOST_NOISE = 10.0
"""How many times what rounding may change two values differ before they are said to differ: of the pairs of equal
programs that the tests compare none is above a third of that."""
LEAST_NOISE = 2.0
"""In units of the last place: no value is said to differ by less than what rounding it twice may change."""
MOST = 1e9
"""What is written for more, and for a value that is not finite in one run only."""


def _automatically(fun: Callable[..., Any], x: Any, out_spec: Any) -> Callable[..., Any]:
    """A function in which XLA lays out what is computed along explicit axes of devices, if `x` has any; these are
    strict about shapes that the function does not keep.

    Args:
      x: an array that is given to it.
      out_spec: how what it returns is laid out.
    """
    sharding = compat.aval_of(x).sharding
    if not sharding.mesh.explicit_axes:
        return fun
    laid_out = jax.sharding.NamedSharding(sharding.mesh, out_spec)
    automatic: Callable[..., Any] = jax.sharding.auto_axes(fun, axes=sharding.mesh.explicit_axes, out_sharding=laid_out)
    return automatic


def columns(x: Any) -> Any:
    """float32[10, 16]: what `finished` makes a summary of, in one pass over an array."""
    return _automatically(_columns, x, jax.sharding.PartitionSpec())(x)


def _columns(x: Any) -> Any:
    x = jax.lax.stop_gradient(x)
    parts = [x.real, x.imag] if jnp.iscomplexobj(x) else [x]
    flat = jnp.concatenate([jnp.ravel(p).astype(jnp.float32) for p in parts])
    place = jax.lax.iota(jnp.uint32, max(flat.size, 1))[: flat.size]
    is_finite = jnp.isfinite(flat)
    finite = jnp.where(is_finite, flat, 0)
    signed = jnp.where(_random(place) >> 31, -finite, finite)
    # Mixed with the position, and added up, so that the result does not depend on the order in which it is computed.
    bits = _random(jax.lax.bitcast_convert_type(flat, jnp.uint32) ^ (place * _ODD))
    counts = [(flat == 0).astype(jnp.float32), (~is_finite).astype(jnp.float32)]
    scaled = [jnp.square(finite / _FAR), jnp.square(finite * _FAR)]  # of numbers whose squares float32 does not hold
    rows = [finite * finite, jnp.abs(finite), finite, *counts, bits, signed, *scaled]
    # In one reduction, since XLA makes a loop of each, and takes as long to compile every one of them.
    rows = [jnp.pad(r, (0, -flat.size % N_SKETCH)).reshape(-1, N_SKETCH) for r in rows]
    join = [jnp.maximum if i == MAX else jnp.add for i in range(len(rows))]
    both = lambda a, b: [f(p, q) for f, p, q in zip(join, a, b, strict=True)]
    *sums, bits, sketch, large, small = jax.lax.reduce(rows, [r.dtype.type(0) for r in rows], both, (0,))
    halves = [(bits >> 16).astype(jnp.float32), (bits & 0xFFFF).astype(jnp.float32)]
    return jnp.stack([*sums, *halves, sketch, large, small])


def last_place(avals: Iterable[Any]) -> float:
    """The last place of the coarsest of some types, but for those of 8 bits, which arguments are not moved in: what is
    moved less is rounded to another of their few numbers often enough."""
    dtypes = {a.dtype for a in avals if isinstance(getattr(a, "dtype", None), np.dtype) and a.dtype.itemsize > 1}
    return max((float(jnp.finfo(d).eps) for d in dtypes if jnp.issubdtype(d, jnp.inexact)), default=0.0)


def last_place_in(program: Program) -> float:
    """The same of the types that a program computes in: of the roundings of the coarsest XLA leaves out some, and
    others in another version, on another machine or in an equal function."""
    return last_place(v.aval for _, e in program.walk() for v in e.outvars)


TOGETHER = 2**18
"""Elements of arrays of one type that are made summaries of at once: few, since they are in memory together."""


def together(avals: Sequence[Any]) -> list[list[int]]:
    """Which of some arrays are made summaries of at once: small ones of one type, whose reduction and result are one.
    XLA takes as long to compile each of several."""
    of_type: dict[Any, list[int]] = {}
    for i, aval in enumerate(avals):
        of_type.setdefault(aval, []).append(i)
    groups = []
    for aval, group in of_type.items():
        n = max(1, TOGETHER // max(aval.size, 1))
        groups += [group[k : k + n] for k in range(0, len(group), n)]
    return groups


def columns_of_each(arrays: Sequence[Any]) -> Any:
    """float32[n, 10, 16]: `columns` of arrays of one type; of one array without the first axis."""
    return columns(arrays[0]) if len(arrays) == 1 else _columns_of_each(jnp.stack(arrays))


_columns_of_each = jax.jit(jax.vmap(columns))


def packed_together(arrays: Mapping[int, Any]) -> tuple[list[list[int]], list[Any]]:
    """The summaries of arrays, by number: those of small arrays of one type in one array, and which these are."""
    numbers = list(arrays)
    groups = [[numbers[k] for k in group] for group in together([compat.aval_of(x) for x in arrays.values()])]
    return groups, [columns_of_each([arrays[i] for i in group]) for group in groups]


def unpacked(groups: Sequence[Sequence[int]], packed: Sequence[Any]) -> dict[int, Any]:
    """Of each array its summary, by number."""
    return {
        i: x if len(group) == 1 else x[..., k, :, :]
        for group, x in zip(groups, packed, strict=True)
        for k, i in enumerate(group)
    }


def finished(packed: Any, size: int) -> np.ndarray[Any, Any]:
    """float32[..., 23] of float32[..., 10, 16]: the statistics of an array of this size, then a random projection to 16
    numbers.

    Of the projection, element i is added to number i mod 16 with a random sign, so that the projection of a difference
    is the difference of projections, and has on average the norm of the difference. Signs depend on the position in the
    whole array, and not on how it is laid out over devices.
    """
    wide = np.asarray(packed, np.float64)
    of_squares, largest, total, zeros, bad, high, low, sketch, large, small = (wide[..., i, :] for i in range(10))
    bits = (high * 2**16 + low).astype(np.uint64).sum(-1) % 2**32
    most = largest.max(-1)
    norms = [np.sqrt(x.sum(-1)) for x in (of_squares, large * _FAR**2, small / _FAR**2)]
    norm, mean = (
        np.where(most > 1e15, norms[1], np.where((most > 0) & (most < 1e-15), norms[2], norms[0])),
        total.sum(-1) / max(size, 1),
    )
    statistics = [norm, most, mean, zeros.sum(-1), bad.sum(-1), bits // 2**16, bits % 2**16]
    with np.errstate(over="ignore"):  # a norm may be larger than any element
        return np.concatenate([np.stack(statistics, -1), sketch], -1).astype(np.float32)


class Move(NamedTuple):
    """A run with other last digits in what it is given, which tells what rounding may change.

    Args:
      seed: of the random numbers.
      least: the last place of a coarser type, in which arguments may be rounded.
      times: how many times as far they are moved as rounding may change them; what that changes is divided by it.
    """

    seed: int
    least: float
    times: int


SEEDS = (1, 2)
FURTHER = 8
"""How many times as far the last of the runs moves: of few numbers that are nearly one, say, whose logarithm is taken,
a smaller change may be lost where these are rounded."""
_FINE = 2.0**-9
"""Types with a coarser last place are not moved further: that would be several per cent."""


def moves(coarsest: float, own: Sequence[float]) -> list[Move]:
    """The runs of a program: first with arguments moved in their own last places, then, if it computes in a coarser
    type, in the last place of that."""
    kinds = [0.0, coarsest] if any(0 < d < coarsest for d in own) else [coarsest]
    further = [FURTHER if max((d, *own)) < _FINE else 1 for d in kinds]
    return [Move(seed, d, n if seed == SEEDS[-1] else 1) for d, n in zip(kinds, further, strict=True) for seed in SEEDS]


_AROUND = 5
"""Iterations of which the noise is compared."""


def noise_of(summaries: np.ndarray[Any, Any], moved_to: Sequence[np.ndarray[Any, Any]], runs: Sequence[Move]) -> Any:
    """float32[..., n]: how far summaries move, in the mean of the runs of each of `n` kinds; in an iteration of a loop
    by as large a part of the norm, at least, as in most of those around it: what happens to few elements may cancel."""
    shape = summaries.shape[:-1]
    if not moved_to:
        return np.zeros((*shape, 1))
    pairs = zip(moved_to, runs, strict=True)
    apart = np.stack([squares(m[..., SKETCH], summaries[..., SKETCH]) / run.times**2 for m, run in pairs])
    kinds = apart.reshape(len(runs) // len(SEEDS), len(SEEDS), *shape)
    noise = np.moveaxis(np.sqrt(kinds.mean(1)), 0, -1)
    if shape and shape[-1] >= _AROUND:
        norm = np.maximum(summaries[..., NORM, None].astype(float), np.finfo(np.float32).tiny)
        around = np.lib.stride_tricks.sliding_window_view(noise / norm, _AROUND, axis=-2)
        ends = _AROUND // 2
        usual = np.pad(np.median(around, -1), [(0, 0)] * (len(shape) - 1) + [(ends, ends), (0, 0)], mode="edge")
        noise = np.maximum(noise, usual * norm)
    return noise.astype(np.float32)


def squares(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The squared distance of projections; infinite where a sum has overflowed."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart: np.ndarray[Any, Any] = np.nan_to_num(np.sum((a.astype(float) - b) ** 2, -1), nan=np.inf)
    return apart


def moved(arrays: Sequence[Any], seed: int, least: float = 0.0, times: int = 1) -> list[Any]:
    """Arrays, each element changed at random as far as rounding may change it; those of whole numbers as they are.

    Args:
      seed, least, times: see `Move`.
    """
    is_real = [hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact) for x in arrays]
    real = iter(
        _moved(
            [x for x, is_one in zip(arrays, is_real, strict=True) if is_one],
            np.uint32(seed), np.float32(least), np.float32(times),
        )
    )  # fmt: skip
    return [next(real) if is_one else x for x, is_one in zip(arrays, is_real, strict=True)]


def _all_moved(arrays: Sequence[Any], seed: Any, least: Any, times: Any) -> list[Any]:
    def one(i: int, x: Any) -> Any:
        return _automatically(partial(changed, i), x, compat.aval_of(x).sharding.spec)(x)

    def changed(i: int, x: Any) -> Any:
        index = jax.lax.iota(jnp.uint32, max(x.size, 1))[: x.size].reshape(x.shape)
        # Of each array otherwise: in a quotient of two, the same would cancel.
        most = times * jnp.maximum(float(jnp.finfo(x.dtype).eps), least)
        by = (_random(index, seed + np.uint32(i * _OF_ARRAY % 2**32)).astype(jnp.float32) / 2.0**31 - 1) * most
        other = x + (x * by.astype(x.real.dtype)).astype(x.dtype)
        return compat.as_type(jnp.where(jnp.isfinite(other), other, x), compat.aval_of(x))

    return [one(i, x) for i, x in enumerate(arrays)]


_moved = jax.jit(_all_moved)


def _random(index: Any, salt: Any = _FIRST) -> Any:
    """Random bits for each index."""
    x = (index + salt) * _ODD
    x = (x ^ (x >> 15)) * _MIXED
    return x ^ (x >> 13)
