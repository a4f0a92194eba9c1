"""The switches of the explorer: where a function has checkpoints, what they save, and the figures of each setting.

Each setting is measured like a plan: the function with these checkpoints is derived, and its memory modelled. The page
shows the results and requests one setting after the other. A setting is written as a text, its key: `0,2|5,7|13` is
checkpoints around the regions 0 and 2 that save all values of the groups 5 and 7, and the value 13; `0,2|5,7|13|7|`
offloads those of group 7 to the host. The key of the function as written is ''.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from jaxviz.analysis.checkpoints import report_checkpoints
from jaxviz.analysis.grouping import alike, repetition
from jaxviz.analysis.walk import SourceTracer, location_of, primal_equation
from jaxviz.derivation import Derivation
from jaxviz.displays import display
from jaxviz.features.explorer.messages import (
    CompiledLine,
    DrawnBuffer,
    DrawnMemory,
    SwitchGroup,
    SwitchRegion,
    SwitchTable,
    SwitchValues,
    TriedTrade,
)
from jaxviz.features.memory.buffers import KINDS
from jaxviz.features.memory.timeline import memory
from jaxviz.features.remat.checkpointing import check_policies_count, checkpointed
from jaxviz.features.remat.diff import write_chosen, write_plan
from jaxviz.features.remat.forms import Trade
from jaxviz.features.remat.graph import Graph, derive_like
from jaxviz.features.remat.planning import best_of_all, check_can_be_planned
from jaxviz.features.remat.regions import Region, Spot
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.written import Written
from jaxviz.ir import compat
from jaxviz.ir.collector import collector_paused
from jaxviz.ir.expressions import source_shown
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import Atom, Equation, Var
from jaxviz.page.texts import first_line, fit
from jaxviz.report.tables import short_location, type_text

LARGEST = 20_000
"""The most equations of a function, counting called ones at each call, for which there are switches."""
_OFFERED = 10
"""The number of regions with a switch, besides existing checkpoints and the function itself."""
_NAME, _MOVED = "saved", "offloaded"

Tried = Trade | str
"""The figures of a setting, or why it is impossible."""


@dataclass(frozen=True, eq=False)
class SwitchSetting:
    """Checkpoints around some regions, the values that they save, and which of these are offloaded to the host."""

    regions: tuple[int, ...]
    saved: frozenset[int]
    offloaded: frozenset[int] = frozenset()


class Switches:
    """The switches of one function.

    Args:
      derivation: the function as written.

    Raises:
      ValueError: the function has too many equations, or an effect that JAX does not allow in a checkpoint; or JAX
        ignores policies.
      EquationError: it has no gradient.
    """

    @deep_stack
    def __init__(self, derivation: Derivation):
        n = sum(1 for _ in derivation.primal.walk())
        if n > LARGEST:
            raise ValueError(
                f"the switches support up to {LARGEST:,} equations, and this program has {n:,}; use jaxviz.plan_remat"
            )
        check_policies_count()
        self.derivation = derivation = derivation.taken_by(None)
        self.search = Search(derivation, False)
        check_can_be_planned(self.search)
        self.tried: dict[str, Tried] = {"": self.search.written, "||": self.search.opened}
        self.planned: str | None = None
        """The setting of the best plan, once it was requested."""
        self._written: dict[str, Written] = {}
        self.regions: list[Region] = self._offered()
        self._makers: dict[Var, tuple[int, Equation]] = {}
        for i, (_, e) in enumerate(self.search.flat.walk()):
            self._makers.update((v, (i, e)) for v in e.outvars)
        self._holds = [frozenset(e for s in r.spots for e in s.walk()) for r in self.regions]
        self._crossing = crossing([list(r.spots) for r in self.regions])
        self._chosen_from = [self._values_of(r) for r in self.regions]
        every = set[Var]().union(*self._chosen_from)
        self.values = sorted(every, key=lambda v: (self._makers[v][0], self._makers[v][1].outvars.index(v)))
        self.number = {v: i for i, v in enumerate(self.values)}
        self._groups: dict[Hashable, int] = {}
        self.group_of = [self._groups.setdefault(self._repeats(v), len(self._groups)) for v in self.values]

    def _offered(self) -> list[Region]:
        """The regions with a switch: those with a checkpoint now, then the most promising, then the function itself."""
        search = self.search
        offered = [r for r in search.context.written if search.parts(r)]
        spots = {frozenset((id(s.program), s.start, s.end, s.is_body) for s in r.spots) for r in offered}
        for r in search.regions[:_OFFERED]:
            same = frozenset((id(s.program), s.start, s.end, s.is_body) for s in r.spots)
            if same not in spots:
                offered.append(r)
        try:
            _ = search.whole
        except ValueError:  # devices exchange values in it, which cannot be saved
            return offered
        return [*offered, search.root]

    def _values_of(self, region: Region) -> frozenset[Var]:
        """What a checkpoint around a region recomputes if it saves nothing, and could save instead."""
        values: set[Var] = set()
        for part in self.search.parts(region) or ():
            graph = part.graph
            again, _ = graph.reached(graph.needed, frozenset())
            for name in dict.fromkeys(graph.nodes[i].name for i in sorted(again)):
                for v in graph.candidates.get(name, ()):
                    values.update(same for same in part.everywhere(v) if same in self._makers)
        return frozenset(values)

    def _repeats(self, v: Var) -> Hashable:
        """For each value, a number shared by one expression's values in repeated layers, calls and iterations."""
        _, e = self._makers[v]
        return repetition(e, (), e.outvars.index(v)), type_text(v.aval), location_of(e)

    # --- settings --------------------------------------------------------------------------------------------------

    def key(self, regions: Iterable[int], saved: Collection[int], offloaded: Collection[int] = ()) -> str:
        """The key of a setting; values outside its regions are not saved, and values that are not saved are not
        offloaded."""
        chosen = sorted(regions)
        choices = {self.number[v] for v in self._choices_of(chosen)}
        chosen_values = choices.intersection(saved)
        moved = chosen_values.intersection(offloaded)
        parts = [chosen, *self._by_group(chosen_values, choices), *(self._by_group(moved, choices) if moved else ())]
        return "|".join(",".join(map(str, some)) for some in parts)

    def _by_group(self, some: Collection[int], choices: Collection[int]) -> tuple[list[int], list[int]]:
        """The groups whose values in `held` are all among some values, and the values that remain."""
        groups = {g for g in {self.group_of[i] for i in some} if self._members(g, choices) <= set(some)}
        return sorted(groups), sorted(i for i in some if self.group_of[i] not in groups)

    def setting(self, key: str) -> SwitchSetting:
        """The setting of a key.

        Raises:
          ValueError: it is not the key of a setting.
        """
        try:
            regions, *chosen = ([int(n) for n in part.split(",") if n] for part in key.split("|"))
            choices = {self.number[v] for v in self._choices_of(regions)}
            if len(chosen) not in (2, 4) or min(regions, default=0) < 0:
                raise ValueError
            saved, moved = (
                {i for i in choices if self.group_of[i] in set(groups)} | choices.intersection(values)
                for groups, values in (chosen[:2], chosen[2:] or ([], []))
            )
        except (ValueError, IndexError):
            raise ValueError(f"{key!r} is not the key of a setting") from None
        return SwitchSetting(tuple(regions), frozenset(saved), frozenset(saved & moved))

    def has(self, key: str) -> bool:
        """Whether a text is the key of a setting."""
        try:
            return not key or bool(self.setting(key))
        except ValueError:
            return False

    def _choices_of(self, regions: Sequence[int]) -> frozenset[Var]:
        """What the checkpoints around some regions can save: the values of those regions that are in no other."""
        outer = [i for i in regions if not any(self._holds[i] < self._holds[j] for j in regions)]
        return frozenset[Var]().union(*(self._chosen_from[i] for i in outer))

    def choices(self, region: int) -> set[int]:
        """The numbers of the values that a checkpoint around a region could save."""
        return {self.number[v] for v in self._chosen_from[region]}

    def named(self, number: int) -> str:
        """``all of `loss` ``, `` `block` `` or `the body of the scan at model.py:27`: a region in a sentence."""
        region = self.regions[number]
        if region is self.search.root:
            return f"all of `{region.name}`"
        return region.described if region.is_body else f"`{region.name}`"

    def _members(self, group: int, choices: Collection[int]) -> set[int]:
        return {i for i in choices if self.group_of[i] == group}

    def trade(self, key: str) -> Tried:
        """The figures of a setting; computed on first use."""
        if key not in self.tried:
            try:
                self.tried[key] = self.search.measured(self.derived(key))
            except Exception as error:  # an effect or a custom rule may not allow a checkpoint
                self.tried[key] = fit(f"{type(error).__name__}: {error}")
        return self.tried[key]

    @deep_stack
    def derived(self, key: str) -> Derivation:
        """The function with the checkpoints of a setting."""
        if not key:
            return self.derivation
        setting = self.setting(key)
        if not setting.regions:
            return self.search.plain
        names = {self.values[i]: _MOVED if i in setting.offloaded else _NAME for i in sorted(setting.saved)}
        program = checkpointed(self.search.flat, [self.regions[i] for i in setting.regions], names, offloaded=(_MOVED,))
        return derive_like(program, self.search.plain)

    @collector_paused()
    def fill(self, keys: Iterable[str], seconds: float) -> None:
        """Computes the figures of some settings until a CPU time limit, and of at least one."""
        start = time.process_time()
        for key in keys:
            self.trade(key)
            if time.process_time() - start > seconds:
                break

    @property
    def first_keys(self) -> Iterator[str]:
        """The settings to compute first: each checkpoint switched alone."""
        yield from ("||", self.present)
        yield from (self.flipped(self.present, i) for i in range(len(self.regions)))

    @property
    def next_keys(self) -> Iterator[str]:
        """The settings one more switch away: the groups of each checkpoint, most promising first."""
        for i in range(len(self.regions)):
            alone = self.key([i], ())
            yield alone
            choices = {self.number[v] for v in self._chosen_from[i]}
            for g in dict.fromkeys(self.group_of[v] for v in sorted(choices)):
                yield self.key([i], self._members(g, choices))

    def flipped(self, key: str, region: int) -> str:
        """A setting with the checkpoint around one region switched; it replaces those that it overlaps with."""
        setting = self.setting(key)
        if region in setting.regions:
            return self.key([i for i in setting.regions if i != region], setting.saved, setting.offloaded)
        others = (i for i in setting.regions if i not in self._crossing[region])
        return self.key([*others, region], setting.saved, setting.offloaded)

    @cached_property
    def present(self) -> str:
        """The setting closest to the function as written."""
        written = [i for i, r in enumerate(self.regions) if r.is_written]
        if not written:
            return "||"
        copies = self.search.context.copies
        fates = {
            v: decided.fate
            for report in report_checkpoints(self.derivation)
            for decided in report.values
            if decided.equation is not None
            # Saving a named value saves the value itself.
            for v in (*decided.equation.outvars, *named_by(decided.equation))
        }
        having = lambda *some: {i for i, v in enumerate(self.values) if fates.get(copies.get(v, v)) in some}
        return self.key(written, having("saved", "offloaded"), having("offloaded"))

    @cached_property
    def residuals(self) -> list[list[Var]]:
        """For each residual that JAX saves now, the values that a checkpoint saves in its place."""
        try:
            graph = self.search.graph
        except ValueError:
            return [[] for _ in self.derivation.linearized.residuals]
        names_of = stand_ins(self.derivation, graph, self.row)
        return [[v for name in names for v in graph.candidates[name]] for names in names_of]

    def plan(self) -> str:
        """The setting of the plan that lowers the peak most for the least work, as it can be written in the user's
        source if it can; searched for on first use."""
        if self.planned is None:
            plan = best_of_all(self.search)
            if not plan.form.regions:
                self.planned = "" if plan.trade is self.search.written else "||"
                return self.planned
            code = write_plan(self.search, plan)
            trial = code.trial if code.files and code.trial is not None else plan
            regions = [i for i, r in enumerate(self.regions) if r in trial.form.regions]
            self.planned = self.key(regions, {self.number[v] for v in trial.names if v in self.number})
            is_setting = len(regions) == len(trial.form.regions) and not (code.files and code.trial is None)
            if is_setting:
                self._written[self.planned] = code
            if is_setting and code.files and code.trade is not None:
                self.tried[self.planned] = code.trade
        return self.planned

    def written(self, key: str) -> Written:
        """The lines to write for a setting, with the figures that the function has with them."""
        if key not in self._written:
            self._written[key] = self._write(key)
        return self._written[key]

    def _write(self, key: str) -> Written:
        if not key:
            return Written((f"{self.derivation.primal.name} as written: no changes",), self.search.written)
        setting = self.setting(key)
        trade = self.trade(key)
        if isinstance(trade, str):
            return Written((str(trade),), None)
        values = lambda some: {self.values[i] for i in some}
        regions = [self.regions[i] for i in setting.regions]
        return write_chosen(self.search, regions, values(setting.saved), values(setting.offloaded), trade)

    # --- data for the page -----------------------------------------------------------------------------------------

    @deep_stack
    def table(self, source: bool = True) -> SwitchTable:
        """The switches as JSON values.

        Args:
          source: whether to include expressions of the user's source.
        """
        with source_shown(source):
            table: SwitchTable = {
                "function": self.derivation.primal.name,
                "work": self.search.plain_flops,
                "present": self.present,
                "regions": [self._region(i) for i in range(len(self.regions))],
                "groups": [
                    self._group(members) for _, members in self._in_order()
                ],
                "values": SwitchValues(
                    group=self.group_of,
                    nbytes=[self.search.context.prices.get(v, 0) for v in self.values],
                    row=[self.row(self._makers[v][1]) for v in self.values],
                ),
                "residuals": [[self.number[v] for v in values if v in self.number] for values in self.residuals],
            }  # fmt: skip
            fitting: SwitchTable = fit(table)
            return fitting

    def _in_order(self) -> Iterator[tuple[int, Iterator[Var]]]:
        """The groups by number, each with its values."""
        order = sorted(range(len(self.values)), key=self.group_of.__getitem__)
        for g, members in groupby(order, key=self.group_of.__getitem__):
            yield g, (self.values[i] for i in members)

    def _region(self, i: int) -> SwitchRegion:
        region = self.regions[i]
        first = next(iter(region.spots))
        is_whole = region is self.search.root
        runs: list[tuple[int, int]] = []
        for n in sorted(self.number[v] for v in self._chosen_from[i]):
            if runs and sum(runs[-1]) == n:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((n, 1))
        return {
            "name": f"all of {region.name}" if is_whole else region.described,
            "line": short_location(region.location),
            "row": -1 if is_whole else self.row(first.scan if first.is_body else first.equations[0]),
            "isWritten": region.is_written,
            "inside": [j for j, there in enumerate(self._holds) if self._holds[i] < there],
            "crosses": self._crossing[i],
            "values": runs,
        }

    def _group(self, members: Iterator[Var]) -> SwitchGroup:
        values = list(members)
        return {"what": alike([self.search.called(v) for v in values]), "type": type_text(values[0].aval)}

    @cached_property
    def row(self) -> WrittenRows:
        """The row in the function as written from which an equation derives."""
        return WrittenRows(self.derivation, self.search.context.copies)

    def tried_trades(self) -> tuple[dict[str, TriedTrade], dict[str, str]]:
        """The figures computed so far, and the impossible settings with the reasons."""
        trades = {
            k: TriedTrade(t.peak_nbytes, t.saved_nbytes, t.flops, t.offloaded)
            for k, t in self.tried.items()
            if not isinstance(t, str)
        }
        return trades, {k: t for k, t in self.tried.items() if isinstance(t, str)}

    @deep_stack
    def drawn(self, key: str, source: bool = True) -> DrawnMemory:
        """The memory over time of a setting."""
        with source_shown(source):
            timeline = memory(self.derived(key))
            texts: dict[str, int] = {}
            number = lambda text: texts.setdefault(text, len(texts))
            group = {id(b): i for i, same in enumerate(timeline.rows) for b in same}
            message: DrawnMemory = {
                "key": key,
                "turn": sum(not s.is_backward for s in timeline.steps),
                "what": [number(str(s.equation.primitive.name)) for s in timeline.steps],
                "row": [self.row(s.equation) for s in timeline.steps],
                "buffers": [
                    DrawnBuffer(
                        b.nbytes, KINDS.index(b.kind), b.born, b.last,
                        -1 if b.equation is None else self.row(b.equation),
                        number(b.what), number(b.type), group[id(b)],
                    )
                    for b in timeline.values
                ],
                "groups": [number(alike([b.what for b in same])) for same in timeline.rows],
                "texts": [],
            }  # fmt: skip
            message["texts"] = list(texts)
            fitting: DrawnMemory = fit(message)
            return fitting

    def compiled(self, key: str) -> CompiledLine:
        """The memory over time of a setting as compiled by XLA."""
        try:
            stage = display("compiled stage")
            line: CompiledLine = stage.compiled_line(key, stage.compiled_peak(stage.lower(self.derived(key))))
            return line
        except Exception as error:
            return {"key": key, "turn": 0, "total": [], "error": first_line(error)}


