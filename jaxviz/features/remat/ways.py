"""How a checkpoint around a region is written in the user's source: at its calls, at its scan, as a decorator, around
what is given to a library or made by it, in place of a class or a function of the library, or at the definition of the
whole function.

Whether one of them does what it should is measured before it is shown; see `rewritten.py`.
"""

from __future__ import annotations

import ast
import gc
import inspect
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import jax

from jaxviz.features.remat.call import Call
from jaxviz.features.remat.edits import Edit, Way, after_imports, around, decorated, wrapped
from jaxviz.features.remat.existing import retuned
from jaxviz.features.remat.libraries import (
    CHECKPOINTS,
    FRAMEWORKS,
    checkpoint_of,
    class_of,
    is_module,
    kinds_of,
    library_of,
)
from jaxviz.features.remat.regions import AROUND_CALLS, Frame, Region, frames_of, own_frames
from jaxviz.features.remat.source import (
    Function,
    alias_of,
    call_at,
    closed_over,
    decorator_name,
    definition_of,
    end_of,
    function_of,
    globals_of,
    holders_of,
    is_checkpoint,
    last_name,
    start_of,
    value_of,
    without_checkpoint,
)
from jaxviz.ir.expressions import first_line, tree_of
from jaxviz.ir.own_code import is_own, owner

_SCANS = {"scan": 0, "map": 0, "fori_loop": 2, "associative_scan": 0}
"""Functions of jax.lax that are scans, and the index of the body argument."""
_CHECKPOINTED = "gradient_checkpointing.Checkpointed"
_PENZAIS = (("gradient_checkpointing", "from penzai.toolshed import gradient_checkpointing"),)

_JITTED = jax.jit(lambda: 0)

Frames = Sequence[Frame]


def ways_of(region: Region, written: Sequence[Region]) -> list[tuple[Way, ...]]:
    """How to write a checkpoint at each place of a region, those that change less first; empty if one of them is not in
    the user's source.

    Args:
      written: the existing checkpoints; one around the same equations gets another policy.
    """
    there = next((w for w in written if w.covers(region)), None)
    if there is not None and (others := retuned(there)) is not None:
        return [others]
    if region.is_written:
        return []
    ways = list(_at_each_place(region))
    return ways if there is not None else [*ways, *_elsewhere(region)]


def _at_each_place(region: Region) -> Iterator[tuple[Way, ...]]:
    """At the scan, or where a module is called."""
    yield from _of_all(region, [_at_scan] if region.is_body else [partial(_at_module, code) for code in _codes(region)])


def _of_all(region: Region, every: Sequence[Callable[[Frames], Way | None]]) -> Iterator[tuple[Way, ...]]:
    for way_at in every:
        ways = [way_at(region.stacks.get(spot, ())) for spot in region.spots]
        if None not in ways:
            yield tuple({way.changes: way for way in ways if way is not None}.values())


def _codes(region: Region) -> list[Any]:
    return [code for code in (region.code, *region.others) if code is not None]


def _elsewhere(region: Region) -> Iterator[tuple[Way, ...]]:
    """Where no line of the user's is known to call the region by itself."""
    frames = next(iter(region.stacks.values()), ())
    if not region.is_body:
        yield from _of_all(region, [partial(_at_callee, region, kind) for kind in kinds_of(region.code, frames)])
    for function in _given_functions(region, frames):
        around_it = [] if library_of(function) in CHECKPOINTS else list(_around_given(function, frames, region.is_body))
        # What is only run on import cannot be measured.
        is_run = [w for w in around_it if w.call is not None and w.call.lineno in {at for *_, at in w.code.co_lines()}]
        others = [w for w in around_it if w not in is_run]
        on_import = (*_decorated(function, frames, region.is_body), *others)
        # Haiku's checkpoint only works where a transformed function runs.
        is_free = "<locals>" in function.co_qualname or kinds_of(function, frames) != ("haiku",)
        yield from ((way,) for way in (*is_run, *(on_import if is_free else ())))
    yield from ((way,) for way in _around_made(region, frames))
    yield from ((way,) for code in _codes(region) if (way := _replaced(code, frames)) is not None)


