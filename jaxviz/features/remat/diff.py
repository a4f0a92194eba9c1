"""Writes a plan as a diff of the user's source: checkpoints at calls, scans or definitions, and names for the saved
values."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxviz.features.remat.checkpointing import checkpointed
from jaxviz.features.remat.edits import Way, needed_imports
from jaxviz.features.remat.forms import ON_HOST, Form, Trade, Trial, by_peak, by_work
from jaxviz.features.remat.graph import derive_like
from jaxviz.features.remat.layers import layered
from jaxviz.features.remat.libraries import option_of
from jaxviz.features.remat.names import Names, WrittenName, extents_of_values, names_there
from jaxviz.features.remat.pasted import chunks_by_hand, ways_in_branches, ways_in_chunks
from jaxviz.features.remat.regions import Region
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.source import Extent
from jaxviz.features.remat.tuning import ALTERNATIVES, DERIVED, NEAR, is_lower
from jaxviz.features.remat.ways import way_at_callee, way_at_definition, ways_in_step, ways_of
from jaxviz.features.remat.written import BY_HAND, POLICY, Written, not_written, write
from jaxviz.ir.origin import Location
from jaxviz.ir.own_code import owner, package
from jaxviz.ir.syntax import Var
from jaxviz.progress import counting
from jaxviz.report.tables import format_bytes, format_flops, short_location

_RAISES = "The changes that could be written in your source would raise the peak."
_IN_VAIN = "The changes that could be written in your source would lower the peak by less than 1 %."
_UNTRIED = "More edits could be tried: the function is large, and each is measured by deriving it again."
_NOT_THERE = "No edit that was tried puts them there."


@dataclass(frozen=True, slots=True)
class Limits:
    """What was asked for, in bytes of residuals, FLOPs of recomputation and bytes of the modelled peak; None for no
    limit."""

    residuals: int | None = None
    work: int | None = None
    peak: int | None = None

    @property
    def is_peak_alone(self) -> bool:
        """Whether nothing but the peak is limited."""
        return self.residuals is None and self.work is None

    def allow(self, trade: Trade) -> bool:
        """Whether a plan stays within them."""
        limited = (trade.nbytes, self.residuals), (trade.work, self.work), (trade.peak_nbytes, self.peak)
        return all(most is None or figure <= most for figure, most in limited)

    def exceeded_by(self, trade: Trade) -> Iterator[str]:
        """Sentences on the residuals and the work of a plan, if they exceed these."""
        if self.residuals is not None and trade.nbytes > self.residuals:
            yield f"Its residuals exceed the requested {format_bytes(self.residuals)}."
        if self.work is not None and trade.work > self.work:
            yield f"It recomputes more than the requested {format_flops(self.work)}."

    def noted_in(self, code: Written) -> Written:
        """Code that says first that its peak exceeds what was asked for, if it does."""
        if self.peak is None or code.trade is None or code.trade.peak_nbytes <= self.peak:
            return code
        by = format_bytes(code.trade.peak_nbytes - self.peak)
        return code.with_note(f"The code exceeds the requested peak of {format_bytes(self.peak)} by {by}.", at=0)


@counting("trying edits")
def write_plan(search: Search, trial: Trial | None, limits: Limits = Limits(), in_branches: bool = False) -> Written:
    """The code for a plan.

    If one of its checkpoints cannot be written, or does something else where it can be written, the code is the closest
    plan with checkpoints that can.

    Args:
      trial: the plan; None to remove all checkpoints.
      in_branches: whether each checkpoint at a call is in a branch that is always taken.
    """
    return Writer(search).of_plan(trial, limits, in_branches)


def write_chosen(
    search: Search, regions: Sequence[Region], saved: Collection[Var], offloaded: Collection[Var], trade: Trade
) -> Written:
    """The code for checkpoints around given regions, and for the values that they save, of which some are moved to the
    host.

    A name in the source applies to all values of its expression: expressions get one if at least half of their values
    are to be saved.
    """
    return Writer(search).of_setting(regions, saved, offloaded, trade)


class Writer:
    """Writes plans for one function, each checkpoint in the first way that does what it should, as far as that was
    measured."""

    def __init__(self, search: Search):
        self.search = search
        self.tried: list[Written] = []
        self._left: dict[Region, list[tuple[Way, ...]]] = {}
        self._alone: dict[Region, Written] = {}
        self._in_vain: set[Region] = set()
        """The regions with ways that do something else."""
        self._is_cut = False

    # --- plans --------------------------------------------------------------------------------------------------------

    def of_plan(self, trial: Trial | None, limits: Limits, in_branches: bool) -> Written:
        """See `write_plan`."""
        search, written = self.search, self.search.written.peak_nbytes
        if trial is None:
            return write(search, search.opened, {}, [], [])
        while True:
            code, best = self.closest(trial, limits, in_branches)
            self.tried.append(code)
            peak = code.trade.peak_nbytes if code.trade is not None else 0
            if (code.is_as_planned and peak <= written) or best is None or not self.go_on(best.form.regions):
                break
        is_in_vain = limits.is_peak_alone and is_lower(trial.trade.peak_nbytes, written) and not is_lower(peak, written)
        is_shown = code.files and not (peak > written or code.fails or is_in_vain)
        highest = int((1 + NEAR) * trial.trade.peak_nbytes) if limits.peak is None else limits.peak
        is_free = limits.is_peak_alone and not in_branches and (code.files or code.trade is None)
        bound = (peak if peak > highest else 0) if is_shown else written
        other = self._lower_than(bound) if is_free else None
        if other is not None:
            has = f"peak of {format_bytes(trial.trade.peak_nbytes)} and recomputes {trial.trade.recomputes}"
            code, best = other.with_note(f"plan.apply checkpoints something else: it has a {has}."), None
        elif code.files and not is_shown:
            why = _RAISES if peak > written else _IN_VAIN if is_in_vain else _NOT_THERE
            code, best = self._not_written(trial, why), None
        code = limits.noted_in(code)
        return replace(code.with_note(_UNTRIED) if self._is_cut else code, trial=best)

    def closest(self, trial: Trial, limits: Limits, in_branches: bool) -> tuple[Written, Trial | None]:
        """The code for a plan in the ways that are taken now, and the plan that it comes to."""
        search = self.search
        ways: dict[Region, Sequence[Way]] = {r: self.ways(r) for r in trial.form.regions}
        elsewhere = [r for r in trial.form.regions if not ways[r]]
        if trial.form.policy and not elsewhere:
            notes = _in_branches(ways) if in_branches else []
            return write(search, trial.trade, ways, [], notes, builtin=trial.form.policy), trial
        notes = [self.why_not(region) for region in elsewhere]
        # One of several checkpoints may be enough, where nothing in them can be named and so all is recomputed.
        sets = list(dict.fromkeys([trial.form.regions, *((r,) for r in trial.form.regions)]))
        if elsewhere:
            ways |= {r: self.ways(r) for r in search.regions}
            sets = search.sets_of([r for r in search.regions if ways[r]])
        if not sets:
            return self._not_written(trial, *notes), None
        extents = extents_of_values(search)
        best = _writable(search, trial, sets, extents.values(), limits)
        is_more = limits.is_peak_alone and best.trade.work > trial.trade.work
        layers = layered(search, best, trial, ways) if is_more else None
        best = layers.trial if layers is not None else best
        if best.trade.peak_nbytes > search.written.peak_nbytes:
            return self._not_written(trial, _RAISES, *notes), None
        if not _is_as_good(best.trade, trial.trade, limits):
            notes.append(
                f"plan.apply can also save values that no name in your source refers to; it has a peak of "
                f"{format_bytes(trial.trade.peak_nbytes)} and recomputes {trial.trade.recomputes}."
            )
        notes += limits.exceeded_by(best.trade)
        if any(part.exchanges_again for part, _ in best.form.choices):
            notes.append(
                "With it, devices exchange values again that plan.apply saves and that cannot be named in the source."
            )
        named = {e: vs for e, vs in extents.items() if not best.names.keys().isdisjoint(vs)}
        is_moved = lambda vs: any(search.is_offloaded(best.names.get(v, "")) for v in vs)
        names = self._named(named, {e for e, vs in named.items() if is_moved(vs)})
        ways = {r: ways[r] for r in best.form.regions}
        if (chunk := best.form.chunk) > 1:
            in_chunks = lambda ways: ways_in_chunks(ways, chunk)
            notes += _adapted(ways, [r for r in ways if r.is_body], in_chunks, lambda r: chunks_by_hand(r, chunk))
        notes += _in_branches(ways) if in_branches else []
        return write(search, best.trade, ways, names, notes, layers), best

    def of_setting(
        self, regions: Sequence[Region], saved: Collection[Var], offloaded: Collection[Var], trade: Trade
    ) -> Written:
        """See `write_chosen`."""
        search = self.search
        mostly = lambda vs, some: 2 * len(set(vs).intersection(some)) >= len(vs)
        extents = {e: vs for e, vs in extents_of_values(search).items() if mostly(vs, saved)}
        moved = {e for e, vs in extents.items() if mostly(vs, offloaded)}
        named = {v: POLICY + ON_HOST * (e in moved) for e, vs in extents.items() for v in vs}
        on_host = [name for name in named.values() if search.is_offloaded(name)]
        program = checkpointed(search.flat, regions, named, offloaded=on_host)
        comes_to = search.measured(derive_like(program, search.plain))
        notes: list[str] = []
        if comes_to != trade:
            figures, as_set = (
                f"a peak of {format_bytes(t.peak_nbytes)} and save {format_bytes(t.saved_nbytes)}, and recompute "
                f"{t.recomputes}"
                for t in (comes_to, trade)
            )
            have = f"have {as_set}" if as_set != figures else "come to the same figures"
            notes.append(f"No name in your source tells some of the switches apart; as set, they {have}.")
        names = self._named(extents, moved)
        while True:
            ways = {r: self.ways(r) for r in regions}
            missing = [f"{self.why_not(r)} It is not in this code." for r in regions if not ways[r]]
            code = write(search, comes_to, ways, names, [*missing, *notes], is_plan=False)
            if code.is_as_planned or not self.go_on(regions):
                return code

    def _named(self, extents: Mapping[Extent, Sequence[Var]], moved: Collection[Extent]) -> list[WrittenName]:
        """Names for some expressions, of which some are moved to the host."""
        words = Names(names_there(self.search.flat))
        return [WrittenName(e, *words.of_extent(self.search, e, vs[0]), e in moved, vs) for e, vs in extents.items()]

    def _not_written(self, trial: Trial, *why: str) -> Written:
        return Written((not_written(trial.trade, self.search), *why), None)

    # --- ways ---------------------------------------------------------------------------------------------------------

    def ways(self, region: Region) -> tuple[Way, ...]:
        """The edits for a region; none if it cannot be written."""
        if region not in self._left:
            self._left[region] = self._all_ways(region)
        return next(iter(self._left[region]), ())

    def _all_ways(self, region: Region) -> list[tuple[Way, ...]]:
        search, call = self.search, self.search.call
        if region is not search.root:
            return ways_of(region, search.context.written)
        there = next((w for w in search.context.written if w.covers(region)), None)
        if there is not None and (ways := ways_of(there, [there])):
            return ways
        stacks = search.context.stacks.values()
        if search.step is not None:
            return [*((way,) for way in ways_in_step(call.name, stacks)), (BY_HAND,)]
        if call.function is None:
            return [(BY_HAND,)]
        return [(way_at_definition(call) or way_at_callee(call, stacks) or BY_HAND,)]

    def go_on(self, regions: Iterable[Region]) -> bool:
        """Takes the next way for regions whose edits, by themselves, do not put a checkpoint around exactly the region.
        False if there are none."""
        wrong = [r for r in regions if self.ways(r) and not self._holds(r)]
        for region in wrong:
            while self.ways(region) and not self._holds(region):
                del self._left[region][0], self._alone[region]
                self._in_vain.add(region)
        return bool(wrong)

    def _holds(self, region: Region) -> bool:
        """Whether the edits do, as far as they may still be tried."""
        # At least the second way to write a checkpoint, after the first as planned and alone.
        most = max(ALTERNATIVES, DERIVED // sum(1 for _ in self.search.flat.walk()))
        if region not in self._alone and len(self.tried) >= most:
            self._is_cut = True
            return True
        code = self.alone(region)
        highest = max(self.search.written.peak_nbytes, self._saving_nothing(region).peak_nbytes)
        return code.is_as_planned and (code.trade is None or code.trade.peak_nbytes <= highest)

    def alone(self, region: Region) -> Written:
        """The code for a checkpoint around a region that saves nothing by name."""
        if region not in self._alone:
            ways = {region: self.ways(region)}
            self._alone[region] = write(self.search, self._saving_nothing(region), ways, [], [])
            self.tried.append(self._alone[region])
        return self._alone[region]

    def _saving_nothing(self, region: Region) -> Trade:
        return self.search.trial(self.search.fewest((region,))).trade

    def _lower_than(self, peak: int) -> Written | None:
        """The code with the lowest peak of all that was tried, if that is clearly lower than another."""
        peaks = [(code.trade.peak_nbytes, code) for code in self.tried if code.files and code.trade is not None]
        lowest, code = min(peaks, key=lambda one: one[0], default=(peak, None))
        return code if is_lower(lowest, peak) else None

    def why_not(self, region: Region) -> str:
        """Why a region cannot be written, a sentence or two."""
        if region.is_written:
            return f"plan.apply changes what the checkpoint of {region.name} saves, {short_location(region.location)}."
        why = " No edit that was tried puts it there." if region in self._in_vain else ""
        frames = next(iter(region.stacks.values()), ())
        # That of the function which scans; none for the function itself.
        code = region.code or (frames[-1][0] if frames else None)
        if code is not None and owner(code.co_filename) == "library":
            why = (
                f" It is inside {package(code.co_filename)}, and no line of your source is known that puts a "
                "checkpoint around it alone."
            )
        option = option_of(region)
        own = f" The library has an option for it: {option}." if option else ""
        return f"No checkpoint can be written around {region.described} in your source.{why}{own}"


def _in_branches(ways: dict[Region, Sequence[Way]]) -> list[str]:
    """Puts each checkpoint outside of a loop into a branch."""
    only = "is not in a branch: only jax.checkpoint at a call can be written that way."
    not_there = lambda region: f"The checkpoint around {region.described} {only}"
    return _adapted(ways, [r for r in ways if not r.is_body], ways_in_branches, not_there)


def _adapted(
    ways: dict[Region, Sequence[Way]], regions: Iterable[Region],
    adapt: Callable[[Sequence[Way]], Sequence[Way] | None], note: Callable[[Region], str],
) -> list[str]:  # fmt: skip
    """Changes the ways of some regions; returns a note for each where that is impossible."""
    changed = {region: adapt(ways[region]) for region in regions}
    ways.update((region, some) for region, some in changed.items() if some is not None)
    return [note(region) for region, some in changed.items() if some is None]


# --- the closest plan with names in the source ------------------------------------------------------------------------


def _is_as_good(trade: Trade, planned: Trade, limits: Limits) -> bool:
    """Whether two plans have about the same figures."""
    is_near = trade.peak_nbytes <= (1 + NEAR) * planned.peak_nbytes and trade.work <= (1 + NEAR) * planned.work
    return is_near and limits.allow(trade)


def _writable(
    search: Search, trial: Trial, sets: Iterable[Sequence[Region]], values: Iterable[Sequence[Var]], limits: Limits
) -> Trial:
    """The plan closest to another one, among those that save only values with a name in the source."""
    candidates = {f"expression_{k}": tuple(some) for k, some in enumerate(values)}
    everywhere = {v: some for some in candidates.values() for v in some}
    form = trial.form
    in_chunks = lambda f: replace(f, chunk=form.chunk) if f.regions == form.regions and form.chunk > 1 else f
    paths = [[*map(in_chunks, search.path(regions, candidates))] for regions in sets]
    forms = [f for path in paths for f in _near(path, form.nbytes)]
    if limits.work is not None:
        forms += [f for path in paths for f in [f for f in path if f.work <= limits.work][:3]]
    if forms[0].regions == (search.root,):
        ((part, _),) = forms[0].choices
        forms.append(search.form_within(trial.trade.nbytes if limits.residuals is None else limits.residuals, part))
    tried = [search.trial(f, everywhere) for f in dict.fromkeys(forms)]
    allowed = [t for t in tried if limits.allow(t.trade)]
    if limits.work is not None and allowed:
        return min(allowed, key=by_peak)
    most_peak = int((1 + NEAR) * trial.trade.peak_nbytes) if limits.peak is None else limits.peak
    highest = min(most_peak, search.written.peak_nbytes)
    low = lambda some: [t for t in some if t.trade.peak_nbytes <= highest]
    fitting = low(allowed) or low(tried)
    return min(fitting, key=by_work) if fitting else min(tried, key=by_peak)


def _near(path: Sequence[Form], nbytes: int) -> Sequence[Form]:
    """The forms of a path with about as many bytes, and the one with the fewest."""
    at = max((i for i, form in enumerate(path) if form.nbytes <= nbytes), default=0)
    return [path[i] for i in sorted({0, *range(max(at - 2, 0), min(at + 2, len(path)))})]


# --- what to write for one checkpoint ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wrapped:
    """An expression of the user's that a checkpoint around a region replaces.

    Args:
      old: the expression, up to the end of its first line; '' if it is a line of its own.
      imports: the statements that the new one needs.
    """

    old: str
    new: str
    location: Location
    imports: tuple[str, ...] = ()


def wrapped_at(search: Search, region: Region) -> tuple[Wrapped, Written] | None:
    """What to write for a checkpoint around a region, at its first place, and the code for all of them; None if no edit
    of the user's source that puts one there was found."""
    writer = Writer(search)
    writer.go_on([region])
    ways = writer.ways(region)
    return (_wrapped(ways[0]), writer.alone(region)) if ways else None


def _wrapped(way: Way) -> Wrapped:
    edits = sorted(way.edits(""), key=lambda e: e.order)
    first, last = edits[0], edits[-1]
    imports = tuple(needed_imports("".join(e.text for e in edits), way.file, [way.code], way.imports))
    if first.text.endswith("\n"):
        return Wrapped("", first.text.strip(), Location(way.file, first.start[0], way.code.co_qualname, 0), imports)
    line, column = first.start
    text = linecache.getline(way.file, line).encode()
    ends_here = last.end[0] == line
    old = text[column : last.end[1] if ends_here else None].decode().strip()
    new, at = "", column
    for e in (e for e in edits if e.start[0] == line):
        new += text[at : e.start[1]].decode() + e.text
        at = e.end[1]
    function = way.code.co_qualname if way.code is not None else ""
    location = Location(way.file, line, function, column, *last.end)
    return Wrapped(
        old if ends_here else f"{old} …",
        new if ends_here else f"{new}{text[at:].decode().strip()} …",
        location,
        imports,
    )
