"""Primitives, jaxprs and their types."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, primitives

from jaxviz.ir.compat.private import (
    _compute_on,
    _core,
    _custom_batching,
    _custom_derivatives,
    _discharge,
    _effects,
    _hijax,
    _lax,
    _pe,
    _shard_map,
    _slicing,
    _source,
    _state_primitives,
    _state_types,
    _xla_metadata,
    api_util,
    debugging,
    pjit,
)
from jaxviz.ir.syntax import Operation

JAX: str = f"JAX {jax.__version__}"

COMPILED_IN_LESS_TIME: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_cpu_parallel_codegen_split_count": 1}
"""Options that make XLA compile faster for the CPU; in half the time with the last one, which later versions do not
have."""
if jax.__version_info__ < (0, 11):
    COMPILED_IN_LESS_TIME["xla_cpu_use_fusion_emitters"] = False

DropVar: Any = _core.DropVar
jit_p: Any = pjit.jit_p
add_any_p: Any = jax.interpreters.ad.add_jaxvals_p
new_ref_p: Any = _core.ref_p
empty_ref_p: Any = _core.empty_ref_p
freeze_p: Any = _core.freeze_p
free_ref_p: Any = _core.free_ref_p
get_p: Any = _state_primitives.get_p
swap_p: Any = _state_primitives.swap_p
addupdate_p: Any = _state_primitives.addupdate_p
ConcretizationTypeErrors = (
    jax.errors.ConcretizationTypeError,  # the base class of the tracer errors for bool, int and float
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
UNSPECIFIED: Any = pjit.UNSPECIFIED
scan_p: Any = primitives.scan_p
while_p: Any = primitives.while_p
cond_p: Any = primitives.cond_p
remat_p: Any = primitives.remat_p
name_p: Any = primitives.name_p
reduce_precision_p: Any = primitives.reduce_precision_p
device_put_p: Any = primitives.device_put_p
custom_jvp_call_p: Any = primitives.custom_jvp_call_p
custom_vjp_call_p: Any = primitives.custom_vjp_call_p
custom_lin_p: Any = primitives.custom_lin_p
remat_opt_p: Any = jax.custom_derivatives.remat_opt_p
closed_call_p: Any = primitives.closed_call_p
core_call_p: Any = _core.call_p
composite_p: Any = _lax.composite_p
custom_vmap_p: Any = _custom_batching.custom_vmap_p
compute_on_p: Any = _compute_on.compute_on_p
xla_metadata_call_p: Any = _xla_metadata.xla_metadata_call_p if jax.__version_info__ >= (0, 11) else None
"""None before 0.11."""
MERGES_RESIDUALS_OF_CALLS: bool = jax.__version_info__ >= (0, 11, 1)
"""Whether a residual of `compute_on` that is also a result leaves it once."""
ADDS_STATIC_SLICES: bool = jax.__version_info__ >= (0, 11)
"""Whether `with_refs` adds the cotangent of `w[:n]` to a reference; JAX 0.10 ends in a TypeError."""
SHRINKS_WHILE: bool = while_p in _pe.dce_rules
"""Whether JAX leaves out what no needed result of a `lax.while_loop` depends on; before 0.12 it keeps the loop."""
linear_call_p: Any = _custom_derivatives.linear_call_p
run_state_p: Any = _discharge.run_state_p
hi_primitive_p: Any = _hijax.call_hi_primitive_p
hi_linear_p: Any = _hijax.call_hi_primitive_linearized_p
shard_map_p: Any = _shard_map.shard_map_p
sharding_constraint_p: Any = pjit.sharding_constraint_p
debug_callback_p: Any = debugging.debug_callback_p
debug_print_p: Any = debugging.debug_print_p


def names_inside_as_outside(primitive: Any) -> bool:
    """Whether JAX prints the program of an equation with the names of its operands and results."""
    return primitive is jit_p


def new_jaxpr(
    constvars: Sequence[Any], invars: Sequence[Any], outvars: Sequence[Any], eqns: Sequence[Any],
    effects: Iterable[Any], debug_info: Any, is_high: bool,
) -> Any:  # fmt: skip
    """An open `Jaxpr`."""
    debug_info = debug_info if debug_info is not None else unknown_debug_info(len(invars), len(outvars))
    return _core.Jaxpr(constvars, invars, outvars, eqns, frozenset(effects), debug_info, is_high)


def new_eqn(
    invars: Sequence[Any], outvars: Sequence[Any], primitive: Any, params: Mapping[str, Any],
    effects: Any, source: Any, context: Any,
) -> Any:  # fmt: skip
    """A `JaxprEqn`; the caller is responsible for its types."""
    source = source if source is not None else _source.new_source_info()
    return _core.JaxprEqn(invars, outvars, primitive, params, effects, source, context)


def current_source() -> Any:
    """Python's current position, as the `source` of an equation."""
    return _source.current()


