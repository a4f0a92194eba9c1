"""The report of what a new environment, such as a newer JAX, changes for a program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from jaxviz.environments.changes import (
    ROUNDINGS,
    SLOWER,
    Judged,
    LeafChange,
    collective_differences,
    decision_differences,
    effects,
    judged_figures,
    saved_differences,
    work_differences,
)
from jaxviz.environments.facts import Environment, Facts, NotKnown
from jaxviz.report.data import Entry
from jaxviz.report.differences import Difference, Figure, difference_table, figure_table
from jaxviz.report.report import Drawn, Part, Report, Table
from jaxviz.report.tables import counted, listed, printable
from jaxviz.xla.compiled_memory.change import MemoryChange


@dataclass(frozen=True, eq=False, repr=False)
class Upgrade(Report, schema="upgrade"):
    """What differs for one program between two environments. See `jaxviz.upgrade`.

    >>> found = jaxviz.upgrade("model.py:loss", "params, x", before="old-env", after="new-env")
    >>> found.worse, found.figures

    Args:
      target: the function, as `module:function`.
      arguments: as written in a call.
      environments: the versions of both.
      facts: the facts of the program in each; None where it fails.
      errors: why it fails in each; '' where it does not.
      leaves: what both compute, the largest differences first.
      not_compared: why values are not compared; '' if they are.
      printed: lines on standard error, such as warnings, that only the second one prints.
    """

    target: str
    arguments: str
    environments: tuple[Environment, Environment]
    facts: tuple[Facts | None, Facts | None] = field(repr=False)
    errors: tuple[str, str] = ("", "")
    leaves: tuple[LeafChange, ...] = field(default=(), repr=False)
    not_compared: str = ""
    printed: tuple[str, ...] = ()

    @property
    def titles(self) -> tuple[str, str]:
        """What both environments are called: by the first version in which they differ."""
        a, b = self.environments
        for name, x, y in (("JAX", a.jax, b.jax), ("jaxlib", a.jaxlib, b.jaxlib), *self._libraries):
            if x != y and x and y:
                return f"{name} {x}", f"{name} {y}"
        return (f"Python {a.python}", f"Python {b.python}") if a.python != b.python else ("before", "after")

    @property
    def _libraries(self) -> list[tuple[str, str, str]]:
        a, b = (e.libraries for e in self.environments)
        return [(name, a[name], b[name]) for name in a if name in b]

    @property
    def about(self) -> str:
        """What the report is about, such as "gradient of `loss` in `params`"."""
        known = next((f for f in self.facts if f is not None), None)
        return known.program.about if known is not None else f"gradient of `{self.target}`"

    @cached_property
    def judged(self) -> tuple[Judged, ...]:
        """The figures that both have, each with what changed it most, and whether it got worse."""
        a, b = self.facts
        return () if a is None or b is None else tuple(judged_figures(a, b))

    @property
    def figures(self) -> tuple[Figure, ...]:
        """The figures that both have."""
        return tuple(j.figure for j in self.judged)

    @cached_property
    def _effects(self) -> tuple[tuple[Difference, ...], str, str]:
        a, b = self.facts
        return ((), "", "") if a is None or b is None else effects(a, b)

    @cached_property
    def worse(self) -> tuple[str, ...]:
        """What got worse, by half a percent or more, and where."""
        _, new, _ = self._effects
        return (
            *(c.text for c in self.leaves if c.not_finite[1] > c.not_finite[0]),
            *(j.text for j in self.judged if j.verdict == "worse" and not j.is_small),
            *[f"without effect now: {new}"] * bool(new),
        )

    @cached_property
    def better(self) -> tuple[str, ...]:
        """What got better, in a few words each."""
        _, _, gone = self._effects
        fallen = [j.figure for j in self.judged if j.verdict == "better" and not j.is_small]
        return (*(f"{f.name} {f.share or f.cells[-1]}" for f in fallen), *[f"no longer: {gone}"] * bool(gone))

    @property
    def values(self) -> str:
        """``the values agree within their noise``, or which differ, in a clause."""
        if self.not_compared:
            return "values are not compared"
        apart = [c for c in self.leaves if not c.agrees]
        if not apart:
            return "the values are the same" if not any(c.difference for c in self.leaves) else _AGREE
        more = f" (and {len(apart) - 1:,} more)" if len(apart) > 1 else ""
        return f"{apart[0].text}{more}"

    @property
    def summary(self) -> str:
        """the gradient of `loss` in `params` from JAX 0.10.2 to 0.12.0: worse: saved bytes 18.3 MiB → 19.8 MiB, …."""
        first, second = self.titles
        of = f"the {self.about}{',' if ', which' in self.about else ''}"
        if any(self.errors):
            failing = [title for title, error in zip(self.titles, self.errors, strict=True) if error]
            why = next(filter(None, self.errors)).splitlines()[0]
            return f"{of} fails with {' and with '.join(failing)}: {why}"
        name = f"{first.partition(' ')[0]} "
        head = f"{of} from {first} to {second.removeprefix(name)}{self._others(name.strip())}"
        is_small = any(j.verdict == "worse" and j.is_small for j in self.judged)
        nothing = f"nothing{self._of_what} got worse{' by half a percent or more' * is_small}"
        worse = f"worse: {'; '.join(self.worse)}" if self.worse else nothing
        parts = [worse, *[f"better: {', '.join(self.better)}"] * bool(self.better)]
        differs = any(not c.agrees for c in self.leaves)
        return f"{head}: {'; '.join([self.values, *parts] if differs else [*parts, self.values])}"

    def _others(self, first: str) -> str:
        """``, with other versions of flax and numpy``: the libraries besides the one that names the environments."""
        others = [name for name, x, y in self._libraries if x != y and name != first]
        return f", with other versions of {listed(others)}" if others else ""

    @property
    def _of_what(self) -> str:
        """` that could be compared`, if something could not."""
        return " that could be compared" if self._not_known else ""

    @property
    def _not_known(self) -> tuple[tuple[str, NotKnown], ...]:
        pairs = zip(self.titles, self.facts, strict=True)
        return tuple((title, n) for title, f in pairs if f is not None for n in f.not_known if n.what != "values")

    # --- parts --------------------------------------------------------------------------------------------------------

    def _parts(self) -> Iterator[Part]:
        for title, error in zip(self.titles, self.errors, strict=True):
            if error:
                yield f"With {title}:"
                yield Drawn("\n".join(f"  {printable(line)}" for line in error.splitlines()))
        yield from self._tables()
        yield from self.notes

    def _tables(self) -> Iterator[Part]:
        a, b = self.facts
        if a is None or b is None:
            for title, only in zip(self.titles, self.facts, strict=True):
                if only is not None:
                    rows = [f.cells[:2] for f in (j.figure for j in judged_figures(only, only))]
                    yield Table(("", title), rows, "<>")
            return
        yield figure_table(self.figures, *self.titles)
        captions = {
            "saved values that differ": self.residuals,
            "lines that compute more or less, in FLOPs": self.work,
            "what differs at the peak of the compiled program": self.compiled,
            "what each device sends more or less of": self.collectives,
            "policies that decide differently": self.decisions,
            "what has no effect in one of them only": self.without_effect,
        }
        for caption, differences in captions.items():
            if differences:
                yield difference_table(differences, caption)
        apart = [c for c in self.leaves if not c.agrees]
        if apart:
            heads = ("array", "type", "norm", "difference", "noise", "not finite")
            yield Table(heads, [_cells(c) for c in apart], "<<>>>>", "arrays that differ by more than their noise")

    @cached_property
    def residuals(self) -> tuple[Difference, ...]:
        """What the gradient saves more or less of."""
        a, b = self.facts
        return () if a is None or b is None else saved_differences(a.program.saved, b.program.saved)

    @cached_property
    def work(self) -> tuple[Difference, ...]:
        """The lines that compute more or less."""
        a, b = self.facts
        if a is None or b is None or a.program.work is None or b.program.work is None:
            return ()
        return work_differences(a.program.work, b.program.work)

    @cached_property
    def compiled(self) -> tuple[Difference, ...]:
        """What the compiled program has more or less of at its peak."""
        a, b = self.facts
        if a is None or b is None or a.compiled.memory is None or b.compiled.memory is None:
            return ()
        return tuple(c.difference for c in MemoryChange(a.compiled.memory, b.compiled.memory).changes)

    @cached_property
    def collectives(self) -> tuple[Difference, ...]:
        """What each device sends more or less of."""
        a, b = self.facts
        if a is None or b is None or a.compiled.collectives is None or b.compiled.collectives is None:
            return ()
        return collective_differences(a.compiled.collectives, b.compiled.collectives)

    @cached_property
    def decisions(self) -> tuple[Difference, ...]:
        """The policies that decide differently."""
        a, b = self.facts
        return () if a is None or b is None else decision_differences(a.program.decisions, b.program.decisions)

    @property
    def without_effect(self) -> tuple[Difference, ...]:
        """What has no effect in one of them only."""
        return self._effects[0]

    @property
    def notes(self) -> tuple[str, ...]:
        """The versions, what is not compared, and how values and times are judged."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        yield f"{self._versions}."
        yield from (f"Not known with {title}: {n.what}. {n.why}" for title, n in self._not_known)
        _, b = self.facts
        if self.not_compared:
            yield f"Values are not compared: {self.not_compared}."
        elif self.leaves:
            largest = max(c.times_noise for c in self.leaves)
            by = f"; here by up to {largest:.2g} times" if largest else ""
            yield (
                f"Values agree if they differ by at most {ROUNDINGS} times what other last digits of each argument "
                f"change{by}."
            )
        if b is not None and b.values is not None and b.values.replaced:
            yield (
                f"The arguments themselves differ, in {listed(f'`{name}`' for name in b.values.replaced)}: both are "
                f"computed with those of {self.titles[0]}."
            )
        if self._closes_over_others:
            yield "The function closes over arrays that differ, which may be why values do."
        if any(j.figure.unit == "ms" for j in self.judged):
            n = min(len(f.compiled.compilations) for f in self.facts if f is not None)
            yield (
                f"The compile time is the median CPU time of {counted(n, 'compilation')} without caches. It counts as "
                f"longer if each of them is longer than all before, and the median {SLOWER:g} times."
            )
        if self.printed:
            yield f"Only {self.titles[1]} prints:"
            yield from self.printed[:_PRINTED]

    @property
    def _closes_over_others(self) -> bool:
        digests = [f.values.constants for f in self.facts if f is not None and f.values is not None]
        return len(set(digests)) > 1

    @property
    def _versions(self) -> str:
        a, b = self.environments
        pairs = [("JAX", a.jax, b.jax), ("jaxlib", a.jaxlib, b.jaxlib), ("Python", a.python, b.python)]
        pairs += self._libraries
        flags = [(name, a.flags[name], b.flags[name]) for name in a.flags if name in b.flags]
        differ = [f"{name} {x} → {y}" for name, x, y in pairs if x != y]
        differ += [f"{name} {x} → {y}" for name, x, y in flags if x != y]
        return f"Versions and flags that differ: {', '.join(differ)}" if differ else "Versions and flags are the same"

    _data: ClassVar[tuple[Entry, ...]] = (
        "target", "arguments", "environments", "errors", "worse", "better", "values", "figures=judged", "residuals",
        "work", "compiled", "collectives", "decisions", "without_effect", ("leaves", ("before", "after", "difference",
        "noise", "agrees")), "notes",
    )  # fmt: skip


_AGREE = "the values agree within their noise"
_PRINTED = 5
"""How many lines of warnings a report has."""


def _cells(c: LeafChange) -> tuple[str, ...]:
    m, n = c.not_finite
    changed = f"{m:,} → {n:,}" if m != n else f"{n:,}" * bool(n)
    return c.name, c.after.type, f"{c.before.norm:.3g}", f"{c.difference:.2g}", f"{c.noise:.2g}", changed
