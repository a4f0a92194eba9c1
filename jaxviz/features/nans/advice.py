"""Advice whose code, as printed, gives finite values and a finite gradient, and keeps those that were finite before.

Where no code keeps them, the advice says what it changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np


def chosen(where: str, safe: str, call: str, otherwise: str = "") -> str:
    """The code of a call whose argument is replaced where it is not safe.

    Args:
      where: whether an element of `x` is safe.
      safe: what to put in its place if it is not.
      call: the call, with `{x}` for its argument.
      otherwise: the result there; by default that of the safe argument.
    """
    if not otherwise:
        return f"`x_safe = jnp.where({where}, x, {safe})`, then `{call.format(x='x_safe')}`"
    result = f"jnp.where({where}, {call.format(x='x_safe')}, {otherwise})"
    return f"`x_safe = jnp.where({where}, x, {safe})`, then `{result}`"


@dataclass(frozen=True, slots=True)
class Domain:
    """Where an operation and its slope are finite.

    Args:
      call: how it is written, with `{x}` for the relevant argument; further arguments are `y`, `a`, `n` and `p`.
      inside: where both are finite.
      safe: an argument that is inside, close to the boundary if the value there is not finite.
      edge: its slope at the boundary.
      outside: its value beyond the boundary.
      at_boundary: its value at the boundary, if that is finite and only the slope is not.
      steep: a factor of its slope that overflows close to the boundary, where the value is still finite.
      points: the boundary among complex numbers; None if complex arguments are not considered.
    """

    call: str
    inside: str
    safe: str
    edge: str
    outside: str = ""
    at_boundary: str = ""
    steep: str = ""
    points: tuple[int, ...] | None = None

    def repaired(self, call: str, dtype: Any) -> str:
        """The code that calls it only inside; '' if there is none for the type.

        Args:
          call: how the user calls it.
          dtype: the type of the result.
        """
        inside, value = self.inside, self.at_boundary
        if jnp.issubdtype(dtype, jnp.complexfloating):
            if self.points is None:
                return ""
            inside = " & ".join(f"(x != {point})" for point in self.points)
            value = value and call.format(x="jax.lax.stop_gradient(x)")
        return chosen(inside, self.safe.format(eps=epsilon(dtype), edge=edge(dtype)), call, value)

    def flattened(self, call: str) -> str:
        """The code that has the slope 0 where it overflows."""
        return chosen(f"jnp.isfinite({self.steep})", "1.0", call, call.format(x="jax.lax.stop_gradient(x)"))


_TO_EDGE = "jnp.sign(x) * (1 - {edge:g})"
NO_POLE = "(x > 0) | (x != jnp.floor(x))"
_IS_INTEGER = "(p == jnp.round(p))"

DOMAINS: Mapping[str, Domain] = {
    "sqrt": Domain("jnp.sqrt({x})", "x > 0", "1.0", "the slope of sqrt is infinite at 0",
        "sqrt of a negative number is NaN", at_boundary="0.0", points=(0,)),
    "rsqrt": Domain("jax.lax.rsqrt({x})", "x > 0", "{eps:g}", "rsqrt and its slope are infinite at 0",
        "rsqrt of a negative number is NaN", steep="jax.lax.rsqrt(x) / x", points=(0,)),
    "cbrt": Domain("jnp.cbrt({x})", "x != 0", "1.0", "the slope of cbrt is infinite at 0", at_boundary="0.0"),
    "log": Domain("jnp.log({x})", "x > 0", "{eps:g}", "log and its slope are infinite at 0",
        "log of a negative number is NaN", steep="1 / x", points=(0,)),
    "log1p": Domain("jnp.log1p({x})", "x > -1", "-1 + {edge:g}", "log1p and its slope are infinite at -1",
        "log1p is NaN below -1", points=(-1,)),
    "pow": Domain("{x} ** p", "(x != 0) | (p >= 1)", "1.0", "the slope of x ** p is infinite at x = 0 for p < 1",
        at_boundary="jax.lax.stop_gradient(x) ** p", steep="p * x ** (p - 1)"),
    "pow of zero": Domain("{x} ** p", "(x != 0) | (p >= 0)", "1.0",
        "the slope of x ** p is infinite at x = 0 for p < 1", "0 to a negative power is infinite"),
    "pow of negative": Domain("{x} ** p", f"(x >= 0) | {_IS_INTEGER}", "1.0",
        "the slope of x ** p is NaN for a negative x and a p that is not an integer",
        "a negative number to a power that is not an integer is NaN"),
    "pow in p": Domain("{x} ** p", "x >= 0", "1.0",
        "the slope of x ** p in p has log(x), which is NaN for a negative x",
        at_boundary=f"jnp.where({_IS_INTEGER}, x, 1.0) ** jax.lax.stop_gradient(p)"),
    "integer_pow": Domain("{x} ** p", "x != 0", "1.0", "a negative power and its slope are infinite at 0",
        steep="p * x ** (p - 1)", points=(0,)),
    "div": Domain("a / {x}", "x != 0", "1.0", "the slopes of a / x, 1 / x and -a / x**2, are infinite at x = 0",
        steep="x ** -2", points=(0,)),
    "atan2": Domain("jnp.arctan2(y, {x})", "x ** 2 + y ** 2 > 0", "1.0",
        "the slope of arctan2 divides by x ** 2 + y ** 2, which is 0",
        at_boundary="jnp.arctan2(jax.lax.stop_gradient(y), jax.lax.stop_gradient(x))"),
    "asin": Domain("jnp.arcsin({x})", "jnp.abs(x) < 1", "0.0", "the slope of arcsin is infinite at -1 and 1",
        "arcsin is NaN beyond -1 and 1", at_boundary="jnp.arcsin(jnp.sign(x))", points=(-1, 1)),
    "acos": Domain("jnp.arccos({x})", "jnp.abs(x) < 1", "0.0", "the slope of arccos is infinite at -1 and 1",
        "arccos is NaN beyond -1 and 1", at_boundary="jnp.arccos(jnp.sign(x))", points=(-1, 1)),
    "acosh": Domain("jnp.arccosh({x})", "x > 1", "2.0", "the slope of arccosh is infinite at 1",
        "arccosh is NaN below 1", at_boundary="0.0", points=(-1, 1)),
    "atanh": Domain("jnp.arctanh({x})", "jnp.abs(x) < 1", _TO_EDGE, "arctanh and its slope are infinite at -1 and 1",
        "arctanh is NaN beyond -1 and 1", points=(-1, 1)),
    "erf_inv": Domain("jax.scipy.special.erfinv({x})", "jnp.abs(x) < 1", _TO_EDGE,
        "erfinv and its slope are infinite at -1 and 1", "erfinv is NaN beyond -1 and 1"),
    "lgamma": Domain("jax.scipy.special.gammaln({x})", NO_POLE, "1.0",
        "gammaln is infinite at 0 and at the negative integers",
        "gammaln is infinite at 0 and at the negative integers", steep="jax.scipy.special.digamma(x)"),
    "digamma": Domain("jax.scipy.special.digamma({x})", NO_POLE, "1.0",
        "digamma is NaN at 0 and at the negative integers",
        "digamma is NaN at 0 and at the negative integers", steep="jax.scipy.special.polygamma(1, x)"),
    "polygamma": Domain("jax.scipy.special.polygamma(n, {x})", NO_POLE, "1.0",
        "polygamma is not finite at 0 and at the negative integers",
        "polygamma is not finite at 0 and at the negative integers", steep="jax.scipy.special.polygamma(n + 1, x)"),
    "igamma": Domain("jax.scipy.special.gammainc(a, {x})", "x > 0", "1.0", "the slope of gammainc is not finite at 0",
        "gammainc is NaN for a negative argument", at_boundary="0.0"),
    "regularized_incomplete_beta": Domain("jax.scipy.special.betainc(a, p, {x})", "(x > 0) & (x < 1)", "0.5",
        "the slope of betainc is not finite at 0 and 1", "betainc is NaN outside of 0 and 1",
        at_boundary="jnp.where(x > 0, 1.0, 0.0)"),
}  # fmt: skip
"""By primitive, and for powers by what is wrong. Others have no boundary that matters often."""

ALIASES: Mapping[str, str] = {
    "arccos": "acos", "arcsin": "asin", "arccosh": "acosh", "arctanh": "atanh", "arctan2": "atan2", "erfinv": "erf_inv",
    "float_power": "pow", "power": "pow", "true_divide": "div", "divide": "div", "log2": "log", "log10": "log",
    "gammaln": "lgamma", "gammainc": "igamma", "betainc": "regularized_incomplete_beta",
}  # fmt: skip
"""Primitives that users call by other names."""

CALLS: Mapping[str, str] = {"log2": "jnp.log2({x})", "log10": "jnp.log10({x})"}
"""How functions are called that compute something else than their primitive."""

REMEDIES: Mapping[str, str] = {
    "call inside": "Call it only where it and its slope are finite: {code}.",
    "safe before where": "Make the argument safe before the call, not only the result after it: {code}.",
    "flat where it is steep": "Let no gradient through where the slope overflows: {code}.",
    "norm of what is not zero": "Call it only where it is not 0: `x_safe = jnp.where(jnp.linalg.norm(x) > 0, x, "
    "1.0)`, then `jnp.where(jnp.linalg.norm(x) > 0, jnp.linalg.norm(x_safe), 0.0)`. For a norm along an axis, give "
    "the axis to all of these, and keepdims=True to the first.",
    "root of a variance that is not zero": "Take the root only where it is not 0: `var = jnp.var(x)`, then "
    "`jnp.where(var > 0, jnp.sqrt(jnp.where(var > 0, var, 1.0)), 0.0)`.",
    "break the tie of eigh": "Differentiate the eigenvalues alone: `jnp.linalg.eigvalsh(x)`. Or break the tie: "
    "`jnp.linalg.eigh(x + {shift:g} * jnp.diag(jnp.arange(x.shape[-1])))`. This changes the eigenvalues by up to "
    "{moved:g}, and the eigenvectors and the gradient, of every matrix.",
    "break the tie of svd": "Differentiate the singular values alone: `jnp.linalg.svd(x, compute_uv=False)`. Or break "
    "the tie: `jnp.linalg.svd(x + {shift:g} * jnp.eye(*x.shape[-2:]) * jnp.arange(1, 1 + x.shape[-1]), "
    "full_matrices=False)`. This changes the singular values by up to {moved:g}, and the vectors and the gradient, "
    "of every matrix.",
    "mask with a finite number": "Mask with a finite number instead of -inf: `jnp.where(mask, x, "
    "jnp.finfo(x.dtype).min)`.",
    "a finite number for infinity": "Use a large finite number instead of the infinity: `{large:g}`. This changes "
    "results that are finite because it is infinite, such as 1 / inf.",
    "shift to positive definite": "Add more to the diagonal than its least eigenvalue, {least:.4g}, is below 0: "
    "`x + {shift:.4g} * jnp.eye(x.shape[-1])`. This changes the result of every matrix.",
    "shift off singular": "Take a matrix that is not singular: `x + {shift:g} * jnp.eye(x.shape[-1])`. This changes "
    "the result of every matrix.",
    "replace what overflows": "Replace the numbers for which it overflows: {code}.",
    "replace what overflows exp": "Replace the numbers for which it overflows: {code}; or, where exp(x) is divided by "
    "its sum, use `jax.nn.softmax(x)`, which subtracts the maximum first.",
    "cast to bfloat16": "Replace the numbers that do not fit: {code}; or cast to a type with the range of float32: "
    "`x.astype(jnp.bfloat16)`. This changes other numbers too: it rounds to 8 bits, and float16 to 11.",
    "compute in float32": "Compute this in float32: `x.astype(jnp.float32)`. This changes other results too, which "
    "are no longer rounded to {dtype}.",
    "clip before": "Clip what it reads: `jnp.clip(x, -{large:g}, {large:g})`. This changes results of numbers beyond "
    "that, even if they were finite.",
}  # fmt: skip
"""All advice, by name. The tests require a case for each, and run each of its code snippets as printed."""


def epsilon(dtype: Any) -> float:
    """A small number whose inverse, and except in float16 the inverse's square, is finite in a type."""
    return 1e-3 if jnp.dtype(dtype) == jnp.float16 else 1e-6


def edge(dtype: Any) -> float:
    """A small number x for which 1 + x differs from 1 in a type."""
    return float(10.0 ** np.ceil(np.log10(float(jnp.finfo(dtype).eps))))


def large(dtype: Any, factors: int = 2, terms: int = 1) -> float:
    """A power of ten of which a sum of this many products with this many factors is finite in a type."""
    exponent = np.log10(float(jnp.finfo(dtype).max) / max(terms, 1)) / max(factors, 1) - 0.5
    return float(10.0 ** max(np.floor(exponent), 0))
