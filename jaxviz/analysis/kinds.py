"""Which equations differ in nothing but their variables."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from jaxviz.derivation import Derivation
from jaxviz.ir.syntax import Equation

Place = tuple[int, ...]
"""The kind of an equation, and those of the equations that contain its program."""


class Kinds:
    """Numbers equations. Those of one number have one operation, equal stacks and scopes, and if they are derived, the
    same rules derived them from equations of one number.

    Repeated layers are of few kinds, so what depends on nothing but these is found out once for each kind.
    """

    def __init__(self) -> None:
        self._of: dict[Equation, int] = {}
        self._numbers: dict[Hashable, int] = {}
        self._of_source: dict[int, int] = {}
        """By the identity of an equation's source: many share one, and hashing a stack takes time."""
        self._sources: dict[Hashable, int] = {}

    def __call__(self, equation: Equation) -> int:
        number = self._of.get(equation)
        return self._add(equation) if number is None else number

    def place(self, equation: Equation, within: Sequence[Equation]) -> Place:
        """The kinds of an equation and of those that contain its program."""
        return (self(equation), *map(self, within)) if within else (self(equation),)

    def all(self, equations: Sequence[Equation]) -> np.ndarray:
        """The kind of each equation."""
        for e in equations:
            if e not in self._of:
                self._add(e)
        return np.fromiter(map(self._of.__getitem__, equations), np.int64, len(equations))

    def _add(self, equation: Equation) -> int:
        origin, source = equation.origin, equation.source
        at = self._of_source.get(id(source))
        if at is None:
            stack = None if source is None else (source.traceback, source.name_stack)
            at = self._of_source[id(source)] = self._sources.setdefault(stack, len(self._sources))
        key: Hashable = equation.operation, at
        if origin is not None:
            before = -1 if origin.equation is None else self(origin.equation)
            key = equation.operation, at, origin.transform, origin.rule, origin.role, before
        number = self._of[equation] = self._numbers.setdefault(key, len(self._numbers))
        return number


_KINDS: WeakKeyDictionary[Derivation, Kinds] = WeakKeyDictionary()


def kinds_of(derivation: Derivation) -> Kinds:
    """The kinds of the equations of a derivation's programs."""
    return _KINDS.setdefault(derivation, Kinds())
