"""Primitives with nested programs that no transform looks into: JAX's rules are applied to them as a whole."""

from __future__ import annotations

from typing import Any

from jaxviz.ir import compat
from jaxviz.ir.syntax import Operation
from jaxviz.transforms.primitive import Body, Primitive


class Whole(Primitive):
    """A primitive that runs one of its programs.

    Args:
      primitive: JAX's primitive.
      label: the name of that program among those of the operation.
      takes_operands: whether the program takes the operands, and not references that hold them.
    """

    is_opened = False

    def __init__(self, primitive: Any, label: str, takes_operands: bool = True):
        super().__init__(primitive)
        self.label = label
        self.takes_operands = takes_operands

    def runs(self, operation: Operation) -> Body | None:
        program = dict(operation.programs).get(self.label)
        if program is None:
            return None
        return Body(program, range(len(program.invars)) if self.takes_operands else (), self.label)


CUSTOM_VMAP = Whole(compat.custom_vmap_p, "call")
LINEAR_CALL = Whole(compat.linear_call_p, "callee")
RUN_STATE = Whole(compat.run_state_p, "jaxpr", takes_operands=False)
