"""Gathers the facts of a program in this environment, from the reports that show them."""

from __future__ import annotations

import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxviz.analysis.checkpoints import CheckpointReport, is_name
from jaxviz.analysis.grouping import grouped
from jaxviz.analysis.naming import ROOM_IN_SENTENCE, written_at
from jaxviz.analysis.training_step import subject_of
from jaxviz.analysis.walk import defined_at, location_of
from jaxviz.arguments import Argnums
from jaxviz.derivation import Derivation
from jaxviz.environments.facts import (
    CompiledFacts,
    Environment,
    Facts,
    LineWork,
    ModelledPeak,
    NotKnown,
    PolicyDecisions,
    ProgramFacts,
    SavedRow,
)
from jaxviz.environments.values import NoValuesError, values_of
from jaxviz.features.cost.parts import PASSES, CostRow
from jaxviz.features.cost.report import cost
from jaxviz.features.flow.find import gradient_flow
from jaxviz.features.flow.report import GradientFlow
from jaxviz.features.memory.timeline import MemoryTimeline, donated_by, memory
from jaxviz.features.remat.without_effect import without_effect
from jaxviz.features.residuals.residual import ResidualGroup
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.errors import message_of
from jaxviz.ir.stack import deep_stack
from jaxviz.progress import counting
from jaxviz.report.places import source_line
from jaxviz.report.tables import type_text
from jaxviz.runtime import compilations
from jaxviz.xla.collectives.reading import collectives
from jaxviz.xla.collectives.report import Collective
from jaxviz.xla.compile_cost.stages import CompileTimings, Phases, Subject, warmed_up
from jaxviz.xla.compile_cost.stages import subject_of as compiled_subject_of
from jaxviz.xla.compiled_memory.places import CompiledSubject, gradient_or_step
from jaxviz.xla.compiled_memory.reading import memory_of_subject

T = TypeVar("T")
TIMES = 3
"""How often the gradient is compiled, for the median."""
PATIENCE = 30.0
"""The gradient is not compiled again after this many seconds of compiling."""


@api_boundary
@deep_stack
@counting("facts")
def gather_facts(
    target: str,
    arguments: str,
    f: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    argnums: Argnums,
    folder: Path | None = None,
    compile: bool = True,
) -> Facts:
    """The facts of a function and its gradient in this environment.

    A part that cannot be found out is left out, with the reason in `not_known`.

    Args:
      target, arguments: as the user wrote them.
      f, args, kwargs, argnums: as for `derive`.
      folder: for the arrays; see `values_of`. Without one, nothing is run or timed.
      compile: whether to compile the gradient.

    Raises:
      the errors of `derive`.
    """
    derivation = subject_of(f, args, kwargs, argnums)
    parts = Gathering()
    program = _with_structure(program_facts(derivation, parts), derivation, parts)
    with compilations.unwatched():
        lowered = parts.known("compiled program", lambda: gradient_or_step(derivation)) if compile else None
        subject, values = None, None
        if folder is not None:
            subject = parts.known("compile time", lambda: compiled_subject_of(f, args, kwargs, argnums))
        compiled = _compiled(derivation, lowered, subject, parts)
        if folder is not None and subject is not None:
            values = parts.known("values", lambda: values_of(subject, folder))
    there = environment(libraries=folder is not None)
    return Facts(target, arguments, there, program, compiled, values, tuple(parts.not_known))


class Gathering:
    """Finds out the parts of some facts, and notes which are not known, and why."""

    def __init__(self) -> None:
        self.not_known: list[NotKnown] = []

    def known(self, what: str, find: Callable[[], T]) -> T | None:
        """A part; None if it cannot be found out, which is noted."""
        try:
            return find()
        except Exception as error:
            message = message_of(error).strip().split("\n")[0]
            kind = "" if isinstance(error, NoValuesError) else f"{type(error).__name__}: "
            self.not_known.append(NotKnown(what, f"{kind}{message}"))
            return None


def environment(libraries: bool = True) -> Environment:
    """The versions and flags of this environment; those of other packages, which take half a second, if asked for."""
    flags = {name: str(value) for name, value in sorted(jax.config.values.items())}
    return Environment(
        platform.python_version(), _version("jax"), _version("jaxlib"), _libraries() if libraries else {}, flags
    )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


_NOT_THE_PROGRAM_S = {"jax", "jaxlib", "jaxviz-lab"}


def _libraries() -> dict[str, str]:
    """The versions of the packages that are imported, but JAX and jaxviz."""
    imported = {name.partition(".")[0] for name in sys.modules}
    packages = metadata.packages_distributions()
    names = {package for module in imported & packages.keys() for package in packages[module]}
    return {name: _version(name) for name in sorted(names - _NOT_THE_PROGRAM_S)}


# --- of the program ---------------------------------------------------------------------------------------------------


def program_facts(d: Derivation, parts: Gathering) -> ProgramFacts:
    """What holds of a gradient for the types of its arguments; what cannot be found out is noted in `parts`."""
    saved = d.residuals
    idle = parts.known("what has no effect", lambda: tuple(without_effect(d)))
    return ProgramFacts(
        d.about,
        tuple(_saved_row(g) for g in saved.groups if g.residuals[0].is_saved),
        saved.saved.arguments,
        parts.known("modelled peak", lambda: _peak(memory(d))),
        parts.known("FLOPs", lambda: _work(cost(d).rows)),
        tuple(_decisions(same) for same in grouped(saved.checkpoints, lambda r: (r.function, r.policy, r.location))),
        idle,
        tuple(dict.fromkeys(str(u) for u in d.unopened)),
    )


