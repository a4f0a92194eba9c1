"""Values and cotangents by the names that the programs print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jaxviz.ir.boundary import api_boundary

if TYPE_CHECKING:
    from jaxviz.features.debugger.stepper import Stepper


class Values(Mapping[Any, Any]):
    """Values by the name that the program prints: `s.values["b"]`, or `s.values["b", 7]` for iteration 7 of a loop.

    Args:
      stepper: the stepper.
      stage: the program of the names; by default that of the position.
    """

    def __init__(self, stepper: Stepper, stage: str | None = None):
        self._stepper, self._stage = stepper, stage

    @api_boundary
    def __getitem__(self, key: Any) -> Any:
        name, iterations = _key(key)
        s = self._stepper
        return s._value(self._stage or s.position.stage, name, iterations)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stepper._bound(self._stage or self._stepper.position.stage))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return f"values of {', '.join(self)}"


class Cotangents(Mapping[Any, Any]):
    """Cotangents of values of the forward program: `s.cotangents["b"]`, or `s.cotangents["b",
    7]` for iteration 7 of a loop.

    A cotangent is available once the backward pass has computed it, summed over everything that reads the value. For a
    value that a loop reads unchanged in each iteration, the cotangent in its body is the sum over the iterations so
    far.
    """

    def __init__(self, stepper: Stepper):
        self._stepper = stepper

    @api_boundary
    def __getitem__(self, key: Any) -> Any:
        name, iterations = _key(key)
        return self._stepper._cotangent(name, iterations)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stepper._known_cotangents())

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return f"cotangents of {', '.join(self)}" if len(self) else "no cotangents yet"


def _key(key: Any) -> tuple[str, tuple[int, ...]]:
    name, *iterations = key if isinstance(key, tuple) else (key,)
    return str(name), tuple(int(i) for i in iterations)
