"""JAX's rules for JVP, linearization, transpose and dead code, traced."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from jaxviz.ir.compat.checks import _RULES_LOG, _is_nonzero, cotangent_type, is_float0, zeros
from jaxviz.ir.compat.custom_rules import (
    TracedJaxpr,
    _empty_stores,
    _forward_of_rule,
    _jvp_of_rule,
    _rule_having_variables,
    _rules,
    _TakenRule,
    closed_over_by_jvp_rule_error,
)
from jaxviz.ir.compat.jaxprs import (
    current_context,
    custom_jvp_call_p,
    custom_lin_p,
    custom_vjp_call_p,
    hi_primitive_p,
    jit_p,
    within,
)
from jaxviz.ir.compat.private import _ad, _ad_util, _conditionals, _config, _core, _effects, _flattree, _lu, dtypes
from jaxviz.ir.compat.recording import NotRecorded
from jaxviz.ir.compat.tracing import RuleHoldsTracer, trace_to_jaxpr
from jaxviz.ir.compat.values import is_tracer
from jaxviz.ir.sharing import SharedTable, exact_params, is_data


def nonzero_results(eqn: Any, mask: tuple[bool, ...]) -> Sequence[bool]:
    """Which results of an equation have a tangent, given which operands do, according to JAX's rules."""
    if eqn.primitive in (
        custom_jvp_call_p,
        custom_vjp_call_p,
        hi_primitive_p,
    ):  # a rule gives a tangent for each result
        return [not is_float0(v.aval.to_tangent_aval()) for v in eqn.outvars]
    if eqn.primitive is jit_p:
        return jvp_jaxpr(eqn.params["jaxpr"], mask)[1]  # JAX caches it for the lifetime of the jaxpr
    avals = tuple(t.aval for t in eqn.in_tracers)
    if not all(map(is_data, eqn.params.values())):
        return _find_nonzero(eqn.primitive, eqn.params, avals, mask)
    key = (eqn.primitive, exact_params(eqn.params), avals, mask)
    return _nonzero.get(key) or _nonzero.keep(key, tuple(_find_nonzero(eqn.primitive, eqn.params, avals, mask)))


def _find_nonzero(
    primitive: Any, params: Mapping[str, Any], avals: tuple[Any, ...], mask: tuple[bool, ...]
) -> Sequence[bool]:
    params = dict(params)
    if primitive in _ad.primitive_linearizations and not any(True for _ in _core.jaxprs_in_params(params)):
        return linearize_rule(primitive, params, avals, mask, current_context(), is_vjp=True)[2]

    def apply(*args: Any) -> Any:
        out = primitive.bind(*args, **primitive.get_bind_params(params))
        return out if primitive.multiple_results else [out]

    one = trace_to_jaxpr(apply, avals).jaxpr
    return jvp_jaxpr(one, mask)[1]


_nonzero: SharedTable[tuple[bool, ...]] = SharedTable(4096)
"""(primitive, params, types, which operands have a tangent) -> which results have one."""


def has_linearize_rule(primitive: Any) -> bool:
    return primitive in _ad.primitive_linearizations or primitive in _ad.primitive_jvps


def has_plain_jvp_rule(primitive: Any) -> bool:
    """Whether JAX linearizes a primitive by its JVP rule, and not by a separate rule."""
    return primitive in _ad.primitive_jvps and primitive not in _ad.primitive_linearizations


def is_linear_in_all(primitive: Any) -> bool:
    """Whether JAX has registered by `ad.deflinear` that the tangent of a primitive is the primitive of the tangents."""
    rule = _ad.primitive_jvps.get(primitive)
    return isinstance(rule, functools.partial) and rule.func is _ad.linear_jvp