def current_context() -> Any:
    """The current equation context: mesh, compute type, random number layout."""
    return _core.current_jaxpr_eqn_context()


def within(context: Any) -> contextlib.AbstractContextManager[None]:
    """Applies an equation's context."""
    if context is current_context():
        return contextlib.nullcontext()
    manager: contextlib.AbstractContextManager[None] = context.manager
    return manager


def looks_into(primitive: Any) -> bool:
    """Whether JAX itself looks into the programs among the params of a primitive, as of a call or a loop. What a
    library's primitive does with its own, only its rules know: lineax's `linear_solve` has one whose constants it
    replaces when it runs."""
    return primitive in _pe.dce_rules or primitive in _pe.partial_eval_jaxpr_custom_rules


def closed_jaxpr(jaxpr: Any, consts: Sequence[Any]) -> Any:
    """An open jaxpr with the values of its constvars."""
    return ClosedJaxpr(jaxpr, consts)


def states_of(var: Any) -> tuple[Any, Any]:
    """The states with which a variable of a mutable type begins and ends, if JAX records them (before 0.11.1)."""
    return getattr(var, "initial_qdd", None), getattr(var, "final_qdd", None)


def type_in_state(aval: Any, state: Any) -> Any:
    """A mutable type with the state of a value, as JAX traces an argument of it; the type itself without one."""
    return aval if state is None else _core.AvalQDD(aval, state)


def is_high(jaxpr: Any) -> bool:
    return bool(getattr(jaxpr, "is_high", False))


def is_high_equation(primitive: Any, in_avals: Sequence[Any], params: Mapping[str, Any]) -> bool:
    """Whether an equation is high-level, which JAX lowers to others before it compiles: a hi-primitive, or a call of
    one."""
    return bool(primitive.is_high(*in_avals, **params))


_ASKED_OF = name_p, primitives.dot_general_p, primitives.conv_general_dilated_p


@dataclass(frozen=True)
class _AskedOfSome:
    """A checkpoint policy as used by `jax_remat3`: it only decides about names, matrix products and convolutions;
    everything else is recomputed."""

    __wrapped__: Any

    def __call__(self, primitive: Any, *avals: Any, **params: Any) -> Any:
        if primitive in _ASKED_OF and self.__wrapped__ is not None:
            return self.__wrapped__(primitive, *avals, **params)
        return _saves_all(self)


@dataclass(frozen=True)
class _AskedAfterRules(_AskedOfSome):
    """The policy of a checkpoint with operations in it that decide themselves what is saved, or None; see
    `remat_rule`."""


def asks_rules(policy: Any) -> bool:
    """Whether in a checkpoint with this policy, operations with a rule of their own decide what they save."""
    return isinstance(policy, _AskedAfterRules) and not _saves_all(policy)


def stacks_all(policy: Any) -> bool:
    """Whether a scan in a checkpoint with this policy stacks also what it saves of values that all iterations share, as
    under `jax_remat3`."""
    return isinstance(policy, _AskedOfSome) and not _saves_all(policy)


def policy_like(old: Any, new: Any) -> Any:
    """A checkpoint policy, or None, for a checkpoint that has another one: JAX asks it about the same."""
    if not isinstance(old, _AskedOfSome) or (new is None and not isinstance(old, _AskedAfterRules)):
        return new
    return type(old)(inspect.unwrap(new))


def policy_of_user(policy: Any) -> Any:
    """A checkpoint policy; None if the user gave none."""
    return None if isinstance(policy, _AskedOfSome) and policy.__wrapped__ is None else policy


def left_out_by(policy: Any, primitive: Any) -> bool:
    """Whether JAX does not ask a checkpoint policy about an operation, under `jax_remat3`."""
    return isinstance(policy, _AskedOfSome) and not _saves_all(policy) and primitive not in _ASKED_OF


