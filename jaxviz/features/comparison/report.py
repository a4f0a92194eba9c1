"""Two versions of a function side by side: the equations, the residuals, the bytes and the FLOPs that differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar

from jaxviz.analysis.grouping import alike, grouped, pattern
from jaxviz.analysis.naming import ROOM, Naming
from jaxviz.analysis.training_step import subject_of
from jaxviz.analysis.walk import location_of, with_holders
from jaxviz.arguments import Argnums
from jaxviz.derivation import STAGES, Derivation, derive
from jaxviz.features.comparison.alignment import Alignment, align
from jaxviz.features.residuals.notes import gradient_note
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.errors import JaxvizError, NoRuleError
from jaxviz.ir.expressions import expression_at, shortened_expression
from jaxviz.ir.origin import Location
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import Program
from jaxviz.report.charts import Bars
from jaxviz.report.data import Data, Entry
from jaxviz.report.differences import Difference, Figure, difference_table, figure_table
from jaxviz.report.places import source_line
from jaxviz.report.report import Report, Table
from jaxviz.report.tables import counted, line_label, repeated, type_text
from jaxviz.runtime.flags import Flags
from jaxviz.transforms.unopened import unopened_note


@dataclass(frozen=True, slots=True)
class EquationDifference(Data):
    """Equations of one kind and line that only one version has.

    Args:
      what: the primitive.
      expression: the expression that they belong to; '' if none is found.
      type: the types of its results.
      location: the user's line; None if there is none.
      is_added: whether the second version has them.
      count: how many there are.
      numbers: of the equations, in the order of `Program.walk`.
    """

    what: str
    expression: str
    type: str
    location: Location | None
    is_added: bool
    count: int
    numbers: tuple[int, ...] = field(repr=False, default=())

    @property
    def difference(self) -> Difference:
        """The same as a row of a table of differences."""
        what = f"`{self.what}` in `{self.expression}`" if self.expression else f"`{self.what}`"
        return Difference(
            self.count if self.is_added else -self.count, what, self.type, self.location, unit="equations"
        )

    _data = ("what", "expression", "type", "count", "location", "added=is_added")


@dataclass(frozen=True, slots=True)
class ResidualDifference:
    """Residuals of one type, made by one expression, of which the versions save different numbers.

    Args:
      what: the expression that computes them, such as `jnp.cos(x)`; the path of an argument.
      type: their type.
      location: the user's line, in the version that has them (in the second, if both do).
      before, after: how many residuals each version saves.
      nbytes: the bytes of each.
    """

    what: str
    type: str
    location: Location
    before: int
    after: int
    nbytes: int

    @property
    def change(self) -> int:
        """The additional bytes that the second version saves."""
        return (self.after - self.before) * self.nbytes

    @property
    def difference(self) -> Difference:
        """The same as a row of a table of differences."""
        types = repeated(self.after or self.before, self.type)
        why = f"{self.after:,} now, {self.before:,} before" if self.before and self.after else ""
        return Difference(self.change, f"`{self.what}`", types, self.location, why=why)


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Report, schema="compare"):
    """What differs between two versions of a function and of its gradient.

    >>> found = jaxviz.compare(loss, faster_loss, params, x)
    >>> found.is_same, found.differences

    Args:
      before, after: the derivations.
    """

    before: Derivation = field(repr=False)
    after: Derivation = field(repr=False)

    @property
    def functions(self) -> tuple[str, str]:
        """The names of both functions."""
        return self.before.primal.name, self.after.primal.name

    # Programs are derived when they are first needed, which may be here.
    __str__ = api_boundary(Report.__str__)
    _repr_html_ = api_boundary(Report._repr_html_)

    @cached_property
    def _left_out(self) -> dict[str, NoRuleError]:
        """Why stages cannot be compared, where a rule is missing; filled by `alignments`."""
        return {}

    @cached_property
    def alignments(self) -> Mapping[str, Alignment]:
        """For each stage that both have, 'primal', 'jvp', 'forward', 'linear' and 'backward', what is in common."""
        alignments: dict[str, Alignment] = {}
        for stage in STAGES:
            try:
                programs = getattr(self.before, stage), getattr(self.after, stage)
                inputs = self._inputs(alignments["forward"]) if stage in ("linear", "backward") else None
                alignments[stage] = align(*programs, inputs)
            except JaxvizError as error:  # a stage that cannot be derived has nothing to compare
                if isinstance(error, NoRuleError):
                    self._left_out[stage] = error
        return alignments

    def _inputs(self, forward: Alignment) -> dict[int, int]:
        """Maps inputs of the second version's linear program to the first's: equal residuals, then the rest."""
        counts = self.before.n_residuals, self.after.n_residuals
        first, second = (n - k for n, k in zip(forward.n_results, counts, strict=True))
        n = len(self.after.linear.invars) - counts[1]
        of_residuals = {j - second: i - first for j, i in forward.results.items() if j >= second and i >= first}
        return of_residuals | {counts[1] + i: counts[0] + i for i in range(n)}

    def differences(self, stage: str = "primal") -> tuple[EquationDifference, ...]:
        """The equations of a stage that only one version has: those of the first version, then those of the second, by
        line.

        Args:
          stage: 'primal', 'jvp', 'forward', 'linear' or 'backward'.

        Raises:
          KeyError: one version has no such stage.
        """
        if stage not in self.alignments:
            raise KeyError(f"{stage!r} cannot be compared: {' and '.join(self.functions)} do not both have it")
        alignment = self.alignments[stage]
        sides = ((self.before, alignment.removed, False), (self.after, alignment.added, True))
        return tuple(d for side, numbers, added in sides for d in _grouped(side, stage, numbers, added))

    @cached_property
    def residuals(self) -> tuple[ResidualDifference, ...]:
        """The saved values of which the two have different numbers, the most bytes first."""
        sides = [(side, r) for side, d in enumerate((self.before, self.after)) for r in d.residuals if r.is_saved]
        producer = lambda r: r.kind if r.producer is None else r.producer.primitive.name
        before = lambda group: sum(side == 0 for side, _ in group)
        rows = []
        for same in grouped(sides, lambda of: (producer(of[1]), of[1].type, of[1].nbytes)):
            if 2 * before(same) == len(same):
                continue  # if only the variables are renamed, expressions differ, but values do not
            for group in grouped(same, lambda of: pattern(of[1].expression)):
                last, what = group[-1][1], alike([r.expression for _, r in group])
                n = before(group), len(group) - before(group)
                rows.append(ResidualDifference(what, last.type, last.location, *n, last.nbytes))
        return tuple(sorted((r for r in rows if r.change), key=lambda r: -abs(r.change)))

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """Equations by stage, saved values, FLOPs and the modelled peak; without a reverse mode, only equations."""
        # Imported here: the explorer imports this module before it shows anything.
        from jaxviz.features.cost.report import cost
        from jaxviz.features.memory.timeline import memory

        of = lambda name, unit, amount: Figure(name, amount(self.before), amount(self.after), unit)
        figures = [
            of(_LABELS[s], "equations", lambda d, s=s: sum(1 for _ in getattr(d, s).walk())) for s in self.alignments
        ]
        if "backward" not in self.alignments:
            return tuple(figures)
        return (
            *figures,
            of("saved values", "values", lambda d: d.residuals.saved.count),
            of("saved bytes", "bytes", lambda d: d.residuals.saved.nbytes),
            of("FLOPs", "FLOPs", lambda d: int(cost(d).total.flops)),
            of("modelled peak", "bytes", lambda d: memory(d).peak_nbytes),
        )

    @property
    def is_same(self) -> bool:
        """Whether the programs are the same, in every stage."""
        return all(a.is_equal for a in self.alignments.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not compared: of training steps everything but their gradients, stages that a rule is missing for,
        and what jaxviz does not look into."""
        unopened = dict.fromkeys((*self.before.unopened, *self.after.unopened))
        is_step = any(d.step is not None for d in (self.before, self.after))
        no_gradient = dict.fromkeys(note for d in (self.before, self.after) for note in gradient_note(d))
        _ = self.alignments
        left_out = (f"Not compared: {_LABELS[stage]}. {error}" for stage, error in self._left_out.items())
        about_steps = [_ONLY_GRADIENTS] * is_step + list(dict.fromkeys(_other_gradients(self.before, self.after)))
        return (*about_steps, *left_out, *no_gradient, *unopened_note(tuple(unopened)))

    @property
    def summary(self) -> str:
        """gradient of `loss` in `w` and that of `loss2`: 3 equations only in the first, 5 only in the second; …."""
        first, second = self.before, self.after
        same_name, same = first.primal.name == second.primal.name, first.differentiated == second.differentiated
        other = f"that of `{second.primal.name}`" if same and first.differentiated else second.title
        names = f"two versions of the {first.title}" if same and same_name else f"{first.title} and {other}"
        if self.is_same:
            return f"{names}{',' if names.endswith('takes') else ''} are the same program"
        a = self.alignments["primal"]
        equations = f"{counted(len(a.removed), 'equation')} only in the first, {len(a.added):,} only in the second"
        if not a.removed and not a.added:
            equations = "the same equations" + (
                "; their gradients differ" if a.is_equal else ", with different results"
            )
        changes = [f"{f.name} {f.cells[-1]}" for f in self.figures if f.unit != "equations" and f.change]
        return f"{names}: {'; '.join([equations, *changes])}"

    def _chart(self) -> Bars | None:
        if "backward" not in self.alignments:
            return None
        parts: dict[str, dict[str, int]] = {}
        labels: dict[str, str] = {}
        for side, derivation in (("before", self.before), ("after", self.after)):
            for r in derivation.residuals:
                if r.is_saved:
                    # A line that both versions contain may have moved.
                    text = source_line(r.location) or str(r.location)
                    parts.setdefault(text, {"before": 0, "after": 0})[side] += r.nbytes
                    labels[text] = line_label(r.location)
        differ = [text for text, sizes in parts.items() if sizes["before"] != sizes["after"]]
        rows = [(labels[text], n, side) for text in differ for side, n in parts[text].items()]
        return Bars(rows, "saved bytes before and after, by line, where they differ", beside=True)

    def _parts(self) -> Iterator[str | Table]:
        if not self.is_same:
            yield from self._tables()
        yield from self.notes

    @property
    def _titles(self) -> tuple[str, str]:
        first, second = self.functions
        return first, second if second != first else f"{second}, new"

    def _tables(self) -> Iterator[Table]:
        yield figure_table(self.figures, *self._titles)
        # Where other equations differ, derived ones differ too, and only their totals matter.
        for stage in ["primal"] if self.differences() else self.alignments:
            equations = [d.difference for d in self.differences(stage)]
            if equations:
                yield difference_table(equations, f"equations of {_LABELS[stage]} that differ")
        if self._residuals:
            yield difference_table([r.difference for r in self._residuals], "residuals that differ")

    _data: ClassVar[tuple[Entry, ...]] = (
        "functions", "figures", "notes", "same=is_same", "equations=_equations", "residuals=_residuals",
    )  # fmt: skip

    @property
    def _equations(self) -> dict[str, tuple[EquationDifference, ...]]:
        return {stage: self.differences(stage) for stage in self.alignments}

    @property
    def _residuals(self) -> tuple[ResidualDifference, ...]:
        return self.residuals if "backward" in self.alignments else ()


