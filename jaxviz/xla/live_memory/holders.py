"""Who holds an object: the variable or the attribute from which Python reaches it."""

from __future__ import annotations

import gc
import re
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxviz.ir.own_code import is_of_program

_DEPTH = 5


@dataclass(eq=False, slots=True)
class _WayUp:
    """An object on the way up, the number of the object that it leads to, and how that is reached from it."""

    to: Any
    place: int
    path: str


def holders(objects: Sequence[Any], frame: types.FrameType | None) -> list[str]:
    """For each object such as ``"`model.history`, a list of 1,000, in train.py"``; '' if nothing of the user's has it.

    Python's garbage collector is asked who refers to them, for all at once, a few levels up.

    Args:
      frame: of the caller, in whose functions local variables are looked at too.
    """
    found, by_local = [""] * len(objects), [""] * len(objects)
    level = {id(x): [_WayUp(x, i, "")] for i, x in enumerate(objects)}
    local = [(f, f.f_locals) for f in _frames(frame) if f.f_code.co_name != "<module>"]
    for _ in range(_DEPTH):
        level = {key: left for key, ways in level.items() if (left := [w for w in ways if not found[w.place]])}
        for f, names in local:
            for name, held in names.items():
                for way in level.get(id(held), ()):
                    _end(by_local, way, name, f"in {f.f_code.co_name} at {_short(f.f_code.co_filename)}:{f.f_lineno}")
        to = [ways[0].to for ways in level.values()]
        above: dict[int, list[_WayUp]] = {}
        for r in gc.get_referrers(*to):
            if r is to or r is objects or isinstance(r, _WayUp):
                continue
            module = _module_of(r)
            for name, held in _items(r):
                for way in level.get(id(held), ()):
                    if module is None:
                        written = f"[{name!r}]" if isinstance(r, dict) and name != "[…]" else name
                        above.setdefault(id(r), []).append(_WayUp(r, way.place, f"{written}{way.path}"))
                    elif is_of_program(getattr(module, "__file__", None) or "<cell>"):
                        _end(found, way, name, f"in {_short(getattr(module, '__file__', None) or module.__name__)}")
        level = above
    return [other or local for other, local in zip(found, by_local, strict=True)]


def _end(found: list[str], way: _WayUp, name: str, where: str) -> None:
    kind = f", a {type(way.to).__name__} of {len(way.to):,}" if isinstance(way.to, (list, tuple, dict, set)) else ""
    path = re.sub(r"\.__dict__\['(\w+)'\]", r".\1", way.path)
    found[way.place] = found[way.place] or f"`{name}{'' if kind else path}`{kind}, {where}"


def _items(r: Any) -> Iterator[tuple[str, Any]]:
    """What an object refers to, by name."""
    if isinstance(r, dict):
        yield from ((key if isinstance(key, str) else "[…]", x) for key, x in list(r.items()))
    elif isinstance(r, (list, tuple, set)):
        yield from (("[…]", x) for x in list(r))
    elif isinstance(r, types.CellType):
        try:
            yield "", r.cell_contents
        except ValueError:  # it is empty
            return
    elif isinstance(r, types.FunctionType):
        yield ".__closure__", r.__closure__
    elif not isinstance(r, (type, types.ModuleType, types.FrameType)):
        own = getattr(r, "__dict__", None)
        if isinstance(own, dict):
            yield from ((f".{name}", x) for name, x in list(own.items()))
            yield ".__dict__", own


def _frames(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    while frame is not None:
        if is_of_program(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _module_of(r: Any) -> types.ModuleType | None:
    """The module whose variables are in a dict."""
    name = r.get("__name__") if isinstance(r, dict) else None
    module = sys.modules.get(name) if isinstance(name, str) else None
    return module if module is not None and vars(module) is r else None


def _short(file: str) -> str:
    return file.replace("\\", "/").rpartition("/")[2]