def policy_in_rules(policy: Any) -> Any:
    """The checkpoint policy for what a custom rule computes.

    Under `jax_remat3`, JAX asks it before it applies the rules of `jax.custom_jvp` and `jax.custom_vjp`, and so about
    nothing inside them.
    """
    return _save_nothing if isinstance(policy, _AskedOfSome) and not _saves_all(policy) else policy


def _saves_all(policy: _AskedOfSome) -> bool:
    return policy.__wrapped__ is jax.checkpoint_policies.everything_saveable


def _save_nothing(*_: Any, **__: Any) -> bool:
    return False


def is_ref(aval: Any) -> bool:
    """Whether a type is that of a mutable reference."""
    return isinstance(aval, _state_types.AbstractRef)


def ref_to(aval: Any) -> Any:
    """The type of a mutable reference to a value of a type."""
    return _state_types.AbstractRef(aval)


def own_type(aval: Any) -> Any:
    """A type for one variable alone: JAX tells references apart by the objects that are their types."""
    return copy.copy(aval) if is_ref(aval) else aval


def inner_type(aval: Any) -> Any:
    """The type of what is in a mutable reference."""
    return aval.inner_aval


def gathers_from_refs(params: Mapping[str, Any], in_avals: Sequence[Any]) -> bool:
    """Whether JAX adds the cotangent of a gather to a reference in place, as an index with arrays, as since 0.12."""
    if not hasattr(_slicing, "_gather_to_ref_indexer"):
        return False
    operand, indices = in_avals
    any_indices = np.broadcast_to(np.int32(0), indices.shape)
    which = (params["dimension_numbers"], params["slice_sizes"], params["mode"], operand.shape)
    return _slicing._gather_to_ref_indexer(any_indices, *which) is not None


def makes_refs(effects: frozenset[Any]) -> bool:
    """Whether a program with these effects makes mutable references."""
    return any(isinstance(e, _core.InternalMutableArrayEffect) for e in effects)


def touches_refs(effects: frozenset[Any]) -> bool:
    """Whether a program with these effects makes, reads or writes mutable references."""
    return makes_refs(effects) or any(isinstance(e, _state_types.RefEffect) for e in effects)


def written_refs(effects: frozenset[Any]) -> list[int]:
    """The positions of the operands that an operation with these effects writes."""
    return [e.input for e in effects if isinstance(e, (_state_types.WriteEffect, _state_types.AccumEffect))]


def check_no_aliased_refs(debug_info: Any, avals: Sequence[Any], args: Sequence[Any]) -> None:
    """Raises JAX's error if one reference is passed as two arguments, which a program would take for two references."""
    if any(map(is_ref, avals)):
        api_util.check_no_aliased_ref_args(lambda: debug_info, list(avals), list(args))


def without_refs(jaxpr: Any, lower: bool) -> Any:
    """A closed jaxpr in which each reference is its value: a result besides what it returns is what is then in each
    that it takes.

    Args:
      lower: whether hi-primitives are lowered as well, so that no value of a hi type is left.
    """
    return _discharge.discharge_state(jaxpr, lower=lower)


def without_mutable_types(jaxpr: Any) -> Any:
    """A closed jaxpr in which each value of a hi type is its arrays.

    What is then in the mutable ones that it takes comes before its results.
    """
    return _pe.lower_jaxpr2(jaxpr)


def kind_of_ref(aval: Any) -> Any:
    """What JAX's transforms may do with a reference, such as 'no_grad_no_remat'; None for anything, and for a value."""
    return aval.kind if is_ref(aval) else None


def touches_ref(operation: Operation) -> bool:
    """Whether an operation takes or makes a mutable reference.

    One that it makes and uses inside is not visible outside.
    """
    return any(map(is_ref, operation.in_avals)) or any(map(is_ref, operation.out_avals))


def touches_mutable(operation: Operation) -> bool:
    """Whether an operation takes or makes a value of a mutable hi type."""
    return any(map(is_mutable_type, (*operation.in_avals, *operation.out_avals)))


def is_mutable_type(aval: Any) -> bool:
    """Whether it is a mutable hi type."""
    return bool(getattr(aval, "has_qdd", False))


def lacks_state(error: Exception) -> bool:
    """Whether JAX raised an error because a value of a mutable hi type has no state, rather than the user's code for a
    reason of its own."""
    if isinstance(error, AttributeError):
        return is_mutable_type(error.obj)
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return bool(frame.f_globals.get("__name__", "").startswith("jax."))