# --- at a call -------------------------------------------------------------------------------------------------------


def _called(codes: Sequence[Any], frames: Frames) -> tuple[Frame, ast.Call, Frames] | None:
    """The user's call that leads to one of some functions, and the frames between; None if none is found."""
    level = next((i for i, (code, _) in enumerate(frames) if code in codes), 0)
    by = next((i for i in range(level - 1, -1, -1) if is_own(frames[i][0].co_filename)), None)
    call = call_at(*frames[by]) if by is not None else None
    if by is None or call is None:
        return None
    return frames[by], call, [f for f in frames[by + 1 : level] if f[0].co_qualname not in AROUND_CALLS]


def _at_module(code: Any, frames: Frames) -> Way | None:
    """The call of a module whose library has another form for it than a checkpoint around what is called."""
    library, called = library_of(code), _called([code], frames)
    if called is None or library not in ("penzai", "flax.linen", "flax.nnx") or code.co_name != "__call__":
        return None
    frame, call, between = called
    is_inside = any(is_module(c) for c, _ in between)
    if library == "penzai":
        if is_inside or not is_own(code.co_filename):
            return _in_penzais_model(class_of(code), frame, call)
        return wrapped(frame[0], call.func, f"{_CHECKPOINTED}(", "{policy})", imports=_PENZAIS, call=call)
    alias = alias_of(frame[0].co_filename, library, call.lineno)
    if is_inside or alias is None or (between and not is_own(code.co_filename)):
        return None
    return _in_nnx(alias, frame, call) if library == "flax.nnx" else _in_linen(alias, code, frame, call)


def _in_nnx(alias: str, frame: Frame, call: ast.Call) -> Way | None:
    first = call.args[0] if call.args else None
    if first is None or call.keywords or isinstance(first, ast.Starred):
        return None
    file = frame[0].co_filename
    names = "x" if len(call.args) == 1 else ", ".join(f"x{i}" for i in range(len(call.args)))
    head = f"{alias}.remat(lambda module, {names}: module({names}){{policy}})("
    start, end = start_of(call.func), end_of(call.func)
    edits = Edit(file, start, start, head, end), Edit(file, end, start_of(first), ", ", start)
    return Way(file, frame[0], edits, call=call)


def _in_linen(alias: str, code: Any, frame: Frame, call: ast.Call) -> Way | None:
    """Around the module's class, where the module is made: in the call, or else at the one place in the file."""
    name = code.co_qualname.split(".")[-2]
    makes_it = lambda n: isinstance(n, ast.Call) and last_name(n.func) == name
    makers = [call.func] if makes_it(call.func) else [*filter(makes_it, ast.walk(tree_of(frame[0].co_filename)))]
    if len(makers) != 1:
        return None
    maker = makers[0].func  # type: ignore[attr-defined]
    return wrapped(frame[0], maker, f"{alias}.remat(", "{policy})", call=call)


def _in_penzais_model(cls: Any, frame: Frame, call: ast.Call) -> Way:
    """A module that a library's code calls, in a model that the user's line calls: in penzai, modules are replaced in
    the model."""
    file = frame[0].co_filename
    pz = alias_of(file, "penzai.pz", 0) or "pz"
    name = alias_of(file, f"{cls.__module__}.{cls.__name__}", 0) or cls.__name__
    imports = ((name, f"from {cls.__module__} import {cls.__name__}"), ("pz", "from penzai import pz"), *_PENZAIS)
    head, tail = f"{pz}.select(", f").at_instances_of({name}).apply("
    start, end = start_of(call.func), end_of(call.func)
    without = around(file, start, end, head, f"{tail}{_CHECKPOINTED})")
    each = f"{tail}lambda layer: {_CHECKPOINTED}(layer{{policy}}))"
    return wrapped(frame[0], call.func, head, each, without_policy=tuple(without), imports=imports, call=call)


