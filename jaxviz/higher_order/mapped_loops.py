"""While loops with a predicate for each example, which `jax.vmap` makes, as loops that have one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jax import lax

from jaxviz.higher_order.loops import While
from jaxviz.ir import compat
from jaxviz.ir.convert import map_programs, trace_rule
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.syntax import Equation, Program, Var
from jaxviz.transforms.driver import Builder, partition


def with_one_predicate(program: Program) -> Program:
    """The program with each such loop written out: it goes on while any example does, and keeps the carry of the others.

    That is what jax lowers it to; nested programs are gone through too.
    """
    equations = tuple([_with_one_predicate(e) for e in program.equations])
    if all(a is b for a, b in zip(equations, program.equations, strict=True)):
        return program
    return replace(program, equations=equations)


def _with_one_predicate(equation: Equation) -> Equation:
    op = equation.operation
    if not op.programs:
        return equation
    if any(with_one_predicate(p) is not p for _, p in op.programs):
        params = map_programs(op.params, with_one_predicate)
        op = make_operation(op.primitive, params, op.in_avals, op.out_avals, op.effects, op.context)
        equation = replace(equation, operation=op)
    if op.primitive is not compat.while_p or not While(op).condition.outvars[0].aval.shape:
        return equation
    loop = While(op)
    n_condition, n_consts = loop.sizes
    condition = loop.condition
    any_goes_on = Builder(condition.constvars, condition.consts)
    goes_on = any_goes_on.inline(condition, condition.invars)
    made = any_goes_on.inline(trace_rule(_any, [goes_on[0].aval]), goes_on)
    body = _keeping(loop, equation)
    new = loop.like(
        _unknown(any_goes_on.program(condition.invars, made)), n_condition, _unknown(body), n_condition + n_consts
    )
    for_condition, rest = partition(equation.invars, n_condition)
    return replace(equation, operation=new, invars=(*for_condition, *for_condition, *rest))


def _keeping(loop: While, equation: Equation) -> Program:
    """`consts of the condition, consts, carry → carry`, which is the one before where the condition does not hold."""
    n_condition, n_consts = loop.sizes
    builder = Builder()
    operands = [Var(a) for a in (*loop.condition.in_avals[:n_condition], *loop.body.in_avals)]
    for_condition, consts, carry = partition(operands, n_condition, n_consts)
    (goes_on,) = builder.inline(loop.condition, [*for_condition, *carry])
    after = builder.inline(loop.body, [*consts, *carry])
    first = len(builder.equations)
    types = [goes_on.aval, *(a.aval for a in (*carry, *after))]
    kept = builder.inline(
        trace_rule(lambda p, *xs: kept_carry(p, *partition(xs, len(carry))), types), [goes_on, *carry, *after]
    )
    for k in range(first, len(builder.equations)):
        builder.equations[k] = replace(builder.equations[k], source=equation.source)
    return builder.program(operands, kept, None, like=loop.body)


def _any(goes_on: Any) -> list[Any]:
    return [lax.reduce_or(goes_on, tuple(range(goes_on.ndim)))]


def kept_carry(goes_on: Any, before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    """The carry after a step: that of before it, of the examples that have ended."""
    which = lambda x: lax.broadcast_in_dim(goes_on, x.shape, tuple(range(goes_on.ndim)))
    return [lax.select_n(which(y), x, y) for x, y in zip(before, after, strict=True)]


def _unknown(program: Program) -> Program:
    return replace(program, debug_info=compat.unknown_debug_info(len(program.invars), len(program.outvars)))
