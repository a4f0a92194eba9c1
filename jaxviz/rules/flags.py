"""Rules that pass flags on: out of a loop comes, for each value that is watched in it, the iteration in which it was first not finite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxviz.ir import compat
from jaxviz.ir.convert import trace_rule
from jaxviz.ir.syntax import Atom, Operation, Program, Var
from jaxviz.rules.checkpoint import apply_remat
from jaxviz.rules.conditionals import cond_operation
from jaxviz.rules.loops import Scan, While
from jaxviz.transforms.driver import Builder, partition
from jaxviz.transforms.flags import Flagged, FlagRule, Watch, flag_program, flag_rules


def _unknown(program: Program) -> Program:
    info = compat.unknown_debug_info(len(program.invars), len(program.outvars))
    return replace(program, debug_info=info)


@flag_rules.register(compat.remat_p)
def _flag_remat(operation: Operation) -> FlagRule:
    inner = flag_program(operation.params["jaxpr"])
    call = apply_remat(operation, _unknown(inner.program), operation.params["prevent_cse"])
    return FlagRule(call, tuple((0, w) for w in inner.watches))


@flag_rules.register(compat.cond_p)
def _flag_cond(operation: Operation) -> FlagRule:
    """Each branch gives the flags of all; those of the others are not raised."""
    found = [flag_program(b) for b in operation.params["branches"]]
    watches = [(place, w) for place, inner in enumerate(found) for w in inner.watches]
    branches = []
    for mine, inner in enumerate(found):
        builder = Builder()
        operands = [Var(a) for a in inner.program.in_avals]
        outs = builder.inline(inner.program, operands)
        results, own = partition(outs, len(outs) - len(inner.watches))
        raised = iter(own)
        flags = [
            next(raised) if place == mine else builder.inline(_unraised(len(w.values), w.n_loops), [])[0]
            for place, w in watches
        ]
        branches.append(_unknown(builder.program(operands, [*results, *flags])))
    made = cond_operation(operation, branches)
    builder = Builder()
    operands = [Var(a) for a in operation.in_avals]
    return FlagRule(builder.program(operands, builder.apply(made, operands)), tuple(watches))


@flag_rules.register(compat.scan_p)
def _flag_scan(operation: Operation) -> FlagRule:
    scan = Scan(operation)
    inner = flag_program(scan.body)
    watches = _in_a_loop(inner)
    n_consts, n_carry = scan.n_consts, scan.n_carry
    made = scan.like(_counting(inner, watches, n_consts, n_carry), n_consts, n_carry + 1 + len(watches))
    builder = Builder()
    operands = [Var(a) for a in operation.in_avals]
    before, xs = partition(operands, n_consts + n_carry)
    outs = builder.apply(made, [*before, *_start(builder, watches), *xs])
    carry, _, flags, ys = partition(outs, n_carry, 1, len(watches))
    return FlagRule(builder.program(operands, [*carry, *ys, *flags]), tuple((0, w) for w in watches))


@flag_rules.register(compat.while_p)
def _flag_while(operation: Operation) -> FlagRule:
    """What the condition computes is not watched: it leads to no value."""
    loop = While(operation)
    n_condition, n_consts = loop.sizes
    inner = flag_program(loop.body)
    watches = _in_a_loop(inner)
    body = _counting(inner, watches, n_consts, len(loop.body.invars) - n_consts)
    unread = [Var(a) for a in body.in_avals[len(loop.body.invars) :]]
    condition = _unknown(replace(loop.condition, invars=(*loop.condition.invars, *unread)))
    made = loop.like(condition, n_condition, body, n_consts)
    builder = Builder()
    operands = [Var(a) for a in operation.in_avals]
    outs = builder.apply(made, [*operands, *_start(builder, watches)])
    carry, _, flags = partition(outs, len(operation.out_avals), 1)
    place = [label for label, _ in operation.programs].index("body_jaxpr")
    return FlagRule(builder.program(operands, [*carry, *flags]), tuple((place, w) for w in watches))


def _in_a_loop(inner: Flagged) -> list[Watch]:
    return [replace(w, n_loops=w.n_loops + 1) for w in inner.watches]


def _start(builder: Builder, watches: Sequence[Watch]) -> list[Atom]:
    """What a loop starts with beside its carry: the number of the step, and flags that are not raised."""
    return [builder.inline(p, [])[0] for p in (_zeroth(), *(_unraised(len(w.values), w.n_loops) for w in watches))]


def _counting(inner: Flagged, watches: Sequence[Watch], n_consts: int, n_carry: int) -> Program:
    """A loop's body with flags: `consts, carry, step, flags, xs → carry, step, flags, ys`."""
    builder = Builder()
    consts, carry, xs = partition([Var(a) for a in inner.program.in_avals], n_consts, n_carry)
    outs = builder.inline(inner.program, (*consts, *carry, *xs))
    results, flags = partition(outs, len(outs) - len(watches))
    step = Var(_next().in_avals[0])
    so_far = [Var(_unraised(len(w.values), w.n_loops).out_avals[0]) for w in watches]
    noted = [
        builder.inline(_noted(f.aval, len(w.values), w.n_loops), [v, f, step])[0]
        for v, f, w in zip(so_far, flags, watches, strict=True)
    ]
    after = builder.inline(_next(), [step])
    carried, ys = partition(results, n_carry)
    return _unknown(builder.program([*consts, *carry, step, *so_far, *xs], [*carried, *after, *noted, *ys]))


@lru_cache(maxsize=1024)
def _noted(aval: Any, n: int, n_loops: int) -> Program:
    """(flags so far, flags of this step, its number) → flags so far: the first step in which each was raised."""

    def note(so_far: Any, now: Any, step: Any) -> list[Any]:
        when = lax.broadcast(step, (2, n, 1))
        if n_loops == 1:
            raised = lax.reshape(now, (2, n, 1))
        else:
            raised = lax.ge(lax.slice_in_dim(now, 0, 1, axis=2), jnp.int32(0))
            when = lax.concatenate([when, now], 2)
        is_first = lax.bitwise_and(raised, lax.lt(lax.slice_in_dim(so_far, 0, 1, axis=2), jnp.int32(0)))
        return [lax.select(lax.broadcast_in_dim(is_first, so_far.shape, (0, 1, 2)), when, so_far)]

    return trace_rule(note, [_unraised(n, n_loops).out_avals[0], aval, _next().in_avals[0]])


@lru_cache(maxsize=1024)
def _unraised(n: int, n_loops: int) -> Program:
    if n_loops == 0:
        return trace_rule(lambda: [lax.full((2, n), False, jnp.bool_)], [])
    return trace_rule(lambda: [lax.full((2, n, n_loops), -1, jnp.int32)], [])


@lru_cache(maxsize=1)
def _zeroth() -> Program:
    return trace_rule(lambda: [lax.full((), 0, jnp.int32)], [])


@lru_cache(maxsize=1)
def _next() -> Program:
    return trace_rule(lambda step: [lax.add(step, jnp.int32(1))], [jax.typeof(jnp.int32(0))])