def _at_callee(region: Region, library: str, frames: Frames) -> Way | None:
    """A checkpoint around what the user's line calls, without the arguments that JAX would trace and that Python may
    branch on."""
    called = _called(_codes(region), frames)
    if called is None or called[2] or library.startswith("flax"):  # whose modules have a form of their own
        return None
    (code, _), call, _ = called
    file = code.co_filename
    maker = value_of(file, call.func.func, globals_of(code)) if isinstance(call.func, ast.Call) else None
    if str(getattr(maker, "__module__", "")).partition(".")[0] == "jax":
        library = ""  # what `jax.vmap` returns is a function, whatever it was given
    checkpoint, imports = checkpoint_of(library, file, call.lineno)
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
    gone = [Edit(file, max(map(end_of, inside), default=first), end_of(fixed[-1]), "")] if fixed else []
    bound = "".join(f", {ast.unparse(k)}" for k in fixed)
    callee = without_checkpoint(call.func)
    head, tail = (f"{checkpoint}(partial(", f"{bound})") if fixed else (f"{checkpoint}(", "")
    edits = around(file, start_of(callee), end_of(callee), head, f"{tail}{static}{{policy}})")
    return Way(file, code, (*edits, *gone), imports=imports, call=call)


# --- at a scan -------------------------------------------------------------------------------------------------------


def _at_scan(frames: Frames) -> Way | None:
    """The body passed to a scan, or the module that Flax's scan iterates over."""
    own = own_frames(frames)
    call = call_at(*own[-1]) if own else None
    if call is None:
        return None
    code = own[-1][0]
    if frames[-1] == own[-1] and (body := _body_argument(call)) is not None:
        return wrapped(code, without_checkpoint(body), "jax.checkpoint(", ", prevent_cse=False{policy})", call=call)
    for library in ("flax.linen", "flax.nnx"):
        alias = alias_of(code.co_filename, library, call.lineno)
        scan = _scan_made_by(code.co_filename, call, alias) if alias else None
        if scan is not None:
            return wrapped(code, scan.args[0], f"{alias}.remat(", ", prevent_cse=False{policy})", call=call)
    return None


def _body_argument(call: ast.Call) -> ast.expr | None:
    k = _SCANS.get(last_name(call.func))
    if k is None:
        return None
    named = next((w.value for w in call.keywords if w.arg in ("f", "body_fun")), None)
    return call.args[k] if k < len(call.args) else named


def _scan_made_by(file: str, call: ast.expr, alias: str) -> ast.Call | None:
    """The call of a library's scan that created the called object, in place or assigned to a name."""
    while isinstance(call, ast.Call):
        is_scan = ast.unparse(call.func) == f"{alias}.scan"
        if is_scan and call.args:
            return call
        call = call.func
    everywhere = (n for n in ast.walk(tree_of(file)) if isinstance(n, ast.Assign))
    values = [n.value for n in everywhere if any(last_name(t) == last_name(call) != "" for t in n.targets)]
    return _scan_made_by(file, values[0], alias) if len(values) == 1 and isinstance(values[0], ast.Call) else None


# --- where a library calls what the user has written ------------------------------------------------------------------


def _inside(region: Region, outer: Frames) -> Iterator[list[Any]]:
    """The code that led to each equation in the body of a scan, outermost first."""
    for e in next(region.spots).walk():
        frames = frames_of(e.source)
        yield [c for c, _ in (frames[len(outer) :] if frames[: len(outer)] == tuple(outer) else frames)]


def _given_functions(region: Region, outer: Frames) -> list[Any]:
    """The code of the user's functions that a library calls in a region."""
    is_users = lambda code: is_own(code.co_filename)
    if not region.is_body:
        return [*filter(is_users, _codes(region))]
    first = (next(filter(is_users, codes), None) for codes in _inside(region, outer))
    return [code for code in dict.fromkeys(first) if code is not None]


