"""The memory of values, and of those that wait until they are needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal as OneOf

from jaxviz.ir.origin import Location
from jaxviz.ir.syntax import Atom, Equation, Var

Kind = OneOf["argument", "constant", "residual", "temporary", "cotangent", "result"]
KINDS: tuple[Kind, ...] = ("argument", "constant", "residual", "temporary", "cotangent", "result")


@dataclass(eq=False, slots=True)
class ModelledBuffer:
    """The memory of one value, and of views of it in other shapes."""

    nbytes: int
    kind: Kind
    born: int
    last: int
    equation: Equation | None = None
    within: tuple[Equation, ...] = ()
    type: str = ""
    name: str = ""
    location: Location | None = None
    residuals: tuple[int, ...] = ()
    var: Atom | None = None
    """The variable that the equation computes."""
    is_free: bool = False
    """Whether it takes no memory: it is computed, or laid out, where it is read."""
    last_forward: int = -1
    """The last step of the forward pass that needs it."""
    stack: ModelledBuffer | None = None
    """What it is one iteration's slice of."""


@dataclass(eq=False, slots=True)
class Late:
    """An equation that waits until its results are needed.

    Args:
      env: the memory of the values of its program, also of its results once they are computed.
      number: how many equations were visited before it, those that wait included.
    """

    equation: Equation
    env: Env
    within: tuple[Equation, ...]
    is_backward: bool
    in_pass: bool
    number: int


class Env(dict[Atom, ModelledBuffer]):
    """The memory of a program's values."""

    def __init__(self, known: Iterable[tuple[Atom, ModelledBuffer]] = ()):
        super().__init__(known)
        self.waiting: dict[Atom, tuple[Late, Var]] = {}
        """For values that wait, the equation that computes each, and its result."""

    def wanted_by(self, e: Equation) -> list[Late]:
        """What an equation waits for."""
        waiting = self.waiting
        return [waiting[a][0] for a in e.invars if a in waiting] if waiting else []
