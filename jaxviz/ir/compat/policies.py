"""Checkpoint policies and callbacks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from jaxviz.ir.compat.jaxprs import left_out_by, name_p
from jaxviz.ir.compat.private import (
    _callback,
    _core,
    _hlo,
    _pe,
    _sharding_impls,
    _state_types,
    debugging,
    dispatch,
    dtypes,
)  # fmt: skip
from jaxviz.ir.compat.values import is_tracer


class PolicyRefused(TypeError):
    """JAX cannot ask a checkpoint policy about an equation, or do what it answers."""


def refuse_rounding(aval: Any) -> None:
    """Raises JAX's error for a saved value that the forward pass also reads, if it is of a type that JAX cannot round.

    Raises:
      PolicyRefused: the value is complex.
    """
    if dtypes.issubdtype(aval.dtype, np.complexfloating):
        raise PolicyRefused(
            f"a checkpoint cannot save {aval.str_short()}: JAX rounds a saved value that the forward pass reads, and "
            "reduce_precision does not "
            "accept complex numbers. Save its real and its imaginary part, or let it be recomputed."
        )


def decide(policy: Any, primitive: Any, in_avals: Sequence[Any], params: Mapping[str, Any]) -> Any:
    """What a checkpoint policy decides for an equation: 'saved', 'recomputed', or (source, destination) memory kinds.

    Raises:
      PolicyRefused: an argument of the policy has the name of a param, which JAX passes to it by keyword.
    """
    try:
        case = _pe.ensure_enum(policy(primitive, *in_avals, **params))
    except TypeError as error:
        if "multiple values for argument" not in str(error):
            raise
        raise PolicyRefused(
            f"JAX cannot ask {getattr(policy, '__name__', type(policy).__name__)} about `{primitive}`, which has a "
            "param with the name of an "
            f"argument of the policy: {error}"
        ) from error
    if isinstance(case, _pe.SaveableType):
        return "saved"
    return (case.src, case.dst) if isinstance(case, _pe.Offloadable) else "recomputed"


def would_save(policy: Any, primitive: Any, in_avals: Sequence[Any], params: Mapping[str, Any]) -> bool:
    """Whether a checkpoint policy would save what an operation computes, although JAX does not ask it about that."""
    if not left_out_by(policy, primitive):
        return False
    try:
        return bool(decide(inspect.unwrap(policy), primitive, in_avals, params) == "saved")
    except Exception:  # a policy may only know what it is asked about
        return False


def ignores_names(policy: Any) -> bool:
    """Whether a checkpoint policy was given names not to save that JAX ignores: asked about a value with such a name,
    it saves it."""
    maker = jax.checkpoint_policies.save_anything_except_these_names
    made_by = getattr(inspect.unwrap(policy), "__qualname__", "") if callable(policy) else ""
    return made_by.startswith(f"{maker.__qualname__}.") and bool(maker("a")(name_p, name="a"))


def ignores_policies() -> bool:
    """Whether JAX asks no checkpoint policy about anything, as an early form of `jax_remat3` does."""
    return _ignores_policies(bool(getattr(jax.config, "jax_remat3", False)))


@functools.cache
def _ignores_policies(remat3: bool) -> bool:
    asked = []

    def policy(*_: Any, **__: Any) -> bool:
        asked.append(True)
        return False

    f = lambda x: jax.lax.sin(checkpoint_name(jax.lax.sin(x), "name"))
    jax.make_jaxpr(jax.grad(jax.checkpoint(f, policy=policy)))(1.0)
    return not asked


def runs_again(eqn: Any) -> bool:
    """Whether a checkpoint repeats an equation on a mutable reference in the backward pass, by JAX's rule for it, which
    asks no policy."""
    rule = _pe.partial_eval_jaxpr_custom_rules.get(eqn.primitive)
    n = len(eqn.invars)
    return rule is not None and rule(None, [False] * n, [True] * n, eqn)[1] is not None


_ASKED_BY = frozenset(
    name
    for name, p in inspect.signature(jax.checkpoint_policies.save_only_these_names("")).parameters.items()
    if p.kind is p.POSITIONAL_OR_KEYWORD
)


def is_askable(params: Mapping[str, Any]) -> bool:
    """Whether JAX can ask its policies of names about an equation with these params, which it passes beside the
    primitive, by keyword.

    A param with the name of the policy's own argument is a TypeError; equinox's loops have such a param.
    """
    return _ASKED_BY.isdisjoint(params)


def in_memory(aval: Any, kind: str) -> Any:
    """The type of a value moved to another kind of memory, such as 'pinned_host'."""
    return aval.update(memory_space=_core.mem_kind_to_space(kind))


def is_on_host(aval: Any) -> bool:
    """Whether a value of a type is in the memory of the host."""
    return getattr(aval, "memory_space", None) is not None and aval.memory_space == _core.mem_kind_to_space(
        "pinned_host"
    )


def move_params(kind: str, n: int) -> dict[str, Any]:
    """Params of the `device_put` with which JAX moves `n` values to a kind of memory."""
    return {
        "devices": (_core.mem_kind_to_space(kind),) * n,
        "srcs": (None,),
        "copy_semantics": (dispatch.ArrayCopySemantics.ALWAYS_COPY,),
    }


def has_effects(effects: frozenset[Any], dead: Collection[int] = ()) -> bool:
    """Whether an equation with these effects is kept even if nothing reads its results; naming an axis is not
    enough, nor is writing to a reference among its `dead` operands, which nothing reads later."""
    return bool(effects) and not all(
        _pe.dceable_effects.contains(e) or (isinstance(e, _state_types.RefEffect) and e.input in dead) for e in effects
    )


DROPS_DEAD_WRITES: bool = "live_inputs" in inspect.signature(_pe.dce_jaxpr).parameters
"""Whether JAX removes what is written to a reference of a function's own that nothing reads later, as since 0.12."""


