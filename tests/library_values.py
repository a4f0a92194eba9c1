"""Arguments for library programs, created with NumPy: JAX would compile something for each shape whenever a table is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from programs import on_device

KEY = jax.random.key(7)


def normal(i: int, *shape: int) -> jax.Array:
    return on_device(np.asarray(np.random.default_rng(i).normal(size=shape), np.float32))


def filled(shapes: Any, positive: bool = False) -> Any:
    """Values for a tree of shapes, such as the traced result of an initializer; integers are zero.

    Args:
      positive: for states, which may include variances.
    """
    rng = np.random.default_rng(0)

    def leaf(x: Any) -> Any:
        if not isinstance(x, jax.ShapeDtypeStruct):
            return x
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.split(KEY, x.shape) if x.shape else KEY
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            return on_device(np.zeros(x.shape, x.dtype))
        numbers = rng.uniform(0.5, 1.5, x.shape) if positive else rng.normal(size=x.shape) * 0.5
        return on_device(np.asarray(numbers).astype(x.dtype))

    return jax.tree.map(leaf, shapes)


def initial(init: Callable[..., Any], *args: Any) -> Any:
    """The shapes of a flax or haiku `init`."""
    return filled(jax.eval_shape(init, *args))


def equinox_parts(make: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """The inexact arrays of a new equinox module, and the rest."""
    return eqx.partition(filled(eqx.filter_eval_shape(make, *args)), eqx.is_inexact_array)


def nnx_parts(make: Callable[..., Any]) -> tuple[Any, Any, Any]:
    """The structure, the parameters and the remaining state of a new nnx module."""
    graph, params, rest = nnx.split(nnx.eval_shape(make), nnx.Param, ...)
    return graph, filled(params), filled(rest, positive=True)
