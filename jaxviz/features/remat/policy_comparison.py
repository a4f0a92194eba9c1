"""Compares a function under several checkpoint policies: what it saves and recomputes, its memory over time, and plans
beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from jaxviz.analysis.training_step import subject_of
from jaxviz.arguments import Argnums
from jaxviz.derivation import Derivation, derive
from jaxviz.features.memory.buffers import KINDS
from jaxviz.features.memory.timeline import SPARED, MemoryTimeline, XlaMemory, memory, peak_text, xla_memory
from jaxviz.features.remat.checkpointing import check_policies_count
from jaxviz.features.remat.forms import Trade, work_of
from jaxviz.features.remat.graph import best_trades
from jaxviz.features.remat.plan import AGAIN, PEAK, RematPlan
from jaxviz.features.remat.planning import Planning, check_is_traced, check_references
from jaxviz.features.remat.policies import Outcome, PolicyDifference, checkpoints_of
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.set_policy import NO_CHECKPOINTS, Setting, derive_under, has_checkpoints, setting
from jaxviz.features.remat.tuning import SMALL
from jaxviz.features.residuals.notes import gradient_note
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.emit import as_function
from jaxviz.ir.errors import JaxvizError
from jaxviz.ir.expressions import shortened_expression
from jaxviz.ir.stack import deep_stack
from jaxviz.progress import each
from jaxviz.report.charts import BYTES, Axis, Bars, TradeOff
from jaxviz.report.differences import Figure as Change
from jaxviz.report.differences import share
from jaxviz.report.report import SHOWN, Drawn, Part, Report, Table, plotted
from jaxviz.report.tables import counted, format_bytes, format_flops, printable, repeated, short_location
from jaxviz.transforms.unopened import unopened_note

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SAVED = Axis("residual bytes", BYTES, format_bytes)
_NAME = 36
"""The maximum length of a value's name in a text table, which leaves room for the policies."""


_VALUES = ("value", "type", "bytes", "line")
_HEADS = ("policy", "saved", "values", "arguments read", "extra FLOPs", "model peak")


