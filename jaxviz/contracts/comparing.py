"""Which locked facts no longer hold, and the cause of each, from the locked rows and the facts now."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxviz.analysis.checkpoints import NoEffect
from jaxviz.analysis.grouping import pattern
from jaxviz.contracts.contract import (
    OTHERS,
    UNITS,
    Contract,
    OnBackend,
    argument_of,
    compiled_key,
    dtype_of,
    exchange,
    largest_saved,
    largest_work,
    on_backend,
    portable_facts,
)
from jaxviz.environments.changes import saved_differences, work_differences
from jaxviz.environments.facts import Facts, SavedRow
from jaxviz.report.data import Data
from jaxviz.report.differences import Difference, Figure, paired_by, signed
from jaxviz.report.places import source_line
from jaxviz.report.tables import format_bytes, listed, short_location
from jaxviz.xla.collectives.report import Collective, in_words

MORE_EQUATIONS, FEW_EQUATIONS = 25, 32
"""The equations may grow by this many percent, or by this many: a loop that is unrolled has far more."""


def _unassigned(label: str) -> str:
    """An expression without the variable that it is assigned to."""
    return pattern(re.sub(r"^[\w, ]+ = ", "", label))


_KEYS: tuple[Callable[[SavedRow], Hashable], ...] = (
    lambda r: (pattern(r.label), r.type, r.count),
    lambda r: (_unassigned(r.label), r.type, r.count),
    lambda r: (pattern(r.label), r.type),
    lambda r: (_unassigned(r.label), r.nbytes),
    lambda r: _unassigned(r.label),
    lambda r: (r.type, r.count),
    lambda r: (dtype_of(r), r.nbytes),
    lambda r: r.nbytes,
)
"""Keys by which saved values are matched: variables, functions and files may have other names, and lines move."""


@dataclass(frozen=True, slots=True)
class BrokenFact(Data):
    """A locked fact that no longer holds.

    Args:
      contract: the name of the contract.
      fact: its name, such as 'residuals'.
      what: what it was and is: `residuals 18.3 GiB → 19.8 GiB, +1.5 GiB (+8%)`.
      cause: what makes the difference, with the line; '' if that is not known.
      to_accept: the command that locks what it is now.
    """

    contract: str
    fact: str
    what: str
    cause: str
    to_accept: str

    @property
    def text(self) -> str:
        """The fact, its cause, and how to accept it."""
        cause = f": {self.cause}" if self.cause else ""
        return f"contract of `{self.contract}`: {self.what}{cause}. To accept: {self.to_accept}"

    _data = ("contract", "fact", "what", "cause", "to_accept", "text")


_Found = Iterator[tuple[str, str, str]]
"""Facts that no longer hold: the name of each, what it was and is, and the cause."""


class Comparing:
    """A contract, and the facts now.

    Args:
      accepting: the command that locks facts again; `{}` stands for them.
    """

    def __init__(self, contract: Contract, facts: Facts, accepting: str = "jaxviz lock --accept {}"):
        self.contract, self.facts, self.program, self.accepting = contract, facts, facts.program, accepting
        self.was, self.now, self.key = contract.portable, portable_facts(facts.program), compiled_key(facts)
        self.was_compiled = contract.compiled.get(self.key, OnBackend())
        self.now_compiled = on_backend(facts)

    def broken(self) -> Iterator[BrokenFact]:
        """What no longer holds, causes before what follows from them."""
        parts = [self._effects, self._names, self._donated, self._dead, self._collectives, self._dtypes]
        parts += [self._work_in, self._residuals, self._work, self._compiled]
        parts.insert(6 if self.split else 9, self._equations)
        for fact, what, cause in (found for part in [self._not_known, *parts] for found in part()):
            yield BrokenFact(self.contract.name, fact, what, cause, self._to_accept(fact))

    def notes(self) -> Iterator[str]:
        """What is not locked here, and bounds that could be tighter."""
        locked_with, jax = self.contract.jax, self.facts.environment.jax
        if locked_with != jax and next(self.broken(), None):
            yield f"It was locked with JAX {locked_with}; this is {jax}."
        sections = self.contract.compiled
        if sections and self.key not in sections:
            yield f"What is compiled for {self.key} is not locked here; locked: {listed(sections)}."
        within = 100 - self.contract.within_percent
        lower = [f for f in self.figures.values() if f.name != "equations" and 100 * f.after < within * f.before]
        if lower:
            fallen = listed((f"{f.name} {f.share}" for f in lower), 6)
            yield f"Lower than locked: {fallen}. To lock this: {self._to_accept(*(f.name for f in lower))}"

    def _to_accept(self, *facts: str) -> str:
        return self.accepting.format(",".join(f"{self.contract.name}.{fact}" for fact in facts))

    # --- figures ------------------------------------------------------------------------------------------------------

    @cached_property
    def figures(self) -> dict[str, Figure]:
        """Those that are locked, and known."""
        pairs = ((self.was, self.now), (self.was_compiled, self.now_compiled))
        both = {name: (getattr(a, name), getattr(b, name)) for a, b in pairs for name in UNITS if hasattr(a, name)}
        return {name: Figure(name, *two, UNITS[name]) for name, two in both.items() if None not in two}

    def _not_known(self) -> _Found:
        """What is locked, and could not be found out."""
        reasons = (
            (self.was, self.now, {"work": "FLOPs", "recomputed": "FLOPs", "without_effect": "no effect",
                                  "collectives": "types imply", "dead": "does not reach"}),
            (self.was_compiled, self.now_compiled, {"peak": "compiled", "exchanged": "collectives"}),
        )  # fmt: skip
        for was, now, words in reasons:
            for name, word in words.items():
                if getattr(was, name) is not None and getattr(now, name) is None:
                    yield (
                        name,
                        f"{name} is not known",
                        next((n.why for n in self.facts.not_known if word in n.what), ""),
                    )

    def _exceeds(self, was: int, now: int, of: int | None = None) -> bool:
        """Whether a figure is larger by more than it may be, of itself or of another one."""
        return 100 * (now - was) > self.contract.within_percent * (was if of is None else of)

    def _exceeding(self, name: str, of: int | None = None) -> Figure | None:
        figure = self.figures.get(name)
        return figure if figure is not None and self._exceeds(figure.before, figure.after, of) else None

    # --- sets ---------------------------------------------------------------------------------------------------------

    def _effects(self) -> _Found:
        if self.was.without_effect is not None and self.without_effect:
            yield "without_effect", "without effect now", "; ".join(map(_short, self.without_effect[:2]))

    @cached_property
    def without_effect(self) -> list[NoEffect]:
        """What has no effect now, beyond what had none, whatever the names of functions and the numbers."""
        words = lambda text: re.sub(r"`[^`]*`|\d[\d.,]*", "…", text)
        known, new = Counter(map(words, self.was.without_effect or ())), []
        for n in (n for n in self.program.without_effect or () if n.rule):
            if known[key := words(f"{n.rule}: {n.short}")]:
                known[key] -= 1
            else:
                new.append(n)
        return new

    def _names(self) -> _Found:
        if self.was.names is None or set(self.was.names) == set(self.now.names or ()):
            return
        was, now = set(self.was.names), set(self.now.names or ())
        lost, new = (listed(map(repr, sorted(names))) for names in (was - now, now - was))
        parts = [*[f"no policy saves a value under the name {lost} now"] * bool(lost)]
        parts += [f"a policy saves a value under the name {new} now"] * bool(new)
        parts += [_short(n) for n in self.without_effect if lost and lost in n.short][:1]
        before, after = (listed(map(repr, sorted(names))) or "none" for names in (was, now))
        yield "names", f"names {before} → {after}", "; ".join(parts)

    def _donated(self) -> _Found:
        was, now = self.was.donated or {}, self.now.donated or {}
        present = set(map(argument_of, self.program.inputs))
        renamed = Counter(n for name, n in now.items() if name not in was)
        for name, n in was.items():
            if now.get(name, 0) >= n:
                continue
            if name not in present and renamed[n]:
                renamed[n] -= 1
                continue
            m = now.get(name, 0)
            cause = f"only {m:,} of its {n:,} arrays are donated" if m else f"`{name}` is not donated any more"
            yield "donated", f"donations of `{name}` {n} → {m}", cause

    def _dead(self) -> _Found:
        if self.was.dead is None:
            return
        present = set(map(pattern, self.program.parameters))
        below = lambda path: re.sub(r"^\w+", "", path)
        gone = {below(name) for name in self.was.dead if name not in present}  # under another name now, maybe
        for name, n in (self.now.dead or {}).items():
            if n > self.was.dead.get(name, 0) and below(name) not in gone:
                ends = next(why for path, why in (self.program.dead or {}).items() if pattern(path) == name)
                cause = f"its only path to the loss ends at {ends}" if ends.startswith("`") else ends
                yield "dead", f"the gradient in `{name}` is zero now", cause

    def _collectives(self) -> _Found:
        return self._sent("collectives", self.was.collectives, self.now.collectives, self.program.implied)

    def _sent(
        self, fact: str, was: Mapping[str, int] | None, now: Mapping[str, int] | None, rows: Sequence[Collective] | None
    ) -> _Found:
        for kind, n in (now or {}).items():
            if was is None or (kind in was and not self._exceeds(was[kind], n)):
                continue
            row = max((c for c in rows or () if exchange(c) == kind), key=lambda c: c.total_sent_nbytes)
            cause = f"for {in_words(row.what)}{_at(row)}" + f", since {row.cause}" * bool(row.cause)
            if kind in was:
                yield fact, str(Figure(kind, was[kind], n, "bytes")), f"most of it now {cause}"
            else:
                yield fact, f"{kind} is new, {format_bytes(n)}", cause

    # --- what is saved ------------------------------------------------------------------------------------------------

    @cached_property
    def saved(self) -> list[Difference]:
        """The expressions of which more or less is saved, the largest growth first; none if none is locked."""
        before, after = [r.row for r in self.was.saved], list(self.program.saved)
        if any(r.label == OTHERS for r in before):
            after = largest_saved(after, len(before) - 1)
        rows = saved_differences(before, after, _KEYS) if before or self.was.dtypes == {} else ()
        return sorted(rows, key=lambda d: -d.change)

    def _dtypes(self) -> _Found:
        if self.was.dtypes is None or (not self.was.dtypes and self._exceeding("residuals")):
            return
        for dtype, n in (self.now.dtypes or {}).items():
            if dtype not in self.was.dtypes:
                rows = [d for d in self.saved if f"{dtype}[" in d.types]
                cause = self._causes([*(d for d in rows if d.change > 0), *rows])
                yield "dtypes", f"saves {format_bytes(n)} of {dtype}, none before", cause

    def _residuals(self) -> _Found:
        if figure := self._exceeding("residuals"):
            causes = [self._causes(self.saved) or self._largest, *map(_short, self.without_effect[:1])]
            yield "residuals", str(figure), "; ".join(filter(None, causes))
        elif (figure := self.figures.get("residuals")) and figure.change >= 0:
            yield from self._groups(figure.before)

    @property
    def _largest(self) -> str:
        """Where most is saved, if what was saved before is not locked."""
        most = max(self.program.saved, key=lambda r: r.nbytes)
        return f"most of it {format_bytes(most.nbytes)} for `{most.label}`{_at(most)}" * (not self.was.saved)

    def _groups(self, total: int) -> _Found:
        """Of the types of which more is saved, if as much less is saved of others."""
        grown = Counter[str]()
        for d in self.saved:
            grown[d.types.rpartition(" ")[2]] += d.change
        if any(OTHERS in d.what for d in self.saved):
            return  # a row may have become one of the others
        for kind, n in grown.items():
            if self._exceeds(0, n, total):
                rows = [d for d in self.saved if d.types.endswith(kind)]
                yield "residuals", f"residuals of type {kind} {signed(n, 'bytes')}", self._causes(rows)

    def _causes(self, rows: Sequence[Difference]) -> str:
        """The two rows that grow most, in words; of those that stay as large, the first."""
        rows = [d for d in rows if OTHERS not in d.what]
        chosen = [d for d in rows[:2] if d.change > 0] or rows[:1]
        return "; ".join(f"{d.what}{_at(d)}{_why(d.why)}{self._recomputed_before(d)}" for d in chosen)

    def _recomputed_before(self, d: Difference) -> str:
        text = source_line(d.location)
        now = sum(w.recomputed for w in self.program.work or () if w.text == text)
        before = sum(w.recomputed for w in self.was.lines if w.what == text)
        return ", and its line was recomputed before" if text and now < before and d.change > 0 else ""

    @cached_property
    def split(self) -> list[str]:
        """The expressions of which as many bytes are saved as before, in more arrays."""
        return [
            f"`{b.label}`{_at(b)} is saved as {b.count:,} arrays of {b.type}, as {a.count:,} of {a.type} before"
            for a, b in paired_by(_KEYS, [r.row for r in self.was.saved], self.program.saved)
            if a is not None and b is not None and a.nbytes == b.nbytes and b.count > a.count
        ]

    # --- work, and what is compiled -----------------------------------------------------------------------------------

    def _work(self) -> _Found:
        before, after = [r.row for r in self.was.lines], list(self.program.work or ())
        if any(r.text == OTHERS for r in before):
            after = largest_work(after, len(before) - 1)
        rows = sorted(work_differences(before, after), key=lambda d: -d.change) if before else []
        cause = "".join([f"{d.what}{_at(d)}: {d.why}" for d in rows if d.change > 0 and OTHERS not in d.what][:1])
        for figure in (self._exceeding("recomputed", self.was.work), self._exceeding("work")):
            if figure is not None:
                yield figure.name, str(figure), cause

    def _work_in(self) -> _Found:
        """The dtypes in which more is computed, if it is no more in total."""
        total = self.figures.get("work")
        if total is None or self._exceeding("work"):
            return
        for dtype, n in (self.now.work_in or {}).items():
            before = (self.was.work_in or {dtype: n}).get(dtype, 0)
            if self._exceeds(before, n, total.before):
                most = max(self.program.work or (), key=lambda w: w.dtypes.get(dtype, 0))
                cause = f"most of it now for `{most.text}`{_at(most)}"
                yield "work_in", str(Figure(f"work in {dtype}", before, n, "FLOPs")), cause

    def _equations(self) -> _Found:
        figure = self.figures.get("equations")
        if figure and figure.change > max(FEW_EQUATIONS, figure.before * MORE_EQUATIONS // 100):
            yield "equations", str(figure), "".join(self.split[:1])

    def _compiled(self) -> _Found:
        was, now, memory = self.was_compiled, self.now_compiled, self.facts.compiled.memory
        yield from self._sent("exchanged", was.exchanged, now.exchanged, self.facts.compiled.collectives)
        more = {kind: n - was.at_peak.get(kind, 0) for kind, n in now.at_peak.items()}
        most = max(more, key=lambda kind: more[kind], default="")
        cause = ""
        if memory is not None and more[most] > 0:
            first = next(h for h in memory.at_peak if h.kind == most)
            change = signed(more[most], "bytes")
            cause = f"{change} of kind {most} at the peak, the largest of it `{first.what}`{_at(first)}"
        for figure in (self._exceeding("peak"), self._exceeding("temporaries")):
            if figure is not None:
                yield figure.name, f"compiled {figure}", cause


def _at(row: Any) -> str:
    return f" at {short_location(row.location)}" if row.location is not None else ""


def _short(n: NoEffect) -> str:
    return f"{n.short} ({short_location(n.location)})"


def _why(text: str) -> str:
    """The reason of a difference, after what it is about."""
    text = text.removesuffix("; ")
    return f" {text.removeprefix('it ')}" if text.startswith("it ") else f": {text}" * bool(text)
