"""The cost of one operation: FLOPs, transcendentals and bytes, for each primitive, counted like XLA's HloCostAnalysis.

- A FLOP is an elementwise operation on one element, of any type: XLA counts comparisons, selections and integers too,
  and an operation on complex numbers once. A multiply-add is two.
- Functions that hardware computes in several steps (`exp`, `tanh`, `sqrt`, `pow`, ...) are transcendentals, counted
  separately: XLA does not count them as FLOPs. What JAX lowers to several operations, as `logistic`, counts as those.
- Bytes are those of the operands and the results of each operation separately. XLA fuses operations, so a compiled
  program moves fewer. For a slice, a gather or a scatter, only the elements touched count.

The counts differ from those of XLA's compiled program as follows. A conversion of types, or of bits, is not a FLOP,
whereas XLA counts one per element. A cumulative sum is one addition per element except the first, whereas XLA sums
windows of 16 elements, 15 additions each. Random bits are all 20 rounds of threefry, whereas XLA on a CPU has a loop of
five times four rounds and counts its body once. XLA on a CPU splits large reductions in two and pads them, has a
separate operation for a pooling's gradient, and computes bfloat16 in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from jaxviz.ir.convert import shared
from jaxviz.ir.primitives import PLAIN
from jaxviz.ir.syntax import Operation
from jaxviz.report.data import Data
from jaxviz.report.tables import nbytes
from jaxviz.runtime.evaluate import usual_settings


@dataclass(frozen=True, slots=True)
class Cost(Data):
    """The cost of some work; `a + b` is the cost of both, `cost * n` the cost of doing it `n` times.

    >>> total = jaxviz.cost(loss, params, x).total
    >>> total.flops, total.nbytes, total.intensity

    Args:
      flops: floating-point operations, as XLA counts them: see the module.
      bytes_read, bytes_written: bytes of operands and of results, summed over the operations, each taken separately.
      transcendentals: values of exp, log, sin and the like, which are not counted as FLOPs.
      bytes_sent: bytes that devices pass into collectives, whatever the algorithm that sends them.
    """

    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    transcendentals: int = 0
    bytes_sent: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes moved: read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float:
        """FLOPs for each byte moved; 0 if nothing is moved."""
        return self.flops / self.nbytes if self.nbytes else 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops, self.bytes_read + other.bytes_read, self.bytes_written + other.bytes_written,
            self.transcendentals + other.transcendentals, self.bytes_sent + other.bytes_sent,
        )  # fmt: skip

    def __mul__(self, times: int) -> Cost:
        return Cost(*(getattr(self, n) * times for n in Cost.__slots__))

    __rmul__ = __mul__

    _data = ("flops", "bytes_read", "bytes_written", "transcendentals", "bytes_sent", "intensity")


Count = Callable[[Operation], Cost]


def moved(op: Operation, flops: int = 0, transcendentals: int = 0) -> Cost:
    """The cost of an operation that reads all of its operands and writes all of its results."""
    return Cost(flops, sum(map(nbytes, op.in_avals)), sum(map(nbytes, op.out_avals)), transcendentals)


def estimate(op: Operation) -> Cost:
    """The cost of an unknown operation: one FLOP for each element of a non-integer result."""
    inexact = (a for a in op.out_avals if jnp.issubdtype(getattr(a, "dtype", bool), jnp.inexact))
    return moved(op, sum(a.size for a in inexact))


def _elementwise(flops: int, transcendentals: int = 0) -> Count:
    def count(op: Operation) -> Cost:
        n = op.out_avals[0].size
        return moved(op, n * flops, n * transcendentals)

    return count


def _as_lowered(op: Operation) -> Cost:
    """As many operations per element as JAX's lowering has, such as a polynomial; a loop in it counts once."""
    dtypes = tuple(a.dtype for a in op.in_avals)
    flops, transcendentals = _lowered(op.primitive, dtypes, tuple(sorted(op.params.items())))
    return _elementwise(flops, transcendentals)(op)


@shared
def _lowered(primitive: Any, dtypes: tuple[Any, ...], params: tuple[tuple[str, Any], ...]) -> tuple[int, int]:
    """FLOPs and transcendentals of an elementwise operation on one element, as XLA counts JAX's lowering."""
    fun = lambda *xs: primitive.bind(*xs, **dict(params))
    with usual_settings():  # JAX lowers for no platform while only an abstract mesh is set
        analysis = jax.jit(fun).lower(*(jax.ShapeDtypeStruct((), dtype) for dtype in dtypes)).cost_analysis()
    if not isinstance(analysis, dict):
        return 0, 1
    return int(analysis.get("flops", 0)), int(analysis.get("transcendentals", 0))