@dataclass(frozen=True, eq=False, repr=False)
class PolicyComparison(Report, schema="compare_policies"):
    """A function under several checkpoint policies. See `compare_policies`.

    >>> comparison = jaxviz.compare_policies(loss, params, x)
    >>> comparison.without, comparison.outcomes

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
    _subject: Derivation = field(repr=False)
    _compiles: bool = field(repr=False, default=False)
    refused: tuple[str, ...] = ()

    def __getitem__(self, policy: str) -> Outcome:
        return next(o for o in self.outcomes if o.name == policy)

    @cached_property
    def differences(self) -> tuple[PolicyDifference, ...]:
        """The values that differ, those for which most bytes are at stake first."""
        decided = [o.decided for o in self.outcomes]
        none: Counter[str] = Counter()
        keys = dict.fromkeys(key for outcome in decided for key in outcome)
        every = (PolicyDifference(key, tuple(outcome.get(key, none) for outcome in decided)) for key in keys)
        differ = [d for d in every if any(x != d.decisions[0] for x in d.decisions)]
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

    @cached_property
    def _planning(self) -> Planning:
        subject = self._subject
        if subject.called is None:  # of a program
            nums = tuple(i for i, nonzero in enumerate(subject.nonzeros) if nonzero)
            avals = map(compat.stand_in, subject.primal.in_avals)
            subject = derive(as_function(subject.primal), *avals, argnums=nums)
        check_is_traced(subject.primal)
        search = Search(subject, False)
        check_references(search)
        return Planning(search)

    @deep_stack
    def _planned(self, nbytes: int | None) -> RematPlan | None:
        try:
            return self._planning.as_written if nbytes is None else self._planning.within_residuals(nbytes)
        except (ValueError, TypeError, JaxvizError):
            return None

    @cached_property
    def best_plans(self) -> tuple[Trade, ...]:
        """The best trade-offs between peak and work of all plans, the lowest peak first; empty if the function cannot
        be planned, or takes long to plan."""
        if sum(1 for _ in self.without.derivation.forward.walk()) > SMALL:  # planning takes more than some seconds
            return ()
        plan = self._planned(None)
        return plan.front if plan is not None else ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Policies that JAX refuses, and parts of the function in which the policies are not set."""
        plain = self.without.derivation
        return (*self.refused, *gradient_note(plain), *unopened_note(plain.unopened))

    @property
    def summary(self) -> str:
        """policies of the gradient of `loss` in `params` on 12 checkpoints of layer (model.py:12); without checkpoints:
        saves 8.7 MiB in 463 values, …."""
        w = self.without
        return (
            f"policies of the {w.derivation.about} on {self.checkpoints}; without checkpoints: saves {w.saved}, "
            f"{format_flops(w.all_flops)}, modelled peak {format_bytes(w.peak_nbytes)}"
        )

    @property
    def counted(self) -> str:
        """`2 policies`."""
        return "1 policy" if len(self.outcomes) == 1 else f"{len(self.outcomes)} policies"

    def _rows(self) -> list[tuple[str, ...]]:
        w = self.without
        return [
            (
                o.name, f"{o.saved.size} {share(w.saved.nbytes, o.saved.nbytes)}".strip(), f"{o.saved.count:,}",
                format_bytes(o.saved.arguments),
                f"{_number(o.flops)} {share(w.all_flops, o.all_flops)}".strip(), format_bytes(o.peak_nbytes),
            )
            for o in self.outcomes
        ]  # fmt: skip

    def _chart(self) -> TradeOff:
        return self._trade_off(PEAK, lambda o: o.peak_nbytes, [(t.peak_nbytes, t.flops) for t in self.best_plans])

    def by_residuals(self) -> TradeOff:
        """The policies among plans that save no more bytes, by the bytes of residuals."""
        plans = [(p.nbytes, p.flops) for p in self.plans if p is not None]
        return self._trade_off(_SAVED, lambda o: o.nbytes, plans, "plans with no more residual bytes")

    def _trade_off(
        self, x: Axis, size: Callable[[Outcome], int], plans: Sequence[tuple[int, int]], note: str = "the best plans"
    ) -> TradeOff:
        """The policies among plans, or if there are none, the best of them: a policy is a plan, too."""
        marks = [(size(o), o.flops, o.name, "policy") for o in (self.without, *self.outcomes)]
        marks[0] = (*marks[0][:2], "no checkpoints", "no checkpoints")
        line = best_trades({*plans, *((x, y) for x, y, *_ in marks)}, itemgetter(0), itemgetter(1))
        title = f"checkpoint policies of {self.function}"
        return TradeOff(marks, line, title, x, AGAIN, note if plans else "the best of these")

    def _parts(self) -> Iterator[str | Table]:
        names = [o.name for o in self.outcomes]
        rows = self._values(lambda d: shortened_expression(d.value, _NAME))
        is_wide = _width((*_VALUES, *names), rows[:SHOWN]) > 100
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
                label(d), repeated(d.count, d.key.type), format_bytes(d.count * d.key.nbytes),
                short_location(d.key.location),
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
        undone, spared = list[str](), list[str]()
        for o, measured in zip(self.outcomes, self.xla, strict=True):
            if measured.temporaries_without_checkpoints is None:
                continue
            parts.append(f"{o.name} {format_bytes(measured.temporaries)}")
            if measured.saves_nothing:
                (undone if o.timeline.xla_undoes_checkpoints else spared).append(o.name)
        text = (
            f"Temporaries of the gradient compiled by XLA for {plain.backend}, measured, not modelled: "
            f"{', '.join(parts)}."
        )
        if undone:
            text += f" XLA undoes the checkpoints of {' and '.join(undone)}: they save next to nothing here."
        if spared:
            text += f" {SPARED}: the checkpoints of {' and '.join(spared)} save next to nothing here."
        return text

    _data = ("function", "notes", "without", "differences", "policies=outcomes", "xla_temporaries=_temporaries")

    @property
    def _temporaries(self) -> list[int]:
        return [measured.temporaries for measured in self.xla] if self._is_compiled else []

    def plot(self, plans: bool = True, ax: Axes | None = None) -> Figure:  # type: ignore[override]
        """Plots the policies as points, residual bytes against FLOPs recomputed, and the best plans as a line.

        Args:
          plans: whether to draw that line, for which some plans are computed; it is left out if the function cannot be
            planned.
          ax: the matplotlib axes to draw in; by default those of a new figure.
        """
        has_line = plans and any(self.plans)
        chart = self.by_residuals() if has_line else self._trade_off(_SAVED, lambda o: o.nbytes, ())
        return plotted(chart if has_line else replace(chart, line=()), ax)


