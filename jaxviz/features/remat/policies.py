"""What checkpoint policies decided: those of a program, and what differs between one and another."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from jaxviz.analysis.checkpoints import (
    FATES,
    CheckpointReport,
    Decided,
    NoEffect,
    described,
    in_short,
    looks_through,
    report_checkpoints,
    times,
)
from jaxviz.analysis.naming import Naming
from jaxviz.analysis.training_step import subject_of
from jaxviz.analysis.walk import SourceTracer, defined_at, location_of
from jaxviz.arguments import Argnums
from jaxviz.derivation import Derivation
from jaxviz.features.memory.timeline import MemoryTimeline
from jaxviz.features.remat.compiled_effects import undone_by_xla
from jaxviz.features.remat.forms import work_text
from jaxviz.features.remat.set_policy import has_checkpoints
from jaxviz.features.remat.without_effect import body_of, checkpoints_in, without_effect
from jaxviz.features.residuals.notes import gradient_note
from jaxviz.features.residuals.residual_set import ResidualSet
from jaxviz.features.residuals.saved_bytes import SavedBytes
from jaxviz.higher_order import of
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.origin import Location, locate
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import Program
from jaxviz.report.charts import Bars
from jaxviz.report.data import Data
from jaxviz.report.report import Report, Table
from jaxviz.report.tables import counted, format_bytes, line_label, nbytes, short_location
from jaxviz.transforms.unopened import unopened_note


@dataclass(frozen=True, eq=False)
class Outcome(Data):
    """The figures of a function under one policy.

    Args:
      name: the name of the policy.
      derivation: of the function with it.
      all_flops: the FLOPs of both passes, without the rounding that JAX adds for each saved value.
      flops: the FLOPs beyond those of the function without checkpoints.
      timeline: its modelled memory over time.
      transcendentals: the same as `flops` for values of exp, sin and the like, which XLA does not count as FLOPs.
    """

    name: str
    derivation: Derivation = field(repr=False)
    all_flops: int
    flops: int
    timeline: MemoryTimeline = field(repr=False)
    transcendentals: int = 0

    @property
    def recomputes(self) -> str:
        """`3.1 MFLOP and 4,096 transcendentals`."""
        return work_text(self.flops, self.transcendentals)

    @property
    def residuals(self) -> ResidualSet:
        """The residuals of its gradient."""
        residuals: ResidualSet = self.derivation.residuals
        return residuals

    @cached_property
    def checkpoints(self) -> tuple[CheckpointReport, ...]:
        """What the policy decided."""
        return report_checkpoints(self.derivation)

    @property
    def nbytes(self) -> int:
        """Bytes of the residuals, arguments included."""
        return self.residuals.nbytes

    @property
    def saved(self) -> SavedBytes:
        """What its gradient saves, without arguments."""
        return self.residuals.saved

    @property
    def peak_nbytes(self) -> int:
        """The modelled peak; see `jaxviz.memory`."""
        return self.timeline.peak_nbytes

    @cached_property
    def decided(self) -> Mapping[Key, Counter[str]]:
        """For the values of one line and operation, how many are saved, recomputed and so on; values that are not
        needed are left out."""
        decisions: dict[Key, Counter[str]] = {}
        for c in self.checkpoints:
            for v in c.values:
                if v.equation is not None:
                    decisions.setdefault(_key(c, v), Counter())[v.fate] += 1
        for key, n in Counter(_residuals_of(self.derivation)).items():
            fates = decisions.setdefault(key, Counter({"saved": n}))  # outside any checkpoint
            # A value that a checkpoint does not save may still be kept, as an input of the next one.
            fates["already an input"] += max(n - fates["saved"] - fates["offloaded"], 0)
        return {
            key: Counter({f: n for f, n in fates.items() if n and f != "not needed"})
            for key, fates in decisions.items()
        }

    _data = ("policy=name", "saved", "nbytes", "flops", "peak_nbytes")


@dataclass(frozen=True, slots=True)
class Key:
    """Values that differ only by their position in the program.

    Args:
      location: the user's line.
      expression: the operation that computes them.
      type: the type of each.
      nbytes: the bytes of each.
      label: the user's expression for them, if one is found.
    """

    location: Location | None
    expression: str
    type: str
    nbytes: int
    label: str = ""


def _key(report: CheckpointReport, v: Decided) -> Key:
    return Key(v.location, v.expression, times(report.lengths, v.type), report.runs * v.nbytes, v.label)


def _residuals_of(derivation: Derivation) -> Iterable[Key]:
    """The residuals of a derivation, except arguments, constants and dummies of conds."""
    trace, naming = SourceTracer(derivation.forward, looks_through), Naming(derivation.primal)
    for atom in dict.fromkeys(derivation.linearized.residuals):
        for source in trace(atom):
            e = source.equation
            if e is not None and not source.is_dummy:
                aval = next(v.aval for v in e.outvars if v is source.atom)
                kind = times(source.lengths, aval.str_short(short_dtypes=True))
                size = math.prod(source.lengths) * nbytes(aval)
                label = naming.name(e, source.within, source.place)
                yield Key(location_of(e, source.within), described(e), kind, size, label)


@dataclass(frozen=True, eq=False)
class PolicyDifference(Data):
    """Values for which the policies decide differently.

    Args:
      key: the values.
      decisions: for each policy, how many are saved, offloaded, recomputed or already an input; the others are not
        needed.
    """

    key: Key
    decisions: tuple[Counter[str], ...]

    @property
    def count(self) -> int:
        return max(sum(d.values()) for d in self.decisions)

    @property
    def kept(self) -> tuple[int, ...]:
        """For each policy the bytes of the values that it keeps between the two passes."""
        return tuple(self.key.nbytes * (sum(d.values()) - d["recomputed"]) for d in self.decisions)

    @property
    def at_stake(self) -> int:
        return max(self.kept) - min(self.kept)

    def texts(self) -> list[str]:
        """For each policy `saved`, or `8 saved, 4 recomputed`."""
        return [self._text(d) for d in self.decisions]

    def _text(self, decisions: Counter[str]) -> str:
        if not decisions:
            return "not needed"
        return ", ".join(f if n == self.count else f"{n} {f}" for f in FATES if (n := decisions[f]))

    _data = ("value", "key.type", "key.nbytes", "key.location", "count", "decisions")

    @property
    def value(self) -> str:
        """The user's expression for the values, or their operation."""
        return self.key.label or self.key.expression


