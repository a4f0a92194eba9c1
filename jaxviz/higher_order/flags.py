"""Flags in loops and branches: the iteration in which a watched value was first non-finite, for `find_nan`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxviz.ir import compat
from jaxviz.ir.convert import shared, trace_rule
from jaxviz.ir.syntax import Atom, Program, Var
from jaxviz.transforms.driver import Builder, partition
from jaxviz.transforms.flags import Flagged, FlaggedValues


def unknown(program: Program) -> Program:
    info = compat.unknown_debug_info(len(program.invars), len(program.outvars))
    return replace(program, debug_info=info)


@shared
def of_all_devices(aval: Any, sizes: tuple[tuple[Any, int], ...]) -> Program:
    """The flags of one device → those of all devices, concatenated along the axis of the flags."""
    axes = tuple([name for name, _ in sizes])
    n = math.prod([size for _, size in sizes])

    def of_all(flags: Any) -> list[Any]:
        kinds, *rest = flags.shape
        numbers = lax.convert_element_type(flags, jnp.int32) + jnp.int32(1)
        place = lax.broadcasted_iota(jnp.int32, (kinds, n, *rest), 1)
        mine = lax.eq(place, lax.broadcast(lax.axis_index(axes), place.shape))
        spread = lax.broadcast_in_dim(numbers, place.shape, (0, *range(2, len(place.shape))))
        alone = lax.select(mine, spread, lax.full_like(spread, 0))
        sums = lax.psum(alone, axes) - jnp.int32(1)
        joined = lax.reshape(sums, (kinds, n * rest[0], *rest[1:]))
        return [lax.convert_element_type(joined, flags.dtype)]

    return trace_rule(of_all, [aval])


def in_a_loop(inner: Flagged) -> list[FlaggedValues]:
    return [replace(w, n_loops=w.n_loops + 1) for w in inner.watches]


def starts(builder: Builder, watches: Sequence[FlaggedValues], carry: Sequence[Atom], keeps: bool) -> list[Atom]:
    """What a loop starts with besides its carry: the step number, flags that are not set, and what `counting` keeps."""
    (zeroth,) = builder.inline(_zeroth(), [])
    flags = [builder.inline(unraised(w.n_flags, w.n_loops), [])[0] for w in watches]
    return [zeroth, *flags, *(carry if keeps else [])]


def counting(inner: Flagged, watches: Sequence[FlaggedValues], n_consts: int, n_carry: int, keeps: bool) -> Program:
    """A loop's body with flags: `consts, carry, step, flags, xs → carry, step, flags, ys`.

    With `keeps`, the carry at the start of the first step that sets a flag is also carried, after the flags.
    """
    builder = Builder()
    consts, carry, xs = partition([Var(a) for a in inner.program.in_avals], n_consts, n_carry)
    outs = builder.inline(inner.program, (*consts, *carry, *xs))
    results, flags = partition(outs, len(outs) - len(watches))
    step = Var(_zeroth().out_avals[0])
    so_far = [Var(unraised(w.n_flags, w.n_loops).out_avals[0]) for w in watches]
    noted = note(builder, so_far, flags, watches, step)
    before = [Var(v.aval) for v in carry] if keeps else []
    carry_to_keep: list[Atom] = []
    if keeps:
        rule = _kept(len(so_far), *(v.aval for v in (*so_far, *before)))
        carry_to_keep = builder.inline(rule, [*so_far, *before, *carry])
    after = builder.inline(_next(), [step])
    carried, ys = partition(results, n_carry)
    ins, outs = [*carry, step, *so_far, *before], [*carried, *after, *noted, *carry_to_keep]
    return unknown(builder.program([*consts, *ins, *xs], [*outs, *ys]))


def note(
    builder: Builder, so_far: Sequence[Atom], now: Sequence[Atom], watches: Sequence[FlaggedValues], step: Atom
) -> list[Atom]:
    """The flags of a loop after another step."""
    return [
        builder.inline(_noted(f.aval, w.n_flags, w.n_loops), [v, f, step])[0]
        for v, f, w in zip(so_far, now, watches, strict=True)
    ]


@shared
def _kept(n: int, *avals: Any) -> Program:
    """(the flags of `n` watches so far, the kept carry, that of this step) → the carry to keep: this step's until a
    flag is set."""

    def keep(*args: Any) -> list[Any]:
        so_far, earlier, now = partition(args, n, len(avals) - n)
        first = [lax.reshape(lax.slice(f, (0, 0, 0), (1, f.shape[1], 1)), (f.shape[1],)) for f in so_far]
        is_raised = lax.ge(lax.reduce_max(lax.concatenate(first, 0), (0,)), jnp.int32(0))
        return [lax.select_n(is_raised, y, x) for x, y in zip(earlier, now, strict=True)]

    return trace_rule(keep, [*avals, *avals[n:]])


@shared
def _noted(aval: Any, n: int, n_loops: int) -> Program:
    """(flags so far, flags of this step, its number) → flags so far: the first step in which each was set."""

    def note(so_far: Any, now: Any, step: Any) -> list[Any]:
        when = lax.broadcast(step, (2, n, 1))
        if n_loops == 1:
            raised = lax.reshape(now, (2, n, 1))
        else:
            raised = lax.ge(lax.slice_in_dim(now, 0, 1, axis=2), jnp.int32(0))
            when = lax.concatenate([when, now], 2)
        is_first = lax.bitwise_and(raised, lax.lt(lax.slice_in_dim(so_far, 0, 1, axis=2), jnp.int32(0)))
        return [lax.select(lax.broadcast_in_dim(is_first, so_far.shape, (0, 1, 2)), when, so_far)]

    return trace_rule(note, [unraised(n, n_loops).out_avals[0], aval, _zeroth().out_avals[0]])


@shared
def unraised(n: int, n_loops: int) -> Program:
    if n_loops == 0:
        return trace_rule(lambda: [compat.varying_everywhere(lax.full((2, n), False, jnp.bool_))], [])
    return trace_rule(lambda: [compat.varying_everywhere(lax.full((2, n, n_loops), -1, jnp.int32))], [])


@shared
def _zeroth() -> Program:
    return trace_rule(lambda: [lax.full((), 0, jnp.int32)], [])


@shared
def _next() -> Program:
    return trace_rule(lambda step: [lax.add(step, jnp.int32(1))], [_zeroth().out_avals[0]])
