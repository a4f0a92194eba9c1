"""The differences between two versions of a function."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxviz
from jaxviz.features.comparison.alignment import align
from jaxviz.ir.syntax import Program

W, X = jnp.ones((3, 3)), jnp.ones((4, 3))


def loss(w, x):
    h = jnp.tanh(x @ w)
    return jnp.sum(h * jnp.cos(h))


def names(program: Program, numbers):
    equations = [e for _, e in program.walk()]
    return [equations[i].primitive.name for i in numbers]


def aligned(f, g, *args):
    a, b = (jaxviz.trace(h)(*args) for h in (f, g))
    found = align(a, b)
    return found, names(a, found.removed), names(b, found.added)


def test_a_function_is_the_same_as_itself():
    found = jaxviz.compare(loss, lambda w, x: loss(w, x), W, X)
    assert found.is_same
    assert not found.residuals
    assert all(figure.change == 0 for figure in found.figures)
    assert "the same program" in str(found)


def test_what_is_added_and_what_is_taken_away():
    _, removed, added = aligned(lambda x: jnp.sin(x) + jnp.exp(x), lambda x: jnp.sin(x) + jnp.cos(x) + 1.0, 1.0)
    assert removed == ["exp"]
    assert sorted(added) == ["add", "cos"]


def test_other_operands_of_one_operation_are_a_difference():
    _, removed, added = aligned(lambda x: x - 2.0 * x, lambda x: 2.0 * x - x, 1.0)
    assert removed == added == ["sub"]
    _, removed, added = aligned(lambda x: x * 2.0, lambda x: x * 3.0, 1.0)
    assert removed == added == ["mul"]


def test_what_reads_a_changed_value_is_not_changed_by_that():
    _, removed, added = aligned(lambda x: jnp.tanh(jnp.sin(x)) * 2.0, lambda x: jnp.tanh(jnp.cos(x)) * 2.0, 1.0)
    assert (removed, added) == (["sin"], ["cos"])


def test_results_in_another_order_are_a_difference():
    found, removed, added = aligned(lambda x: (jnp.sin(x), x), lambda x: (x, jnp.sin(x)), 1.0)
    assert not removed
    assert not added
    assert not found.is_equal
    assert found.results == {0: 1, 1: 0}


@pytest.mark.parametrize("wrapped", [jax.jit, jax.checkpoint, lambda f: jax.checkpoint(jax.jit(f))])
def test_a_call_around_it_is_the_only_difference(wrapped):
    _, removed, added = aligned(loss, wrapped(loss), W, X)
    assert removed == []
    assert set(added) <= {"jit", "remat2", "checkpoint"}
    assert added


def test_inside_of_a_loop_its_body_is_compared():
    def looped(body):
        return lambda x: lax.scan(lambda c, _: (body(c), c), x, None, length=5)

    _, removed, added = aligned(looped(lambda c: jnp.sin(c) * 2.0), looped(lambda c: jnp.sin(c) * 2.0 + 1.0), 1.0)
    assert (removed, added) == ([], ["add"])


def test_repeated_blocks_are_matched_in_order():
    def deep(n, f):
        def g(x):
            for i in range(n):
                x = f(jnp.tanh(x @ x) + x) if i == n // 2 else jnp.tanh(x @ x) + x
            return x

        return g

    _, removed, added = aligned(deep(30, lambda x: x), deep(30, jnp.exp), jnp.ones((3, 3)))
    assert (removed, added) == ([], ["exp"])


def test_calls_of_one_function_are_told_apart():
    @jax.jit
    def g(x):
        return jnp.sin(x) * 2.0

    found, removed, added = aligned(lambda x: g(g(x)), lambda x: g(jnp.exp(g(x))), 1.0)
    assert (removed, added) == ([], ["exp"])
    assert len({i for i, _ in found.pairs}) == len(found.pairs)


def test_numbers_are_those_of_the_listing():
    def f(x):
        y = lax.cond(x > 0, jnp.sin, lambda x: jax.jit(jnp.cos)(x), x)
        return y + 1.0

    program = jaxviz.trace(f)(1.0)
    found = align(program, program)
    n = sum(1 for _ in program.walk())
    assert found.pairs == tuple((i, i) for i in range(n))


def test_the_backward_programs_are_compared_though_one_keeps_more():
    def other(w, x):
        return loss(w, x) * jnp.exp(x[0, 0])

    found = jaxviz.compare(loss, other, W, X, argnums=0)
    of_backward = found.alignments["backward"]
    # All but the equations at the start, whose cotangent differs.
    assert len(of_backward.removed) <= 2
    assert len(of_backward.pairs) > 5


def test_figures_are_those_of_the_reports():
    other = jax.checkpoint(loss)
    found = jaxviz.compare(loss, other, W, X)
    figures = {f.name: (f.before, f.after) for f in found.figures}
    both = [jaxviz.derive(f, W, X) for f in (loss, other)]
    assert figures["saved bytes"] == tuple(d.residuals.saved.nbytes for d in both)
    assert figures["FLOPs"] == tuple(int(jaxviz.cost(d).total.flops) for d in both)
    assert figures["modelled peak"] == tuple(jaxviz.memory(d).peak_nbytes for d in both)
    at_stake = sum((r.after - r.before) * r.nbytes for r in found.residuals)
    assert at_stake == both[1].residuals.saved.nbytes - both[0].residuals.saved.nbytes


def test_without_a_reverse_mode_the_equations_are_compared():
    def looped(f):
        return lambda x: lax.while_loop(lambda x: x < 9.0, f, x)

    found = jaxviz.compare(looped(lambda x: x * 2.0), looped(lambda x: x * 3.0), 1.0)
    assert "backward" not in found.alignments
    assert [d.is_added for d in found.differences()] == [False, True]
    assert "mul" in str(found)
    with pytest.raises(KeyError, match="do not both have it"):
        found.differences("backward")


def test_reports():
    found = jaxviz.compare(loss, jax.checkpoint(loss), W, X)
    text = str(found)
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "remat2" in text or "checkpoint" in text
    assert "saved bytes" in text
    data = json.loads(json.dumps(found.to_dict()))
    assert not data["same"]
    assert {f["name"] for f in data["figures"]} >= {"f", "backward", "saved bytes", "FLOPs"}
    assert "<table" in found._repr_html_()
