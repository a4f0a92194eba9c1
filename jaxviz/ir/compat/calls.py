"""Calls of jitted functions: keys, hooks, donation; functions in place of `jax.vjp`."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import jax

from jaxviz.ir.compat.jaxprs import parameters
from jaxviz.ir.compat.private import _api, _array, _config, _core, _pxla, api_util, pjit
from jaxviz.ir.errors import message_of


class JitCall(NamedTuple):
    """A call of a jitted function that JAX is tracing, lowering or compiling for.

    Args:
      identity: identifies the call while it is under way.
      kind: 'call'; 'ahead' for `f.trace` and `f.lower`; 'part' for what a transform outside `jit` evaluates of a jitted
        function.
      fun: the function that was jitted; None for a part.
      info: the parameters of `jit`; None for a part.
      args, kwargs: the arguments; those of a part are flat.
      debug_info: of a part's program, otherwise None.
    """

    identity: tuple[int, int]
    kind: str
    fun: Any
    info: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    debug_info: Any = None


def jit_call_under_way(frame: Any) -> JitCall | None:
    """The innermost call of a jitted function among a Python frame and its callers; None if there is none.

    A listener of `jax.monitoring` runs inside the call that an event is about, and JAX's own frames have the
    information. Unlike replacing one of JAX's functions, reading them changes nothing.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_filename == pjit.__file__ and code.co_name in _JIT_CALLS:
            x = frame.f_locals
            return JitCall((id(frame), id(x["args"])), *_JIT_CALLS[code.co_name](x))
        frame = frame.f_back
    return None


_JIT_CALLS: dict[str, Callable[[Mapping[str, Any]], tuple[Any, ...]]] = {
    "cache_miss": lambda x: ("call", x["fun"], x["jit_info"], x["args"], x["kwargs"]),
    "jit_trace": lambda x: ("ahead", x["jit_func"]._fun, x["jit_func"]._jit_info, x["args"], x["kwargs"]),
    "call_impl_cache_miss": lambda x: ("part", None, None, x["args"], {}, x["jaxpr"].jaxpr.debug_info),
}
"""By the name of a function of JAX's, what its frame's variables say of the call: the fields after `identity`."""

_LOOPS = {inspect.unwrap(f).__code__: f for f in (jax.lax.scan, jax.lax.while_loop, jax.lax.fori_loop, jax.lax.map)}


def outermost_call(frame: Any) -> JitCall | None:
    """The outermost call under way among a Python frame and its callers that JAX traces as a whole: of a jitted
    function; of a gradient outside of any, whose kind is 'gradient', and `info` its argnums; or of a loop, 'loop'."""
    found = None
    while frame is not None:
        code, identity = frame.f_code, (id(frame), 0)
        if code.co_filename == pjit.__file__ and code.co_name in ("cache_miss", "jit_trace"):
            found = jit_call_under_way(frame)
        elif code.co_filename == _api.__file__ and code.co_name == "value_and_grad_f":
            x = frame.f_locals
            found = JitCall(identity, "gradient", x["fun"], x["argnums"], x["args"], x["kwargs"])
        elif code.co_filename == _api.__file__ and code.co_name == "vjp":
            x = frame.f_locals
            found = JitCall(identity, "gradient", x["fun"], tuple(range(len(x["primals"]))), x["primals"], {})
        elif code in _LOOPS:
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            x = frame.f_locals  # JAX flattens some arguments, and deletes them
            given = {name: x[name] if name in x else x[f"{name}_flat"].unflatten() for name in names}
            found = JitCall(identity, "loop", _LOOPS[code], None, (), given)
        frame = frame.f_back
    return found


def executable_of(frame: Any) -> Any:
    """What XLA has compiled, when its compilation ends: in the frames of JAX's caller of XLA; None if it is not there.
    It reports its memory by `get_compiled_memory_stats`."""
    for _ in range(10):
        if frame is None:
            break
        if frame.f_code.co_filename == _pxla.__file__ and "xla_executable" in frame.f_locals:
            return frame.f_locals["xla_executable"]
        frame = frame.f_back
    return None


def static_places(f: Any) -> tuple[frozenset[int], frozenset[str]]:
    """Which arguments of a function of `jax.jit` are static, by position and by name; the same for its gradient and for
    a partial application."""
    n_given = 0
    while isinstance(f, functools.partial):
        n_given += len(f.args)
        f = f.func
    info = getattr(f, "_jit_info", None)
    if info is None:
        return frozenset(), frozenset()
    return frozenset(i - n_given for i in info.static_argnums if i >= n_given), frozenset(info.static_argnames)


