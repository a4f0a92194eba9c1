"""Adds reasons to the residuals of a program that was read without its function, from the function's own gradient."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from jaxviz.analysis.training_step import subject_of
from jaxviz.arguments import Argnums
from jaxviz.features.residuals.residual import Residual
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.stack import deep_stack
from jaxviz.report.tables import format_bytes
from jaxviz.xla.compiled_memory.reading import WITHOUT_FUNCTION
from jaxviz.xla.compiled_memory.report import CompiledMemory, Held

Line = tuple[str, int]


@api_boundary
@deep_stack
def explained(
    memory: CompiledMemory, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], argnums: Argnums
) -> CompiledMemory:
    """See `CompiledMemory.explain`."""
    derivation = subject_of(f, args, kwargs, argnums)
    derivations = [derivation] if derivation.step is None else derivation.step.gradients
    on_line: dict[Line, list[Residual]] = {}
    for residual in (r for d in derivations for r in d.residuals if r.kind == "intermediate"):
        on_line.setdefault(_line(residual.location.file, residual.location.line), []).append(residual)
    at_peak = tuple(_with_reason(h, on_line) for h in memory.at_peak)
    values = tuple(_with_reason(h, on_line) for h in memory.values)
    there = [(a, b) for a, b in zip(memory.at_peak, at_peak, strict=True) if a.kind == "residual"]
    total, known = sum(a.nbytes for a, _ in there), sum(a.nbytes for a, b in there if a is not b)
    of = " and ".join(dict.fromkeys(f"`{d.primal.name}`" for d in derivations))
    note = (
        f"The program was compiled elsewhere; the reasons come from the gradient of {of} as it is here, matched by "
        f"line, operation and size: {format_bytes(known)} of {format_bytes(total)} of residuals at the peak have one."
    )
    others = (n for n in memory.notes if n != WITHOUT_FUNCTION)
    return replace(memory, at_peak=at_peak, values=values, notes=(*others, note))


def _line(file: str, line: int) -> Line:
    """A key for a line that ignores the folder, which may be another one where the program was compiled."""
    return Path(file).name, line


def _with_reason(occupant: Held, on_line: dict[Line, list[Residual]]) -> Held:
    """The same with a reason, if all residuals of its line and size that its operation
    computes are saved for one reason.

    XLA keeps one end position for all expressions that start at the same place, so the expression alone does not
    identify it.
    """
    if occupant.kind != "residual" or occupant.location is None:
        return occupant
    size = _size(occupant.type)
    there = [
        (r, r.producer.primitive.name)
        for r in on_line.get(_line(occupant.location.file, occupant.location.line), [])
        if r.producer is not None and size in (prod(r.aval.shape), prod(r.aval.shape[len(r.lengths) :]))
    ]
    operations = {occupant.what.partition(" in ")[0], *(name for r, name in there if r.expression == occupant.what)}
    alike = [r for r, name in there if name in operations]
    reasons = {r.why.partition(";")[0] for r in alike}
    if len(reasons) != 1:
        return occupant
    expressions = {r.expression for r in alike}
    return replace(occupant, why=reasons.pop(), what=expressions.pop() if len(expressions) == 1 else occupant.what)


def _size(type_: str) -> int:
    """The number of elements of `bf16[8,1024]`."""
    shape = re.search(r"\[([\d,]*)\]", type_)
    return prod(int(n) for n in shape[1].split(",") if n) if shape else -1
