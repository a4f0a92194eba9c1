"""Writes a plan as a diff of the user's source: checkpoints at calls, scans or definitions, and names for the saved values."""

from __future__ import annotations

import linecache
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxviz.features.remat.call import Call
from jaxviz.features.remat.checkpointing import checkpointed
from jaxviz.features.remat.edits import Way
from jaxviz.features.remat.forms import ON_HOST, Form, Trade, Trial
from jaxviz.features.remat.graph import derive_like
from jaxviz.features.remat.layers import layered
from jaxviz.features.remat.libraries import option_of
from jaxviz.features.remat.names import Name, Names, extents_of_values, names_there
from jaxviz.features.remat.pasted import chunks_by_hand, ways_in_branches, ways_in_chunks
from jaxviz.features.remat.regions import Region
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.source import Extent
from jaxviz.features.remat.ways import way_at_callee, way_at_definition, ways_in_step, ways_of
from jaxviz.features.remat.written import BY_HAND, POLICY, Written, not_written, write
from jaxviz.ir.origin import Location
from jaxviz.ir.own_code import owner, package
from jaxviz.ir.syntax import Var
from jaxviz.progress import counting
from jaxviz.report.tables import format_bytes, format_flops, short_location

_CHANGED = 1.02
"""How much higher the peak of the written code may be before the search continues."""
_WORTH = 0.01
"""The share by which the written code has to lower the peak, if the plan does."""


_RAISES = "The changes that could be written in your source would raise the peak."
_IN_VAIN = "The changes that could be written in your source would lower the peak by less than 1 %."
_UNTRIED = "More edits could be tried: the function is large, and each is measured by deriving it again."
_NOT_THERE = "No edit that was tried puts them there."
_MEASURED = 20_000
"""How many equations are derived again in total before no further edit is tried,"""
_AT_LEAST = 3
"""and how many edits are tried in any case: the second way to write a checkpoint, after the first as planned and alone."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What was asked for, in bytes of residuals, FLOPs of recomputation and bytes of the modelled peak; None for no limit."""

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

    def told_in(self, made: Written) -> Written:
        """Code that says first that its peak exceeds what was asked for, if it does."""
        over = made.trade.peak_nbytes - self.peak if made.trade is not None and self.peak is not None else 0
        if over <= 0:
            return made
        asked = format_bytes(self.peak or 0)
        return made.with_note(f"The code exceeds the requested peak of {asked} by {format_bytes(over)}.", at=0)


@counting("trying edits")
def write_plan(
    search: Search, trial: Trial | None, call: Call, limits: Limits = Limits(), in_branches: bool = False
) -> Written:
    """The code for a plan.

    If one of its checkpoints cannot be written, or does something else where it can be written, the code is the closest plan with checkpoints
    that can.

    Args:
      trial: the plan; None to remove all checkpoints.
      in_branches: whether each checkpoint at a call is in a branch that is always taken.
    """
    if trial is None:
        return write(search, call, search.opened, {}, [], [])
    ways = _Ways(search, call)
    while True:
        made, best = _written_with(search, trial, call, limits, in_branches, ways)
        ways.tried.append(made)
        written, found = search.written, made.trade
        is_higher = found is not None and found.peak_nbytes > written.peak_nbytes
        if (made.is_as_planned and not is_higher) or best is None or not ways.go_on(best.form.regions):
            break
    is_in_vain = (
        found is not None and limits.is_peak_alone and _lowers(trial.trade, search) and not _lowers(found, search)
    )
    is_shown = made.files and not (is_higher or made.fails or is_in_vain)
    wanted = int(_CHANGED * trial.trade.peak_nbytes) if limits.peak is None else limits.peak
    reached = found.peak_nbytes if found is not None and found.peak_nbytes > wanted else 0
    is_free = limits.is_peak_alone and not in_branches and (made.files or found is None)
    other = ways.lower_than(reached if is_shown else written.peak_nbytes) if is_free else None
    if other is not None:
        has = f"peak of {format_bytes(trial.trade.peak_nbytes)} and recomputes {format_flops(trial.trade.flops)}"
        made, best = other.with_note(f"plan.apply checkpoints something else: it has a {has}."), None
    elif made.files and not is_shown:
        why = _RAISES if is_higher else _IN_VAIN if is_in_vain else _NOT_THERE
        made, best = Written((not_written(call.name, trial.trade, search), why), None), None
    return replace(ways.told_in(limits.told_in(made)), trial=best)


def _lowers(trade: Trade, search: Search) -> bool:
    return trade.peak_nbytes <= (1 - _WORTH) * search.written.peak_nbytes


