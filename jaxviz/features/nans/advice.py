"""Advice whose code, as printed, gives finite values and a finite gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True, slots=True)
class Domain:
    """Where an operation and its slope are finite.

    Args:
      call: how it is written, with `x` for the relevant argument; further arguments are `y`, `a` and `p`.
      inside: where both are finite.
      kept: the argument, restricted to that.
      edge: its slope at the boundary.
      outside: its value beyond the boundary.
      safe: an argument that is inside.
    """

    call: str
    inside: str
    kept: str
    edge: str
    outside: str = ""
    safe: float = 1.0

    def of(self, argument: str) -> str:
        """The call, with this argument."""
        return self.call.format(x=argument)


_POSITIVE = "jnp.maximum(x, {eps:g})"
_BETWEEN = "jnp.clip(x, -1 + {edge:g}, 1 - {edge:g})"
_UNLESS_ZERO = "jnp.where(x == 0, 1.0, x)"

DOMAINS: Mapping[str, Domain] = {
    "sqrt": Domain("jnp.sqrt({x})", "x > 0", _POSITIVE, "the slope of sqrt is infinite at 0",
        "sqrt of a negative number is NaN"),
    "rsqrt": Domain("jax.lax.rsqrt({x})", "x > 0", _POSITIVE, "rsqrt and its slope are infinite at 0",
        "rsqrt of a negative number is NaN"),
    "cbrt": Domain("jnp.cbrt({x})", "x != 0", _UNLESS_ZERO, "the slope of cbrt is infinite at 0"),
    "log": Domain("jnp.log({x})", "x > 0", _POSITIVE, "log and its slope are infinite at 0",
        "log of a negative number is NaN"),
    "log1p": Domain("jnp.log1p({x})", "x > -1", "jnp.maximum(x, -1 + {edge:g})", "log1p and its slope are infinite at -1",
        "log1p is NaN below -1"),
    "pow": Domain("{x} ** p", "x > 0", "jnp.where(x > 0, x, 1.0)",
        "the slope of x ** p at x = 0 is infinite for p < 1, and its slope in p has log(0)",
        "a negative number to a power that is not an integer is NaN"),
    "integer_pow": Domain("{x} ** p", "x != 0", _UNLESS_ZERO, "a negative power and its slope are infinite at 0"),
    "div": Domain("a / {x}", "x != 0", _UNLESS_ZERO, "the slopes of a / x, 1 / x and -a / x**2, are infinite at x = 0"),
    "atan2": Domain("jnp.arctan2(y, {x})", "(x != 0) | (y != 0)", "jnp.where((x == 0) & (y == 0), 1.0, x)",
        "the slope of arctan2 is 0 / 0 at the origin"),
    "asin": Domain("jnp.arcsin({x})", "jnp.abs(x) < 1", _BETWEEN, "the slope of arcsin is infinite at -1 and 1",
        "arcsin is NaN beyond -1 and 1", 0.5),
    "acos": Domain("jnp.arccos({x})", "jnp.abs(x) < 1", _BETWEEN, "the slope of arccos is infinite at -1 and 1",
        "arccos is NaN beyond -1 and 1", 0.5),
    "acosh": Domain("jnp.arccosh({x})", "x > 1", "jnp.maximum(x, 1 + {edge:g})", "the slope of arccosh is infinite at 1",
        "arccosh is NaN below 1", 2.0),
    "atanh": Domain("jnp.arctanh({x})", "jnp.abs(x) < 1", _BETWEEN, "arctanh and its slope are infinite at -1 and 1",
        "arctanh is NaN beyond -1 and 1", 0.5),
    "erf_inv": Domain("jax.scipy.special.erfinv({x})", "jnp.abs(x) < 1", _BETWEEN,
        "erfinv and its slope are infinite at -1 and 1", "erfinv is NaN beyond -1 and 1", 0.5),
    "lgamma": Domain("jax.scipy.special.gammaln({x})", "x > 0", "jnp.maximum(x, 0.1)",
        "gammaln is infinite at 0 and at the negative integers", "gammaln is infinite at 0 and at the negative integers"),
    "digamma": Domain("jax.scipy.special.digamma({x})", "x > 0", "jnp.maximum(x, 0.1)",
        "digamma is infinite at 0 and at the negative integers", "digamma is infinite at 0 and at the negative integers"),
    "polygamma": Domain("jax.scipy.special.polygamma(1, {x})", "x > 0", "jnp.maximum(x, 0.1)",
        "polygamma is infinite at 0 and at the negative integers", "polygamma is infinite at 0 and at the negative integers"),
    "igamma": Domain("jax.scipy.special.gammainc(a, {x})", "x > 0", "jnp.maximum(x, 0.1)",
        "gammainc is finite for positive arguments only", "gammainc is finite for positive arguments only"),
    "regularized_incomplete_beta": Domain("jax.scipy.special.betainc(a, p, {x})", "(x > 0) & (x < 1)",
        "jnp.clip(x, {edge:g}, 1 - {edge:g})", "betainc is finite between 0 and 1 only", "betainc is finite between 0 and 1 only", 0.5),
}  # fmt: skip
"""By primitive. Others have no boundary that matters often."""

ALIASES: Mapping[str, str] = {
    "arccos": "acos", "arcsin": "asin", "arccosh": "acosh", "arctanh": "atanh", "arctan2": "atan2", "erfinv": "erf_inv",
    "float_power": "pow", "power": "pow", "true_divide": "div", "divide": "div", "log2": "log", "log10": "log",
    "gammaln": "lgamma", "gammainc": "igamma", "betainc": "regularized_incomplete_beta",
}  # fmt: skip
"""Primitives that users call by other names."""

REMEDIES: Mapping[str, str] = {
    "keep inside": "Keep the argument where it is finite: `{call_kept}`.",
    "safe before where": "Make the argument safe before the call, not only the result after it: "
    "`x_safe = jnp.where({inside}, x, {safe})`, then `jnp.where({inside}, {call_safe}, 0.0)`.",
    "constant under the root of a norm": "Add a small constant under the root: `jnp.sqrt(jnp.sum(x ** 2) + {eps:g})`.",
    "constant under the root of a deviation": "Add a small constant under the root: `jnp.sqrt(jnp.var(x) + {eps:g})`.",
    "break the tie of eigh": "Break the tie: `jnp.linalg.eigh(x + {shift:g} * jnp.diag(jnp.arange(x.shape[-1])))`; or differentiate the "
    "values alone: `jnp.linalg.eigvalsh(x)`.",
    "break the tie of svd": "Break the tie: `jnp.linalg.svd(x + {shift:g} * jnp.eye(*x.shape) * jnp.arange(1, 1 + x.shape[-1]), "
    "full_matrices=False)`; or differentiate the values alone: `jnp.linalg.svd(x, compute_uv=False)`.",
    "mask with a finite number": "Mask with a finite number instead of -inf: `jnp.where(mask, x, jnp.finfo(x.dtype).min)`.",
    "a finite number for infinity": "Use a large finite number instead of the infinity: `{large:g}`.",
    "shift to positive definite": "Add more to the diagonal than its least eigenvalue, {least:.4g}, is below 0: "
    "`x + {shift:.4g} * jnp.eye(x.shape[-1])`.",
    "shift off singular": "Take a matrix that is not singular: `x + {shift:g} * jnp.eye(x.shape[-1])`.",
    "clip before exp": "Clip the argument: `{call_clipped}`; or, to normalise, use a function that subtracts the maximum first: "
    "`jax.nn.softmax(x)`.",
    "cast to bfloat16": "Cast to a type with the range of float32: `x.astype(jnp.bfloat16)`.",
    "clip before a cast": "Clip it before the cast: `jnp.clip(x, -{large:g}, {large:g})`.",
    "compute in float32": "Compute this in float32: `x.astype(jnp.float32)`.",
    "clip before": "Clip what it reads: `jnp.clip(x, -{large:g}, {large:g})`.",
    "divide by no less": "Keep the divisor away from 0: `a / jnp.where(jnp.abs(x) < {eps:g}, {eps:g}, x)`.",
}  # fmt: skip
"""All advice, by name. The tests require a case for each, and run each of its code snippets as printed."""


def epsilon(dtype: Any) -> float:
    """A small number whose inverse, and except in float16 the inverse's square, is finite in a type."""
    return 1e-3 if jnp.dtype(dtype) == jnp.float16 else 1e-6


def edge(dtype: Any) -> float:
    """A small number x for which 1 + x differs from 1 in a type."""
    return {2: 2e-3, 8: 1e-12}.get(jnp.dtype(dtype).itemsize, 1e-6) if jnp.dtype(dtype) != jnp.bfloat16 else 1e-2


def large(dtype: Any, factors: int = 2, terms: int = 1) -> float:
    """A power of ten so far below a type's largest number that a sum of this many products with this many factors is finite."""
    exponent = np.log10(float(jnp.finfo(dtype).max) / max(terms, 1)) / max(factors, 1) - 0.5
    return float(10.0 ** max(np.floor(exponent), 0))