def _select_n(op: Operation) -> Cost:
    """A selection for each case but the first, and a comparison if the cases are numbered."""
    which, *cases = op.in_avals
    return moved(op, op.out_avals[0].size * (len(cases) - 1) * (1 if which.dtype == bool else 2))


def _integer_pow(op: Operation) -> Cost:
    """Repeated squaring, and one division if the power is negative."""
    y = op.params["y"]
    products = max(0, abs(y).bit_length() + abs(y).bit_count() - 2)
    return moved(op, op.out_avals[0].size * (products + (y < 0)))


def _dot(op: Operation) -> Cost:
    """A multiply-add for each element of the contraction; a multiplication if nothing is contracted."""
    (contracted, _), _ = op.params["dimension_numbers"]
    width = math.prod(op.in_avals[0].shape[d] for d in contracted)
    return moved(op, op.out_avals[0].size * (2 * width if width != 1 else 1))


def _ragged_dot(op: Operation) -> Cost:
    """A multiply-add for each column of each element of the rows, each of which belongs to one group."""
    dims = op.params["ragged_dot_dimension_numbers"]
    (_, contracted), (_, batch) = dims.dot_dimension_numbers
    apart = {*contracted, *batch, *dims.rhs_group_dimensions}
    columns = math.prod(n for d, n in enumerate(op.in_avals[1].shape) if d not in apart)
    return moved(op, 2 * op.in_avals[0].size * columns)


def _conv(op: Operation) -> Cost:
    """A multiply-add for each kernel element that meets an input element, and not padding or a gap of a dilation."""
    params = op.params
    lhs, rhs, out = (
        [aval.shape[d] for d in spec]
        for aval, spec in zip((*op.in_avals, *op.out_avals), params["dimension_numbers"], strict=True)
    )
    meetings = math.prod(
        _meetings(*of_dimension)
        for of_dimension in zip(
            lhs[2:], rhs[2:], out[2:], params["window_strides"], [low for low, _ in params["padding"]],
            params["lhs_dilation"], params["rhs_dilation"], strict=True,
        )
    )  # fmt: skip
    batch, features = lhs[0] // params["batch_group_count"], lhs[1] // params["feature_group_count"]
    return moved(op, 2 * batch * features * out[1] * meetings)


