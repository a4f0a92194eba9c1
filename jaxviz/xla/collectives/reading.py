"""From a function to the collectives of its compiled gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax

from jaxviz.analysis.devices import axes_named, is_abstract
from jaxviz.analysis.grouping import alike, grouped, most_alike, pattern
from jaxviz.analysis.training_step import subject_of
from jaxviz.analysis.walk import primal_equation
from jaxviz.arguments import Argnums
from jaxviz.features.residuals.notes import gradient_note
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.stack import deep_stack, usual_stack
from jaxviz.ir.syntax import Program
from jaxviz.progress import counting
from jaxviz.report.tables import nbytes, type_text
from jaxviz.transforms.unopened import unopened_note
from jaxviz.xla.collectives.advice import Advisor
from jaxviz.xla.collectives.causes import Causes, is_collective
from jaxviz.xla.collectives.compiling import Partitioned, partitioned
from jaxviz.xla.collectives.exchanges import Axes, Exchange, Reading
from jaxviz.xla.collectives.from_types import FromTypes, comparison, trips_of
from jaxviz.xla.collectives.partitioner_log import Warned
from jaxviz.xla.collectives.replicated import find_replicated
from jaxviz.xla.collectives.report import Collective, Collectives, Rematerialized, WrittenCollective
from jaxviz.xla.collectives.values import ValueNames
from jaxviz.xla.compat.reshards import layout_of, needs_of
from jaxviz.xla.compiled_memory.messages import message
from jaxviz.xla.compiled_memory.module import Module
from jaxviz.xla.compiled_memory.places import CompiledSubject, EquationPlace, Places, gradient_or_step

_ASKS = ("sharding_constraint", "reshard")
"""Operations that request a layout."""


@api_boundary
@counting("collectives")
@deep_stack
def collectives(f: Any, *args: Any, argnums: Argnums = 0, compile: bool = True, **kwargs: Any) -> Collectives:
    """Reports what devices exchange in a function's gradient: which line each collective is for, how many bytes, how
    often, and why. It compiles the gradient, unless only what the types imply is asked for.

    >>> print(jaxviz.collectives(loss, params, x))
    gradient of `loss` in `params` on 8 devices (data=8), compiled on cpu: each device sends at least 84.0 KiB a run …

    The collectives are those of the optimized program, with the axes of the mesh that they run over, the bytes on one
    device, and how often loops run them. A cause is stated where it follows from XLA's layouts: for example, w is
    replicated over an axis over which x is split, so w's cotangent is summed; otherwise the report says "no cause
    found". It also lists the collectives of the function itself, values that are replicated without being asked for,
    and values that XLA gathers only to reshard them, each with its line.

    Over explicit axes, types say how each value is laid out, and so what devices exchange. With `compile=False` the
    report has what they imply, with line and cause, and the devices need not exist:

    >>> with jax.sharding.use_abstract_mesh(mesh):
    ...     print(jaxviz.collectives(loss, params, x, compile=False))

    For a training step, which computes a gradient itself and returns more than one number, the report covers the whole
    step. Compiled programs are cached, by program and flags; compiling can be interrupted.

    Args:
      f: a function; or a Derivation, Program or ClosedJaxpr, without further arguments. It runs on several devices if
        its arguments are on several, also as `jax.ShapeDtypeStruct` with a sharding, or if it specifies a mesh.
      *args, **kwargs: its arguments, as for `derive`.
      argnums: the positional arguments to differentiate with respect to; `()` for the function without its gradient.
      compile: whether to compile it. Otherwise the report has what the types imply: nothing about auto axes.

    Raises:
      ValueError: it is to be compiled, and the devices of an argument's mesh do not exist, or the compiled program
        has no schedule.
      TypeError: a compiled program is given.
      the errors of `derive` and of compiling.
    """
    if isinstance(f, (jax.stages.Lowered, jax.stages.Compiled)):
        raise TypeError(
            f"a jax.stages.{type(f).__name__} does not have XLA's layouts of the values: call "
            "jaxviz.collectives(f, *args) with the function"
        )
    derivation = subject_of(f, args, kwargs, argnums)
    if not compile:
        return implied_collectives_of(gradient_or_step(derivation))
    step = derivation.step
    _check_devices(*(derivation.primal, derivation.placed) if step is None else (step.traced, step.placed))
    return collectives_of(gradient_or_step(derivation))


def _check_devices(program: Program, placed: Sequence[Any]) -> None:
    for name, sharding in zip(program.arg_names, placed, strict=True):
        if is_abstract(sharding):
            raise ValueError(
                f"{name or 'an argument'} has a sharding over an AbstractMesh, which has no devices to compile for: "
                "use a sharding over a jax.sharding.Mesh; on a CPU, "
                "XLA_FLAGS=--xla_force_host_platform_device_count=8 gives 8 devices. compile=False reports what the "
                "types imply"
            )  # fmt: skip


@usual_stack
def collectives_of(subject: CompiledSubject) -> Collectives:
    """The collectives of a lowered gradient, or training step; compiles it, unless that has been done."""
    lowering, places, program, n_devices = subject.lowering, subject.places, subject.program, subject.n_devices
    partition = partitioned(lowering)
    needs = needs_of(lowering.lowered, partition.before)
    is_known = jax.config.jax_use_shardy_partitioner and bool(needs.meshes)  # type: ignore[attr-defined]
    mesh = max(needs.meshes.values(), key=len, default={}) or axes_named(program, subject.placed)
    axes = Axes(needs.meshes if is_known else {"mesh": mesh} if mesh else {}, needs.devices)
    reading = Reading(Module(message("Module", partition.module)), places, axes, n_devices)
    types = FromTypes(places, ValueNames(places))
    causes = Causes(needs, places, types.values, types)
    exchanges = [replace(e, cause=causes.of(e)) for e in reading.exchanges()]
    rematerialized = None if partition.warned is None else tuple(_rematerialized(partition.warned, causes))
    replicated = sorted(find_replicated(causes, subject.results, mesh), key=lambda r: -r.nbytes) if is_known else []
    rows, of_types = _rows(exchanges, Advisor(causes, exchanges)), types.rows()
    notes = (
        *comparison(types, exchanges),
        *_notes(partition),
        *gradient_note(lowering.derivation),
        *unopened_note([u for u in lowering.derivation.unopened if u.name not in _ASKS]),
    )
    return Collectives(
        program.name, subject.about, partition.compiler, n_devices, dict(mesh), rows,
        tuple(_written(places, exchanges)), tuple(replicated), rematerialized, of_types, notes,
    )  # fmt: skip


@usual_stack
def implied_collectives_of(subject: CompiledSubject) -> Collectives:
    """What the types of a gradient, or of a training step, imply; compiles nothing."""
    places, program = subject.places, subject.program
    types = FromTypes(places, ValueNames(places))
    mesh = axes_named(program, subject.placed)
    notes = (*types.notes(), *gradient_note(subject.lowering.derivation))
    return Collectives(
        program.name, subject.about, None, subject.n_devices, mesh, (), (), (), None, types.rows(), notes
    )


def _notes(result: Partitioned) -> Iterator[str]:
    if not jax.config.jax_use_shardy_partitioner:  # type: ignore[attr-defined]
        yield (
            "jax_use_shardy_partitioner is off, so XLA's layouts are unknown: collectives that XLA adds have no "
            "cause, and replicated values are not listed."
        )
    elif result.before is None:
        yield (
            f"{result.unknown}: causes come from the layouts that Shardy assigns to "
            "the program that JAX passes to XLA, and XLA's own layouts may differ."
        )  # fmt: skip
    if result.warned is None:
        yield "XLA's log could not be read, so involuntary full rematerializations are not listed."


# --- rows -------------------------------------------------------------------------------------------------------------


def _rows(exchanges: Sequence[Exchange], advisor: Advisor) -> tuple[Collective, ...]:
    rows = [(e, _row(e, advisor)) for e in exchanges]
    places = advisor.causes.places

    def key(pair: tuple[Exchange, Collective]) -> Any:
        exchange, row = pair
        same = places.label(exchange.number)[2] if exchange.number is not None else row.what
        return row.kind, row.axes, row.type, row.trips, row.stage, pattern(row.cause), pattern(row.advice), same

    merged = [_one([row for _, row in group]) for group in grouped(rows, key)]
    return tuple(sorted(merged, key=lambda c: -c.total_sent_nbytes))


def _row(e: Exchange, advisor: Advisor) -> Collective:
    places, number, cause = advisor.causes.places, e.number, e.cause
    what, location, stage, operation = e.instruction.opcode, None, "outside", ""
    if number is not None:
        what, location, _ = places.label(number)
        stage, operation = places.makers[number].stage, places.makers[number].operation
    return Collective(
        e.kind, e.axes, e.group_size, e.type, e.nbytes, e.sent, 1, e.trips, stage,  # type: ignore[arg-type]
        what, operation, location, cause.text if cause is not None else "",
        cause.kind if cause is not None else "", advisor.of(e), (e.instruction.name,),  # type: ignore[arg-type]
        () if number is None else (number,),
    )  # fmt: skip


def _one(rows: Sequence[Collective]) -> Collective:
    if len(rows) == 1:
        return rows[0]
    return replace(
        rows[0], count=len(rows), what=alike([r.what for r in rows]), cause=most_alike([r.cause for r in rows]),
        advice=most_alike([r.advice for r in rows]), instructions=tuple(n for r in rows for n in r.instructions),
        equations=tuple(dict.fromkeys(n for r in rows for n in r.equations)),
    )  # fmt: skip


def _written(places: Places, exchanges: Sequence[Exchange]) -> Iterator[WrittenCollective]:
    """The collectives of the programs themselves, and the layouts that they request."""
    became: dict[int, list[str]] = {}
    for e in exchanges:
        numbers = {*e.numbers, *([e.cause.number] if e.cause is not None else [])}
        if e.cause is not None and e.cause.kind == "asked" and e.cause.need is not None:
            numbers.update(places.tags.named(e.cause.need.path))
        for n in numbers:
            became.setdefault(n, []).append(e.kind)
    rows: list[tuple[WrittenCollective, Any]] = []
    for number, place in enumerate(places.makers):
        # JAX's rules constrain shardings, too, which the user did not write.
        asks = place.operation in _ASKS and primal_equation(place.equation).primitive is place.equation.primitive
        if is_collective(place.equation) or asks:
            kinds = tuple(dict.fromkeys(became.get(number, ())))
            rows.append((_written_row(number, place, places, kinds), places.label(number)[2]))
    key = lambda w: (w.operation, w.axes, w.type, w.trips, w.stage, w.became)
    for group in grouped(rows, lambda r: (*key(r[0]), r[1])):
        yield replace(group[0][0], count=len(group), what=alike([w.what for w, _ in group]))


def _written_row(number: int, place: EquationPlace, places: Places, became: tuple[str, ...]) -> WrittenCollective:
    what, location, _ = places.label(number)
    equation = place.equation
    trips = trips_of(place)
    avals = [a.aval for a in equation.invars if hasattr(a.aval, "shape")][: len(equation.outvars)]
    axes = tuple(sorted(map(str, compat.axis_names(equation.operation.params))))
    text = type_text(avals[0]) if avals else ""
    is_transpose = place.stage == "backward" and place.is_cotangent
    return WrittenCollective(
        place.operation.removesuffix("_invariant"), axes,
        text if len(avals) < 2 else f"{text} and {len(avals) - 1} more",
        sum(map(nbytes, avals)), 1, trips, place.stage, what, location, is_transpose, became,
    )  # fmt: skip


def _rematerialized(warned: Sequence[Warned], causes: Causes) -> Iterator[Rematerialized]:
    places = causes.places
    mesh = max(causes.needs.meshes.values(), key=len, default={})
    for w in warned:
        numbers = places.tags.named(w.path)
        what, location = w.name, None
        if numbers:
            what, location, _ = places.label(numbers[0])
        cause = causes.of_move(numbers[0]) if numbers else None
        before, after = (layout_of(text, mesh) or text for text in (w.before, w.after))
        yield Rematerialized(what, w.type, before, after, location, cause.text if cause is not None else "")
