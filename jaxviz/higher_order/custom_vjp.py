"""A function with a custom VJP rule: `jax.custom_vjp`; `custom_lin`, which represents the derivative until its backward
rule transposes it; and `remat_opt`, its forward rule under `optimize_remat`.

Source: JAX's `custom_derivatives.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxviz.higher_order.whole import Whole
from jaxviz.ir import compat
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.convert import read_jaxpr, read_traced, write_params
from jaxviz.ir.leaks import without_leaks
from jaxviz.ir.syntax import Atom, Equation, Literal, Operation, Program, Var
from jaxviz.transforms import linearize
from jaxviz.transforms.dce import DceRule, dce_program, nothing_left, roles_by_use
from jaxviz.transforms.driver import Builder, Mask, Template, call_of, select
from jaxviz.transforms.jvp import JvpRule
from jaxviz.transforms.linearize import VJP, LinearizeRule, Mode
from jaxviz.transforms.primitive import CallPrimitive, Primitive
from jaxviz.transforms.transpose import TransposeRule


class CustomVjp(CallPrimitive):
    has_custom_rule = True
    splits_by_policy = False

    def is_asked_inside(self, operation: Operation) -> bool:
        return False

    def function_of_rule(self, operation: Operation) -> str:
        return str(operation.params["call_jaxpr"].name)

    def jvp(self, operation: Operation, nonzeros: Mask) -> JvpRule:
        """The program contains an equation that can only be transposed: JAX refuses to run it."""
        if _only_reach_its_rule(operation, nonzeros):
            builder = Builder()
            operands = [Var(a) for a in operation.in_avals]
            outs = builder.apply(operation, operands)
            pushed = builder.program([*operands, *_tangents(operation, nonzeros)], outs)
            return JvpRule(Template(pushed, "primal"), (False,) * len(outs), _NO_TANGENT)
        forward, residuals, lin, nonzeros_out, name = _custom_vjp_parts(operation, nonzeros)
        builder = Builder()
        results = builder.inline(replace(forward, outvars=(*forward.outvars, *residuals)), forward.invars)
        tangents_in = [Var(a) for a in lin.in_avals[len(residuals) :]]
        n_out = len(nonzeros_out)
        tangents_out = builder.apply(lin, [*results[n_out:], *tangents_in])
        pushed = builder.program(
            [*forward.invars, *tangents_in], [*results[:n_out], *select(nonzeros_out, tangents_out)]
        )
        roles = roles_by_use(pushed, n_out, "primal", "tangent")
        return JvpRule(Template(pushed, roles, keeps_lines=True), nonzeros_out, name)

    def linearize(self, operation: Operation, nonzeros: Mask, mode: Mode = VJP) -> LinearizeRule:
        if _only_reach_its_rule(operation, nonzeros):
            unread = Template(Builder().program(_tangents(operation, nonzeros), ()), "tangent")
            nothing = (False,) * len(operation.out_avals)
            return LinearizeRule(Template(call_of(operation), "primal"), unread, (), nothing, _NO_TANGENT)
        forward, residuals, lin, nonzeros_out, name = _custom_vjp_parts(operation, nonzeros)
        computed = [a for a in dict.fromkeys(residuals) if a not in {*forward.invars, *forward.outvars}]
        primal = replace(forward, outvars=(*forward.outvars, *computed))
        linear = call_of(lin)
        linear = replace(linear, outvars=select(nonzeros_out, linear.outvars))
        return linearize.rule_of(primal, len(nonzeros_out), residuals, linear, nonzeros_out, name, keeps_lines=True)


class CustomLin(Primitive):
    is_opened = False

    def linearize(self, operation: Operation, nonzeros: Mask, mode: Mode = VJP) -> LinearizeRule:
        n_residuals = operation.params["num_res"]
        if any(nonzeros[:n_residuals]) or not all(nonzeros[n_residuals:]):
            return linearize.linearize_rules.default(operation, nonzeros, mode)
        return linearize.own_derivative(operation, n_residuals, "custom backward rule")

    def transpose(
        self, operation: Operation, linear: Mask, nonzero_cts: Mask, logs: bool, values: Sequence[Any] | None = None
    ) -> TransposeRule:
        residual_avals = [a for a, lin in zip(operation.in_avals, linear, strict=True) if not lin]
        log = compat.Log(logs)
        with without_leaks(operation.params["bwd"]):
            traced, nonzeros_out = compat.trace_backward_rule(
                dict(operation.params), residual_avals, nonzero_cts, log, values
            )
        program = read_traced(traced)
        template = Template(program, "cotangent", keeps_lines=True)
        return TransposeRule(template, tuple(nonzeros_out), "custom backward rule", log.tree)


class RematOpt(Whole):
    def dce(self, operation: Operation, used: Mask) -> DceRule:
        """A forward rule whose residuals are never read becomes the function that it belongs to."""
        if not any(used) and not compat.has_effects(operation.effects):
            return nothing_left(operation)
        n_consts, n_residuals = operation.params["num_consts"], operation.params["num_res"]
        n_in = len(operation.in_avals)
        if any(used[:n_residuals]):
            return (True,) * n_in, (True,) * len(used), operation
        function = read_jaxpr(compat.closed_jaxpr(*operation.params["fun_jaxpr_thunk"]()))
        smaller, read = dce_program(function, used[n_residuals:], keep_inputs=(False,) * len(function.invars))
        call = make_operation(
            compat.closed_call_p, {"call_jaxpr": smaller}, smaller.in_avals, smaller.out_avals, smaller.effects,
            operation.context,
        )  # fmt: skip
        return (*([False] * n_consts), *read), used, call


CUSTOM_VJP = CustomVjp(compat.custom_vjp_call_p, "call_jaxpr")
CUSTOM_LIN = CustomLin(compat.custom_lin_p)
REMAT_OPT = RematOpt(compat.remat_opt_p, "fwd_jaxpr")


_NO_TANGENT = "custom VJP rule that closes over a tangent"


def _only_reach_its_rule(operation: Operation, nonzeros: Mask) -> bool:
    """Whether tangents only reach values that the rule closes over, on which the function does not depend."""
    params = write_params(operation)
    n_consts, n_taken = compat.n_closed_over(params), compat.n_taken(params)
    return any(nonzeros) and not any(nonzeros[:n_consts]) and not any(nonzeros[n_consts + n_taken :])


def _tangents(operation: Operation, nonzeros: Mask) -> list[Var]:
    return [Var(a.to_tangent_aval()) for a in select(nonzeros, operation.in_avals)]


def is_backward_rule(equation: Equation) -> bool:
    """Whether it represents the derivative of such a function: it can only be transposed, which runs the backward
    rule."""
    return equation.primitive in (compat.custom_lin_p, compat.hi_linear_p)


def _custom_vjp_parts(operation: Operation, nonzeros: Mask) -> tuple[Program, tuple[Atom, ...], Operation, Mask, str]:
    """The forward rule, operands → results; its residuals; and the equation that represents the backward rule."""
    params = write_params(operation)
    n_consts = compat.n_closed_over(params)
    if any(nonzeros[: n_consts + compat.n_taken(params)]):
        raise compat.closed_over_error()
    with without_leaks(params["fwd_jaxpr_thunk"]):
        traced, n_residuals, forwarded = compat.trace_forward_rule(
            params, operation.in_avals[n_consts:], nonzeros[n_consts:], operation.context
        )
    forward = read_traced(traced)
    operands = (*(Var(a) for a in operation.in_avals[:n_consts]), *forward.invars)
    n_made = n_residuals - sum(i is not None for i in forwarded)
    computed = iter(forward.outvars[:n_made])
    saved = [next(computed) if i is None else operands[i] for i in forwarded]
    constants = [(a.val,) if isinstance(a, Literal) and not a.held else None for a in saved]
    residuals = tuple(a for a, c in zip(saved, constants, strict=True) if c is None)
    results = forward.outvars[n_made:]
    info = compat.derived_debug_info(forward.debug_info, [""] * len(operands), len(results))
    forward = replace(forward, invars=operands, outvars=results, debug_info=info)
    tangents_in = [a.to_tangent_aval() for a, nz in zip(operation.in_avals, nonzeros, strict=True) if nz]
    tangents_out = tuple(a.aval.to_tangent_aval() for a in results)
    lin = make_operation(
        compat.custom_lin_p,
        compat.custom_lin_params(params, constants, tangents_out, [not nz for nz in nonzeros]),
        (*(a.aval for a in residuals), *tangents_in),
        tangents_out,
        frozenset(),
        operation.context,
    )
    nonzeros_out = tuple(not compat.is_float0(a) for a in tangents_out)
    return forward, residuals, lin, nonzeros_out, f"custom VJP rule of {operation.params['call_jaxpr'].name}"
