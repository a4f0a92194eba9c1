"""Rules for calls: `jit`, and functions with a custom JVP rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxviz.ir import compat
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.syntax import Atom, Equation, Operation, Program, Role, Var
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


def _call(operation: Operation, role: Role = "primal") -> Template:
    """A program of one equation, and its template."""
    invars = tuple(Var(a) for a in operation.in_avals)
    outvars = tuple(Var(a) for a in operation.out_avals)
    program = Program((), invars, outvars, (Equation(operation, invars, outvars),), effects=operation.effects)
    return Template(program, [role])


@jvp_rules.register(compat.jit_p)
def _jvp_jit(operation: Operation, nonzeros: Mask) -> JvpRule:
    pushed = jvp.jvp_program(operation.params["jaxpr"], nonzeros)
    n_in, n_out = len(operation.in_avals), len(operation.out_avals)
    inputs = [*range(n_in), *(i for i, nz in enumerate(nonzeros) if nz)]
    outputs = [*range(n_out), *(i for i, nz in enumerate(pushed.nonzeros_out) if nz)]
    made = jit_operation(operation, pushed.program, inputs, outputs)
    return JvpRule(_call(made), pushed.nonzeros_out, "jvp of a jitted function")


@linearize_rules.register(compat.jit_p)
def _linearize_jit(operation: Operation, nonzeros: Mask) -> LinearizeRule:
    """Results that are inputs, and residuals that are inputs or results, do not pass through the jit's outputs."""
    body: Program = operation.params["jaxpr"]
    parts = linearize.linearize_program(body, nonzeros)
    n_in, n_out = len(body.invars), len(body.outvars)
    results = parts.forward.outvars[:n_out]
    n_consts = len(body.constvars)
    operands = [Var(a) for a in operation.in_avals]
    constants = [Var(v.aval) for v in body.constvars]
    outer: dict[Atom, Atom] = {
        **dict(zip(body.invars, operands, strict=True)),
        **dict(zip(body.constvars, constants, strict=True)),
    }

    def passes_through(i: int, atom: Atom) -> bool:
        free = operation.params["out_shardings"][i] is compat.UNSPECIFIED and operation.params["out_layouts"][i] is None
        return free and atom in outer and atom not in body.constvars

    kept = [i for i, a in enumerate(results) if not passes_through(i, a)]
    kept_atoms = {results[i] for i in kept}
    computed = [a for a in parts.residuals if a not in outer and a not in kept_atoms]
    forward = _with_results(parts.forward, [*(results[i] for i in kept), *computed])
    primal_op = jit_operation(operation, forward, [*range(n_in)], [*kept, *([None] * len(computed))])
    outs = [Var(a) for a in primal_op.out_avals]
    position = dict(zip(kept, outs, strict=False))
    primal_results = [position[i] if i in position else outer[a] for i, a in enumerate(results)]
    outer.update({results[i]: v for i, v in position.items()})
    outer.update(zip(computed, outs[len(kept) :], strict=True))
    residuals = [outer[a] for a in parts.residuals]
    extra = [a for a in residuals if a not in operands]
    call = Equation(primal_op, tuple(operands), tuple(outs))
    primal = Program(
        tuple(constants), tuple(operands), (*primal_results, *extra), (call,), body.consts[:n_consts], primal_op.effects
    )
    places: dict[Atom, int] = {v: i for i, v in enumerate(operands)}
    for i, v in enumerate(primal_results):
        places.setdefault(v, n_in + i)
    for i, v in enumerate(extra):
        places.setdefault(v, n_in + n_out + i)
    tangents_in = [i for i, nz in enumerate(nonzeros) if nz]
    tangents_out = [i for i, nz in enumerate(parts.nonzeros_out) if nz]
    linear_op = jit_operation(operation, parts.linear, [*([None] * len(residuals)), *tangents_in], tangents_out)
    return LinearizeRule(
        Template(primal, ["primal"]),
        _call(linear_op, role="tangent"),
        tuple(places[v] for v in residuals),
        parts.nonzeros_out,
        "linearize of a jitted function",
    )


def _with_results(program: Program, outvars: Sequence[Atom]) -> Program:
    info = compat.derived_debug_info(program.debug_info, program.arg_names, len(outvars))
    return replace(program, outvars=tuple(outvars), debug_info=info)


@transpose_rules.register(compat.jit_p)
def _transpose_jit(operation: Operation, linear: Mask, nonzero_cts: Mask) -> TransposeRule:
    parts = transpose.transpose_program(operation.params["jaxpr"], linear, nonzero_cts)
    others = [i for i, lin in enumerate(linear) if not lin]
    cts_in = [i for i, nz in enumerate(nonzero_cts) if nz]
    cts_out = select(parts.nonzeros_out, [i for i, lin in enumerate(linear) if lin])
    params: Mapping[str, Any] = operation.params
    like = Operation(
        operation.primitive,
        {**params, "donated_invars": (False,) * len(linear)},
        operation.in_avals, operation.out_avals, operation.effects, operation.context,
    )  # fmt: skip
    made = _transposed_jit(like, parts.backward, others, cts_in, cts_out)
    return TransposeRule(_call(made, role="cotangent"), parts.nonzeros_out, "transpose of a jitted function")


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