@dataclass(frozen=True, eq=False, repr=False)
class MemoryComparison(Report, schema="compare_policies.memory"):
    """The modelled memory of a function's gradient over time, under each of several policies, on one scale.

    Args:
      policies: the comparison.
      xla: whether to include XLA's memory, for which each is compiled.
    """

    policies: PolicyComparison
    xla: bool = False

    @property
    def summary(self) -> str:
        """memory of the gradient of `loss` in `params` under 2 policies: nothing_saveable peaks 3.6 MiB (43%) below
        dots_saveable."""
        outcomes = self.policies.outcomes
        head = f"memory of the {self.policies.without.derivation.about} under {self.policies.counted}"
        low, high = (pick(outcomes, key=lambda o: o.peak_nbytes) for pick in (min, max))
        less = high.peak_nbytes - low.peak_nbytes
        if not less:
            return f"{head}: {'all peak' if len(outcomes) > 1 else 'it peaks'} at {format_bytes(high.peak_nbytes)}"
        return f"{head}: {low.name} peaks {format_bytes(less)} ({100 * less / high.peak_nbytes:.0f}%) below {high.name}"

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """The bytes alive at each peak, by kind; for two policies also the difference."""
        alive = [_at_peak(o.timeline) for o in self.policies.outcomes]
        heads = ("alive at the peak", *(o.name for o in self.policies.outcomes), *(["difference"] * (len(alive) == 2)))
        rows = []
        for kind, sizes in zip((*KINDS, "all"), (*zip(*alive, strict=True), tuple(map(sum, alive))), strict=True):
            if any(sizes):
                less = [Change(kind, sizes[0], sizes[1], "bytes").cells[-1]] if len(alive) == 2 else []
                rows.append((kind, *map(format_bytes, sizes), *less))
        return heads, rows

    def _chart(self) -> Bars:
        alive = ((o.name, zip(KINDS, _at_peak(o.timeline), strict=True)) for o in self.policies.outcomes)
        rows = [(name, n, kind) for name, sizes in alive for kind, n in sizes if n]
        return Bars(rows, f"bytes alive at the modelled peak of the gradient of {self.policies.function}")

    def _parts(self) -> Iterator[Part]:
        outcomes = self.policies.outcomes
        top = max(o.peak_nbytes for o in outcomes)
        heads, rows = self._table()
        is_wide = _width(heads, rows) > 100
        if is_wide:
            heads = (heads[0], *(str(i + 1) for i in range(len(outcomes))))
        for i, o in enumerate(outcomes):
            yield f"{f'{i + 1} ' * is_wide}{o.name}: {peak_text(o.timeline)}"
            yield Drawn(f"  {o.timeline.curve(top)}")
        yield Table(heads, rows, "<" + ">" * (len(heads) - 1))
        if self.xla:
            yield self.policies.compare()

    _data = ("policies.function", ("policies=policies.outcomes", ("policy=name", "*timeline")))


def _at_peak(timeline: MemoryTimeline) -> tuple[int, ...]:
    return timeline.steps[timeline.peak].nbytes if timeline.steps else (0,) * len(KINDS)


