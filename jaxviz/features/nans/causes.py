"""The usual causes of NaNs and infinities, recognised by the operation and its operands, each with a remedy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxviz.features.nans.advice import ALIASES, CALLS, DOMAINS, NO_POLE, REMEDIES, Domain, chosen, large
from jaxviz.ir import compat
from jaxviz.ir.primitives import PLAIN, plain
from jaxviz.report.tables import type_text


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand or a result of an equation.

    Args:
      type: such as `f32[8,4]`.
      size: number of elements.
      n_nan, n_inf, n_zero: the numbers of NaNs, infinities and zeros.
      low, high: the range of the finite elements; None if there are none.
      value: the element that led to, or is, the non-finite result; None if elements do not correspond.
      name: the expression that computes it, or the path of the argument; '' if neither is known.
      is_cotangent: whether it is a cotangent; its name is then the expression that is differentiated.
    """

    type: str
    size: int
    n_nan: int
    n_inf: int
    n_zero: int
    low: float | None
    high: float | None
    value: float | complex | None = None
    name: str = ""
    is_cotangent: bool = False

    @property
    def is_finite(self) -> bool:
        return self.n_nan == 0 and self.n_inf == 0

    def __str__(self) -> str:
        name = f"`{self.name}`" if self.name else ""
        if self.is_cotangent:
            name = f"a cotangent from the derivative of {name}" if name else "a cotangent"
        what = f"{name}: {self.type}" if name else self.type
        if self.value is not None and self.size == 1:
            return f"{what} = {_number(self.value)}"
        parts = [f"{_number(self.low)} to {_number(self.high)}"] if self.low is not None else []
        counts = ((self.n_nan, "NaN"), (self.n_inf, "infinite"), (self.n_zero, "zero"))
        parts += [f"{n:,} of {self.size:,} {kind}" for n, kind in counts if n]
        if self.value is not None and self.size not in (self.n_nan, self.n_zero):  # else the count says it
            parts += [f"{_number(self.value)} at that index"]
        return f"{what} ({', '.join(parts)})" if parts else what


def _number(x: Any) -> str:
    return f"{x:.6g}" if isinstance(x, (int, float)) else str(x)


def on_host(x: Any) -> np.ndarray[Any, Any]:
    """An array in a type with infinities that NumPy supports."""
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
        type_text(aval), wide.size, int(np.isnan(magnitude).sum()), int(np.isinf(magnitude).sum()),
        int((wide == 0).sum()),
        float(finite.min()) if finite.size else None, float(finite.max()) if finite.size else None, value, name,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cause:
    """Why an equation computes a value that is not finite.

    Args:
      id: such as 'log-of-zero'.
      text: what happened.
      advice: the name of the remedy in `REMEDIES`; '' if unknown.
      parts: the values to fill into it.
    """

    id: str
    text: str
    advice: str = ""
    parts: tuple[tuple[str, Any], ...] = ()

    @property
    def remedy(self) -> str:
        """The remedy, with the code to write."""
        return REMEDIES[self.advice].format(**dict(self.parts)) if self.advice else ""


def advised(id: str, text: str, advice: str, **parts: Any) -> Cause:
    """A cause with advice."""
    return Cause(id, text, advice, tuple(parts.items()))


@dataclass(frozen=True, slots=True)
class Case:
    """What identifies a cause.

    Args:
      operation: what the user called, such as 'log'.
      of: the primitive that this is, or is the derivative of.
      is_derivative: whether the equation belongs to its derivative.
      dtype: that of its result.
      behind_where: whether the result of the user's operation is an operand of a `where`, which may not select it.
      matrix: its first operand, if that is a matrix.
      written: what the user's expression calls, see `SearchNames.written`; '' if that is unknown.
      is_certain: whether the operation is known to be this one, and not another one that JAX derived from it.
    """

    primitive: str
    params: Any
    operation: str
    of: str
    is_derivative: bool
    inputs: Sequence[Operand]
    outputs: Sequence[Operand]
    dtype: Any
    behind_where: bool
    matrix: Any = None
    written: str = ""
    is_certain: bool = True

    def reads(self, k: int, test: Callable[[float], bool]) -> bool:
        """Whether an operand satisfies a condition at the relevant element, or if that is unknown, whether it may."""
        if k >= len(self.inputs):
            return False
        x = self.inputs[k]
        if x.value is not None:
            value = x.value.real if isinstance(x.value, complex) and x.value.imag == 0 else x.value
            return isinstance(value, (int, float)) and test(value)
        ends = [v for v in (x.low, x.high, 0.0 if x.n_zero else None) if v is not None]
        return any(test(v) for v in ends)

    def reads_any(self, test: Callable[[float], bool]) -> bool:
        """The same for any operand."""
        return any(self.reads(k, test) for k in range(len(self.inputs)))

    def is_call(self, of: str) -> bool:
        """Whether the user has written a call of this operation, so that something else can be written in its place."""
        if not self.written:
            return self.is_certain and of in (self.operation, ALIASES.get(self.operation))
        called = ALIASES.get(self.written, self.written)
        return self.is_certain and (called == of or (called in _POWERS and of in _POWERS))

    @property
    def function(self) -> str:
        """The user's function that the equation is in."""
        return self.written or self.operation

    @property
    def largest(self) -> float:
        """The largest magnitude among the finite operands; at least 1."""
        ends = [abs(v) for x in self.inputs for v in (x.low, x.high) if v is not None]
        return max([1.0, *ends])


