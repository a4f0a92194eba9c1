"""Compares a function under several checkpoint policies: what it saves and recomputes, and its peak."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jaxviz.analysis.checkpoints import (
    FATES,
    CheckpointReport,
    Decided,
    described,
    looks_through,
    report_checkpoints,
    times,
)
from jaxviz.analysis.naming import Naming
from jaxviz.analysis.training_step import subject_of
from jaxviz.analysis.walk import SourceTracer, defined_at, location_of
from jaxviz.arguments import Argnums
from jaxviz.derivation import Derivation
from jaxviz.features.memory.timeline import SPARED, MemoryTimeline, XlaMemory, memory, xla_memory
from jaxviz.features.remat.charts import policies_by_bytes, policies_by_peak
from jaxviz.features.remat.forms import Trade, all_flops
from jaxviz.features.remat.graph import Point
from jaxviz.features.remat.plan import RematPlan
from jaxviz.features.remat.planning import plan_remat
from jaxviz.features.remat.set_policy import NO_CHECKPOINTS, Setting, derive_under, has_checkpoints, setting
from jaxviz.features.residuals.notes import gradient_note
from jaxviz.features.residuals.residual_set import ResidualSet
from jaxviz.features.residuals.saved_bytes import SavedBytes
from jaxviz.higher_order import of
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.emit import as_function
from jaxviz.ir.errors import JaxvizError
from jaxviz.ir.expressions import shortened_expression
from jaxviz.ir.origin import Location
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import Program
from jaxviz.progress import each
from jaxviz.report.charts import TradeOff
from jaxviz.report.data import Data
from jaxviz.report.differences import share
from jaxviz.report.report import SHOWN, Report, Table, plotted
from jaxviz.report.tables import counted, format_bytes, format_flops, nbytes, printable, repeated, short_location
from jaxviz.transforms.unopened import unopened_note

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAME = 36
"""The maximum length of a value's name in a text table, which leaves room for the policies."""


