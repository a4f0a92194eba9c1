"""From a function to the memory of its compiled program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxviz.analysis.grouping import alike, grouped, most_alike, pattern
from jaxviz.analysis.lowering import compiled_as_named
from jaxviz.analysis.naming import ROOM_IN_SENTENCE, written_at
from jaxviz.analysis.training_step import subject_of
from jaxviz.arguments import Argnums
from jaxviz.features.residuals.notes import gradient_note
from jaxviz.features.residuals.residual import Residual
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.stack import deep_stack
from jaxviz.progress import counting
from jaxviz.report.tables import format_bytes
from jaxviz.runtime.stoppable import as_called, compiled_once
from jaxviz.transforms.unopened import unopened_note
from jaxviz.xla.compiled_memory.attribution import KINDS, Attribution, Described
from jaxviz.xla.compiled_memory.buffers import Allocation, Buffer, read_allocations
from jaxviz.xla.compiled_memory.compiled_program import (
    CompiledProgram,
    program_of,
    program_of_lowered,
    reported,
)
from jaxviz.xla.compiled_memory.kernels import unreported
from jaxviz.xla.compiled_memory.module import Module
from jaxviz.xla.compiled_memory.op_names import OpNames
from jaxviz.xla.compiled_memory.places import CompiledSubject, Makers, gradient_or_step
from jaxviz.xla.compiled_memory.report import CompiledMemory, Held, Moment, largest_first


@api_boundary
@counting("compiled memory")
@deep_stack
def compiled_memory(f: Any, *args: Any, argnums: Argnums = 0, **kwargs: Any) -> CompiledMemory:
    """Reports the memory of a function's gradient as XLA compiles it, over its schedule, and what is alive at the peak.
    It compiles the gradient.

    >>> print(jaxviz.compiled_memory(loss, params, x))
    compiled gradient of `loss` in `params` on cpu: peak 1.2 MiB in the backward pass at dot_general (model.py:12): …

    Each byte belongs to an argument, a constant, a result, a residual with its reason, an intermediate value, a
    cotangent, or to XLA itself (a copy, another layout, padding, …), with the line that it serves. Bytes of unknown
    origin are `not attributed`. All bytes are those on one device.

    For a training step, which computes a gradient itself and returns more than one number, it is the memory of the
    whole step.

    The result of `jax.jit(f).lower(...)` or `.compile()` can be passed without the function: values then have the names
    and lines that JAX recorded on the instructions, and a value of the forward pass that the backward pass reads counts
    as a residual.

    >>> print(jaxviz.compiled_memory(jax.jit(train_step).lower(params, batch).compile()))
    compiled program `train_step` on cpu: peak 1.9 MiB in the backward pass at dot_general (model.py:12): …

    Args:
      f: a function; or a Derivation, Program, ClosedJaxpr, `jax.stages.Lowered` or `jax.stages.Compiled`, without
        further arguments.
      *args, **kwargs: its arguments, as for `derive`.
      argnums: the positional arguments to differentiate with respect to; `()` for the function without its gradient.

    Raises:
      ValueError: the backend does not report where a program that is already compiled stores its values, as on GPUs; or
        XLA does not write this to a file either.
      TypeError: a compiled program is given arguments.
      the errors of `derive` and of compiling.
    """
    if isinstance(f, (jax.stages.Lowered, jax.stages.Compiled)):
        if args or kwargs:
            what = type(f).__name__
            raise TypeError(
                f"a jax.stages.{what} already has its arguments: call jaxviz.compiled_memory({what.lower()})"
            )
        return _read_stage(f)
    return memory_of_subject(gradient_or_step(subject_of(f, args, kwargs, argnums)))


def memory_of_subject(subject: CompiledSubject) -> CompiledMemory:
    """The memory of a lowered gradient, or training step; compiles it, unless that has been done."""
    derivation = subject.lowering.derivation
    notes = *gradient_note(derivation), *unopened_note(derivation.unopened)
    return memory_of(
        program_of(subject.lowering), subject.places, subject.program.name, subject.about, subject.results,
        subject.n_devices, notes,
    )  # fmt: skip


def memory_as_named(program: CompiledProgram, n_devices: int) -> CompiledMemory:
    """The memory of a compiled program, with the names and lines that JAX recorded."""
    name = function_of(program.module)
    return memory_of(program, OpNames(program.module), name, f"program `{name}`", (), n_devices, (WITHOUT_FUNCTION,))


def _read_stage(stage: Any) -> CompiledMemory:
    """The memory of a lowered or compiled program whose function is not available."""
    if isinstance(stage, jax.stages.Lowered):
        lowered = stage
        stage = compiled_once(lowered, f"as named, {as_called(lowered)}", lambda: compiled_as_named(lowered))
        program = reported(stage) or program_of_lowered(lowered, as_called(lowered))[1]
    else:
        report = reported(stage)
        if report is None:
            raise ValueError(
                f"{jax.default_backend()} does not report where a compiled program stores its values; give "
                "jaxviz.compiled_memory the result of jax.jit(f).lower(...) instead, which it compiles so that XLA "
                "writes this to a file"
            )
        program = report
    name = function_of(program.module)
    shardings = jax.tree.leaves((stage.input_shardings, stage.output_shardings))
    numbered = jax.tree.unflatten(stage.out_tree, range(stage.out_tree.num_leaves))
    paths = [f"result{jax.tree_util.keystr(path)}" for path, _ in jax.tree.leaves_with_path(numbered)]
    return memory_of(
        program, OpNames(program.module), name, f"program `{name}`", paths,
        max((s.num_devices for s in shardings), default=1), (WITHOUT_FUNCTION,),
    )  # fmt: skip


WITHOUT_FUNCTION = (
    "Without the function, names and lines are those that JAX recorded on the instructions, and a value that the "
    "forward pass computes and the backward pass reads counts as a residual. jaxviz.compiled_memory(f, *args) also "
    "says why the gradient saves each, and groups the values."
)


def function_of(module: Module) -> str:
    """`loss` for a program that JAX calls `jit_loss`."""
    return re.sub("^p?jit_", "", module.name)


def memory_of(
    program: CompiledProgram, makers: Makers, function: str, about: str, results: Sequence[str], n_devices: int,
    notes: tuple[str, ...] = (),
) -> CompiledMemory:  # fmt: skip
    """The memory of a compiled program, whose instructions come from `makers`; see `CompiledMemory`."""
    module = program.module
    allocations = read_allocations(program.assignment, module)
    attribution = Attribution(module, makers, n_devices)
    buffers = lambda role: [b for a in allocations if a.role == role for b in a.buffers]
    described = attribution.described_all(buffers("temporary"))
    timeline = _timeline(attribution, described)
    peak = int(np.argmax([sum(m.nbytes) for m in timeline])) if timeline else 0
    at_peak, where = _at_peak(attribution, allocations, described, peak, results), module.order[peak]
    running = attribution.equation_of(where)
    operation = running.what if running is not None else module.instructions[where].opcode
    location = running.location if running is not None else None
    of_role = lambda role: sum(a.nbytes for a in allocations if a.role == role)
    return CompiledMemory(
        function, about, program.compiler, of_role("temporary"), of_role("argument"), of_role("result"),
        of_role("constant"), sum(a.nbytes for a in allocations if a.role == "argument" and a.results), timeline,
        at_peak, written_at(location, ROOM_IN_SENTENCE) or operation, location, n_devices, notes,
        _at_any_time(described), _without_memory(attribution), _at_any_time(attribution.described_all(buffers("host"))),
        unreported(module),
    )  # fmt: skip


def _timeline(attribution: Attribution, described: dict[Buffer, Described]) -> tuple[Moment, ...]:
    module = attribution.module
    n = len(module.order)
    change = np.zeros((n + 1, len(KINDS)), np.int64)
    for buffer, is_ in described.items():
        for first, last in buffer.spans:
            if first <= last:
                for kind, size in ((is_.kind, buffer.nbytes - is_.padding), ("padding", is_.padding)):
                    change[first, KINDS.index(kind)] += size
                    change[last + 1, KINDS.index(kind)] -= size
    alive = np.cumsum(change, axis=0)[:n].tolist()
    instructions = [module.instructions[number] for number in module.order]
    return tuple(
        Moment(i.name, i.opcode, attribution.is_backward(i), tuple(row))
        for i, row in zip(instructions, alive, strict=True)
    )


def _at_peak(
    attribution: Attribution, allocations: Sequence[Allocation], described: dict[Buffer, Described], peak: int,
    results: Sequence[str],
) -> tuple[Held, ...]:  # fmt: skip
    alive = [(b, d) for b, d in described.items() if b.is_alive(peak)]
    occupants = []
    for group in _together(alive):
        occupants.append(_occupant(group))
        padding = sum(d.padding for _, d in group)
        if padding:
            of = occupants[-1]
            occupants.append(Held("padding", of.what, of.type, padding, len(group), of.location, "XLA pads it"))
    unused = sum(a.nbytes for a in allocations if a.role == "temporary") - sum(b.nbytes for b, _ in alive)
    if unused > 0:
        occupants.append(Held("unused", "gaps between buffers that are alive at the peak", "", unused))
    return largest_first([*occupants, *_beside(attribution, allocations, results)])


_Placed = tuple[Buffer, Described]


def _together(buffers: Iterable[_Placed]) -> list[tuple[_Placed, ...]]:
    """The buffers of one kind that one expression computes, with repeated layers and calls combined."""
    return grouped(buffers, lambda pair: (pair[1].kind, pair[1].repeats, pair[1].type))


def _occupant(group: Sequence[_Placed]) -> Held:
    first = group[0][1]
    return Held(
        first.kind, alike([d.what for _, d in group]), first.type, sum(b.nbytes - d.padding for b, d in group),
        len(group), first.location, most_alike([_reason(d.why) for _, d in group]) if len(group) > 1 else first.why,
        expression=alike([d.expression for _, d in group]),
    )  # fmt: skip


def _at_any_time(described: dict[Buffer, Described]) -> tuple[Held, ...]:
    """All temporaries; each group at the time when most of its bytes are alive."""
    occupants = []
    for group in _together(described.items()):
        times = {first for b, _ in group for first, _ in b.spans}
        most = max(times, key=lambda t: sum(b.nbytes for b, _ in group if b.is_alive(t)), default=None)
        if most is not None:
            occupants.append(_occupant([pair for pair in group if pair[0].is_alive(most)]))
    return largest_first(occupants)


def _without_memory(attribution: Attribution) -> tuple[Held, ...]:
    """Values that are computed within fusions and never stored."""
    rows = [(d, size) for d, size in attribution.fused() if size]
    occupants = []
    for group in grouped(rows, lambda row: (row[0].kind, row[0].repeats, row[0].type)):
        first, what, size = group[0][0], alike([d.what for d, _ in group]), sum(size for _, size in group)
        occupants.append(Held(first.kind, what, first.type, size, len(group), first.location))
    return largest_first(occupants)


def _reason(why: str) -> str:
    """A residual's reason without the cotangents it is read for, which differ between residuals."""
    because, read, rest = why.partition("; read by the ")
    after = rest.partition("; XLA ")[2] if read else ""
    return f"{because}; XLA {after}" if after else because


