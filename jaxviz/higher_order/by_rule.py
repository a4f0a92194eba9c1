"""An operation in a checkpoint of `jax_remat3` that decides itself what is saved, such as a function with rules of
`jax.custom_vjp`'s `defremat`: the policy is not asked about it.

It exists only while a checkpoint is linearized. Splitting it gives the two programs of its rule: one that runs in the
forward pass, whose last results are saved, and one that computes the results again from them, and is differentiated.

Source: `RematTrace` in JAX's `interpreters/remat.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jax.extend.core import Primitive as JaxPrimitive

from jaxviz.ir import compat
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.convert import read_jaxpr, with_programs, write_params
from jaxviz.ir.syntax import Decision, Equation, Operation, Origin, Program, Var
from jaxviz.transforms.dce import dce_program
from jaxviz.transforms.driver import Builder, Mask, Template, call_of, with_line_of_call
from jaxviz.transforms.jvp import JvpRule
from jaxviz.transforms.linearize import linearize_program
from jaxviz.transforms.policy import Policy, recomputation
from jaxviz.transforms.primitive import Primitive, of
from jaxviz.transforms.split_rules import SplitRule, all_staged, split_rules

by_rule_p = JaxPrimitive("by_rule")
by_rule_p.multiple_results = True


class ByRule(Primitive):
    """`forward`: operands → results, saved values. `again`: saved values, operands, tangents → results, their
    tangents."""

    def jvp(self, operation: Operation, nonzeros: Mask) -> JvpRule:
        forward, again, n_saved = _parts(operation)
        parts = linearize_program(again, (*([False] * n_saved), *nonzeros), in_loop=True)
        builder, n_results = Builder(), len(again.outvars)
        outs = builder.inline(parts.forward, parts.forward.invars)
        tangents = parts.linear.invars[len(parts.residuals) :]
        tangents_out = builder.inline(parts.linear, [*outs[n_results:], *tangents])
        pushed = builder.program([*parts.forward.invars, *tangents], [*outs[:n_results], *tangents_out])
        call = call_of(_operation(forward, pushed, n_saved, operation.context))
        return JvpRule(Template(call, "primal"), parts.nonzeros_out, _NAME)

    def split(self, operation: Operation, unknown: Mask, available: Mask | None, policy: Policy | None) -> SplitRule:
        forward, again, n_saved = _parts(operation)
        n, n_in, n_out = len(forward.invars), len(unknown), len(operation.out_avals)
        n_results = len(forward.outvars) - n_saved
        if any(unknown[:n]):
            return all_staged(operation, unknown, _NAME)
        saved = {a for a in forward.outvars[n_results:] if isinstance(a, Var)}
        now, decisions = [], []
        for e in forward.equations:
            e = _with_own_origin(e)
            now.append(e)
            if not saved.isdisjoint(e.outvars):
                decisions.append(Decision(e, "by its rule"))
        later, tangents = [], set(again.invars[n_saved + n :])
        for e in again.equations:
            if tangents.isdisjoint(e.invars):
                known = _with_own_origin(e)
                decisions.append(Decision(known, "recomputed"))
                e = replace(e, origin=recomputation(known, "linearize"))
            else:
                tangents.update(e.outvars)
            later.append(e)
        staged, is_read = dce_program(
            replace(again, equations=tuple(later)), keep_inputs=[False] * n_saved + [True] * n_in
        )
        places = [*range(n_in + n_results, n_in + len(forward.outvars)), *range(n_in)]
        unknown_out = (False,) * n_results + (True,) * (n_out - n_results)
        return SplitRule(
            Template(replace(forward, equations=tuple(now)), "residual", keeps_lines=True),
            Template(staged, "tangent", keeps_lines=True),
            tuple(i for i, read in zip(places, is_read, strict=True) if read),
            unknown_out, (True,) * n_out, _NAME, tuple(decisions),
        )  # fmt: skip


BY_RULE = ByRule(by_rule_p)

_NAME = "rule for checkpoints"


def with_rules(program: Program, policy: Any) -> Program:
    """The body of a checkpoint with an operation of this kind for each that decides itself what is saved."""
    equations = tuple([_with_rule(e, policy) for e in program.equations])
    is_same = all(new is old for new, old in zip(equations, program.equations, strict=True))
    return program if is_same else replace(program, equations=equations)


def _with_rule(e: Equation, policy: Any) -> Equation:
    op = e.operation
    if compat.saves_by_rule(op.params):
        jaxprs = compat.remat_rule(write_params(op), op.in_avals, policy, op.context)
        forward, again = [_made_by(e, read_jaxpr(jaxpr)) for jaxpr in jaxprs]
        n_saved = len(forward.outvars) - len(e.outvars)
        return replace(e, operation=_operation(forward, again, n_saved, op.context), origin=_origin(e))
    if not op.programs or not of(e).splits_by_policy or e.primitive not in split_rules.own:
        return e
    changed = with_programs(op, lambda body: with_rules(body, policy))
    return e if changed is op else replace(e, operation=changed, origin=_origin(e))


def _origin(e: Equation) -> Origin:
    return Origin(e, "linearize", _NAME, "primal")


def _made_by(e: Equation, program: Program) -> Program:
    """A program of the rule for an equation; where the rule applies the operation itself, it has its line."""
    lines = with_line_of_call(program, e.operation).equations
    return replace(
        program, equations=tuple([replace(x, source=x.source or e.source, origin=_origin(e)) for x in lines])
    )


def _with_own_origin(e: Equation) -> Equation:
    """An equation whose origin is not shared with others of its rule, so that copies of it can be identified."""
    o = e.origin
    return e if o is None else replace(e, origin=Origin(o.equation, o.transform, o.rule, o.role))


def _parts(operation: Operation) -> tuple[Program, Program, int]:
    forward, again, n_saved = (operation.params[name] for name in ("forward", "again", "n_saved"))
    return forward, again, n_saved


def _operation(forward: Program, again: Program, n_saved: int, context: Any) -> Operation:
    params = {"forward": forward, "again": again, "n_saved": n_saved}
    effects = forward.effects | again.effects
    return make_operation(by_rule_p, params, again.in_avals[n_saved:], again.out_avals, effects, context)
