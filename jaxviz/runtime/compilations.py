"""What JAX traces, lowers and compiles, as reported by `jax.monitoring`: for which call, under which key, and how long
it took.

It listens only while something is watching. Nothing in JAX is replaced, and the only user code that is called is
`__hash__` of static arguments, as JAX does. A listener runs inside the call that JAX compiles for, whose Python frames
have the function and its arguments.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import inspect
import itertools
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import numpy as np

from jaxviz.ir import compat
from jaxviz.ir.origin import Location, definition
from jaxviz.ir.own_code import is_of_jaxviz, is_of_program, is_own
from jaxviz.report.tables import shortened
from jaxviz.runtime.cache import function_name

PHASES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
"""An event of `jax.monitoring` -> the phase."""

_KEPT = 10_000
_REPR = 60
_MOST = 1000
"""The largest container that a function closes over whose values are compared; a larger one is compared by identity."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """An array among the arguments, as far as a compiled program depends on it.

    Args:
      type: such as `f32[3]`.
      shape, dtype: the parts of the type.
      is_weak: whether its type is weak, as that of a Python number is.
      place: the devices that it is committed to, and how it is laid out over them; '' if JAX may choose.
    """

    type: str
    shape: tuple[Any, ...]
    dtype: str
    is_weak: bool
    place: str = ""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A value that is part of the key and not an array: of a static argument, or one that the function closes over.

    Args:
      text: its representation.
      token: represents it in comparisons; a copy, a hash or an identity, never the value itself.
      by_identity: whether it is compared by identity.
      is_function: whether it is a function, which is always compared by identity.
    """

    text: str
    token: Any
    by_identity: bool = False
    is_function: bool = False


@dataclass(frozen=True)
class CacheKey:
    """The cache key of a compiled program.

    Args:
      leaves: the arrays among the arguments, by path.
      tree: the structure of the arguments that are not static, as a dict by name; None if unknown.
      by_position, by_keyword: the names of all arguments, by how they were passed, which the key distinguishes.
      static: the values of static arguments, by name.
      options: the parameters of `jit`, as text.
      config: JAX's configuration.
      closure: the values that the function closes over. JAX's key has the function itself instead; this says how two
        functions differ.
    """

    leaves: dict[str, Leaf]
    tree: Any
    by_position: tuple[str, ...]
    by_keyword: tuple[str, ...]
    static: dict[str, KeyValue]
    options: dict[str, str]
    config: dict[str, Any]
    closure: dict[str, KeyValue]


Owner = Literal["program", "jax", "jaxviz"]


@dataclass(eq=False)
class Compilation:
    """A program that was traced, and possibly compiled.

    Args:
      number: its number, from 1.
      name: the name of the function.
      kind: see `compat.JitCall`.
      definition: where the function is defined.
      function: identifies the function. 0 if unknown.
      site: the user's line that called it.
      key: see `CacheKey`; None if only the name is known.
      owner: whether the function is the user's, JAX's or jaxviz's.
      is_primitive: whether it is a single operation outside `jit`.
      began: the start time, in seconds since the epoch.
      seconds: by phase, 'trace', 'lower' and 'compile', for the phases that happened.
      root: identifies the function that the user wrote, inside partial applications, methods and wrappers. 0 if
        unknown.
    """

    number: int
    name: str
    kind: str
    definition: Location | None
    function: int
    site: Location | None
    key: CacheKey | None
    owner: Owner
    is_primitive: bool
    began: float = field(default_factory=time.time)
    seconds: dict[str, float] = field(default_factory=dict)
    root: int = 0

    @property
    def is_compiled(self) -> bool:
        """Whether XLA compiled it; otherwise it was only traced, or another compiled program was reused."""
        return "compile" in self.seconds

    @property
    def total(self) -> float:
        """The total seconds."""
        return sum(self.seconds.values())


LOG: deque[Compilation] = deque(maxlen=_KEPT)
"""Everything that was compiled during a watch, up to a limit."""

_began: float | None = None
"""When watching first began, in seconds since the epoch."""

_heard_calls: Callable[[compat.JitCall, Location | None], None] | None = None
"""Is called with each call that JAX traces or compiles for, and the user's line."""

_heard_phases: Callable[[str, Compilation, Any], None] | None = None
"""Is called at the end of each phase of a compilation, with the phase and the Python frame that it ended in."""

