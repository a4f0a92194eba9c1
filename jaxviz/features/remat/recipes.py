"""Checkpoints around what a library runs, written in the user's file: around a function or a method that it gives to the library, or around a
class or a function of the library, which the file then replaces.

Whether one of them does what it should is measured before it is shown; see `rewritten.py`.
"""

from __future__ import annotations

import ast
import gc
import inspect
import itertools
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

from jaxviz.features.remat.edits import Edit, Way, after_imports, around
from jaxviz.features.remat.libraries import CHECKPOINTS, FRAMEWORKS, class_of, in_library, library_of
from jaxviz.features.remat.regions import AROUND_CALLS, Frame, Region, frames_of, place_of
from jaxviz.features.remat.source import (
    Function,
    alias_of,
    call_at,
    closed_over,
    definition_of,
    end_of,
    first_line,
    globals_of,
    is_checkpoint,
    last_name,
    start_of,
    tree_of,
    value_of,
    without_checkpoint,
)
from jaxviz.ir.own_code import owner


def recipes_of(region: Region) -> Iterator[tuple[Way, ...]]:
    """Ways to put a checkpoint around a region that no line of the user's is known to call by itself, those that change less first."""
    frames = next(iter(region.stacks.values()), ())
    if not region.is_body:
        yield from _around_called(region)
    for given in _given_functions(region, frames):
        around_it = [] if library_of(given) in CHECKPOINTS else list(_around_given(given, frames, region.is_body))
        # What is only run on import cannot be measured.
        around_it.sort(key=lambda way: not _runs(way.code, way.call))
        n = sum(_runs(way.code, way.call) for way in around_it)
        yield from ((way,) for way in (*around_it[:n], *_decorated(given, frames, region.is_body), *around_it[n:]))
    yield from ((way,) for way in _around_made(region, frames))
    for code in (region.code, *region.others):
        way = _replaced(code, frames) if code is not None and owner(code.co_filename) == "library" else None
        if way is not None:
            yield (way,)


def _around_called(region: Region) -> Iterator[tuple[Way, ...]]:
    """A checkpoint where the user's lines call what runs the region alone."""
    codes = [region.code, *region.others]
    found: dict[ast.Call, Frame] = {}
    for frames in region.stacks.values():
        level = next((i for i, (c, _) in enumerate(frames) if c in codes), 0)
        before = [f for f in frames[:level] if f[0].co_qualname not in AROUND_CALLS]
        call = call_at(place_of(*before[-1])) if before and owner(before[-1][0].co_filename) == "user" else None
        if call is None:
            return
        found[call] = before[-1]
    for library in _kinds(region.code, next(iter(region.stacks.values()))):
        as_module = library not in ("", "equinox", "haiku")
        made = [
            in_library(library, region.code, by, call) if as_module else _around_callee(call, by, library)
            for call, by in found.items()
        ]
        if None not in made:
            yield tuple(way for way in made if way is not None)


def _around_callee(call: ast.Call, by: Frame, library: str) -> Way | None:
    file = by[0].co_filename
    maker = value_of(file, call.func.func, globals_of(by[0])) if isinstance(call.func, ast.Call) else None
    if str(getattr(maker, "__module__", "")).partition(".")[0] == "jax":
        library = ""  # what `jax.vmap` returns is a function, whatever it was given
    checkpoint, imports = _checkpoint_of(library, file, call.lineno)
    # What JAX would trace, and Python may branch on.
    is_fixed = lambda a, *more: (
        library != "equinox" and isinstance(a, ast.Constant) and isinstance(a.value, (bool, str, *more))
    )
    fixed = [k for k in call.keywords if is_fixed(k.value, int, type(None))]
    numbers = [str(i) for i, a in enumerate(call.args) if is_fixed(a)]
    static = f", static_argnums=({', '.join(numbers)},)" if numbers else ""
    first = min(map(start_of, fixed), default=end_of(call))
    if any(start_of(n) > first for n in (*call.args, *(k for k in call.keywords if k not in fixed))):
        return None
    inside = [n for n in (*call.args, *(k.value for k in call.keywords)) if start_of(n) < first]
    gone = [Edit(file, max(map(end_of, inside)), end_of(fixed[-1]), "")] if fixed and inside else []
    given = "".join(f", {ast.unparse(k)}" for k in fixed)
    callee = without_checkpoint(call.func)
    start, end = start_of(callee), end_of(callee)
    head, tail = (f"{checkpoint}(partial(", f"{given})") if fixed else (f"{checkpoint}(", "")
    tail += f"{static}{{policy}})"
    return Way(file, by[0], (*around(file, start, end, head, tail), *gone), imports=imports, call=call)


