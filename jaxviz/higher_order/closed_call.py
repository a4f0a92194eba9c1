"""`closed_call` and `core_call`: a call without name and parameters. Its program is inlined."""

from __future__ import annotations

from jaxviz.higher_order.protocol import HigherOrder
from jaxviz.ir import compat
from jaxviz.ir.syntax import Operation
from jaxviz.transforms import jvp, linearize, transpose
from jaxviz.transforms.driver import Mask, Template
from jaxviz.transforms.jvp import JvpRule, jvp_rules
from jaxviz.transforms.linearize import linearize_rules
from jaxviz.transforms.transpose import TransposeRule, transpose_rules
from jaxviz.transforms.vmap import Dims, VmapRule, vmap_program, vmap_rules

CLOSED_CALL = HigherOrder(compat.closed_call_p, "call_jaxpr")
CORE_CALL = HigherOrder(compat.core_call_p, "call_jaxpr")

for _primitive in (compat.closed_call_p, compat.core_call_p):
    linearize_rules.register(_primitive)(linearize.linearize_from_jvp)


@jvp_rules.register(compat.core_call_p)
@jvp_rules.register(compat.closed_call_p)
def _jvp_closed_call(operation: Operation, nonzeros: Mask) -> JvpRule:
    pushed = jvp.jvp_program(operation.params["call_jaxpr"], nonzeros)
    template = Template(pushed.program, ["primal"] * len(pushed.program.equations), keeps_lines=True)
    return JvpRule(template, pushed.nonzeros_out, "jvp of a call")


@transpose_rules.register(compat.core_call_p)
@transpose_rules.register(compat.closed_call_p)
def _transpose_closed_call(operation: Operation, linear: Mask, nonzero_cts: Mask, logs: bool) -> TransposeRule:
    parts = transpose.transpose_program(operation.params["call_jaxpr"], linear, nonzero_cts, logs=logs)
    template = Template(parts.backward, ["cotangent"] * len(parts.backward.equations), keeps_lines=True)
    return TransposeRule(template, parts.nonzeros_out, "transpose of a call", parts.logs)


@vmap_rules.register(compat.core_call_p)
@vmap_rules.register(compat.closed_call_p)
def _vmap_closed_call(operation: Operation, dims: Dims, axis: compat.Axis) -> VmapRule:
    body = vmap_program(operation.params["call_jaxpr"], dims, axis)
    template = Template(body.program, ["primal"] * len(body.program.equations), keeps_lines=True)
    return VmapRule(template, body.dims_out, "vmap of a call", notes=body.notes)
