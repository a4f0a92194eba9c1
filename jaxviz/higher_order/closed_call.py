"""`closed_call` and `core_call`: a call without name and parameters. Its program is inlined."""

from __future__ import annotations

from jaxviz.ir import compat
from jaxviz.ir.syntax import Operation
from jaxviz.transforms.driver import Mask, Template
from jaxviz.transforms.jvp import JvpRule, jvp_program
from jaxviz.transforms.linearize import linearize_from_jvp
from jaxviz.transforms.primitive import CallPrimitive
from jaxviz.transforms.transpose import TransposeOptions, TransposeRule, transpose_program
from jaxviz.transforms.vmap import Dims, VmapRule, vmap_program


class PlainCall(CallPrimitive):
    def jvp(self, operation: Operation, nonzeros: Mask) -> JvpRule:
        pushed = jvp_program(operation.params["call_jaxpr"], nonzeros)
        return JvpRule(Template(pushed.program, "primal", keeps_lines=True), pushed.nonzeros_out, "jvp of a call")

    linearize = staticmethod(linearize_from_jvp)

    def transpose(self, operation: Operation, linear: Mask, nonzero_cts: Mask, logs: bool) -> TransposeRule:
        parts = transpose_program(operation.params["call_jaxpr"], linear, nonzero_cts, TransposeOptions(logs=logs))
        template = Template(parts.backward, "cotangent", keeps_lines=True)
        return TransposeRule(template, parts.nonzeros_out, "transpose of a call", parts.logs)

    def batch(self, operation: Operation, dims: Dims, axis: compat.Axis) -> VmapRule:
        body = vmap_program(operation.params["call_jaxpr"], dims, axis)
        return VmapRule(Template(body.program, "primal", keeps_lines=True), body.dims_out, "vmap of a call")


CLOSED_CALL = PlainCall(compat.closed_call_p, "call_jaxpr")
CORE_CALL = PlainCall(compat.core_call_p, "call_jaxpr")
