"""Turns a scan into a scan over chunks of iterations: only the carries between chunks are saved, and those of one chunk at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from math import isqrt
from typing import Any

import jax

from jaxviz.higher_order.scan import SCAN
from jaxviz.ir import compat
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.convert import read_jaxpr
from jaxviz.ir.syntax import Atom, Equation, Operation, Program, Var

_WAYS = 3
"""How many lengths of chunks are tried."""
_LONGEST = 100_000
"""The longest scan, in iterations, whose divisors are considered."""


def lengths_of_chunks(scan: Equation) -> list[int]:
    """Possible lengths of chunks of a scan, the nearest to the root of its trip count first; all chunks have one length."""
    n = SCAN.trip_count(scan.operation)
    found = [k for k in range(2, n // 2 + 1) if n % k == 0] if n <= _LONGEST else []
    root = max(isqrt(n), 1)
    return sorted(found, key=lambda k: max(k / root, root / k))[:_WAYS]


def chunked(scan: Equation, chunk: int, around: Callable[[Program], Operation]) -> list[Equation]:
    """The equations that replace a scan: a scan over chunks, with the scanned and stacked values reshaped.

    Args:
      scan: the scan.
      chunk: the iterations of a chunk, a divisor of the trip count.
      around: puts a checkpoint around a program.
    """
    op = scan.operation
    body: Program = op.params["jaxpr"]
    n_consts, n_carry = SCAN.carry(op)
    n_fixed, n = n_consts + n_carry, SCAN.trip_count(op)
    source, made = scan.source, []

    def reshaped(atom: Atom, shape: tuple[int, ...], out: Var | None = None) -> Var:
        operation = _reshape(atom.aval.shape, shape, atom.aval.dtype, atom.aval.weak_type)
        to = Var(operation.out_avals[0]) if out is None else out
        made.append(Equation(operation, (atom,), (to,), source))
        return to

    xs = [reshaped(a, (n // chunk, chunk, *a.aval.shape[1:])) for a in scan.invars[n_fixed:]]
    ins = (*scan.invars[:n_fixed], *xs)
    # The scan over one chunk, which is the body of the scan over chunks.
    in_avals = (*(a.aval for a in ins[:n_fixed]), *(compat.unstacked(x.aval) for x in xs))
    stacked = [
        _reshape(v.aval.shape, (n // chunk, chunk, *v.aval.shape[1:]), v.aval.dtype, v.aval.weak_type)
        for v in scan.outvars[n_carry:]
    ]
    of_chunks = [r.out_avals[0] for r in stacked]
    carry_avals = tuple(v.aval for v in scan.outvars[:n_carry])
    out_avals = (*carry_avals, *map(compat.unstacked, of_chunks))
    inner = make_operation(op.primitive, {**op.params, "length": chunk}, in_avals, out_avals, op.effects, op.context)

    def of(operation: Operation) -> Program:
        invars, outvars = tuple([Var(a) for a in in_avals]), tuple([Var(a) for a in out_avals])
        equation = Equation(operation, invars, outvars, source)
        return replace(
            body, constvars=(), consts=(), invars=invars, outvars=outvars, equations=(equation,), debug_info=None
        )

    whole = of(around(replace(of(inner), closed=False)))
    params = {**op.params, "jaxpr": whole, "length": n // chunk, "unroll": 1}
    outer = make_operation(
        op.primitive, params, tuple(a.aval for a in ins), (*carry_avals, *of_chunks), op.effects, op.context
    )
    results = [Var(a) for a in of_chunks]
    made.append(Equation(outer, ins, (*scan.outvars[:n_carry], *results), source, scan.origin))
    for v, y in zip(scan.outvars[n_carry:], results, strict=True):
        reshaped(y, v.aval.shape, v)
    return made


@lru_cache(maxsize=256)
def _reshape(shape: tuple[int, ...], to: tuple[int, ...], dtype: Any, weak_type: bool) -> Operation:
    given = jax.ShapeDtypeStruct(shape, dtype, weak_type=weak_type)
    (equation,) = read_jaxpr(jax.make_jaxpr(lambda x: jax.lax.reshape(x, to))(given)).equations
    return equation.operation
