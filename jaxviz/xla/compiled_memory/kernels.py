"""Values inside XLA's CPU kernels of YNNPACK, which may be allocated although no figure of XLA counts them.

XLA hands a subgraph to the library as a fusion of the kind `__ynn_fusion`. The library allocates for itself what it
does not compute tile by tile: of `sum((x[:, None] - x) ** 2, -1)` nothing, of its gradient whole arrays, and which ones
differs between versions. So these are bytes that may be taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxviz.report.data import Data
from jaxviz.report.tables import format_bytes
from jaxviz.xla.compiled_memory.module import Instruction, Module

_KIND = b"__ynn_fusion"
_NO_MEMORY = ("parameter", "constant", "broadcast", "bitcast", "reshape", "tuple", "get-tuple-element", "iota")
"""Instructions inside whose values such a kernel does not need to store."""
_MUCH = 0.1
"""The share of a program's peak from which the values are worth a note."""


@dataclass(frozen=True, slots=True)
class Unreported(Data):
    """What one kernel may allocate besides.

    Args:
      type: of the largest value that is larger than each operand and result of the kernel; '' if there is none.
      nbytes: its bytes.
      most: the bytes of all such values of the kernel.
    """

    type: str = ""
    nbytes: int = 0
    most: int = 0

    def __str__(self) -> str:
        return f"{self.type}, {format_bytes(self.nbytes)}"

    def notes(self, peak: int) -> tuple[str, ...]:
        """A sentence on it, beside a peak that does not count it; none if it is little."""
        if self.nbytes <= _MUCH * peak:
            return ()
        return (
            f"This does not count what XLA's CPU kernels (ynn_fusion) allocate themselves, which XLA does not report: "
            f"one computes {self}, inside and may store it. With "
            "XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type= in the environment XLA compiles without these kernels, "
            "and reports all.",
        )


NOTHING = Unreported()


def unreported(module: Module) -> Unreported:
    """What the kernel of a program with the most such values may allocate besides."""
    kernels = (i for i in module.instructions.values() if i.opcode == "fusion" and _KIND in i.message.backend_config)
    return max((_inside(module, k) for k in kernels), key=lambda found: found.most, default=NOTHING)


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
