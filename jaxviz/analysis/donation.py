"""Donated arguments: which result reuses the memory of which argument, and why other arguments cannot be reused."""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxviz.ir.syntax import Operation, Program
from jaxviz.report.tables import format_bytes, nbytes
from jaxviz.transforms.dce import dce_program


@dataclass(frozen=True, slots=True)
class Donation:
    """What happens to one donated argument.

    Args:
      argument: its index among the flat arguments.
      result: the index of the result that reuses its memory; None if none does.
      reason: why none does, as a sentence without its full stop; '' if one does.
      offered: the index of a result of another type and the same size, for which XLA may reuse the memory.
    """

    argument: int
    result: int | None
    reason: str = ""
    offered: int | None = None


NameOf = Callable[[int], str]
"""From the index of a result to its name."""


def result_number(k: int) -> str:
    """`result 0`."""
    return f"result {k}"


def match_donations(program: Program, donated: Sequence[bool], name: NameOf = result_number) -> tuple[Donation, ...]:
    """What `jax.jit` does with the donated arguments of a program.

    Each result reuses the memory of the first remaining argument of its type. A remaining argument is offered to XLA if
    a remaining result has the same number of elements. An argument that nothing reads is dropped first. XLA decides in
    the end: see `jaxviz.jit(f).report`.

    Source: `_set_up_aliases` in JAX's `interpreters/mlir.py`.
    """
    _, read = dce_program(program, keep_inputs=[False] * len(program.invars))
    candidates = [i for i, (d, r) in enumerate(zip(donated, read, strict=True)) if d and r]
    results = program.out_avals
    taken = _pair(candidates, [v.aval for v in program.invars], range(len(results)), results, _memory)
    left = [k for k in range(len(results)) if k not in taken.values()]
    offered = _pair([i for i in candidates if i not in taken], program.in_avals, left, results, _size)
    donations = []
    for i, (is_donated, is_read) in enumerate(zip(donated, read, strict=True)):
        if is_donated:
            reason = "" if i in taken else why_not(program, i, is_read, taken.values(), offered.get(i), name)
            donations.append(Donation(i, taken.get(i), reason, offered.get(i)))
    return tuple(donations)


def _pair(
    arguments: Iterable[int], in_avals: Sequence[Any], results: Iterable[int], out_avals: Sequence[Any],
    key: Callable[[Any], Any],
) -> dict[int, int]:  # fmt: skip
    """Pairs each of some results with the first of some arguments that has the same key."""
    waiting: dict[Any, deque[int]] = defaultdict(deque)
    for i in arguments:
        waiting[key(in_avals[i])].append(i)
    return {waiting[of].popleft(): k for k in results if waiting[of := key(out_avals[k])]}


def _memory(aval: Any) -> tuple[Any, Any]:
    return tuple(getattr(aval, "shape", ())), getattr(aval, "dtype", aval)


def _size(aval: Any) -> int:
    return int(getattr(aval, "size", -1))


def why_not(
    program: Program,
    i: int,
    is_read: bool,
    taken: Collection[int],
    offered: int | None,
    name: NameOf,
    is_final: bool = False,
) -> str:
    """Why no result reuses the memory of an argument.

    Args:
      program, i: the program, and the place of the argument.
      is_read: whether the results depend on it.
      taken: the results that reuse the memory of other arguments.
      offered: see `Donation`.
      name: of a result, in the sentence.
      is_final: whether XLA has decided.
    """
    aval = program.invars[i].aval
    kind = aval.str_short(short_dtypes=True)
    if not is_read:
        return "nothing reads it, so it is not part of the compiled program"
    if offered is not None:
        other = program.out_avals[offered].str_short(short_dtypes=True)
        xla = "XLA did not reuse its memory for it" if is_final else "XLA may reuse its memory for it"
        return f"no result has its type {kind}; {name(offered)}, {other}, has the same number of elements, but {xla}"
    alike = [k for k in sorted(taken) if _memory(program.out_avals[k]) == _memory(aval)]
    if len(alike) == 1:
        return f"the only result of type {kind}, {name(alike[0])}, reuses the memory of another argument"
    if alike:
        return f"all results of type {kind}, {', '.join(map(name, alike))}, reuse the memory of other arguments"
    return f"no result has its type {kind} ({format_bytes(nbytes(aval))})"


def donations_of(operation: Operation) -> tuple[Donation, ...]:
    """The donated arguments of a jit equation. Inside another `jit` they have no effect: only the outer ones count."""
    donated = operation.params.get("donated_invars", ())
    return match_donations(operation.params["jaxpr"], donated) if any(donated) else ()


def could_donate(program: Program) -> dict[str, int]:
    """The arguments whose memory results of the same types could reuse, with the bytes."""
    could = Counter[str]()
    for d in match_donations(program, [True] * len(program.invars)):
        if d.result is not None:
            name = re.match(r"\w*", program.arg_names[d.argument])
            could[name[0] if name else ""] += nbytes(program.invars[d.argument].aval)
    return dict(could)
