"""A `Derivation` as the columns that the explorer shows."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxviz.analysis.checkpoints import report_checkpoints
from jaxviz.analysis.devices import placement_of
from jaxviz.analysis.grouping import alike, outliers
from jaxviz.analysis.kinds import kinds_of
from jaxviz.derivation import STAGES, Derivation
from jaxviz.features.explorer.lines import add_lines, add_saved_lines
from jaxviz.features.explorer.numbers import Numbers
from jaxviz.features.explorer.overview import add_kept, add_scopes, headline_of, said_of_peak
from jaxviz.features.explorer.rows import Rows
from jaxviz.features.residuals.residual import Residual
from jaxviz.features.residuals.residual_set import ResidualSet
from jaxviz.ir.collector import collector_paused
from jaxviz.ir.expressions import source_shown
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import Equation, Program
from jaxviz.page.schema import COLUMNS, KINDS, MEMORY_KINDS, BranchPoint, CheckResult, Headline, Stage, View
from jaxviz.page.texts import first_line
from jaxviz.transforms.unopened import unopened_note

if TYPE_CHECKING:
    from jaxviz.features.memory.timeline import MemoryTimeline

_TITLES = {
    "primal": ("f", "the function itself"),
    "jvp": ("jvp", "inputs, tangents → results, tangents: both at once, nothing saved"),
    "forward": ("forward", "inputs → results, residuals: all the nonlinear work"),
    "linear": ("linear", "residuals, tangents → tangents: linear in the tangents"),
    "backward": ("backward", "residuals, cotangents → cotangents: the linear program transposed"),
}


def view_of(derivation: Derivation, source: bool = True) -> View:
    """Everything that the explorer shows of a derivation.

    A stage that cannot be derived is shown with its error, and the others are shown as usual.

    Args:
      derivation: its programs are derived here if necessary.
      source: whether the user's own source lines are embedded.
    """
    with source_shown(source):
        return replace(ViewMaker(derivation, source).complete, check=compared_with_jax(derivation))


@collector_paused()
def compared_with_jax(derivation: Derivation) -> CheckResult:
    """The comparison of the residuals with JAX's, for which JAX traces the function again."""
    try:
        comparison = derivation.check(values=False)
    except Exception as error:
        return CheckResult("unknown", "not compared with JAX", (first_line(error),))
    return CheckResult("agrees" if comparison.agrees else "differs", comparison.summary, comparison.differences)