def is_hi_type(aval: Any) -> bool:
    """Whether it is a hi type whose values are never written, which defines zeros and sums."""
    return isinstance(aval, _hijax.HiType)


def is_mutable(aval: Any) -> bool:
    """Whether values of a type can be written in place: mutable references, and values of mutable hi types."""
    return is_ref(aval) or is_mutable_type(aval)


def writes_in_place(operation: Operation) -> bool:
    """Whether an operation takes or makes what can be written in place."""
    return touches_ref(operation) or touches_mutable(operation)


def is_array(x: Any) -> bool:
    """Whether x is an array on a device, which JAX's linearize always keeps unchanged."""
    return isinstance(x, jax.Array)


def unknown_debug_info(num_inputs: int, num_outputs: int) -> Any:
    return _core.DebugInfo("jaxviz", "derived", ("",) * num_inputs, ("",) * num_outputs)


def function_debug_info(fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Name, source and argument paths of a function, as JAX's tracing errors name them; of an object that is called,
    its class."""
    info = api_util.debug_info("jaxviz", fun, args, kwargs)
    return info if info.func_src_info != "<unknown>" else info._replace(func_src_info=_described_object(fun))


def _described_object(fun: Any) -> str:
    """`MLP at model.py:12`, for an object with `__call__`; a partial application or a wrapper is described by what it
    calls."""
    while hasattr(fun, "__wrapped__") or all(hasattr(fun, part) for part in ("func", "args", "keywords")):
        fun = fun.__wrapped__ if hasattr(fun, "__wrapped__") else fun.func
    if hasattr(fun, "__name__"):
        return str(fun.__name__)
    code = getattr(inspect.unwrap(type(fun).__call__), "__code__", None)
    name = type(fun).__name__
    return name if code is None else f"{name} at {code.co_filename}:{code.co_firstlineno}"


def differentiated_debug_info(fun: Callable[..., Any], primals: Sequence[Any]) -> tuple[Any, dict[int, str]]:
    """The debug info of a function that is passed to `jax.vjp`: that of the user's function, with the paths of the
    differentiated arguments; and the paths of its other arguments and of what it closes over, by identity.

    `jax.grad` passes a function of the differentiated arguments only, which may be that of a library, and not the
    user's.
    """
    captured = _closed_over(fun) if getattr(fun, "__name__", "") == "f_wrapped" else {}
    is_grad = {"f", "dyn_argnums", "static_args", "kwargs"} <= set(captured)
    f, kwargs = (captured["f"], captured["kwargs"]) if is_grad else (fun, {})
    args, places = (
        (list(captured["static_args"]), captured["dyn_argnums"]) if is_grad else (list(primals), range(len(primals)))
    )
    for place, x in zip(places, primals, strict=True):
        args[place] = x
    wrapped = _wrapped_by_maker(f) if tuple(places) == (0,) else None
    if wrapped is not None:  # the first argument is passed in parts, of which one is differentiated
        n_parts = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in inspect.signature(f).parameters.values())
        f, args = wrapped, [args[0], *args[n_parts:]]
    info = function_debug_info(f, args, kwargs)
    names = iter(info.arg_names or ())
    by_argument = [[next(names, "") for _ in jax.tree.leaves(a)] for a in args]
    around = {
        id(x): name + jax.tree_util.keystr(path)
        for name, tree in _captured(f).items()
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }
    name_by_id = {id(x): name for x, name in zip(jax.tree.leaves((args, kwargs)), info.arg_names or (), strict=False)}
    return info._replace(arg_names=tuple(n for place in places for n in by_argument[place])), around | name_by_id


def _wrapped_by_maker(fun: Callable[..., Any]) -> Callable[..., Any] | None:
    """The user's function, if a method of an object that exposes it as `__wrapped__` made this one to call it, as in
    Equinox's `filter_grad`."""
    maker = getattr(fun, "__qualname__", "").rpartition(".<locals>.")[0].rpartition(".")[0]
    wrappers = (x for x in _closed_over(fun).values() if maker and type(x).__qualname__ == maker)
    return next((inspect.unwrap(x) for x in wrappers if hasattr(x, "__wrapped__")), None)


def _captured(fun: Any) -> Mapping[str, Any]:
    """What a function closes over, and what the function closes over that it wraps or applies to some of its arguments;
    these too, by name."""
    captured = dict(_closed_over(fun))
    if isinstance(fun, functools.partial):
        names = parameters(fun.func, len(fun.args), {})[0]
        return {**_captured(fun.func), **captured, **dict(zip(names, fun.args, strict=False)), **fun.keywords}
    return {**_captured(fun.__wrapped__), **captured} if hasattr(fun, "__wrapped__") else captured


def _closed_over(fun: Callable[..., Any]) -> Mapping[str, Any]:
    """What a function closes over, by name."""
    cells = zip(
        getattr(getattr(fun, "__code__", None), "co_freevars", ()),
        getattr(fun, "__closure__", None) or (),
        strict=False,
    )
    values = {}
    for name, cell in cells:
        with contextlib.suppress(ValueError):  # not assigned yet
            values[name] = cell.cell_contents
    return values


def parameters(
    fun: Callable[..., Any], n: int, options: Mapping[str, Any]
) -> tuple[list[str], tuple[int, ...], tuple[str, ...]]:
    """The names of a function's parameters for `n` positional arguments, and which arguments are static in `jit`, by
    position and by name."""
    signature = api_util.fun_signature(fun)
    names = [f"args[{i}]" for i in range(n)]
    if signature is not None:
        positional = [
            p.name for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        names[: len(positional)] = positional[:n]
    argnums, argnames = options.get("static_argnums"), options.get("static_argnames")
    if signature is not None:
        argnums, argnames = api_util.infer_argnums_and_argnames(signature, argnums, argnames)
    return names, _as_tuple(argnums), _as_tuple(argnames)


def _as_tuple(x: Any) -> tuple[Any, ...]:
    return () if x is None else (x,) if isinstance(x, (int, str)) else tuple(x)


def name_function(fun: Callable[..., Any], debug_info: Any) -> None:
    """Makes errors and debug info name a wrapper like the function that it wraps."""
    api_util.save_wrapped_fun_debug_info(fun, debug_info._replace(result_paths=None))


def derived_debug_info(debug_info: Any, arg_names: Sequence[str], num_outputs: int) -> Any:
    """The debug info of a program derived from one that has `debug_info`."""
    if debug_info is None:
        return unknown_debug_info(len(arg_names), num_outputs)
    return debug_info._replace(arg_names=tuple(arg_names), result_paths=("",) * num_outputs)


def adds_one_by_one(debug_info: Any) -> bool:
    """Whether a program is the body of a checkpoint under `jax_remat3`, whose uses of a value each add to its cotangent
    outside."""
    return getattr(debug_info, "traced_for", "") == "remat3"


def pins_cotangents() -> bool:
    """Whether the barrier before what a checkpoint computes again waits for the cotangents too, in a transposition now;
    under `jax_remat3` a flag says so since JAX 0.12."""
    return not getattr(jax.config, "jax_remat_barrier_no_cotangents", False)


def positional_effects(effects: Iterable[Any], inputs: Sequence[Any]) -> frozenset[Any]:
    """Effects with each input they concern given by its position."""
    if not effects:
        return frozenset()
    where = {id(v): i for i, v in enumerate(inputs)}
    by_position = set()
    for e in effects:
        if isinstance(e, _effects.JaxprInputEffect) and not isinstance(e.input, int):
            if id(e.input) not in where:
                continue  # an effect on a closed-over reference, which such jaxprs carry themselves
            e = e.replace(where[id(e.input)])
        by_position.add(e)
    return frozenset(by_position)


def moved_effects(effects: Iterable[Any], places: Sequence[int | None]) -> frozenset[Any]:
    """Effects by position, with the input at i moved to places[i]; one on an input that has no place is left out."""
    moved = set()
    for e in effects:
        if isinstance(e, _effects.JaxprInputEffect) and isinstance(e.input, int):
            if places[e.input] is None:
                continue
            e = e.replace(places[e.input])
        moved.add(e)
    return frozenset(moved)


def resolved_effects(effects: frozenset[Any], inputs: Sequence[Any]) -> frozenset[Any]:
    """The inverse of `positional_effects`."""
    return frozenset(_core.resolve_input_effects(effects, inputs)) if effects else effects


def is_user_file(name: str) -> bool:
    """Whether a file is the user's: neither jax's nor the standard library's."""
    return bool(_source.is_user_filename(name))
