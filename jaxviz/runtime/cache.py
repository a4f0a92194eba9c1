"""The compile cache: the compiled programs of each function, shared by equal transformations of it.

`jax.jit(jax.grad(f))(x)` in a loop compiles each time, since `jax.grad(f)` is a new function each time. Here the key is
`f` itself, then the transforms and the parameters of `jit`; types are handled by JAX. Functions are compared by
identity, and referenced weakly: when the user drops one, everything compiled from it is freed.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import jax

from jaxviz.ir import compat
from jaxviz.ir.sharing import exact
from jaxviz.report.tables import counted


@dataclass(frozen=True, slots=True)
class AppliedTransform:
    """A transform: the function that it was applied to, its name, a key of that and its parameters, and what applies it
    to another function."""

    fun: Callable[..., Any]
    name: str
    key: Hashable
    apply: Callable[[Callable[..., Any]], Callable[..., Any]]


_steps: weakref.WeakKeyDictionary[Any, AppliedTransform] = weakref.WeakKeyDictionary()
"""Maps a function created by a transform to how it was created. This is not an attribute of it, which `functools.wraps`
would copy to others."""


def remember_step(
    transformed: Callable[..., Any], fun: Callable[..., Any], transform: Callable[..., Any], options: dict[str, Any]
) -> Callable[..., Any]:
    """Records that `transformed` is `transform(fun, **options)`, and returns it."""
    leaves, tree = jax.tree.flatten(options, is_leaf=lambda x: x is None)
    key = (transform.__name__, tree, exact(tuple(leaves)))
    with contextlib.suppress(TypeError):  # an option is not hashable: treat it like any other function
        hash(key)
        _steps[transformed] = AppliedTransform(fun, transform.__name__, key, functools.partial(transform, **options))
    return transformed


def steps_of(fun: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[AppliedTransform, ...]]:
    """The user's function, and the transforms that led from it to `fun`, in the order in which they were applied."""
    steps: list[AppliedTransform] = []
    while (step := _find_step(fun)) is not None:
        steps.append(step)
        fun = step.fun
    return fun, tuple(reversed(steps))


def _find_step(fun: Any) -> AppliedTransform | None:
    try:
        return _steps.get(fun)
    except TypeError:  # not hashable, or no weak references
        return None


@dataclass(frozen=True, slots=True)
class CachedProgram:
    """One program in the compile cache.

    Args:
      function: the user's function.
      transforms: what was applied to it, such as 'grad'.
      types: of the arguments.
    """

    function: str
    transforms: tuple[str, ...]
    types: str

    def __str__(self) -> str:
        name = self.function
        for transform in self.transforms:
            name = f"{transform}({name})"
        return f"{name} of {self.types}"


@dataclass(eq=False)
class CompiledFunction:
    """The compiled programs of one function with certain transforms and parameters, for all types of arguments.

    Args:
      jitted: the `jax.jit` function.
      programs: the number of programs traced so far.
      hits: the number of calls that found theirs.
    """

    jitted: Any
    programs: list[CachedProgram]
    hits: int = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = len(self.programs)
        out = self.jitted(*args, **kwargs)
        self.hits += len(self.programs) == before
        return out


class _Held:
    """A callable that represents the user's function and its transforms without keeping the function alive."""

    def __init__(self, find: Callable[[], Any], root: Callable[..., Any], steps: tuple[AppliedTransform, ...]):
        self.find = find
        self.applies = tuple(step.apply for step in steps)
        self.names = tuple(step.name for step in steps)
        self.programs: list[CachedProgram] = []
        self.__name__ = function_name(root)
        self.__doc__ = root.__doc__

    @property
    def __wrapped__(self) -> Any:
        return self.find()

    def __repr__(self) -> str:
        return repr(self.find())  # JAX's errors show it

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        types = ", ".join(_type(x) for x in jax.tree.leaves((args, kwargs)))
        self.programs.append(CachedProgram(self.__name__, self.names, f"({types})"))
        fun = self.find()
        for apply in self.applies:
            fun = apply(fun)
        return fun(*args, **kwargs)


def jitted_of(fun: Any) -> Any:
    """The `jax.jit` function in a function of `jaxviz.jit`; any other function unchanged."""
    # A function that wraps a jitted one, such as its gradient, has a copy of its attributes.
    compiled = None if inspect.isfunction(fun) else getattr(fun, "__dict__", {}).get("_compiled")
    return compiled.jitted if isinstance(compiled, CompiledFunction) else fun