def _beside(attribution: Attribution, allocations: Sequence[Allocation], results: Sequence[str]) -> list[Held]:
    """The arguments, results and constants."""
    module, at = attribution.module, attribution.places.definition
    rows: list[Held] = []
    for a in allocations:
        buffer = max(a.buffers, key=lambda b: b.nbytes, default=None)
        if a.role in ("temporary", "host") or not a.nbytes:
            continue
        text = module.shape(buffer.values[-1]).text if buffer is not None else ""
        if a.role == "argument":
            number = module.entry.parameters[a.parameter]
            taken = next((results[k] if k < len(results) else f"result {k}" for k in a.results), "")
            why = f"donated: {taken} reuses its memory" if taken else ""
            path = attribution.argument_name(number) or "an argument"
            rows.append(Held("argument", path, text, a.nbytes, 1, at, why, taken))
        elif a.role == "result":
            k = a.results[0] if a.results else -1
            what = results[k] if 0 <= k < len(results) else "the table of the results" if k < 0 else f"result {k}"
            root = module.entry.root
            is_tuple = module.instructions[root].opcode == "tuple"
            text = module.shape((root, (k,) if is_tuple else ())).text if k >= 0 else ""
            rows.append(Held("result", what, text, a.nbytes, 1, at))
        else:
            served = attribution.described(buffer).location if buffer is not None else None
            rows.append(Held("constant", "a constant", text, a.nbytes, 1, served))
    return [_one(group) for group in grouped(rows, lambda h: (h.kind, pattern(h.what), h.type, pattern(h.why)))]


def _one(group: Sequence[Held]) -> Held:
    return replace(
        group[0], what=alike([h.what for h in group]), nbytes=sum(h.nbytes for h in group), count=len(group),
        why=alike([h.why for h in group]), donated_to=alike([h.donated_to for h in group]),
    )  # fmt: skip


# --- reasons from the function, for a program that was compiled elsewhere ---------------------------------------------

_FileLine = tuple[str, int]


@api_boundary
@deep_stack
def explained(
    memory: CompiledMemory, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], argnums: Argnums
) -> CompiledMemory:
    """See `CompiledMemory.explain`."""
    derivation = subject_of(f, args, kwargs, argnums)
    derivations = [derivation] if derivation.step is None else derivation.step.gradients
    on_line: dict[_FileLine, list[Residual]] = {}
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


def _line(file: str, line: int) -> _FileLine:
    """A key for a line that ignores the folder, which may be another one where the program was compiled."""
    return Path(file).name, line


def _with_reason(occupant: Held, on_line: dict[_FileLine, list[Residual]]) -> Held:
    """The same with a reason, if all residuals of its line and size that its operation computes are saved for one
    reason.

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