def crossing(regions: Sequence[Sequence[Spot]]) -> list[list[int]]:
    """For each region, the regions with a spot that contains part of one of its spots, but not all of it: checkpoints
    around both are impossible."""
    crossed: list[set[int]] = [set() for _ in regions]
    calls = [(id(s.program), s.start, -s.end, i) for i, spots in enumerate(regions) for s in spots if not s.is_body]
    opened: list[tuple[int, int, int]] = []
    for program, start, minus_end, i in sorted(calls):
        opened = [(p, end, j) for p, end, j in opened if p == program and end > start]
        for _, end, j in opened:
            if end < -minus_end:
                crossed[i].add(j)
                crossed[j].add(i)
        opened.append((program, -minus_end, i))
    return [sorted(others - {i}) for i, others in enumerate(crossed)]


# --- rows and residuals of the function as written --------------------------------------------------------------------


class WrittenRows:
    """The rows of a function as written, from which equations derive.

    Args:
      derivation: the function as written.
      copies: for a value in another program, the one of the function as written.
    """

    def __init__(self, derivation: Derivation, copies: Mapping[Var, Var]):
        self.copies = copies
        self.rows: dict[Atom, int] = {}
        for i, (_, e) in enumerate(derivation.primal.walk()):
            for v in e.outvars:
                self.rows.setdefault(v, i)

    def __call__(self, equation: Equation) -> int:
        """The row from which an equation derives; -1 if there is none."""
        written = primal_equation(equation)
        originals = (self.copies.get(v, v) if isinstance(v, Var) else v for v in named_by(written) or written.outvars)
        return next((self.rows[v] for v in originals if v in self.rows), -1)


