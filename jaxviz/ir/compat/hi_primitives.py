"""Calls of hi-primitives: any class derived from JAX's `HiPrim`, read by its methods, whatever its name."""

from __future__ import annotations

import copy
import functools
import inspect
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import hijax
from jax.extend.core import ClosedJaxpr, Primitive

from jaxviz.ir.compat.custom_rules import has_jvp_alone, same_variables
from jaxviz.ir.compat.jaxprs import (
    _AskedAfterRules,
    _AskedOfSome,
    function_debug_info,
    hi_linear_p,
    hi_primitive_p,
    is_hi_type,
    is_mutable,
    name_p,
    remat_p,
    unknown_debug_info,
    within,
)
from jaxviz.ir.compat.private import _config, _core, _hijax, _pe, _remat
from jaxviz.ir.compat.tracing import trace_to_jaxpr
from jaxviz.ir.compat.values import canonicalize
from jaxviz.ir.sharing import SharedTable, exact_params, is_data

BODY = "expand"
"""The param of a call that is the program of what it computes, named after the method."""

_OPENS_CHECKPOINTS: bool = jax.__version_info__ >= (0, 12)
"""Whether a checkpoint that is a hi-primitive has the same params as one that is not, including `prevent_cse`, and
saves the same."""

_bodies: SharedTable[Any] = SharedTable(256)
"""(class, its params, types, context) → the jaxpr of `expand`; held as long as a Program of it is."""

_of_expand: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those jaxprs."""


class _Renamed(Primitive):
    """A primitive of JAX's under another name: it equals that primitive, so every table of rules contains it."""

    def __init__(self, like: Any, name: str):
        super().__init__(name)
        for attribute, value in vars(like).items():
            setattr(self, attribute, value if attribute != "name" else name)
        self.like = like

    def __eq__(self, other: object) -> bool:
        return self.like is (other.like if isinstance(other, _Renamed) else other)

    def __hash__(self) -> int:
        return hash(self.like)


_named = functools.lru_cache(maxsize=1024)(_Renamed)


def opened(primitive: Any, params: Mapping[str, Any], context: Any) -> tuple[Any, Mapping[str, Any]]:
    """The primitive and the params of an equation; for a call of a hi-primitive, a primitive with the name of its
    class, and with its body among the params, or those of the checkpoint or the name that it represents.

    That of a function with custom rules is named as without `jax_custom_vjp3` and `jax_custom_jvp3`.

    Under `jax_remat3`, `jax.checkpoint` and `checkpoint_name` create such calls. The body is missing if `expand` works
    on what is written in place, or fails.
    """
    hi = params.get("_prim")
    if hi is None:
        return primitive, params
    kind = type(hi).__name__
    if primitive == hi_linear_p:
        return _named(hi_linear_p, "custom_lin" if hi_function_name(params) else f"{kind}.linearized"), params
    if primitive != hi_primitive_p:
        return primitive, params
    if _is_checkpoint(hi) and _OPENS_CHECKPOINTS:
        asked = _AskedAfterRules if _is_in_part_up_to_rules(hi.jaxpr) else _AskedOfSome
        policy = asked(hi.policy) if hi.policy is not None or asked is _AskedAfterRules else None
        # Nothing is recomputed if everything is saved, and JAX has no barrier then.
        prevent_cse = hi.policy is not jax.checkpoint_policies.everything_saveable and hi.prevent_cse
        return remat_p, {"jaxpr": hi.jaxpr, "prevent_cse": prevent_cse, "differentiated": False, "policy": policy}
    if _is_name(hi) and _OPENS_CHECKPOINTS:
        return name_p, {"name": hi.name}
    body = None if _is_checkpoint(hi) or isinstance(hi, (LowerVal, RaiseVal)) else _body(hi, context)
    if hi_function_name(params):
        kind = f"custom_{'jvp' if has_jvp_alone(hi) else 'vjp'}_call"
    return _named(hi_primitive_p, kind), params if body is None else {**params, BODY: body}


@functools.cache
def _class_called_by(fun: Any) -> type:
    """The class of the hi-primitive that a function of JAX's calls under `jax_remat3`, whatever its name is."""
    with _config.remat3(True):
        (eqn,) = jax.make_jaxpr(fun)(1.0).eqns
    return type(eqn.params["_prim"])


def _checkpointed(x: Any) -> Any:
    return jax.checkpoint(jax.lax.sin)(x)


def _with_name(x: Any) -> Any:
    return checkpoint_name(x, "name")


def _is_checkpoint(hi: Any) -> bool:
    """Whether a hi-primitive is what `jax.checkpoint` calls under `jax_remat3`."""
    return isinstance(hi, _class_called_by(_checkpointed))