is_zero = lambda v: v == 0
is_negative = lambda v: v < 0
is_pole = lambda v: v <= 0 and float(v).is_integer()
is_complex = lambda x: x.type.startswith("c")


_AS = {"log2": "log"}
"""Primitives that are finite where others are; log2 is one since JAX 0.12."""


def cause_of(case: Case) -> Cause:
    """The first of the usual causes that matches a case; otherwise a plain description of what the equation did."""
    case = replace(case, primitive=_AS.get(case.primitive, case.primitive))
    finite = all(x.is_finite for x in case.inputs)
    first = (_of_library, _of_derivative, _of_primitive, _of_overflow) if finite else (_of_library, _of_infinities)
    for recognise in (*first, _of_primitive):
        cause: Cause | None = recognise(case)
        if cause is not None:
            return cause
    inputs = "finite numbers" if finite else "what it read"
    kind = "NaN" if any(o.n_nan for o in case.outputs) else "infinity"
    return Cause("other", f"`{case.primitive}` makes {kind} of {inputs}.")


def is_slope(operation: str, primitive: str) -> bool:
    """Whether an equation on the line of an operation can only belong to its derivative, judged by its primitive."""
    own = ALIASES.get(operation, operation)
    knows = own in DOMAINS or own in _EXPONENTIALS
    return (knows and primitive != own) or operation in ("norm", "std", "eigh", "svd")


def _of_domain(case: Case, of: str, domain: Domain, id: str, text: str) -> Cause:
    """An argument at or beyond the boundary of an operation's domain, with or without a `where` after it."""
    sentence = f"{text[0].upper()}{text[1:]}"
    if not case.is_call(of):
        return Cause(id, f"{sentence}; it is in {case.function}." if case.function != of else f"{sentence}.")
    code = domain.repaired(CALLS.get(case.function, domain.call), case.dtype)
    if case.behind_where:
        why = (
            f"`where` computes and differentiates both sides, and here {text}; the side that is not taken sends back a "
            "cotangent of 0, and zero times infinity, or NaN, is NaN."
        )
        return advised("unsafe-where", why, "safe before where", code=code) if code else Cause("unsafe-where", why)
    return advised(id, f"{sentence}.", "call inside", code=code) if code else Cause(id, f"{sentence}.")


def _of_derivative(case: Case) -> Cause | None:
    if not case.is_derivative:
        return None
    name = case.operation
    if name in ("norm", "std"):
        what, when = (
            ("The norm of a vector", "for a zero vector")
            if name == "norm"
            else ("jnp.std", "where all values are equal")
        )
        text = f"{what} is the root of a sum, and the slope of a root is infinite at 0, {when}."
        advice = "norm of what is not zero" if name == "norm" else "root of a variance that is not zero"
        return advised(f"slope-of-{name}-at-zero", text, advice)
    if name in ("eigh", "svd"):
        values = "singular values" if name == "svd" else "eigenvalues"
        text = f"The slope of {name} divides by the differences of its {values}, and two of them are equal."
        largest = 1.0 if case.matrix is None else max(1.0, float(np.abs(on_host(case.matrix)).max()))
        n = 2 if case.matrix is None else min(case.matrix.shape[-2:])
        shift = 1e-3 * largest
        moved = shift * (n if name == "svd" else n - 1)
        return advised(f"repeated-values-of-{name}", text, f"break the tie of {name}", shift=shift, moved=moved)
    of = next((n for n in (ALIASES.get(name, name), case.of) if n in DOMAINS), None)
    if of is None:
        return None
    known, id = of, f"slope-of-{_NAMES.get(of, of)}"
    if known == "pow" and case.primitive in ("pow", "log") and case.reads(0, is_negative):
        known = "pow in p" if case.primitive == "log" else "pow of negative"
    domain = DOMAINS[known]
    is_inside = not case.reads_any(is_pole if domain.inside == NO_POLE else is_zero)
    if domain.steep and is_inside and not any(o.n_nan for o in case.outputs):
        return _of_steep_slope(case, of, domain)
    return _of_domain(case, of, domain, id, domain.edge)


