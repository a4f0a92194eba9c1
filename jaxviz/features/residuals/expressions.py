"""What a gradient saves for each expression of the user's: the overview's rows,
each of one or several groups of residuals."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from jaxviz.analysis.grouping import alike, grouped
from jaxviz.analysis.naming import written_at
from jaxviz.features.residuals.residual import Residual, ResidualGroup, without_readers
from jaxviz.features.residuals.totals import merged_paths
from jaxviz.ir.origin import Location
from jaxviz.report.tables import format_bytes, listed

if TYPE_CHECKING:
    from jaxviz.features.residuals.residual_set import ResidualSet


@dataclass(frozen=True, eq=False)
class SavedExpression:
    """The saved values of one of the user's expressions, or of one module of a library in it.

    Args:
      groups: its groups of residuals, largest first.
    """

    groups: tuple[ResidualGroup, ...]

    @property
    def residuals(self) -> tuple[Residual, ...]:
        """Its values."""
        return tuple(r for g in self.groups for r in g.residuals)

    @property
    def location(self) -> Location:
        """The user's line."""
        return self.groups[0].location

    @cached_property
    def nbytes(self) -> int:
        """The bytes of all its values."""
        return sum(g.nbytes for g in self.groups)

    @cached_property
    def _counts(self) -> Counter[Hashable]:
        """How many values it has of each of its operations, one per iteration."""
        counts: Counter[Hashable] = Counter()
        for r in self.residuals:
            counts[r.repeats] += math.prod(r.lengths)
        return counts

    @property
    def times(self) -> int:
        """How often it is evaluated, in layers, calls and iterations: as most of its operations are."""
        ((n, _),) = Counter(self._counts.values()).most_common(1)
        return max(1, n)

    @property
    def values(self) -> int:
        """How many values each evaluation saves."""
        return max(1, round(self._counts.total() / self.times))

    @cached_property
    def label(self) -> str:
        """`h = jnp.tanh(x @ w)`, or the path of the module."""
        if modules := [m for r in self.residuals if (m := r.words.leading_module)]:
            return alike(modules)
        first = self.groups[0]
        is_carried = first.residuals[0].words.sources[0].carry is not None
        return first.label if is_carried else written_at(first.location) or first.label

    @property
    def reason(self) -> str:
        """`tanh's derivative multiplies the tangent by it (12.0 MiB);
        the rest is saved for the derivatives of mul and exp.`"""
        why = {g: _ASIDE.sub("", without_readers(g.residuals[0].why)) for g in self.groups}
        size = lambda same: sum(g.nbytes for g in same)
        first, *rest = sorted(grouped(self.groups, why.__getitem__), key=lambda same: -size(same))
        said = why[first[0]]
        if not rest:
            return f"{said}."
        rules = dict.fromkeys(g.rule for same in rest for g in same)
        others = listed(rule.rpartition(" of ")[2] for rule in rules if rule and rule != first[0].rule)
        by = f"for the derivative{'s' * (len(rules) > 1)} of {others}" if others else "for the same derivative"
        return f"{said} ({format_bytes(size(first))}); the rest is saved {by}."


_ASIDE = re.compile(r" \(and \d+ other uses?\)")


def saved_expressions(residuals: ResidualSet) -> tuple[SavedExpression, ...]:
    """The saved values by expression, largest first."""
    groups = [g for g in residuals.groups if g.residuals[0].is_saved]
    modules = merged_paths([g.residuals for g in groups], lambda r: r.words.leading_module)
    place = lambda g: (
        g.location, g.location.column, g.location.end_line, g.location.end_column, modules[g.residuals[0]]
    )  # fmt: skip
    return tuple(sorted(map(SavedExpression, grouped(groups, place)), key=lambda e: -e.nbytes))
