"""A hi-primitive of JAX's `hijax`: a class with methods for what it computes and for its derivative, such as a function
of `jax.custom_vjp` under `jax_custom_vjp3`.

Its body is what `expand` computes. Its rules are JAX's, which call its methods, traced with the lines in them. Until
the backward pass, the derivative of one with `vjp_fwd` is one linear equation, which `vjp_bwd` transposes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from jaxviz.ir import compat
from jaxviz.ir.convert import one_equation, read_params, read_traced, write_params
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.errors import EquationError, NoRuleError, message_of
from jaxviz.ir.syntax import Equation, Literal, Operation, Program
from jaxviz.transforms import linearize
from jaxviz.transforms.dce import DceRule, dce_program, nothing_left, roles_by_use
from jaxviz.transforms.driver import (
    Mask,
    Template,
    check_differentiable,
    no_rule,
    refuse_reference,
    select,
    with_line_of_call,
)
from jaxviz.transforms.jvp import JvpRule
from jaxviz.transforms.linearize import VJP, LinearizeRule, Mode
from jaxviz.transforms.primitive import Body, CallPrimitive, Primitive
from jaxviz.transforms.transpose import TransposeRule


class HiPrimitive(CallPrimitive):
    has_custom_rule = True
    splits_by_policy = False
    looks_at_values = True

    def is_asked_inside(self, operation: Operation) -> bool:
        return compat.has_remat_rule(operation.params)

    def has_jvp_rule(self, operation: Operation) -> bool:
        return compat.is_linearized_by_jvp(operation.params, is_vjp=True)

    def is_transposed_whole(self, operation: Operation) -> bool:
        return compat.is_linearized_by_jvp(operation.params, is_vjp=True)

    def function_of_rule(self, operation: Operation) -> str:
        return compat.hi_function_name(operation.params)

    def bodies(self, operation: Operation) -> tuple[Body, ...]:
        return super().bodies(operation) if operation.programs else ()

    def jvp(self, operation: Operation, nonzeros: Mask) -> JvpRule:
        pushed, nonzeros_out = _pushed(operation, nonzeros)
        pushed, _ = dce_program(pushed)
        roles = roles_by_use(pushed, len(operation.out_avals), "primal", "tangent")
        template = Template(pushed, roles, keeps_lines=True)
        return JvpRule(template, nonzeros_out, compat.hi_rule_name(operation.params, "jvp"))

    def linearize(
        self, operation: Operation, nonzeros: Mask, mode: Mode = VJP, values: Sequence[Any] | None = None
    ) -> LinearizeRule:
        if compat.is_linearized_by_jvp(operation.params, mode.is_vjp):
            pushed, nonzeros_out = _pushed(operation, nonzeros)
            name = compat.hi_rule_name(operation.params, "jvp")
            return linearize.split_jvp(pushed, nonzeros_out, len(nonzeros), name, keeps_lines=True)
        method = "vjp_fwd" if mode.is_vjp else "lin"
        _check_rule(operation, method)
        name = compat.hi_rule_name(operation.params, method)
        with compat.as_it_was(operation.params):
            return _with_known(linearize.jax_rule(operation, nonzeros, mode.is_vjp, values, name))

    def dce(self, operation: Operation, used: Mask) -> DceRule:
        reduced = compat.dce_hi_primitive(one_equation(operation), used)
        if reduced is None:
            return nothing_left(operation)
        read, left, params = reduced
        if all(read) and all(left) and params["_prim"] is operation.params["_prim"]:
            return tuple(read), tuple(left), operation
        smaller = make_operation(
            operation.primitive, read_params(params), select(read, operation.in_avals),
            select(left, operation.out_avals), operation.effects, operation.context,
        )  # fmt: skip
        return tuple(read), tuple(left), smaller


class HiLinear(Primitive):
    """The derivative of a hi-primitive that has a rule for the backward pass alone."""

    is_opened = False

    def linearize(self, operation: Operation, nonzeros: Mask, mode: Mode = VJP) -> LinearizeRule:
        n_residuals = operation.params["residuals_tree"].num_leaves
        if any(nonzeros[:n_residuals]) or not all(nonzeros[n_residuals:]):
            return linearize.linearize_rules.default(operation, nonzeros, mode)
        return linearize.own_derivative(operation, n_residuals, compat.hi_rule_name(operation.params, "vjp_bwd"))

    def transpose(
        self, operation: Operation, linear: Mask, nonzero_cts: Mask, logs: bool, values: Sequence[Any] | None = None
    ) -> TransposeRule:
        refuse_reference(operation, "Transpose rule (for reverse-mode differentiation) for")
        log = compat.Log(logs)
        rule, avals, nonzeros_out = compat.transpose_rule(
            operation.primitive, write_params(operation), operation.in_avals, operation.out_avals, linear, nonzero_cts,
            operation.context, log,
        )  # fmt: skip
        template = Template(_traced(rule, avals, values), "cotangent", keeps_lines=True)
        name = compat.hi_rule_name(operation.params, "vjp_bwd")
        return TransposeRule(template, tuple(nonzeros_out), name, log.tree)


HI_PRIMITIVE = HiPrimitive(compat.hi_primitive_p, compat.BODY)
HI_LINEAR = HiLinear(compat.hi_linear_p)


def _with_known(rule: LinearizeRule) -> LinearizeRule:
    """The rule whose backward rule gets as they are the values that the forward rule wrote in place, which JAX passes
    on without tracing them."""
    linear = rule.linear.program
    equations = tuple(map(_knowing, linear.equations))
    if all(new is old for new, old in zip(equations, linear.equations, strict=True)):
        return rule
    template = Template(replace(linear, equations=equations), "tangent", keeps_lines=True)
    return replace(rule, linear=template)


def _knowing(e: Equation) -> Equation:
    written = {i: a.val for i, a in enumerate(e.invars) if isinstance(a, Literal)}
    if not written or e.primitive != compat.hi_linear_p:
        return e
    op = e.operation
    params = compat.with_known_residuals(op.params, written)
    return replace(e, operation=make_operation(op.primitive, params, op.in_avals, op.out_avals, op.effects, op.context))


def _check_rule(operation: Operation, method: str) -> None:
    """
    Raises:
      NoRuleError: in JAX's words if the class does not implement the rule; or its operands are references.
    """
    if not compat.touches_ref(operation):
        return check_differentiable(operation)
    if refused := compat.hi_refusal(operation.params, method):
        raise NoRuleError(f"{refused}.")
    advice = (
        "Its rule works on mutable references, which may be its own, and jaxviz does not trace it: use jax's own "
        "transforms, or switch off what makes it, such as jax_scan3."
    )
    raise no_rule(operation, "Differentiation rule for", advice)


def _pushed(operation: Operation, nonzeros: Mask) -> tuple[Program, Mask]:
    """The JVP rule of a hi-primitive: operands, nonzero tangents → results, nonzero tangents; and which are nonzero."""
    _check_rule(operation, "jvp")
    rule, avals, nonzeros_out = compat.jvp_rule(
        operation.primitive, write_params(operation), operation.in_avals, nonzeros, operation.context
    )
    try:
        with compat.as_it_was(operation.params):
            pushed = _traced(rule, avals)
        return with_line_of_call(pushed, operation), tuple(nonzeros_out)
    except NotImplementedError as error:  # it has a rule for reverse mode alone
        if isinstance(error, EquationError):
            raise
        raise NoRuleError(f"{message_of(error)}.") from error


def _traced(rule: Callable[..., Sequence[Any]], avals: Sequence[Any], values: Sequence[Any] | None = None) -> Program:
    """A rule as a program, each of whose equations has its own line."""
    return read_traced(compat.trace_to_jaxpr(rule, avals, values=values, keeps_rules=False))