class _Ways:
    """How to write the checkpoint of each region: the first way that does what it should, as far as that was asked."""

    def __init__(self, search: Search, call: Call):
        self.search = search
        self.call = call
        self._left: dict[Region, list[tuple[Way, ...]]] = {}
        self._alone: dict[Region, Written] = {}
        self._expected: dict[Region, Trade] = {}
        self._in_vain: set[Region] = set()
        """The regions with ways that do something else."""
        self.tried: list[Written] = []
        self._is_cut = False

    def of(self, region: Region) -> tuple[Way, ...]:
        """The edits for a region; none if it cannot be written."""
        if region not in self._left:
            self._left[region] = _ways(self.search, region, self.call)
        return next(iter(self._left[region]), ())

    def go_on(self, regions: Iterable[Region]) -> bool:
        """Takes the next way for regions whose edits, by themselves, do not put a checkpoint around exactly the region. False if there are none."""
        wrong = [r for r in regions if self.of(r) and not self.holds(r)]
        for region in wrong:
            while self.of(region) and not self.holds(region):
                del self._left[region][0], self._alone[region]
                self._in_vain.add(region)
        return bool(wrong)

    def holds(self, region: Region) -> bool:
        """Whether the edits do, as far as they may still be tried."""
        most = max(_AT_LEAST, _MEASURED // sum(1 for _ in self.search.flat.walk()))
        if region not in self._alone and len(self.tried) >= most:
            self._is_cut = True
            return True
        made = self.alone(region)
        found, written = made.trade, self.search.written.peak_nbytes
        is_higher = found is not None and found.peak_nbytes > max(written, self._expected[region].peak_nbytes)
        return made.is_as_planned and not is_higher

    def why_not(self, region: Region) -> str:
        """Why a region cannot be written, a sentence or two."""
        if region.is_written:
            return f"plan.apply changes what the checkpoint of {region.name} saves, {short_location(region.location)}."
        why = " No edit that was tried puts it there." if region in self._in_vain else ""
        frames = next(iter(region.stacks.values()), ())
        code = region.code or (
            frames[-1][0] if frames else None
        )  # that of the function which scans; none for the function itself
        if code is not None and owner(code.co_filename) == "library":
            why = f" It is inside {package(code.co_filename)}, and no line of your source is known that puts a checkpoint around it alone."
        option = option_of(region)
        own = f" The library has an option for it: {option}." if option else ""
        return f"No checkpoint can be written around {region.described} in your source.{why}{own}"

    def lower_than(self, peak: int) -> Written | None:
        """The code with the lowest peak of all that was tried, if that is clearly lower than another."""
        found = [(made.trade.peak_nbytes, made) for made in self.tried if made.files and made.trade is not None]
        lowest, made = min(found, key=lambda one: one[0], default=(peak, None))
        return made if lowest <= (1 - _WORTH) * peak else None

    def told_in(self, made: Written) -> Written:
        """Code that says that there are edits which were not tried, if there are."""
        return made.with_note(_UNTRIED) if self._is_cut else made

    def alone(self, region: Region) -> Written:
        """The code for a checkpoint around a region that saves nothing by name."""
        if region not in self._alone:
            trade = self._expected[region] = self.search.trial(self.search.path((region,))[0]).trade
            self._alone[region] = write(self.search, self.call, trade, {region: self.of(region)}, [], [])
            self.tried.append(self._alone[region])
        return self._alone[region]


def _written_with(
    search: Search, trial: Trial, call: Call, limits: Limits, in_branches: bool, found: _Ways
) -> tuple[Written, Trial | None]:
    """The code for a plan, and the plan that it comes to, for given ways to write regions."""
    ways = {r: found.of(r) for r in trial.form.regions}
    elsewhere = [r for r in trial.form.regions if not ways[r]]
    if trial.form.policy and not elsewhere:
        around: dict[Region, Sequence[Way]] = {r: ways[r] for r in trial.form.regions}
        said = _put_in_branches(around) if in_branches else []
        return write(search, call, trial.trade, around, [], said, builtin=trial.form.policy), trial
    notes = [found.why_not(region) for region in elsewhere]
    # One of several checkpoints may be enough, where nothing in them can be named and so all is recomputed.
    sets = list(dict.fromkeys([trial.form.regions, *((r,) for r in trial.form.regions)]))
    if elsewhere:
        ways |= {r: found.of(r) for r in search.regions}
        sets = search.sets_of([r for r in search.regions if ways[r]])
    if not sets:
        return Written((not_written(call.name, trial.trade, search), *notes), None), None
    places = extents_of_values(search.flat)
    best = _writable(search, trial, sets, places, limits)
    layers = layered(search, best, trial, ways) if limits.is_peak_alone and best.trade.work > trial.trade.work else None
    best = layers.trial if layers is not None else best
    if best.trade.peak_nbytes > search.written.peak_nbytes:
        return Written((not_written(call.name, trial.trade, search), _RAISES, *notes), None), None
    if not _is_as_good(best.trade, trial.trade, limits):
        notes.append(
            f"plan.apply can also save values that no name in your source refers to; it has a peak of "
            f"{format_bytes(trial.trade.peak_nbytes)} and recomputes {format_flops(trial.trade.flops)}."
        )
    if limits.residuals is not None and best.trade.nbytes > limits.residuals:
        notes.append(f"Its residuals exceed the requested {format_bytes(limits.residuals)}.")
    if limits.work is not None and best.trade.work > limits.work:
        notes.append(f"It recomputes more than the requested {format_flops(limits.work)}.")
    if any(part.exchanges_again for part, _ in best.form.choices):
        notes.append(
            "With it, devices exchange values again that plan.apply saves and that cannot be named in the source."
        )
    chosen = [p for p, values in places.items() if not best.names.keys().isdisjoint(values)]
    words, makers = Names(names_there(search.flat)), search.makers
    names = [
        Name(p, *words.of_extent(p, makers[places[p][0]]), _is_moved(search, best, places[p]), places[p])
        for p in chosen
    ]
    written: dict[Region, Sequence[Way]] = {r: ways[r] for r in best.form.regions}
    for region in (r for r in written if r.is_body and best.form.chunk > 1):
        whole = ways_in_chunks(written[region], best.form.chunk)
        if whole is None:
            notes.append(chunks_by_hand(region, best.form.chunk))
        written[region] = written[region] if whole is None else whole
    notes += _put_in_branches(written) if in_branches else []
    return write(search, call, best.trade, written, names, notes, layers), best


def _put_in_branches(ways: dict[Region, Sequence[Way]]) -> list[str]:
    """Puts each checkpoint outside of a loop into a branch; returns a note for each that cannot be written that way."""
    notes = []
    for region in (r for r in ways if not r.is_body):
        held = ways_in_branches(ways[region])
        if held is None:
            notes.append(
                f"The checkpoint around {region.described} is not in a branch: only jax.checkpoint at a call can be written that way."
            )
        else:
            ways[region] = held
    return notes


def write_chosen(
    search: Search, regions: Sequence[Region], saved: Collection[Var], offloaded: Collection[Var], trade: Trade
) -> Written:
    """The code for given checkpoints, and for the values that they save.

    A name in the source applies to all values of its expression: expressions get one if at least half of their values are to be saved.

    Args:
      saved: the values.
      offloaded: those of them that are moved to the host.
    """
    every = extents_of_values(search.flat)
    mostly = lambda vs, some: 2 * len(set(vs).intersection(some)) >= len(vs)
    places = {p: vs for p, vs in every.items() if mostly(vs, saved)}
    moved = {p for p, vs in places.items() if mostly(vs, offloaded)}
    named = {v: POLICY + ON_HOST * (p in moved) for p, vs in places.items() for v in vs}
    program = checkpointed(search.flat, regions, named, offloaded=[n for n in named.values() if search.is_offloaded(n)])
    comes_to = search.measured(derive_like(program, search.plain))
    found = _Ways(search, Call.known(search.derivation))
    notes: list[str] = []
    if comes_to != trade:
        notes.append(
            f"No name in your source tells some of the switches apart; as set, they have a peak of {format_bytes(trade.peak_nbytes)} "
            f"and save {format_bytes(trade.saved_nbytes)}, and recompute {format_flops(trade.flops)}."
        )
    words, makers = Names(names_there(search.flat)), search.makers
    names = [Name(p, *words.of_extent(p, makers[vs[0]]), p in moved, vs) for p, vs in places.items()]
    while True:
        ways = {r: found.of(r) for r in regions}
        missing = [f"{found.why_not(r)} It is not in this code." for r, some in ways.items() if not some]
        made = write(search, found.call, comes_to, ways, names, [*missing, *notes], is_plan=False)
        if made.is_as_planned or not found.go_on(regions):
            break
    return made


@dataclass(frozen=True, slots=True)
class Wrapped:
    """An expression of the user's that a checkpoint around a region replaces.

    Args:
      old: the expression, up to the end of its first line; '' if it is a line of its own.
    """

    old: str
    new: str
    location: Location


def wrapped_at(search: Search, region: Region) -> tuple[Wrapped, Written] | None:
    """What to write for a checkpoint around a region, at its first place, and the code for all of them; None if no edit of the user's source that
    puts one there was found."""
    ways = _Ways(search, Call.known(search.derivation))
    ways.go_on([region])
    return (_wrapped(ways.of(region)[0]), ways.alone(region)) if ways.of(region) else None


def _wrapped(way: Way) -> Wrapped:
    edits = sorted(way.edits(""), key=lambda e: e.order)
    first, last = edits[0], edits[-1]
    if first.text.endswith("\n"):
        return Wrapped("", first.text.strip(), Location(way.file, first.start[0], way.code.co_qualname, 0))
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
        old if ends_here else f"{old} …", new if ends_here else f"{new}{text[at:].decode().strip()} …", location
    )