def _with_structure(found: ProgramFacts, d: Derivation, parts: Gathering) -> ProgramFacts:
    """The same with what is named, donated, exchanged and not reached, and the number of equations."""
    called = d.primal if d.step is None else d.step.traced
    donated = zip(called.arg_names, donated_by(called), strict=True)
    return replace(
        found,
        names=tuple(sorted(_names(d.residuals.checkpoints))),
        implied=parts.known("collectives that types imply", lambda: collectives(d, compile=False).implied),
        inputs=tuple(called.arg_names),
        parameters=tuple(d.primal.arg_names),
        donated=tuple(name for name, is_donated in donated if is_donated),
        dead=parts.known("parameters that the gradient does not reach", lambda: _dead(gradient_flow(d, values=False))),
        equations=parts.known("equations", lambda: sum(1 for p in (d.forward, d.backward) for _ in p.walk())) or 0,
    )


def _dead(flow: GradientFlow) -> dict[str, str]:
    """The parameters that a gradient does not reach, and where it ends."""
    ends = lambda e: str(e) if e.expression or e.location else e.text
    return {leaf.name: "; ".join(map(ends, leaf.endings)) for leaf in flow.leaves if not leaf.is_reached}


def _names(reports: Iterable[CheckpointReport]) -> set[str]:
    """The names under which policies save or offload a value."""
    kept = (v.equation for report in reports for v in report.values if v.fate in ("saved", "offloaded"))
    return {e.params["name"] for e in kept if e is not None and is_name(e)}


def _saved_row(g: ResidualGroup) -> SavedRow:
    nbytes = sum(r.nbytes_on_one for r in g.residuals)
    return SavedRow(g.label, g.residuals[0].type, g.count, nbytes, g.why, g.library, g.location)


def _peak(timeline: MemoryTimeline) -> ModelledPeak | None:
    if not timeline.steps:
        return None
    step = timeline.steps[timeline.peak]
    at = location_of(step.equation, step.within)
    what = written_at(at, ROOM_IN_SENTENCE) or step.equation.primitive.name
    return ModelledPeak(step.total, what, at or defined_at(timeline.derivation.primal))


def _work(rows: Iterable[CostRow]) -> tuple[LineWork, ...]:
    return tuple(_work_of(same) for same in grouped(rows, lambda row: row.location))


def _work_of(same: Sequence[CostRow]) -> LineWork:
    """The work of a line."""
    operations, dtypes = Counter[str](), Counter[str]()
    for row in same:
        operations[row.primitive] += row.cost.flops
        dtypes[_dtype(row)] += row.cost.flops
    at, sums = same[0].location, lambda rows: sum(row.cost.flops for row in rows)
    forward, backward = ([row for row in same if row.stage == stage] for stage in PASSES)
    recomputed = [row for row in backward if _is_recomputed(row)]
    by_name, by_dtype = ({name: n for name, n in counts.items() if n} for counts in (operations, dtypes))
    return LineWork(source_line(at), at, sums(forward), sums(backward), sums(recomputed), by_name, by_dtype)


def _dtype(row: CostRow) -> str:
    """The dtype of the first operand that is a floating-point number, or else of the first; '' without operands."""
    avals = row.equation.operation.in_avals
    first = next((a for a in avals if jnp.issubdtype(getattr(a, "dtype", bool), jnp.inexact)), *avals[:1] or (None,))
    return type_text(first).partition("[")[0] if first is not None else ""


def _is_recomputed(row: CostRow) -> bool:
    equations = (row.part.equation, *row.part.within)
    return any(e.origin is not None and e.origin.role == "recomputation" for e in equations)


def _decisions(same: Sequence[CheckpointReport]) -> PolicyDecisions:
    first = same[0]
    fates = Counter(v.fate for report in same for v in report.values)
    counts = fates["saved"], fates["offloaded"], fates["recomputed"]
    return PolicyDecisions(first.function, first.policy, first.location, *counts)


# --- as compiled ------------------------------------------------------------------------------------------------------


def _compiled(
    d: Derivation, lowered: CompiledSubject | None, subject: Subject | None, parts: Gathering
) -> CompiledFacts:
    device = jax.devices()[0]
    n_devices = 1 if lowered is None else lowered.n_devices
    found = None if lowered is None else parts.known("compiled memory", lambda: memory_of_subject(lowered))
    exchanged: tuple[Collective, ...] | None = ()
    if n_devices > 1:
        exchanged = parts.known("collectives", lambda: collectives(d).compiled)
    timed = None if subject is None else parts.known("compile time", lambda: _compilations(subject))
    return CompiledFacts(device.platform, device.device_kind, n_devices, found, exchanged, timed or ())


def _compilations(subject: Subject) -> tuple[Phases, ...]:
    """The seconds of each of up to `TIMES` compilations."""
    warmed_up()
    timings = CompileTimings()
    for _ in range(TIMES):
        timings.compile(subject.make(), (*subject.inputs, *subject.cotangents))
        if sum(s.wall for s in timings.compiling) > PATIENCE:
            break
    times = zip(timings.tracing, timings.lowering, timings.compiling, strict=True)
    return tuple(Phases(*of) for of in times)