def named_by(equation: Equation) -> Sequence[Atom]:
    """The variables that an equation names; none for other equations."""
    return equation.invars if equation.primitive is compat.name_p else ()


def stand_ins(derivation: Derivation, graph: Graph, row: WrittenRows) -> list[list[str]]:
    """For each residual that JAX saves now, the names that a checkpoint saves in its place.

    They belong to the values it is computed from, as close to it as a name is possible: for `cos(x)`, which the rule of
    `sin` computes, it is the name of `x`. There are none for an argument, or for values computed from arguments for
    free.

    Args:
      derivation: the function as written.
      graph: everything that could be saved in the whole function.
      row: the rows of the function as written.
    """
    places = _Places(graph, row)
    residuals, all_results = defaultdict[Any, list[Atom]](list), defaultdict[Any, list[Atom]](list)
    for atom, key in places.makers_of(graph.named):
        residuals[key].append(atom)
    for node in graph.nodes:
        for v in node.equation.outvars:
            all_results[places.of(node.equation, v)].append(v)
    now = [key for _, key in places.makers_of(derivation)]
    count, turn, names = Counter(now), Counter[Any](), []
    for key in now:
        same = [] if key is None else residuals.get(key) or all_results[key]
        # The calls of a function that is called several times are matched in order.
        mine = same[turn[key] : turn[key] + 1] if count[key] == len(same) else same
        turn[key] += 1
        names.append(_nearest(graph, mine))
    return names


