"""Runs a Program on values, with JAX; and the settings of JAX for what jaxviz itself computes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

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


@contextlib.contextmanager
def usual_settings() -> Iterator[None]:
    """Within the context, JAX computes as it does by default: without the user's mesh, and without stricter rules or
    checks.

    What is computed about the user's values, such as their mean, must not depend on what the user's own code may do.
    """
    none = Mesh(np.empty((), dtype=object), ())
    with (
        jax.set_mesh(none), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"),
        jax.disable_jit(False), compat.nan_checks_off(),
    ):  # fmt: skip
        yield
