"""From a `Program` to a JAX callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxviz.ir import compat
from jaxviz.ir.syntax import Program


def as_function(program: Program) -> Callable[..., list[Any]]:
    """A function of the program's flat inputs that returns its flat results, for JAX to run, jit or transform.

    >>> as_function(trace(jnp.sin)(1.0))(2.0)
    [Array(0.9092974, dtype=float32)]
    """
    return compat.jaxpr_as_fun(program.jaxpr)
