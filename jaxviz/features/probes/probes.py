"""`probe`: gives a value a name under which it can be watched as the program runs; and its primitives.

If nothing is watched, a probe adds nothing to the program. That holds under `jit` too, since the watched names are part
of JAX's cache key (`jax.make_user_context`): a program is traced again when a watch begins, and the earlier one is
found in the cache when it ends.

A watched probe becomes two equations. `report` has no result, and sends Python the value, or its summary computed on
the device. `link` is the identity, linear, and lowered to nothing; its transpose is a `report` of the cotangent.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Any, Protocol, TypeVar
from typing import Literal as OneOf

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxviz.ir import compat
from jaxviz.runtime import probe_names

What = OneOf["summary", "value"]
Kind = OneOf["value", "cotangent"]
T = TypeVar("T")

STATISTICS = ("norm", "mean", "min", "max", "nans", "infs")
_HALF = 1 << 16
"""Counts are sent with the statistics, in two halves that a float32 can represent exactly."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What a watch asks for; equal ones share compiled programs.

    Args:
      names: patterns, such as 'layer1.*'.
      what: whole values, or summaries of them.
      cotangents: whether cotangents are reported too.
      owner: the number of the one watch that it is for, 0 for all with the same request.
    """

    names: tuple[str, ...]
    what: What
    cotangents: bool
    owner: int = 0

    def matches(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.names)


@dataclass(frozen=True, slots=True)
class ProbeSite:
    """Identifies the probe that sent a report.

    Args:
      place: a number that distinguishes places with the same name, in the order in which they were traced.
    """

    name: str
    kind: Kind
    spec: Spec
    place: int

    def __repr__(self) -> str:
        return self.name if self.kind == "value" else f"{self.name}: {self.kind}"


@dataclass(frozen=True, slots=True)
class ProbedValue:
    """A value received from a running program.

    Args:
      axes: the number of leading dimensions that `vmap` maps over.
      size: the number of elements of the value, for one example.
      values: the value; or its statistics, packed along the last dimension: see `statistics`.
      step: the number of the call, if the program says so.
      index: the integers that the program passed for its position: iterations of loops, outermost first.
      device: in a `shard_map`, the number of the device in its mesh.
      seconds: the time spent on it in Python.
    """

    site: ProbeSite
    axes: int
    size: int
    values: np.ndarray[Any, Any]
    step: int | None
    index: np.ndarray[Any, Any] | None
    device: int | None
    seconds: float


class Receiver(Protocol):
    """Receives reports, called by any thread. It must not raise."""

    spec: Spec

    def receive(self, report: ProbedValue) -> None: ...

    def fail(self, error: Exception) -> None: ...


_specs: Any = jax.make_user_context(())
"""The specs of the active watches, part of the key of JAX's caches."""

_active: tuple[Receiver, ...] = ()
_owners: weakref.WeakValueDictionary[int, Receiver] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def begin(receiver: Receiver) -> None:
    """Sends reports to a watch: programs that are traced from now on, in any thread, report what it asks for."""
    _set_active(lambda active: (*active, receiver))


def end(receiver: Receiver) -> None:
    _set_active(lambda active: tuple(r for r in active if r is not receiver))


def _set_active(change: Callable[[tuple[Receiver, ...]], tuple[Receiver, ...]]) -> None:
    global _active
    with _lock:
        _active = change(_active)
        _specs.set_global(tuple(dict.fromkeys(r.spec for r in _active)))


def own(receiver: Receiver) -> None:
    """Sends reports for this owner to it as long as it is alive."""
    _owners[receiver.spec.owner] = receiver


def active_specs() -> tuple[Spec, ...]:
    """What is asked for now."""
    specs: tuple[Spec, ...] = _specs.value
    return specs


def tracing_for(spec: Spec) -> Any:
    """A context in which a program is traced for one more spec."""
    return _specs((*active_specs(), spec))


