"""The plans of a function: which regions could get checkpoints, what these could save, and what that comes to.

Estimates select the plans to try. The figures of a plan are measured: the planned function is derived, and its memory
modelled as in `jaxviz.memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from itertools import chain, combinations
from typing import Any

from jaxviz.analysis.budgets import evenly
from jaxviz.analysis.layouts import Layouts, find_layouts, layouts_of_step
from jaxviz.analysis.passes import Passes
from jaxviz.analysis.training_step import TrainingStep
from jaxviz.derivation import Derivation
from jaxviz.features.memory.timeline import MemoryTimeline, memory, peak_of
from jaxviz.features.remat.call import Call
from jaxviz.features.remat.checkpointing import checkpointed, makes_references, refused_in_checkpoint
from jaxviz.features.remat.choices import Part
from jaxviz.features.remat.context import Context
from jaxviz.features.remat.forms import ON_HOST, Form, Trade, Trial, by_peak, by_work, work_of
from jaxviz.features.remat.graph import Graph, Sizes, derive_like, distinct, named_values
from jaxviz.features.remat.offload import Offload
from jaxviz.features.remat.pasted import lengths_of_chunks
from jaxviz.features.remat.regions import Region, Spot, find_regions
from jaxviz.features.remat.set_policy import as_policies_save, trials_under_policies
from jaxviz.features.remat.tuning import ALTERNATIVES, NAMES, NEAR, SMALL, TRIALS, WORTH
from jaxviz.features.residuals.saved_bytes import saved_values
from jaxviz.higher_order import is_scan
from jaxviz.ir import compat
from jaxviz.ir.syntax import Equation, Program, Var
from jaxviz.progress import each


class Search:
    """Plans for one function, measured on demand.

    Args:
      derivation: of the function as written.
      recompute_collectives: whether collectives may be recomputed.
      offload: how values are moved to the host; None without offloading.
    """

    def __init__(self, derivation: Derivation, recompute_collectives: bool, offload: Offload | None = None):
        self.offload = offload
        self.derivation = derivation
        self.step: TrainingStep | None = derivation.step
        self.context = Context(derivation, self._layouts)
        self.flat = self.context.flat
        self.call = Call.planned(derivation)
        self.plain = derive_like(self.flat, derivation) if self.context.written else derivation
        self.plain_work = work_of(self.plain)
        self.plain_flops = self.plain_work.flops
        self.recompute_collectives = recompute_collectives
        self.trials: dict[Hashable, Trial] = {}
        self.compiled: dict[tuple[Program, bool], Any] = {}
        """XLA's figures of the function and of plans for it, without and with branches; see `verify.figures_of`."""
        self.verified: dict[Hashable, Any] = {}
        """By the key of a plan what was said about it when it was verified."""
        self._lowered = 0
        """The number of equations of the plans whose layouts were determined."""
        self._parts: dict[Region, list[Part] | None] = {}
        self._forms: dict[Hashable, list[Form]] = {}
        self.as_policies_save = cache(partial(as_policies_save, self))
        self.is_inside = cache(Region.is_inside)

    @cached_property
    def written(self) -> Trade:
        """The function as it is."""
        return self.measured(self.derivation, is_final=True)

    @cached_property
    def opened(self) -> Trade:
        """The function without its checkpoints."""
        return self.measured(self.plain, is_final=True) if self.context.written else self.written

    @cached_property
    def refused(self) -> str:
        """Why no checkpoint can be around the whole function; '' if one can."""
        why = refused_in_checkpoint(self.flat.equations)
        if why or not makes_references(self.flat.equations):
            return why
        try:
            _ = self.whole
        except ValueError as error:
            return str(error)
        return ""

    @cached_property
    def makers(self) -> Mapping[Var, Equation]:
        """The equation that computes each value, also in loops."""
        return {v: e for _, e in self.flat.walk() for v in e.outvars}

    def called(self, value: Var) -> str:
        """The name of a value in the function as written; the operation if it has none."""
        maker = self.makers[value]
        return self.context.naming.name(maker, (), maker.outvars.index(value)) or str(maker.primitive.name)

    @cached_property
    def as_they_are(self) -> list[Trial]:
        """The function without its checkpoints, if that does not raise the peak, and as it is written: plans that put
        none anywhere."""
        written = Trial(Form((), ()), {}, self.derivation.primal, self.derivation, self.written)
        opened = Trial(Form((), ()), {}, self.flat, self.plain, self.opened)
        opens = self.context.written and self.opened.peak_nbytes <= self.written.peak_nbytes
        return [opened, written] if opens else [written]

    @property
    def graph(self) -> Graph:
        """What could be saved of the whole function."""
        return self.whole.graph

    @cached_property
    def whole(self) -> Part:
        """What one checkpoint around the function could save."""
        return self.context.part(self.root.alike[0], self.recompute_collectives, self.offload)

    @cached_property
    def counted(self) -> Part:
        """The same with the arguments that it keeps counted."""
        return self.whole.counting_inputs()

    @property
    def least(self) -> int:
        """The fewest bytes of residuals of one checkpoint around the function."""
        return self.counted.fewest.nbytes

    @property
    def measured_trades(self) -> list[Trade]:
        """The figures measured so far."""
        return [t.trade for t in self.trials.values()]

    def form_within(self, limit: int, part: Part | None = None) -> Form:
        """One checkpoint around the function, with the fewest FLOPs within a limit of bytes of residuals, or else the
        fewest bytes.

        Args:
          limit: bytes, including arguments.
          part: what it could save; by default every value.
        """
        part = part or self.whole
        counted = part.counting_inputs()
        choice = counted.within(limit) or counted.fewest
        return Form((self.root,), ((part, part.choice(part.names_of(choice), part.moved_of(choice))),))

    def within(self, limit: int) -> Trial | None:
        """The same, measured; None if there is none."""
        return None if self.refused or limit < self.least else self.trial(self.form_within(limit))

    def modelled(self, trial: Trial | None) -> MemoryTimeline:
        """The memory over time with a plan, or as written."""
        return memory(self.derivation if trial is None else replace(trial.derivation, placed=self.derivation.placed))

    def measured(self, derivation: Derivation, is_final: bool = False) -> Trade:
        """The figures of a derivation.

        Args:
          derivation: of the function, with checkpoints or without.
          is_final: whether XLA's layouts are determined for it, even if it is large.
        """
        residuals = distinct(derivation.linearized.residuals)
        sizes = self.context.sizes
        if sizes.is_per_device and (is_final or self._lowered <= SMALL):
            # Of 30 plans, if they are small enough; otherwise the shardings without checkpoints are used until a plan
            # is chosen.
            self._lowered += max(sum(1 for _ in derivation.primal.walk()), SMALL // 30)
            layouts_and_parts = self._layouts(derivation)
            if layouts_and_parts is not None:
                layouts, parts = layouts_and_parts
                sizes = Sizes(layouts, dict(zip(derivation.primal.invars, parts, strict=True)))
        sizes_of = sizes.residuals(derivation)
        moved = sum(sizes_of[a] for a in residuals if compat.is_on_host(a.aval))
        nbytes = sum(sizes_of[a] for a in residuals) - moved
        saved = sum(sizes_of[a] for a in distinct(saved_values(derivation)) if not compat.is_on_host(a.aval))
        transfer = int(self.offload.flops_per_byte * moved) if self.offload is not None else 0
        work, plain = work_of(derivation), self.plain_work
        again = work.flops - plain.flops, work.transcendentals - plain.transcendentals
        return Trade(peak_of(derivation, sizes.layouts), nbytes, again[0], moved, transfer, saved, again[1])

    def _layouts(self, opened: Derivation) -> tuple[Layouts, Sequence[int]] | None:
        """The shardings of the gradient, within its step, and over how many devices each input of the function is
        sharded."""
        if self.step is None:
            layouts = find_layouts(opened)
            return None if layouts is None else (layouts, layouts.arguments)
        step = self.step.opened(Passes.of(opened))
        layouts = layouts_of_step(step.program, self.step.placed)
        call = next(iter(step.forward))  # the calls of one function are alike
        return None if layouts is None else (layouts, [layouts.values.get(a, 1) for a in call.invars])

    def is_unrolled(self, regions: Sequence[Region]) -> bool:
        """Whether there are regions, and all of them are outside of any loop."""
        return bool(regions) and not any(r.is_body or s.program is not self.flat for r in regions for s in r.spots)

    def finally_measured(self, trial: Trial) -> Trade:
        """The figures of the chosen plan."""
        return self.measured(trial.derivation, is_final=True) if self.context.sizes.is_per_device else trial.trade

    def trial(self, form: Form, groups: Mapping[Var, Sequence[Var]] | None = None) -> Trial:
        """A form, derived and measured.

        Args:
          form: the form.
          groups: for a value all those that share its name in the source.
        """
        key: Hashable = form.key
        names: dict[Var, str] = {}
        if groups is not None:
            names = form.names(self.name)
            names |= {same: name for v, name in names.items() for same in groups[v]}
            key = key, frozenset(names.items())
        if key not in self.trials:
            names = names or form.names(self.name)
            program = self.planned(form, self.name, names)
            derivation = derive_like(program, self.plain)
            self.trials[key] = Trial(form, names, program, derivation, self.measured(derivation))
        return self.trials[key]

    def planned(
        self, form: Form, name_of: Callable[[Part, Var], str], names: Mapping[Var, str] | None = None
    ) -> Program:
        """The function with the checkpoints of a form, and what it saves under the names given to it."""
        names = form.names(name_of) if names is None else names
        entering = form.entering(name_of)
        on_host = [name for name in [*names.values(), *entering.values()] if self.is_offloaded(name)]
        return checkpointed(self.flat, form.regions, names, entering, frozenset(on_host), form.chunk)

    @cached_property
    def under_policies(self) -> list[Trial]:
        """The function under JAX's policies, around all of it and on its own checkpoints."""
        trials = {t.form.key: t for t in each(lambda t: t, trials_under_policies(self), "policies")}
        self.trials.update(trials)
        return list(trials.values())

    def tried(self, form: Form) -> Trial | None:
        """The trial of a form, if it was tried."""
        return self.trials.get(form.key)

    def trials_around(self, regions: Sequence[Region]) -> list[Trial]:
        """The trials of forms around some regions, without chunks."""
        return [t for t in self.trials.values() if t.form.regions == tuple(regions) and t.form.chunk == 1]

    @staticmethod
    def is_offloaded(name: str) -> bool:
        """Whether values with a name are moved to the host in a trial."""
        return name.endswith(ON_HOST)

    @staticmethod
    def name(part: Part, value: Var) -> str:
        return f"saved_{id(part.body)}_{id(value)}"

    # --- regions ---------------------------------------------------------------------------------------------------

    @cached_property
    def root(self) -> Region:
        spot = Spot(self.flat, 0, len(self.flat.equations))
        return Region(self.flat.name, None, None, ((spot,),))

    @cached_property
    def regions(self) -> list[Region]:
        """Regions whose checkpoints would save a share of the residuals, the best first."""
        regions = filter(self.parts, find_regions(self.flat, self.context.stacks))
        saving = [r for r in regions if self._taken_away(r) > NEAR * self.opened.nbytes]
        return sorted(saving, key=lambda r: self.estimate((r,)))

    def times(self, region: Region) -> int:
        """How often a region runs in total."""
        return sum(part.times for part in self.parts(region) or ())

    def parts(self, region: Region) -> list[Part] | None:
        """The parts of a region; None if JAX or jaxviz cannot put a checkpoint around it."""
        if region is self.root:
            return [self.whole]
        if region not in self._parts:
            part = lambda spots: self.context.part(spots, self.recompute_collectives, self.offload)
            try:
                self._parts[region] = list(map(part, region.alike))
            except Exception:
                # An axis is bound outside, an effect must not be repeated, or a custom rule rejects what no tangent
                # reaches.
                self._parts[region] = None
        return self._parts[region]

    def _taken_away(self, region: Region) -> int:
        return sum(part.opened_nbytes - part.fewest.nbytes for part in self.parts(region) or ())

    def estimate(self, regions: Sequence[Region]) -> int:
        """An estimate of the peak with checkpoints around some regions that save nothing: what is kept, plus the
        largest region while it is recomputed."""
        parts = [part for r in regions for part in self.parts(r) or ()]
        largest = max((part.opened_nbytes // part.times_here for part in parts), default=0)
        return self.opened.nbytes - sum(map(self._taken_away, regions)) + largest

    @cached_property
    def sets(self) -> list[tuple[Region, ...]]:
        """Sets of regions to try, the most promising first."""
        sets = self.sets_of(self.regions)
        if self.context.written and all(self.parts(r) for r in self.context.written):
            sets.append(tuple(self.context.written))
        # A single checkpoint around the whole function recomputes everything at once, unless XLA delays it.
        return sets or ([] if self.refused else [(self.root,)])

    def sets_of(self, regions: Sequence[Region]) -> list[tuple[Region, ...]]:
        """Sets of some regions."""
        sets: dict[frozenset[Region], tuple[Region, ...]] = {}
        for first in regions[:ALTERNATIVES]:
            chosen: tuple[Region, ...] = (first,)
            for other in regions:
                if any(other.overlaps(r) for r in chosen):
                    continue
                if self.estimate((*chosen, other)) < (1 - NEAR) * self.estimate(chosen):
                    chosen = (*chosen, other)
            sets.setdefault(frozenset(chosen), chosen)
        return sorted(sets.values(), key=self.estimate)

    @cached_property
    def nested(self) -> list[tuple[Region, ...]]:
        """Sets with a checkpoint around a region and around regions inside it, which then save nothing beyond the outer
        one. JAX refuses those that make references."""
        inside = [r for r in self.regions if not _makes_references(r)]
        pairs: list[tuple[Region, ...]] = [
            (outer, inner) for outer in self.regions for inner in inside if self.is_inside(inner, outer)
        ]
        return sorted(pairs, key=lambda pair: self.estimate(pair[:1]))[:ALTERNATIVES]

    # --- saved values ---------------------------------------------------------------------------------------------

    @cached_property
    def own_names(self) -> dict[str, list[Var]]:
        """The values that the function names itself."""
        return named_values(self.flat)

    def path(self, regions: Sequence[Region], candidates: Mapping[str, Sequence[Var]] | None = None) -> list[Form]:
        """What a checkpoint around these could save, from the fewest bytes to the fewest FLOPs, the most valuable steps
        first.

        Args:
          regions: the regions.
          candidates: by name the values that are saved together; by default each by itself.
        """
        key = tuple(regions), id(candidates)
        if key in self._forms:
            return self._forms[key]
        parts = self.outer_parts(regions, candidates)
        at = dict.fromkeys(range(len(parts)), 0)
        steps = sorted(
            ((less.work - more.work) / max(more.nbytes - less.nbytes, 1), -k, i)
            for i, part in enumerate(parts)
            for k, (less, more) in enumerate(zip(part.choices, part.choices[1:], strict=False))
        )
        form = lambda: Form(tuple(regions), tuple((part, part.choices[at[i]]) for i, part in enumerate(parts)))
        forms = [form()]
        for _, _, i in reversed(steps):
            at[i] += 1
            forms.append(form())
        if any(candidates is own for own in (None, self.own_names)):
            self._forms[key] = forms
        return forms

    def fewest(self, regions: Sequence[Region]) -> Form:
        """The first form of `path`, with the fewest bytes, found without the others."""
        return Form(tuple(regions), tuple((part, part.fewest) for part in self.outer_parts(regions)))

    def outer_parts(
        self, regions: Sequence[Region], candidates: Mapping[str, Sequence[Var]] | None = None
    ) -> list[Part]:
        """The parts of some regions except those inside others, which save nothing more.

        All checkpoints have one policy, so if one of them cannot have names, none has.

        Args:
          regions, candidates: see `path`.
        """
        outer = [r for r in regions if not any(self.is_inside(r, other) for other in regions)]
        parts = [part for r in outer for part in self.parts(r) or ()]
        parts = [part.without_names() for part in parts] if any(part.graph.is_nameless for part in parts) else parts
        return parts if candidates is None else [part.restricted(candidates) for part in parts]

    def outside(self, form: Form) -> int:
        """Bytes that are kept besides the inputs of a checkpoint around some regions, as far as known."""
        return self.opened.nbytes - sum(part.opened_nbytes for part, _ in form.choices)

    def samples(self) -> list[Trial]:
        """Plans along the whole trade-off."""
        forms: list[Form] = []
        for regions in self.sets:
            path = self.path(regions)
            forms += [path[i] for i in evenly(0, len(path) - 1, min(TRIALS, len(path)))]
            forms += [replace(form, chunk=n) for n in self.chunks_of(regions)[:1] for form in (path[0], path[-1])]
        return [*each(self.trial, forms, "plans"), *self.under_policies]

    def leanest(self) -> Trial:
        """The plan with the lowest peak among those that save as little as possible."""
        forms = [self.fewest(regions) for regions in (*self.sets, *self.nested)]
        forms += [replace(f, chunk=n) for f in forms for n in self.chunks_of(f.regions)[:1]]
        return min(each(self.trial, forms, "plans"), key=by_peak)

    def measured_within(self, room: Callable[[Trade], int], at_calls: bool = False) -> Trial | None:
        """The plan with the fewest FLOPs that fits, of those measured so far.

        Args:
          room: see `choose.fastest`.
          at_calls: whether only plans without a checkpoint around the whole function count.
        """
        some = (t for t in self.plans if not (at_calls and self.root in t.form.regions))
        return min((t for t in some if room(t.trade) >= 0), key=by_work, default=None)

    @property
    def plans(self) -> Iterator[Trial]:
        """The plans measured so far, without those whose values are grouped by their names in the source."""
        return (t for key, t in self.trials.items() if key == t.form.key)

    def chunks_of(self, regions: Sequence[Region]) -> list[int]:
        """Possible chunk lengths, if the body of one scan is among some regions and its carries take enough memory to
        matter. JAX refuses a checkpoint in another if it makes references."""
        inside = [r for r in regions if r.is_body]
        if len(inside) != 1 or len(list(inside[0].spots)) != 1 or _makes_references(inside[0]):
            return []
        nbytes = sum(part.fewest.nbytes for part in self.parts(inside[0]) or ())
        scan = next(iter(inside[0].spots)).scan
        return lengths_of_chunks(scan) if is_scan(scan) and nbytes > NEAR * self.opened.peak_nbytes else []

    def of_names(self, regions: tuple[Region, ...]) -> list[Form]:
        """The plans that save some of the names that the function has, if these are few; the fewest bytes first."""
        key = regions, "sets of names"
        if key not in self._forms:
            parts = self.outer_parts(regions, self.own_names)
            names = [n for n in self.own_names if any(n in part.graph.candidates for part in parts)]
            sizes = range(len(names) + 1) if len(names) <= NAMES else ()
            sets = chain.from_iterable(combinations(names, k) for k in sizes)
            forms = [Form(regions, tuple((part, part.choice(some)) for part in parts)) for some in sets]
            self._forms[key] = sorted(forms, key=lambda form: (form.nbytes, form.work))
        return self._forms[key]

    def is_little(self, flops: int) -> bool:
        """Whether this much work is too little to be worth another checkpoint."""
        return flops <= WORTH * self.plain_flops


def _makes_references(region: Region) -> bool:
    return any(makes_references(spot.equations) for spot in region.spots)