def _around_made(region: Region, frames: Sequence[Frame]) -> Iterator[Way]:
    """A checkpoint where the user calls a function of a library that makes what is run: around the call, or what is made from an argument, around
    that."""
    merging = ", prevent_cse=False" * region.is_body
    codes = (
        [*(c for c, _ in frames), *dict.fromkeys(itertools.chain(*_inside(region, frames)))]
        if region.is_body
        else [region.code, *region.others]
    )
    callers = {c.co_filename: c for c, _ in frames if owner(c.co_filename) == "user"}
    nested = [
        c
        for c in dict.fromkeys(codes)
        if c is not None and owner(c.co_filename) == "library" and "<locals>" in c.co_qualname
    ]
    functions_of: dict[Any, list[Any]] = {code: [] for code in nested}
    # One look at all objects, of which there may be millions.
    for f in gc.get_referrers(*nested) if nested else ():
        if isinstance(f, types.FunctionType) and f.__code__ in functions_of:
            functions_of[f.__code__].append(f)
    for code, functions in functions_of.items():
        path = code.co_qualname.split(".<locals>.")
        maker = globals_of(code).get(path[0])
        if not isinstance(maker, types.FunctionType) or len(functions) != 1:
            continue
        written = definition_of(maker.__code__.co_filename, maker.__code__.co_firstlineno, maker.__name__)
        named = list(ast.walk(written)) if written is not None else []
        stored = {n.id for n in named if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        returned = {last_name(n.value) for n in named if isinstance(n, ast.Return) and n.value is not None}
        held = closed_over(functions[0])
        for file, caller in callers.items():
            tree, line, names = tree_of(file), caller.co_firstlineno, globals_of(caller)
            # Where what the caller closes over was made.
            away = {
                n
                for f in ast.walk(tree)
                if isinstance(f, Function) and not f.lineno < line <= end_of(f)[0]
                for n in ast.walk(f)
            }
            calls = [
                n for n in ast.walk(tree) if isinstance(n, ast.Call) and last_name(n.func) == path[0] and n not in away
            ]
            calls = [n for n in calls if value_of(file, n.func, names) is maker]
            for call in calls if len(calls) == 1 else ():
                is_it = len(path) == 2 and returned == {path[1]}
                given = zip(inspect.signature(maker).parameters, call.args, strict=False)
                of_argument = [(a, held[p]) for p, a in given if p in held and p not in stored]
                for node, made in [*of_argument, (call, functions[0])] if is_it else of_argument:
                    if isinstance(made, types.FunctionType):
                        changes = around(file, start_of(node), end_of(node), "jax.checkpoint(", f"{merging}{{policy}})")
                        yield Way(file, caller, tuple(changes), made=made)


def _inside(region: Region, outer: Sequence[Frame]) -> Iterator[list[Any]]:
    """The code that led to each equation in the body of a scan, outermost first."""
    for e in next(region.spots).walk():
        frames = frames_of(e.source)
        yield [c for c, _ in (frames[len(outer) :] if frames[: len(outer)] == tuple(outer) else frames)]


def _runs(code: Any, call: ast.Call | None) -> bool:
    """Whether a call is in some code, rather than elsewhere in its file."""
    return call is not None and call.lineno in {line for _, _, line in code.co_lines()}


def _kinds(code: Any, frames: Sequence[Frame]) -> tuple[str, ...]:
    """The libraries whose checkpoint may fit a function: JAX's own, and if that refuses its arguments, one that takes any."""
    own = library_of(code)
    if own in CHECKPOINTS:
        return (own,)
    if any(globals_of(c).get("__name__", "").startswith("haiku.") for c, _ in frames if c.co_name == "apply_fn"):
        return ("haiku",)  # which keeps parameters apart in what JAX traces
    return ("", "equinox") if "equinox" in sys.modules else ("",)


def _given_functions(region: Region, outer: Sequence[Frame]) -> list[Any]:
    """The code of the user's functions that a library calls in a region."""
    if not region.is_body:
        return [c for c in (region.code, *region.others) if c is not None and owner(c.co_filename) == "user"]
    return list(
        dict.fromkeys(
            own[0] for codes in _inside(region, outer) if (own := [c for c in codes if owner(c.co_filename) == "user"])
        )
    )


def _decorated(code: Any, frames: Sequence[Frame], in_loop: bool) -> Iterator[Way]:
    """A decorator of a function. With Flax it stands above the others, and leaves the names of modules, and with them the parameters, as they
    are."""
    file = code.co_filename
    node = definition_of(file, code.co_firstlineno, code.co_name)
    if not isinstance(node, ast.FunctionDef):
        return
    for library in _kinds(code, frames):
        checkpoint, imports = _checkpoint_of(library, file, node.lineno)
        at = (first_line(node) if library.startswith("flax") else node.lineno, 0)
        put = lambda text, at=at: Edit(file, at, at, f"{' ' * node.col_offset}{text}\n")
        options = f"{_static_flags(code, library)}{', prevent_cse=False' * in_loop}"
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
            checkpoint, imports = _checkpoint_of(_kinds(code, frames)[0], file, call.lineno)
            changes = around(file, start_of(a), end_of(a), f"{checkpoint}(", f"{merging}{{policy}})")
            yield Way(file, caller, tuple(changes), imports=imports, call=call)


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
    if module.partition(".")[0] in FRAMEWORKS:  # their layers are everybody's
        return None
    file, library = caller.co_filename, library_of(code)
    spelled = _spelled(module, globals_of(caller))
    if spelled is None:
        return None
    target = ".".join((spelled[0], *path))
    checkpoint, needed = _checkpoint_of(library, file, 0)
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


def _checkpoint_of(library: str, file: str, line: int) -> tuple[str, tuple[tuple[str, str], ...]]:
    """How a line of a file writes the checkpoint of a library, or JAX's, and what the file has to import for that."""
    made = CHECKPOINTS.get(library)
    if made is None:
        return "jax.checkpoint", ()
    alias = alias_of(file, library, line)
    package, _, name = library.rpartition(".")
    statement = f"from {package} import {name}" if package else f"import {name}"
    return f"{alias or name}.{made.removeprefix(f'{library}.')}", () if alias else ((name, statement),)


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