def function_name(fun: Any) -> str:
    """The name of a function, of the function in a partial application, or of an object's class."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    return str(getattr(fun, "__name__", type(fun).__name__))


def _type(x: Any) -> str:
    """The traced type of an argument; for a static one its value."""
    return str(jax.typeof(x).str_short(short_dtypes=True)) if compat.is_tracer(x) else repr(x)


@dataclass
class _Entry:
    reference: Any
    compiled: dict[Hashable, CompiledFunction] = field(default_factory=dict)


_entries: dict[Hashable, _Entry] = {}
"""The compiled programs of a function, by the function's id. The entry is removed with the function."""

_dropped = [0, 0]
"""Hits and misses of removed entries, so that they still count."""


def compiled_of(fun: Callable[..., Any], options: dict[str, Any]) -> CompiledFunction:
    """The entry of a function with these parameters of `jax.jit`: an existing one for equal parameters, otherwise a new
    one."""
    root, steps = steps_of(fun)
    entry = _entry_of(root)
    key: Any = (tuple(step.key for step in steps), *jax.tree.flatten(tuple(sorted(options.items()))))
    key = (key[0], exact(tuple(key[1])), key[2])
    try:
        hash(key)
    except TypeError:
        entry = None
    if entry is None:
        return _compile(lambda: root, root, steps, options)
    if key not in entry.compiled:
        entry.compiled[key] = _compile(entry.reference, root, steps, options)
    return entry.compiled[key]


def _compile(
    find: Callable[[], Any], root: Any, steps: tuple[AppliedTransform, ...], options: dict[str, Any]
) -> CompiledFunction:
    function = _Held(find, root, steps)
    return CompiledFunction(jax.jit(function, **options), function.programs)


def _entry_of(root: Any) -> _Entry | None:
    """The entry of a function; None for an object without weak references."""
    identity: Hashable = (id(root.__self__), id(root.__func__)) if inspect.ismethod(root) else id(root)
    entry = _entries.get(identity)
    if entry is not None and entry.reference() is not None:
        return entry

    # At interpreter exit, a function may outlive this module's globals; these references keep them alive.
    entries, dropped = _entries, _dropped

    def drop(reference: Any) -> None:
        if identity not in entries or entries[identity].reference is not reference:
            return
        for compiled in entries.pop(identity).compiled.values():
            dropped[0] += compiled.hits
            dropped[1] += len(compiled.programs)

    try:
        reference = (weakref.WeakMethod if inspect.ismethod(root) else weakref.ref)(root, drop)
    except TypeError:
        return None
    _entries[identity] = _Entry(reference)
    return _entries[identity]


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """The hits, misses and contents of the compile cache.

    >>> found = jaxviz.cache_info()
    >>> found.hits, found.misses

    Args:
      hits: calls that found their program in the cache.
      misses: programs that were traced, and compiled unless they were only inspected.
      functions: how many of the user's functions have programs in the cache.
      programs: these programs.
    """

    hits: int
    misses: int
    functions: int
    programs: tuple[CachedProgram, ...]

    def __str__(self) -> str:
        misses = f"{self.misses:,} miss{'es' * (self.misses != 1)}"
        programs = f"{counted(len(self.programs), 'program')} of {counted(self.functions, 'function')}"
        head = f"{counted(self.hits, 'hit')}, {misses}; {programs}"
        return "\n".join([head, *(f"  {p}" for p in self.programs)])

    __repr__ = __str__


def cache_info() -> CacheInfo:
    """Reports what `jaxviz.jit` has compiled and still caches.

    >>> print(jaxviz.cache_info())
    2 hits, 1 miss; 1 program of 1 function
      grad(loss) of (f32[3], f32[8,3])
    """
    compiled = [c for entry in _entries.values() for c in entry.compiled.values()]
    programs = tuple(p for c in compiled for p in c.programs)
    hits = _dropped[0] + sum(c.hits for c in compiled)
    return CacheInfo(hits, _dropped[1] + len(programs), sum(bool(e.compiled) for e in _entries.values()), programs)


def clear_compiled() -> None:
    """Drops everything that was compiled, and resets the counters."""
    _entries.clear()
    _dropped[:] = [0, 0]
