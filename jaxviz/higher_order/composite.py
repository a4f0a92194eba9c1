"""`composite`: a function with a name, which a compiler may recognize and replace by a faster version; otherwise its
program runs.

JAX neither differentiates nor maps it: `jax.lax.composite` is used inside a function that has a custom rule. Source:
JAX's `lax.py`.
"""

from __future__ import annotations

from jaxviz.ir import compat
from jaxviz.ir.syntax import Operation
from jaxviz.transforms.primitive import Body, CallPrimitive


class Composite(CallPrimitive):
    """JAX's own rules raise clear errors."""

    def bodies(self, operation: Operation) -> tuple[Body, ...]:
        ((label, program),) = operation.programs  # named `jaxpr`, and since JAX 0.12 `call_jaxpr`
        return (Body(program, range(len(operation.in_avals)), label),)


COMPOSITE = Composite(compat.composite_p)