@lru_cache(maxsize=1024)
def _meetings(
    n_in: int, n_kernel: int, n_out: int, stride: int, low: int, in_dilation: int, kernel_dilation: int
) -> int:
    """The number of pairs of an output element and a kernel element that read an input element, in one dimension."""
    end = (n_in - 1) * in_dilation
    if in_dilation == 1:  # the outputs that use one element of the kernel form a range
        offsets = (k * kernel_dilation - low for k in range(n_kernel))
        return sum(max(0, min(n_out - 1, (end - o) // stride) - max(0, -(o // stride)) + 1) for o in offsets)
    places = (i * stride - low + k * kernel_dilation for k in range(n_kernel) for i in range(n_out))
    return sum(0 <= place <= end and place % in_dilation == 0 for place in places)


def _reduction(flops: int) -> Count:
    """The reduction is applied to all elements but the first of each result."""
    return lambda op: moved(op, flops * max(op.in_avals[0].size - op.out_avals[0].size, 0))


def _cumulative(flops: int, transcendentals: int = 0) -> Count:
    def count(op: Operation) -> Cost:
        aval = op.in_avals[0]
        n = aval.size - aval.size // max(1, aval.shape[op.params["axis"]])
        return moved(op, n * flops, n * transcendentals)

    return count


def _window(op: Operation) -> Cost:
    size = math.prod(op.params["window_dimensions"])
    return moved(op, op.out_avals[0].size * max(size - 1, 0))


def _select_and_scatter(op: Operation) -> Cost:
    """In each window a search for the maximum, and one addition."""
    return moved(op, op.in_avals[0].size * math.prod(op.params["window_dimensions"]))


def _part_read(op: Operation) -> Cost:
    """As many elements of the first operand are read as are written; indices are also read."""
    size = nbytes(op.out_avals[0])
    return Cost(0, size + sum(map(nbytes, op.in_avals[1:])), size)


def _gather(op: Operation) -> Cost:
    """If out-of-bounds indices give a fill value, they are compared with both bounds, and each element is selected."""
    n = 0
    if "FILL" in str(op.params.get("mode")):
        indices, places = op.in_avals[1].size, op.in_avals[1].shape[-1]
        n = 3 * indices + (indices // places * (places - 1) if places else 0) + op.out_avals[0].size
    return _part_read(op) + Cost(n)


def _scatter(flops: int) -> Count:
    """As many elements are written as there are updates; the elements that they are added to are read."""

    def count(op: Operation) -> Cost:
        n = len(op.out_avals)
        updates = op.in_avals[n + 1 :]
        size = sum(map(nbytes, updates))
        return Cost(flops * updates[0].size, 2 * size + nbytes(op.in_avals[n]), size)

    return count


def _dynamic_update_slice(op: Operation) -> Cost:
    size = nbytes(op.in_avals[1])
    return Cost(0, size + sum(map(nbytes, op.in_avals[2:])), size)


def _add_in_place(op: Operation) -> Cost:
    """What is in a reference is read, added to, and written."""
    value, *indices = op.in_avals[1:]
    size = nbytes(value)
    return Cost(value.size, 2 * size + sum(map(nbytes, indices)), size)


def _sort(op: Operation) -> Cost:
    n = op.in_avals[0].size
    return moved(op, n * (n - 1).bit_length())


def _fft(op: Operation) -> Cost:
    logs = math.prod(n.bit_length() - 1 for n in op.params["fft_lengths"])
    return moved(op, 8 * logs * op.in_avals[0].size)


def _cholesky(op: Operation) -> Cost:
    a = op.in_avals[0]
    return moved(op, a.size * a.shape[-1] // 3)


def _triangular_solve(op: Operation) -> Cost:
    return moved(op, 2 * op.in_avals[0].shape[-1] * op.in_avals[1].size)


_THREEFRY = 20 * 5 + 2 + 5 * 2
"""20 rounds of an addition, a rotation (3 operations) and an xor, and 6 additions of a key to both words."""


def _random_bits(op: Operation) -> Cost:
    """A block of threefry per result, whose two words are combined; XLA's own generators count as transcendental."""
    n = op.out_avals[0].size
    is_threefry = getattr(op.in_avals[0].dtype, "name", "") in ("key<fry>", "uint32")
    return moved(op, n * (_THREEFRY + 1)) if is_threefry else moved(op, 0, n)


def _collective(flops: int = 0) -> Count:
    """One device's part: it sends its operands once, and a sum over devices is one addition per element."""

    def count(op: Operation) -> Cost:
        sent = sum(map(nbytes, op.in_avals))
        return moved(op, flops * sum(a.size for a in op.out_avals)) + Cost(bytes_sent=sent)

    return count


def _nothing(op: Operation) -> Cost:
    return Cost()


_BY_KIND: Mapping[str, Count] = {
    "elementwise": _elementwise(1), "comparison": _elementwise(1), "transcendental": _elementwise(0, 1),
    "lowered": _as_lowered,
    "series": _as_lowered, "selection": _select_n, "power": _integer_pow, "product": _dot,
    "ragged product": _ragged_dot, "convolution": _conv,
    "reduction": _reduction(1),
    "position": _reduction(9),  # comparing values and positions, checking for NaN, and two selections
    "cumulative": _cumulative(1), "cumulative logsumexp": _cumulative(8, 2), "window": _window,
    "window gradient": _select_and_scatter, "part": _part_read, "indexing": _gather, "update": _dynamic_update_slice,
    "scattering": _scatter(0), "scattered arithmetic": _scatter(1), "added in place": _add_in_place, "sorting": _sort,
    "transform": _fft,
    "factorization": _cholesky, "solving": _triangular_solve, "movement": moved, "reversal": moved, "transfer": moved,
    "random bits": _random_bits, "cipher": lambda op: moved(op, _THREEFRY * op.out_avals[0].size),
    "generator": lambda op: moved(op, 0, sum(a.size for a in op.out_avals)), "all-reduce": _collective(1),
    "reduce-scatter": _collective(1), "exchange": _collective(), "nothing": _nothing,
}  # fmt: skip
COUNTS: Mapping[str, Count] = {name: _BY_KIND[does.kind] for name, does in PLAIN.items()}
"""Count functions by primitive. Other primitives are estimated; see `estimate`."""
