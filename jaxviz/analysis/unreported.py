"""What a compiled program may take beside the memory that XLA reports."""

from __future__ import annotations

from dataclasses import dataclass

from jaxviz.report.data import Data
from jaxviz.report.tables import format_bytes

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
