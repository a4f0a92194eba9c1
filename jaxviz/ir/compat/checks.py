"""JAX's own derivation, zeros, and its checks of arguments."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxviz.ir.compat.jaxprs import inner_type, is_ref
from jaxviz.ir.compat.private import _ad, _ad_util, _api, _core, _lax, api_util, dtypes
from jaxviz.ir.sharing import cleared


def _is_nonzero(tangent: Any) -> bool:
    """Whether a rule's tangent is nonzero: as in JAX, the trivial tangents of integers are, however a rule returns
    them."""
    return type(tangent) is not _ad.Zero and not is_float0(_core.typeof(tangent))


# Bound on import, so that a program can replace jax.grad by jaxviz.grad without infinite recursion.
jax_vjp = jax.vjp
jax_make_jaxpr = jax.make_jaxpr
jax_vmap = jax.vmap

check_callable = _api.check_callable
check_scalar = _api._check_scalar
check_input_dtype_reverse = _api._check_input_dtype_revderiv
check_output_dtype_reverse = _api._check_output_dtype_revderiv
check_input_dtype_jacfwd = _api._check_input_dtype_jacfwd
check_output_dtype_jacfwd = _api._check_output_dtype_jacfwd
check_cotangent_types = _api._vjp_check_ct_avals
raise_cotangent_tree_error = _api._vjp_ct_tree_error
too_many_cotangents = _api._vjp_too_many_args
standard_basis = _api._std_basis
unravel_jacfwd = _api._jacfwd_unravel
unravel_jacrev = _api._jacrev_unravel
one_cotangent = _lax._one_vjp


NOT_NEEDED: Any = _api.NotNeeded()
GRAD_VALUE: Any = _api.GradValue()
_HAS_UNSAVEABLE: bool = hasattr(_api, "NotSaveable")
"""Whether arguments of JAX's VJP objects may be residuals that are not saved, true since 0.11."""
_RULES_LOG: bool = hasattr(jax.custom_vjp, "defvjp_with_logs")
"""Whether a backward rule returns its logs beside the cotangents, as since 0.11.1."""


def nested_like(tree: Any, leaves: Sequence[Any]) -> Any:
    """Leaves in nested tuples (since 0.12 in JAX's own containers), nested like a tree of arguments."""
    nest = _api.mirror_tree_map if hasattr(_api, "mirror_tree_map") else _api.tuptree_map
    return nest(lambda x: x, tree, leaves)


def flags(prefix: Any, tree: Any, name: str) -> list[bool]:
    """One bool for each leaf of a tree, from a tree of bools that is a prefix of it."""
    if hasattr(_api, "tuptree_flags"):  # since 0.11.1
        return list(_api.tuptree_flags(prefix, tree, name, f"the {name} argument"))
    return list(jax.tree.leaves(jax.tree.broadcast(prefix, jax.tree.unflatten(tree, [0] * tree.num_leaves))))


def not_saveable() -> Any:
    """The placeholder of an argument that is a residual and not saved; it has to be replaced before the cotangents are
    computed."""
    return _api.NotSaveable() if _HAS_UNSAVEABLE else NOT_NEEDED


def merge_logs(logged: dict[Any, Any], more: Any, primitive: Any) -> None:
    """Adds the values that one more backward rule logged, if any, to those logged so far, by key.

    Raises:
      TypeError, ValueError: JAX's, if it is not a dict, or has a key that exists already.
    """
    logged.update(_ad._merge_rule_logs(logged, more, primitive))


def restored_arguments(args_res: Any, jaxpr: Callable[[], Any], in_tree: Any, needed: Sequence[int] = ()) -> list[Any]:
    """The flat arguments that a `VJP` holds, or the placeholders of those that it does not.

    Args:
      args_res: its arguments.
      jaxpr, in_tree: of the function, for errors.
      needed: the numbers of the arguments that are residuals.

    Raises:
      ValueError: one that was not saved, or has been taken out, has not been put back; JAX's error, since 0.11.
    """
    missing_types = (_api.NotNeeded, _api.NotSaveable) if _HAS_UNSAVEABLE else (_api.NotNeeded,)
    leaves = jax.tree.leaves(args_res, is_leaf=lambda x: isinstance(x, missing_types))
    if len(leaves) != in_tree.num_leaves:
        raise ValueError(
            f"args_res has {len(leaves)} arrays or placeholders for {in_tree.num_leaves} arguments: put back what has "
            "been taken out, as in `f_vjp.args_res[0] = w`, before the function is called."
        )
    if _HAS_UNSAVEABLE:
        missing = [i for i, x in enumerate(leaves) if isinstance(x, _api.NotSaveable)]
        if missing:
            _api._vjp_not_saveable_error(jaxpr(), in_tree, missing)
    elif missing := [i for i in needed if isinstance(leaves[i], _api.NotNeeded)]:
        paths = [path for path, _ in jax.tree.leaves_with_path(jax.tree.unflatten(in_tree, range(len(leaves))))]
        names = ", ".join(f"args{jax.tree_util.keystr(paths[i])}" for i in missing)
        raise ValueError(
            f"not saved, because of `saveable_args`: {names}. Put back what is missing, as in `f_vjp.args_res[0] = w`, "
            "before the function is called."
        )
    return list(leaves)