def is_real_effect(effect: Any) -> bool:
    """Whether an effect is visible outside, and not just about names or references."""
    return not isinstance(effect, (_core.NamedAxisEffect, _core.InternalMutableArrayEffect))


report_effect: Any = debugging.debug_effect
"""The effect of an equation that reports a value to Python: loops, branches, checkpoints and custom rules may have
it."""


def run_where_known(primitive: Any) -> None:
    """Makes a checkpoint run an equation without results once: in the forward pass if its operands are known there,
    otherwise in the backward pass."""

    def split(saveable: Any, unknown: Sequence[bool], available: Sequence[bool], eqn: Any) -> Any:
        if any(unknown):
            return None, eqn, [], [], [v for v, inst in zip(eqn.invars, available, strict=True) if not inst]
        return eqn, None, [], [], []

    _pe.partial_eval_jaxpr_custom_rules[primitive] = split


def emit_callback(ctx: Any, callback: Callable[..., None], operands: Sequence[Any]) -> tuple[()]:
    """Lowers an equation to a call of Python, on NumPy arrays that are valid during the call.

    In a `shard_map` over the whole mesh it is called for each device, with its number in the mesh last; else once with
    the whole values.

    Raises:
      NotImplementedError: in a `shard_map` over some axes of a mesh only.
    """
    axes = ctx.module_context.axis_context
    sharding: Any = None
    avals = list(ctx.avals_in)
    operands = list(operands)
    if isinstance(axes, _sharding_impls.SPMDAxisContext):
        if set(axes.manual_axes) != set(axes.mesh.axis_names):
            left = ", ".join(sorted(map(str, set(axes.mesh.axis_names) - set(axes.manual_axes))))
            raise NotImplementedError(
                "a probe cannot be watched in a shard_map over only some of the axes of its mesh; this one leaves "
                f"{left} to the compiler. Watch it "
                "outside of the shard_map, or map over all axes."
            )
        sharding = _callback._get_sdy_array_list_for_callbacks(ctx.avals_out)
        operands.append(_hlo.partition_id())
        avals.append(_core.ShapedArray((), np.dtype(np.uint32)))
    elif isinstance(axes, _sharding_impls.ShardingContext):
        replicated = _sharding_impls.SdyArray(mesh_shape=(), dim_shardings=(), logical_device_ids=(0,))
        sharding = _sharding_impls.SdyArrayList((replicated,))

    def called(*values: Any) -> tuple[()]:
        callback(*values)
        return ()

    ctx = ctx.replace(avals_in=avals)
    _callback.emit_python_callback(
        ctx, called, None, operands, avals, ctx.avals_out, has_side_effect=True, returns_token=True, sharding=sharding
    )
    return ()


def is_per_device(ctx: Any) -> bool:
    """Whether the code being lowered runs on each device of a mesh with its own values, as the body of a `shard_map`
    does."""
    return isinstance(ctx.module_context.axis_context, _sharding_impls.SPMDAxisContext)


def is_staged() -> bool:
    """Whether what is computed now, even from constants, becomes part of a program that runs later."""
    return is_tracer(jax.lax.add(np.int32(0), np.int32(0)))
