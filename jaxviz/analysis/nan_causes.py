"""The usual causes of NaNs and infinities, recognised by the operation and by what it read, each with what helps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxviz.analysis.tables import type_text
from jaxviz.ir import compat


@dataclass(frozen=True, slots=True)
class Operand:
    """What an equation read or made.

    Args:
      type: such as `f32[8,4]`.
      size: number of elements.
      n_nan, n_inf, n_zero: how many of them are that.
      low, high: of those that are finite; None where none is.
      value: the element from which, or as which, what is not finite was made; None where elements do not correspond.
      name: the argument it is, or ''.
    """

    type: str
    size: int
    n_nan: int
    n_inf: int
    n_zero: int
    low: float | None
    high: float | None
    value: Any = None
    name: str = ""

    @property
    def is_finite(self) -> bool:
        return self.n_nan == 0 and self.n_inf == 0

    def __str__(self) -> str:
        what = f"{self.name}:{self.type}" if self.name else self.type
        if self.value is not None and self.size == 1:
            return f"{what} = {_number(self.value)}"
        parts = [f"{_number(self.low)} to {_number(self.high)}"] if self.low is not None else []
        counts = ((self.n_nan, "NaN"), (self.n_inf, "infinite"), (self.n_zero, "zero"))
        parts += [f"{n:,} of {self.size:,} {kind}" for n, kind in counts if n]
        parts += [f"there {_number(self.value)}"] if self.value is not None else []
        return f"{what} ({', '.join(parts)})" if parts else what


def _number(x: Any) -> str:
    return f"{x:.6g}" if isinstance(x, (int, float)) else str(x)


def on_host(x: Any) -> np.ndarray[Any, Any]:
    """An array in a type that NumPy knows infinities of."""
    host = np.asarray(x)
    return host if host.dtype.kind in "iuc" else host.astype(np.float64)


def operand(x: Any, index: tuple[int, ...] | None = None, name: str = "") -> Operand:
    """Describes an array; `index` is the element that matters."""
    aval = compat.aval_of(x)
    if not jnp.issubdtype(aval.dtype, jnp.number):
        value = None
        if index is not None and aval.dtype == bool and index in np.ndindex(aval.shape):
            value = bool(np.asarray(x[index]))
        return Operand(type_text(aval), aval.size, 0, 0, 0, None, None, value, name)
    wide = on_host(x)
    magnitude = np.abs(wide) if wide.dtype.kind == "c" else wide
    finite = magnitude[np.isfinite(magnitude)]
    at = (
        index
        if index is not None and len(index) == wide.ndim and all(i < n for i, n in zip(index, wide.shape, strict=True))
        else None
    )
    if at is None and wide.size == 1:
        at = (0,) * wide.ndim
    value = None if at is None else wide[at].item()
    return Operand(
        type_text(aval), wide.size, int(np.isnan(magnitude).sum()), int(np.isinf(magnitude).sum()), int((wide == 0).sum()),
        float(finite.min()) if finite.size else None, float(finite.max()) if finite.size else None, value, name,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cause:
    """Why an equation makes what is not finite.

    Args:
      id: such as 'log-of-zero'.
      text: what happened.
      remedy: what helps.
    """

    id: str
    text: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Case:
    """What a cause is recognised by.

    Args:
      primitive, params: of the equation.
      operation: what the user called, such as 'log'.
      is_derivative: whether the equation belongs to the derivative of that.
      inputs, outputs: what it read and made.
      dtype: of what it made.
      behind_where: whether what the user's operation gives goes into a `where`, which may not take it.
    """

    primitive: str
    params: Any
    operation: str
    is_derivative: bool
    inputs: Sequence[Operand]
    outputs: Sequence[Operand]
    dtype: Any
    behind_where: bool

    def reads(self, k: int, test: Callable[[float], bool]) -> bool:
        """Whether an operand is such where it matters; where that is not known, whether it may be."""
        if k >= len(self.inputs):
            return False
        x = self.inputs[k]
        if x.value is not None:
            value = x.value.real if isinstance(x.value, complex) and x.value.imag == 0 else x.value
            return isinstance(value, (int, float)) and test(value)
        ends = [v for v in (x.low, x.high, 0.0 if x.n_zero else None) if v is not None]
        return any(test(v) for v in ends)


is_zero = lambda v: v == 0
is_negative = lambda v: v < 0
is_infinite = lambda v: v in (np.inf, -np.inf)


def _safe_where(op: str) -> str:
    call = {"division": "a / {}", "power": "{} ** p"}.get(op, f"jnp.{op}({{}})")
    name = "b" if op == "division" else "x"
    return (
        f"Make what goes into it safe before it, not only what comes out: {name}_safe = jnp.where(ok, {name}, 1.0), then "
        f"jnp.where(ok, {call.format(f'{name}_safe')}, 0.0)."
    )


def cause_of(case: Case) -> Cause:
    """The first of the usual causes that a case is one of; else what the equation did, in plain words."""
    finite = all(x.is_finite for x in case.inputs)
    first = (_of_derivative, _of_library, _of_primitive, _of_overflow) if finite else (_of_library, _of_infinities)
    for recognise in (*first, _of_primitive):
        found: Cause | None = recognise(case)
        if found is not None:
            return found
    inputs = "finite numbers" if finite else "what it read"
    made = "NaN" if any(o.n_nan for o in case.outputs) else "infinity"
    return Cause("other", f"`{case.primitive}` makes {made} of {inputs}.", "Look at its inputs, above.")


_AT_ZERO = {
    "sqrt": ("sqrt", "the slope of sqrt is infinite at 0"),
    "rsqrt": ("rsqrt", "rsqrt and its slope are infinite at 0"),
    "log": ("log", "the slope of log is infinite at 0"),
    "cbrt": ("cbrt", "the slope of cbrt is infinite at 0"),
    "pow": ("power", "the slope of x ** p at x = 0 is infinite for p < 1, and its slope in p has log(0)"),
    "power": ("power", "the slope of x ** p at x = 0 is infinite for p < 1, and its slope in p has log(0)"),
    "log1p": ("log1p", "the slope of log1p is infinite at -1"),
    "asin": ("arcsin", "the slope of arcsin is infinite at the ends of its domain, -1 and 1"),
    "acos": ("arccos", "the slope of arccos is infinite at the ends of its domain, -1 and 1"),
    "acosh": ("arccosh", "the slope of arccosh is infinite at 1"),
    "atanh": ("arctanh", "arctanh and its slope are infinite at -1 and 1"),
    "erf_inv": ("erfinv", "erfinv and its slope are infinite at -1 and 1"),
    "div": ("division", "the slopes of a / b, 1 / b and -a / b**2, are infinite at b = 0"),
    "atan2": ("arctan2", "the slope of arctan2 is 0 / 0 at the origin"),
    "integer_pow": ("power", "a negative power and its slope are infinite at 0"),
}
_ALIASES = {
    "arccos": "acos", "arcsin": "asin", "arccosh": "acosh", "arctanh": "atanh", "arctan2": "atan2", "erfinv": "erf_inv",
    "float_power": "pow", "true_divide": "div", "divide": "div", "log2": "log", "log10": "log",
}  # fmt: skip


def is_slope(operation: str, primitive: str) -> bool:
    """Whether an equation on the line of an operation can only belong to the derivative of that, by its primitive."""
    own = _ALIASES.get(operation, operation)
    return (own in _AT_ZERO and primitive != own) or operation in ("norm", "std", "eigh", "svd")


def _of_derivative(case: Case) -> Cause | None:
    if not case.is_derivative:
        return None
    name = case.operation
    if name == "norm" or (name in ("sqrt", "std", "hypot") and name != "sqrt"):
        what = "The norm of a vector" if name == "norm" else f"jnp.{name}"
        return Cause(
            f"slope-of-{name}-at-zero",
            f"{what} is the root of a sum, and the slope of a root is infinite at 0, {'for a zero vector' if name != 'std' else 'where all values are equal'}.",
            "Add a small constant under the root, jnp.sqrt(jnp.sum(x ** 2) + 1e-12), or take the square itself.",
        )  # fmt: skip
    if name in ("eigh", "svd", "eig"):
        return Cause(
            f"repeated-values-of-{name}",
            f"The slope of {name} divides by the differences of its {'singular values' if name == 'svd' else 'eigenvalues'}, and two of them are equal.",
            "Differentiate only what does not depend on the choice of vectors (the values alone), or break the tie: add a small "
            "diagonal of different numbers.",
        )  # fmt: skip
    known = _AT_ZERO.get(_ALIASES.get(name, name))
    if known is None:
        return None
    op, why = known
    if case.behind_where:
        return Cause(
            "unsafe-where",
            f"`where` computes and differentiates both sides. {why[0].upper()}{why[1:]}; the side that is not taken sends back a "
            "cotangent of 0, and zero times infinity is NaN.",
            _safe_where(op),
        )  # fmt: skip
    keep = {
        "sqrt": "Keep the argument away from 0: jnp.sqrt(x + eps), or jnp.where around the argument.",
        "arccos": "Clip inside the ends, jnp.clip(x, -1 + 1e-6, 1 - 1e-6), or write it with jnp.arctan2, whose slope is finite.",
        "arcsin": "Clip inside the ends, jnp.clip(x, -1 + 1e-6, 1 - 1e-6), or write it with jnp.arctan2, whose slope is finite.",
        "division": "Keep the divisor away from 0, with jnp.where before the division or an added constant.",
    }.get(op, "Keep the argument away from there: clip it, or replace it with jnp.where before the call.")
    return Cause(f"slope-of-{op}", f"{why[0].upper()}{why[1:]}.", keep)


def _of_library(case: Case) -> Cause | None:
    """By what the user called."""
    masks = case.operation in ("logsumexp", "softmax", "log_softmax") and case.primitive == "sub"
    if masks and all(x.n_inf for x in case.inputs):
        return Cause(
            "all-masked",
            f"All that {case.operation} reads along an axis is -inf (all masked), and -inf - (-inf) is NaN.",
            "Mask with a large negative number instead of -inf, leave at least one entry, or use the `where=` argument.",
        )
    if case.operation == "logsumexp" and case.primitive == "log" and case.reads(0, is_zero):
        return Cause(
            "all-masked",
            "All that logsumexp reads along an axis is -inf (all masked): the sum is 0, and its log is -inf.",
            "Mask with a large negative number instead of -inf, leave at least one entry, or replace the result where all are masked.",
        )
    if case.primitive == "shard_map":
        return Cause(
            "inside-shard-map", "It happens on a device, inside of the shard_map, which is a single step where equations are run one by one.",
            "Call find_nan on the function in it, with what one device has of the arguments.",
        )  # fmt: skip
    if case.primitive == "cholesky" or case.operation in ("cholesky", "cho_factor"):
        return Cause(
            "not-positive-definite", "cholesky gives NaN where the matrix is not positive definite.",
            "Add a small multiple of the identity (jitter), and see to it that the matrix is symmetric.",
        )  # fmt: skip
    solves = case.primitive in ("custom_linear_solve", "triangular_solve")
    factors = case.operation in ("solve", "inv", "lu", "lu_solve", "triangular_solve", "det", "slogdet")
    by_zero = case.primitive in ("div", "lu") or (case.primitive == "log" and case.reads(0, is_zero))
    if all(x.is_finite for x in case.inputs) and (solves or (factors and by_zero)):
        name = case.operation.replace("custom_linear_solve", "The solver")
        whose = f"The slope of {name}" if case.is_derivative and not factors else name
        does = "takes the log of" if case.primitive == "log" else "divides by"
        return Cause(
            "singular-matrix", f"{whose} {does} a pivot that is 0: the matrix is singular.",
            "Add a small multiple of the identity, or use jnp.linalg.lstsq or pinv.",
        )  # fmt: skip
    return None


def _of_primitive(case: Case) -> Cause | None:
    name, reads = case.primitive, case.reads
    if name == "div" and reads(1, is_zero):
        if reads(0, is_zero):
            return Cause(
                "zero-by-zero",
                "0 / 0 is NaN.",
                "Replace the divisor where it is 0, before the division: jnp.where(b == 0, 1.0, b).",
            )
        return Cause(
            "division-by-zero",
            "A number is divided by 0.",
            "Replace the divisor where it is 0, before the division: jnp.where(b == 0, 1.0, b).",
        )
    if name == "log":
        if reads(0, is_negative):
            return Cause(
                "log-of-negative",
                "log of a negative number is NaN.",
                "Keep its argument positive: jnp.maximum(x, eps), or compute in logs from the start (log_softmax, log_sigmoid).",
            )
        if reads(0, is_zero):
            return Cause(
                "log-of-zero",
                "log(0) is -inf.",
                "Keep its argument positive: jnp.log(x + eps), jnp.maximum(x, eps), or xlogy; better, compute in logs from the start (log_softmax, log_sigmoid).",
            )
    if name == "log1p" and reads(0, lambda v: v <= -1):
        return Cause("log1p-edge", "log1p is -inf at -1 and NaN below.", "Keep its argument above -1.")
    if name in ("sqrt", "rsqrt") and reads(0, is_negative):
        return Cause(
            f"{name}-of-negative",
            f"{name} of a negative number is NaN. A sum of squares that is computed as a difference can come out slightly below 0.",
            "Clip it before: jnp.maximum(x, 0.0); for variances use jnp.var.",
        )
    if name == "rsqrt" and reads(0, is_zero):
        return Cause("rsqrt-of-zero", "rsqrt(0) is infinite.", "Add a small constant before it: lax.rsqrt(x + eps).")
    if name == "pow":
        if reads(0, is_negative) and not reads(1, lambda v: float(v).is_integer()):
            return Cause(
                "power-of-negative",
                "A negative number to a power that is no integer is NaN.",
                "Use an integer power, or jnp.abs or jnp.maximum before it.",
            )
        if reads(0, is_zero) and reads(1, is_negative):
            return Cause("negative-power-of-zero", "0 to a negative power is infinite.", "Keep the base away from 0.")
    if name == "integer_pow" and case.params.get("y", 1) < 0 and reads(0, is_zero):
        return Cause("negative-power-of-zero", f"0 ** {case.params['y']} is infinite.", "Keep the base away from 0.")
    if name in ("acos", "asin", "atanh", "erf_inv", "acosh"):
        where = {"acosh": "below 1", "atanh": "at -1 and 1, and beyond"}.get(name, "beyond -1 and 1")
        return Cause(
            "outside-of-domain",
            f"{name} is not finite {where}; rounding can bring its argument there.",
            "Clip its argument: jnp.clip(x, -1 + 1e-6, 1 - 1e-6).",
        )
    if name in ("lgamma", "digamma", "polygamma", "igamma", "regularized_incomplete_beta"):
        return Cause(
            "outside-of-domain",
            f"{name} is not finite at 0 and at the negative integers.",
            "Keep its argument positive.",
        )
    return None


def _of_overflow(case: Case) -> Cause | None:
    """Infinity of finite numbers, by an operation that has none of its own; or the NaN that infinities of both signs add up to."""
    sums = case.primitive in ("dot_general", "reduce_sum", "conv_general_dilated", "cumsum", "psum", "psum_invariant")
    is_bad = any(o.n_inf or (sums and o.n_nan) for o in case.outputs)
    if not all(x.is_finite for x in case.inputs) or not is_bad:
        return None
    largest = f"{float(jnp.finfo(case.dtype).max):.3g}"
    kind = jnp.dtype(case.dtype).name
    narrow = jnp.dtype(case.dtype).itemsize <= 2
    if case.primitive in ("exp", "exp2", "expm1", "sinh", "cosh"):
        edge = float(np.log(float(jnp.finfo(case.dtype).max)))
        return Cause(
            "overflow-of-exp", f"{case.primitive} overflows {kind} from {edge:.4g} on.",
            "Subtract the maximum first, as jax.nn.softmax and logsumexp do; or stay in logs; or clip the argument.",
        )  # fmt: skip
    if case.primitive == "convert_element_type":
        return Cause(
            "overflow-of-cast", f"The number is larger than {kind} holds ({largest}).",
            "Use bfloat16, which has the range of float32, or scale it down (loss scaling) before the cast.",
        )  # fmt: skip
    what = {
        "reduce_sum": "The sum",
        "psum": "The sum over devices",
        "psum_invariant": "The sum over devices",
        "dot_general": "The product of matrices",
        "cumsum": "The running sum",
    }.get(case.primitive, "The result")
    if case.primitive in ("mul", "add", "add_any", "sub", "reduce_sum", "psum", "psum_invariant", "dot_general", "integer_pow", "square", "div", "pow",
                          "cumsum", "cumprod", "reduce_prod", "conv_general_dilated", "scatter-add", "neg"):  # fmt: skip
        return Cause(
            f"overflow-of-{kind}" if narrow else "overflow",
            f"{what} is larger than {kind} holds ({largest}).",
            "Compute this in float32 (preferred_element_type, or dtype= of the sum), or scale it down (loss scaling)." if narrow
            else "Look at why it grows: a rate of learning that is too high, a loop that diverges. Scale, normalise or clip before it.",
        )  # fmt: skip
    return None


def _of_infinities(case: Case) -> Cause | None:
    """NaN of infinities that came in."""
    if not any(x.n_inf for x in case.inputs):
        return None
    if case.primitive in ("mul", "dot_general") and any(x.n_zero for x in case.inputs):
        return Cause(
            "zero-times-infinity",
            "Zero times infinity is NaN.",
            "Find where the infinity comes from and keep it from arising.",
        )
    if case.primitive in ("sub", "add", "add_any", "reduce_sum", "dot_general", "psum", "psum_invariant"):
        return Cause(
            "infinity-minus-infinity",
            "Infinity minus infinity is NaN.",
            "Mask with a large finite number instead of an infinity, or keep the infinity from arising.",
        )
    if case.primitive == "div":
        return Cause(
            "infinity-by-infinity",
            "Infinity divided by infinity is NaN.",
            "Keep the infinity from arising, for instance by subtracting the maximum in logs.",
        )
    return None