def accumulators(
    expected: Sequence[Any], in_avals: Sequence[Any], explicit: bool, jaxpr: Callable[[], Any], in_tree: Any
) -> list[Any]:
    """JAX's accumulator of each argument's cotangent: as a value, into a reference, or none.

    Args:
      expected: `GradValue`, `DontWant`, a reference or an accumulator for each.
      in_avals: types of the arguments.
      explicit: whether the user said what is wanted.
      jaxpr, in_tree: of the function, for errors.

    Source: `_vjp3_callable` in JAX's `functions/transformations.py`.
    """
    if hasattr(_api, "_vjp_accum"):  # since 0.11
        of_type = [types.SimpleNamespace(aval=a) for a in in_avals]
        return [
            _api._vjp_accum(jaxpr() if explicit or is_ref(v.aval) else None, in_tree, explicit, i, v, x)
            for i, (v, x) in enumerate(zip(of_type, expected, strict=True))
        ]
    accumulators_: list[Any] = []
    for aval, x in zip(in_avals, expected, strict=True):
        ct_aval = aval.to_ct_aval()
        if isinstance(x, _ad.GradAccum):
            accumulators_.append(_api.check_accum(ct_aval, x))
        elif _api._is_ref(x):
            accumulators_.append(_ad.RefAccum(ct_aval, x))
        elif is_ref(aval) and not isinstance(x, _api.DontWant):
            raise ValueError(
                f"The gradient of {aval.str_short()} is accumulated in a reference; pass one to with_refs."
            )
        else:
            accumulators_.append((_ad.NullAccum if isinstance(x, _api.DontWant) else _ad.ValAccum)(ct_aval))
    return accumulators_


def is_unwanted(accumulator: Any) -> bool:
    return isinstance(accumulator, _ad.NullAccum)


def accumulated_in(accumulator: Any, aval: Any) -> Any:
    """The reference in which the cotangent of an argument of this type is accumulated in place; None if it has another
    type, or there is none."""
    if isinstance(accumulator, _ad.RefAccum) and accumulator.ref is not None:
        of_ref = inner_type(_core.typeof(accumulator.ref))
        if is_ref(aval) or _core.typematch(of_ref, accumulator.aval):
            return accumulator.ref
    return jax.new_ref(zeros(cotangent_type(inner_type(aval)))) if is_ref(aval) else None


def accumulated(accumulator: Any) -> Any:
    """What `VJP` returns for an argument: its cotangent, or a mark that it was added to a reference, or is not
    wanted."""
    if isinstance(accumulator, _ad.ValAccum):
        return _ad.instantiate_zeros(accumulator.freeze())
    return _api.DidntWant() if is_unwanted(accumulator) else _api.GradRef()


def is_zero(x: Any) -> bool:
    """Whether x is a symbolic zero of JAX's."""
    return type(x) is _ad.Zero


def is_float0(aval: Any) -> bool:
    """Whether values of this tangent type are the trivial ones of integers and booleans."""
    return bool(getattr(aval, "dtype", None) == dtypes.float0)


@cleared
@functools.lru_cache(maxsize=4096)
def as_weak_as(aval: Any, other: Any) -> Any:
    """A type, made weak if another one is; the same object if it already is."""
    weak = getattr(other, "weak_type", None)
    return aval if weak is None or weak == getattr(aval, "weak_type", weak) else aval.update(weak_type=weak)


def as_cotangent(aval: Any, ct: Any) -> Any:
    """The type of a value whose cotangents have the type `ct`, which may be weak, or of another precision; the same
    object if it matches."""
    if ct is aval:
        return aval
    weak, dtype = getattr(ct, "weak_type", None), getattr(ct, "dtype", None)
    if weak is not None and weak != getattr(aval, "weak_type", weak):
        aval = as_weak_as(aval, ct)
    # Creating a type of cotangents takes long, and that of a float has its dtype.
    if dtype is None or dtype == getattr(aval, "dtype", None) or dtype == getattr(cotangent_type(aval), "dtype", dtype):
        return aval
    return aval.update(dtype=dtype)


def cotangent_type(aval: Any) -> Any:
    """The type of cotangents of a value in a linear program; for an integer, in a program of integers, its own type."""
    ct = aval.to_ct_aval()
    return aval if is_float0(ct) else ct


def empty(aval: Any) -> Any:
    """The array that JAX fills in for a residual that another branch of a cond saves."""
    return _ad_util.empty_like_aval(aval)


@cleared
@functools.lru_cache(maxsize=4096)
def stacked(aval: Any, length: int) -> Any:
    """The type of `length` values of a type, one for each iteration of a scan."""
    return _core.unmapped_leading_aval(length, aval)


def unstacked(aval: Any) -> Any:
    """The inverse of `stacked`: the type of a single value; layouts over devices are adjusted with the dimensions."""
    return _core.mapped_leading_aval(aval.shape[0], aval)


def zeros(aval: Any) -> Any:
    """An array of zeros of a tangent or cotangent type."""
    return _ad.instantiate_zeros(_ad.Zero(aval))


def types_compatible(expected: Any, actual: Any) -> bool:
    """Whether a value of type `given` is accepted where `expected` is, apart from weak types."""
    return bool(_core.typecompat(expected, actual))


def index_or_indices(argnums: Any) -> Any:
    """argnums as an int or a tuple of ints, as jax checks them."""
    return _core.concrete_or_error(api_util._ensure_index, argnums)
