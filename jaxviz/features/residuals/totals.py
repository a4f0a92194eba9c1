"""Sums of residuals: by line, by function, by named scope, by module."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxviz.analysis.grouping import alike, grouped, without_repeats
from jaxviz.ir.origin import Location
from jaxviz.report.data import Data

if TYPE_CHECKING:
    from jaxviz.features.residuals.residual import Residual

NO_SCOPE = "no scope"


@dataclass(frozen=True, slots=True)
class Total(Data):
    """The residuals of one line, function, scope or module.

    Args:
      nbytes_per_device: the largest number of these bytes on one device; None if everything is on one device.
      location: the line of the largest residual.
    """

    name: str
    nbytes: int
    nbytes_per_device: int | None
    count: int
    location: Location


def totals(
    residuals: Sequence[Residual], key: Callable[[Residual], Hashable], name: Callable[[Residual], str]
) -> tuple[Total, ...]:
    """One total for each key, largest first; equal ones in order of first occurrence."""
    rows = []
    for group in grouped(residuals, key):
        largest = max(group, key=lambda r: r.nbytes)
        size = sum(r.nbytes for r in group)
        rows.append(Total(name(largest), size, per_device(group), len(group), largest.location))
    return tuple(sorted(rows, key=lambda t: -t.nbytes))


def path_totals(groups: Iterable[Sequence[Residual]], path: Callable[[Residual], str]) -> tuple[Total, ...]:
    """One total for each path, with repeated layers merged: `Net/blocks_0…11/Dense_0`; of groups of one expression."""
    names = merged_paths(groups, path)
    return totals([*names], names.__getitem__, names.__getitem__)


def merged_paths(groups: Iterable[Sequence[Residual]], path: Callable[[Residual], str]) -> dict[Residual, str]:
    """The path of each residual, with repeated layers merged. See `path_totals`."""
    groups = list(groups)
    key = without_repeats([[path(r) for r in group] for group in groups])
    together = grouped((r for group in groups for r in group), lambda r: key(path(r)))
    return {r: name for part in together for name in [alike([path(r) for r in part])] for r in part}


def per_device(residuals: Sequence[Residual]) -> int | None:
    """The most bytes on one device: values whose layout XLA chooses count in full.

    None if everything is on one device.
    """
    if all(r.nbytes_per_device is None for r in residuals):
        return None
    return sum(r.nbytes_on_one for r in residuals)