_ONLY_GRADIENTS = "Only gradients are compared, not what a training step does besides, such as its update."

_LABELS = {"primal": "f", "jvp": "jvp", "forward": "forward", "linear": "linear", "backward": "backward"}


@api_boundary
@deep_stack
def compare(
    f: Any, g: Any, *args: Any, argnums: Argnums = 0, flags: Sequence[Flags] | None = None, **kwargs: Any
) -> Comparison:
    """Shows what differs between two functions, or two versions of one function, and between their gradients; or what
    flags of JAX change of one.

    >>> print(jaxviz.compare(loss, faster_loss, params, x))
    >>> print(jaxviz.compare(loss, loss, params, x, flags=({}, {"jax_remat3": True})))

    For two training steps, which compute a gradient themselves and return more than one number, it is about the
    gradients that they take; `derive(step, ...)` in their place is about those of the steps. If only one is a training
    step, both are compared as functions.

    Args:
      f, g: functions; or Derivations, Programs or ClosedJaxprs, without further arguments.
      *args, **kwargs: the arguments of both, as for `derive`.
      argnums: the positional arguments to differentiate with respect to.
      flags: for each function flags of `jax.config` that it is traced and derived under, such as
        `({}, {"jax_remat3": True})`; the result is a `FlagComparison`. They are set for the process meanwhile.

    Raises:
      ValueError: `flags` are not two, or a flag is not one of this JAX; or with flags, a function is traced already.
      the errors of `derive`, for either of them.
    """
    sides = (f, g)
    if flags is None:
        derivations = [subject_of(h, args, kwargs, argnums) for h in sides]
        if len({d.step is None for d in derivations}) > 1:
            derivations = [derive(h, *args, argnums=argnums, **kwargs) for h in sides]
        return Comparison(*derivations)
    # Imported here: it extends this module.
    from jaxviz.features.comparison.under_flags import FlagComparison, derived_under

    if len(flags) != 2:
        raise ValueError(
            f"flags takes the flags of both functions, such as ({{}}, {{'jax_remat3': True}}); got {flags}"
        )
    traced = next((h for h in sides if isinstance(h, (Derivation, Program)) or not callable(h)), None)
    if traced is not None:
        raise ValueError(f"flags are for functions; a {type(traced).__name__} is traced already")
    found = [
        derived_under(fl, partial(subject_of, h, args, kwargs, argnums)) for h, fl in zip(sides, flags, strict=True)
    ]
    if len({d.step is None for d, _ in found}) > 1:
        own = partial(derive, argnums=argnums, **kwargs)
        found = [derived_under(fl, partial(own, h, *args)) for h, fl in zip(sides, flags, strict=True)]
    (before, idle), (after, idle_after) = found
    return FlagComparison(before, after, (flags[0], flags[1]), (idle, idle_after))


def _other_gradients(*versions: Derivation) -> Iterator[str]:
    """The gradients that training steps take besides the one that is compared, a sentence each."""
    for step in (d.step for d in versions if d.step is not None):
        others = (g for mark, g in enumerate(step.gradients) if mark != step.mark)
        yield from (f"Not compared: the {g.gradient}, which `{step.name}` takes as well." for g in others)


def _grouped(derivation: Derivation, stage: str, numbers: Sequence[int], is_added: bool) -> list[EquationDifference]:
    chosen, naming = set(numbers), Naming(derivation.primal)
    groups: dict[tuple[str, str, str, Location | None], list[int]] = {}
    for i, (e, within) in enumerate(with_holders(getattr(derivation, stage))):
        if i in chosen:
            types = ", ".join(type_text(v.aval) for v in e.outvars)
            written = shortened_expression(expression_at(naming.location(e, within)), ROOM)
            groups.setdefault((e.primitive.name, written, types, location_of(e, within)), []).append(i)
    return [
        EquationDifference(what, written, kind, location, is_added, len(group), tuple(group))
        for (what, written, kind, location), group in groups.items()
    ]