def probe(x: T, name: str, *, index: Any = None) -> T:
    """Names a value, so that it can be watched, and returns it.

    >>> h = jaxviz.probe(jnp.tanh(x @ w), "hidden")

    If nothing is watched, the compiled program is the one without the probe. Under `jaxviz.watch("hidden")` jitted
    functions are traced again, and the values and cotangents are recorded, also under `jit`, `vmap`, `grad`, `scan` and
    `jax.checkpoint`. A function that was compiled ahead of time, by `.lower().compile()`, is not changed.

    Args:
      x: an array, or a pytree of arrays, which are named by their paths too: `probe(grads, "grads")` has 'grads.w'.
      name: the name for `watch`; several places may share it.
      index: integers to record with the value, such as the iteration of a scan.

    Returns:
      x.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a probe must be a str; got {type(name).__name__}. Write probe(x, 'name').")
    probe_names.runs(name)
    specs, names = active_specs(), probe_names.asked()
    if not specs and not names:
        return x
    indices = () if index is None else (jnp.atleast_1d(jnp.asarray(index, jnp.int32)),)
    paths, tree = jax.tree_util.tree_flatten_with_path(x)
    leaves = []
    for path, leaf in paths:
        below = jax.tree_util.keystr(path, simple=True, separator=".")
        full = f"{name}.{below}" if below else name
        leaf = checkpoint_name(leaf, full) if full in names else leaf
        for spec in specs:
            leaf = _observed(leaf, full, spec, indices) if spec.matches(full) else leaf
        leaves.append(leaf)
    result: T = jax.tree.unflatten(tree, leaves)
    return result


next_place = itertools.count().__next__
"""The number of a new place that reports."""


def _observed(x: Any, name: str, spec: Spec, indices: tuple[Any, ...]) -> Any:
    """Reports a value, and returns one whose cotangent will be reported."""
    site = ProbeSite(name, "value", spec, next_place())
    params = {"site": site, "axes": 0, "has_step": False}
    array = jnp.asarray(x)
    is_key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    report_p.bind(jax.random.key_data(array) if is_key else array, *indices, **params)
    # A value that is not a JAX array has no cotangent, and is returned as it is.
    if not spec.cotangents or not isinstance(x, jax.Array) or not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    return link_p.bind(x, *indices, **{**params, "site": replace(site, kind="cotangent")})


# --- the content of a report ------------------------------------------------------------------------------------------


def measure(x: Any, what: What, axes: int) -> Any:
    """The value itself; or for each example its norm, mean, min and max, as in `jnp`, and its NaNs and infinities.

    Statistics are float32, or float64 if the value is; those of complex numbers are of their absolute values.
    """
    if what == "value":
        return x
    lead = x.shape[:axes]
    size = math.prod(x.shape[axes:])
    wide = jnp.abs(x) if jnp.iscomplexobj(x) else x
    wide = wide.astype(jnp.promote_types(wide.dtype, jnp.float32))
    if size == 0:
        return jnp.broadcast_to(jnp.array([0.0, *[jnp.nan] * 3, *[0.0] * 4], wide.dtype), (*lead, 8))
    bad = [is_bad(x).astype(jnp.int32) for is_bad in (jnp.isnan, jnp.isinf)]
    # Sum by rows first, so that not all elements are added up one after the other.
    shape = (*lead, size // x.shape[-1], x.shape[-1]) if x.ndim > axes else (*lead, 1, 1)
    columns = [jnp.reshape(y, shape) for y in (wide * wide, wide, wide, wide, *bad)]
    zero, infinity, none = (np.array(v, wide.dtype) for v in (0, np.inf, -np.inf))
    starts = [zero, zero, infinity, none, np.int32(0), np.int32(0)]
    for _ in range(2):
        columns = list(jax.lax.reduce(columns, starts, _combined, (columns[0].ndim - 1,)))
    squares, total, least, most, *counts = columns
    halves = [half.astype(wide.dtype) for count in counts for half in (count // _HALF, count % _HALF)]
    return jnp.stack([jnp.sqrt(squares), total / size, least, most, *halves], -1)


def _combined(a: Any, b: Any) -> Any:
    """All statistics in one reduction: XLA makes a loop of each, and may recompute the value in every loop."""
    sums = [x + y for x, y in zip(a, b, strict=True)]
    return sums[0], sums[1], jnp.minimum(a[2], b[2]), jnp.maximum(a[3], b[3]), sums[4], sums[5]


def statistics(packed: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The statistics that `measure` packs, by name."""
    by_name = {name: packed[..., i] for i, name in enumerate(STATISTICS[:4])}
    for i, name in enumerate(STATISTICS[4:]):
        by_name[name] = (packed[..., 4 + 2 * i] * _HALF + packed[..., 5 + 2 * i]).astype(np.int64)
    return by_name


@lru_cache(maxsize=64)
def _measured_now(what: What, axes: int) -> Any:
    return jax.jit(partial(measure, what=what, axes=axes))


