"""Runs a gradient, counts which of its elements are not zero, and finds where those became zero that are all zero."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jaxviz.derivation import Derivation
from jaxviz.features.flow.zeros import ZeroSearch, is_same
from jaxviz.features.nans.capture import CompiledRun, RecordedRun, on_host
from jaxviz.higher_order import is_call, of
from jaxviz.ir.emit import as_function
from jaxviz.ir.syntax import Equation, Program
from jaxviz.transforms.driver import with_results
from jaxviz.transforms.flags import flag_program
from jaxviz.transforms.inline import inlined_where


@dataclass(frozen=True, slots=True)
class Count:
    """How much of a gradient is not zero.

    Args:
      nonzero, size: its elements.
      nonzero_rows, rows: along its first dimension, if it has more than one; otherwise 0.
      not_finite: its elements that are NaN or infinite, which are not zero either.
    """

    nonzero: int
    size: int
    nonzero_rows: int = 0
    rows: int = 0
    not_finite: int = 0


@dataclass(frozen=True, eq=False)
class GradientRun:
    """One gradient, with cotangents of one for the results.

    Args:
      derivation: of the function.
      inputs: the flat arguments.
    """

    derivation: Derivation
    inputs: tuple[Any, ...]
    compiled: CompiledRun = field(init=False)

    @cached_property
    def _residuals(self) -> list[Any]:
        """What the forward pass saves, compiled as a user's is; notes whether it ran faster than it compiled."""
        d = self.derivation
        start = time.perf_counter()
        compiled = jax.jit(as_function(d.forward)).lower(*self.inputs).compile()
        middle = time.perf_counter()
        outs = jax.block_until_ready(compiled(*self.inputs))
        is_short = time.perf_counter() - middle < 0.1 * (middle - start)
        object.__setattr__(self, "compiled", CompiledRun((), is_short, compiled))
        return list(outs[len(outs) - d.n_residuals :])

    @cached_property
    def _cotangents(self) -> list[Any]:
        return [np.ones(v.aval.shape, v.aval.dtype) for v in self.derivation.backward.invars[self._n_residuals :]]

    @property
    def _n_residuals(self) -> int:
        return self.derivation.n_residuals

    @cached_property
    def gradients(self) -> dict[int, Any]:
        """The gradient in each input that the backward pass reaches, by its index."""
        reached = [k for k, is_reached in enumerate(self.derivation.reached) if is_reached]
        if not reached:
            return {}
        run = jax.jit(as_function(self.derivation.backward))
        return dict(zip(reached, run(*self._residuals, *self._cotangents), strict=True))

    @cached_property
    def counts(self) -> dict[int, Count]:
        """The same as counts. They are no part of the backward program, which would take twice as long to compile."""
        gradients = [*map(on_host, self.gradients.values())]
        count = lambda xs: [*map(_counted, xs)]
        counted = (count if all(isinstance(x, np.ndarray) for x in gradients) else jax.jit(count))(gradients)
        counts = {}
        for k, x, (nonzero, nonzero_rows, not_finite) in zip(self.gradients, gradients, counted, strict=True):
            rows = x.shape[0] if x.ndim > 1 else 0
            counts[k] = Count(int(nonzero), int(x.size), int(nonzero_rows) if rows else 0, rows, int(not_finite))
        return counts

    @cached_property
    def zero(self) -> tuple[int, ...]:
        """The inputs whose gradient is zero in all elements although the backward pass computes it."""
        return tuple(k for k, count in self.counts.items() if count.size and not count.nonzero)

    @cached_property
    def search(self) -> ZeroSearch:
        """The backward pass of these inputs, with flags that say which values are zero."""
        reached = [k for k, is_reached in enumerate(self.derivation.reached) if is_reached]
        backward = self.derivation.backward
        program = with_results(backward, [backward.outvars[reached.index(k)] for k in self.zero])
        program = inlined_where(program, _is_plain_call)
        asked = {a for e in program.equations if not is_same(e) for a in e.invars}
        flagged = flag_program(program, "zeros", only=asked.difference(program.invars))
        inputs = [*self._residuals, *self._cotangents]
        flags_alone = with_results(flagged.program, flagged.program.outvars[len(program.outvars) :])
        flags = self.compiled.once(as_function(flags_alone))(*inputs)
        return ZeroSearch(
            RecordedRun(program, inputs, jit=self.compiled.once), self._n_residuals, flagged.watches, flags
        )

    def forward_values(self, program: Program, atoms: Sequence[Any], within: Sequence[Equation] = ()) -> list[Any]:
        """Values of the forward program, or of one that some equations call."""
        variables = [a for a in atoms if not hasattr(a, "val")]
        path = tuple((e, 0) for e in within)
        (values,) = RecordedRun(program, self.inputs, jit=self.compiled.once).values([(path, (), variables)])
        known = dict(zip(variables, values, strict=True))
        return [a.val if hasattr(a, "val") else known[a] for a in atoms]


def _counted(gradient: Any) -> tuple[Any, Any, Any]:
    """How many elements of an array are not zero, in how many of its rows there are some, and how many elements are
    NaN or infinite."""
    is_nonzero = gradient != 0
    in_rows = is_nonzero.any(tuple(range(1, gradient.ndim))) if gradient.ndim > 1 else is_nonzero
    return is_nonzero.sum(), in_rows.sum(), (~(abs(gradient) < np.inf)).sum()


def _is_plain_call(equation: Equation) -> bool:
    return is_call(equation) and not of(equation).is_checkpoint


def as_float64(x: Any) -> np.ndarray[Any, Any]:
    """An array on the host in double precision."""
    array: np.ndarray[Any, Any] = np.asarray(x)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
