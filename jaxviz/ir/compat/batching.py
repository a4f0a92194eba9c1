"""JAX's batching rules."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxviz.ir.compat.custom_rules import Axis
from jaxviz.ir.compat.jaxprs import custom_jvp_call_p, custom_vjp_call_p
from jaxviz.ir.compat.private import _batching, _callback, _conditionals, _config, _core, _lax, _state_types, pjit

IF_MAPPED: Any = _batching.zero_if_mapped
"""As a mapped dimension: the front if the value is mapped, otherwise none."""


def has_batching_rule(primitive: Any) -> bool:
    return primitive in _batching.fancy_primitive_batchers or primitive in (custom_jvp_call_p, custom_vjp_call_p)


def mapped_type(aval: Any, dim: int | None, axis: Axis) -> Any:
    """The type of a value with its mapped dimension."""
    if dim is None:
        return aval
    mapped = _core.unmapped_aval(axis.size, dim, aval, axis.explicit_mesh_axis)
    if axis.spmd_name is not None and _config._check_vma.value:
        mat = mapped.mat.update(varying=mapped.mat.varying | frozenset(axis.spmd_name))
        mapped = mapped.update(manual_axis_type=mat)
    return mapped


@contextlib.contextmanager
def _inside(axis: Axis) -> Iterator[None]:
    with (
        _core.extend_axis_env_nd([(axis.name, axis.size)]),
        _core.add_spmd_axis_names(axis.spmd_name),
        _core.add_explicit_mesh_axis_names(axis.explicit_mesh_axis),
    ):
        yield


def batching_rule(
    primitive: Any, params: Mapping[str, Any], in_avals: Sequence[Any], dims: Sequence[int | None], axis: Axis,
    context: Any,
) -> tuple[Callable[..., list[Any]], list[Any], list[int | None]]:  # fmt: skip
    """The batching rule of a primitive, for tracing.

    Returns:
      a function from operands to results, both with their mapped dimensions; its input types; and the mapped dimensions
      of the results, a list that is filled when it is traced.

    Source: `_batch_jaxpr_inner` in JAX's `batching.py`.
    """
    dims_out: list[int | None] = []

    def mapped(*args: Any) -> list[Any]:
        trace = _batching.BatchTrace(_core.trace_ctx.trace, _core.TraceTag(), axis)
        tracers = [x if d is None else _batching.BatchTracer(trace, x, d) for x, d in zip(args, dims, strict=True)]
        with _core.set_current_trace(trace), _inside(axis), context.manager:
            outs = primitive.bind(*tracers, **primitive.get_bind_params(params))
        pairs = [trace.to_batch_info(x) for x in (outs if primitive.multiple_results else [outs])]
        dims_out[:] = [d for _, d in pairs]
        return [x for x, _ in pairs]

    return mapped, [mapped_type(a, d, axis) for a, d in zip(in_avals, dims, strict=True)], dims_out


def match_axis(axis: Axis, source: int | None, to: int | None, x: Any) -> Any:
    """A value with its mapped dimension moved, or broadcast along a new one; JAX's error if it cannot be unmapped."""
    return _batching.matchaxis(axis, source, to, x)


def mapped_sharding(sharding: Any, dim: int | None, axis: Axis, context_mesh: Any, aval: Any) -> Any:
    """The sharding of an operand or result of jit, of a type that includes the mapped dimension."""
    if dim is None:
        return sharding
    map_sharding = pjit._pjit_batcher_for_sharding
    takes_type = "aval" in inspect.signature(map_sharding).parameters  # since 0.11; before, the rank
    return map_sharding(sharding, dim, axis.spmd_name, context_mesh, aval if takes_type else aval.ndim)


def guarded(index: Any, branch: int, operands: Sequence[Any]) -> list[Any]:
    """The operands of one branch of a mapped cond, with those of other examples excluded from differentiation."""
    chosen = _lax.eq(index, _lax._const(index, branch))
    return [_conditionals._bcast_select(chosen, x, _lax.stop_gradient(x)) for x in operands]


def select_results(index: Any, *results: Any) -> Any:
    """Selects for each example the results of its own branch of a mapped cond."""
    return _conditionals._bcast_select_n(index, *results)


def refuse_effects_when_mapped(effects: Iterable[Any], of: str) -> None:
    """Raises JAX's error for effects that cannot be mapped."""
    written = set(effects)
    if of == "cond":
        if any(isinstance(e, _state_types.RefEffect) for e in written):
            raise NotImplementedError("State effect not supported in vmap-of-cond.")
        if written & {_callback._IOEffect, _callback._OrderedIOEffect}:
            raise NotImplementedError("IO effect not supported in vmap-of-cond.")
    if of == "while" and _callback._OrderedIOEffect in written:
        raise Exception("Ordered IO effects not supported in vmap.")
    if of == "while with a mapped predicate" and _callback._IOEffect in written:
        raise Exception("Unordered IO effects not supported in while_loop with batched predicate")


def platform_index(platforms: Any) -> Any:
    return _conditionals.platform_index_p.bind(platforms=platforms)


def mapped_arguments(leaves: Sequence[Any]) -> tuple[Axis, list[Any], list[int | None]] | None:
    """The axis over which the enclosing `jax.vmap` maps a function, with the arguments' values and mapped dimensions.

    None if some argument is not mapped along a dimension.
    """
    trace = _core.trace_ctx.trace
    if not isinstance(trace, _batching.BatchTrace):
        return None
    pairs = [trace.to_batch_info(x) for x in leaves]
    if not all(d is None or type(d) is int for _, d in pairs):
        return None
    return trace.axis_data, [x for x, _ in pairs], [d for _, d in pairs]


def outside_vmap(fun: Callable[[], Sequence[Any]], dims_out: Sequence[int | None]) -> list[Any]:
    """Calls a function on values with their mapped dimension, and returns its results to `jax.vmap`."""
    trace = _core.trace_ctx.trace
    with _core.set_current_trace(trace.parent_trace):
        outs = fun()
    return [x if d is None else _batching.BatchTracer(trace, x, d) for x, d in zip(outs, dims_out, strict=True)]
