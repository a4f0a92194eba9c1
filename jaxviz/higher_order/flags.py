"""Rules that pass flags on: out of a loop comes, for each value that is watched in it, the iteration in which it was first not finite; out
of a `shard_map`, that of each device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxviz.higher_order.checkpoint import apply_remat
from jaxviz.higher_order.conditionals import cond_operation
from jaxviz.higher_order.devices import apply_shard_map
from jaxviz.higher_order.loops import Scan, While
from jaxviz.ir import compat
from jaxviz.ir.convert import shared, trace_rule
from jaxviz.ir.syntax import Atom, Operation, Program, Var
from jaxviz.transforms.dce import dce_program
from jaxviz.transforms.driver import Builder, partition
from jaxviz.transforms.flags import Flagged, FlagRule, Watch, flag_program, flag_rules


def _unknown(program: Program) -> Program:
    info = compat.unknown_debug_info(len(program.invars), len(program.outvars))
    return replace(program, debug_info=info)


@flag_rules.register(compat.remat_p)
def _flag_remat(operation: Operation, deciding: bool) -> FlagRule:
    inner = flag_program(operation.params["jaxpr"], deciding)
    call = apply_remat(operation, _unknown(inner.program), operation.params["prevent_cse"])
    return FlagRule(call, tuple((0, w) for w in inner.watches))


@flag_rules.register(compat.cond_p)
def _flag_cond(operation: Operation, deciding: bool) -> FlagRule:
    """Each branch gives the flags of all; those of the others are not raised."""
    found = [flag_program(b, deciding) for b in operation.params["branches"]]
    watches = [(place, w) for place, inner in enumerate(found) for w in inner.watches]
    branches = []
    for mine, inner in enumerate(found):
        builder = Builder()
        operands = [Var(a) for a in inner.program.in_avals]
        outs = builder.inline(inner.program, operands)
        results, own = partition(outs, len(outs) - len(inner.watches))
        raised = iter(own)
        flags = [
            next(raised) if place == mine else builder.inline(_unraised(w.n_flags, w.n_loops), [])[0]
            for place, w in watches
        ]
        branches.append(_unknown(builder.program(operands, [*results, *flags])))
    made = cond_operation(operation, branches)
    builder = Builder()
    operands = [Var(a) for a in operation.in_avals]
    return FlagRule(builder.program(operands, builder.apply(made, operands)), tuple(watches))


@flag_rules.register(compat.scan_p)
def _flag_scan(operation: Operation, deciding: bool) -> FlagRule:
    scan = Scan(operation)
    inner = flag_program(scan.body, deciding)
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
def _flag_while(operation: Operation, deciding: bool) -> FlagRule:
    """What the condition computes leads to no value, and is watched only where what decides is: by computing it once more in each
    step, and once after the last."""
    loop = While(operation)
    n_condition, n_consts = loop.sizes
    n_carry = len(operation.out_avals)
    inner = flag_program(loop.body, deciding)
    asked = _flags_alone(flag_program(loop.condition, True)) if deciding else None
    both = inner if asked is None else _side_by_side(asked, n_condition, inner, n_consts)
    n_all = n_consts if asked is None else n_condition + n_consts
    watches = _in_a_loop(both)
    body = _counting(both, watches, n_all, n_carry)
    unread = [Var(a) for a in body.in_avals[n_all + n_carry :]]
    condition = _unknown(replace(loop.condition, invars=(*loop.condition.invars, *unread)))
    made = loop.like(condition, n_condition, body, n_all)
    builder = Builder()
    operands = [Var(a) for a in operation.in_avals]
    for_condition, rest = partition(operands, n_condition)
    before = operands if asked is None else [*for_condition, *for_condition, *rest]
    outs = builder.apply(made, [*before, *_start(builder, watches)])
    carry, (step,), flags = partition(outs, n_carry, 1)
    if asked is not None:
        now = builder.inline(asked.program, [*for_condition, *carry])
        first = len(watches) - len(now)
        flags = [*flags[:first], *_note(builder, flags[first:], now, watches[first:], step)]
    labels = [label for label, _ in operation.programs]
    places = [labels.index("body_jaxpr")] * len(inner.watches) + [labels.index("cond_jaxpr")] * len(watches)
    return FlagRule(builder.program(operands, [*carry, *flags]), tuple(zip(places, watches, strict=False)))


def _flags_alone(flagged: Flagged) -> Flagged:
    """The flags without the results, and without what has effects, which is not to happen once more."""
    program = flagged.program
    silent = tuple(e for e in program.equations if not compat.has_effects(e.effects))
    results = program.outvars[len(program.outvars) - len(flagged.watches) :]
    smaller, _ = dce_program(
        replace(program, equations=silent, outvars=results), keep_inputs=[True] * len(program.invars)
    )
    return Flagged(smaller, flagged.watches)


def _side_by_side(asked: Flagged, n_condition: int, inner: Flagged, n_consts: int) -> Flagged:
    """A loop's body with the flags of its condition: `consts of the condition, consts, carry → carry, flags, flags of the condition`."""
    builder = Builder()
    operands = [Var(a) for a in (*asked.program.in_avals[:n_condition], *inner.program.in_avals)]
    for_condition, consts, carry = partition(operands, n_condition, n_consts)
    flags = builder.inline(asked.program, [*for_condition, *carry])
    outs = builder.inline(inner.program, [*consts, *carry])
    return Flagged(builder.program(operands, [*outs, *flags]), (*inner.watches, *asked.watches))