def _decorated(code: Any, frames: Frames, in_loop: bool) -> Iterator[Way]:
    """A decorator of a function.

    With Flax it stands above the others, and leaves the names of modules, and with them the parameters, as they are.
    """
    file = code.co_filename
    node = definition_of(file, code.co_firstlineno, code.co_name)
    for library in kinds_of(code, frames) if isinstance(node, ast.FunctionDef) else ():
        checkpoint, imports = checkpoint_of(library, file, node.lineno)  # type: ignore[union-attr]
        options = f"{_static_flags(code, library)}{', prevent_cse=False' * in_loop}"
        yield decorated(code, node, checkpoint, options, library.startswith("flax"), imports)  # type: ignore[arg-type]


def _around_given(code: Any, frames: Frames, in_loop: bool) -> Iterator[Way]:
    """A checkpoint where the user's function is an argument of a call, innermost callers first."""
    own = own_frames(frames)
    callers = {c.co_filename: c for c, _ in own}
    for file in dict.fromkeys(c.co_filename for c, _ in reversed(own)):
        # What is run, and what has made it.
        lines = [c.co_firstlineno for c in (code, *(c for c, _ in frames)) if c.co_filename == file]
        calls = [n for n in _calls_in(file, partial(_contains_one_of, lines)) if not is_checkpoint(n)]
        arguments = [(call, a) for call in calls for a in (*call.args, *(k.value for k in call.keywords))]
        matches = [(call, a) for call, a in arguments if _is_function(a, code, file)]
        if len(matches) == 1:
            ((call, a),) = matches
            checkpoint, imports = checkpoint_of(kinds_of(code, frames)[0], file, call.lineno)
            tail = f"{', prevent_cse=False' * in_loop}{{policy}})"
            yield wrapped(callers[file], a, f"{checkpoint}(", tail, imports=imports, call=call)


def _is_function(node: ast.expr, code: types.CodeType, file: str) -> bool:
    if isinstance(node, ast.Lambda):
        return file == code.co_filename and code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    return isinstance(node, ast.Name | ast.Attribute) and last_name(node) == code.co_name


def _around_made(region: Region, frames: Frames) -> Iterator[Way]:
    """A checkpoint where the user calls a function of a library that makes what is run: around the call, or what is
    made from an argument, around that."""
    tail = f"{', prevent_cse=False' * region.is_body}{{policy}})"
    codes = [*(c for c, _ in frames), *itertools.chain(*_inside(region, frames))] if region.is_body else _codes(region)
    callers = {c.co_filename: c for c, _ in own_frames(frames)}
    nested = [
        c for c in dict.fromkeys(codes) if owner(c.co_filename) == "library" and "<locals>" in c.co_qualname
    ]  # fmt: skip
    # One look at all objects, of which there may be millions.
    objects = gc.get_referrers(*nested) if nested else []
    for code in nested:
        functions = [f for f in objects if isinstance(f, types.FunctionType) and f.__code__ is code]
        path = code.co_qualname.split(".<locals>.")
        maker = globals_of(code).get(path[0])
        if not isinstance(maker, types.FunctionType) or len(functions) != 1:
            continue
        stored, returned = _names_in(maker)
        closure = closed_over(functions[0])
        for file, caller in callers.items():
            calls = [n for n in _calls_near(file, caller) if last_name(n.func) == path[0]]
            calls = [n for n in calls if value_of(file, n.func, globals_of(caller)) is maker]
            if len(calls) != 1:
                continue
            arguments = zip(inspect.signature(maker).parameters, calls[0].args, strict=False)
            wrappable = [(a, closure[p]) for p, a in arguments if p in closure and p not in stored]
            wrappable += [(calls[0], functions[0])] if len(path) == 2 and returned == {path[1]} else []
            for node, f in wrappable:
                if isinstance(f, types.FunctionType):
                    yield wrapped(caller, node, "jax.checkpoint(", tail, result=f)


