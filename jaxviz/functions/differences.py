"""Derivatives of a function by central differences, each with its error: of the step, and of rounding."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.functions.lost_derivatives import like
from jaxviz.higher_order.rounding import OtherDigits
from jaxviz.ir.emit import as_function
from jaxviz.ir.syntax import Program

SEEDS = (1, 2)
"""Of the runs with other last digits."""
RESOLVED = 0.1
"""A difference says something of the derivative if its error is at most this part of it."""
FINE = 1e-5
"""No other step is tried if the error is at most this part of the derivative, or if a function that is flat changes by
at most so much with rounding."""


@partial(jax.tree_util.register_dataclass, data_fields=("value", "error", "jump", "is_flat"), meta_fields=())
@dataclass(frozen=True, slots=True)
class Slope:
    """A derivative by differences, arrays of one shape.

    Args:
      value: the derivative.
      error: estimated from half the step and from what rounding changes.
      jump: the gap between one-sided differences, if it does not shrink with the step; else 0.
      is_flat: whether the function has one value at all points that were tried.
    """

    value: Any
    error: Any
    jump: Any
    is_flat: Any

    @property
    def is_resolved(self) -> Any:
        return (self.jump == 0) & (self.error <= RESOLVED * np.abs(self.value))

    @property
    def is_fine(self) -> Any:
        limit = FINE * np.where(self.is_flat, 1.0, np.abs(self.value))
        return (self.jump == 0) & (self.error <= limit)

    @property
    def score(self) -> Any:
        """The lower the better: below zero if it is resolved."""
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = np.where(self.value == 0, 0.0, self.error / np.abs(self.value))
        return np.where(self.is_resolved, relative - 1, np.nan_to_num(self.error + self.jump, nan=np.inf))

    def where(self, chosen: Any, other: Slope) -> Slope:
        """The elements of this one that are chosen, and the others of another."""
        merged: Slope = jax.tree.map(partial(np.where, chosen), self, other)
        return merged


def weighted(differences: Sequence[Slope], weights: Sequence[Any]) -> Slope:
    """The derivative of the weighted sum of all results, a number."""
    pairs = list(zip(differences, weights, strict=True))
    total = lambda parts: np.asarray(sum(parts, 0.0))
    value = total(np.vdot(w, d.value) for d, w in pairs)
    error, jump = (total(np.vdot(np.abs(w), getattr(d, name)) for d, w in pairs) for name in ("error", "jump"))
    return Slope(value, error, jump, np.asarray(all(np.all(d.is_flat) for d in differences)))


@dataclass(frozen=True)
class Differences:
    """Differences of a function at a point.

    Args:
      fun: takes arrays, and returns a list of arrays.
      point: the arrays.
      eps: of the coarsest type that it computes in.
      program: of the function; None if there is none, as where its Python looks at values.
      compiled: compiles a function for some arguments.
    """

    fun: Callable[..., Sequence[Any]]
    point: tuple[Any, ...]
    eps: float
    program: Program | None
    compiled: Callable[..., Callable[..., Any]]

    here: list[Any] = field(init=False)
    """The results at the point."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "here", [np.asarray(y, np.float64) for y in self.fun(*self.point)])

    def along(self, i: int, direction: Any) -> list[Slope]:
        """The derivative of each result along a direction of one argument, by the step that suits most functions."""
        x = np.asarray(self.point[i], np.float64)
        size = np.sqrt(np.mean(x**2)) if x.size and x.any() else 1.0
        step = self.eps ** (1 / 3) * np.clip(size, 1e-3, 1.0)
        rounded = 4 * float(jnp.finfo(self.point[i].dtype).eps) * np.max(np.abs(x), initial=0.0)
        return [
            _difference(ys, y, step, self._least(y), rounded)
            for ys, y in zip(self._around(i, direction, step), self.here, strict=True)
        ]

    def along_carefully(self, i: int, direction: Any) -> list[Slope]:
        """The same for functions of any scale: of steps each a tenth of the last, the one of the least error, where
        what rounding changes is measured.

        Of a function that is flat, or lost in its rounding, the longest step for the scale of one has the least error.
        Longer ones, for arguments that are all larger than that, count only if they agree with shorter ones and say
        more than their error.
        """
        x = np.abs(np.asarray(self.point[i], np.float64))
        smallest, smallest_else = (np.min(sizes, initial=np.inf) for sizes in (x, x[x != 0]))
        best: list[Slope] = []
        for h in _shorter(self.eps, smallest_else):
            here = self._measured(i, direction, h)
            best = [d.where(d.score < b.score, b) for d, b in zip(here, best, strict=True)] if best else here
            if all(np.all(b.is_fine) for b in best):
                return best
        agrees: list[Any] = [True] * len(best)
        for h in _longer(self.eps, smallest):
            here = self._measured(i, direction, h)
            agrees = [a & _agree(d, b) for a, d, b in zip(agrees, here, best, strict=True)]
            better = [a & d.is_resolved & (d.score < b.score) for a, d, b in zip(agrees, here, best, strict=True)]
            best = [d.where(use, b) for d, use, b in zip(here, better, best, strict=True)]
        return best

    def _at(self, i: int, x: Any, run: Callable[..., Sequence[Any]], *more: Any) -> list[Any]:
        moved = tuple(like(y, x) if j == i else y for j, y in enumerate(self.point))
        return [np.asarray(y, np.float64) for y in run(*moved, *more)]

    def _around(self, i: int, direction: Any, h: float) -> list[tuple[Any, ...]]:
        """Each result a step up, down, and half a step up, down."""
        x = np.asarray(self.point[i], np.float64)
        runs = [self._at(i, x + t * direction, self.fun) for t in (h, -h, h / 2, -h / 2)]
        return list(zip(*runs, strict=True))

    def _measured(self, i: int, direction: Any, h: float) -> list[Slope]:
        around = self._around(i, direction, h)
        noise = [self._least(y) for y in self.here]
        x = np.asarray(self.point[i], np.float64)
        for (side, sign), seed in itertools.product(enumerate((1, -1)), SEEDS):
            random = np.random.default_rng(seed)
            places = random.uniform(0.5, 1, x.shape) * random.choice([-1, 1], x.shape) * (direction != 0)
            moved = (x + sign * h * direction) * (1 + self.eps * places)
            run, digits = self._with_other_digits(seed)
            others = self._at(i, moved, run, *digits)
            with np.errstate(invalid="ignore"):
                changes = [4 * np.abs(other - ys[side]) for other, ys in zip(others, around, strict=True)]
            noise = [np.fmax(n, change) for n, change in zip(noise, changes, strict=True)]
        return [_difference(ys, y, h, n) for ys, y, n in zip(around, self.here, noise, strict=True)]

    def _with_other_digits(self, seed: int) -> tuple[Callable[..., Sequence[Any]], list[Any]]:
        """The function with other last digits, and what it takes in addition."""
        if self._rounded is None:
            return self.fun, []
        other, run = self._rounded
        return run, other.inputs(seed, 1)

    @cached_property
    def _rounded(self) -> tuple[OtherDigits, Callable[..., Sequence[Any]]] | None:
        if self.program is None:
            return None
        other = OtherDigits(self.program)
        return other, self.compiled(as_function(other.program), *self.point, *other.inputs())

    def _least(self, y: Any) -> Any:
        """What the last place of a result may change at least."""
        return np.full_like(y, 8 * self.eps * np.max(np.abs(y), initial=0.0))