def jvp_rule(
    primitive: Any, params: Mapping[str, Any], in_avals: Sequence[Any], nonzeros: Sequence[bool], context: Any
) -> tuple[Callable[..., list[Any]], list[Any], list[bool]]:
    """The JVP rule of a primitive, for tracing.

    Returns:
      a function from operands and nonzero tangents to results and nonzero tangents; its input types; and which results
      have a nonzero tangent, a list that is filled when it is traced.
    """
    rule = _ad.primitive_jvps[primitive]
    tangent_avals = [a.to_tangent_aval() for a in in_avals]
    nonzeros_out: list[bool] = []

    def push(*args: Any) -> list[Any]:
        tangents_ = iter(args[len(in_avals) :])
        tangents = [next(tangents_) if nz else _ad.Zero(a) for a, nz in zip(tangent_avals, nonzeros, strict=True)]
        with context.manager:
            primals_out, tangents_out = rule(args[: len(in_avals)], tuple(tangents), **params)
        if not primitive.multiple_results:
            primals_out, tangents_out = [primals_out], [tangents_out]
        if any(t is None for t in tangents_out):
            _leaving_out.add(primitive)
        # Where a rule returns None, JAX's linearize sees a value that depends on no tangent.
        nonzeros_out[:] = [t is not None and _is_nonzero(t) for t in tangents_out]
        return [*primals_out, *(t for t, nz in zip(tangents_out, nonzeros_out, strict=True) if nz)]

    return push, [*in_avals, *(a for a, nz in zip(tangent_avals, nonzeros, strict=True) if nz)], nonzeros_out


_leaving_out: set[Any] = set()


def leaves_out_tangents(primitive: Any) -> bool:
    """Whether the JVP rule of a primitive has returned None for a tangent, which JAX takes as zero except in a
    checkpoint."""
    return primitive in _leaving_out


def trace_custom_jvp_rule(
    params: Mapping[str, Any], in_avals: Sequence[Any], nonzeros: Sequence[bool], context: Any
) -> tuple[TracedJaxpr, list[bool]]:
    """The user's rule of a `custom_jvp_call` as a jaxpr; from operands and nonzero tangents to results and nonzero
    tangents.

    Returns:
      the traced rule, and which results have a nonzero tangent.

    Source: `process_custom_jvp_call` of JAX's `LinearizeTrace`, and `lift_jvp`.
    """
    rule = _rules.get(params["jvp_jaxpr_fun"].f)
    skip = n_closed_over(params)
    if rule is None:
        _, rule = custom_jvp_call_p.get_bind_params(params)["subfuns"]
        skip = 0
    elif isinstance(rule, _TakenRule) and any(nonzeros[skip : skip + rule.n_consts]):
        raise closed_over_by_jvp_rule_error(params["call_jaxpr"].jaxpr.debug_info)
    push, _, nonzeros_out = _jvp_of_rule(rule, in_avals[skip:], nonzeros[skip:], params["symbolic_zeros"])
    first_tangent = len(in_avals) + sum(nonzeros[:skip])

    def whole(*args: Any) -> list[Any]:
        _empty_stores(rule)
        with context.manager, _rule_having_variables(params["jvp_jaxpr_fun"]):
            return push(*args[skip : len(in_avals)], *args[first_tangent:])

    tangent_avals = [a.to_tangent_aval() for a, nz in zip(in_avals, nonzeros, strict=True) if nz]
    avals = [*in_avals, *tangent_avals]
    return _trace_rule(whole, avals), nonzeros_out


def n_closed_over(params: Mapping[str, Any]) -> int:
    """How many of the first operands of a call with a custom rule are not passed to the rule, since it closes over them
    itself."""
    return int(params["num_consts"])


def n_taken(params: Mapping[str, Any]) -> int:
    """How many of the operands after these a forward rule closed over, when it was traced immediately."""
    rule = _rules.get(params["fwd_jaxpr_thunk"].f)
    return rule.n_consts if isinstance(rule, _TakenRule) else 0


