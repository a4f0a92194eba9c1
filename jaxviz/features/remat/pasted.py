"""Functions that an edit adds to the user's file: a scan over chunks of iterations, and a checkpoint in a branch that
is always taken.

A plan contains what JAX traces of them, and its code their source.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from dataclasses import replace
from math import isqrt
from typing import Any

import jax

from jaxviz.features.remat.edits import Edit, Way, around
from jaxviz.features.remat.regions import Region
from jaxviz.features.remat.source import end_of, is_checkpoint, last_name, start_of
from jaxviz.features.remat.tuning import ALTERNATIVES
from jaxviz.higher_order import of
from jaxviz.higher_order.scan import SCAN
from jaxviz.ir import compat
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.convert import trace_rule
from jaxviz.ir.emit import as_function
from jaxviz.ir.syntax import Atom, Equation, Operation, Program, Var


def scan_in_chunks(scan, length_of_chunk):  # type: ignore[no-untyped-def]
    """A scan over chunks of iterations, each in a checkpoint: only the carries between chunks are saved, and while a
    chunk is recomputed, those within it."""

    def over_chunks(f, init, xs=None, length=None, reverse=False, unroll=1):  # type: ignore[no-untyped-def]
        n = length if length is not None else jax.tree.leaves(xs)[0].shape[0]
        split = lambda x: x.reshape(n // length_of_chunk, length_of_chunk, *x.shape[1:])
        inside = lambda carry, xs: scan(f, carry, xs, length_of_chunk, reverse, unroll)
        chunk = jax.checkpoint(inside, prevent_cse=False)
        carry, ys = scan(chunk, init, jax.tree.map(split, xs), n // length_of_chunk, reverse)
        return carry, jax.tree.map(lambda y: y.reshape(n, *y.shape[2:]), ys)

    return over_chunks


def in_a_branch(f):  # type: ignore[no-untyped-def]
    """A checkpoint in a branch that is always taken: XLA cannot merge its recomputation with the original
    computation."""

    def zeros(args, kwargs):  # type: ignore[no-untyped-def]
        return jax.tree.map(lambda x: jax.numpy.zeros(x.shape, x.dtype), jax.eval_shape(f, *args, **kwargs))

    def in_branch(*args, **kwargs):  # type: ignore[no-untyped-def]
        always = jax.lax.optimization_barrier(True)
        return jax.lax.cond(always, lambda args, kwargs: f(*args, **kwargs), zeros, args, kwargs)

    return in_branch


PASTED = {
    f.__name__: f"\n{inspect.getsource(f).replace('  # type: ignore[no-untyped-def]', '')}\n"
    for f in (scan_in_chunks, in_a_branch)
}
"""Their sources, for the user's file, by their names."""

# --- in programs -----------------------------------------------------------------------------------------------------


