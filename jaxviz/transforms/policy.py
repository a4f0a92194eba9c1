"""What a checkpoint policy decides about an equation whose operands are known: its results are saved for the backward
pass, recomputed in it, or moved to another memory in between.

Source: the cases of `partial_eval_jaxpr_custom` in JAX's `interpreters/partial_eval.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from jaxviz.ir import compat
from jaxviz.ir.convert import one_equation, write_params
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.syntax import Atom, Decision, Equation, Origin, Program, Relations, Var
from jaxviz.transforms.primitive import of

Policy = Callable[..., Any]


def in_force(policy: Policy, equation: Equation) -> Policy:
    """The policy about an equation: the one that JAX follows inside a custom rule, if it comes from one."""
    origin = equation.origin
    made_by = origin.equation if origin is not None else None
    in_rule = made_by is not None and not of(made_by).is_asked_inside(made_by.operation)
    return compat.policy_in_rules(policy) if in_rule else policy


def divide(
    policy: Policy, equation: Equation, known: Equation, transform: str
) -> tuple[Decision, list[Equation], Equation | None]:
    """What a policy decides about an equation; the equations of the known part, and the one that has the results in the
    staged part, unless they are saved.

    Args:
      policy: the policy.
      equation: of the program that is split.
      known: the same equation on values of the known part.
      transform: the transform that asks.
    """
    # Its origin is not shared with other equations of its rule, so that later copies of it can be identified.
    o = known.origin
    known = replace(known, origin=Origin(o.equation, o.transform, o.rule, o.role) if o is not None else None)
    verdict = decide(policy, equation)
    if verdict == "saved":
        return Decision(known, "saved"), [known], None
    if verdict == "recomputed":
        return Decision(known, "recomputed"), [known], replace(equation, origin=recomputation(known, transform))
    away, back = _offloaded(equation, transform, *verdict)
    return Decision(known, "offloaded"), [known, away], back


def decide(policy: Policy, equation: Equation) -> Any:
    """The decision about an equation: 'saved', 'recomputed', or the memories between which its results are moved,
    `(source, destination)`.

    As in JAX the policy is asked even where its answer does not count.
    """
    operation = equation.operation
    params = write_params(operation)
    verdict = compat.decide(in_force(policy, equation), operation.primitive, operation.in_avals, params)
    if any(compat.is_real_effect(e) for e in operation.effects):
        verdict = "saved"  # effects are not repeated, whatever the policy says
    if compat.touches_ref(operation) and compat.runs_again(one_equation(operation).eqns[0]):
        verdict = "recomputed"  # except that JAX reads and writes a reference in both passes
    return verdict


def _offloaded(equation: Equation, transform: str, source: str, destination: str) -> tuple[Equation, Equation]:
    """The equations that move the results of an equation to another kind of memory, and back to the same variables."""
    parked = tuple([Var(compat.in_memory(v.aval, destination)) for v in equation.outvars])

    def move(kind: str, ins: Sequence[Var], outs: tuple[Var, ...], rule: str) -> Equation:
        operation = make_operation(
            compat.device_put_p, compat.move_params(kind, len(ins)), tuple([v.aval for v in ins]),
            tuple([v.aval for v in outs]), frozenset(), equation.operation.context,
        )  # fmt: skip
        return Equation(operation, tuple(ins), outs, equation.source, Origin(equation, transform, rule, "residual"))

    return (
        move(destination, equation.outvars, parked, f"offloaded to {destination}"),
        move(source, parked, equation.outvars, f"brought back from {destination}"),
    )


def recomputation(equation: Equation, transform: str) -> Origin:
    """The origin of an equation that computes the results of another one again."""
    return Origin(equation, transform, "recomputed in the backward pass", "recomputation")


def recomputed(program: Program, transform: str) -> Program:
    """The program with its equations marked as done once more, in the backward pass."""
    equations = tuple(
        replace(e, source=compat.in_scope(e.source, compat.RECOMPUTED), origin=recomputation(e, transform))
        for e in program.equations
    )
    return replace(program, equations=equations, relations=partial(_copied, program))


def _copied(program: Program) -> Relations:
    """Marks values copied from a program as values of that program."""
    values: list[Atom] = [*program.invars, *(v for e in program.equations for v in e.outvars)]
    for v in values:
        yield v, "value", v
    yield from program.relations()
