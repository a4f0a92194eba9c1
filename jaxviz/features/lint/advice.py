"""One piece of advice of `jaxviz.lint`."""

from __future__ import annotations

from dataclasses import dataclass

from jaxviz.features.residuals.residual import Residual
from jaxviz.ir.origin import Location
from jaxviz.report.data import Data
from jaxviz.report.tables import format_bytes, short_location, wrapped


@dataclass(frozen=True, eq=False)
class Advice(Data):
    """One piece of advice.

    >>> for advice in jaxviz.lint(loss, params, x):
    ...     print(advice.rule, advice.location, advice.nbytes, advice.fix)

    Args:
      rule: the id of the rule in `LINT_RULES`.
      text: what the rule found, in a sentence or two.
      fix: what to write instead.
      location: the user's line.
      nbytes: the bytes at stake, summed over all times that the line runs; 0 for advice that is not about bytes.
      count: how often the rule applies on that line.
      residuals: the residuals concerned.
      unread_nbytes: further bytes of values that the backward pass does not read, so that XLA drops them anyway.
    """

    rule: str
    text: str
    fix: str
    location: Location
    nbytes: int = 0
    count: int = 1
    residuals: tuple[Residual, ...] = ()
    unread_nbytes: int = 0

    @property
    def head(self) -> str:
        """`cheap-recompute at model.py:12 in layer, 12 ×: 96.0 KiB`."""
        where = f"{short_location(self.location)} in {self.location.function}"
        size = f": {format_bytes(self.nbytes)}" if self.nbytes else ""
        return f"{self.rule} at {where}{f', {self.count:,} ×' if self.count > 1 else ''}{size}"

    def __str__(self) -> str:
        return "\n".join([self.head, *(wrapped(part) for part in (self.text, f"Instead: {self.fix}"))])

    __repr__ = __str__

    _data = ("rule", "text", "fix", "location", "nbytes", "count", "unread_nbytes", "residuals=_names")

    @property
    def _names(self) -> list[str]:
        return [r.name for r in self.residuals]
