"""Tracers that a traced function stores in objects which outlive the trace: they are replaced by what was there
before."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import is_
from typing import Any

import jax
import numpy as np

from jaxviz.ir import compat
from jaxviz.ir.expressions import expression_at
from jaxviz.ir.origin import definition, locate
from jaxviz.ir.own_code import is_own, owner
from jaxviz.ir.sharing import cleared

MOST_KEPT = 2_000
"""How many objects are looked at, those nearest to the function first, so that no trace waits for a large heap."""

MOST_ITEMS = 1_000
"""What longer lists and dicts contain is not looked at, only the lists and dicts themselves."""

_PLAIN = (
    int, float, complex, str, bytes, type(None), type(...), np.dtype, np.ndarray, np.generic, types.BuiltinFunctionType,
    types.CodeType, types.ModuleType,
)  # fmt: skip
"""Types of values in which nothing is stored."""

_OPAQUE = frozenset((*sys.stdlib_module_names, "jax", "jaxlib", "numpy"))
"""Packages whose objects are looked at alone: of what they refer to, only what can be called may be the user's."""

_OPEN = (types.FunctionType, types.MethodType, partial, type, MutableMapping, list, tuple, deque, types.SimpleNamespace)
"""Classes of Python's own whose instances may refer to anything of the user's."""

_ABSENT = object()


class LeakedTracerWarning(UserWarning):
    """A traced function stores a tracer in an object that outlives the trace."""


