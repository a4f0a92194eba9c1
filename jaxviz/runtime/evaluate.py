"""Runs a Program on values, with JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxviz.ir import compat
from jaxviz.ir.convert import write_params
from jaxviz.ir.emit import as_function
from jaxviz.ir.syntax import Program


def evaluate(program: Program, inputs: Sequence[Any]) -> list[Any]:
    """Runs a program, one equation after the other, as JAX runs a function outside `jit`.

    Inside `jax.jit`, `jax.vmap` or `jax.grad` its equations become part of what those trace; inside a trace of ours,
    with their origins.

    Args:
      program: the program.
      inputs: one value for each of its inputs.
    """
    outs = compat.evaluate_in_trace(program, inputs, write_params)
    return list(as_function(program)(*inputs)) if outs is None else outs
