"""Minimizes the cost of dependent yes-or-no choices within a limit, with HiGHS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, TypeVar

import numpy as np

from jaxviz.features.remat.tuning import EXACT, SMALL

R = TypeVar("R")

_SECONDS = 5.0
"""The time limit of the integer solver, for a machine that is busy."""
_REMEMBERED = 200
_TOLERANCE = 1e-7
"""HiGHS's: numbers below this share of the largest one are zero to it, and it would print a warning."""


@dataclass(frozen=True, eq=False, slots=True)
class Relaxation:
    """The solution of a problem without integrality constraints.

    Args:
      x: the choices.
      cost: their cost.
      price: by how much a higher limit would lower it, per unit of weight; 0 without a limit.
    """

    x: np.ndarray
    cost: float
    price: float

    @property
    def is_integral(self) -> bool:
        return bool(np.abs(self.x - np.round(self.x)).max(initial=0.0) < 10 * _TOLERANCE)


@dataclass(frozen=True, eq=False)
class Problem:
    """Choices x of 0 or 1 with `matrix x <= 0` and `lower <= x <= upper`.

    Each row of the matrix is a difference of two choices, or has an additional choice that occurs in no other row. The
    vertices of such a problem are integral, so without a limit no integrality constraints are needed: it is a minimum
    cut.

    Args:
      matrix, lower, upper: as above.
      solutions: the latest solutions, also within other bounds: a search asks three times out of four for one of them.
    """

    matrix: Any
    lower: np.ndarray
    upper: np.ndarray
    solutions: dict[tuple[str, bytes], Any] = field(default_factory=dict)

    @staticmethod
    def of(rows: Sequence[tuple[int, tuple[int, ...]]], lower: np.ndarray, upper: np.ndarray) -> Problem:
        """A problem from rows `(x, others)`, each of which says that x is chosen only if one of the others is."""
        from scipy.sparse import csr_array

        at = np.repeat(np.arange(len(rows)), [1 + len(others) for _, others in rows])
        columns = np.fromiter((c for x, others in rows for c in (x, *others)), np.int64, count=len(at))
        values = -np.ones(len(at))
        values[np.flatnonzero(np.diff(at, prepend=-1))] = 1.0
        return Problem(csr_array((values, (at, columns)), shape=(len(rows), len(lower))), lower, upper)

    def with_twins(self, columns: Sequence[int]) -> Problem:
        """The same with a second, equivalent choice for each of some; these come after all others, in this order."""
        from scipy.sparse import csc_array, hstack

        at = np.asarray(columns, int)
        matrix = hstack([self.matrix, csc_array(self.matrix)[:, at]], format="csr")
        lower, upper = np.append(self.lower, np.zeros(len(at))), np.append(self.upper, self.upper[at])
        return Problem(matrix, lower, upper)

    def settled(self, chosen: np.ndarray, cost: np.ndarray) -> Problem:
        """The same problem, in which choices that are not in `chosen` and have a cost are fixed at 0."""
        return replace(self, upper=np.where((chosen < 0.5) & (cost > 0), 0.0, self.upper))

    def least(self, cost: np.ndarray, second: np.ndarray | None = None) -> np.ndarray:
        """The choices with the least cost.

        Args:
          cost: the cost of each.
          second: a second cost, to be minimized among those with the same cost.

        Raises:
          ValueError: there are none.
        """
        if second is None:
            return np.asarray(np.round(self._relaxed(cost).x))
        chosen = self.least(cost + 1e-6 * second)
        return self.settled(chosen, cost).least(second + 1e-6 * cost)

    def within(self, cost: np.ndarray, weight: np.ndarray, limit: float) -> np.ndarray:
        """The choices with the least cost whose weight stays within a limit; optimal to a tenth of a percent if the
        problem is small.

        Raises:
          ValueError: there are none.
        """
        unit = max(float(weight.max(initial=0.0)), 1e-300)
        reduced = limit / unit
        for _ in range(4):
            x = self._within(cost, weight / unit, reduced)
            excess = weight @ x - limit
            if excess <= 1e-12 * limit:  # the rounding error of the sum
                return x
            reduced -= 2 * excess / unit  # the solver's tolerance
        return self.least(weight)

    def bound(self, cost: np.ndarray, weight: np.ndarray, limit: float) -> float:
        """A lower bound for the cost of choices whose weight stays within a limit, valid for any size of the problem.

        Raises:
          ValueError: there are none.
        """
        some, unit = cost[cost > 0], max(float(weight.max(initial=0.0)), 1e-300)
        price = float(np.median(some)) if len(some) else 1.0  # numbers of about one: well above the solver's tolerance
        cost, weight, limit = cost / price, weight / unit, limit / unit
        relaxed = self._relaxed(cost, weight, limit)
        least = relaxed.cost
        if len(cost) <= SMALL and not relaxed.is_integral:
            least = max(least, self._integral(cost, weight, limit).mip_dual_bound or 0.0)
        return max(least, 0.0) * price

    def _within(self, cost: np.ndarray, weight: np.ndarray, limit: float) -> np.ndarray:
        cheapest = self.least(cost)
        if weight @ cheapest <= limit:
            return cheapest
        relaxed = self._relaxed(cost, weight, limit)
        if relaxed.is_integral:
            return np.asarray(np.round(relaxed.x))
        if len(cost) <= SMALL and (x := self._integral(cost, weight, limit).x) is not None:
            return np.asarray(np.round(x))
        # The relaxed solution mixes two integral ones, of slightly more and slightly less weight, that are optimal at
        # the price of weight here. Where they agree their choice is kept; the rest is solved exactly.
        light = self.least(cost + 1.1 * relaxed.price * weight)
        heavy = self.least(cost + relaxed.price / 1.1 * weight)
        if weight @ light > limit:
            light = self.least(weight)
        agree = light == heavy
        rest = replace(self, lower=np.where(agree, light, self.lower), upper=np.where(agree, light, self.upper))
        x = rest._integral(cost, weight, limit).x
        return np.asarray(light if x is None else np.round(x))

    def _relaxed(self, cost: np.ndarray, weight: np.ndarray | None = None, limit: float = 0.0) -> Relaxation:
        numbers = (cost, self.lower, self.upper) if weight is None else (cost, self.lower, self.upper, weight, limit)
        return self._remembered("relaxed", numbers, lambda: self._solve_relaxed(cost, weight, limit))

    def _solve_relaxed(self, cost: np.ndarray, weight: np.ndarray | None, limit: float) -> Relaxation:
        from scipy.optimize import linprog
        from scipy.sparse import csr_array, vstack

        if not len(cost):  # which SciPy refuses
            return Relaxation(cost, 0.0, 0.0)
        matrix, limits = self.matrix, np.zeros(self.matrix.shape[0])
        if weight is not None:
            matrix, limits = vstack([matrix, csr_array(weight[None])]), np.append(limits, limit)
        bounds = np.stack([self.lower, self.upper], axis=1)
        result = linprog(cost, A_ub=matrix, b_ub=limits, bounds=bounds, method="highs")
        if result.x is None:
            raise ValueError("no choice of saved values meets the limit")
        return Relaxation(result.x, float(result.fun), 0.0 if weight is None else -float(result.ineqlin.marginals[-1]))

    def _integral(self, cost: np.ndarray, weight: np.ndarray, limit: float) -> Any:
        """The solver's result with integrality constraints: `x`, None if none is found in time, and
        `mip_dual_bound`."""
        numbers = (cost, self.lower, self.upper, weight, limit)
        return self._remembered("integral", numbers, lambda: self._solve_integral(cost, weight, limit))

    def _solve_integral(self, cost: np.ndarray, weight: np.ndarray, limit: float) -> Any:
        from scipy.optimize import Bounds, LinearConstraint, milp

        constraints = [
            LinearConstraint(self.matrix, -np.inf, 0.0),
            LinearConstraint(_without_dust(weight)[None], -np.inf, limit),
        ]
        return milp(
            _without_dust(cost),
            integrality=np.ones(len(cost)),
            bounds=Bounds(self.lower, self.upper),
            constraints=constraints,
            options={"time_limit": _SECONDS, "mip_rel_gap": EXACT},
        )

    def _remembered(self, kind: str, numbers: Sequence[np.ndarray | float], solve: Callable[[], R]) -> R:
        """The solution of a problem with some numbers, solved once."""
        key = kind, blake2b(b"".join(np.asarray(n).tobytes() for n in numbers)).digest()
        if key not in self.solutions:
            if len(self.solutions) >= _REMEMBERED:
                self.solutions.clear()
            self.solutions[key] = solve()
        solution: R = self.solutions[key]
        return solution


def _without_dust(numbers: np.ndarray) -> np.ndarray:
    """Numbers without those that a solver cannot distinguish from zero next to the largest."""
    return np.where(np.abs(numbers) < _TOLERANCE * np.abs(numbers).max(initial=0.0), 0.0, numbers)
