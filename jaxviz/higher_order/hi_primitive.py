"""A primitive of JAX's `hijax`, which may contain anything: JAX's rules, which call its methods, apply to it as a
whole."""

from __future__ import annotations

from jaxviz.ir import compat
from jaxviz.ir.convert import one_equation
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.syntax import Operation
from jaxviz.transforms.dce import DceRule, nothing_left
from jaxviz.transforms.driver import Mask, select
from jaxviz.transforms.primitive import Primitive


class HiPrimitive(Primitive):
    is_opened = False

    def dce(self, operation: Operation, used: Mask) -> DceRule:
        reduced = compat.dce_hi_primitive(one_equation(operation), used)
        if reduced is None:
            return nothing_left(operation)
        read, left, params = reduced
        if all(read) and all(left) and params == operation.params:
            return tuple(read), tuple(left), operation
        smaller = make_operation(
            operation.primitive, params, select(read, operation.in_avals), select(left, operation.out_avals),
            operation.effects, operation.context,
        )  # fmt: skip
        return tuple(read), tuple(left), smaller


HI_PRIMITIVE = HiPrimitive(compat.hi_primitive_p)