def _difference(around: tuple[Any, ...], y: Any, h: float, noise: Any, rounded: float = 0.0) -> Slope:
    """The derivative from the results around.

    Args:
      around: the results a step up, down, and half a step up, down.
      y: the result itself.
      noise: what rounding changes in a result.
      rounded: what rounding changes in the argument, if that is not part of the noise.
    """
    up, down, near_up, near_down = around
    with np.errstate(invalid="ignore", over="ignore"):
        wide, near = (up - down) / (2 * h), (near_up - near_down) / h
        wide_jump, jump = np.abs(up - 2 * y + down) / h, np.abs(near_up - 2 * y + near_down) / (h / 2)
        stays = (jump > 0.75 * wide_jump) & (jump > 2 * noise / h + 1e-3 * np.abs(near))
        error = 2 * np.abs(near - wide) + noise / h + rounded / h * np.abs(near)
        is_flat = (up == y) & (down == y) & (near_up == y) & (near_down == y)
    return Slope(near, error, np.where(stays, jump, 0.0), is_flat)


def _agree(a: Slope, b: Slope) -> Any:
    with np.errstate(invalid="ignore"):
        return (a.jump == 0) & (np.abs(a.value - b.value) <= a.error + b.error)


def _shorter(eps: float, size: float) -> Iterator[float]:
    """Steps from that for the scale of one down to where a number of some size is not changed by it any more."""
    h = eps ** (1 / 3)
    while h > eps * min(size, 1.0):
        yield h
        h /= 10


def _longer(eps: float, size: float) -> Iterator[float]:
    """Steps longer than that for the scale of one, up to that for a size."""
    h = 10 * eps ** (1 / 3)
    while h <= eps ** (1 / 3) * size:
        yield h
        h *= 10
