"""`lax.custom_linear_solve`: runs a solver, and is differentiated as the solution of `A x = b`, not through the solver.

The derivative of the solution is `A⁻¹ (db - dA x)`: the solver is applied once more, forward to a tangent and backward,
as the solver of the transposed system, to a cotangent. Transposition and vmap have JAX's rules, which return the same
primitive with its programs exchanged or mapped.

Source: JAX's `lax/control_flow/solves.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax
from jax.extend.core.primitives import linear_solve_p

from jaxviz.ir import compat
from jaxviz.ir.convert import trace_rule
from jaxviz.ir.syntax import Atom, Operation, Program, Var
from jaxviz.transforms.dce import roles_by_use
from jaxviz.transforms.driver import Builder, Mask, Template, no_rule, partition, select
from jaxviz.transforms.jvp import JvpRule, jvp_program, jvp_rules
from jaxviz.transforms.linearize import linearize_from_jvp
from jaxviz.transforms.primitive import Body, CallPrimitive
from jaxviz.transforms.transpose import TransposeRule, transpose_rules


class LinearSolve(CallPrimitive):
    """Operands: what the programs `matvec`, `vecmat`, `solve` and `transpose_solve` close over, then `b`."""

    has_custom_rule = True
    splits_by_policy = False
    linearize = staticmethod(linearize_from_jvp)

    def bodies(self, operation: Operation) -> tuple[Body, ...]:
        of_matvec, of_vecmat, of_solve, _ = operation.params["const_lengths"]
        start, stop = of_matvec + of_vecmat, sum(operation.params["const_lengths"])
        operands = [*range(start, start + of_solve), *range(stop, len(operation.in_avals))]
        return (Body(operation.params["jaxprs"].solve, operands, "solve"),)

    def jvp(self, operation: Operation, nonzeros: Mask) -> JvpRule:
        n_closed_over = sum(operation.params["const_lengths"])
        of_matrix, _ = partition(nonzeros, operation.params["const_lengths"].matvec)
        of_b = nonzeros[n_closed_over:]
        if not any(of_matrix) and not all(of_b):  # what JAX's rule has no zeros for
            return jvp_rules.default(operation, nonzeros)
        matvec: Program = operation.params["jaxprs"].matvec
        builder = Builder()
        operands = [Var(a) for a in operation.in_avals]
        tangents = {v: Var(v.aval.to_tangent_aval()) for v in select(nonzeros, operands)}
        results = builder.apply(operation, operands)
        right: list[Atom] = [tangents.get(v, v) for v in operands[n_closed_over:]]
        if any(of_matrix):
            pushed = jvp_program(matvec, (*of_matrix, *([False] * len(of_b))), instantiate=[True] * len(of_b))
            matrix, solution = operands[: len(of_matrix)], results[: len(of_b)]
            inputs = [*matrix, *solution, *(tangents[v] for v in select(of_matrix, matrix))]
            moved = builder.inline(pushed.program, inputs)[len(of_b) :]
            for i, (t, has_tangent) in enumerate(zip(moved, of_b, strict=True)):
                (right[i],) = _less(builder, right[i] if has_tangent else None, t)
        pushed_results = builder.apply(operation, [*operands[:n_closed_over], *right])
        nonzeros_out = tuple([i < len(of_b) for i in range(len(results))])
        program = builder.program([*operands, *tangents.values()], [*results, *select(nonzeros_out, pushed_results)])
        roles = roles_by_use(program, len(results), "primal", "tangent")
        return JvpRule(Template(program, roles, keeps_lines=True), nonzeros_out, "jvp of a linear solve")

    def transpose(
        self, operation: Operation, linear: Mask, nonzero_cts: Mask, logs: bool, values: Sequence[Any] | None = None
    ) -> TransposeRule:
        if not all(linear[sum(operation.params["const_lengths"]) :]):
            advice = (
                "JAX only transposes a solve all of whose right-hand side `b` is differentiated: leave out of `b` "
                "what is not."
            )
            raise no_rule(operation, "Transpose rule (for reverse-mode differentiation) for", advice)
        return transpose_rules.default(operation, linear, nonzero_cts, logs, values)


def _less(builder: Builder, x: Atom | None, y: Atom) -> list[Atom]:
    """Adds `x - y`, as JAX computes it; `x` is zero if it is None."""
    negative = builder.inline(trace_rule(lambda y: [lax.neg(y)], [y.aval]), [y])
    if x is None:
        return negative
    return builder.inline(trace_rule(lambda x, y: [compat.add_any_p.bind(x, y)], [x.aval, y.aval]), [x, *negative])


LINEAR_SOLVE = LinearSolve(linear_solve_p)