@contextlib.contextmanager
def without_leaks(
    fun: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Within the context, a function is traced that may store its values in objects which outlive the trace.

    Each such value is a tracer, which means nothing when the trace has ended. So each attribute, item or variable that
    holds one gets back what it held before, and a warning names it and the line; with `jax_check_tracer_leaks`, an
    error. Other side effects stay.

    >>> with without_leaks(update, (x,)):
    ...     traced = jax.jit(update).trace(x)

    Args:
      fun, args, kwargs: what is traced. Looked at is what it reaches: `self`, what it closes over, its defaults, the
        globals that the user's own functions name, and what these contain.
    """
    leaves = jax.tree.leaves((args, kwargs))  # pytrees of arguments are built anew for the call
    contents = _reached([fun, *(x for x in leaves if not isinstance(x, (jax.Array, *_PLAIN)))])
    try:
        yield
    except BaseException:
        _put_back(contents)
        raise
    if leaked := _put_back(contents):
        fun, args, kwargs = getattr(fun, "stands_for", (fun, args, kwargs or {}))
        _say(fun, args, kwargs, leaked)


@dataclass(slots=True)
class _Contents:
    """The contents of an object before the trace.

    Args:
      before: by a key.
      read: the contents now.
      put: sets the content of a key, or removes it if that is `_ABSENT`.
      label: the name of a content, such as `self.w`.
    """

    before: dict[Any, Any]
    read: Callable[[], dict[Any, Any]]
    put: Callable[[Any, Any], object]
    label: Callable[[Any], str]


def _put_back(contents: list[_Contents]) -> dict[str, Any]:
    """Puts back what tracers of ended traces replaced; these tracers, by the names of their places."""
    leaked: dict[str, Any] = {}
    for k in contents:
        with contextlib.suppress(Exception):  # attributes may be read-only, or computed by code that fails
            now = k.read()
            if len(now) == len(k.before) and all(map(is_, now.values(), k.before.values())):
                continue
            for key, x in now.items():
                if x is not k.before.get(key, _ABSENT) and (tracer := _leaked_in(x)) is not None:
                    k.put(key, k.before.get(key, _ABSENT))
                    leaked.setdefault(k.label(key), tracer)
    return leaked


def _leaked_in(x: Any) -> Any:
    """A tracer without a trace that an object holds; None if there is none."""
    tracers: list[Any] = []
    _reached([x], tracers)
    return next(filter(compat.is_leaked, tracers), None)


def _reached(roots: list[Any], tracers: list[Any] | None = None) -> list[_Contents]:
    """What can be written to from some objects, the nearest first.

    With `tracers`, which gets those that are met, functions are left out: what they refer to was there before.
    """
    reached: list[_Contents] = []
    seen: set[int] = set()
    kinds = _kinds.copy()
    pending: deque[tuple[Any, _Kind, _Name]] = deque()

    def add(x: Any, name: Callable[..., str], *key: Any, is_open: bool = True) -> None:
        kind = kinds.get(type(x)) or kinds.setdefault(type(x), _kind(x))
        if kind is _ALONE:
            if tracers is not None and compat.is_tracer(x):
                tracers.append(x)
        elif (is_open or callable(x) or not kind.is_open) and (tracers is None or type(x) is not types.FunctionType):
            pending.append((x, kind, partial(name, *key)))

    for x in roots:
        add(x, str)
    while pending and len(seen) < MOST_KEPT:
        x, kind, name = pending.popleft()
        if id(x) in seen:
            continue
        seen.add(id(x))
        is_open = kind.is_open and not _is_of_jax(x)
        for y, its_name in kind.items(x, name):
            add(y, its_name, is_open=is_open)
        with contextlib.suppress(Exception):  # attributes may be computed by code that fails
            for contents in kind.contents(x, name):
                reached.append(contents)
                if len(contents.before) <= MOST_ITEMS:
                    for key, y in contents.before.items():
                        add(y, contents.label, key, is_open=is_open)
    return reached


_Name = Callable[[], str]
"""Computes the name of an object, which is needed only if something was stored in it."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """How objects of a class are looked at.

    Args:
      items: what they hold that is not replaced in them, with names.
      contents: the parts that can be replaced.
      is_open: whether what they refer to may be the user's.
    """

    items: Callable[[Any, _Name], list[tuple[Any, _Name]]]
    contents: Callable[[Any, _Name], Iterator[_Contents]]
    is_open: bool = True


def _kind(x: Any) -> _Kind:
    kind = type(x)
    if issubclass(kind, _PLAIN) or isinstance(x, jax.Array) or compat.is_tracer(x):
        return _ALONE
    package = kind.__module__.partition(".")[0]
    if package == "jaxviz":
        return _Kind(_in_ours, lambda x, name: iter(()), is_open=False)
    is_open = issubclass(kind, _OPEN) or package not in _OPAQUE
    items = next((of for base, of in _ITEMS.items() if issubclass(kind, base)), _no_items)
    contents = next((of for base, of in _CONTENTS.items() if issubclass(kind, base)), _of_object)
    return _Kind(items, contents, is_open)


def _no_items(x: Any, name: _Name) -> list[tuple[Any, _Name]]:
    return []


def _in_ours(x: Any, name: _Name) -> list[tuple[Any, _Name]]:
    return [(y, partial(str, key)) for key, y in getattr(x, "__dict__", {}).items()]


_ALONE = _Kind(_no_items, lambda x, name: iter(()))


def _in_partial(x: Any, name: _Name) -> list[tuple[Any, _Name]]:
    names = (*_parameters(x.func), *("" for _ in x.args))
    named = [*zip(names, x.args, strict=False), *x.keywords.items()]
    return [(x.func, str), *((y, partial(str, key)) for key, y in named)]


def _in_function(x: Any, name: _Name) -> list[tuple[Any, _Name]]:
    defaults = x.__defaults__ or ()
    names = _parameters(x)
    named = [*zip(names[len(names) - len(defaults) :], defaults, strict=False), *(x.__kwdefaults__ or {}).items()]
    if _is_of_jax(x):
        named += [("", y) for cell in x.__closure__ or () for y in _content(cell)]
    return [(y, partial(str, key)) for key, y in named]


def _in_method(x: Any, name: _Name) -> list[tuple[Any, _Name]]:
    return [(x.__self__, partial(str, "self")), (x.__func__, str)]


def _in_tuple(x: Any, name: _Name) -> list[tuple[Any, _Name]]:
    return [(y, lambda i=i: f"{name()}[{i}]") for i, y in enumerate(x[:MOST_ITEMS])]  # type: ignore[misc]


_ITEMS: dict[type, Callable[[Any, _Name], list[tuple[Any, _Name]]]] = {
    types.FunctionType: _in_function,
    types.MethodType: _in_method,
    partial: _in_partial,
    tuple: _in_tuple,
}


def _parameters(function: Any) -> tuple[str, ...]:
    code = getattr(function, "__code__", None)
    return () if code is None else code.co_varnames[: code.co_argcount]


def _of_mapping(x: Any, name: _Name) -> Iterator[_Contents]:
    yield _mapping(x, lambda key: f"{name()}[{_short(key)}]")


def _of_list(x: Any, name: _Name) -> Iterator[_Contents]:
    before = list(x)
    restore = lambda *_: (x.clear(), x.extend(before))
    yield _Contents(dict(enumerate(before)), lambda: dict(enumerate(list(x))), restore, lambda i: f"{name()}[{i}]")


def _of_class(x: Any, name: _Name) -> Iterator[_Contents]:
    if _is_own_class(x):
        yield _attributes(x, lambda: dict(vars(x)), lambda: x.__name__, type)


def _of_cache(x: Any, name: _Name) -> Iterator[_Contents]:
    results = lambda: dict(enumerate(_cached(x)))
    yield _Contents(results(), results, lambda *_: x.cache_clear(), lambda _: f"the cache of {x.__name__}")


def _of_function(x: Any, name: _Name) -> Iterator[_Contents]:
    yield from _variables(x)
    yield _mapping(vars(x), lambda key: f"{x.__name__}.{key}")


def _of_object(x: Any, name: _Name) -> Iterator[_Contents]:
    called = lambda: name() or getattr(x, "__name__", type(x).__name__)
    if slots := _slots(type(x)):
        read = lambda: {s: v for s in slots if (v := getattr(x, s, _ABSENT)) is not _ABSENT}
        yield _attributes(x, read, called, object)
    if type(attributes := getattr(x, "__dict__", None)) is dict:
        yield _mapping(attributes, lambda key: f"{called()}.{key}")


_CONTENTS: dict[type, Callable[[Any, _Name], Iterator[_Contents]]] = {
    types.FunctionType: _of_function,
    MutableMapping: _of_mapping,
    list: _of_list,
    deque: _of_list,
    tuple: _of_object,
    type: _of_class,
    functools._lru_cache_wrapper: _of_cache,
}


_EXAMPLES: tuple[Any, ...] = (
    1,
    1.0,
    1j,
    "",
    b"",
    None,
    ...,
    True,
    {},
    [],
    (),
    len,
    jax,
    partial(len),
    type,
    lambda: None,
)
_kinds = {type(x): _kind(x) for x in _EXAMPLES}
"""The kinds of Python's own classes."""


def _variables(function: types.FunctionType) -> Iterator[_Contents]:
    """The variables outside of a function that it uses: of enclosing functions, and of its module if that is the user's
    own."""
    code = function.__code__
    if function.__closure__ and not _is_of_jax(function):
        cells = dict(zip(code.co_freevars, function.__closure__, strict=True))
        read = lambda: {name: x for name, cell in cells.items() for x in _content(cell)}
        yield _Contents(read(), read, lambda name, x: _fill(cells[name], x), str)
    if is_own(code.co_filename):
        names, module = _names(code), function.__globals__
        yield _globals(module, names)
        for name in names:
            if isinstance(m := module.get(name), types.ModuleType) and is_own(
                getattr(m, "__file__", None) or "<frozen "
            ):
                yield _globals(vars(m), names, f"{name}.")


def _is_of_jax(x: Any) -> bool:
    """Whether it is a function of JAX's, whose variables and tables of traced rules are not the user's."""
    return type(x) is types.FunctionType and owner(x.__code__.co_filename) == "jax"


def _globals(module: dict[str, Any], names: frozenset[str], prefix: str = "") -> _Contents:
    read = lambda: {name: module[name] for name in names if name in module}
    return _mapping(module, lambda name: f"{prefix}{name}", read)


def _mapping(
    x: MutableMapping[Any, Any], label: Callable[[Any], str], read: Callable[[], dict[Any, Any]] | None = None
) -> _Contents:
    read = read or (lambda: dict(x))
    return _Contents(read(), read, lambda key, v: x.pop(key) if v is _ABSENT else x.__setitem__(key, v), label)


def _attributes(x: Any, read: Callable[[], dict[str, Any]], name: _Name, kind: Any) -> _Contents:
    put = lambda key, v: kind.__delattr__(x, key) if v is _ABSENT else kind.__setattr__(x, key, v)
    return _Contents(read(), read, put, lambda key: f"{name()}.{key}")


def _content(cell: Any) -> tuple[Any, ...]:
    """What a cell holds, if anything."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _fill(cell: Any, x: Any) -> None:
    if x is _ABSENT:
        del cell.cell_contents
    else:
        cell.cell_contents = x


def _cached(function: Any) -> list[Any]:
    """What the cache of a function refers to, among it the results."""
    directly = gc.get_referents(function)
    return [*directly, *gc.get_referents(*(x for x in directly if type(x) is dict))]


@cleared
@lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> frozenset[str]:
    """The names of globals and attributes in a function, and in those inside."""
    inside = (_names(c) for c in code.co_consts if isinstance(c, types.CodeType))
    return frozenset(code.co_names).union(*inside)


def _slots(kind: type) -> tuple[str, ...]:
    slots = [vars(k).get("__slots__", ()) for k in kind.__mro__[:-1]]
    return tuple(name for s in slots for name in ([s] if isinstance(s, str) else s))


def _is_own_class(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return is_own(file) if file else kind.__module__ == "__main__"


def _short(key: Any) -> str:
    text = repr(key) if isinstance(key, (str, int, tuple)) else type(key).__name__
    return text if len(text) <= 30 else f"{text[:29]}…"


def _say(fun: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], leaked: Mapping[str, Any]) -> None:
    """Warns that a function stored tracers, or raises an error if the user asked for one."""
    info = compat.function_debug_info(fun, args, dict(kwargs)) if callable(fun) else None
    name = info.func_name if info is not None else "A custom rule"
    for place, tracer in leaked.items():
        at = locate(compat.source_of(tracer))
        value = f"`{expression}`" if (expression := expression_at(at)) else "a traced value"
        text = (
            f"{name} stores {value} in `{place}`{f' at {at}' if at is not None else ''}. Under a transform that is a "
            "tracer, which has no "
            "value when the trace has ended, so what was there before was put back: return the value instead of "
            "storing it."
        )
        if jax.config.jax_check_tracer_leaks:
            raise jax.errors.UnexpectedTracerError(text)
        shown = at or definition(info)  # JAX's own tracers, as in `check`, do not say where they were made
        file, line = (shown.file, shown.line) if shown is not None else (__file__, 1)
        warnings.warn_explicit(text, LeakedTracerWarning, file, line, registry=_said)


_said: dict[Any, Any] = {}
"""The warnings that were shown, since Python shows each once for a line."""
