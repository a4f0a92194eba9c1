"""Summarizes an array in a few numbers, computed on its device, so that only kilobytes are transferred; and how they
are shown."""

from __future__ import annotations

import base64
import html
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxviz.ir import compat
from jaxviz.report.data import Data
from jaxviz.report.tables import printable
from jaxviz.runtime.evaluate import usual_settings

_jit: Callable[[Any], Any] = jax.jit

BINS = 40
PICTURE = (64, 64)
"""The most rows and columns of a picture."""
FEW = 65536
"""The number of elements up to which NumPy is as fast as a compiled function, which would be compiled for each
shape."""


@dataclass(frozen=True, slots=True)
class ArrayPicture(Data):
    """An array, or its last two dimensions at index 0 of all others, in shades.

    Args:
      rows, columns: the size of the picture.
      of: what is shown, such as 'x[0, :, :]'.
      low, high: the values of shades 0 and 254.
      shades: one byte each, row by row; 255 if there is a non-finite element among those of the shade.
    """

    rows: int
    columns: int
    of: str
    low: float
    high: float
    shades: bytes

    _data = ("rows", "columns", "of", "low", "high", "shades=_base64")

    @property
    def _base64(self) -> str:
        return base64.b64encode(self.shades).decode()


@dataclass(frozen=True, slots=True)
class Summary(Data):
    """An array in a few numbers. For complex numbers, sizes and the histogram are those of the absolute value.

    >>> print(summarize(jnp.array([1.0, jnp.nan, 3.0])))
    f32[3] 1 … 3, mean 2, std 1, 1 NaN, first not finite at [1]

    Args:
      type: as JAX prints it.
      shape: of the array.
      size: how many elements.
      finite: the number of finite elements.
      min, max, mean, std: of the finite elements; None if there are none.
      nan, pos_inf, neg_inf: the number of each.
      zeros, subnormals: the numbers of zeros and of subnormal elements.
      histogram: the number of finite elements in each of several bins of equal width.
      edges: the start of the first bin and the end of the last.
      first_not_finite: the index of the first element that is not finite.
      picture: the array in shades, if its shape can be shown.
      note: why there are no numbers, as for random keys.
    """

    type: str
    shape: tuple[int, ...]
    size: int
    finite: int = 0
    min: float | int | None = None
    max: float | int | None = None
    mean: float | None = None
    std: float | None = None
    nan: int = 0
    pos_inf: int = 0
    neg_inf: int = 0
    zeros: int = 0
    subnormals: int = 0
    histogram: tuple[int, ...] = ()
    edges: tuple[float, float] | None = None
    first_not_finite: tuple[int, ...] | None = None
    picture: ArrayPicture | None = None
    note: str = ""

    def __str__(self) -> str:
        if self.note:
            return f"{self.type} {self.note}"
        if self.size == 1 and self.finite:
            what = [_short(self.min)]
        elif self.min is not None:
            what = [f"{_short(self.min)} … {_short(self.max)}, mean {_short(self.mean)}, std {_short(self.std)}"]
        else:
            what = ["nothing finite"]
        counts = {
            "NaN": self.nan, "Inf": self.pos_inf, "-Inf": self.neg_inf, "subnormal": self.subnormals,
            ("zero" if self.zeros == 1 else "zeros"): self.zeros if self.size > 1 else 0,
        }  # fmt: skip
        what += [f"{n:,} {name}" for name, n in counts.items() if n]
        if self.first_not_finite:
            what.append(f"first not finite at {list(self.first_not_finite)}")
        return f"{self.type} {', '.join(what)}"

    def bars(self) -> str:
        """The histogram as a line of text."""
        most = max(self.histogram, default=0)
        return "".join(" ▁▂▃▄▅▆▇█"[-(-8 * n // most)] for n in self.histogram) if most else ""


def _short(x: float | int | None) -> str:
    return f"{x:,}" if isinstance(x, int) else f"{x:.4g}"


def summarize(x: Any) -> Summary:
    """The summary of an array, computed on its device.

    Args:
      x: an array on one device or sharded over several, or a number. For random keys and deleted arrays only the type
        is known.
    """
    aval = compat.aval_of(x)
    kind = aval.str_short(short_dtypes=True)
    if not hasattr(aval, "dtype"):
        return Summary(kind, (), 0, note="not an array")
    shape, size = tuple(map(int, aval.shape)), int(aval.size)
    if isinstance(x, jax.Array) and x.is_deleted():
        return Summary(kind, shape, size, note="was donated or deleted")
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return Summary(kind, shape, size, note="random key" if size == 1 else f"{size:,} random keys")
    if compat.is_float0(aval):
        return Summary(kind, shape, size, note="zeros without a value: the tangents of integers")
    if size == 0:
        return Summary(kind, shape, 0, note="has no elements")
    with usual_settings():
        figures: dict[str, Any] = jax.device_get(_measure(in_plain_type(x)))
    is_whole = aval.dtype == np.bool_ or jnp.issubdtype(aval.dtype, jnp.integer)
    number: Callable[[Any], Any] = int if is_whole else float
    finite, first = int(figures["finite"]), int(figures["first"])
    picture = None
    if "shades" in figures and finite:
        rows, columns = figures["shades"].shape
        of = "x" if len(shape) <= 2 else f"x[{', '.join(['0'] * (len(shape) - 2))}, :, :]"
        low, high = map(float, figures["range"])
        picture = ArrayPicture(rows, columns, of, low, high, figures["shades"].tobytes())
    summary = Summary(
        kind, shape, size, finite,
        nan=int(figures["nan"]), pos_inf=int(figures["pos_inf"]), neg_inf=int(figures["neg_inf"]),
        zeros=int(figures["zeros"]), subnormals=int(figures["subnormals"]), picture=picture,
        first_not_finite=tuple(int(i) for i in np.unravel_index(first, shape)) if finite < size else None,
    )  # fmt: skip
    if not finite:
        return summary
    return replace(
        summary, min=number(figures["min"]), max=number(figures["max"]),
        mean=float(figures["mean"]), std=float(figures["std"]),
        histogram=tuple(map(int, figures["histogram"])), edges=(float(figures["min"]), float(figures["max"])),
    )  # fmt: skip


def is_finite(x: Any) -> bool:
    """Whether all elements are finite; true for types without non-finite values."""
    dtype = getattr(compat.aval_of(x), "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jnp.inexact) or np.size(x) == 0:
        return True
    with usual_settings():
        return bool(_all_finite(in_plain_type(x)))


@_jit
def _all_finite(x: Any) -> Any:
    return jnp.isfinite(_widened(x)).all()


def in_plain_type(x: Any) -> Any:
    """x as an array without sharding in its type; it stays on its devices."""
    x = x if isinstance(x, jax.Array) else jnp.asarray(x)
    sharding = x.sharding
    if not isinstance(sharding, NamedSharding) or AxisType.Explicit not in sharding.mesh.axis_types:
        return x
    spec = PartitionSpec(*sharding.spec.partitions)
    if spec != sharding.spec:  # the devices hold terms of a sum
        with jax.set_mesh(sharding.mesh):
            x = jax.reshard(x, spec)
    mesh = Mesh(sharding.mesh.devices, sharding.mesh.axis_names)
    return jax.device_put(x, NamedSharding(mesh, spec, memory_kind=sharding.memory_kind))


def _flat_index(shape: tuple[int, ...]) -> Any:
    """The index of each element in memory order."""
    strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    parts = [lax.broadcasted_iota(jnp.uint32, shape, i) * jnp.uint32(s) for i, s in enumerate(strides)]
    return sum(parts, start=jnp.zeros(shape, jnp.uint32))


def _widened(x: Any) -> Any:
    """Converts to a type with which JAX can compute everywhere: small floats to float32, small integers to int32;
    complex numbers stay."""
    dtype = x.dtype
    if dtype == np.bool_:
        return x.astype(jnp.int32)
    if jnp.issubdtype(dtype, jnp.integer):
        return x.astype(jnp.int32) if jnp.iinfo(dtype).bits < 32 else x
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32:
        return x.astype(jnp.float32)
    return x


@_jit
def _measure(x: Any) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    wide = _widened(x)
    if jnp.issubdtype(wide.dtype, jnp.complexfloating):
        parts = (wide.real, wide.imag)
        is_nan = jnp.isnan(parts[0]) | jnp.isnan(parts[1])
        is_inf = jnp.isinf(wide) & ~is_nan
        figures |= {"nan": is_nan.sum(), "pos_inf": is_inf.sum(), "neg_inf": 0}
        finite = jnp.isfinite(wide)
        tiny = [_zeros_and_subnormals(p) for p in parts]
        is_zero = tiny[0][0] & tiny[1][0]
        is_subnormal = (tiny[0][1] | tiny[1][1]) & (tiny[0][0] | tiny[0][1]) & (tiny[1][0] | tiny[1][1])
        v = jnp.abs(wide)
        finite &= jnp.isfinite(v)
    elif jnp.issubdtype(wide.dtype, jnp.floating):
        figures |= {
            "nan": jnp.isnan(wide).sum(),
            "pos_inf": (wide == jnp.inf).sum(),
            "neg_inf": (wide == -jnp.inf).sum(),
        }
        finite = jnp.isfinite(wide)
        is_zero, is_subnormal = _zeros_and_subnormals(x)
        v = wide
    else:
        figures |= {"nan": 0, "pos_inf": 0, "neg_inf": 0}
        finite = jnp.ones(x.shape, bool)
        is_zero, is_subnormal = wide == 0, jnp.zeros(x.shape, bool)
        v = wide
    n = finite.sum()
    figures |= {
        "finite": n,
        "zeros": is_zero.sum(),
        "subnormals": is_subnormal.sum(),
        "first": jnp.where(finite, x.size - 1, _flat_index(x.shape)).min(),
    }
    if jnp.issubdtype(v.dtype, jnp.integer):
        low, high = v.min(), v.max()
    else:
        low, high = jnp.where(finite, v, jnp.inf).min(), jnp.where(finite, v, -jnp.inf).max()
    figures |= {"min": low, "max": high}
    v = v if jnp.issubdtype(v.dtype, jnp.floating) else v.astype(jnp.float32)
    low, high = low.astype(v.dtype), high.astype(v.dtype)
    # Scaled, so that sums and differences do not overflow.
    scale = jnp.maximum(jnp.abs(low), jnp.abs(high))
    scale = jnp.where((scale > 0) & jnp.isfinite(scale), scale, 1)
    scaled = jnp.where(finite, v / scale, 0)
    mean = scaled.sum() / n
    std = jnp.sqrt(jnp.where(finite, (scaled - mean) ** 2, 0).sum() / n)
    figures |= {"mean": mean * scale, "std": std * scale}
    a, b = low / scale, high / scale
    width = jnp.where(b > a, b - a, 1)
    bins = jnp.clip(((scaled - a) / width * BINS).astype(jnp.int32), 0, BINS - 1)
    figures["histogram"] = _counts(jnp.where(finite, bins, BINS))
    if x.ndim and x.size > 1:
        matrix = lambda y: y.reshape(1, -1) if y.ndim == 1 else y[(0,) * (y.ndim - 2)]
        shades, around = _shades(matrix(scaled), matrix(finite))
        figures |= {"shades": shades, "range": around * scale}
    return figures


def _counts(bins: Any) -> Any:
    """How often each bin occurs; the last bin counts what is left out.

    Neighbouring elements count in separate copies of the bins, which are added up: on a GPU they would otherwise wait
    for each other.
    """
    lanes = 1024
    lane = (_flat_index(bins.shape) % lanes).astype(jnp.int32)
    return jnp.zeros((BINS + 1, lanes), jnp.int32).at[bins, lane].add(1)[:BINS].sum(1)


def _zeros_and_subnormals(x: Any) -> tuple[Any, Any]:
    """Counted by their bits, since a processor may treat subnormal numbers as zeros."""
    finfo = jnp.finfo(x.dtype)
    if x.dtype in (jnp.float32, jnp.float64, jnp.bfloat16):
        uint = {16: jnp.uint16, 32: jnp.uint32, 64: jnp.uint64}[finfo.bits]
        bits = lax.bitcast_convert_type(x, uint) & uint((1 << (finfo.bits - 1)) - 1)
        return bits == 0, (bits > 0) & (bits < uint(1 << finfo.nmant))
    size = jnp.abs(x.astype(jnp.float32))
    return size == 0, (size > 0) & (size < float(finfo.smallest_normal))


def _shades(x: Any, finite: Any) -> tuple[Any, Any]:
    """A scaled matrix without non-finite elements, reduced to few shades: the means of the elements of each."""
    window = tuple(-(-n // most) for n, most in zip(x.shape, PICTURE if x.shape[0] > 1 else (1, 128), strict=True))
    pool = partial(
        lax.reduce_window, computation=lax.add, window_dimensions=window, window_strides=window,
        padding=[(0, -n % w) for n, w in zip(x.shape, window, strict=True)],
    )  # fmt: skip
    zero = np.zeros((), x.dtype)
    n = pool(finite.astype(x.dtype), zero)
    rows, columns = (
        np.minimum(w, size - w * np.arange(-(-size // w))) for size, w in zip(x.shape, window, strict=True)
    )
    inside = np.outer(rows, columns).astype(x.dtype)
    mean = pool(x, zero) / jnp.maximum(n, 1)
    seen = n > 0
    low, high = jnp.where(seen, mean, jnp.inf).min(), jnp.where(seen, mean, -jnp.inf).max()
    shades = jnp.round((mean - low) / jnp.where(high > low, high - low, 1) * 254)
    return jnp.where(n < inside, 255, shades).astype(jnp.uint8), jnp.stack([low, high])


# --- display ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ValueAtStop(Data):
    """A value at a stop: the name of its variable, its summary, and the value that it is the cotangent of, or ''."""

    name: str
    summary: Summary
    cotangent: str = ""

    _data = ("name", "cotangent", "*summary")


def html_row(value: ValueAtStop) -> str:
    """A row of a table: the name, the summary, a histogram, a picture."""
    of = f" (cotangent of {value.cotangent})" if value.cotangent else ""
    picture = f'<img alt="" style="{_IMAGE}" src="{png(value.summary.picture)}">' if value.summary.picture else ""
    text = html.escape(printable(str(value.summary)))
    name = html.escape(printable(value.name + of))
    return f"<tr><td>{name}</td><td>{text}</td><td>{_bars(value.summary)}</td><td>{picture}</td></tr>"


_IMAGE = "image-rendering:pixelated;width:96px;max-height:96px;min-height:8px"


def _bars(summary: Summary) -> str:
    most = max(summary.histogram, default=0)
    if summary.size < 2 or not most:
        return ""
    bars = "".join(
        f'<rect x="{3 * i}" y="{32 - 32 * n / most:.1f}" width="2" height="{32 * n / most:.1f}"/>'
        for i, n in enumerate(summary.histogram)
    )
    size = f'width="{3 * len(summary.histogram)}" height="32"'
    return f'<svg {size} fill="currentColor" role="img"><title>histogram</title>{bars}</svg>'


def png(picture: ArrayPicture) -> str:
    """A picture as a data URL of a PNG: shades of grey, and red where there are non-finite elements."""
    grey = b"".join(bytes((i, i, i)) for i in range(255)) + b"\xd0\x10\x10"
    rows = b"".join(
        b"\0" + picture.shades[r * picture.columns : (r + 1) * picture.columns] for r in range(picture.rows)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", picture.columns, picture.rows, 8, 3, 0, 0, 0)
    image = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"PLTE", grey)
    image += chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


# --- detecting equal values -------------------------------------------------------------------------------------------


def fingerprint(x: Any) -> np.ndarray:
    """A few numbers that differ between different arrays, and are nearly equal if the arrays differ only by
    rounding."""
    aval = compat.aval_of(x)
    if not hasattr(aval, "dtype") or compat.is_float0(aval) or aval.size == 0:
        return np.zeros(3)
    with usual_settings():
        x = in_plain_type(x)
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        return np.asarray(_fingerprint(x), np.float64)


@_jit
def _fingerprint(x: Any) -> Any:
    """The number of non-finite elements, the norm, and the sum with pseudo-random signs."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.stack([x.real, x.imag])
    v = _widened(x)
    v = v.astype(jnp.float32) if not jnp.issubdtype(v.dtype, jnp.floating) else v
    finite = jnp.isfinite(v)
    v = jnp.where(finite, v, 0)
    scale = jnp.maximum(jnp.abs(v).max(), jnp.finfo(v.dtype).tiny)
    v = v / scale
    noise = (_flat_index(v.shape) + 1) * jnp.uint32(2654435761)
    noise = (noise ^ (noise >> 15)) * jnp.uint32(2246822519)
    signs = jnp.where(noise >> 31, 1, -1).astype(v.dtype)
    return jnp.stack([(~finite).sum().astype(v.dtype), jnp.sqrt((v * v).sum()) * scale, (v * signs).sum() * scale])


def same_fingerprint(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two fingerprints may be those of one array computed twice, with sums in another order."""
    size = max(abs(a[1]), abs(b[1]))
    return bool(a[0] == b[0] and abs(a[1] - b[1]) <= 1e-3 * size and abs(a[2] - b[2]) <= 1e-3 * size)