@dataclass(frozen=True, eq=False)
class Outcome(Data):
    """The figures of a function under one policy.

    Args:
      name: the name of the policy.
      derivation: of the function with it.
      all_flops: the FLOPs of both passes, without the rounding that JAX adds for each saved value.
      flops: the FLOPs beyond those of the function without checkpoints.
      timeline: its modelled memory over time.
    """

    name: str
    derivation: Derivation = field(repr=False)
    all_flops: int
    flops: int
    timeline: MemoryTimeline = field(repr=False)

    @property
    def residuals(self) -> ResidualSet:
        """The residuals of its gradient."""
        found: ResidualSet = self.derivation.residuals
        return found

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
        """For the values of one line and operation, how many are saved, recomputed and so on; values that are not needed are left out."""
        kept = Counter(_kept(self.derivation))
        found: dict[Key, Counter[str]] = {}
        for c in self.checkpoints:
            for v in c.values:
                if v.equation is not None:
                    found.setdefault(_key(c, v), Counter())[v.fate] += 1
        for key, n in kept.items():
            fates = found.get(key)
            if fates is None:
                found[key] = Counter({"saved": n})  # outside any checkpoint
            elif n > fates["saved"] + fates["offloaded"]:
                # A value that a checkpoint does not save may still be kept, as an input of the next one.
                fates["already an input"] += n - fates["saved"] - fates["offloaded"]
        return {
            key: Counter({f: n for f, n in fates.items() if n and f != "not needed"}) for key, fates in found.items()
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


def _kept(derivation: Derivation) -> Iterable[Key]:
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
      decisions: for each policy, how many are saved, offloaded, recomputed or already an input; the others are not needed.
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


@dataclass(frozen=True, eq=False, repr=False)
class PolicyComparison(Report, schema="compare_policies"):
    """A function under several checkpoint policies. See `compare_policies`.

    >>> found = jaxviz.compare_policies(loss, params, x)
    >>> found.without, found.outcomes

    Args:
      function: its name.
      checkpoints: the checkpoints that have the policies, such as '12 checkpoints of layer (model.py:12)'.
      without: the figures without checkpoints.
      outcomes: the figures under each policy.
      refused: why JAX cannot apply other policies that were asked for.
    """

    function: str
    checkpoints: str
    without: Outcome
    outcomes: tuple[Outcome, ...]
    _plan: Callable[[int | float], RematPlan] = field(repr=False)
    _compiles: bool = field(repr=False, default=False)
    refused: tuple[str, ...] = ()

    def __getitem__(self, policy: str) -> Outcome:
        return next(o for o in self.outcomes if o.name == policy)

    @cached_property
    def differences(self) -> tuple[PolicyDifference, ...]:
        """The values that differ, those for which most bytes are at stake first."""
        decided = [o.decided for o in self.outcomes]
        none: Counter[str] = Counter()
        keys = dict.fromkeys(key for found in decided for key in found)
        made = (PolicyDifference(key, tuple(found.get(key, none) for found in decided)) for key in keys)
        differ = [d for d in made if any(x != d.decisions[0] for x in d.decisions)]
        return tuple(sorted(differ, key=lambda d: (-d.at_stake, -d.key.nbytes * d.count)))

    @cached_property
    def xla(self) -> tuple[XlaMemory, ...]:
        """XLA's figures under each policy, on the default backend; each is compiled, when first asked for.

        Raises:
          the errors of compiling.
        """

        def of(o: Outcome) -> XlaMemory:
            if o.derivation is self.without.derivation or not has_checkpoints(o.derivation.primal):
                return self.without.timeline.xla
            plain = self.without.timeline.xla.temporaries
            return replace(xla_memory(o.derivation, o.timeline.donated), temporaries_without_checkpoints=plain)

        return tuple(each(of, self.outcomes, "compiling"))

    @cached_property
    def plans(self) -> tuple[RematPlan | None, ...]:
        """For each policy, the plan that saves no more bytes; None if there is none. See `jaxviz.plan_remat`."""
        return tuple(each(lambda o: self._planned(o.nbytes), self.outcomes, "plans"))

    def _planned(self, budget: int | float) -> RematPlan | None:
        try:
            return self._plan(budget)
        except (ValueError, TypeError, JaxvizError):
            return None

    @cached_property
    def best_plans(self) -> tuple[Trade, ...]:
        """The best trade-offs between peak and work of all plans, the lowest peak first; empty if the function cannot be planned, or takes
        long to plan."""
        if sum(1 for _ in self.without.derivation.forward.walk()) > MOST_TO_PLAN:
            return ()
        plan = self._planned(1.0)
        return plan.front if plan is not None else ()

    @property
    def points(self) -> tuple[Point, ...]:
        """Residual bytes and FLOPs recomputed of each policy, and without checkpoints: a policy is a plan, too."""
        return tuple(Point(o.nbytes, o.flops) for o in (self.without, *self.outcomes))

    @property
    def notes(self) -> tuple[str, ...]:
        """Policies that JAX refuses, and parts of the function in which the policies are not set."""
        plain = self.without.derivation
        return (*self.refused, *gradient_note(plain), *unopened_note(plain.unopened))

    @property
    def summary(self) -> str:
        """policies of the gradient of `loss` in `params` on 12 checkpoints of layer (model.py:12); without checkpoints: saves 8.7 MiB in
        463 values, …."""
        w = self.without
        return (
            f"policies of the {w.derivation.about} on {self.checkpoints}; without checkpoints: saves {w.saved}, "
            f"{format_flops(w.all_flops)}, modelled peak {format_bytes(w.peak_nbytes)}"
        )

    def _rows(self) -> list[tuple[str, ...]]:
        w = self.without
        return [
            (
                o.name, f"{o.saved.size} {share(w.saved.nbytes, o.saved.nbytes)}".strip(), f"{o.saved.count:,}",
                format_bytes(o.saved.arguments),
                f"{number(o.flops)} {share(w.all_flops, o.all_flops)}".strip(), format_bytes(o.peak_nbytes),
            )
            for o in self.outcomes
        ]  # fmt: skip

    def _chart(self) -> TradeOff:
        return policies_by_peak(self)

    def _parts(self) -> Iterator[str | Table]:
        names = [o.name for o in self.outcomes]
        rows = self._values(lambda d: shortened_expression(d.value, _NAME))
        is_wide = width_of((*_VALUES, *names), rows[:SHOWN]) > 100
        if is_wide:
            rows = [(*r[:4], _by_decision(r[4:])) for r in rows]
        named = lambda i, name: f"{i + 1} " * is_wide + printable(name, 34 - 2 * is_wide)
        yield Table(_HEADS, [(named(i, r[0]), *r[1:]) for i, r in enumerate(self._rows())], "<>>>>>")
        yield from self._differing(["under"] if is_wide else names, rows)

    def _html_parts(self) -> Iterator[str | Table]:
        yield Table(_HEADS, self._rows(), "<>>>>>")
        yield from self._differing([o.name for o in self.outcomes], self._values(lambda d: f"`{d.value}`"))

    @property
    def _at_stake(self) -> list[PolicyDifference]:
        """The differences in what is kept, and not only in what is recomputed."""
        return [d for d in self.differences if d.at_stake]

    def _values(self, label: Callable[[PolicyDifference], str]) -> list[tuple[str, ...]]:
        return [
            (
                label(d), repeated(d.count, d.key.type), format_bytes(d.count * d.key.nbytes), short_location(d.key.location),
                *d.texts(),
            )
            for d in self._at_stake
        ]  # fmt: skip

    def _differing(self, under: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Iterator[str | Table]:
        if self._is_compiled:
            yield self.compare()
        if rows:
            rest = lambda n: format_bytes(sum(d.at_stake for d in self._at_stake[n:]))
            more = lambda n: f"and {counted(len(rows) - n, 'more row')}, {rest(n)} at stake"
            caption = "where they differ, by what is at stake:"
            yield Table((*_VALUES, *under), rows, "<<><" + "<" * len(under), caption, more=more)
        elif len(self.outcomes) > 1:
            yield "They save the same values."
        yield from self.notes

    @property
    def _is_compiled(self) -> bool:
        return self._compiles or "xla" in vars(self)

    def compare(self) -> str:
        """Compares the policies as XLA compiles them, in a few sentences; compiles as `xla` does."""
        plain = self.without.timeline.xla
        parts = [f"without checkpoints {format_bytes(plain.temporaries)}"]
        undone: list[str] = []
        spared: list[str] = []
        for o, found in zip(self.outcomes, self.xla, strict=True):
            if found.temporaries_without_checkpoints is None:
                continue
            parts.append(f"{o.name} {format_bytes(found.temporaries)}")
            if found.saves_nothing:
                (undone if o.timeline.xla_undoes_checkpoints else spared).append(o.name)
        text = f"Temporaries of the gradient compiled by XLA for {plain.backend}, measured, not modelled: {', '.join(parts)}."
        if undone:
            text += f" XLA undoes the checkpoints of {' and '.join(undone)}: they save next to nothing here."
        if spared:
            text += f" {SPARED}: the checkpoints of {' and '.join(spared)} save next to nothing here."
        return text

    _data = ("function", "notes", "without", "differences", "policies=outcomes", "xla_temporaries=_temporaries")

    @property
    def _temporaries(self) -> list[int]:
        return [found.temporaries for found in self.xla] if self._is_compiled else []

    def plot(self, plans: bool = True, ax: Axes | None = None) -> Figure:  # type: ignore[override]
        """Plots the policies as points, residual bytes against FLOPs recomputed, and the best plans as a line.

        Args:
          plans: whether to draw that line, for which some plans are computed; it is left out if the function cannot be planned.
          ax: the matplotlib axes to draw in; by default those of a new figure.
        """
        points = [plan.point for plan in self.plans if plan is not None] if plans else []
        chart = policies_by_bytes(self, points)
        return plotted(chart if points else replace(chart, line=()), ax)


MOST_TO_PLAN = 3_000
"""The number of equations of a forward program up to which a drawing includes plans, which take some seconds; of larger ones plans are only
made on request."""

_VALUES = ("value", "type", "bytes", "line")
_HEADS = ("policy", "saved", "values", "arguments read", "extra FLOPs", "model peak")


@api_boundary
@deep_stack
def compare_policies(
    f: Any,
    *args: Any,
    policies: Any = ("dots_saveable", "nothing_saveable"),
    argnums: Argnums = 0,
    xla: bool = False,
    **kwargs: Any,
) -> PolicyComparison:
    """Compares checkpoint policies for a function's gradient: what it saves and recomputes under each of them, and its peak.

    Each policy replaces the policies of all checkpoints in the function, including nested ones. A function without checkpoints
    gets one around the whole function. The figures are those of JAX with the policy written there.

    >>> print(jaxviz.compare_policies(loss, params, x, policies=["as it is", "everything", "dots_saveable"]))

    For a training step, which computes a gradient itself and returns more than one number, it is about the gradient that the step takes;
    `derive(step, ...)` in its place is about that of the step.

    Args:
      f: a function; or a Derivation, Program or ClosedJaxpr, without further arguments.
      *args, **kwargs: its arguments, as for `derive`.
      policies: names in `jax.checkpoint_policies`; policies; 'as it is' for the function's own policies; 'everything' for no checkpoints.
      argnums: the positional arguments to differentiate with respect to.
      xla: whether to compile the gradient under each policy, for XLA's figures; otherwise `PolicyComparison.xla` compiles them when it is
        read.

    Raises:
      ValueError: no policy has this name; or JAX does not allow a checkpoint around the function; the message says why.
      the errors of `derive`.
    """
    is_one = isinstance(policies, (str, type(None))) or callable(policies)
    if not is_one and not isinstance(policies, Iterable):
        raise TypeError(
            f"policies must be policies or their names, such as policies=('dots_saveable',); got {policies!r}"
        )
    asked = [policies] if is_one else list(policies)
    if not asked:
        raise ValueError(
            "compare_policies takes one policy or more, such as policies=('dots_saveable', 'nothing_saveable')"
        )
    settings = _told_apart([setting(p) for p in asked])
    own = subject_of(f, args, kwargs, argnums)
    plain = derive_under(own, Setting(NO_CHECKPOINTS))
    n_plain = all_flops(plain)
    without = Outcome(NO_CHECKPOINTS, plain, n_plain, 0, memory(plain))

    def outcome(name: str, to: Setting) -> Outcome:
        d = derive_under(own, to)
        if d is plain or to.name == NO_CHECKPOINTS:
            return replace(without, name=name)
        n = all_flops(d)
        return Outcome(name, d, n, n - n_plain, memory(d))

    def plan(budget: int | float) -> RematPlan:
        if isinstance(f, Derivation) or not callable(f):
            avals = map(compat.stand_in, own.primal.in_avals)
            nums = tuple(i for i, nz in enumerate(own.nonzeros) if nz)
            return plan_remat(as_function(own.primal), *avals, budget=budget, argnums=nums)
        return plan_remat(f, *args, budget=budget, argnums=argnums, **kwargs)

    refused: list[compat.PolicyRefused] = []

    def outcome_unless_refused(named: tuple[str, Setting]) -> Outcome | None:
        try:
            return outcome(*named)
        except compat.PolicyRefused as error:
            refused.append(error)
            return None

    outcomes = tuple(o for o in each(outcome_unless_refused, settings, "policies") if o is not None)
    if not outcomes:
        raise refused[0]
    notes = tuple(dict.fromkeys(map(str, refused)))
    return PolicyComparison(own.primal.name, checkpoints_of(own.primal), without, outcomes, plan, xla, notes)


def _told_apart(settings: Sequence[Setting]) -> list[tuple[str, Setting]]:
    """Makes the names unique, since two lambdas have the same name."""
    seen: Counter[str] = Counter()
    named = []
    for s in settings:
        seen[s.name] += 1
        named.append((s.name if seen[s.name] == 1 else f"{s.name} ({seen[s.name]})", s))
    return named


def checkpoints_of(primal: Program) -> str:
    """`12 checkpoints of layer (model.py:12) and 1 of head (model.py:30)`, or what is added if there is none."""
    found = Counter((p.name, defined_at(p)) for _, e in primal.walk() if of(e).is_checkpoint for _, p in e.programs)
    if not found:
        return "one checkpoint around the whole function, which has none"
    parts = [f"{n} of {name} ({short_location(at)})" for (name, at), n in found.most_common(3)]
    more = [f"{len(found) - 3} other functions"] if len(found) > 3 else []
    return f"its checkpoints, {' and '.join([*parts, *more])}"


def width_of(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, c)) + 2 for c in zip(heads, *rows, strict=True)) - 2


def _by_decision(texts: Sequence[str]) -> str:
    """`saved: 1, 3; recomputed: 2`, by the numbers of the policies."""
    found: dict[str, list[str]] = {}
    for i, text in enumerate(texts):
        found.setdefault(text, []).append(str(i + 1))
    return "; ".join(f"{text}: {', '.join(under)}" for text, under in found.items())


def number(flops: int) -> str:
    """`1.2 M`."""
    return format_flops(flops).removesuffix("FLOP").strip()
