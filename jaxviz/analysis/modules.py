"""The modules, functions and scopes that an equation belongs to, from named scopes and from calls."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any

from jaxviz.ir import compat
from jaxviz.ir.expressions import called_by, expression_at, shows_source
from jaxviz.ir.origin import ancestors, path_of_calls
from jaxviz.ir.own_code import is_own, owner
from jaxviz.ir.sharing import cleared
from jaxviz.ir.syntax import Equation

_SCOPED_BY_MODULE = tuple(f"{os.sep}{folder}{os.sep}" for folder in (f"flax{os.sep}linen", "haiku", "penzai"))
"""Libraries that record the path of each module as named scopes, and leave their frames out of the user's."""

_INSIDES = (
    f"{os.sep}equinox{os.sep}_",
    f"{os.sep}flax{os.sep}nnx{os.sep}",
    f"{os.sep}numpyro{os.sep}handlers.py",
    f"{os.sep}numpyro{os.sep}primitives.py",
)
"""Where libraries call modules without containing any; nnx's modules are in `flax/nnx/nn`."""

_OF_EQUINOX = "eqx."
"""The start of the scopes that equinox adds for its own layers, but not for the modules around them."""


def scopes_of(equation: Equation, within: Sequence[Equation] = ()) -> Iterator[str]:
    """The named scopes of an equation, preceded by those of the enclosing equations."""
    for e in (*within, equation):
        yield from compat.scopes(e.source)


def module_of(equation: Equation, within: Sequence[Equation] = ()) -> str:
    """`Transformer/blocks_0/LayerNorm_0`: the path of the module that contains an equation; '' if there is none.

    flax linen, haiku and penzai record it as named scopes. For other libraries it consists of the methods that led to
    the equation, each as it was called: `Net/head` for `self.head(x)`, `Net/Block` for `block(x)` of a class `Block`;
    followed by the named scopes.
    """
    # einsum also names a scope, after its formula, which is not a module.
    scopes = [name for name in scopes_of(equation, within) if "," not in name and "->" not in name]
    tracebacks = filter(None, map(_traceback, _held(equation, within)))
    if scopes and any(map(_leaves_scopes, filter(None, map(_traceback, _held(equation, within))))):
        return "/".join(_of_modules(scopes))
    called = next(filter(None, (_modules_on(t, shows_source()) for t in tracebacks)), ())
    return "/".join((*called, *(name for name in scopes if not name.startswith(_OF_EQUINOX))))


def _of_modules(scopes: Sequence[str]) -> list[str]:
    """Scopes without a module's methods that it calls itself: flax records `Net/Net.encode/layer` for
    `self.encode(x)`."""
    path: list[str] = []
    for name in scopes:
        if not path or not name.startswith(f"{path[-1]}."):
            path.append(name)
    return path


def call_path(equation: Equation) -> str:
    """`loss/Net/Block/eqx.nn.Linear`: the functions that were called on the way to an equation, then its named scopes.

    Only the equation's own, not those of enclosing equations, so that inside a program the path is relative to it. For
    a library that records the path of each module as scopes, these alone. '' if nothing is known.
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
    if scopes and traceback is not None and _leaves_scopes(traceback):
        return "/".join(_of_modules(scopes))
    frames = compat.user_frames(traceback) if traceback is not None else ()
    called = [
        frame.function_name.split("<locals>.")[-1].removesuffix(".__call__")
        for frame in reversed(list(takewhile(lambda frame: owner(frame.file_name) != "jaxviz", frames)))
        # Skip a library's internal frames, but keep the call of a module that has no scope.
        if is_own(frame.file_name) or (frame.function_name.endswith(".__call__") and not scopes)
    ]
    return "/".join((*(name for name in called if "<" not in name), *scopes))


def _held(equation: Equation, within: Sequence[Equation]) -> Iterator[Equation]:
    for e in (equation, *reversed(within)):
        yield e
        yield from ancestors(e)


def _traceback(equation: Equation) -> Any:
    return equation.source.traceback if equation.source is not None else None


@cleared
@lru_cache(maxsize=65536)
def _leaves_scopes(traceback: Any) -> bool:
    """Whether an equation comes from a library that leaves paths as scopes."""
    return any(library in frame.file_name for frame in traceback.frames for library in _SCOPED_BY_MODULE)


@cleared
@lru_cache(maxsize=65536)
def _modules_on(traceback: Any, with_source: bool) -> tuple[str, ...]:
    """The methods that lead to an equation, outermost first, with the name that each was called by."""
    frames = [frame for frame in path_of_calls(traceback) if not _is_inside(frame.file)]  # innermost first
    path: list[str] = []
    for i, frame in enumerate(frames):
        called = _method(frame.function)
        outer = frames[i + 1 :]
        if not called or (not frame.function.endswith(called) and any(_method(f.function) == called for f in outer)):
            continue  # not a method, or a function within one that is also on the path
        owner, _, method = called.partition(".")
        name = _called_as(expression_at(outer[0])) if outer else ""
        if name != method:  # otherwise it is a method of the module that calls it
            path.append((name or owner) + ("" if method == "__call__" else f".{method}"))
    return tuple(reversed(path))


def _is_inside(file: str) -> bool:
    """Whether a file is part of a library's code around modules."""
    return any(inside in file for inside in _INSIDES) and f"{os.sep}nn{os.sep}" not in file


def _method(qualified_name: str) -> str:
    """`Block.__call__` from `make.<locals>.Block.__call__.<locals>.<lambda>`; '' for a function that is not a method,
    or a private one."""
    for part in reversed(qualified_name.split(".<locals>.")):
        names = part.split(".")[-2:]
        if len(names) == 2 and names[0][:1].isupper() and (names[1].startswith("__") or not names[1].startswith("_")):
            return ".".join(names)
    return ""


@lru_cache(maxsize=4096)
def _called_as(expression: str) -> str:
    """`norm` for `self.norm(x)` and `jax.vmap(self.norm)(x)`, `layers` for `self.layers[0](x)`; '' if it is not an
    attribute of the object."""
    called = called_by(expression)
    if called is None:
        return ""
    parts = [
        node.attr
        for node in ast.walk(called)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    ]
    return parts[0] if len(parts) == 1 else ""