_watches: list[list[Compilation]] = []
_numbers = itertools.count(1)
_failures: deque[str] = deque(maxlen=5)


class _UnderWay(threading.local):
    def __init__(self) -> None:
        self.started: dict[tuple[int, int], Compilation] = {}
        self.ahead: deque[Compilation] = deque(maxlen=64)
        self.current: list[Compilation | None] = []
        self.is_own = False


_under_way = _UnderWay()


def _on_start(event: str, value: float, **about: Any) -> None:
    del value
    if (phase := PHASES.get(event)) is not None:
        compilation = None
        try:
            frame = sys._getframe(1)
            if _watches:
                compilation = _begin(phase, str(about.get("fun_name", "")), frame)
            if _heard_calls is not None and not _under_way.is_own:
                call = compat.jit_call_under_way(frame)
                if call is not None and call.kind == "call" and compat.donates(call.info):
                    _heard_calls(call, user_site(frame))
        except Exception as error:  # an observer must not break the user's program
            _failures.append(f"{type(error).__name__}: {error}")
        _under_way.current.append(compilation)


def _on_end(event: str, seconds: float, **about: Any) -> None:
    del about
    if (phase := PHASES.get(event)) is None or not _under_way.current:
        return
    done = _under_way.current.pop()
    if done is None:
        return
    done.seconds[phase] = seconds
    if _heard_phases is not None and not _under_way.is_own:
        try:
            _heard_phases(phase, done, sys._getframe(1))
        except Exception as error:
            _failures.append(f"{type(error).__name__}: {error}")
    if phase == "compile":  # the frame's id can be reused by another call
        _under_way.started = {k: c for k, c in _under_way.started.items() if not c.is_compiled}


def _begin(phase: str, name: str, frame: Any) -> Compilation:
    name = name.removeprefix("jit(").removesuffix(")") if name.startswith("jit(") else name
    call = compat.jit_call_under_way(frame)
    if call is None:
        compilation = next((c for c in reversed(_under_way.ahead) if c.name == name and phase not in c.seconds), None)
    else:
        compilation = _under_way.started.get(call.identity)
        if compilation is not None and (phase == "trace" or phase in compilation.seconds):
            compilation = None
    if compilation is None:
        compilation = _new(name, call, frame)
        if call is not None and call.kind != "ahead":
            _under_way.started[call.identity] = compilation
        else:
            _under_way.ahead.append(compilation)
        if _under_way.is_own:
            return compilation
        LOG.append(compilation)
        for watch in _watches:
            watch.append(compilation)
    return compilation


def _new(name: str, call: compat.JitCall | None, frame: Any) -> Compilation:
    site = user_site(frame)
    number = next(_numbers)
    if call is None:
        return Compilation(number, name, "ahead", None, 0, site, None, "jax", is_primitive=False)
    if call.kind == "part":
        at = definition(call.debug_info)
        leaves = {f"argument {i}": _leaf(x) for i, x in enumerate(call.args)}
        key = CacheKey(leaves, None, (), (), {}, {}, {}, {})
        return Compilation(number, name, "part", at, 0, site, key, owner_of(at), is_primitive=False)
    wrapping = None if is_of_user(call.fun) else _wrapping_call(frame)
    if wrapping is not None:
        wrapper, args, kwargs = wrapping
        at, this, key = definition_of(wrapper), identity(root_function(wrapper)), key_of_wrapped(wrapper, args, kwargs)
        return Compilation(number, function_name(wrapper), call.kind, at, this, site, key, owner_of(at), False)
    at = definition_of(call.fun)
    name, this = function_name(call.fun), identity(call.fun)
    if compat.is_primitive_call(call.fun):
        return Compilation(number, name, call.kind, at, this, site, None, "jax", is_primitive=True)
    key = key_of(call.fun, call.info, call.args, call.kwargs)
    root = identity(root_function(call.fun))
    return Compilation(number, name, call.kind, at, this, site, key, owner_of(at), is_primitive=False, root=root)


def is_of_user(fun: Any) -> bool:
    """Whether a function, or the one that it wraps, is defined in the user's own code."""
    at = definition_of(fun)
    return at is not None and is_own(at.file)