class ViewMaker:
    """Creates the view of a derivation, at once or in four steps, each with more: the programs and residuals, then the
    groups of equations, then the memory, then the details. It does not include the comparison with JAX."""

    def __init__(self, derivation: Derivation, source: bool = True):
        self.derivation = derivation
        self.source = source
        self.begin()

    def begin(self) -> None:
        """Clears the columns."""
        self.columns: dict[str, Any] = {name: [] for name in COLUMNS}
        self.numbers = Numbers(self.columns, self.source)
        self.string = self.numbers.string
        self.rows = Rows(self.columns, self.numbers, kinds_of(self.derivation))

    def outline(self) -> View:
        """What the overview begins with: the values that are saved, by expression and by line, and the headline.

        It needs the residuals, and none of the other programs; nothing of it is part of the views that follow.
        """
        columns: dict[str, Any] = {name: [] for name in COLUMNS}
        numbers = Numbers(columns, self.source)
        with collector_paused(), deep_stack:
            residuals = self.derivation.residuals
            add_kept(columns, numbers, residuals)
            columns["residual_kept"] = []  # these have rows in the programs
            add_saved_lines(columns, numbers, residuals.items)
            return View(
                stages=tuple(Stage(key, *_TITLES[key], (0, 0), (0, 0), "") for key in STAGES),
                strings=tuple(numbers.string.number),
                columns={name: _array(values) for name, values in columns.items()},
                headline=self.headline,
                **self._about(numbers),
            )

    @cached_property
    def headline(self) -> Headline:
        """What is saved, in words; the outline has it too."""
        return headline_of(self.derivation.residuals)

    @cached_property
    def first(self) -> View:
        """The view without what is needed later: no memory, no notes, no relations of variables, and no equal
        equations; the texts about a residual are those of the first equal one, and inputs that are residuals have no
        labels."""
        try:
            with collector_paused(), deep_stack:
                return self._first()
        except BaseException:
            # An interrupt leaves the columns incomplete: start again on the next request.
            self.begin()
            raise

    @cached_property
    def with_groups(self) -> View:
        """`first` with the groups of equations, by which listings and graphs fold repeated layers."""
        first = self.first
        with collector_paused():
            self.rows.add_repetitions()
            return replace(first, columns=self.arrays(), has_groups=True)

    @cached_property
    def with_memory(self) -> View:
        """The same with the modelled memory over time and the scopes. Rows, strings and all other numbers are the
        same."""
        before = self.with_groups
        with collector_paused(), deep_stack:
            no_memory, n_devices, peak = self.add_memory()
            return replace(
                before,
                strings=tuple(self.string.number),
                columns=self.arrays(),
                no_memory=no_memory,
                n_devices=n_devices,
                headline=replace(before.headline, peak=peak),
                has_memory=True,
            )

    @cached_property
    def complete(self) -> View:
        """Everything but the comparison with JAX. Rows, strings and all other numbers are the same."""
        before = self.with_memory
        with collector_paused(), deep_stack:
            self.rows.add_relations()
            self.add_words(self._residuals)
            self.add_residual_labels()
            self.add_group_words()
            return replace(
                before,
                strings=tuple(self.string.number),
                columns=self.arrays(),
                notes=self.notes(),
                is_whole=True,
            )

    def _first(self) -> View:
        stages = tuple(self.add_stage(i, key) for i, key in enumerate(STAGES))
        self.rows.finish(_decisions(self.derivation))
        headline = self.add_residuals(stages)
        return View(
            stages=stages,
            strings=tuple(self.string.number),
            columns=self.arrays(),
            headline=headline,
            **self._about(self.numbers),
        )

    def _about(self, numbers: Numbers) -> dict[str, Any]:
        """What is known of the function itself, for a view that is not complete."""
        branches = tuple(
            BranchPoint(numbers.sources.number(b.location), b.location.line, b.kind, str(b.value))
            for b in self.derivation.primal.branches
            if b.location is not None
        )
        placement = placement_of(self.derivation)
        return {
            "title": self.derivation.title,
            "files": numbers.sources.files(),
            "branches": branches,
            "devices": placement.devices,
            "placement": str(placement),
            "has_groups": False,
            "has_memory": False,
            "is_whole": False,
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """The columns, each converted to an array once."""
        for name, values in self.columns.items():
            if not isinstance(values, np.ndarray):
                self.columns[name] = _array(values)
        return dict(self.columns)

    def notes(self) -> tuple[str, ...]:
        try:
            residuals: ResidualSet = self.derivation.residuals
        except Exception as error:
            return (f"no residuals: {first_line(error)}", *unopened_note(self.derivation.unopened))
        return residuals.notes

    # --- programs -----------------------------------------------------------------------------------------------------

    def add_stage(self, index: int, key: str) -> Stage:
        label, title = _TITLES[key]
        rows = self.rows
        programs, equations = len(rows.programs), len(rows.equations)
        try:
            program: Program = getattr(self.derivation, key)
        except Exception as error:
            return Stage(key, label, title, (programs, programs), (equations, equations), first_line(error))
        rows.add_stage(index, program, self.derivation.names(key), self.derivation.input_labels(key))
        n_programs, n_equations = len(rows.programs), len(rows.equations)
        return Stage(key, label, title, (programs, n_programs), (equations, n_equations), "", program.is_path)

    # --- residuals and memory -----------------------------------------------------------------------------------------

    def add_residuals(self, stages: Sequence[Stage]) -> Headline:
        """The residuals, also by expression, and by line with the line's work; and a summary in words."""
        try:
            report: ResidualSet | None = self.derivation.residuals
        except Exception:  # `notes` has the reason
            report = None
        residuals, groups = ((), ()) if report is None else (report.items, report.groups)
        number, row_of = self.string.all, self.rows.first
        consumers = [[row_of[e] for e in r.consumers if e in row_of] for r in residuals]
        group = {id(r): i for i, g in enumerate(groups) for r in g.residuals}
        first: dict[Hashable, Residual] = {}
        self.columns.update(
            residual_name=number(r.name for r in residuals),
            residual_group=[group[id(r)] for r in residuals],
            group_label=number(g.residuals[0].label for g in groups),
            group_why=number(g.residuals[0].why for g in groups),
            residual_outlier=[0] * len(residuals),
            residual_type=number(r.type for r in residuals),
            residual_nbytes=[r.nbytes for r in residuals],
            residual_per_device=[-1 if r.nbytes_per_device is None else r.nbytes_per_device for r in residuals],
            residual_dummy=[r.nbytes if r.dummies else 0 for r in residuals],
            residual_kind=[KINDS.index(r.kind) for r in residuals],
            residual_location=[self.numbers.location(r.location) for r in residuals],
            residual_rule=number(r.rule for r in residuals),
            residual_decision=number(r.decision for r in residuals),
            residual_producer=[-1 if r.producer is None else row_of.get(r.producer, -1) for r in residuals],
            residual_buffer=[-1] * len(residuals),
            residual_consumers=[0, *accumulate(map(len, consumers))],
            consumer_rows=[row for rows in consumers for row in rows],
        )
        self._residuals, self._groups = residuals, groups
        self.add_words([first.setdefault(r.repeats, r) for r in residuals])
        add_lines(self.columns, self.numbers, self.rows, stages, self.derivation, residuals)
        if report is None:
            return Headline()
        add_kept(self.columns, self.numbers, report)
        return self.headline

    def add_words(self, residuals: Sequence[Residual]) -> None:
        """The texts on what each residual is, where it is computed and why it is saved: for thousands of residuals a
        quarter of the work."""
        number = self.string.all
        reasons = [pattern_of(r.reason) for r in residuals]
        self.columns.update(
            residual_label=number(r.label for r in residuals),
            residual_scope=number(r.scope for r in residuals),
            residual_module=number(r.module for r in residuals),
            residual_reason=number(pattern for pattern, _ in reasons),
            residual_names=[0, *accumulate(len(names) for _, names in reasons)],
            reason_names=number(name for _, names in reasons for name in names),
        )

    def add_group_words(self) -> None:
        """The texts of each row of the report of residuals, which are those of all its values, and which of these
        differ."""
        differ = {
            id(r): other
            for g in self._groups
            for r, other in zip(g.residuals, outliers([r.reason for r in g.residuals]), strict=True)
        }
        self.columns.update(
            group_label=self.string.all(g.label for g in self._groups),
            group_why=self.string.all(g.why for g in self._groups),
            residual_outlier=[int(differ[id(r)]) for r in self._residuals],
        )

    def add_residual_labels(self) -> None:
        """How each residual is computed, as the description of the input of the linear and of the backward stage."""
        texts = self.string.all(f"residual {residual.expression}" for residual in self._residuals)
        for stage in map(self.first.stage, ("linear", "backward")):
            if not stage.error:
                self.rows.label_inputs(stage.programs[0], texts)

    def add_memory(self) -> tuple[str, int, str]:
        """The steps and the buffers of the modelled memory, with the scopes of the steps; or why there are none.

        Also the number of devices for which it is modelled, and the peak in words.
        """
        # Imported here, since the first view is sent before.
        from jaxviz.features.memory.timeline import memory

        try:
            timeline = memory(self.derivation.taken_by(None))
        except Exception as error:
            return first_line(error), 1, ""
        steps, values, number = self.step_rows(timeline), timeline.values, self.string.all
        group = {id(v): i for i, same in enumerate(timeline.rows) for v in same}
        buffers = [-1] * len(self.columns["residual_name"])
        for i, value in enumerate(values):
            for residual in value.residuals:
                buffers[residual] = i
        self.columns.update(
            residual_buffer=buffers,
            step_row=steps,
            buffer_nbytes=[v.nbytes for v in values],
            buffer_kind=[MEMORY_KINDS.index(v.kind) for v in values],
            buffer_born=[v.born for v in values],
            buffer_last=[v.last for v in values],
            buffer_row=[-1 if v.equation is None else steps[v.born] for v in values],
            buffer_name=number(v.what for v in values),
            buffer_type=number(v.type for v in values),
            buffer_group=[group[id(v)] for v in values],
            buffer_group_label=number(alike([v.what for v in same]) for same in timeline.rows),
        )
        add_scopes(self.columns, self.numbers, timeline, steps, self.rows, self.places)
        return "", timeline.n_devices, said_of_peak(timeline)

    @cached_property
    def places(self) -> tuple[Mapping[tuple[int, Equation], int], ...]:
        """The rows of the equations of the forward and the backward stage, by the row that contains their program and
        themselves."""
        return tuple(self.rows.places(self.first.stage(key).equations) for key in ("forward", "backward"))

    def step_rows(self, timeline: MemoryTimeline) -> list[int]:
        """The row of each step."""
        forward, backward = self.places
        step_rows = []
        for step in timeline.steps:
            row, row_in = -1, backward if step.is_backward else forward
            for equation in step.within:
                row = row_in[row, equation]
            step_rows.append(row_in[row, step.equation])
        return step_rows


def _array(values: list[int]) -> np.ndarray:
    try:
        return np.fromiter(values, np.int64, len(values))
    except OverflowError:  # nested scans may stack more bytes than int64 holds
        return np.array(values, np.float64)


def _decisions(derivation: Derivation) -> dict[Equation, str]:
    """What checkpoint policies decided for the equations of the function that are in a checkpoint."""
    try:
        reports = report_checkpoints(derivation)
    except Exception:  # a program that cannot be linearized; its stage shows the error
        return {}
    decisions: dict[Equation, dict[str, None]] = {}
    for report in reports:
        for value in report.values:
            if value.equation is not None:
                decisions.setdefault(value.equation, {})[f"{value.fate} (policy {report.policy})"] = None
    return {equation: "; ".join(texts) for equation, texts in decisions.items()}


def pattern_of(sentence: str) -> tuple[str, list[str]]:
    """A sentence with the names removed, which many sentences share, and the names.

    >>> pattern_of("`sin(x)` is read by the `mul`")
    ('`` is read by the ``', ['sin(x)', 'mul'])
    """
    parts = sentence.split("`")
    if len(parts) % 2 == 0:  # a name has one as well
        return sentence, []
    return "``".join(parts[::2]), parts[1::2]
