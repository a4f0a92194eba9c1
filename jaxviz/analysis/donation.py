"""Donated arguments: which result takes over which argument's memory, and which cannot be taken over and why."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxviz.analysis.tables import format_bytes, nbytes
from jaxviz.ir.syntax import Operation, Program


@dataclass(frozen=True, slots=True)
class Donation:
    """What becomes of one donated argument.

    Args:
      argument: its place among the flat arguments.
      result: the place of the result that takes its memory over, None if none does.
      reason: why none does, as a sentence without its full stop; '' if one does.
    """

    argument: int
    result: int | None
    reason: str = ""


def match_donations(program: Program, donated: Sequence[bool]) -> tuple[Donation, ...]:
    """What `jax.jit` makes of the donated arguments of a program: each result takes the first one left that has its type.

    An argument that nothing reads is dropped before, and is given back to no one. XLA may still decide against a pair where the
    argument is read after the result is written and it would have to be copied.

    Source: `_set_up_aliases` in JAX's `interpreters/mlir.py`.
    """
    read = {a for e in program.equations for a in e.invars}.union(program.outvars)
    offered: dict[Any, deque[int]] = defaultdict(deque)
    for i, (v, is_donated) in enumerate(zip(program.invars, donated, strict=True)):
        if is_donated and v in read:
            offered[_memory(v.aval)].append(i)
    taken: dict[int, int] = {}
    takes: dict[Any, list[int]] = defaultdict(list)
    for k, aval in enumerate(program.out_avals):
        waiting = offered.get(_memory(aval))
        if waiting:
            taken[waiting.popleft()] = k
            takes[_memory(aval)].append(k)
    return tuple(
        Donation(i, taken.get(i), "" if i in taken else _why_not(program, i, v in read, takes[_memory(v.aval)]))
        for i, (v, is_donated) in enumerate(zip(program.invars, donated, strict=True))
        if is_donated
    )


def _memory(aval: Any) -> tuple[Any, Any]:
    return tuple(getattr(aval, "shape", ())), getattr(aval, "dtype", aval)


def _why_not(program: Program, i: int, is_read: bool, taken: list[int]) -> str:
    aval = program.invars[i].aval
    if not is_read:
        return "nothing reads it, so it is not part of the compiled program"
    kind = aval.str_short(short_dtypes=True)
    if taken:
        others = ", ".join(map(str, taken))
        if len(taken) == 1:
            return f"the only result of type {kind}, result {others}, takes the memory of an argument before it"
        return f"all results of type {kind}, results {others}, take the memory of arguments before it"
    same_size = [k for k, a in enumerate(program.out_avals) if nbytes(a) == nbytes(aval)]
    if same_size:
        other = program.out_avals[same_size[0]].str_short(short_dtypes=True)
        return (
            f"no result has its type {kind}; result {same_size[0]} is as large, but is {other}, and memory is taken over for "
            "the same shape and dtype alone"
        )
    return f"no result has its type {kind} ({format_bytes(nbytes(aval))})"


def donations_of(operation: Operation) -> tuple[Donation, ...]:
    """The donated arguments of a jit equation. Called inside another `jit` none of them is used: that one's own decide."""
    donated = operation.params.get("donated_invars", ())
    return match_donations(operation.params["jaxpr"], donated) if any(donated) else ()