def _of_steep_slope(case: Case, of: str, domain: Domain) -> Cause:
    """A slope that is finite in exact numbers, and too large for the type."""
    name = _NAMES.get(of, of)
    kind, id = jnp.dtype(case.dtype).name, f"overflow-of-slope-of-{name}"
    if case.primitive == "mul" and case.of == "pow":
        return Cause(id, f"A slope of x ** p, p * x ** (p - 1) or x ** p * log(x), is larger than {kind} holds.")
    text = f"So close to where it is infinite, the slope of {name} is larger than {kind} holds"
    if not case.is_call(of):
        return Cause(id, f"{text}; it is in {case.function}.")
    code = domain.flattened(CALLS.get(case.function, domain.call))
    return advised(id, f"{text}.", "flat where it is steep", code=code)


_NAMES = {
    "acos": "arccos", "asin": "arcsin", "acosh": "arccosh", "atanh": "arctanh", "atan2": "arctan2", "erf_inv": "erfinv",
    "div": "division", "integer_pow": "power", "pow": "power", "igamma": "gammainc",
    "regularized_incomplete_beta": "betainc", "lgamma": "gammaln",
}  # fmt: skip


def _of_library(case: Case) -> Cause | None:
    """Causes by the library function that the user called."""
    masks = case.operation in ("logsumexp", "softmax", "log_softmax") and case.primitive == "sub"
    all_masked = f"All that {case.operation} reads along an axis is -inf (all masked)"
    if masks and all(x.n_inf for x in case.inputs):
        return advised("all-masked", f"{all_masked}, and -inf - (-inf) is NaN.", "mask with a finite number")
    if case.operation == "logsumexp" and case.primitive == "log" and case.reads(0, is_zero):
        return advised("all-masked", f"{all_masked}: the sum is 0, and its log is -inf.", "mask with a finite number")
    sums = case.operation in ("logsumexp", "softmax", "log_softmax") and case.is_derivative and case.primitive == "div"
    if sums and case.reads(1, is_zero):
        return advised(
            "all-masked", f"{all_masked}: the sum that its slope divides by is 0.", "mask with a finite number"
        )
    if case.primitive == "shard_map":
        text = (
            "It happens on one device inside the shard_map, which runs as a single step when equations run one by one."
        )
        return Cause("inside-shard-map", text)
    if case.primitive == "cholesky" or case.operation in ("cholesky", "cho_factor"):
        text = "cholesky gives NaN where the matrix is not positive definite."
        if case.primitive != "cholesky" or case.matrix is None or not all(x.is_finite for x in case.inputs):
            return Cause("not-positive-definite", text)
        least = float(np.linalg.eigvalsh(on_host(case.matrix)).min())
        shift = max(-1.1 * least, 1e-3 * case.largest)
        return advised("not-positive-definite", text, "shift to positive definite", least=least, shift=shift)
    solves = case.primitive in ("custom_linear_solve", "triangular_solve")
    factors = case.operation in ("solve", "inv", "lu", "lu_solve", "triangular_solve", "det", "slogdet")
    by_zero = case.primitive in ("div", "lu") or (case.primitive == "log" and case.reads(0, is_zero))
    if all(x.is_finite for x in case.inputs) and (solves or (factors and by_zero)):
        name = case.operation.replace("custom_linear_solve", "The solver")
        whose = f"The slope of {name}" if case.is_derivative and not factors else name
        does = "takes the log of" if case.primitive == "log" else "divides by"
        text = f"{whose} {does} a pivot that is 0: the matrix is singular."
        return advised("singular-matrix", text, "shift off singular", shift=1e-3 * case.largest)
    return None


