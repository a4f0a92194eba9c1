"""The numbers written in a program whose last digits are rounded, such as `0.999`: with others, these tell what that
rounding may change."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxviz.higher_order.observing import walk_observed
from jaxviz.ir.syntax import Literal, Program


class RoundedLiterals:
    """The distinct literals of some programs that are probably rounded to their type, which become inputs of these."""

    def __init__(self, programs: Iterable[Program]):
        self._number: dict[Any, int] = {}
        self.literals: list[Literal] = []
        for program in programs:
            for _, nested in walk_observed(program):
                for a in (a for e in nested.equations for a in e.invars if isinstance(a, Literal)):
                    if is_rounded(a) and self._number.setdefault(_key(a), len(self.literals)) == len(self.literals):
                        self.literals.append(a)

    def number(self, literal: Literal) -> int | None:
        """Which of the inputs stands for a literal; None if none does."""
        return self._number.get(_key(literal)) if self._number and is_rounded(literal) else None

    @cached_property
    def values(self) -> list[Any]:
        return [_value(a) for a in self.literals]

    def others(self, seed: int, times: int = 1) -> list[Any]:
        """Each so many last places more or less, at random."""
        is_up = np.random.default_rng(seed).integers(0, 2, len(self.values))
        ends = [
            jnp.finfo(x.dtype).max if up else jnp.finfo(x.dtype).min for x, up in zip(self.values, is_up, strict=True)
        ]
        nexts = [np.nextafter(x, x.dtype.type(end)) for x, end in zip(self.values, ends, strict=True)]
        return [x + x.dtype.type(times) * (y - x) for x, y in zip(self.values, nexts, strict=True)]


def is_rounded(literal: Literal) -> bool:
    """Whether a number fills its type: `0.5`, `1e3` and a mask's infinity are what was written, `0.1` is not."""
    if not jnp.issubdtype(literal.aval.dtype, jnp.floating):
        return False
    info, value = jnp.finfo(literal.aval.dtype), float(_value(literal))
    digits = info.nmant + 1
    if not math.isfinite(value) or abs(value) >= float(info.max):
        return False
    is_whole = value == round(value) and abs(value) <= 2**digits
    return not is_whole and not math.ldexp(math.frexp(value)[0], digits // 2).is_integer()


def _value(literal: Literal) -> Any:
    return np.asarray(literal.val).astype(literal.aval.dtype)[()]


def _key(literal: Literal) -> Any:
    return literal.aval.dtype, float(_value(literal))


NO_LITERALS = RoundedLiterals(())