def lengths_of_chunks(scan: Equation) -> list[int]:
    """Possible lengths of chunks of a scan, the nearest to the root of its trip count first; all chunks have one
    length."""
    n = SCAN.trip_count(scan.operation)
    root = isqrt(n)
    divisors = {divisor for k in range(2, root + 1) if n % k == 0 for divisor in (k, n // k)}
    return sorted(divisors, key=lambda k: (max(k / root, root / k), k))[:ALTERNATIVES]


def chunked(equation: Equation, chunk: int) -> list[Equation]:
    """The equations that replace a scan, for chunks of so many iterations."""
    op = equation.operation
    n_consts, n_carry = SCAN.carry(op)
    n_fixed = n_consts + n_carry

    def over_chunks(*operands: Any) -> Any:
        consts, init, xs = operands[:n_consts], operands[n_consts:n_fixed], operands[n_fixed:]

        def scan(f: Any, init: Any, xs: Any, length: int, reverse: bool, unroll: int = 1) -> Any:
            if f is not None:
                return jax.lax.scan(f, init, xs, length, reverse, unroll)
            results = as_function(_alone(_of_length(op, length), equation))(*consts, *init, *xs)
            return tuple(results[:n_carry]), tuple(results[n_carry:])

        text = scan_in_chunks(scan, chunk)
        length, reverse, unroll = (op.params[key] for key in ("length", "reverse", "unroll"))
        carry, ys = text(None, init, xs, length, reverse, unroll)
        return (*carry, *ys)

    return _spliced(trace_rule(over_chunks, op.in_avals), equation)


def _of_length(op: Operation, length: int) -> Operation:
    n_consts, n_carry = SCAN.carry(op)
    at_length = lambda avals: [compat.stacked(compat.unstacked(a), length) for a in avals]
    n_fixed = n_consts + n_carry
    ins = (*op.in_avals[:n_fixed], *at_length(op.in_avals[n_fixed:]))
    outs = (*op.out_avals[:n_carry], *at_length(op.out_avals[n_carry:]))
    return make_operation(op.primitive, {**op.params, "length": length}, ins, outs, op.effects, op.context)


def in_branches(program: Program) -> Program:
    """The program with each checkpoint that is outside of any loop in its own branch.

    Outside of a loop, XLA may merge the recomputation with the original computation, as on a CPU with JAX 0.10, and
    drop the barriers that prevent this. It merges nothing into a branch.
    """
    branches: dict[Operation, Program] = {}
    equations: list[Equation] = []
    for e in program.equations:
        if not of(e).is_checkpoint:
            equations.append(e)
            continue
        if e.operation not in branches:
            checkpoint = as_function(_alone(e.operation, e))
            branches[e.operation] = trace_rule(in_a_branch(checkpoint), e.operation.in_avals)
        equations += _spliced(branches[e.operation], e)
    return replace(program, equations=tuple(equations)) if branches else program


def _alone(operation: Operation, like: Equation) -> Program:
    """A program of one equation, with the source of another one."""
    invars, outvars = tuple([Var(a) for a in operation.in_avals]), tuple([Var(a) for a in operation.out_avals])
    equation = Equation(operation, invars, outvars, like.source)
    return Program((), invars, outvars, (equation,), effects=frozenset(operation.effects))


def _spliced(traced: Program, e: Equation) -> list[Equation]:
    """The equations of a traced program that replace an equation."""
    env: dict[Atom, Any] = dict(zip(traced.invars, e.invars, strict=True))
    env.update(zip(traced.outvars, e.outvars, strict=True))
    for inner in traced.equations:
        env.update((v, Var(v.aval)) for v in inner.outvars if v not in env)
    get = lambda atoms: tuple([env.get(a, a) for a in atoms])
    return [Equation(inner.operation, get(inner.invars), get(inner.outvars), e.source) for inner in traced.equations]


# --- in the source ---------------------------------------------------------------------------------------------------


def ways_in_chunks(ways: Sequence[Way], chunk: int) -> list[Way] | None:
    """The ways to write a checkpoint in a body, with its scan also split into chunks; None if it is not called as
    `lax.scan` is."""
    adapted: list[Way] = []
    for way in ways:
        func = way.call.func if way.call is not None else None
        if func is None or last_name(func) != "scan":
            return None
        text = around(way.file, start_of(func), end_of(func), f"{scan_in_chunks.__name__}(", f", {chunk})")
        adapted.append(replace(way, changes=(*way.changes, *text)))
    return adapted


def chunks_by_hand(region: Region, chunk: int) -> str:
    """What the user has to write if it cannot be written automatically."""
    return (
        f"Turn the loop of {region.described} into a loop over chunks, whose body is jax.checkpoint of a loop over "
        f"{chunk} iterations; the figures above assume that."
    )


def ways_in_branches(ways: Sequence[Way]) -> list[Way] | None:
    """The ways to write checkpoints, with each in a branch; None if one of them cannot be in one, as with arguments
    that are not arrays."""
    adapted = [way for way in map(_in_branch, ways) if way is not None]
    return adapted if len(adapted) == len(ways) else None


def _in_branch(way: Way) -> Way | None:
    there, name = way.written, in_a_branch.__name__
    if there is not None and isinstance(there, ast.Call) and is_checkpoint(there):
        edits = tuple(around(way.file, start_of(there), end_of(there), f"{name}(", ")"))
    elif there is not None:
        line = there.lineno, 0
        edits = (Edit(way.file, line, line, f"{' ' * (there.col_offset - 1)}@{name}\n"),)
    elif len(way.changes) == 2 and way.changes[0].text == "jax.checkpoint(" and way.without_policy is None:
        before, after = way.changes
        changes = replace(before, text=f"{name}({before.text}"), replace(after, text=f"{after.text})")
        return replace(way, changes=changes)
    else:
        return None
    without = None if way.without_policy is None else (*edits, *way.without_policy)
    return replace(way, changes=(*edits, *way.changes), without_policy=without)
