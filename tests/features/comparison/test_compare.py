"""The differences between two versions of a function."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transcripts
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import jaxviz
from jaxviz.features.comparison.alignment import align, common_places

W, X = jnp.ones((3, 3)), jnp.ones((4, 3))
WORDS = st.lists(st.integers(0, 4), max_size=40)


def loss(w, x):
    h = jnp.tanh(x @ w)
    return jnp.sum(h * jnp.cos(h))


@transcripts.of("comparison")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


def longest(left, right):
    """The length of the longest common subsequence, by the table of all prefixes."""
    row = [0] * (len(right) + 1)
    for x in left:
        new = [0]
        for j, y in enumerate(right):
            new.append(row[j] + 1 if x == y else max(row[j + 1], new[j]))
        row = new
    return row[-1]


@pytest.mark.slow
@given(WORDS, WORDS)
def test_a_common_subsequence_is_as_long_as_any(left, right):
    found = list(common_places(left, right))
    assert all(left[i] == right[j] for i, j in found)
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(found))
    assert len(found) == longest(left, right)


def test_a_common_subsequence_of_what_repeats_very_often():
    layer = list("abcadbea")
    left, right = 400 * layer, 400 * [*layer[:4], "new", *layer[4:]]
    found = list(common_places(left, right))
    assert [i for i, _ in found] == list(range(len(left)))
    assert {right[j] for j in set(range(len(right))) - {j for _, j in found}} == {"new"}


def test_numbers_are_those_of_the_listing():
    program = jaxviz.trace(lambda x: lax.cond(x > 0, jnp.sin, lambda x: jax.jit(jnp.cos)(x), x) + 1.0)(1.0)
    assert align(program, program).pairs == tuple((i, i) for i in range(sum(1 for _ in program.walk())))


def test_the_backward_programs_are_compared_though_one_saves_more():
    found = jaxviz.compare(loss, lambda w, x: loss(w, x) * jnp.exp(x[0, 0]), W, X).alignments["backward"]
    # All but the equations at the start, whose cotangent differs.
    assert len(found.removed) <= 2
    assert len(found.pairs) > 5


def scaled(kind, number, fun):
    """A function whose rules and callbacks each trace makes anew."""

    def host(x):
        return jax.pure_callback(lambda x: number * fun(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def f(w, x):
        rule = jax.custom_vjp(jnp.sin)
        rule.defvjp(lambda y: (jnp.sin(y), y), lambda y, ct: (number * ct * fun(y),))
        return jnp.sum(jax.vmap(rule)(w) if kind == "rule" else w * host(x))

    return f


@pytest.mark.parametrize(("kind", "sine", "cosine"), [("rule", jnp.sin, jnp.cos), ("callback", np.sin, np.cos)])
def test_functions_that_each_trace_makes_anew_are_compared_by_what_they_do(kind, sine, cosine):
    f = scaled(kind, 2.0, sine)
    assert jaxviz.compare(f, f, W, W).is_same
    assert jaxviz.compare(f, scaled(kind, 2.0, sine), W, W).is_same
    for other in (scaled(kind, 3.0, sine), scaled(kind, 2.0, cosine)):
        assert not jaxviz.compare(f, other, W, W).is_same


ONES, ZEROS = np.ones(3, np.float32), np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("held", "other"),
    [
        (1.0, 1),
        (0.0, -0.0),
        ((1.0,), (1,)),
        ([2.0], [3.0]),
        (ONES, ZEROS),
        ((ONES, 2), (ZEROS, 2)),
        ({"a": 1}, {"a": 2}),
    ],
)
@pytest.mark.parametrize("by_default", [False, True])
def test_what_a_callback_holds_tells_it_from_another(held, other, by_default):
    def calling(held):
        closes_over = lambda x: np.float32(held is None) + x
        has_default = lambda x, held=held: np.float32(held is None) + x
        callback = has_default if by_default else closes_over
        return lambda x: jnp.sum(x * jax.pure_callback(callback, jax.ShapeDtypeStruct((3,), jnp.float32), jnp.ones(3)))

    assert jaxviz.compare(calling(held), calling(held), W[0, :3]).is_same
    assert not jaxviz.compare(calling(held), calling(other), W[0, :3]).is_same


def test_of_training_steps_the_gradients_are_compared():
    step = lambda w, x: w - jax.grad(loss)(w, x)
    said = jaxviz.compare(step, step, W, X).summary
    assert said == "two versions of the gradient of `loss` in `w`, which `<lambda>` takes, are the same program"


def test_the_other_gradients_of_a_training_step_are_named():
    def step(w, x, decay):
        return w - jax.grad(loss)(w, x), x - jax.grad(lambda x: jnp.sum(decay * x**2))(x)

    notes = jaxviz.compare(step, step, W, X, 0.1).notes
    assert notes[1:] == ("Not compared: the gradient of `<lambda>` in `x`, which `step` takes as well.",)


def test_figures_are_those_of_the_reports():
    found = jaxviz.compare(loss, jax.checkpoint(loss), W, X)
    figures = {f.name: (f.before, f.after) for f in found.figures}
    both = [jaxviz.derive(f, W, X) for f in (loss, jax.checkpoint(loss))]
    saved = tuple(d.residuals.saved.nbytes for d in both)
    assert figures["saved bytes"] == saved
    assert figures["FLOPs"] == tuple(int(jaxviz.cost(d).total.flops) for d in both)
    assert figures["modelled peak"] == tuple(jaxviz.memory(d).peak_nbytes for d in both)
    assert sum(r.change for r in found.residuals) == saved[1] - saved[0]
