"""JVP: `a → b` becomes `(a, T a) → (b, T b)`, with primal and tangent equations interleaved.

Equation by equation, the rule of the primitive computes the tangents of the results from those of the operands, by the
chain rule.

Source: Griewank and Walther, "Evaluating Derivatives" (SIAM, second edition 2008), chapter 3; `JVPTrace` in JAX's
`ad.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from jaxviz.ir import compat
from jaxviz.ir.collector import collector_paused
from jaxviz.ir.convert import one_equation, read_jaxpr, trace_rule, write_params
from jaxviz.ir.syntax import Atom, Operation, Program, Var
from jaxviz.transforms.dce import dce_program, roles_by_use
from jaxviz.transforms.driver import (
    Builder,
    Mask,
    RuleTable,
    Template,
    check_differentiable,
    located,
    relations_of_values,
    values_of_tangents,
)
from jaxviz.transforms.primitive import of


@dataclass(frozen=True, slots=True)
class JvpRule:
    """How one operation is pushed forward.

    Args:
      pushed: operands, nonzero tangents → results, nonzero tangents of the results.
      nonzeros_out: which results have a tangent that is not a symbolic zero.
      name: for people.
    """

    pushed: Template
    nonzeros_out: Mask
    name: str


@dataclass(frozen=True, slots=True)
class Jvp:
    """A program pushed forward.

    Args:
      program: inputs, nonzero tangents → results, nonzero tangents.
      nonzeros_out: which results have a tangent that is not a symbolic zero.
    """

    program: Program
    nonzeros_out: Mask


def jax_rule(operation: Operation, nonzeros: Mask) -> JvpRule:
    """The rule that JAX has for an operation, as a program."""
    primitive = operation.primitive
    if compat.has_plain_jvp_rule(primitive):
        params = write_params(operation)
        rule, avals, nonzeros_out = compat.jvp_rule(primitive, params, operation.in_avals, nonzeros, operation.context)
        pushed = trace_rule(rule, avals, operation)
    else:
        jaxpr, nonzeros_out = compat.jvp_jaxpr(one_equation(operation), nonzeros)
        pushed = read_jaxpr(jaxpr)
    program, _ = dce_program(pushed)
    roles = roles_by_use(program, len(operation.out_avals), "primal", "tangent")
    return JvpRule(Template(program, roles), tuple(nonzeros_out), f"jvp rule of {primitive.name}")


def _default_rule(operation: Operation, nonzeros: Mask) -> JvpRule:
    check_differentiable(operation)
    return jax_rule(operation, nonzeros)


jvp_rules: RuleTable[JvpRule] = RuleTable("jvp", _default_rule)
"""Key: operation, which operands carry a nonzero tangent."""


@collector_paused()
def jvp_program(
    program: Program,
    nonzeros: Sequence[bool],
    n_results: int | None = None,
    instantiate: Sequence[bool] | None = None,
) -> Jvp:
    """Pushes tangents through a program, for the inputs that `nonzeros` marks.

    Args:
      program: the function.
      nonzeros: for each input, whether it carries a tangent. An input of integer or boolean type must not.
      n_results: how many of its results, from the first on, are differentiated; all by default.
      instantiate: for each of those, whether a zero tangent is written out.

    Raises:
      EquationError: names the primitive, the equation and the user's line.
    """
    builder = Builder(program.constvars, program.consts)
    primal: dict[Atom, Atom] = {}
    tangent: dict[Atom, Atom] = {}
    tangents_in: list[Var] = []
    for v, nonzero in zip(program.invars, nonzeros, strict=True):
        if nonzero:
            tangents_in.append(Var(v.aval.to_tangent_aval()))
            tangent[v] = tangents_in[-1]
    with located(enumerate(program.equations)) as equations:
        for _, equation in equations:
            nonzero_in = tuple([a in tangent for a in equation.invars])
            ins = [primal.get(a, a) for a in equation.invars]
            if True not in nonzero_in and not of(equation).makes_reference:
                builder.copy(equation, ins, "jvp", "no tangent reaches it")
                continue
            rule = jvp_rules(equation.operation, nonzero_in)
            ins += [tangent[a] for a in equation.invars if a in tangent]
            outs = builder.splice(rule.pushed, ins, equation, "jvp", rule.name)
            primal.update(zip(equation.outvars, outs, strict=False))
            tangents = iter(outs[len(equation.outvars) :])
            for v, nonzero in zip(equation.outvars, rule.nonzeros_out, strict=True):
                if nonzero:
                    tangent[v] = next(tangents)
    differentiated = program.outvars[:n_results]
    written = instantiate or (False,) * len(differentiated)
    nonzeros_out = tuple(a in tangent or w for a, w in zip(differentiated, written, strict=True))
    tangents_out = [
        tangent[a] if a in tangent else builder.zero(a.aval.to_tangent_aval(), "jvp")
        for a, nonzero in zip(differentiated, nonzeros_out, strict=True)
        if nonzero
    ]
    results = [primal.get(a, a) for a in program.outvars] + tangents_out
    names = [*program.arg_names, *([""] * len(tangents_in))]
    info = compat.derived_debug_info(program.debug_info, names, len(results))
    pushed = builder.program([*program.invars, *tangents_in], results, info, like=program)
    pushed = replace(
        pushed,
        tangents=partial(values_of_tangents, tangent, primal, program.outvars),
        relations=partial(relations_of_values, primal, tangent, builder),
    )
    return Jvp(pushed, nonzeros_out)
