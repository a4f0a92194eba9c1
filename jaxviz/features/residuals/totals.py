"""Sums of what a gradient keeps: by line, by function, by named scope, by module."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from jaxviz.ir import compat
from jaxviz.ir.origin import Location, ancestors, is_framework, is_own_code
from jaxviz.ir.sharing import cleared
from jaxviz.ir.syntax import Equation
from jaxviz.report.report import Data

if TYPE_CHECKING:
    from jaxviz.features.residuals.residual_set import Residual

NO_SCOPE = "no scope"

_SCOPED_BY_MODULE = (f"{os.sep}flax{os.sep}linen{os.sep}", f"{os.sep}haiku{os.sep}")
"""Libraries that leave the path of each module as named scopes."""


@dataclass(frozen=True, slots=True)
class Total(Data):
    """What one line, function, scope or module keeps.

    Args:
      name: of the line, function, scope or module.
      nbytes: of all that it keeps.
      nbytes_per_device: what one device holds of that at most; None where all is on one device.
      count: how many residuals.
      location: the line of the largest of them.
    """

    name: str
    nbytes: int
    nbytes_per_device: int | None
    count: int
    location: Location


def totals(
    residuals: Sequence[Residual], key: Callable[[Residual], Hashable], name: Callable[[Residual], str]
) -> tuple[Total, ...]:
    """One total for each key, largest first; of equal ones that which comes first."""
    groups: dict[Hashable, list[Residual]] = {}
    for r in residuals:
        groups.setdefault(key(r), []).append(r)
    made = []
    for group in groups.values():
        largest = max(group, key=lambda r: r.nbytes)
        size = sum(r.nbytes for r in group)
        made.append(Total(name(largest), size, per_device(group), len(group), largest.location))
    return tuple(sorted(made, key=lambda t: -t.nbytes))


def per_device(residuals: Sequence[Residual]) -> int | None:
    """Bytes of what one device holds at most: what XLA decides how to lay out counts in full. None where all is on one device."""
    if all(r.nbytes_per_device is None for r in residuals):
        return None
    return sum(r.nbytes if r.nbytes_per_device is None else r.nbytes_per_device for r in residuals)


def scope_of(equation: Equation, within: Sequence[Equation] = ()) -> str:
    """`encoder/attention`: the named scopes of an equation, after those of the equations that hold it."""
    return "/".join(_scopes(equation, within))


def _scopes(equation: Equation, within: Sequence[Equation]) -> Iterator[str]:
    for e in (*within, equation):
        yield from compat.scopes(e.source)


def module_of(equation: Equation, within: Sequence[Equation] = ()) -> str:
    """`Transformer/blocks_0/LayerNorm_0`: the path of the module that an equation stands in; '' where there is none.

    Where no library named a scope, the innermost method that led to the equation: `Block.__call__`.
    """
    # einsum names a scope too, by its formula, which is a module of nobody's.
    path = [name for name in _scopes(equation, within) if "," not in name and "->" not in name]
    return "/".join(path) or next(_methods(equation, within), "")


def _methods(equation: Equation, within: Sequence[Equation]) -> Iterator[str]:
    for held in (equation, *reversed(within)):
        for e in (held, *ancestors(held)):
            traceback = e.source.traceback if e.source is not None else None
            if traceback is not None:
                yield from _methods_on(traceback)


@cleared
@lru_cache(maxsize=65536)
def _methods_on(traceback: Any) -> tuple[str, ...]:
    """The methods on the way to an equation, innermost first."""
    frames = takewhile(lambda frame: not is_own_code(frame.file_name), compat.user_frames(traceback))
    # What called jaxviz is not part of the function.
    return tuple(filter(None, (_method(frame.function_name) for frame in frames)))


def _method(qualified_name: str) -> str:
    """`Block.__call__` of `make.<locals>.Block.__call__.<locals>.<lambda>`; '' for a function that is not a method, or a private one."""
    for part in reversed(qualified_name.split(".<locals>.")):
        names = part.split(".")[-2:]
        if len(names) == 2 and names[0][:1].isupper() and (names[1].startswith("__") or not names[1].startswith("_")):
            return ".".join(names)
    return ""


def call_path(equation: Equation) -> str:
    """`loss/Net/Block/eqx.nn.Linear`: the functions that were called on the way to an equation, then the named scopes it is made in.

    The equation's own alone, not those of what holds it, so that inside of a program it is the path from there. flax linen and haiku leave the
    path of each module as scopes, which then stand by themselves. '' where nothing is known.
    """
    return next(filter(None, (path_to(e.source) for e in (equation, *ancestors(equation)))), "")


def path_to(source: Any) -> str:
    """The same as an equation's `source` alone has it."""
    if source is None or (source.traceback is None and not source.name_stack.stack):
        return ""
    return _call_path(source.traceback, compat.scopes(source))


@cleared
@lru_cache(maxsize=65536)
def _call_path(traceback: Any, scopes: tuple[str, ...]) -> str:
    frames = compat.user_frames(traceback) if traceback is not None else ()
    inside = list(takewhile(lambda frame: not is_own_code(frame.file_name), frames))
    # flax has its frames left out of those of the user.
    every = traceback.frames if scopes and traceback is not None else ()
    if any(library in frame.file_name for frame in every for library in _SCOPED_BY_MODULE):
        return "/".join(scopes)
    called = [
        frame.function_name.split("<locals>.")[-1].removesuffix(".__call__")
        for frame in reversed(inside)
        # What a library does inside of itself is left out, but for the call of a module that no scope stands for.
        if not is_framework(frame.file_name) or (frame.function_name.endswith(".__call__") and not scopes)
    ]
    return "/".join((*(name for name in called if "<" not in name), *scopes))
