"""Least costs within limits, compared with all choices."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxviz
from jaxviz.features.remat import solver as remat_solver
from jaxviz.features.remat.solver import Problem


def random_problem(seed, n=9):
    """Choices that depend on earlier ones, each of which can be bought instead; the last is required."""
    draw = np.random.default_rng(seed)
    rows = [(i, (int(j), n + i)) for i in range(1, n) for j in draw.choice(i, size=min(i, 2), replace=False)]
    lower, upper = np.zeros(2 * n), np.ones(2 * n)
    lower[n - 1] = 1
    cost, weight = np.zeros(2 * n), np.zeros(2 * n)
    cost[:n], weight[n:] = draw.integers(1, 50, n), draw.integers(1, 20, n)
    return Problem.of(rows, lower, upper), cost, weight


def all_choices(problem):
    for bits in itertools.product((0.0, 1.0), repeat=len(problem.lower)):
        x = np.array(bits)
        if (problem.lower <= x).all() and (x <= problem.upper).all():
            yield x


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("exact", [True, False])
def test_the_least_cost_within_a_limit(seed, exact, monkeypatch):
    problem, cost, weight = random_problem(seed, n=7)
    choices = np.array(list(all_choices(problem)))
    possible = choices[(problem.matrix @ choices.T <= 0).all(0)]
    assert cost @ problem.least(cost) == (possible @ cost).min()
    if not exact:
        monkeypatch.setattr(remat_solver, "SMALL", 0)
    lightest = (possible @ weight).min()
    for limit in (lightest, lightest + 10, lightest + 25):
        x = problem.within(cost, weight, limit)
        best = (possible @ cost)[possible @ weight <= limit].min()
        assert (problem.matrix @ x <= 0).all()
        assert weight @ x <= limit
        assert cost @ x <= (1.001 * best if exact else (possible @ cost).max())


@pytest.mark.slow
def test_a_solution_is_reused_only_within_the_same_bounds_and_limit(monkeypatch):
    problem, cost, weight = random_problem(39)  # relaxed, several of these have fractions
    total = float(weight.sum())
    settings = []
    for bought in np.flatnonzero(weight):  # each may be forbidden, also those that the best solution buys
        upper = problem.upper.copy()
        upper[bought] = 0.0
        settings += [(replace(problem, upper=upper), share * total) for share in (0.15, 0.3, 0.5)]
    alone = [replace(p, solutions={}).within(cost, weight, limit) for p, limit in settings]
    for _ in range(2):
        together = [p.within(cost, weight, limit) for p, limit in settings]
        np.testing.assert_array_equal(together, alone)
        assert {"relaxed", "integral"} == {kind for kind, _ in problem.solutions}
        # The second time, nothing is solved.
        monkeypatch.setattr(Problem, "_solve_relaxed", None)
        monkeypatch.setattr(Problem, "_solve_integral", None)


def test_only_so_many_solutions_are_kept(monkeypatch):
    monkeypatch.setattr(remat_solver, "_REMEMBERED", 3)
    problem, cost, _ = random_problem(0)
    for k in range(1, 8):
        problem.least(cost * k)
        assert len(problem.solutions) <= 3


def test_choices_that_there_are_none_of():
    problem = Problem.of([(0, (1,))], np.array([1.0, 0.0]), np.array([1.0, 0.0]))
    with pytest.raises(ValueError, match="no choice of saved values meets the limit"):
        problem.least(np.ones(2))


def test_a_function_with_nothing_to_choose_has_a_plan():
    plan = jaxviz.plan_remat(jax.jit(lambda y: (y, y)), jnp.ones(3))
    assert plan.after is plan.before
