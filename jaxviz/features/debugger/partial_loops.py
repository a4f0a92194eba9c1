"""Loops that are run in parts: some iterations at once, by one compiled function, whatever their number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxviz.features.debugger.positions import LOOPS
from jaxviz.higher_order.mapped_loops import kept_carry
from jaxviz.ir import compat
from jaxviz.ir.emit import as_function
from jaxviz.ir.syntax import Equation, Operation, Program

_jit: Callable[[Any], Any] = jax.jit


@dataclass(eq=False)
class Loop:
    """A scan or a while loop that is run in parts.

    Args:
      equation: the loop.
      operands: what it reads.
      carries: what goes round, at the start of an iteration, counted in the order of the run.
      ys: what a scan stacks, `filled` for the iterations that are written there.
      length: the number of iterations; of a while loop None until it has ended once.
    """

    equation: Equation
    operands: list[Any]
    carries: dict[int, list[Any]]
    length: int | None
    ys: list[Any] = field(default_factory=list)
    filled: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    prints: dict[int, list[np.ndarray]] = field(default_factory=dict)

    @property
    def is_scan(self) -> bool:
        return self.equation.primitive is compat.scan_p

    @property
    def body(self) -> Program:
        program: Program = self.equation.params[LOOPS[self.equation.primitive]]
        return program

    @property
    def is_mapped(self) -> bool:
        """Whether it is a while loop with a predicate for each example, which keeps the carry of those that have ended."""
        return not self.is_scan and bool(self.equation.params["cond_jaxpr"].outvars[0].aval.shape)

    def turned(self, iteration: int) -> int:
        """From an iteration's number to its place in the order of the run, and back."""
        return self.length - 1 - iteration if self.length is not None and self._is_reverse else iteration

    @property
    def _is_reverse(self) -> bool:
        return self.is_scan and bool(self.equation.params["reverse"])

    @property
    def sizes(self) -> tuple[int, int]:
        """How many operands come before the carry, and how many go round."""
        p = self.equation.params
        if self.is_scan:
            return compat.scan_sizes(p)
        before = p["cond_nconsts"] + p["body_nconsts"]
        return before, len(self.operands) - before

    def inputs(self, k: int, carry: list[Any]) -> list[Any]:
        """What the body reads in the k-th iteration."""
        before, n = self.sizes
        if not self.is_scan:
            return [*self.operands[self.equation.params["cond_nconsts"] : before], *carry]
        i = self.turned(k)
        return [*self.operands[:before], *carry, *(row(x, i) for x in self.operands[before + n :])]


@_jit
def row(x: Any, i: int) -> Any:
    """One element of what a scan goes over."""
    return lax.dynamic_index_in_dim(x, i, keepdims=False)


@_jit
def with_row(x: Any, element: Any, i: int) -> Any:
    """What a scan stacks, with one element written into it."""
    return lax.dynamic_update_index_in_dim(x, element, i, 0)


_SEGMENT = object()


def segment_of(operation: Operation) -> Callable[..., Any]:
    """A function that runs some of the iterations of a loop, how many being an argument, so that it is compiled once."""
    found = operation.rules.get(_SEGMENT)
    if found is None:
        made = _scan_segment if operation.primitive is compat.scan_p else _while_segment
        found = operation.rules[_SEGMENT] = jax.jit(made(operation))
    run: Callable[..., Any] = found
    return run


def carry_after(operation: Operation) -> Callable[..., Any]:
    """What a step leaves of the carry, of a while loop with a predicate for each example: `operands, carry, what the body gave → carry`."""
    n, condition = operation.params["cond_nconsts"], as_function(operation.params["cond_jaxpr"])

    def after(operands: list[Any], carry: list[Any], outs: list[Any]) -> list[Any]:
        return kept_carry(condition(*operands[:n], *carry)[0], carry, outs)

    return after


def _scan_segment(operation: Operation) -> Callable[..., Any]:
    body: Program = operation.params["jaxpr"]
    n_consts, n_carry = compat.scan_sizes(operation.params)
    length, is_reverse = operation.params["length"], operation.params["reverse"]
    run = as_function(body)
    types = body.in_avals[n_consts : n_consts + n_carry]

    def segment(start: Any, stop: Any, consts: list[Any], carry: list[Any], xs: list[Any], ys: list[Any]) -> Any:
        def one(k: Any, state: Any) -> Any:
            carry, ys = state
            i = length - 1 - k if is_reverse else k
            outs = run(*consts, *carry, *(lax.dynamic_index_in_dim(x, i, keepdims=False) for x in xs))
            rows = [lax.dynamic_update_index_in_dim(y, r, i, 0) for y, r in zip(ys, outs[n_carry:], strict=True)]
            return list(map(compat.as_type, outs[:n_carry], types)), rows

        return lax.fori_loop(start, stop, one, (list(map(compat.as_type, carry, types)), ys))

    return segment


def _while_segment(operation: Operation) -> Callable[..., Any]:
    p = operation.params
    n = p["cond_nconsts"]
    condition, body = as_function(p["cond_jaxpr"]), as_function(p["body_jaxpr"])
    types = p["body_jaxpr"].in_avals[p["body_nconsts"] :]
    is_mapped = bool(p["cond_jaxpr"].outvars[0].aval.shape)

    def segment(limit: Any, consts: list[Any], carry: list[Any]) -> Any:
        def goes_on(state: Any) -> Any:
            k, carry = state
            return (k < limit) & jnp.any(condition(*consts[:n], *carry)[0])

        def one(state: Any) -> Any:
            k, carry = state
            after = body(*consts[n:], *carry)
            if is_mapped:
                after = kept_carry(condition(*consts[:n], *carry)[0], carry, after)
            return k + 1, list(map(compat.as_type, after, types))

        done, out = lax.while_loop(goes_on, one, (0, list(map(compat.as_type, carry, types))))
        return out, done

    return segment
