"""From a `Program` to a JAX callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.extend.core import jaxpr_as_fun

from jaxviz.ir.syntax import Program


def as_function(program: Program) -> Callable[..., list[Any]]:
    """A function of the program's flat inputs that returns its flat results, for JAX to run, jit or transform.

    >>> as_function(trace(jnp.sin)(1.0))(2.0)
    [Array(0.9092974, dtype=float32)]
    """
    fun: Callable[..., list[Any]] = jaxpr_as_fun(program.jaxpr)
    return fun
