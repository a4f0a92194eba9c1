"""Libraries whose modules have checkpoints of their own, and options for them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from jaxviz.features.remat.regions import AROUND_CALLS, Frame, Region
from jaxviz.features.remat.source import alias_of, globals_of
from jaxviz.ir.own_code import owner

_LIBRARIES = ("flax.linen", "flax.nnx", "equinox", "haiku", "penzai")
"""Libraries with their own checkpoints for modules."""
FRAMEWORKS = frozenset(library.partition(".")[0] for library in (*_LIBRARIES, "keras"))
"""Packages whose layers many models have."""
CHECKPOINTS = {
    "flax.linen": "flax.linen.remat",
    "flax.nnx": "flax.nnx.remat",
    "equinox": "equinox.filter_checkpoint",
    "haiku": "haiku.remat",
}
"""Their replacements for jax.checkpoint, for calls of modules."""


def class_of(code: Any) -> Any:
    """The class that a method belongs to; None for a function.

    Of several that one statement has defined in a function, the last.
    """
    path = str(code.co_qualname).split(".")[:-1]
    if not path or path[-1] == "<locals>":
        return None
    if "<locals>" in path:
        name, module = ".".join(path), globals_of(code).get("__name__")
        alike = [c for c in _subclasses(object) if c.__qualname__ == name and c.__module__ == module]
        return alike[-1] if alike else None
    value: Any = globals_of(code).get(path[0])
    for name in path[1:]:
        value = getattr(value, name, None)
    return value


def _subclasses(base: type) -> Iterator[type]:
    pending: list[type] = [base]
    seen = {base}
    while pending:
        below: list[type] = type.__subclasses__(pending.pop())
        classes = [c for c in below if c not in seen]
        seen.update(classes)
        pending += classes
        yield from classes


def library_of(code: Any) -> str:
    """The library whose module a method belongs to; '' for a function, and for a method of any other class."""
    bases: tuple[type, ...] = getattr(class_of(code), "__mro__", ())
    return next((lib for c in bases for lib in _LIBRARIES if f"{c.__module__}.".startswith(f"{lib}.")), "")


def is_module(code: Any) -> bool:
    """Whether it is a call of a library's module, which calls others, rather than the library's code around each call
    of one."""
    return code.co_name == "__call__" and code.co_qualname not in AROUND_CALLS and bool(library_of(code))


def kinds_of(code: Any, frames: Sequence[Frame]) -> tuple[str, ...]:
    """The libraries whose checkpoint may fit a function: JAX's own, and if that refuses its arguments, one that takes
    any."""
    own = library_of(code)
    if own in CHECKPOINTS:
        return (own,)
    if any(globals_of(c).get("__name__", "").startswith("haiku.") for c, _ in frames if c.co_name == "apply_fn"):
        return ("haiku",)  # which keeps parameters apart in what JAX traces
    return ("", "equinox") if "equinox" in sys.modules else ("",)


def checkpoint_of(library: str, file: str, line: int) -> tuple[str, tuple[tuple[str, str], ...]]:
    """How a line of a file writes the checkpoint of a library, or JAX's, and what the file has to import for that."""
    wrapper = CHECKPOINTS.get(library)
    if wrapper is None:
        return "jax.checkpoint", ()
    alias = alias_of(file, library, line)
    package, _, name = library.rpartition(".")
    statement = f"from {package} import {name}" if package else f"import {name}"
    return f"{alias or name}.{wrapper.removeprefix(f'{library}.')}", () if alias else ((name, statement),)


def option_of(region: Region) -> str:
    """``Stacked.init(gradient_checkpointing=…)``: what a library that runs a region has for this itself; '' if it is
    not known to have anything."""
    for code, _ in reversed(next(iter(region.stacks.values()), ())):
        cls = class_of(code) if owner(code.co_filename) == "library" else None
        for name in ("init", "__init__"):
            maker = inspect.unwrap(getattr(cls, name)) if isinstance(cls, type) and hasattr(cls, name) else None
            code_of = getattr(getattr(maker, "__func__", maker), "__code__", None)
            names = (
                code_of.co_varnames[: code_of.co_argcount + code_of.co_kwonlyargcount] if code_of is not None else ()
            )
            options = [n for n in names if "checkpoint" in n or "remat" in n]
            if isinstance(cls, type) and options:
                return f"{cls.__name__}{f'.{name}' * (name == 'init')}({options[0]}=…)"
    return ""