def trace_forward_rule(
    params: Mapping[str, Any], in_avals: Sequence[Any], nonzeros: Sequence[bool], context: Any
) -> tuple[TracedJaxpr, int, Sequence[int | None]]:
    """The user's forward rule of a `custom_vjp_call`.

    Args:
      params: params of the equation.
      in_avals: types of its operands after the first `n_closed_over`.
      nonzeros: which of those have a tangent.
      context: context of the equation.

    Returns:
      (traced, n_residuals, forwarded): the rule from those operands to residuals that are not operands, then results;
      the number of residuals; and for each the position among all operands of the equation, or None for one that the
      rule computes.
    """
    rule = _rules.get(params["fwd_jaxpr_thunk"].f)
    if rule is None:
        with _rule_having_variables(params["fwd_jaxpr_thunk"]):
            jaxpr, consts = params["fwd_jaxpr_thunk"].call_wrapped(*nonzeros)
        traced = TracedJaxpr(ClosedJaxpr(jaxpr, consts), [], [], {}, [])
    else:
        is_array: list[bool] = []
        if isinstance(rule, _TakenRule) and any(
            nz and not c for nz, c in zip(nonzeros[rule.n_consts :], rule.carries, strict=True)
        ):
            raise closed_over_error()
        call, _, _ = _forward_of_rule(rule, in_avals, nonzeros)

        def forward(*args: Any) -> Any:
            _empty_stores(rule)
            with context.manager:
                outs = call(*args)
            is_array[:] = map(is_tracer, outs)
            return outs

        traced = _trace_rule(forward, in_avals)
        # A scalar that went through a jnp operation, and so is a tracer here, is an array outside `jit`.
        outvars = zip(traced.jaxpr.jaxpr.outvars, is_array, strict=True)
        traced.held.extend(a for a, flag in outvars if flag and isinstance(a, _core.Literal))
    _, residual_tree, forwarded = params["out_trees"]()
    return traced, residual_tree.num_leaves, forwarded


def custom_lin_params(
    params: Mapping[str, Any], residuals: Sequence[Any], out_avals: Sequence[Any], zeros_in: Sequence[bool]
) -> dict[str, Any]:
    """Params of the `custom_lin` that represents the derivative of a `custom_vjp_call` until it is transposed.

    Args:
      params: params of the `custom_vjp_call`.
      residuals: for each residual None, or a one-element tuple of a constant of the forward rule, which stays one in
        the backward rule, where Python may look at it.
      out_avals: types of the tangents of the results.
      zeros_in: which operands have no tangent.
    """
    backward = custom_vjp_call_p.get_bind_params(params)["subfuns"][2]
    n_given = sum(r is None for r in residuals)
    if n_given < len(residuals):
        pull = backward

        def with_constants(*args: Any) -> Any:
            rest = iter(args)
            values = [next(rest) if r is None else r[0] for r in residuals]
            return pull.call_wrapped(*values, *rest)

        backward = _lu.wrap_init(with_constants, debug_info=pull.debug_info)
    return {
        "num_res": n_given,
        "bwd": backward,
        "out_avals": tuple(out_avals),
        "symbolic_zeros": params["symbolic_zeros"],
        "in_zeros": list(zeros_in),
    }


def closed_over_error() -> Exception:
    """JAX's error for a custom_vjp function that is differentiated in a value that it closes over."""
    error: Exception = _ad.CustomVJPException()
    return error


def checkpoint_log() -> Callable[[str], None] | None:
    """Writes to JAX's log of what checkpointed functions save, which `jax_log_checkpoint_residuals` shows; None if
    nobody reads it."""
    logger = logging.getLogger("jax._src.ad_checkpoint")
    level = logging.WARNING if _config.log_checkpoint_residuals.value else logging.DEBUG
    return partial(logger.log, level) if logger.isEnabledFor(level) else None


def refused_in_remat(effects: Iterable[Any]) -> Iterable[Any]:
    """The effects that JAX rejects in a checkpointed function."""
    refused: Iterable[Any] = _effects.remat_allowed_effects.filter_not_in(effects)
    return refused


def rounding_params(aval: Any) -> dict[str, int] | None:
    """Params of the `reduce_precision` that rounds to a type, or None if no rounding is needed."""
    if not isinstance(aval, _core.ShapedArray) or not dtypes.issubdtype(aval.dtype, np.inexact):
        return None
    info = dtypes.finfo(aval.dtype)
    return {"exponent_bits": info.nexp, "mantissa_bits": info.nmant}


class Log:
    """What a backward rule logs while it is traced, possible since JAX 0.11.1: a dict of trees.

    Args:
      is_wanted: whether the values are wanted, and not just their keys.
    """

    def __init__(self, is_wanted: bool):
        self.is_wanted = is_wanted
        self.tree: Any = None
        """The structure of the dict; None where nothing is logged."""
        self.leaves: list[Any] = []

    def add(self, logged: Any, primitive: Any) -> None:
        if logged is not None and (logged := _ad._merge_rule_logs({}, logged, primitive)):
            leaves, self.tree = jax.tree.flatten(logged)
            self.leaves = leaves if self.is_wanted else []


