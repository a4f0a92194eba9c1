"""Runs of repeated equations: folded if the wiring repeats as well, and only then."""

import jax
import jax.numpy as jnp
import pytest

import jaxviz
from benchmarks.models import transformer
from jaxviz.analysis.repeats import Alike
from jaxviz.features.draw.folds import find_folds


def folds(f, *args):
    """The start, length and count of each run."""
    return [(r.start, r.length, r.count) for r in find_folds(jaxviz.trace(f)(*args).equations, Alike())]


def step(x, i):
    return jnp.sin(jnp.cos(x) * i) + x


@pytest.mark.parametrize("n", [4, 5, 12])
def test_a_loop_is_folded_whatever_the_numbers_in_it(n):
    def f(x):
        for i in range(n):
            x = step(x, float(i))
        return x

    assert folds(f, jnp.ones(3)) == [(0, 4, n)]


def on_other_lines(x):
    x = jnp.sin(jnp.cos(x) * 2.0) + x
    x = jnp.sin(jnp.cos(x) * 2.0) + x
    x = jnp.sin(jnp.cos(x) * 2.0) + x
    return jnp.sin(jnp.cos(x) * 2.0) + x


def between_others(x):
    x = jnp.exp(x)
    for i in range(6):
        x = step(x, i)
    return jnp.exp(x).sum()


def of_two_types(x):
    for _ in range(5):
        x = step(x, 1.0)
    x = jnp.concatenate([x, x])
    for _ in range(5):
        x = step(x, 1.0)
    return x


def calls(x, other):
    for i in range(6):
        x = jax.jit(lambda y: jnp.sin(jnp.exp(y)) * 2.0 if i != 3 or not other else jnp.cos(jnp.exp(y)) * 2.0)(x)
    return x


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (on_other_lines, []),
        (between_others, [(1, 4, 6)]),
        (lambda x: step(step(x, 1), 2), []),  # a few equations are not worth a fold
        (of_two_types, [(0, 4, 5), (21, 4, 5)]),
        (lambda x: calls(x, False), [(0, 1, 6)]),
        (lambda x: calls(x, True), []),
    ],
)
def test_what_one_expression_does_in_a_row_is_folded_and_nothing_else(f, expected):
    assert folds(f, jnp.ones(3)) == expected


def test_the_same_primitives_wired_otherwise_are_no_repetition():
    def f(x, y):
        for i in range(8):
            x = jnp.sin(jnp.cos(x) * 2.0) + (x if i % 2 else y)
        return x

    # In groups of two repetitions the wiring repeats, though not in single ones.
    assert folds(f, jnp.ones(3), jnp.ones(3)) in ([(0, 8, 4)], [(4, 8, 3)])


def test_what_reads_further_back_than_the_repetition_before_is_not_folded():
    def f(x):
        xs = [x, x, x]
        for _ in range(8):
            xs.append(jnp.sin(jnp.cos(xs[-1]) * 2.0) + xs[-3])
        return xs[-1]

    for _, length, _ in folds(f, jnp.ones(3)):
        assert length >= 8  # two or more steps per repetition, which reads the previous one


def test_all_layers_of_a_transformer_are_found_in_each_stage():
    f, args = transformer(6)
    derivation = jaxviz.derive(f, *args)
    for stage in ("primal", "forward", "backward"):
        found = find_folds(getattr(derivation, stage).equations, Alike())
        assert [fold.count for fold in found] == [6]
