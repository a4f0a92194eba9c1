"""What a gradient saves, in bytes: the figures that every report gives, and their words.

Three things are residuals of JAX but cost nothing, or nothing more: arguments, which are in memory anyway; values that
the backward pass never reads, which a compiled gradient does not keep; and, on several devices, what other devices
hold. Each total is without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from jaxviz.analysis.walk import find_readers
from jaxviz.report.data import Data
from jaxviz.report.tables import counted, format_bytes

if TYPE_CHECKING:
    from jaxviz.derivation import Derivation
    from jaxviz.features.residuals.residual import Residual
    from jaxviz.ir.syntax import Atom


@dataclass(frozen=True, slots=True)
class SavedBytes(Data):
    """What a gradient saves.

    Args:
      nbytes: bytes of the values that it saves, without arguments; on each device if the function runs on several.
      count: how many they are.
      arguments, n_arguments: bytes and number of the arguments that the backward pass reads.
      unread, n_unread: bytes and number of the values that JAX saves, but the backward pass never reads.
      on_all: `nbytes` on all devices together; None if the function runs on one.
    """

    nbytes: int
    count: int
    arguments: int
    n_arguments: int
    unread: int
    n_unread: int
    on_all: int | None = None

    def __str__(self) -> str:
        """`12.1 MiB in 94 values`."""
        return f"{self.size} in {counted(self.count, 'value')}" if self.count else "nothing"

    @property
    def size(self) -> str:
        """`12.1 MiB`, or `12.1 MiB on each device`."""
        return format_bytes(self.nbytes) + ("" if self.on_all is None else " on each device")

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is not among these bytes, a clause each."""
        remarks = []
        if self.n_arguments:
            remarks.append(f"it reads {format_bytes(self.arguments)} of its arguments, which are in memory anyway")
        if self.n_unread:
            remarks.append(f"JAX also saves {format_bytes(self.unread)} that nothing reads and XLA drops")
        return tuple(remarks)


def saved_bytes(residuals: Sequence[Residual]) -> SavedBytes:
    """The figures of some residuals of one gradient."""
    saved = [r for r in residuals if r.is_saved]
    arguments = [r for r in residuals if r.kind == "argument" and r.is_read]
    unread = [r for r in residuals if r.kind == "unread"]
    is_divided = any(r.nbytes_per_device is not None for r in residuals)
    size = lambda residuals_: sum(r.nbytes_on_one for r in residuals_)
    return SavedBytes(
        size(saved), len(saved), size(arguments), len(arguments), size(unread), len(unread),
        sum(r.nbytes for r in saved) if is_divided else None,
    )  # fmt: skip


def saved_values(derivation: Derivation) -> list[Atom]:
    """The residuals of a derivation that `saved_bytes` counts, without what it takes to describe them."""
    arguments = set(derivation.primal.invars)
    pairs = zip(derivation.linearized.residuals, are_read(derivation), strict=True)
    return [a for a, is_read in pairs if a not in arguments and is_read]


_read: WeakKeyDictionary[Derivation, tuple[bool, ...]] = WeakKeyDictionary()


def are_read(derivation: Derivation) -> tuple[bool, ...]:
    """For each residual whether the backward program reads it."""
    flags = _read.get(derivation)
    if flags is None:
        inputs = derivation.backward.invars[: derivation.n_residuals]
        readers = find_readers(derivation.backward, inputs)
        flags = _read[derivation] = tuple([bool(readers[v]) for v in inputs])
    return flags