def trace_backward_rule(
    params: Mapping[str, Any], residual_avals: Sequence[Any], nonzero_cts: Sequence[bool],
    log: Log, values: Sequence[Any] | None = None,
) -> tuple[TracedJaxpr, list[bool]]:  # fmt: skip
    """The user's backward rule, from the params of a `custom_lin`; traced on the values of its inputs, if given.

    Returns:
      the rule, traced, from residuals and nonzero cotangents of the results to nonzero cotangents of the operands that
      had a tangent, then what is logged; and which of those cotangents are nonzero.
    """
    ct_avals = [a.to_ct_aval() for a in params["out_avals"]]
    zero = _ad_util.SymbolicZero if params["symbolic_zeros"] else zeros
    nonzero_out: list[bool] = []

    def backward(*args: Any) -> list[Any]:
        cotangents_ = iter(args[len(residual_avals) :])
        cts = [next(cotangents_) if nz else zero(a) for a, nz in zip(ct_avals, nonzero_cts, strict=True)]
        cts_in = params["bwd"].call_wrapped(*args[: len(residual_avals)], *cts)
        if _RULES_LOG:
            cts_in, logged = cts_in
            log.add(logged, custom_lin_p)
        cts_in = [_ad.replace_rule_output_symbolic_zeros(ct) for ct in cts_in]
        out = [ct for ct, is_zero in zip(cts_in, params["in_zeros"], strict=True) if not is_zero]
        nonzero_out[:] = (type(ct) is not _ad.Zero for ct in out)
        return [*(ct for ct in out if type(ct) is not _ad.Zero), *log.leaves]

    avals = [*residual_avals, *(a for a, nz in zip(ct_avals, nonzero_cts, strict=True) if nz)]
    return _trace_rule(backward, avals, values), nonzero_out


def _trace_rule(
    rule: Callable[..., Sequence[Any]], avals: Sequence[Any], values: Sequence[Any] | None = None
) -> TracedJaxpr:
    """A custom rule, traced; again, as a function is, if a rule of what it calls closes over one of its values."""
    try:
        return trace_to_jaxpr(rule, avals, values=values)
    except RuleHoldsTracer as error:
        if error.uses_references:
            raise
        return trace_to_jaxpr(rule, avals, values=values, folds=True)


def has_transpose_rule(primitive: Any) -> bool:
    return primitive in _ad.fancy_transposes or primitive in _ad.primitive_transposes


def linearize_rule(
    primitive: Any, params: Mapping[str, Any], in_avals: Sequence[Any], nonzeros: Sequence[bool], context: Any,
    is_vjp: bool, values: Sequence[Any] | None = None,
) -> tuple[Any, Any, list[bool], Any]:  # fmt: skip
    """The linearization rule of a primitive that has its own, traced; on the values of its operands, if given.

    Returns:
      (primal, linear, nonzeros_out, structured): `primal` is a ClosedJaxpr from operands to results, residuals and the
      leaves of the tree that the rule saves, which it may do since JAX 0.11.1; `linear` one from those leaves and
      nonzero tangents to nonzero tangents of results, whose constants are the residuals; which results have a nonzero
      tangent; and the structure of the tree, None without one.

    Source: `LinearizeTrace.process_primitive` and `linearize_subtrace` in JAX's `ad.py`.
    """
    rule = _ad.primitive_linearizations[primitive]
    tangent_avals = [a.to_tangent_aval() for a in in_avals]
    linear_of: list[Any] = []
    nonzeros_out: list[bool] = []
    structures: list[Any] = []

    def forward(*operands: Any) -> list[Any]:
        with context.manager:
            results, carries, residuals, *trees, linearized = rule(is_vjp, list(nonzeros), *operands, **params)
        if not primitive.multiple_results:
            results, carries = [results], [carries]
        leaves, structure = jax.tree.flatten(trees)
        structures[:] = [jax.tree.structure(tree) for tree in trees if tree is not None]

        def linear(*leaves_and_tangents: Any) -> list[Any]:
            tangents_in = iter(leaves_and_tangents[len(leaves) :])
            with context.manager:
                tangents = linearized(
                    residuals,
                    *jax.tree.unflatten(structure, leaves_and_tangents[: len(leaves)]),
                    *(next(tangents_in) if nz else _ad.Zero(a) for a, nz in zip(tangent_avals, nonzeros, strict=True)),
                )
            tangents = tangents if primitive.multiple_results else [tangents]
            nonzeros_out[:] = [
                nz and type(t) is not _ad.Zero and not is_float0(_core.typeof(t))
                for t, nz in zip(tangents, carries, strict=True)
            ]
            return [t for t, nz in zip(tangents, nonzeros_out, strict=True) if nz]

        avals = [*map(_core.typeof, leaves), *(a for a, nz in zip(tangent_avals, nonzeros, strict=True) if nz)]
        linear_of.append(trace_to_jaxpr(linear, avals, keeps_rules=False).jaxpr)
        return [*results, *linear_of[0].consts, *leaves]

    active = nonzeros if values else ()
    traced = trace_to_jaxpr(forward, in_avals, values=values, active=active, keeps_rules=False)
    return traced.jaxpr, linear_of[0], nonzeros_out, structures[0] if structures else None