def _of_primitive(case: Case) -> Cause | None:
    name, reads = case.primitive, case.reads
    domain = DOMAINS.get(name)
    if domain is None:
        return None
    cause = partial(_of_domain, case, name, domain)
    if name == "div" and reads(1, is_zero):
        return (
            cause("zero-by-zero", "0 / 0 is NaN")
            if reads(0, is_zero)
            else cause("division-by-zero", "a number is divided by 0")
        )
    if name in ("log", "sqrt", "rsqrt") and reads(0, is_negative):
        is_plain = name == "log" or case.behind_where
        why = "" if is_plain else ". A sum of squares that is computed as a difference can come out slightly below 0"
        return cause(f"{name}-of-negative", domain.outside + why)
    if name in ("log", "rsqrt") and reads(0, is_zero):
        return cause(f"{name}-of-zero", "the log of 0 is -inf" if name == "log" else "the rsqrt of 0 is infinite")
    if name == "log1p" and reads(0, lambda v: v <= -1):
        return cause("log1p-edge", "log1p is -inf at -1 and NaN below")
    if name == "pow":
        if reads(0, is_negative) and not reads(1, lambda v: float(v).is_integer()):
            negative = DOMAINS["pow of negative"]
            return _of_domain(case, name, negative, "power-of-negative", negative.outside)
        if reads(0, is_zero) and reads(1, is_negative):
            zero = DOMAINS["pow of zero"]
            return _of_domain(case, name, zero, "negative-power-of-zero", zero.outside)
    if name == "integer_pow" and case.params.get("y", 1) < 0 and reads(0, is_zero):
        return cause("negative-power-of-zero", f"0 ** {case.params['y']} is infinite")
    if name in ("asin", "acos", "acosh"):
        return cause("outside-of-domain", f"{domain.outside}; rounding can bring its argument there")
    if name in ("atanh", "erf_inv"):
        return cause(
            "outside-of-domain",
            f"{_NAMES[name]} is not finite at -1 and 1, and beyond; rounding can bring its argument there",
        )
    last = len(case.inputs) - 1
    if domain.inside == NO_POLE and reads(last, is_pole):
        return cause("outside-of-domain", domain.outside)
    if name in ("igamma", "regularized_incomplete_beta"):
        if any(reads(k, lambda v: v <= 0) for k in range(last)):
            return Cause("outside-of-domain", f"{_NAMES[name]} is not finite for a parameter that is not positive.")
        return cause("outside-of-domain", domain.outside)
    return None


_EXPONENTIALS = frozenset(name for name, does in PLAIN.items() if does.grows == "exponential")

SINGLE = frozenset((*DOMAINS, *_EXPONENTIALS)) - {"div", "pow", "integer_pow"}
"""Functions that are a single operation: any other one in a call of these belongs to the derivative."""


def _of_overflow(case: Case) -> Cause | None:
    """An infinity computed from finite numbers by overflow; or the NaN that infinities of both signs add up to."""
    grows = plain(case.primitive).grows
    is_bad = any(o.n_inf or (grows == "sum" and o.n_nan) for o in case.outputs)
    if not all(x.is_finite for x in case.inputs) or not is_bad:
        return None
    limit = float(jnp.finfo(case.dtype).max)
    kind = jnp.dtype(case.dtype).name
    narrow = jnp.dtype(case.dtype).itemsize <= 2
    if grows == "exponential":
        return _of_exponential(case, case.of if case.of in _EXPONENTIALS else case.primitive, limit)
    if case.primitive == "convert_element_type":
        text = f"The number is larger than {kind} holds ({limit:.3g})"
        fits = narrow and case.largest < float(jnp.finfo(jnp.bfloat16).max)
        advice = "cast to bfloat16" if fits and kind != "bfloat16" else "replace what overflows"
        safe = f"jnp.clip(x, -{large(case.dtype, 1):g}, {large(case.dtype, 1):g})"
        return _of_overflowing_call(case, "overflow-of-cast", text, f"{{x}}.astype(jnp.{kind})", safe, advice)
    if _divides(case):
        text = f"The result is larger than {kind} holds ({limit:.3g}): it divides by a number so close to 0"
        call = CALLS.get(case.function, DOMAINS[case.primitive].call)
        return _of_overflowing_call(case, "overflow-of-division", text, call, "1.0", "replace what overflows")
    what = {
        "reduce_sum": "The sum", "psum": "The sum over devices", "psum_invariant": "The sum over devices",
        "dot_general": "The product of matrices", "cumsum": "The running sum",
    }.get(case.primitive, "The result")  # fmt: skip
    if not grows:
        return None
    text = f"{what} is larger than {kind} holds ({limit:.3g})."
    if narrow and kind != "bfloat16":
        return advised(f"overflow-of-{kind}", text, "compute in float32", dtype=kind)
    text += " Numbers grow where a learning rate is too high or a loop diverges."
    if case.primitive in _POWERS and not case.is_derivative:
        n = max(
            2, int(np.ceil(case.params.get("y", 0) if case.primitive == "integer_pow" else case.inputs[-1].high or 0))
        )
        safe = f"jnp.clip(x, -{large(case.dtype, n):g}, {large(case.dtype, n):g})"
        call = _POWERS[case.primitive]
        return _of_overflowing_call(case, "overflow", text.removesuffix("."), call, safe, "replace what overflows")
    does = plain(case.primitive), plain(case.of)
    multiplies_many = any(d.grows == "product" and d.kind != "elementwise" for d in does)  # as a power does
    if multiplies_many or any(map(is_complex, case.inputs)):  # complex numbers are not clipped
        return Cause("overflow", text)
    n_factors = 2 if any(d.grows == "product" or d.kind in _CONTRACTIONS for d in does) else 1
    size = max(x.size for x in case.inputs)
    return advised("overflow", text, "clip before", large=large(case.dtype, n_factors, size))