class _Places:
    def __init__(self, graph: Graph, row: WrittenRows):
        self.graph = graph
        self.row = row

    def makers_of(self, derivation: Derivation) -> list[tuple[Atom, Any]]:
        """The residuals of a derivation, each with the place where it is computed; None for an argument."""
        trace, makers = SourceTracer(derivation.forward), []
        for atom in derivation.linearized.residuals:
            source = trace(atom)[0]
            makers.append((atom, self.of(source.equation, source.atom) if source.equation is not None else None))
        return makers

    def of(self, equation: Equation, atom: Atom) -> Any:
        """What identifies a value: the original equation of the function as written, the operation, and its type."""
        written = primal_equation(equation)
        operation = equation.primitive
        if operation is compat.name_p and isinstance(written.invars[0], Var):
            maker = self.graph.makers.get(written.invars[0])
            operation = maker.primitive if maker is not None else operation
        if operation is compat.reduce_precision_p:
            # A checkpoint rounds the values that it saves.
            operation = written.primitive
        return self.row(written), operation, atom.aval.str_short()


def _nearest(graph: Graph, atoms: Sequence[Atom]) -> list[str]:
    """The first names on the way from some values back to what they are computed from."""
    names: dict[str, None] = {}
    seen: set[Atom] = set()
    pending = [*atoms]
    while pending:
        a = graph.resolved(pending.pop())
        if a in seen:
            continue
        seen.add(a)
        if a in graph.carried:
            pending += [graph.carried[a].first, graph.carried[a].before]
        elif a in graph.producer:
            node = graph.nodes[graph.producer[a]]
            if node.name:
                names[node.name] = None
            else:
                pending += node.equation.invars
    return list(names)
