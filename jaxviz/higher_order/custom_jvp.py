"""A function with a custom JVP rule: `jax.custom_jvp`.

Source: JAX's `custom_derivatives.py`.
"""

from __future__ import annotations

from jaxviz.ir import compat
from jaxviz.ir.convert import read_traced, write_params
from jaxviz.ir.leaks import without_leaks
from jaxviz.ir.syntax import Operation, Program
from jaxviz.transforms import linearize
from jaxviz.transforms.dce import dce_program, roles_by_use
from jaxviz.transforms.driver import Mask, Template
from jaxviz.transforms.jvp import JvpRule
from jaxviz.transforms.linearize import VJP, LinearizeRule, Mode
from jaxviz.transforms.partial_eval import split_program
from jaxviz.transforms.policy import Policy
from jaxviz.transforms.primitive import CallPrimitive
from jaxviz.transforms.split_rules import SplitRule


class CustomJvp(CallPrimitive):
    has_custom_rule = True
    splits_by_policy = False

    def is_asked_inside(self, operation: Operation) -> bool:
        return False

    def has_jvp_rule(self, operation: Operation) -> bool:
        return True

    def function_of_rule(self, operation: Operation) -> str:
        return str(operation.params["call_jaxpr"].name)

    def jvp(self, operation: Operation, nonzeros: Mask) -> JvpRule:
        pushed, nonzeros_out, name = _custom_jvp_rule(operation, nonzeros)
        pushed, _ = dce_program(pushed)
        roles = roles_by_use(pushed, len(operation.out_avals), "primal", "tangent")
        return JvpRule(Template(pushed, roles, keeps_lines=True), nonzeros_out, name)

    def linearize(self, operation: Operation, nonzeros: Mask, mode: Mode = VJP) -> LinearizeRule:
        pushed, nonzeros_out, name = _custom_jvp_rule(operation, nonzeros)
        return linearize.split_jvp(pushed, nonzeros_out, len(nonzeros), name, keeps_lines=True)

    def split(self, operation: Operation, unknown: Mask, available: Mask | None, policy: Policy | None) -> SplitRule:
        """The function itself, split in two; as in JAX the rule is no longer needed."""
        parts = split_program(operation.params["call_jaxpr"], unknown)
        known = Template(parts.known, "primal", keeps_lines=True)
        staged = Template(parts.staged, "tangent", keeps_lines=True)
        name = "partial evaluation of a function with a custom JVP rule"
        return parts.rule(operation, known, staged, unknown, name)


CUSTOM_JVP = CustomJvp(compat.custom_jvp_call_p, "call_jaxpr")


def _custom_jvp_rule(operation: Operation, nonzeros: Mask) -> tuple[Program, Mask, str]:
    params = write_params(operation)
    with without_leaks(params["jvp_jaxpr_fun"]):
        traced, nonzeros_out = compat.trace_custom_jvp_rule(params, operation.in_avals, nonzeros, operation.context)
    return read_traced(traced), tuple(nonzeros_out), f"custom JVP rule of {operation.params['call_jaxpr'].name}"
