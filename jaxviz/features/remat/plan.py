"""The report of a plan: where checkpoints go, what they save, and the figures of the gradient with them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax

from jaxviz.analysis.budgets import evenly
from jaxviz.analysis.grouping import alike, grouped
from jaxviz.analysis.training_step import taking_gradient_of
from jaxviz.features.remat.diff import Limits, write_plan
from jaxviz.features.remat.forms import Trade, Trial, by_peak, by_work, transcendentals_of, work_text
from jaxviz.features.remat.graph import best_trades
from jaxviz.features.remat.names import Saved, names_of, saved_by
from jaxviz.features.remat.pasted import in_branches as put_in_branches
from jaxviz.features.remat.regions import Region
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.tuning import NEAR, WORTH
from jaxviz.features.remat.verify import CompiledFigures, Verification, figures_of
from jaxviz.features.remat.written import Written
from jaxviz.ir.emit import as_function
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import Program
from jaxviz.report.charts import BYTES, FLOPS, Axis, TradeOff
from jaxviz.report.code import Diff
from jaxviz.report.report import SHOWN, Report, Table
from jaxviz.report.tables import (
    counted,
    format_bytes,
    format_flops,
    in_library,
    listed,
    percent,
    repeated,
    short_location,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PEAK = Axis("modelled peak of the gradient", BYTES, format_bytes)
AGAIN = Axis("FLOPs recomputed", FLOPS, lambda n: f"{format_flops(n)} recomputed")
_OTHERS = 8
"""How many other plans are shown, in addition to one without a given bound."""


@dataclass(frozen=True, eq=False, repr=False)
class RematPlan(Report, schema="plan_remat"):
    """Where to put checkpoints, what they save, and the resulting figures.

    >>> plan = jaxviz.plan_remat(loss, params, x)  # memory="40GiB" for a bound
    >>> plan.before, plan.after
    >>> gradient = jax.grad(plan.apply(loss))

    Args:
      function: its name.
      bound: the bound that was given, such as 'peak within 40.0 GiB'.
      saved: the values that are saved by name; None for a plan that leaves the function without checkpoints, or as it
        is written.
      before: the figures of the function as written.
      after: its figures with the plan.
      everything: its figures without any checkpoint.
      notes: remarks, a sentence each.
      trial: what was derived and measured; without regions if the function is as written, or without checkpoints.
      budget: bytes that the residuals may take; those that they do take if no bound was given for them.
      most_work: FLOPs that may be recomputed; None if no bound was given for them.
      most_peak: bytes of the modelled peak; None if no bound was given for it.
      compiled: XLA's figures of the function as written and with the plan, if the bound is of the compiled peak;
        otherwise None.
      in_branches: whether these are those with each checkpoint in a branch; `apply` and `code` then do that by default.
    """

    function: str
    bound: str
    saved: tuple[Saved, ...] | None
    before: Trade
    after: Trade
    everything: Trade
    notes: tuple[str, ...]
    _search: Search = field(repr=False)
    trial: Trial = field(repr=False)
    budget: int = 0
    most_work: int | None = None
    most_peak: int | None = None
    compiled: tuple[CompiledFigures, CompiledFigures] | None = None
    in_branches: bool = False

    @property
    def regions(self) -> tuple[Region, ...]:
        """The places with a checkpoint: calls of functions, bodies of scans, or the function itself."""
        return self.trial.form.regions

    @property
    def peak_nbytes(self) -> int:
        """The modelled peak memory of the gradient with this plan, including arguments and results; see `memory`."""
        return self.after.peak_nbytes

    @property
    def saved_nbytes(self) -> int:
        """Bytes that the gradient saves with this plan, without its arguments."""
        return self.after.saved_nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of the residuals that JAX saves with this plan, including arguments and constants."""
        return self.after.nbytes

    @property
    def flops(self) -> int:
        """FLOPs beyond those of the function without checkpoints."""
        return self.after.flops

    @property
    def chunk(self) -> int:
        """The number of iterations of a scan in one checkpoint, as a scan of their own; 1 if each iteration has its own
        checkpoint."""
        return self.trial.form.chunk

    @property
    def policy(self) -> str:
        """The policy of JAX that chooses the saved values, by its name in `jax.checkpoint_policies`; '' if they are
        saved by name."""
        return self.trial.form.policy

    @property
    def offloaded(self) -> int:
        """Bytes of the residuals that are offloaded to the host's memory."""
        return self.after.offloaded

    @property
    def transfer_seconds(self) -> float:
        """The seconds for moving them there and back, at the given bandwidth."""
        offload = self._search.offload
        return offload.seconds(self.offloaded) if offload is not None else 0.0

    @cached_property
    @deep_stack
    def front(self) -> tuple[Trade, ...]:
        """The best trade-offs between peak and work that were found, the lowest peak first; computed when first
        read."""
        self._search.samples()
        return self.outline

    @property
    def outline(self) -> tuple[Trade, ...]:
        """The best trade-offs among the plans computed so far, as a notebook shows them."""
        trades = [*self._search.measured_trades, self.before, self.after, self.everything]
        return best_trades(trades, lambda t: t.peak_nbytes, lambda t: t.work)

    def apply(self, f: Callable[..., Any], in_branches: bool | None = None) -> Callable[..., Any]:
        """Returns the function with the checkpoints of this plan: plain JAX, for arguments of the planned types.

        Args:
          f: the function that was planned.
          in_branches: whether each checkpoint outside of a loop is in a branch of a `lax.cond` that is always taken. On
            some backends XLA undoes the other ones. By default they are if `verify` has found that only this holds.

        Raises:
          TypeError: when called with arguments of a different structure or type.
          ValueError: when called with a different value for an argument that is not an array.
        """
        if in_branches is None:
            plan, in_branches = self._holding
            return plan.apply(f, in_branches)
        if self.after is self.before:
            return f
        form, program = self.trial.form, self.trial.program
        if form.regions and not form.policy:
            words = names_of(self._search, form)
            program = self._search.planned(form, lambda _, v: words[v])
        return self._search.call.of(self._function(put_in_branches(program) if in_branches else program, f), f)

    def _function(self, program: Program, f: Callable[..., Any]) -> Callable[..., Any]:
        """The planned function, of flat arrays, with the program to differentiate."""
        step, call = self._search.step, self._search.call
        if step is None:
            return lambda *inputs: jax.tree.unflatten(call.out_tree, as_function(program)(*inputs))

        def planned(*inputs: Any) -> Any:
            with taking_gradient_of(program, step):
                return call.of_arrays(f)(*inputs)

        return planned

    def code(self, in_branches: bool | None = None) -> Diff:
        """Returns the changes to make in your source: a diff for `git apply`, after comments with the resulting
        figures, which are measured by deriving the function with the changes in place. It is a `str`, which a notebook
        shows as a diff.

        A name covers all values that its expression computes, and some values, such as those inside a library's
        function, have no expression that can be named. So the code is the best plan that can be written in your source
        within the same bound; the comments say where it differs.

        Args:
          in_branches: see `apply`.
        """
        if self.after is self.before:
            return Diff(f"# {self.function} fits as written: no changes")
        if in_branches is None:
            plan, in_branches = self._holding
            return plan.code(in_branches)
        return Diff((self._in_branches if in_branches else self.written).text)

    def verify(self) -> Verification:
        """Compiles the gradient for the default backend, as written and with the plan, and compares both with the
        model.

        If XLA does not follow the plan, `.beside` of the result shows the model beside the compiled program. If XLA
        undoes the plan, but not with each checkpoint in a branch, `apply` and `code` do that from now on.

        Raises:
          the errors of compiling.
        """
        search = self._search
        before, after = (figures_of(search, program) for program in (search.derivation.primal, self.program))
        modelled = (self.before, self.after)
        is_unrolled = search.is_unrolled(self.regions)
        verification = Verification(self.function, jax.default_backend(), before, after, modelled, is_unrolled)
        if not verification.happened and is_unrolled and verification.is_undone:
            instead = self._at_calls if search.root in self.regions else self
            if instead is not None:
                verification = replace(
                    verification,
                    in_branches=figures_of(search, instead.program, True),
                    instead=None if instead is self else instead,
                )
        if (not verification.happened and self.regions) or verification.differs:
            verification = replace(verification, beside=search.modelled(self.trial).beside())
        search.verified[self._key] = verification
        return verification

    @property
    def verified(self) -> Verification | None:
        """What `verify` returned; None if the plan was not verified yet."""
        return self._search.verified.get(self._key)

    @property
    def _key(self) -> Hashable:
        return self.trial.form.key if self.regions else self.after is self.before

    @property
    def program(self) -> Program:
        """The function with the plan."""
        return self.trial.program

    @property
    def _at_calls(self) -> RematPlan | None:
        """The best plan found with checkpoints around calls that has about the same peak, or the lowest; None if there
        is none."""
        search = self._search
        there = [t for regions in search.sets if search.root not in regions for t in search.trials_around(regions)]
        low = [t for t in there if t.trade.peak_nbytes <= (1 + NEAR) * self.peak_nbytes]
        best = min(low, key=by_work) if low else min(there, key=by_peak, default=None)
        if best is None:
            return None
        return replace(self, saved=saved_by(search, best.form), after=best.trade, notes=(), trial=best)

    @property
    def _holding(self) -> tuple[RematPlan, bool]:
        """The plan in the form that XLA does not undo, as far as that is known, and whether this is the one with
        branches."""
        verified = self.verified
        if self.compiled is not None or verified is None or not verified.holds_in_branches:
            return self, self.in_branches
        return verified.instead or self, True

    @cached_property
    @deep_stack
    def written(self) -> Written:
        """The diff of `code`, with the changed files and the resulting figures."""
        return self._write(False)

    @property
    def coded(self) -> CompiledFigures | None:
        """XLA's figures with what `code` writes, which may be another plan; None if the bound is not of the compiled
        peak."""
        if self.compiled is None:
            return None
        written = self._in_branches if self.in_branches else self.written
        trial = written.trial if written.files and written.trial is not None else self.trial
        return figures_of(self._search, trial.program, self.in_branches)

    @cached_property
    @deep_stack
    def _in_branches(self) -> Written:
        return self._write(True)

    def _write(self, in_branches: bool) -> Written:
        limit = self.budget if self.bound.startswith("residuals") else None
        limits = Limits(limit, self.most_work, self.most_peak)
        return write_plan(self._search, self.trial if self.regions else None, limits, in_branches)

    @property
    def summary(self) -> str:
        """plan for the gradient of `loss` in `params`, peak within 1.0 MiB: peak 4.2 MiB → 0.9 MiB, saves …, recomputes
        …."""
        about = f"the {self._search.plain.about}{self.bound and f', {self.bound}'}"
        if self.compiled is not None:
            peak = _arrow(*(c.peak_nbytes for c in self.compiled))
            modelled = _arrow(self.before.peak_nbytes, self.after.peak_nbytes)
            branches = ", with each checkpoint in a branch" if self.in_branches else ""
            return f"plan for {about}{branches}: compiled peak {peak} (modelled {modelled}), {self._figures}"
        verified = self.verified
        if verified is None or verified.after is verified.before:
            return f"plan for {about}: peak {_arrow(self.before.peak_nbytes, self.after.peak_nbytes)}, {self._figures}"
        plan, in_branches = self._holding
        modelled = f"modelled {_arrow(plan.before.peak_nbytes, plan.after.peak_nbytes)}"
        peak = (
            f"compiled peak {_arrow(verified.before.peak_nbytes, verified.held.peak_nbytes)} ({modelled}), "
            f"{plan._figures}"
        )
        if in_branches:
            return (
                f"plan for {about}, with each checkpoint in a branch, since XLA on {verified.backend} undoes it "
                f"elsewhere: {peak}"
            )
        undone = f", which XLA on {verified.backend} undoes" if verified.is_undone else ""
        return f"plan for {about}{undone}: {peak}"

    @property
    def _figures(self) -> str:
        """`saves 12.1 MiB → 4.0 MiB, recomputes 2.9 MFLOP; a checkpoint around …`."""
        saves = f"saves {_arrow(self.before.saved_nbytes, self.after.saved_nbytes)}"
        if not self.regions and self.after is self.before:
            return f"{saves}; no changes"
        return f"{saves}, recomputes {self._work}{self._moves}{self._does}"

    @property
    def _moves(self) -> str:
        """`, offloads 3.0 GiB to the host's memory, 129 ms there and back at 50 GB/s`."""
        offload = self._search.offload
        return f", {offload.described(self.offloaded)}" if offload is not None and self.offloaded else ""

    @property
    def around(self) -> str:
        """`32 calls of block`."""
        around = " and ".join(r.described for r in self.regions)
        return f"{around}, and around each {self.chunk} iterations of it" if self.chunk > 1 else around

    @property
    def _does(self) -> str:
        """`; a checkpoint around 32 calls of block, saving 3 values`."""
        if not self.regions:
            return "; its checkpoints are removed"
        values = self.saved or ()
        n_moved = sum(s.offloaded for s in values)
        saved = f"saving {counted(len(values) - n_moved, 'value')}" if len(values) > n_moved else "saving nothing"
        moved = f", offloading {counted(n_moved, 'value')}" if n_moved else ""
        policy = f" with the policy {self.policy}" if self.policy else ""
        return f"; a checkpoint around {self.around}{policy}, {saved}{moved}"

    @property
    def _work(self) -> str:
        """`3.1 MFLOP (0.2 %) and 4,096 transcendentals (tanh)`."""
        after = self.after
        return work_text(after.flops, after.transcendentals, self._share(after.flops), listed(self.transcendentals))

    @cached_property
    def transcendentals(self) -> Mapping[str, int]:
        """The number of recomputed transcendentals, such as exponentials and sines, by primitive; XLA does not count
        them as FLOPs."""
        again = transcendentals_of(self.trial.derivation) - transcendentals_of(self._search.plain)
        return dict(again.most_common())

    def _chart(self) -> TradeOff:
        marks = [(self.before.peak_nbytes, self.before.flops, "as written", "no checkpoints")]
        if self.after is not self.before:
            marks.append((self.peak_nbytes, self.flops, "this plan", "plan"))
        line = [(t.peak_nbytes, t.flops) for t in self.outline]
        return TradeOff(marks, line, f"plans for {self.function}", PEAK, AGAIN, "the best plans")

    def _parts(self) -> Iterator[str | Table]:
        groups = grouped(self.saved or (), lambda s: (s.repeats, s.type, s.location, s.library, s.offloaded))
        groups.sort(key=lambda g: -sum(s.nbytes for s in g))
        rows = [
            (
                repeated(len(g), g[0].type), format_bytes(sum(s.nbytes for s in g)), short_location(g[0].location),
                in_library(f"`{alike([s.label for s in g])}`", g[0].library),
                *(["the host" if g[0].offloaded else "the device"] if self.offloaded else []),
            )
            for g in groups
        ]  # fmt: skip
        more = lambda n: f"and {format_bytes(sum(s.nbytes for g in groups[n:] for s in g))} in {len(groups) - n:,} more"
        where = [("saved on", "<")] if self.offloaded else []
        yield Table(
            ("type", "bytes", "line", "saved", *(h for h, _ in where)),
            rows,
            "<><<" + "".join(a for _, a in where),
            shown=SHOWN,
            more=more,
        )
        if not self.bound:
            yield from self._trade()
        yield from self.notes

    def _trade(self) -> Iterator[Table]:
        """The figures of other plans, from the highest peak to the lowest; for a plan without a given bound."""
        known = {self.everything: "without checkpoints", self.before: "as written", self.after: "this plan"}
        others = [t for t in self.outline[::-1] if t not in known]
        few = [others[i] for i in evenly(0, len(others) - 1, min(_OTHERS, len(others)))] if others else []
        trades = sorted({*few, self.after, self.before, *self.outline[-1:]}, key=lambda t: (-t.peak_nbytes, t.work))
        if trades[0].peak_nbytes - trades[-1].peak_nbytes < WORTH * trades[0].peak_nbytes:
            return
        figures = {t: (format_bytes(t.peak_nbytes), format_bytes(t.saved_nbytes), self._share(t.flops)) for t in trades}
        # Of plans that read alike, a choice among them would be none.
        named = {row: name for t, row in figures.items() if (name := known.get(t))}
        rows = dict.fromkeys((*row, known.get(t) or named.get(row, "")) for t, row in figures.items())
        yield Table(
            ("peak", "saves", "extra FLOPs", ""),
            list(rows),
            ">>><",
            "Other plans; use memory=, work= or residuals= to choose one:",
            shown=None,
        )

    def _share(self, flops: int) -> str:
        return percent(100 * flops / max(self._search.plain_flops, 1))

    def plot(self, ax: Axes | None = None) -> Figure:
        """Plots the plan among the best ones, peak against FLOPs recomputed; a `matplotlib` figure.

        Args:
          ax: the matplotlib axes to draw in; by default those of a new figure.
        """
        _ = self.front  # computes more of the best plans
        return super().plot(ax)

    _TRADE = ("peak_nbytes", "saved_nbytes", "nbytes", "flops", "offloaded")
    _data = (
        "function", "bound", "peak_nbytes", "saved_nbytes", "nbytes", "flops", "offloaded", "transfer_seconds",
        "transcendentals", "notes",
        ("saved", ("name", "expression", "label", "type", "nbytes", "location", "library", "offloaded")),
        "checkpoints=_checkpoints",
        ("before", _TRADE), ("after", _TRADE), ("everything", _TRADE), "compiled",
    )  # fmt: skip

    @property
    def _checkpoints(self) -> list[dict[str, str | None]]:
        return [{"around": r.described, "location": str(r.location) if r.location else None} for r in self.regions]


def _arrow(before: int, after: int) -> str:
    """`4.2 MiB → 0.9 MiB`."""
    return format_bytes(before) if before == after else f"{format_bytes(before)} → {format_bytes(after)}"