@flag_rules.register(compat.shard_map_p)
def _flag_shard_map(operation: Operation, deciding: bool) -> FlagRule:
    """The flags of all devices, side by side, which each device then has."""
    p = operation.params
    body: Program = p["jaxpr"]
    sizes = compat.devices_of(operation)
    with compat.inside_shard_map(operation):
        inner = flag_program(body, deciding, inputs=True)
        within = Builder(inner.program.constvars, inner.program.consts)
        invars = [Var(a) for a in inner.program.in_avals]
        results, flags = partition(within.inline(inner.program, invars), len(body.outvars))
        flags = [within.inline(_of_all_devices(f.aval, tuple(sizes.items())), [f])[0] for f in flags]
        made = _unknown(within.program(invars, [*results, *flags], None, like=inner.program))
    builder = Builder()
    operands = [Var(a) for a in operation.in_avals]
    specs = [*p["out_specs"], *(compat.replicated_spec(f.aval) for f in flags)]
    outs = apply_shard_map(builder, operation, made, operands, p["in_specs"], specs)
    n = math.prod(sizes.values())
    watches = (replace(w, devices=(n, *w.devices)) for w in inner.watches)
    return FlagRule(builder.program(operands, outs), tuple((0, w) for w in watches))


@shared
def _of_all_devices(aval: Any, sizes: tuple[tuple[Any, int], ...]) -> Program:
    """The flags of one device → those of all, device by device along the axis of the flags."""
    axes = tuple([name for name, _ in sizes])
    n = math.prod([size for _, size in sizes])

    def of_all(flags: Any) -> list[Any]:
        kinds, *rest = flags.shape
        numbers = lax.convert_element_type(flags, jnp.int32) + jnp.int32(1)
        place = lax.broadcasted_iota(jnp.int32, (kinds, n, *rest), 1)
        mine = lax.eq(place, lax.broadcast(lax.axis_index(axes), place.shape))
        spread = lax.broadcast_in_dim(numbers, place.shape, (0, *range(2, len(place.shape))))
        alone = lax.select(mine, spread, lax.full_like(spread, 0))
        sums = compat.psum(alone, axes) - jnp.int32(1)
        joined = lax.reshape(sums, (kinds, n * rest[0], *rest[1:]))
        return [lax.convert_element_type(joined, flags.dtype)]

    return trace_rule(of_all, [aval])


def _in_a_loop(inner: Flagged) -> list[Watch]:
    return [replace(w, n_loops=w.n_loops + 1) for w in inner.watches]


def _start(builder: Builder, watches: Sequence[Watch]) -> list[Atom]:
    """What a loop starts with beside its carry: the number of the step, and flags that are not raised."""
    return [builder.inline(p, [])[0] for p in (_zeroth(), *(_unraised(w.n_flags, w.n_loops) for w in watches))]


def _counting(inner: Flagged, watches: Sequence[Watch], n_consts: int, n_carry: int) -> Program:
    """A loop's body with flags: `consts, carry, step, flags, xs → carry, step, flags, ys`."""
    builder = Builder()
    consts, carry, xs = partition([Var(a) for a in inner.program.in_avals], n_consts, n_carry)
    outs = builder.inline(inner.program, (*consts, *carry, *xs))
    results, flags = partition(outs, len(outs) - len(watches))
    step = Var(_zeroth().out_avals[0])
    so_far = [Var(_unraised(w.n_flags, w.n_loops).out_avals[0]) for w in watches]
    noted = _note(builder, so_far, flags, watches, step)
    after = builder.inline(_next(), [step])
    carried, ys = partition(results, n_carry)
    return _unknown(builder.program([*consts, *carry, step, *so_far, *xs], [*carried, *after, *noted, *ys]))


def _note(
    builder: Builder, so_far: Sequence[Atom], now: Sequence[Atom], watches: Sequence[Watch], step: Atom
) -> list[Atom]:
    """The flags of a loop after one more step."""
    return [
        builder.inline(_noted(f.aval, w.n_flags, w.n_loops), [v, f, step])[0]
        for v, f, w in zip(so_far, now, watches, strict=True)
    ]


@shared
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

    return trace_rule(note, [_unraised(n, n_loops).out_avals[0], aval, _zeroth().out_avals[0]])


@shared
def _unraised(n: int, n_loops: int) -> Program:
    if n_loops == 0:
        return trace_rule(lambda: [compat.varying_everywhere(lax.full((2, n), False, jnp.bool_))], [])
    return trace_rule(lambda: [compat.varying_everywhere(lax.full((2, n, n_loops), -1, jnp.int32))], [])


@shared
def _zeroth() -> Program:
    return trace_rule(lambda: [lax.full((), 0, jnp.int32)], [])


@shared
def _next() -> Program:
    return trace_rule(lambda step: [lax.add(step, jnp.int32(1))], [_zeroth().out_avals[0]])