def is_about_hashes(error: Exception) -> bool:
    """Whether an error is JAX's about a static argument that is not hashable."""
    return message_of(error).startswith("Non-hashable static arguments")


def static_values(f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call that `static_places` returns, by name."""
    places, names = static_places(f)
    return _chosen(f, args, kwargs, sorted(places), sorted(names))


def _chosen(
    fun: Any, args: Sequence[Any], kwargs: Mapping[str, Any], argnums: Iterable[int], argnames: Iterable[str]
) -> dict[str, Any]:
    """Some arguments of a call, given by position and by name, by name."""
    names = parameters(fun, len(args), {})[0]
    by_place = {names[i]: args[i] for i in argnums if i < len(args)}
    return by_place | {name: kwargs[name] for name in argnames if name in kwargs}


def is_primitive_call(fun: Any) -> bool:
    """Whether a jitted function is one that JAX creates to run a single operation."""
    return hasattr(fun, "_apply_primitive")


def static_arguments(
    fun: Any, info: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The static arguments of a call, and the others that are passed by position and by keyword; each by name."""
    others = [i for i in range(len(args)) if i not in info.static_argnums]
    return (
        _chosen(fun, args, kwargs, sorted(info.static_argnums), info.static_argnames),
        _chosen(fun, args, {}, others, ()),
        {name: x for name, x in kwargs.items() if name not in info.static_argnames},
    )


def argument_paths(fun: Any, info: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """The paths of the flat arguments of a call of a jitted function that are not static, such as `params['w']`."""
    debug = api_util.debug_info(
        "jit", fun, tuple(args), dict(kwargs), static_argnums=info.static_argnums, static_argnames=info.static_argnames
    )
    return tuple(debug.arg_names or ())


def argument_type(x: Any) -> Any:
    """The type of an argument of a jitted function in its program."""
    return _core.shaped_abstractify(x)


_JIT_OPTIONS = {
    "donate_argnums": "donate_argnums", "donate_argnames": "donate_argnames", "static_argnums": "static_argnums",
    "static_argnames": "static_argnames", "in_shardings": "in_shardings_leaves",
    "out_shardings": "out_shardings_leaves",
    "device": "device", "backend": "backend", "keep_unused": "keep_unused", "inline": "inline",
    "compiler_options": "compiler_options_kvs",
}  # fmt: skip


def jit_options(info: Any) -> dict[str, str]:
    """The parameters of `jit` as text, by name."""
    return {name: str(getattr(info, field, None)) for name, field in _JIT_OPTIONS.items()}


def trace_key() -> Any:
    """The part of JAX's current configuration and context that is in the cache key of a traced program."""
    return _config.trace_context()


MESH_IN_USE = ("jax.set_mesh", "with mesh")
"""The settings of `trace_config` that are the mesh in use."""

_AS_WRITTEN = {
    "abstract_mesh_context_manager": MESH_IN_USE[0],
    "mesh_context_manager": MESH_IN_USE[1],
    "compute_on_context_manager": "compute_on",
    "xla_metadata_context_manager": "set_xla_metadata",
    "axis_env_state": "the named axes in scope",
}
"""What a user writes to change a setting for which JAX has a name of its own."""


def trace_config() -> dict[str, Any]:
    """The same by name."""
    names: Callable[[], Sequence[str]] = _config.trace_context_names
    return {_AS_WRITTEN.get(name, name): x for name, x in zip(names(), trace_key(), strict=True)}


_hooks: list[tuple[Any, Callable[[], Any], Callable[[Any], None], Any]] = []
"""For each place with one of our hooks: the hook, how to read and write the place, and its previous value."""


HOOKS_FILE = __file__
"""The file of the frames of hooks."""


def on_jit_calls(heard: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None] | None) -> None:
    """Makes JAX call a function after each call of a jitted one, with that one, its arguments, keyword arguments and
    results.

    It uses the hook with which JAX checks for NaNs, and that check still runs; setting `jax_debug_nans` afterwards
    restores JAX's.

    Args:
      heard: the function; None restores the previous one, unless another has replaced it since.
    """
    while _hooks:
        hook, read, write, before = _hooks.pop()
        if read() is hook:
            write(before)
    if heard is None:
        return
    state, unset = _api._post_hook_state, _config.config_ext.unset
    places = [(state.get_global, state.set_global)]
    if state.get_local() is not unset:  # JAX sets the thread's value if `jax.debug_nans` was a context in it
        places.append((state.get_local, state.set_local))
    for read, write in places:
        before = read()
        hook = heard if before is None else _heard_after(before, heard)
        write(hook)
        _hooks.append((hook, read, write, before))


def _heard_after(before: Any, heard: Any) -> Any:
    def hook(fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        before(fun, args, kwargs, out)
        heard(fun, args, kwargs, out)

    return hook


def donating(f: Any) -> Any:
    """The parameters of `jit` for a function with donated arguments; None for others."""
    info = getattr(f, "_jit_info", None)
    return info if info is not None and donates(info) else None


def donates(info: Any) -> bool:
    """Whether parameters of `jit` include donated arguments."""
    return bool(info.donate_argnums or info.donate_argnames)


def donated_arguments(fun: Any, info: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a call of a jitted function donates, by name."""
    return _chosen(fun, args, kwargs, info.donate_argnums, info.donate_argnames)


ArrayImpl: Any = _array.ArrayImpl
_check_if_deleted = _array.ArrayImpl._check_if_deleted


def explain_deleted(tell: Callable[[Any], str] | None) -> None:
    """Adds what a function says about an array to JAX's error for reading it after deletion; None undoes it."""

    def check(self: Any) -> None:
        try:
            _check_if_deleted(self)
        except RuntimeError as error:
            said = tell(self) if tell is not None else ""
            if not said:
                raise
            raise RuntimeError(f"{error} {said}") from None

    _array.ArrayImpl._check_if_deleted = _check_if_deleted if tell is None else check


def key_data(x: Any) -> Any:
    """The data of an array of random keys; any other array itself."""
    return getattr(x, "_base_array", x)


_apart: Any = jax.make_user_context()
"""Has another value in each trace that JAX's caches keep apart."""


@contextlib.contextmanager
def traced_apart() -> Iterator[None]:
    """Keeps JAX's caches from knowing what is traced here by anything else, and from knowing anything else here."""
    with _apart(object()):
        yield


_vjp_in_place: Any = jax.make_user_context()
"""The replacement for `jax.vjp`, which keeps JAX from caching a trace of a function in which it is replaced."""
_in_place: contextvars.ContextVar[tuple[tuple[Callable[..., Any], Any], ...]] = contextvars.ContextVar(
    "_in_place", default=()
)
"""All replacements in this thread, nested, each with its key."""


@contextlib.contextmanager
def replaced_vjp(new: Callable[..., Any], key: Any = None) -> Iterator[None]:
    """Makes `jax.vjp`, and with it `jax.grad` and everything built on them, call something else in this thread, except
    while that runs. So does `jaxviz.vjp`.

    Functions that `jax.jit` has traced before are traced again, since their cached traces do not include it.

    Args:
      new: is called with the function that it stands for, `jax.vjp` or `jaxviz.vjp`, and then its arguments.
      key: equal for replacements with the same effect, which share JAX's cached traces; unique by default.
    """
    with _having_replaced((*_in_place.get(), (new, object() if key is None else key))), _replaced:
        yield


def vjp_as_before() -> contextlib.AbstractContextManager[None]:
    """Within a replacement, `jax.vjp` as it is without the innermost one: for what is derived there, whose rules may
    take gradients too."""
    return _having_replaced(_in_place.get()[:-1])


@contextlib.contextmanager
def _having_replaced(stack: tuple[tuple[Callable[..., Any], Any], ...]) -> Iterator[None]:
    token = _in_place.set(stack)
    try:
        with _vjp_in_place(tuple(key for _, key in stack)):
            yield
    finally:
        _in_place.reset(token)


class _Vjp:
    """Makes `jax.vjp` call its replacement.

    Overlapping threads share that: the first installs it, and the last removes it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.n_inside = 0
        self.before: tuple[Any, Any] = (_api.vjp, jax.vjp)

    def __enter__(self) -> None:
        with self.lock:
            self.n_inside += 1
            if self.n_inside == 1:
                self.before = _api.vjp, jax.vjp
                _api.vjp = jax.vjp = replaceable_vjp(_api.vjp)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.n_inside -= 1
            if self.n_inside == 0:
                _api.vjp, jax.vjp = self.before


_replaced = _Vjp()


Vjp = TypeVar("Vjp", bound=Callable[..., Any])


def replaceable_vjp(original: Vjp) -> Vjp:
    """`jax.vjp`, or another function like it, or the replacement that a thread has for it; see `replaced_vjp`."""

    @functools.wraps(original)
    def vjp(*args: Any, **kwargs: Any) -> Any:
        if not (stack := _in_place.get()):
            return original(*args, **kwargs)
        token = _in_place.set(stack[:-1])
        try:
            return stack[-1][0](vjp, *args, **kwargs)
        finally:
            _in_place.reset(token)

    return cast(Vjp, vjp)
