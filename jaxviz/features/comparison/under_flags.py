"""One function under other flags of JAX: what they change for its gradient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import jax

from jaxviz.analysis.checkpoints import NoEffect, effect_rows, effects_apart, in_short
from jaxviz.derivation import STAGES, Derivation
from jaxviz.features.comparison.report import Comparison
from jaxviz.features.remat.without_effect import without_effect
from jaxviz.ir import compat
from jaxviz.ir.emit import as_function
from jaxviz.ir.errors import JaxvizError, NoRuleError
from jaxviz.report.data import Entry
from jaxviz.report.differences import Difference, difference_table
from jaxviz.report.report import Table
from jaxviz.report.tables import listed
from jaxviz.runtime.flags import Flags, applied_before, flags_text, under_flags


@dataclass(frozen=True, eq=False, repr=False)
class FlagComparison(Comparison, schema="compare.flags"):
    """What flags of JAX change of a function and of its gradient. See `compare`.

    >>> found = jaxviz.compare(loss, loss, params, x, flags=({}, {"jax_remat3": True}))
    >>> found.is_same, found.same_lines, found.without_effect

    Args:
      before, after: the derivations.
      flags: those of each.
      without_effect: for each, the checkpoints, policies, names, offloads and donations without effect.
    """

    flags: tuple[Flags, Flags] = ({}, {})
    without_effect: tuple[tuple[NoEffect, ...], tuple[NoEffect, ...]] = field(default=((), ()), repr=False)

    @cached_property
    def same_lines(self) -> float:
        """The share of the bytes of the residuals that are saved at the same line, and for the same reason, with
        both."""
        before, after = (Counter[object]() for _ in self.flags)
        for counts, d in ((before, self.before), (after, self.after)):
            for r in d.residuals:
                counts[r.location.file, r.location.line, r.why] += r.nbytes
        most = max(before.total(), after.total())
        return (before & after).total() / most if most else 1.0

    @cached_property
    def effects(self) -> tuple[Difference, ...]:
        """What has no effect with one of them only."""
        return effect_rows(*effects_apart(*self.without_effect))

    @property
    def is_same(self) -> bool:
        """Whether the programs are the same, in every stage, and the same has no effect."""
        return super().is_same and not self.effects

    @property
    def summary(self) -> str:
        """the gradient of `loss` in `w` with jax_remat3: saved bytes -2.0 KiB (-48%); …."""
        before, after = (flags_text(flags) or "the flags as they are" for flags in self.flags)
        which = f"the {self.before.title} with {after}" + (f", compared with {before}" if self.flags[0] else "")
        if self.is_same:
            return f"{which} is the same program"
        parts = [f"{f.name} {f.cells[-1]}" for f in self.figures if f.unit != "equations" and f.change]
        if self.same_lines < 1:
            parts.append(f"{100 * self.same_lines:.0f} % of the bytes on the same lines for the same reasons")
        gone, new = map(in_short, effects_apart(*self.without_effect))
        parts += filter(None, [new, f"no longer: {gone}" * bool(gone)])
        return f"{which}: {'; '.join(parts) or 'other equations, the same figures'}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Those of any comparison, and what a flag came too late for."""
        early = listed(dict.fromkeys(name for flags in self.flags for name in applied_before(flags)))
        late = (
            f"{compat.JAX} reads the flag when {early} is applied: a function to which it was applied before "
            "is the same with any flag."
        )
        return (*super().notes, *[late] * bool(early))

    @property
    def _titles(self) -> tuple[str, str]:
        before, after = map(flags_text, self.flags)
        return before or "as it is", after or "as it is"

    def _tables(self) -> Iterator[Table]:
        yield from super()._tables()
        if self.effects:
            yield difference_table(self.effects, "what has no effect with one of them")

    _data: ClassVar[tuple[Entry, ...]] = (*Comparison._data, "flags=_flags", "same_lines", "without_effect=effects")

    @property
    def _flags(self) -> tuple[Mapping[str, str], ...]:
        return tuple({name: str(value) for name, value in flags.items()} for flags in self.flags)


def derived_under(flags: Flags, derived: Callable[[], Derivation]) -> tuple[Derivation, tuple[NoEffect, ...]]:
    """A derivation under flags, with all of its programs, which would otherwise be derived later under others; and what
    has no effect."""
    with under_flags(flags):
        try:
            derivation = derived()
            for stage in STAGES:
                try:
                    getattr(derivation, stage)
                except NoRuleError as error:
                    _refuse_as_jax(derivation, error)
                except JaxvizError:  # raised again by whoever needs the stage
                    pass
            return derivation, tuple(without_effect(derivation))
        except Exception as error:
            error.add_note(f"Raised with {flags_text(flags) or 'the flags as they are'}.")
            raise


def _refuse_as_jax(derivation: Derivation, error: NoRuleError) -> None:
    """Raises JAX's own error, if JAX does not differentiate the function either, as with a loop under `jax_scan3`."""
    try:
        jax.eval_shape(lambda *inputs: jax.vjp(as_function(derivation.primal), *inputs)[0], *derivation.primal.in_avals)
    except NotImplementedError as refused:
        raise refused from error