def _wrapping_call(frame: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """The innermost call under way of an object that wraps a function of the user's, exposes it as `__wrapped__` and
    passes any arguments on, such as one of Equinox's `filter_jit`; with the arguments."""
    while frame is not None and not is_own(frame.f_code.co_filename):
        code = frame.f_code
        if code.co_name == "__call__" and code.co_flags & inspect.CO_VARARGS and code.co_flags & inspect.CO_VARKEYWORDS:
            n = code.co_argcount + code.co_kwonlyargcount
            wrapper = frame.f_locals.get(code.co_varnames[0])
            args, kwargs = (frame.f_locals.get(name) for name in code.co_varnames[n : n + 2])
            if code.co_argcount == 1 and hasattr(type(wrapper), "__wrapped__") and is_of_user(wrapper):
                return wrapper, tuple(args), dict(kwargs)
        frame = frame.f_back
    return None


def owner_of(at: Location | None) -> Owner:
    """The owner of a function, by where it is defined."""
    if at is None:
        return "jax"
    return "program" if is_of_program(at.file) else "jaxviz" if is_of_jaxviz(at.file) else "jax"


def user_site(frame: Any) -> Location | None:
    """The innermost line of the user's in a Python frame and its callers; of a library's if there is none."""
    fallback = None
    while frame is not None:
        file = frame.f_code.co_filename
        if is_of_program(file):
            code = frame.f_code
            at = Location(file, frame.f_lineno, getattr(code, "co_qualname", code.co_name))
            if is_own(file):
                return at
            fallback = fallback or at
        frame = frame.f_back
    return fallback


def _layers(fun: Any) -> Iterator[Any]:
    """A function, and those inside partial applications, methods and `functools.wraps` wrappers, outermost first."""
    for _ in range(100):
        yield fun
        if isinstance(fun, functools.partial):
            fun = fun.func
        elif inspect.ismethod(fun):
            fun = fun.__func__
        elif (inner := getattr(fun, "__wrapped__", None)) is not None:
            fun = inner
        else:
            return


def root_function(fun: Any) -> Any:
    """The function that a user wrote, inside partial applications, methods and `functools.wraps` wrappers."""
    *_, root = _layers(fun)
    return root


def definition_of(fun: Any) -> Location | None:
    """Where the innermost function is defined; None if it has no Python code."""
    root = root_function(fun)
    code = getattr(root, "__code__", None) or getattr(vars(type(root)).get("__call__"), "__code__", None)
    if code is None:
        return None
    return Location(code.co_filename, code.co_firstlineno, getattr(root, "__qualname__", code.co_name))


# --- keys -------------------------------------------------------------------------------------------------------------


def key_of(fun: Any, info: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CacheKey:
    """The cache key of the program for a call of a jitted function."""
    static, positional, named = compat.static_arguments(fun, info, args, kwargs)
    leaves = jax.tree.leaves((tuple(positional.values()), named))
    paths: Sequence[str] = compat.argument_paths(fun, info, args, kwargs)
    if len(paths) != len(leaves):
        paths = [f"argument {i}" for i in range(len(leaves))]
    return CacheKey(
        {path: _leaf(x) for path, x in zip(paths, leaves, strict=True)}, jax.tree.structure(positional | named),
        tuple(compat.parameters(fun, len(args), {})[0]), tuple(kwargs),
        {name: _held(x) for name, x in static.items()}, compat.jit_options(info), compat.trace_config(), _closure(fun),
    )  # fmt: skip


def key_of_wrapped(wrapper: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CacheKey:
    """The same for a call of an object that jits what it wraps, and whose arguments are static where they are not
    arrays."""
    try:
        bound = inspect.signature(wrapper).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = {f"argument {i}": x for i, x in enumerate(args)} | dict(kwargs)
    leaves = {
        name + jax.tree_util.keystr(path): x
        for name, tree in bound.items()
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }
    is_array = lambda x: isinstance(x, (jax.Array, np.ndarray, np.generic))
    return CacheKey(
        {path: _leaf(x) for path, x in leaves.items() if is_array(x)}, jax.tree.structure(dict(bound)), (), (),
        {path: _held(x) for path, x in leaves.items() if not is_array(x)}, {}, compat.trace_config(),
        _closure(getattr(wrapper, "__wrapped__", wrapper)),
    )  # fmt: skip


def _leaf(x: Any) -> Leaf:
    aval = compat.argument_type(x)
    place = ""
    if isinstance(x, jax.Array) and not compat.is_tracer(x) and x.committed:
        devices = x.sharding.device_set
        place = str(x.sharding) if len(devices) > 1 else "".join(f"{d.platform}:{d.id}" for d in devices)
    shape, dtype = tuple(getattr(aval, "shape", ())), str(getattr(aval, "dtype", aval))
    return Leaf(aval.str_short(short_dtypes=True), shape, dtype, bool(getattr(aval, "weak_type", False)), place)


_NUMBERS = (type(None), bool, int, float, complex, str, bytes)


def _held(x: Any) -> KeyValue:
    """A static argument, of which JAX also computes a hash."""
    if type(x) in _NUMBERS:
        return KeyValue(_text(x), (type(x).__name__, x))
    kind: Any = type(x)
    by_identity = kind.__eq__ is object.__eq__ and kind.__hash__ is object.__hash__
    token = kind.__name__, identity(x) if by_identity else hash(x)
    return KeyValue(_text(x), token, by_identity, by_identity and _is_function(x))


def _text(x: Any) -> str:
    """A text for a value, as far as that needs no code of its class."""
    return shortened(_written(x, 3), _REPR)


def _written(x: Any, depth: int) -> str:
    kind = type(x)
    if kind in _NUMBERS:
        return repr(x)
    if isinstance(x, enum.Enum):
        return f"{kind.__name__}.{x._name_}"
    if isinstance(x, (jax.Array, np.ndarray)):
        return _kind(x)
    if isinstance(x, np.generic):
        return f"{kind.__name__}({x})"
    if _is_function(x):
        return function_name(x)
    if depth and kind in (tuple, list, frozenset, set, dict) and len(x) <= _REPR:
        if isinstance(x, dict):
            return f"{{{', '.join(f'{_written(k, depth - 1)}: {_written(v, depth - 1)}' for k, v in x.items())}}}"
        items = ", ".join(_written(y, depth - 1) for y in x) + "," * (kind is tuple and len(x) == 1)
        return f"[{items}]" if kind is list else f"({items})" if kind is tuple else f"{{{items}}}"
    if depth and (fields := _fields(x)):
        return f"{kind.__name__}({', '.join(f'{name}={_written(v, depth - 1)}' for name, v in fields.items())})"
    return f"a {kind.__name__}"


def _is_function(x: Any) -> bool:
    """Whether a value is a function with Python code, or something around one."""
    return callable(x) and getattr(root_function(x), "__code__", None) is not None


def _fields(x: Any) -> dict[str, Any]:
    """The fields of a dataclass instance; none for other objects and for those with slots."""
    values = getattr(x, "__dict__", {}) if dataclasses.is_dataclass(type(x)) else {}
    return {f.name: values[f.name] for f in dataclasses.fields(x) if f.name in values} if values else {}


def _closure(fun: Any) -> dict[str, KeyValue]:
    """What a function closes over and what is bound to it, and the same for the functions that it wraps, except jax's
    own."""
    closed_over: dict[str, KeyValue] = {}
    for f in _layers(fun):
        code = getattr(f, "__code__", None)
        if isinstance(f, functools.partial):
            bound = {f"argument {i}": x for i, x in enumerate(f.args)} | dict(f.keywords)
            closed_over |= {name: _bound(x) for name, x in bound.items()}
        elif inspect.ismethod(f):
            closed_over["self"] = KeyValue(f"a {type(f.__self__).__name__}", identity(f.__self__), by_identity=True)
        elif code is not None and is_of_program(code.co_filename):
            for name, cell in zip(code.co_freevars, f.__closure__ or (), strict=False):
                with contextlib.suppress(ValueError):  # a variable without a value yet
                    closed_over[name] = _bound(cell.cell_contents)
            names, defaults = code.co_varnames[: code.co_argcount], f.__defaults__ or ()
            by_name = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True)) | (f.__kwdefaults__ or {})
            closed_over |= {f"{name}=": _bound(x) for name, x in by_name.items()}
    return closed_over


def _bound(x: Any, depth: int = 8) -> KeyValue:
    """A value that a function closes over: anything but a number or a container of numbers is compared by identity."""
    if isinstance(x, (jax.Array, np.ndarray)):
        return KeyValue(_kind(x), identity(x), by_identity=True)
    if type(x) in _NUMBERS:
        return KeyValue(_text(x), (type(x).__name__, x))
    if type(x) in (list, tuple, dict) or _fields(x):
        inside = x if type(x) in (list, tuple, dict) else _fields(x)
        if len(inside) > _MOST or not depth:
            return KeyValue(f"a {type(x).__name__}", identity(x), by_identity=True)
        parts = [_bound(y, depth - 1) for y in (inside.values() if isinstance(inside, dict) else inside)]
        names = tuple(map(_text, inside)) if isinstance(inside, dict) else ()
        arrays = any(p.by_identity for p in parts)
        text = f"a {type(x).__name__} of {len(parts):,} values" if arrays else _text(x)
        return KeyValue(text, (type(x).__name__, names, tuple(p.token for p in parts)), arrays)
    if _is_function(x):  # a function that is created anew is not the reason for the difference
        code = root_function(x).__code__
        return KeyValue(function_name(x), (code.co_filename, code.co_firstlineno, code.co_name))
    return KeyValue(_text(x), (type(x).__name__, identity(x)), by_identity=True)


def _kind(x: Any) -> str:
    if compat.is_tracer(x) or isinstance(x, jax.Array):
        return str(jax.typeof(x).str_short(short_dtypes=True))
    return f"{x.dtype}[{','.join(map(str, x.shape))}]"


_identities: dict[Any, tuple[Any, int]] = {}
_serials = itertools.count(1)


def identity(x: Any) -> int:
    """A number that identifies an object, and is never reused. Bound methods of one object have the same."""
    if inspect.ismethod(x):
        return hash((identity(x.__self__), identity(x.__func__)))
    place = id(x)
    known = _identities.get(place)
    if known is not None and known[0]() is x:
        return known[1]
    serial = next(_serials)
    try:
        reference: Any = weakref.ref(x, functools.partial(_forget, _identities, place, serial))
    except TypeError:  # no weak references, so nothing tells when its id is reused
        return -place
    _identities[place] = (reference, serial)
    return serial


def _forget(identities: dict[Any, tuple[Any, int]], place: int, serial: int, _: Any) -> None:
    # When Python ends, the names of this module are gone before some of the objects are.
    if place in identities and identities[place][1] == serial:
        del identities[place]


# --- watching ---------------------------------------------------------------------------------------------------------


def _listen(on: bool) -> None:
    """Adds the listeners to JAX, also after `jax.monitoring.clear_event_listeners()`; or removes them."""
    with contextlib.suppress(AssertionError, ValueError):  # they were not registered
        jax.monitoring.unregister_scalar_listener(_on_start)
    with contextlib.suppress(AssertionError, ValueError):
        jax.monitoring.unregister_event_duration_listener(_on_end)
    if on:
        jax.monitoring.register_scalar_listener(_on_start)
        jax.monitoring.register_event_duration_secs_listener(_on_end)


def start() -> list[Compilation]:
    """Returns a list to which each compilation is added from now on, until `stop`."""
    global _began
    _began = _began or time.time()
    seen: list[Compilation] = []
    _watches.append(seen)
    _listen(True)
    return seen


def stop(seen: Sequence[Compilation]) -> None:
    """Stops adding to a list returned by `start`."""
    _watches[:] = [w for w in _watches if w is not seen]
    _listen(bool(_watches) or _heard_calls is not None)


def stop_all() -> None:
    """Stops adding to all lists."""
    _watches.clear()
    _listen(_heard_calls is not None)


def is_watching() -> bool:
    return bool(_watches)


def began() -> float | None:
    """When compilations were watched for the first time, in seconds since the epoch; None if they never were."""
    return _began


@contextlib.contextmanager
def watched() -> Iterator[list[Compilation]]:
    """A list to which each compilation is added while the context lasts."""
    seen = start()
    try:
        yield seen
    finally:
        stop(seen)


def hear_calls(heard: Callable[[compat.JitCall, Location | None], None] | None) -> None:
    """Calls a function for each call with donation that JAX traces or compiles for, with the user's line; None stops
    it."""
    global _heard_calls
    _heard_calls = heard
    _listen(bool(_watches) or heard is not None)


def hear_phases(heard: Callable[[str, Compilation, Any], None] | None) -> None:
    """Calls a function whenever a phase of a compilation is over, while compilations are watched, with the phase, the
    compilation and the frame of JAX's that it ended in; None stops it."""
    global _heard_phases
    _heard_phases = heard


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Ignores what jaxviz compiles for its reports in this thread, within the context."""
    before, _under_way.is_own = _under_way.is_own, True
    try:
        yield
    finally:
        _under_way.is_own = before


def failures() -> tuple[str, ...]:
    """Errors that occurred in listeners, the latest ones."""
    return tuple(_failures)
