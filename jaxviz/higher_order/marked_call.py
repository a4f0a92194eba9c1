"""`compute_on` and `xla_metadata_call`: calls whose program runs somewhere else, or carries metadata of the compiler.

What derives from the program is called likewise. Source: JAX's `compute_on.py` and `xla_metadata.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxviz.higher_order.jit import KeptCall, with_constants_first
from jaxviz.ir import compat
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.syntax import Operation, Program
from jaxviz.transforms.driver import Mask, Template, call_of, select, with_refs_as_inputs
from jaxviz.transforms.transpose import TransposeOptions, TransposeRule, transpose_program
from jaxviz.transforms.vmap import Dims, VmapRule, vmap_program


class MarkedCall(KeptCall):
    saves_results_once = compat.MERGES_RESIDUALS_OF_CALLS

    def params(self, operation: Operation, outputs: Sequence[int | None], avals: Sequence[Any]) -> dict[str, Any]:
        """The params for other results: for each the position of the one that it comes from, or None; their types."""
        return dict(operation.params)

    def out_avals(self, params: dict[str, Any], body: Program) -> tuple[Any, ...]:
        return tuple(body.out_avals)

    def called(self, like: Operation, body: Program, params: Mapping[str, Any]) -> Operation:
        params = {**params, self.param: body}
        out_avals = self.out_avals(params, body)
        return make_operation(like.primitive, params, body.in_avals, out_avals, body.effects, like.context)

    def like(
        self, operation: Operation, body: Program, inputs: Sequence[int | None], outputs: Sequence[int | None]
    ) -> Operation:
        return self.called(operation, body, self.params(operation, outputs, body.out_avals))

    def transpose(self, operation: Operation, linear: Mask, nonzero_cts: Mask, logs: bool) -> TransposeRule:
        options = TransposeOptions(ct_avals=operation.out_avals, logs=logs)
        parts = transpose_program(operation.params[self.param], linear, nonzero_cts, options)
        operands = [i for i, is_linear in enumerate(linear) if is_linear]
        cotangents = [operation.in_avals[i] for i in select(parts.nonzeros_out, operands)]
        body, refs = with_refs_as_inputs(parts.backward)
        avals = [*cotangents, *body.out_avals[len(cotangents) :]]  # what a cotangent belongs to says where it is
        like = self.of_derivative(operation)
        called = self.called(like, body, self.params(like, [None] * len(avals), avals))
        template = Template(with_constants_first(called, refs), "cotangent")
        return TransposeRule(template, parts.nonzeros_out, f"transpose of {self.name}", parts.logs)

    def batch(self, operation: Operation, dims: Dims, axis: compat.Axis) -> VmapRule:
        body = vmap_program(operation.params[self.param], dims, axis)
        called = self.called(operation, body.program, operation.params)
        return VmapRule(Template(call_of(called), "primal"), body.dims_out, f"vmap of {self.name}")


class ComputeOn(MarkedCall):
    """Each result has its own kind of memory; what is saved has the device's."""

    name = "a function that is computed elsewhere"

    def params(self, operation: Operation, outputs: Sequence[int | None], avals: Sequence[Any]) -> dict[str, Any]:
        spaces = operation.params["out_memory_spaces"]
        of_each = [a.memory_space if i is None else spaces[i] for i, a in zip(outputs, avals, strict=True)]
        return {**operation.params, "out_memory_spaces": tuple(of_each)}

    def out_avals(self, params: dict[str, Any], body: Program) -> tuple[Any, ...]:
        spaces = params["out_memory_spaces"]
        return tuple(a.update(memory_space=s) for a, s in zip(body.out_avals, spaces, strict=True))


class XlaMetadataCall(MarkedCall):
    """Its derivative may have other metadata, of which further derivatives have the same."""

    name = "a function with metadata"

    def of_derivative(self, operation: Operation) -> Operation:
        p = operation.params
        metadata = p["xla_metadata"] if p["ad_metadata"] == "same" else p["ad_metadata"]
        return self.called(operation, p[self.param], {**p, "xla_metadata": metadata, "ad_metadata": "same"})


COMPUTE_ON = ComputeOn(compat.compute_on_p)
if compat.xla_metadata_call_p is not None:
    XLA_METADATA_CALL = XlaMetadataCall(compat.xla_metadata_call_p)