def _of_exponential(case: Case, name: str, limit: float) -> Cause:
    """An exponential function, or its slope, of too large a number."""
    last = float(np.log2(limit) if name == "exp2" else np.log(limit))
    is_even = name in ("sinh", "cosh")
    last += float(np.log(2)) if is_even else 0.0
    text = f"{name} overflows {jnp.dtype(case.dtype).name} from {last:.4g} on"
    if not case.is_call(name):
        return Cause("overflow-of-exp", f"{text}; it is in {case.function}.")
    half = np.floor(last / 2)
    call, safe = f"jnp.{name}({{x}})", f"jnp.clip(x, -{half}, {half})" if is_even else f"{half}"
    advice = "replace what overflows exp" if name == "exp" else "replace what overflows"
    code = chosen(f"jnp.isfinite({call.format(x='x')})", safe, call)
    return advised("overflow-of-exp", f"{text}.", advice, code=code)


def _of_overflowing_call(case: Case, id: str, text: str, call: str, safe: str, advice: str) -> Cause:
    """A call whose result is too large for its type, to be made with other arguments there."""
    if case.is_derivative or not (case.primitive == "convert_element_type" or case.is_call(case.primitive)):
        return Cause(id, f"{text}.")
    return advised(id, f"{text}.", advice, code=chosen(f"jnp.isfinite({call.format(x='x')})", safe, call))


def _divides(case: Case) -> bool:
    """Whether a result is large because the equation reads a small number."""
    if case.primitive == "integer_pow":
        return bool(case.params.get("y", 1) < 0)
    return case.primitive in ("div", "rsqrt", "polygamma") or (case.primitive == "pow" and case.reads(1, is_negative))


_CONTRACTIONS = ("product", "convolution")
"""Kinds of primitives that add products."""
_POWERS = {"pow": "{x} ** p", "integer_pow": "{x} ** p", "square": "jnp.square({x})"}


def _of_infinities(case: Case) -> Cause | None:
    """A NaN computed from infinities."""
    if not any(x.n_inf for x in case.inputs):
        return None
    finite = partial(advised, advice="a finite number for infinity", large=large(case.dtype))
    does = plain(case.primitive)
    contracts = does.kind in _CONTRACTIONS
    if (case.primitive == "mul" or contracts) and _has_zero(case):
        also = ", and so is infinity minus infinity" if contracts else ""
        return finite("zero-times-infinity", f"Zero times infinity is NaN{also}.")
    # The parts of complex factors, and the factors of a Fourier transform, may be 0.
    multiplies_by_zero = does.kind == "transform" or (contracts and any(map(is_complex, case.inputs)))
    if does.grows == "sum" and not multiplies_by_zero:
        return finite("infinity-minus-infinity", "Infinity minus infinity is NaN.")
    if case.primitive == "div" and all(x.n_inf for x in case.inputs):
        return finite("infinity-by-infinity", "Infinity divided by infinity is NaN.")
    return None


def _has_zero(case: Case) -> bool:
    """Whether a product reads a zero, which may be one that a convolution puts around or between the numbers."""
    dilations = (*case.params.get("lhs_dilation", ()), *case.params.get("rhs_dilation", ()))
    adds = any(n > 0 for ends in case.params.get("padding", ()) for n in ends) or any(n > 1 for n in dilations)
    return adds or any(x.n_zero for x in case.inputs)
