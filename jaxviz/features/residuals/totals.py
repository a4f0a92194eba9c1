"""Sums of residuals: by line, by function, by named scope, by module."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from jaxviz.analysis.grouping import alike, grouped, without_repeats
from jaxviz.features.residuals.modules import scopes_of
from jaxviz.ir import compat
from jaxviz.ir.origin import Location, ancestors
from jaxviz.ir.own_code import is_own, owner
from jaxviz.ir.sharing import cleared
from jaxviz.ir.syntax import Equation
from jaxviz.report.report import Data

if TYPE_CHECKING:
    from jaxviz.features.residuals.residual import Residual

NO_SCOPE = "no scope"

_SCOPED_BY_MODULE = (f"{os.sep}flax{os.sep}linen{os.sep}", f"{os.sep}haiku{os.sep}")
"""Libraries that record the path of each module as named scopes."""


@dataclass(frozen=True, slots=True)
class Total(Data):
    """The residuals of one line, function, scope or module.

    Args:
      name: the name of the line, function, scope or module.
      nbytes: the sum of their bytes.
      nbytes_per_device: the largest number of these bytes on one device; None if everything is on one device.
      count: the number of residuals.
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
    made = []
    for group in grouped(residuals, key):
        largest = max(group, key=lambda r: r.nbytes)
        size = sum(r.nbytes for r in group)
        made.append(Total(name(largest), size, per_device(group), len(group), largest.location))
    return tuple(sorted(made, key=lambda t: -t.nbytes))


def path_totals(groups: Iterable[Sequence[Residual]], path: Callable[[Residual], str]) -> tuple[Total, ...]:
    """One total for each path, with repeated layers merged: `Net/blocks_0…11/Dense_0`.

    Args:
      groups: groups of residuals of one expression.
      path: the path of a residual.
    """
    groups = list(groups)
    key = without_repeats([[path(r) for r in group] for group in groups])
    together = grouped((r for group in groups for r in group), lambda r: key(path(r)))
    names = {r: name for part in together for name in [alike([path(r) for r in part])] for r in part}
    return totals([*names], names.__getitem__, names.__getitem__)


def per_device(residuals: Sequence[Residual]) -> int | None:
    """The most bytes on one device: values whose layout XLA chooses count in full. None if everything is on one device."""
    if all(r.nbytes_per_device is None for r in residuals):
        return None
    return sum(r.nbytes if r.nbytes_per_device is None else r.nbytes_per_device for r in residuals)


def scope_of(equation: Equation, within: Sequence[Equation] = ()) -> str:
    """`encoder/attention`: the named scopes of an equation, preceded by those of the enclosing equations."""
    return "/".join(scopes_of(equation, within))


def call_path(equation: Equation) -> str:
    """`loss/Net/Block/eqx.nn.Linear`: the functions that were called on the way to an equation, then its named scopes.

    Only the equation's own, not those of enclosing equations, so that inside a program the path is relative to it. flax linen and haiku
    record the path of each module as scopes, which are then used alone. '' if nothing is known.
    """
    return next(filter(None, (path_to(e.source) for e in (equation, *ancestors(equation)))), "")


def path_to(source: Any) -> str:
    """The same from an equation's `source` alone."""
    if source is None or (source.traceback is None and not source.name_stack.stack):
        return ""
    return _call_path(source.traceback, compat.scopes(source))


@cleared
@lru_cache(maxsize=65536)
def _call_path(traceback: Any, scopes: tuple[str, ...]) -> str:
    frames = compat.user_frames(traceback) if traceback is not None else ()
    inside = list(takewhile(lambda frame: owner(frame.file_name) != "jaxviz", frames))
    # flax excludes its frames from the user's.
    every = traceback.frames if scopes and traceback is not None else ()
    if any(library in frame.file_name for frame in every for library in _SCOPED_BY_MODULE):
        return "/".join(scopes)
    called = [
        frame.function_name.split("<locals>.")[-1].removesuffix(".__call__")
        for frame in reversed(inside)
        # Skip a library's internal frames, but keep the call of a module that has no scope.
        if is_own(frame.file_name) or (frame.function_name.endswith(".__call__") and not scopes)
    ]
    return "/".join((*(name for name in called if "<" not in name), *scopes))
