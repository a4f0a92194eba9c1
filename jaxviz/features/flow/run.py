"""Runs a gradient, counts which of its elements are not zero, and finds where those became zero that are all zero."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.derivation import Derivation
from jaxviz.features.flow.zeros import ZeroSearch
from jaxviz.features.nans.capture import CompiledRun, RecordedRun
from jaxviz.higher_order import is_call, of
from jaxviz.ir.emit import as_function
from jaxviz.ir.syntax import Equation, Program
from jaxviz.transforms.driver import partition, with_results
from jaxviz.transforms.flags import flag_program
from jaxviz.transforms.inline import inlined_where


@dataclass(frozen=True, slots=True)
class Count:
    """How much of a gradient is not zero.

    Args:
      nonzero, size: its elements.
      nonzero_rows, rows: along its first dimension, if it has more than one; otherwise 0.
    """

    nonzero: int
    size: int
    nonzero_rows: int = 0
    rows: int = 0


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
        d = self.derivation
        outs = jax.jit(as_function(d.forward))(*self.inputs)
        return list(outs[len(outs) - d.n_residuals :])

    @cached_property
    def _cotangents(self) -> list[Any]:
        return [jnp.ones(v.aval.shape, v.aval.dtype) for v in self.derivation.backward.invars[self._n_residuals :]]

    @property
    def _n_residuals(self) -> int:
        return self.derivation.n_residuals

    @cached_property
    def gradients(self) -> dict[int, Any]:
        """The gradient in each input that the backward pass reaches, by its index."""
        return {k: g for k, (g, _) in self._results.items()}

    @cached_property
    def counts(self) -> dict[int, Count]:
        """The same as counts."""
        counts = {}
        for k, (gradient, (nonzero, nonzero_rows)) in self._results.items():
            rows = gradient.shape[0] if gradient.ndim > 1 else 0
            counts[k] = Count(int(nonzero), int(gradient.size), int(nonzero_rows) if rows else 0, rows)
        return counts

    @cached_property
    def _results(self) -> dict[int, tuple[Any, tuple[Any, Any]]]:
        d = self.derivation
        reached = [k for k, is_reached in enumerate(d.reached) if is_reached]
        if not reached:
            return {}
        run = as_function(d.backward)

        def backward(*inputs: Any) -> list[Any]:
            return [(g, _counted(g)) for g in run(*inputs)]

        outs = self._timed(backward, *self._residuals, *self._cotangents)
        return dict(zip(reached, outs, strict=True))

    def _timed(self, fun: Callable[..., list[Any]], *inputs: Any) -> list[Any]:
        """The results of a function, which is compiled as a user's is; notes whether it ran faster than it compiled."""
        start = time.perf_counter()
        compiled = jax.jit(fun).lower(*inputs).compile()
        compiling = time.perf_counter() - start
        outs = jax.block_until_ready(compiled(*inputs))
        is_short = time.perf_counter() - start - compiling < 0.2 * compiling
        object.__setattr__(self, "compiled", CompiledRun((), is_short, compiled))
        return outs  # type: ignore[no-any-return]

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
        flagged = flag_program(program, "zeros")
        inputs = [*self._residuals, *self._cotangents]
        outs = self.compiled.once(as_function(flagged.program))(*inputs)
        _, flags = partition(outs, len(program.outvars))
        return ZeroSearch(
            RecordedRun(program, inputs, jit=self.compiled.once), self._n_residuals, flagged.watches, flags
        )

    def forward_values(self, program: Program, atoms: Sequence[Any]) -> list[Any]:
        """Values of the forward program."""
        variables = [a for a in atoms if not hasattr(a, "val")]
        (values,) = RecordedRun(program, self.inputs, jit=self.compiled.once).values([((), (), variables)])
        known = dict(zip(variables, values, strict=True))
        return [a.val if hasattr(a, "val") else known[a] for a in atoms]


def _counted(gradient: Any) -> tuple[Any, Any]:
    """How many elements of an array are not zero, and in how many of its rows there are some."""
    is_nonzero = gradient != 0
    in_rows = is_nonzero.any(tuple(range(1, gradient.ndim))) if gradient.ndim > 1 else is_nonzero
    return jnp.sum(is_nonzero), jnp.sum(in_rows)


def _is_plain_call(equation: Equation) -> bool:
    return is_call(equation) and not of(equation).is_checkpoint


def as_float64(x: Any) -> np.ndarray[Any, Any]:
    """An array on the host in double precision."""
    array: np.ndarray[Any, Any] = np.asarray(x)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