@dataclass(frozen=True, eq=False)
class Group:
    """Checkpoints with the same decisions for the same values, such as those of a block in several layers.

    Args:
      report: the report of one of them.
      count: the number of checkpoints.
    """

    report: CheckpointReport
    count: int

    @property
    def summary(self) -> str:
        """`12 times checkpoint of layer (model.py:12), policy dots_saveable: 7 saved 96.0 KiB, …`."""
        each = " each" if self.count * self.report.runs > 1 else ""
        return f"{f'{self.count} times ' if self.count > 1 else ''}{self.report.summary}{each}"

    def table(self) -> Table:
        """Its values, grouped by expression; see `CheckpointReport.values_table`."""
        return self.report.values_table(self.summary)


@dataclass(frozen=True, eq=False, repr=False)
class PolicyReport(Report, schema="policies"):
    """What the checkpoint policies of a program decided. See `policies`.

    >>> report = jaxviz.policies(loss, params, x)
    >>> report.checkpoints, report.groups

    Args:
      function: its name.
      checkpoints: one report for each checkpoint that is differentiated, in the order in which they run; for nested
        checkpoints the outer policy decides.
      residuals: all residuals of the gradient.
      without_effect: the checkpoints, policies, names, offloads and donations that have no effect, and why.
      remarks: others, a sentence each.
    """

    function: str
    checkpoints: tuple[CheckpointReport, ...]
    residuals: ResidualSet = field(repr=False)
    without_effect: tuple[NoEffect, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What has no effect, and other remarks, a sentence each."""
        return tuple(dict.fromkeys([*(n.text for n in self.without_effect), *self.remarks]))

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The checkpoints; those with the same decisions for the same values are grouped."""
        alike: dict[Any, list[CheckpointReport]] = {}
        for c in self.checkpoints:
            values = tuple(replace(v, equation=None) for v in c.values)
            alike.setdefault((c.function, c.location, c.policy, c.lengths, values), []).append(c)
        return tuple(Group(reports[0], len(reports)) for reports in alike.values())

    @property
    def summary(self) -> str:
        """policies of the gradient of `loss` in `params`: 12 checkpoints, 84 values saved 1.2 MiB, 456 recomputed 8.1
        MiB; it saves 2.4 MiB in all."""
        in_all = f"it saves {self.residuals.saved}"
        idle = in_short(self.without_effect)
        but = f"; {idle}" if idle else ""
        n = len(self.checkpoints)
        if not n:
            is_known = not any(u.is_opaque for u in self.residuals.unopened)
            none = "no checkpoint is differentiated" if is_known else "no checkpoint is found"
            return f"policies of the {self.residuals.gradient}: {self._unopened or none}; {in_all}{but}"
        sizes = {
            fate: [c.runs * v.nbytes for c in self.checkpoints for v in c.values if v.fate == fate]
            for fate in FATES[:3]
        }
        parts = [
            f"{counted(len(of_fate), 'value')} {fate} {format_bytes(sum(of_fate))}"
            for fate, of_fate in sizes.items()
            if of_fate
        ]
        return (
            f"policies of the {self.residuals.gradient}: {counted(n, 'checkpoint')}, {', '.join([*parts, in_all])} "
            f"in all{self._unopened and f'; {self._unopened}'}{but}"
        )

    @property
    def _unopened(self) -> str:
        """`2 checkpoints are not opened: jaxviz does not look at what they save`; '' for none."""
        n = sum(u.count for u in self.residuals.unopened if u.is_checkpoint)
        many = n > 1
        are, they = ("are", "they save") if many else ("is", "it saves")
        return f"{counted(n, 'checkpoint')} {are} not opened: jaxviz does not look at what {they}" if n else ""

    def _chart(self) -> Bars:
        rows = [
            (line_label(v.location), c.runs * v.nbytes, v.fate)
            for c in self.checkpoints
            for v in c.values
            if v.fate != "not needed"
        ]
        return Bars(rows, f"bytes of the values in the checkpoints of {self.function}, by line")

    def _parts(self) -> Iterator[str | Table]:
        yield from (group.table() for group in self.groups)
        yield from self.notes

    _data = (
        "function", "notes", "without_effect", "residuals.nbytes", ("checkpoints=groups", ("count", "*report")),
    )  # fmt: skip


@api_boundary
@deep_stack
def policies(f: Any, *args: Any, argnums: Argnums = 0, of: str = "modelled", **kwargs: Any) -> PolicyReport:
    """Reports what happens to each value of the checkpointed functions in a program, and which policy decided it.

    >>> print(jaxviz.policies(loss, params, x))
    policies of the gradient of `loss` in `params`: 12 checkpoints, 84 values saved 1.2 MiB, 456 values recomputed 8.1
    MiB, it saves ...

    For a training step, which computes a gradient itself and returns more than one number, it is about the gradient
    that the step takes; `derive(step, ...)` in its place is about that of the step.

    Args:
      f: a function; or a Derivation, Program or ClosedJaxpr, without further arguments.
      *args, **kwargs: its arguments, as for `derive`.
      argnums: the positional arguments to differentiate with respect to.
      of: 'compiled' also compiles the gradient without each checkpoint and with the other value of its `prevent_cse`:
        what XLA compiles to the same has no effect either. By default, 'modelled', nothing is compiled.

    Raises:
      the errors of `derive`.
      ValueError: `of` is neither 'modelled' nor 'compiled'.
    """
    if of not in ("modelled", "compiled"):
        raise ValueError(f"of must be 'modelled' or 'compiled'; got {of!r}")
    derivation = subject_of(f, args, kwargs, argnums)
    checkpoints = report_checkpoints(derivation)
    idle = tuple(without_effect(derivation))
    if of == "compiled":
        idle += tuple(undone_by_xla(derivation))
    return PolicyReport(
        derivation.primal.name,
        checkpoints,
        derivation.residuals,
        idle,
        (*gradient_note(derivation), *unopened_note(derivation.unopened), *_about(derivation, checkpoints)),
    )


def _about(derivation: Derivation, checkpoints: Sequence[CheckpointReport]) -> Iterable[str]:
    primal = derivation.primal
    if derivation.no_reverse_mode is not None or not any(derivation.nonzeros):
        return
    if not has_checkpoints(primal):
        if not any(u.is_opaque for u in derivation.unopened):  # it may contain one
            yield (
                f"{primal.name} has no checkpoint, so its gradient saves every value that the backward pass reads. Add "
                "one with jax.checkpoint(f, policy=...); jaxviz.compare_policies shows what each policy would save."
            )
    elif not checkpoints:
        yield "No tangent goes through its checkpoints."
    nested = ((body_of(e).name, body_of(outer).name) for e, outer in checkpoints_in(primal) if outer is not None)
    for inner, outer in dict.fromkeys(nested):
        yield (
            f"The checkpoint of {inner} is inside that of {outer}: the policy of {outer} decides what is saved between "
            f"the two passes, and that of {inner} what is saved while the backward pass recomputes its part of {outer}."
        )


def checkpoints_of(primal: Program) -> str:
    """`12 checkpoints of layer (model.py:12) and 1 of head (model.py:30)`, or what is added if there is none."""
    # A function of JAX's own is placed at its call.
    place = lambda e, p: at if (at := defined_at(p)).line else locate(e.source)
    checkpoints = Counter((p.name, place(e, p)) for _, e in primal.walk() if of(e).is_checkpoint for _, p in e.programs)
    if not checkpoints:
        return "one checkpoint around the whole function, which has none"
    parts = [f"{n} of {name}{f' ({short_location(at)})' if at else ''}" for (name, at), n in checkpoints.most_common(3)]
    more = [f"{len(checkpoints) - 3} other functions"] if len(checkpoints) > 3 else []
    return f"its checkpoints, {' and '.join([*parts, *more])}"
