"""Rules for calls: `jit`, and functions with a custom JVP rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxviz.ir import compat
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.syntax import Atom, Equation, Operation, Program, Var
from jaxviz.transforms import jvp, linearize, transpose
from jaxviz.transforms.dce import DceRule, dce_program, dce_rules
from jaxviz.transforms.driver import Mask, Template, select
from jaxviz.transforms.jvp import JvpRule, jvp_rules
from jaxviz.transforms.linearize import LinearizeRule, linearize_rules
from jaxviz.transforms.transpose import TransposeRule, transpose_rules

_INPUT_PARAMS = {"in_shardings": compat.UNSPECIFIED, "in_layouts": None, "donated_invars": False}
_OUTPUT_PARAMS = {"out_shardings": compat.UNSPECIFIED, "out_layouts": None}
"""The params of jit that have one entry for each operand or result, and the entry for one that we add."""


def jit_operation(
    like: Operation, body: Program, inputs: Sequence[int | None], outputs: Sequence[int | None]
) -> Operation:
    """A jit of another body.

    Args:
      like: the jit it is derived from.
      body: its program.
      inputs, outputs: for each operand and result, the place of the one in `like` whose sharding, layout and donation it takes
        over; None for a new one.
    """
    params = dict(like.params)
    params["jaxpr"] = body
    for name, new in _INPUT_PARAMS.items():
        params[name] = tuple(new if i is None else like.params[name][i] for i in inputs)
    for name, new in _OUTPUT_PARAMS.items():
        params[name] = tuple(new if i is None else like.params[name][i] for i in outputs)
    return make_operation(like.primitive, params, body.in_avals, body.out_avals, body.effects, like.context)


def _call(operation: Operation) -> Program:
    """The program that applies an operation to its inputs."""
    invars = tuple(Var(a) for a in operation.in_avals)
    outvars = tuple(Var(a) for a in operation.out_avals)
    return Program((), invars, outvars, (Equation(operation, invars, outvars),), effects=operation.effects)


@jvp_rules.register(compat.jit_p)
def _jvp_jit(operation: Operation, nonzeros: Mask) -> JvpRule:
    pushed = jvp.jvp_program(operation.params["jaxpr"], nonzeros)
    n_in, n_out = len(operation.in_avals), len(operation.out_avals)
    inputs = [*range(n_in), *(i for i, nz in enumerate(nonzeros) if nz)]
    outputs = [*range(n_out), *(i for i, nz in enumerate(pushed.nonzeros_out) if nz)]
    made = jit_operation(operation, pushed.program, inputs, outputs)
    return JvpRule(Template(_call(made), ["primal"]), pushed.nonzeros_out, "jvp of a jitted function")


@linearize_rules.register(compat.jit_p)
def _linearize_jit(operation: Operation, nonzeros: Mask) -> LinearizeRule:
    """Results that are inputs, and residuals that are inputs or results, do not pass through the jit's outputs."""
    body: Program = operation.params["jaxpr"]
    parts = linearize.linearize_program(body, nonzeros)
    n_in, n_out = len(body.invars), len(body.outvars)
    results = parts.forward.outvars[:n_out]
    operands = tuple(Var(a) for a in operation.in_avals)
    constants = tuple(Var(v.aval) for v in body.constvars)
    outside: dict[Atom, Atom] = dict(zip((*body.invars, *body.constvars), (*operands, *constants), strict=True))

    returned = [i for i, a in enumerate(results) if a not in body.invars or not _may_bypass(operation, i)]
    own = {results[i] for i in returned}
    computed = [a for a in parts.residuals if a not in outside and a not in own]
    forward = _with_results(parts.forward, [*(results[i] for i in returned), *computed])
    made = jit_operation(operation, forward, [*range(n_in)], [*returned, *([None] * len(computed))])
    outs = tuple(Var(a) for a in made.out_avals)
    result_of = dict(zip(returned, outs, strict=False))
    outer_results = [result_of[i] if i in result_of else outside[a] for i, a in enumerate(results)]
    outside.update(zip([*(results[i] for i in returned), *computed], outs, strict=True))
    residuals = [outside[a] for a in parts.residuals]

    call = Equation(made, operands, outs)
    primal = Program(constants, operands, (*outer_results, *residuals), (call,), body.consts, made.effects)
    tangents_in = [i for i, nz in enumerate(nonzeros) if nz]
    tangents_out = [i for i, nz in enumerate(parts.nonzeros_out) if nz]
    linear = jit_operation(operation, parts.linear, [*([None] * len(residuals)), *tangents_in], tangents_out)
    name = "linearize of a jitted function"
    return linearize.rule_of(primal, n_out, residuals, _call(linear), parts.nonzeros_out, name)


def _may_bypass(operation: Operation, result: int) -> bool:
    """Whether a result that is an input need not pass through the jit, since nothing is asked of its sharding or layout."""
    params = operation.params
    return params["out_shardings"][result] is compat.UNSPECIFIED and params["out_layouts"][result] is None


def _with_results(program: Program, outvars: Sequence[Atom]) -> Program:
    info = compat.derived_debug_info(program.debug_info, program.arg_names, len(outvars))
    return replace(program, outvars=tuple(outvars), debug_info=info)


@transpose_rules.register(compat.jit_p)
def _transpose_jit(operation: Operation, linear: Mask, nonzero_cts: Mask) -> TransposeRule:
    parts = transpose.transpose_program(operation.params["jaxpr"], linear, nonzero_cts)
    others = [i for i, lin in enumerate(linear) if not lin]
    cts_in = [i for i, nz in enumerate(nonzero_cts) if nz]
    cts_out = select(parts.nonzeros_out, [i for i, lin in enumerate(linear) if lin])
    made = _transposed_jit(operation, parts.backward, others, cts_in, cts_out)
    return TransposeRule(Template(_call(made), ["cotangent"]), parts.nonzeros_out, "transpose of a jitted function")


def _transposed_jit(
    like: Operation, body: Program, others: Sequence[int], cts_in: Sequence[int], cts_out: Sequence[int]
) -> Operation:
    """Cotangents come in as the results went out, and go out as the operands came in."""
    p = like.params
    params = {
        **p,
        "jaxpr": body,
        "in_shardings": (*(p["in_shardings"][i] for i in others), *(p["out_shardings"][i] for i in cts_in)),
        "in_layouts": (*(p["in_layouts"][i] for i in others), *(p["out_layouts"][i] for i in cts_in)),
        "out_shardings": tuple(p["in_shardings"][i] for i in cts_out),
        "out_layouts": tuple(p["in_layouts"][i] for i in cts_out),
        "donated_invars": (False,) * len(body.invars),
    }
    return make_operation(like.primitive, params, body.in_avals, body.out_avals, body.effects, like.context)


@dce_rules.register(compat.jit_p)
def _dce_jit(operation: Operation, used: Mask) -> DceRule:
    body: Program = operation.params["jaxpr"]
    if not any(used) and not operation.effects:
        return (False,) * len(operation.in_avals), None
    smaller, read = dce_program(body, used, keep_inputs=(False,) * len(body.invars))
    if all(used) and all(read) and len(smaller.equations) == len(body.equations):
        return read, operation
    inputs = [i for i, r in enumerate(read) if r]
    outputs = [i for i, u in enumerate(used) if u]
    return read, jit_operation(operation, smaller, inputs, outputs)


jvp_rules.register(compat.custom_jvp_call_p)(jvp.jax_rule)
linearize_rules.register(compat.custom_jvp_call_p)(linearize.jax_rule)
