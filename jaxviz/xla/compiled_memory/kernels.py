"""Values inside XLA's CPU kernels of YNNPACK, which may be allocated although no figure of XLA counts them.

XLA hands a subgraph to the library as a fusion of the kind `__ynn_fusion`. The library allocates for itself what it
does not compute tile by tile: of `sum((x[:, None] - x) ** 2, -1)` nothing, of its gradient whole arrays, and which ones
differs between versions. So these are bytes that may be taken.
"""

from __future__ import annotations

from typing import Any

from jaxviz.analysis.unreported import NOTHING, Unreported
from jaxviz.xla.compiled_memory.module import Instruction, Module

_KIND = b"__ynn_fusion"
_NO_MEMORY = ("parameter", "constant", "broadcast", "bitcast", "reshape", "tuple", "get-tuple-element", "iota")
"""Instructions inside whose values such a kernel does not need to store."""


def unreported(module: Module) -> Unreported:
    """What the kernel of a program with the most such values may allocate besides."""
    kernels = (i for i in module.instructions.values() if i.opcode == "fusion" and _KIND in i.message.backend_config)
    return max((_inside(module, k) for k in kernels), key=lambda found: found.most, default=NOTHING)


def of_compiled(compiled: Any) -> Unreported:
    """The same of what JAX compiled."""
    from jaxviz.xla.compiled_memory.compiled_program import compiled_module  # which imports this one

    return unreported(compiled_module(compiled)) if _KIND.decode() in (compiled.as_text() or "") else NOTHING


def _inside(module: Module, kernel: Instruction) -> Unreported:
    shapes_of = lambda i: (
        [module.shape((i.id, (k,))) for k in range(len(i.shape.tuple_shapes))] or [module.shape((i.id, ()))]
    )
    ends = (kernel, *(module.instructions[n] for n in kernel.operands))
    largest = max((shape.nbytes or 0 for i in ends for shape in shapes_of(i)), default=0)
    _, *inside = module.inside(kernel)
    values = [shape for i in inside if i.opcode not in _NO_MEMORY for shape in shapes_of(i)]
    large = [(shape.nbytes or 0, shape.text) for shape in values if (shape.nbytes or 0) > largest]
    nbytes, text = max(large, default=(0, ""))
    return Unreported(text, nbytes, sum(n for n, _ in large))