def _names_in(f: types.FunctionType) -> tuple[set[str], set[str]]:
    """The names that a function assigns, and those that it returns."""
    written = definition_of(f.__code__.co_filename, f.__code__.co_firstlineno, f.__name__)
    nodes = list(ast.walk(written)) if written is not None else []
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return stored, {last_name(n.value) for n in nodes if isinstance(n, ast.Return) and n.value is not None}


def _calls_near(file: str, caller: Any) -> list[ast.Call]:
    """The calls where what a function closes over is made: not those in other functions of the file."""
    return _calls_in(file, lambda f: f.lineno < caller.co_firstlineno <= end_of(f)[0])


def _contains_one_of(lines: Sequence[int], function: Function) -> bool:
    return any(first_line(function) <= line <= end_of(function)[0] for line in lines)


def _calls_in(file: str, is_meant: Callable[[Function], bool]) -> list[ast.Call]:
    """The calls of a file outside of functions, and in those that are meant."""
    every = list(ast.walk(tree_of(file)))
    away = {n for f in every if isinstance(f, Function) and not is_meant(f) for n in ast.walk(f)}
    return [n for n in every if isinstance(n, ast.Call) and n not in away]


def _replaced(code: Any, frames: Frames) -> Way | None:
    """A statement after the user's imports that puts a checkpoint in place of a class or a function of a library."""
    own = own_frames(frames)
    caller = own[-1][0] if own else None
    module = globals_of(code).get("__name__", "") if owner(code.co_filename) == "library" else ""
    package, _, name = module.rpartition(".")
    path = [name, *str(code.co_qualname).split(".")]
    if caller is None or not module or not all(map(str.isidentifier, path)):
        return None
    if module.partition(".")[0] in FRAMEWORKS:  # their layers are everybody's
        return None
    there = sys.modules.get(module)
    if globals_of(caller).get(name, there) is not there:  # the user's file has the name for something else
        return None
    file, library = caller.co_filename, library_of(code)
    checkpoint, needed = checkpoint_of(library, file, 0)
    at, target = (after_imports(file, caller.co_firstlineno), 0), ".".join(path)
    text = f"{target} = {checkpoint}({target}{_static_flags(code, library)}{{policy}})\n"
    imported = (name, f"from {package} import {name}" if package else f"import {name}")
    return Way(file, caller, (Edit(file, at, at, text),), imports=(imported, *needed))


def _static_flags(code: types.CodeType, library: str) -> str:
    """`, static_argnums=(2,)` for parameters such as `train=True`, which Python branches on; '' if there are none, or
    the library sees to it."""
    if library == "equinox":
        return ""
    function = function_of(code)
    defaults = function.__defaults__ if function is not None and function.__defaults__ else ()
    first = code.co_argcount - len(defaults)
    flags = [str(first + i) for i, value in enumerate(defaults) if isinstance(value, bool)]
    return f", static_argnums=({', '.join(flags)},)" if flags else ""


# --- at the definition of the whole function --------------------------------------------------------------------------


def way_at_definition(call: Call) -> Way | None:
    """A decorator, or a checkpoint around a lambda; None if there is no such place, or JAX would trace an argument that
    is not an array."""
    static = _static_arguments(call)
    function, before = _plain(call.function)
    code = getattr(function, "__code__", None)
    if static is None or before is None or code is None or not is_own(code.co_filename):
        return None
    numbers = tuple(i for i, x in enumerate(before) if not _is_arrays(x)) + tuple(len(before) + i for i in static)
    if not all(_is_hashable(x) for x in before if not _is_arrays(x)):
        return None
    node = definition_of(code.co_filename, code.co_firstlineno, code.co_name)
    if isinstance(node, ast.Lambda) and any(
        isinstance(n, ast.Call) and last_name(n.func) == "plan_remat" for n in holders_of(code.co_filename, node)
    ):
        return None  # it is only given to the plan
    return _around(code, node, numbers)