def calls_checkpoint(params: Mapping[str, Any]) -> bool:
    """Whether an equation with these params is a checkpoint of `jax_remat3` that is not opened."""
    return "_prim" in params and _is_checkpoint(params["_prim"])


def without_remat3() -> AbstractContextManager[None]:
    """Sets `jax_remat3` to False in this thread, so that `jax.checkpoint` makes an equation with a program."""
    context: AbstractContextManager[None] = _config.remat3(False)
    return context


def opening_checkpoints() -> AbstractContextManager[None]:
    """The same where checkpoints of `jax_remat3` are not opened, to look into those that are made meanwhile."""
    return nullcontext() if _OPENS_CHECKPOINTS else without_remat3()


def _is_name(hi: Any) -> bool:
    """Whether a hi-primitive is what `checkpoint_name` calls under `jax_remat3`."""
    return isinstance(hi, _class_called_by(_with_name))


def closed(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The inverse for params: those that JAX knows. If the body was changed, so is what the hi-primitive computes."""
    body = params.get(BODY)
    if body is None or "_prim" not in params:
        return params
    hi = params["_prim"]
    return {"_prim": hi if body in _of_expand else _with_body(hi, body)}


def _body(hi: Any, context: Any) -> Any:
    """What a hi-primitive computes, as a ClosedJaxpr; None if that cannot be traced."""
    avals = hi.in_avals_flat
    if any(map(is_mutable, (*avals, *hi.out_avals_flat))):
        return None
    key: Any = (type(hi), exact_params(hi.params), tuple(avals), context)
    try:
        known = _bodies.get(key)
    except TypeError:  # a param is not hashable
        known = key = None
    if known is not None:
        return known

    def expand(*args: Any) -> list[Any]:
        values = map(_raised, avals, args)
        out = hi.expand(*jax.tree.unflatten(hi.in_tree, values))
        return list(map(_lowered, hi.out_avals_flat, hi.out_tree.flatten_up_to(out)))

    try:
        with within(context):
            body = _called_alone(trace_to_jaxpr(expand, avals, _debug_info(hi), keeps_rules=False).jaxpr)
    except Exception:  # raised again, with the user's line, when JAX lowers the call
        return None
    if any(is_hi_type(_core.typeof(x)) for x in body.consts):
        return None  # a value of a hi type that is made of tracers
    _of_expand.add(body)
    has_tracers = any(isinstance(x, _core.Tracer) for x in body.consts)
    return body if key is None or has_tracers else _bodies.keep(key, body, weakly=True)


_HiPrim: Any = getattr(hijax, "HiPrim", None) or hijax.VJPHiPrimitive  # type: ignore[attr-defined]  # until 0.11


class LowerVal(_HiPrim):  # type: ignore[misc]
    """From a value of a hi type to the arrays that it consists of, as in the body of a hi-primitive that takes one."""

    def __init__(self, aval: Any):
        self.in_avals, self.out_aval, self.params = (aval,), tuple(aval.lo_ty()), {"type": aval}
        super().__init__()

    def expand(self, x: Any) -> tuple[Any, ...]:
        return tuple(self.in_avals[0].lower_val(x))


class RaiseVal(_HiPrim):  # type: ignore[misc]
    """The inverse."""

    def __init__(self, aval: Any):
        self.in_avals, self.out_aval, self.params = tuple(aval.lo_ty()), aval, {"type": aval}
        super().__init__()

    def expand(self, *parts: Any) -> Any:
        return self.out_aval.raise_val(*parts)


def _raised(aval: Any, x: Any) -> Any:
    """What `expand` takes for a value: of a hi type, one that is made of arrays."""
    return aval.raise_val(*LowerVal(aval)(x)) if is_hi_type(aval) else x


def _lowered(aval: Any, x: Any) -> Any:
    is_made = is_hi_type(aval) and not isinstance(x, _core.Tracer)
    return RaiseVal(aval)(*aval.lower_val(x)) if is_made else x


def _called_alone(body: Any) -> Any:
    """A jaxpr that is nothing but a call of another one, such as that of a function traced before, without the call."""
    outer = body.jaxpr
    if len(outer.eqns) != 1 or list(outer.eqns[0].params) != ["call_jaxpr"] or body.consts:
        return body
    (eqn,), (called,) = outer.eqns, outer.eqns[0].params.values()
    operands = [v for v in outer.invars if v in set(eqn.invars)]
    if list(eqn.invars) != operands or list(eqn.outvars) != list(outer.outvars):
        return body
    inside = dict(zip(operands, called.jaxpr.invars, strict=True))
    invars = [inside[v] if v in inside else _core.Var(v.aval) for v in outer.invars]
    info = called.jaxpr.debug_info
    names = dict(zip(operands, info.arg_names or [""] * len(operands), strict=True))
    info = info._replace(arg_names=tuple(names.get(v, "") for v in outer.invars))
    return ClosedJaxpr(called.jaxpr.replace(invars=invars, debug_info=info), called.consts)


def _debug_info(hi: Any) -> Any:
    """The names of the program of a hi-primitive: those of the function that it was made for, or its class."""
    traced = _function(hi)
    if traced is not None:
        return _core_jaxpr(traced.jaxpr).debug_info._replace(arg_names=("",) * len(hi.in_avals_flat))
    try:
        info = function_debug_info(hi.expand, hi.in_avals, {})
    except Exception:  # its signature is not that of its operands
        return unknown_debug_info(len(hi.in_avals_flat), 0)
    return info._replace(func_src_info=info.func_src_info.replace("expand", type(hi).__name__, 1))


def _core_jaxpr(jaxpr: Any) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr)


def _with_body(hi: Any, body: Any) -> Any:
    """A hi-primitive with the same rules that computes something else."""
    changed = copy.copy(hi)
    jaxpr, consts = _core_jaxpr(body), body.consts

    def expand(*args: Any) -> Any:
        return jax.tree.unflatten(hi.out_tree, _core.eval_jaxpr(jaxpr, consts, *jax.tree.leaves(args)))

    vars(changed).update(expand=expand, params={**hi.params, "_body": body})
    return changed


def with_known_residuals(params: Mapping[str, Any], known: Mapping[int, Any]) -> dict[str, Any]:
    """The params of the derivative of a hi-primitive whose backward rule gets some residuals as these values, as JAX
    gives it what the forward rule wrote in place: its Python may ask whether it is a tracer.

    Args:
      known: by the number of the leaf.
    """
    hi = params["_prim"]

    def vjp_bwd(residuals: Any, *others: Any) -> Any:
        leaves, tree = jax.tree.flatten(residuals)
        leaves = [canonicalize(known[i]) if i in known else x for i, x in enumerate(leaves)]
        return hi.vjp_bwd(jax.tree.unflatten(tree, leaves), *others)

    changed = copy.copy(hi)
    values = tuple((i, type(x), repr(x)) for i, x in known.items())
    vars(changed).update(vjp_bwd=vjp_bwd, params={**hi.params, "_known": values})
    same_variables(changed, hi)
    return {**params, "_prim": changed}


def hi_primitive_name(params: Mapping[str, Any]) -> str:
    """`CustomVJPTraced of f`: the class of the hi-primitive that an equation with these params calls; '' if it calls
    none."""
    if "_prim" not in params:
        return ""
    function = hi_function_name(params)
    return f"{type(params['_prim']).__name__}{f' of {function}' if function else ''}"


def hi_function_name(params: Mapping[str, Any]) -> str:
    """The name of the function that a hi-primitive was made for, such as that of a custom rule; '' if for none."""
    return str(getattr(_function(params["_prim"]), "fun_name", ""))


def _function(hi: Any) -> Any:
    """The traced function that a hi-primitive was made for, or None; under a vmap, before 0.11, it contains another."""
    within = getattr(hi, "prim", None)
    return _function(within) if hasattr(within, "expand") else getattr(hi, "traced", None)


def hi_rule_name(params: Mapping[str, Any], method: str) -> str:
    """What people call a rule of a hi-primitive: ``rule `vjp_fwd` of Gate``, or `custom VJP rule of f`."""
    function = hi_function_name(params)
    if not function:
        return f"rule `{method}` of {type(params['_prim']).__name__}"
    return f"custom {'JVP' if has_jvp_alone(params['_prim']) else 'VJP'} rule of {function}"


def hi_refusal(params: Mapping[str, Any], method: str) -> str:
    """What JAX says of a hi-primitive whose class does not implement a rule, such as `vjp_fwd`; '' if it does."""
    hi = params["_prim"]
    by = [vars(cls)[method] for cls in type(hi).__mro__ if method in vars(cls)]
    if len(by) != 1 or not by[0].__module__.startswith("jax."):  # that of the class from which all derive raises
        return ""
    try:
        by[0](hi, ())
    except NotImplementedError as error:
        return str(error)
    except Exception:  # it does something else
        return ""
    return ""


def hi_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """The params of a hi-primitive that are numbers, names or types, as JAX prints them; and the name of its
    function."""
    hi = params["_prim"]
    shown = hi.pp_params() if hasattr(hi, "pp_params") else hi.params
    function = hi_function_name(params)
    named = {"name": function} if function else {}
    return named | {name: x for name, x in shown.items() if is_data(x) and name != "_body"}


@functools.lru_cache(maxsize=1024)
def _is_in_part_up_to_rules(jaxpr: Any) -> bool:
    """Whether what a checkpoint of a jaxpr saves is decided by a rule in it, such as that of `defremat`: by JAX, the
    forward rule of a function without one is recomputed like anything else."""
    return any(
        _saves_by_rule(eqn.params) or any(map(_is_in_part_up_to_rules, _core.jaxprs_in_params(eqn.params)))
        for eqn in jaxpr.eqns
    )


def _saves_by_rule(params: Mapping[str, Any]) -> bool:
    if "_prim" in params and _is_checkpoint(params["_prim"]):
        return _is_in_part_up_to_rules(params["_prim"].jaxpr)
    return saves_by_rule(params)


def saves_by_rule(params: Mapping[str, Any]) -> bool:
    """Whether these are params of a hi-primitive that is in a checkpoint as its `remat_rule` says: one that decides
    itself what is saved, such as one made by `defremat`, or that has no JVP rule by which the checkpoint has one."""
    if "_prim" not in params or _is_name(params["_prim"]) or _is_checkpoint(params["_prim"]):
        return False
    hi = params["_prim"]
    if hi_function_name(params):
        return has_remat_rule(params) and hi.remat_rules is not None
    return has_remat_rule(params) or (type(hi).jvp is _HiPrim.jvp and type(hi).vjp_fwd is not _HiPrim.vjp_fwd)


def remat_rule(params: Mapping[str, Any], in_avals: Sequence[Any], policy: Any, context: Any) -> tuple[Any, Any]:
    """What a hi-primitive does in a checkpoint by its own rule.

    Args:
      params, in_avals, context: of an equation of it.
      policy: that of the checkpoint, of which a rule may ask.

    Returns:
      two ClosedJaxprs: operands → results, values to save, in the forward pass; and saved values, operands → results,
      in the backward pass, where it is differentiated.
    """
    rest: list[Any] = []

    def forward(*operands: Any) -> list[Any]:
        call = lambda *xs: hi_primitive_p.bind(*xs, **params)
        asked = policy.__wrapped__ if isinstance(policy, _AskedOfSome) else policy
        with context.manager:
            results, again = _remat.remat_transform(asked, call, *operands, custom_vjp_rules=True)
        saved, tree = jax.tree.flatten(again)
        rest[:] = tree, list(map(_core.typeof, saved))
        return [*results, *saved]

    def again(*args: Any) -> list[Any]:
        with context.manager:
            return list(jax.tree.unflatten(tree, args[: len(types)])(*args[len(types) :]))

    now = trace_to_jaxpr(forward, in_avals, keeps_rules=False).jaxpr
    tree, types = rest
    return now, trace_to_jaxpr(again, (*types, *in_avals), keeps_rules=False).jaxpr


def has_remat_rule(params: Mapping[str, Any]) -> bool:
    """Whether a hi-primitive decides itself what is recomputed in a checkpoint, and not all of it is."""
    *own, _ = (c for c in type(params["_prim"]).__mro__ if "remat" in vars(c))
    return bool(own)


def is_linearized_by_jvp(params: Mapping[str, Any], is_vjp: bool) -> bool:
    """Whether the derivative of a hi-primitive is its JVP rule, split in two by JAX: it has no other."""
    hi = params["_prim"]
    return has_jvp_alone(hi) and (not is_vjp or type(hi).vjp_fwd is _hijax.vjp_from_lin[0])


def dce_hi_primitive(one: Any, used: Sequence[bool]) -> tuple[Sequence[bool], list[bool], Mapping[str, Any]] | None:
    """What a hi-primitive is reduced to if not all of its results are used, by its own rule.

    Args:
      one: a ClosedJaxpr of the one equation.
      used: which of its results are used.

    Returns:
      which operands are read, which results are left and the new params; None if nothing is left of it.
    """
    (eqn,) = one.jaxpr.eqns
    rule = _pe.dce_rules[hi_primitive_p]
    takes_live = len(inspect.signature(rule).parameters) == 3  # since 0.12: also which operands are live
    read, smaller = rule(list(used), *([[True] * len(eqn.invars)] if takes_live else []), eqn)
    if smaller is None:
        return None
    return read, [v in smaller.outvars for v in eqn.outvars], opened(hi_primitive_p, smaller.params, eqn.ctx)[1]