@dataclass(frozen=True, eq=False, repr=False)
class PlanComparison(Report, schema="compare_policies.plans"):
    """Policies compared with plans of `plan_remat` that have no more residual bytes.

    Args:
      policies: the comparison.
    """

    policies: PolicyComparison

    @property
    def summary(self) -> str:
        """plans for the gradient of `loss` in `params` at the bytes of 2 policies: up to 31% fewer FLOPs recomputed."""
        fewer = [
            1 - plan.flops / o.flops
            for o, plan in zip(self.policies.outcomes, self.policies.plans, strict=True)
            if plan is not None and o.flops
        ]
        head = f"plans for the {self.policies.without.derivation.about} at the bytes of {self.policies.counted}"
        return f"{head}: up to {max(fewer):.0%} fewer FLOPs recomputed" if max(fewer, default=0) > 0 else head

    def _chart(self) -> TradeOff:
        return self.policies.by_residuals()

    def _parts(self) -> Iterator[Table]:
        rows = []
        for o, plan in zip(self.policies.outcomes, self.policies.plans, strict=True):
            policy = (printable(o.name, 34), format_bytes(o.nbytes), _number(o.flops))
            if plan is None:
                rows.append((*policy, "", "", "no plan so small"))
            else:
                gain = f"{100 * (plan.flops - o.flops) / o.flops:+.0f}% FLOPs" if plan.flops != o.flops else "none"
                rows.append((*policy, format_bytes(plan.nbytes), _number(plan.flops), gain))
        yield Table(("policy", "kept", "extra FLOPs", "plan saves", "its FLOPs", "gain"), rows, "<>>>><")

    _data = ("policies.function", "policies=policies.outcomes", ("plans=policies.plans", ("nbytes", "flops")))


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
    """Compares checkpoint policies for a function's gradient: what it saves and recomputes under each of them, and its
    peak.

    Each policy replaces the policies of all checkpoints in the function, including nested ones. A function without
    checkpoints gets one around the whole function. The figures are those of JAX with the policy written there.

    >>> print(jaxviz.compare_policies(loss, params, x, policies=["as it is", "everything", "dots_saveable"]))

    For a training step, which computes a gradient itself and returns more than one number, it is about the gradient
    that the step takes; `derive(step, ...)` in its place is about that of the step.

    Args:
      f: a function; or a Derivation, Program or ClosedJaxpr, without further arguments.
      *args, **kwargs: its arguments, as for `derive`.
      policies: names in `jax.checkpoint_policies`; policies; 'as it is' for the function's own policies; 'everything'
        for no checkpoints.
      argnums: the positional arguments to differentiate with respect to.
      xla: whether to compile the gradient under each policy, for XLA's figures; otherwise `PolicyComparison.xla`
        compiles them when it is read.

    Raises:
      ValueError: no policy has this name; or JAX does not allow a checkpoint around the function; the message says why.
      the errors of `derive`.
    """
    is_one = isinstance(policies, (str, type(None))) or callable(policies)
    if not is_one and not isinstance(policies, Iterable):
        raise TypeError(
            f"policies must be policies or their names, such as policies=('dots_saveable',); got {policies!r}"
        )
    several = [policies] if is_one else list(policies)
    if not several:
        raise ValueError(
            "compare_policies takes one policy or more, such as policies=('dots_saveable', 'nothing_saveable')"
        )
    check_policies_count()
    settings = _with_unique_names([setting(p) for p in several])
    own = subject_of(f, args, kwargs, argnums)
    plain = derive_under(own, Setting(NO_CHECKPOINTS))
    work_plain = work_of(plain)
    without = Outcome(NO_CHECKPOINTS, plain, work_plain.flops, 0, memory(plain))

    refused: list[compat.PolicyRefused] = []

    def outcome(name: str, to: Setting) -> Outcome | None:
        try:
            d = derive_under(own, to)
            if d is plain or to.name == NO_CHECKPOINTS:
                return replace(without, name=name)
            work = work_of(d)
            more = work.flops - work_plain.flops, work.transcendentals - work_plain.transcendentals
            return Outcome(name, d, work.flops, more[0], memory(d), more[1])
        except compat.PolicyRefused as error:
            refused.append(error)
            return None

    outcomes = tuple(o for o in each(lambda named: outcome(*named), settings, "policies") if o is not None)
    if not outcomes:
        raise refused[0]
    notes = tuple(dict.fromkeys(map(str, refused)))
    return PolicyComparison(own.primal.name, checkpoints_of(own.primal), without, outcomes, own, xla, notes)


def _with_unique_names(settings: Sequence[Setting]) -> list[tuple[str, Setting]]:
    """Makes the names unique, since two lambdas have the same name."""
    seen: Counter[str] = Counter()
    named = []
    for s in settings:
        seen[s.name] += 1
        named.append((s.name if seen[s.name] == 1 else f"{s.name} ({seen[s.name]})", s))
    return named


def _width(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, c)) + 2 for c in zip(heads, *rows, strict=True)) - 2


def _by_decision(texts: Sequence[str]) -> str:
    """`saved: 1, 3; recomputed: 2`, by the numbers of the policies."""
    numbers: dict[str, list[str]] = {}
    for i, text in enumerate(texts):
        numbers.setdefault(text, []).append(str(i + 1))
    return "; ".join(f"{text}: {', '.join(under)}" for text, under in numbers.items())


def _number(flops: int) -> str:
    """`1.2 M`."""
    return format_flops(flops).removesuffix("FLOP").strip()