def transpose_rule(
    primitive: Any,
    params: Mapping[str, Any],
    in_avals: Sequence[Any],
    out_avals: Sequence[Any],
    linear: Sequence[bool],
    nonzero_cts: Sequence[bool],
    context: Any,
    log: Log,
) -> tuple[Callable[..., list[Any]], list[Any], list[bool]]:
    """The transpose rule of a primitive, for tracing.

    Args:
      primitive, params, in_avals, out_avals, context: of the equation.
      linear: which operands it is linear in.
      nonzero_cts: which results have a cotangent that is not a symbolic zero.

    Returns:
      a function from the other operands and the nonzero cotangents to the nonzero cotangents of the linear operands,
      and then what is logged; its input types; and which of the returned cotangents are nonzero, a list that is filled
      when it is traced.

    Source: `backward_pass3` in JAX's `ad.py`.
    """
    ct_avals = [cotangent_type(a) for a in out_avals]
    ct_in_avals = [cotangent_type(a) for a in in_avals]
    nonzero_out: list[bool] = []

    def backward(*args: Any) -> list[Any]:
        operands_ = iter(args)
        operands = [_ad.ValAccum(a) if lin else next(operands_) for a, lin in zip(ct_in_avals, linear, strict=True)]
        cts = [next(operands_) if nz else _ad.Zero(a) for a, nz in zip(ct_avals, nonzero_cts, strict=True)]
        with context.manager:
            logged = _transpose(primitive, params, operands, cts if primitive.multiple_results else cts[0])
        log.add(logged, primitive)
        out = [x.freeze() for x, lin in zip(operands, linear, strict=True) if lin]
        nonzero_out[:] = [type(ct) is not _ad.Zero for ct in out]
        return [*(ct for ct in out if type(ct) is not _ad.Zero), *log.leaves]

    avals = [a for a, lin in zip(in_avals, linear, strict=True) if not lin]
    avals += [a for a, nz in zip(ct_avals, nonzero_cts, strict=True) if nz]
    return backward, avals, nonzero_out


def _transpose(primitive: Any, params: Mapping[str, Any], operands: list[Any], cts: Any) -> Any:
    """Lets the rule accumulate the cotangents of the operands; returns its logs."""
    if primitive in _ad.fancy_transposes:
        return _ad.fancy_transposes[primitive](cts, *operands, **params)
    undefined = [_ad.UndefinedPrimal(x.aval) if isinstance(x, _ad.GradAccum) else x for x in operands]
    for x, ct in zip(operands, _ad.get_primitive_transpose(primitive)(cts, *undefined, **params), strict=True):
        if isinstance(x, _ad.GradAccum):
            x.accum(ct)
    return None


def plain_result_types(
    primitive: Any, params: Mapping[str, Any], in_avals: Sequence[Any], context: Any
) -> tuple[Any, ...]:
    """The result types of a primitive for operands of these types.

    Raises:
      NotRecorded: it has effects.
    """
    with within(context):
        out, effects = primitive.abstract_eval(*in_avals, **params)
    if effects:
        raise NotRecorded
    return tuple(out) if primitive.multiple_results else (out,)


