"""Checkpoints around what a library runs, written in the user's file: around a function or a method that it gives to the library, or around a
class or a function of the library, which the file then replaces.

Whether one of them does what it should is measured before it is shown; see `rewritten.py`.
"""

from __future__ import annotations

import ast
import gc
import inspect
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

from jaxviz.features.remat.edits import Edit, Way, after_imports, around
from jaxviz.features.remat.libraries import CHECKPOINTS, class_of, library_of
from jaxviz.features.remat.regions import Frame, Region, frames_of
from jaxviz.features.remat.source import (
    alias_of,
    definition_of,
    end_of,
    first_line,
    globals_of,
    is_checkpoint,
    last_name,
    start_of,
    tree_of,
)
from jaxviz.ir.own_code import owner


def recipes_of(region: Region) -> Iterator[tuple[Way, ...]]:
    """Ways to put a checkpoint around a region that no line of the user's calls directly, those that change less first."""
    frames = next(iter(region.stacks.values()), ())
    given = _given_function(region, frames)
    if given is not None and library_of(given) in CHECKPOINTS:
        yield from ((way,) for way in _decorated(given, region.is_body))
    elif given is not None:
        yield from ((way,) for way in _around_given(given, frames, region.is_body))
    for code in (region.code, *region.others):
        way = _replaced(code, frames) if code is not None and owner(code.co_filename) == "library" else None
        if way is not None:
            yield (way,)


def _given_function(region: Region, outer: Sequence[Frame]) -> Any:
    """The code of the user's function that a library calls in a region; None if there is none, or more than one."""
    if not region.is_body:
        own = [c for c in (region.code, *region.others) if c is not None and owner(c.co_filename) == "user"]
        return own[0] if len(own) == 1 else None
    found = set()
    for e in next(region.spots).walk():
        frames = frames_of(e.source)
        inner = frames[len(outer) :] if frames[: len(outer)] == tuple(outer) else frames
        found.update([c for c, _ in inner if owner(c.co_filename) == "user"][:1])
    return found.pop() if len(found) == 1 else None


def _decorated(code: Any, in_loop: bool) -> Iterator[Way]:
    """A decorator of a module's method. With Flax it leaves the names of modules, and with them the parameters, as they are."""
    file = code.co_filename
    node = definition_of(file, code.co_firstlineno, code.co_name)
    if isinstance(node, ast.FunctionDef):
        checkpoint, imports = _checkpoint_of(library_of(code), file)
        at, indent = (first_line(node), 0), " " * node.col_offset
        put = lambda text: Edit(file, at, at, f"{indent}{text}\n")
        merging = ", prevent_cse=False" * in_loop
        options = f"{_static_flags(code, library_of(code))}{merging}"
        with_policy = put(f"@partial({checkpoint}{options}{{policy}})")
        yield Way(file, code, (with_policy,), None if options else (put(f"@{checkpoint}"),), imports=imports)


def _around_given(code: Any, frames: Sequence[Frame], in_loop: bool) -> Iterator[Way]:
    """A checkpoint where the user's function is an argument of a call, innermost callers first."""
    merging = ", prevent_cse=False" * in_loop
    seen: set[str] = set()
    for caller, _ in reversed(frames):
        file = caller.co_filename
        if owner(file) != "user" or file in seen:
            continue
        seen.add(file)
        calls = [n for n in ast.walk(tree_of(file)) if isinstance(n, ast.Call) and not is_checkpoint(n)]
        given = [(call, a) for call in calls for a in _arguments(call) if _is_function(a, code, file)]
        if len(given) == 1:
            ((call, a),) = given
            changes = around(file, start_of(a), end_of(a), "jax.checkpoint(", f"{merging}{{policy}})")
            yield Way(file, caller, tuple(changes), call=call)


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(k.value for k in call.keywords)]


def _is_function(node: ast.expr, code: types.CodeType, file: str) -> bool:
    if isinstance(node, ast.Lambda):
        return file == code.co_filename and code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    return isinstance(node, ast.Name | ast.Attribute) and last_name(node) == code.co_name


def _replaced(code: Any, frames: Sequence[Frame]) -> Way | None:
    """A statement after the user's imports that puts a checkpoint in place of a class or a function of a library."""
    caller = next((c for c, _ in reversed(frames) if owner(c.co_filename) == "user"), None)
    names = globals_of(code)
    module = names.get("__name__", "")
    path = str(code.co_qualname).split(".")
    if caller is None or not module or not all(map(str.isidentifier, path)):
        return None
    file, library = caller.co_filename, library_of(code)
    if module.partition(".")[0] == library.partition(".")[0]:  # a layer of Flax itself is everybody's
        return None
    spelled = _spelled(module, globals_of(caller))
    if spelled is None:
        return None
    target = ".".join((spelled[0], *path))
    checkpoint, needed = _checkpoint_of(library, file)
    at = (after_imports(file, caller.co_firstlineno), 0)
    text = f"{target} = {checkpoint}({target}{_static_flags(code, library)}{{policy}})\n"
    return Way(file, caller, (Edit(file, at, at, text),), imports=(spelled, *needed))


def _static_flags(code: types.CodeType, library: str) -> str:
    """`, static_argnums=(2,)` for parameters such as `train=True`, which Python branches on; '' if there are none, or the library sees to it."""
    if library == "equinox":
        return ""
    function = next((f for f in gc.get_referrers(code) if isinstance(f, types.FunctionType)), None)
    defaults = function.__defaults__ if function is not None and function.__defaults__ else ()
    first = code.co_argcount - len(defaults)
    flags = [str(first + i) for i, value in enumerate(defaults) if isinstance(value, bool)]
    return f", static_argnums=({', '.join(flags)},)" if flags else ""


def _checkpoint_of(library: str, file: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """How a file writes the checkpoint of a library, or JAX's, and what it has to import for that."""
    made = CHECKPOINTS.get(library)
    if made is None:
        return "jax.checkpoint", ()
    alias = alias_of(file, library)
    package, _, name = library.rpartition(".")
    line = f"from {package} import {name}" if package else f"import {name}"
    return f"{alias or name}.{made.removeprefix(f'{library}.')}", () if alias else ((name, line),)


def _spelled(module: str, names: dict[str, Any]) -> tuple[str, str] | None:
    """A name for a module and the statement that imports it; None if the user's file has the name for something else."""
    package, _, name = module.rpartition(".")
    if names.get(name, sys.modules.get(module)) is not sys.modules.get(module):
        return None
    return name, f"from {package} import {name}" if package else f"import {name}"


def option_of(region: Region) -> str:
    """``Stacked.init(gradient_checkpointing=…)``: what a library that runs a region has for this itself; '' if it is not known to have anything."""
    for code, _ in reversed(next(iter(region.stacks.values()), ())):
        cls = class_of(code) if owner(code.co_filename) == "library" else None
        for name in ("init", "__init__"):
            made = inspect.unwrap(getattr(cls, name)) if isinstance(cls, type) and hasattr(cls, name) else None
            code_of = getattr(getattr(made, "__func__", made), "__code__", None)
            names = (
                code_of.co_varnames[: code_of.co_argcount + code_of.co_kwonlyargcount] if code_of is not None else ()
            )
            found = [n for n in names if "checkpoint" in n or "remat" in n]
            if isinstance(cls, type) and found:
                return f"{cls.__name__}{f'.{name}' * (name == 'init')}({found[0]}=…)"
    return ""