def ways_in_step(name: str, stacks: Iterable[Sequence[Frame]]) -> Iterator[Way]:
    """Checkpoints at the definition of the function that a training step differentiates."""
    of_each = [{code for code, _ in own_frames(frames) if code.co_name == name} for frames in stacks]
    for code in set.intersection(*of_each) if of_each else ():
        way = _around(code, definition_of(code.co_filename, code.co_firstlineno, name), ())
        if way is not None:
            yield way


def way_at_callee(call: Call, stacks: Iterable[Sequence[Frame]]) -> Way | None:
    """A decorator for the function that does all the work of a lambda; None if its arguments are not exactly those of
    the lambda."""
    static = _static_arguments(call)
    own = getattr(call.function, "__code__", None)
    node = definition_of(own.co_filename, own.co_firstlineno, own.co_name) if own is not None else None
    if static is None or not isinstance(node, ast.Lambda) or not isinstance(node.body, ast.Call):
        return None
    arguments, parameters = node.body.args, [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    if node.body.keywords or not all(isinstance(a, ast.Name) and a.id in parameters for a in arguments):
        return None
    called = {_after(own, frames) for frames in stacks}
    code = called.pop() if len(called) == 1 else None
    if code is None or not is_own(code.co_filename):
        return None
    called_at = definition_of(code.co_filename, code.co_firstlineno, code.co_name)
    numbers = tuple(i for i, a in enumerate(arguments) if parameters.index(a.id) in static)  # type: ignore[attr-defined]
    return _around(code, called_at, numbers) if isinstance(called_at, Function) else None


def _after(code: Any, frames: Sequence[Frame]) -> Any:
    """What some code calls in a stack; None if it is not in the stack."""
    codes = [c for c, _ in frames]
    return next((called for caller, called in pairwise(codes) if caller is code), None)


def _around(code: Any, node: Function | ast.Lambda | None, numbers: tuple[int, ...]) -> Way | None:
    """A checkpoint around a lambda, or a decorator below existing ones, if these keep the function as it is."""
    options = f", static_argnums={numbers}" if numbers else ""
    if isinstance(node, ast.Lambda):
        return wrapped(code, node, "jax.checkpoint(", f"{options}{{policy}})")
    if not isinstance(node, ast.FunctionDef):
        return None
    # Others are known to keep it if its name is still that of the function.
    is_kept = getattr(globals_of(code).get(code.co_name), "__code__", None) is code
    return (
        decorated(code, node, options=options)
        if is_kept or all(decorator_name(d) == "jit" for d in node.decorator_list)
        else None
    )


def _plain(f: Any) -> tuple[Any, tuple[Any, ...] | None]:
    """A function without `functools.partial`, `jax.jit` and method binding, with its bound leading arguments; None if
    it has other ones."""
    before: tuple[Any, ...] = ()
    while True:
        if isinstance(f, partial):
            if f.keywords:
                return f, None
            before, f = (*f.args, *before), f.func
        elif hasattr(f, "__self__") and hasattr(f, "__func__"):
            before, f = (f.__self__, *before), f.__func__
        elif (
            isinstance(f, type(_JITTED)) or owner(getattr(getattr(f, "__code__", None), "co_filename", "")) == "jaxviz"
        ):
            f = f.__wrapped__
        else:
            return f, None if hasattr(f, "__wrapped__") else before


def _static_arguments(call: Call) -> Sequence[int] | None:
    """The positional arguments that are not arrays; None if a checkpoint cannot treat them as static."""
    args, kwargs = jax.tree.unflatten(call.in_tree, call.is_input)
    values, _ = jax.tree.unflatten(call.in_tree, call.leaves)
    static = call.static_argnums
    rest = [x for i, x in enumerate(args) if i not in static]
    if not all(jax.tree.leaves((rest, kwargs))) or not all(_is_hashable(values[i]) for i in static):
        return None
    return static


def _is_arrays(x: Any) -> bool:
    return all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in jax.tree.leaves(x))


def _is_hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True