def result_types(
    primitive: Any, params: Mapping[str, Any], in_avals: Sequence[Any], context: Any
) -> tuple[Any, ...] | None:
    """The result types of a primitive for operands of these types, or None if they depend on its nested program."""
    try:
        with context.manager:
            out, _ = primitive.abstract_eval(*in_avals, **params)
    except NotImplementedError:
        return None
    return tuple(out) if primitive.multiple_results else (out,)


def types_match(x: Any, y: Any) -> bool:
    """Whether two types are equal apart from weakness."""
    return bool(_core.typematch(x, y))


def is_linear(one: Any, mask: Sequence[bool]) -> bool:
    """Whether a jaxpr of one equation is linear in the inputs that `mask` marks, taken together, so that JAX can
    transpose it."""
    if not has_transpose_rule(one.jaxpr.eqns[0].primitive):
        return False
    eqn = one.jaxpr.eqns[0]
    out_avals = [v.aval for v in eqn.outvars]
    try:
        rule, avals, _ = transpose_rule(
            eqn.primitive,
            eqn.params,
            [v.aval for v in eqn.invars],
            out_avals,
            mask,
            [True] * len(out_avals),
            eqn.ctx,
            Log(False),
        )
        trace_to_jaxpr(rule, avals)
    except Exception:  # JAX's rules fail in many ways, mostly by an assertion; each means no
        return False
    return True


def jvp_jaxpr(jaxpr: Any, nonzeros: Sequence[bool]) -> tuple[Any, list[bool]]:
    """JAX's JVP of a ClosedJaxpr: (inputs, nonzero tangents) to (results, nonzero tangents), and which are nonzero."""
    result: tuple[Any, list[bool]] = _ad.jvp_jaxpr(jaxpr, list(nonzeros), instantiate=False)
    return result


def logged_by_branches(index: Any, logged: Sequence[Any]) -> dict[Any, Any]:
    """What a cond logs: by key, the index, and for each branch what it logs, which is zeros for branches that were not
    taken.

    Args:
      index: of the branch that was taken.
      logged: for each branch a dict.
    """
    keys = sorted({key for of_branch in logged for key in of_branch})
    return {key: _conditionals.CondSum(index, [of_branch.get(key) for of_branch in logged]) for key in keys}


def structure_of_branches(trees: Sequence[Any]) -> Any:
    """The structure of what a cond saves: the index, and for each branch its tree.

    Args:
      trees: the structures of these.
    """
    of_each = [jax.tree.unflatten(tree, range(tree.num_leaves)) for tree in trees]
    return jax.tree.structure(_conditionals.CondSum(0, of_each))


COND_PASSES_OPERANDS_ON: bool = hasattr(_conditionals, "_join_cond_fwd_res")
"""Whether a residual of a branch that is one of the cond's operands is taken directly from the operands, true since
0.12, or passes through the cond."""


def is_transposable(dtype: Any) -> bool:
    """Whether values of a type are allowed in a function passed to `linear_transpose`, apart from integers."""
    return bool(dtypes.issubdtype(dtype, np.inexact)) or (_TRANSPOSES_FLOAT0 and dtype == dtypes.float0)


_TRANSPOSES_FLOAT0: bool = jax.__version_info__ >= (0, 11, 2)

TRANSPOSABLE: str = "[float, complex, or float0]" if _TRANSPOSES_FLOAT0 else "[float or complex]"
"""JAX's phrase for those types."""


def scan_sizes(params: Mapping[str, Any]) -> tuple[int, int]:
    """The number of consts and of carried values of a scan."""
    if "ft_in" in params:  # since 0.11
        consts, carry, _ = params["ft_in"].unpack()
        return len(consts), len(carry)
    return params["num_consts"], params["num_carry"]


def scan_params(params: Mapping[str, Any], n_in: int, n_out: int, n_consts: int, n_carry: int) -> dict[str, Any]:
    """Params of a scan whose body has the given numbers of inputs and results, the first of which are consts and
    carries."""
    if "ft_in" in params:
        trees = [(n_consts, n_carry, n_in - n_consts - n_carry), (n_carry, n_out - n_carry)]
        ft_in, ft_out = (_flattree.pack(tuple(map(_flattree.nones, sizes))) for sizes in trees)
        return {**params, "ft_in": ft_in, "ft_out": ft_out}
    return {**params, "num_consts": n_consts, "num_carry": n_carry}