def _is_moved(search: Search, trial: Trial, values: Sequence[Var]) -> bool:
    return any(search.is_offloaded(trial.names.get(v, "")) for v in values)


def _ways(search: Search, region: Region, call: Call) -> list[tuple[Way, ...]]:
    if region is not search.whole:
        return ways_of(region, search.context.written)
    there = next((w for w in search.context.written if w.covers(region)), None)
    if there is not None and (ways := ways_of(there, [there])):
        return ways
    if search.step is not None:
        return [*((way,) for way in ways_in_step(call.name, search.context.frames.values())), (BY_HAND,)]
    way = None
    if call.function is not None:
        way = way_at_definition(call) or way_at_callee(call, search.context.frames.values())
    return [(way or BY_HAND,)]


def _is_as_good(found: Trade, wanted: Trade, limits: Limits) -> bool:
    """Whether two plans have about the same figures."""
    is_near = found.peak_nbytes <= _CHANGED * wanted.peak_nbytes and found.work <= _CHANGED * wanted.work
    return is_near and limits.allow(found)


def _writable(
    search: Search,
    trial: Trial,
    sets: Iterable[Sequence[Region]],
    places: Mapping[Extent, Sequence[Var]],
    limits: Limits,
) -> Trial:
    """The plan closest to another one, among those that save only values with a name in the source."""
    candidates = {f"place_{k}": tuple(values) for k, values in enumerate(places.values())}
    everywhere = {v: values for values in candidates.values() for v in values}
    paths = [search.path(regions, candidates) for regions in sets]
    if trial.form.chunk > 1:
        paths = [
            [replace(f, chunk=trial.form.chunk) if f.regions == trial.form.regions else f for f in path]
            for path in paths
        ]
    forms = [form for path in paths for form in _near(path, trial)]
    if limits.work is not None:
        forms += [form for path in paths for form in [f for f in path if f.work <= limits.work][:3]]
    most = trial.trade.nbytes if limits.residuals is None else limits.residuals
    forms += [form for f in forms[:1] for form in _within(search, f, most)]
    tried = [search.trial(form, everywhere) for form in dict.fromkeys(forms)]
    kept = [t for t in tried if limits.allow(t.trade)] or tried
    if limits.work is not None and kept is not tried:
        return min(kept, key=lambda t: (t.trade.peak_nbytes, t.trade.work))
    most_peak = int(_CHANGED * trial.trade.peak_nbytes) if limits.peak is None else limits.peak
    highest = min(most_peak, search.written.peak_nbytes)
    is_low = lambda t: t.trade.peak_nbytes <= highest
    low = [*filter(is_low, kept)] or [*filter(is_low, tried)]
    if low:
        return min(low, key=lambda t: (t.trade.work, t.trade.peak_nbytes))
    return min(tried, key=lambda t: (t.trade.peak_nbytes, t.trade.work))


def _within(search: Search, form: Form, limit: int) -> Iterable[Form]:
    """What one checkpoint around the function saves within a limit of bytes of all residuals."""
    if form.regions == (search.whole,):
        ((part, _),) = form.choices
        yield search.form_within(limit, part)


def _near(path: Sequence[Form], trial: Trial) -> Sequence[Form]:
    """The forms of a path with about as many bytes as a trial, and the one with the fewest."""
    size = sum(c.nbytes for _, c in trial.form.choices)
    below = [i for i, form in enumerate(path) if sum(c.nbytes for _, c in form.choices) <= size]
    at = below[-1] if below else 0
    return [path[i] for i in sorted({0, *range(max(at - 2, 0), min(at + 2, len(path)))})]