def _deliver(values: Any, index: Any, device: Any, *, site: ProbeSite, axes: int, size: int, has_step: bool) -> None:
    """Delivers a report to its watch. Called on XLA's threads, where an error must not end the program."""
    began = time.perf_counter()
    if site.spec.owner:
        owner = _owners.get(site.spec.owner)
        receivers: tuple[Receiver, ...] = () if owner is None else (owner,)
    else:
        receivers = tuple(r for r in _active if r.spec == site.spec)
    if not receivers:
        return
    try:
        step = None
        if index is not None:
            index = np.array(index)
            if has_step:
                first, index = index[..., 0], index[..., 1:]
                step = int(first) if first.ndim == 0 and first >= 0 else None
        copied = np.array(values)
        place = None if device is None else int(device)
        seconds = time.perf_counter() - began
        for receiver in receivers:
            receiver.receive(ProbedValue(site, axes, size, copied, step, index, place, seconds))
    except Exception as error:
        for receiver in receivers:
            receiver.fail(error)


# --- the primitives ---------------------------------------------------------------------------------------------------

report_p: Any = Primitive("report")
report_p.multiple_results = True
emit_p: Any = Primitive("emit_report")
emit_p.multiple_results = True
link_p: Any = Primitive("link")


def _report_now(x: Any, *index: Any, site: ProbeSite, axes: int, has_step: bool) -> list[Any]:
    values = _measured_now(site.spec.what, axes)(x)
    size = math.prod(x.shape[axes:])
    _deliver(values, index[0] if index else None, None, site=site, axes=axes, size=size, has_step=has_step)
    return []


def _report_type(x: Any, *index: Any, **params: Any) -> Any:
    return [], {compat.report_effect}


report_p.def_impl(_report_now)
report_p.def_effectful_abstract_eval(_report_type)
emit_p.def_effectful_abstract_eval(_report_type)


def _emit_as_part(x: Any, *index: Any, **params: Any) -> Any:
    axes = params["axes"]
    return emit_p.bind(measure(x, params["site"].spec.what, axes), *index, size=math.prod(x.shape[axes:]), **params)


def _lower_emit(ctx: Any, *operands: Any, **params: Any) -> Any:
    is_per_device, has_index = compat.is_per_device(ctx), len(operands) > 1

    def callback(values: Any, *rest: Any) -> None:
        _deliver(values, rest[0] if has_index else None, rest[-1] if is_per_device else None, **params)

    return compat.emit_callback(ctx, callback, operands)


mlir.register_lowering(report_p, mlir.lower_fun(_emit_as_part, multiple_results=True))
mlir.register_lowering(emit_p, _lower_emit)
compat.run_where_known(report_p)


def _report_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    report_p.bind(*primals, **params)
    return [], []


def _report_batched(args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
    operands, axes = _examples_first(args, dims, params["axes"])
    return report_p.bind(*operands, **{**params, "axes": axes}), []


def _examples_first(args: Sequence[Any], dims: Sequence[Any], axes: int) -> tuple[list[Any], int]:
    moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True)]
    return moved, axes + (dims[0] is not None)


ad.primitive_jvps[report_p] = _report_jvp
ad.primitive_transposes[report_p] = lambda _, *operands, **params: [None] * len(operands)
batching.primitive_batchers[report_p] = _report_batched

link_p.def_impl(lambda x, *index, **params: x)
link_p.def_abstract_eval(lambda x, *index, **params: x)
mlir.register_lowering(link_p, lambda ctx, x, *index, **params: [x])


def _link_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    """The innermost derivative is the one that is linked: outer ones use the value unchanged."""
    x, *index = primals
    t = tangents[0]
    return x, t if type(t) is ad.Zero else link_p.bind(t, *index, **params)


def _link_transposed(ct: Any, x: Any, *index: Any, **params: Any) -> list[Any]:
    if type(ct) is not ad.Zero:
        report_p.bind(ct, *index, **params)
    return [ct, *(None for _ in index)]


def _link_batched(args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
    operands, axes = _examples_first(args, dims, params["axes"])
    return link_p.bind(*operands, **{**params, "axes": axes}), None if dims[0] is None else 0


ad.primitive_jvps[link_p] = _link_jvp
ad.primitive_transposes[link_p] = _link_transposed
batching.primitive_batchers[link_p] = _link_batched
