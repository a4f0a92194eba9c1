"""How values and cotangents grow: by known factors, and at the line that does it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawings import drawn, is_sound
from jax import lax

import jaxviz

X = jnp.linspace(-1.0, 1.0, 8).reshape(2, 4)
W = 1.5 * jnp.asarray(np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0], jnp.float32)


def recurrent(w, x):
    def cell(h, _):
        z = h @ w
        h = -z
        return h, None

    return jnp.sum(lax.scan(cell, x, None, length=10)[0])


def backwards(w, x):
    def cell(h, _):
        z = h @ w
        return z, None

    return jnp.sum(lax.scan(cell, x, None, length=10, reverse=True)[0])


def layers(w, x):
    h = x
    for _ in range(6):
        z = h @ w
        h = 0.25 * z
    return jnp.sum(h)


@pytest.mark.parametrize(
    ("f", "factor", "by"),
    [(recurrent, 1.5, "h @ w"), (backwards, 1.5, "h @ w"), (layers, 0.375, "0.25 * z")],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_by_which_factor_and_at_which_line(f, factor, by):
    found = jaxviz.growth(f, W, X)
    assert found.steepest.factor == pytest.approx(factor, rel=0.02)
    assert f"`{by}`" in found.summary.rpartition("most by")[2]
    assert len(found.steepest.norms) == (6 if f is layers else 10)


def test_a_cotangent_grows_where_the_value_does_not():
    def f(x):
        def step(h, _):
            return jnp.clip(h, -1, 1) + jnp.sin(40 * h) * 1e-6 + 2 * (h - lax.stop_gradient(h)), None

        return jnp.sum(lax.scan(step, x, None, length=8)[0])

    steepest = jaxviz.growth(f, X).steepest
    assert steepest.phase == "cotangent"
    assert steepest.factor == pytest.approx(3, rel=0.1)


def test_what_leaves_its_type_is_said():
    f = lambda x: jnp.sum(lax.scan(lambda h, _: (h * 1e-9, None), x, None, length=6)[0])
    found = jaxviz.growth(f, X)
    # XLA makes zeros of numbers below the smallest normal one on a CPU, and not elsewhere.
    kinds = {"is below the smallest normal number", "is zero"}
    assert next(e.number for e in found.extremes if e.phase == "forward" and e.kind in kinds) == 4
    square = lambda x: jnp.sum(lax.scan(lambda h, _: (h * h * 1e6, None), x, None, length=6)[0])
    assert ("is not finite", "forward") in [(e.kind, e.phase) for e in jaxviz.growth(square, X).extremes]


def test_nothing_grows():
    assert "nothing grows" in str(
        jaxviz.growth(lambda x: jnp.sum(lax.scan(lambda h, _: (-h, None), x, None, length=4)[0]), X)
    )
    assert jaxviz.growth(jnp.sin, X).steepest is None
    assert jax.tree.leaves(jaxviz.growth(jnp.sin, X).to_dict()["series"]) == []


def test_parameters_side_by_side_are_no_steps():
    def step(ws, x):
        gradient = jax.grad(lambda ws: jnp.sum(jnp.tanh(x @ ws[0] @ ws[1] @ ws[2])))(ws)
        return [w - 0.1 * g for w, g in zip(ws, gradient, strict=True)]

    assert jaxviz.growth(step, [W, W, W], X).series == ()
    with pytest.raises(jaxviz.AddressError, match="takes a gradient itself"):
        jaxviz.capture(step, "jnp.tanh(x @ ws[0] @ ws[1] @ ws[2])")([W, W, W], X)


def test_steps_in_a_jitted_layer_and_types_instead_of_arrays():
    layer = jax.jit(lambda h, w: 0.5 * jnp.sin(h @ w))

    def f(w, x):
        for _ in range(5):
            x = layer(x, w)
        return jnp.sum(x)

    assert jaxviz.growth(f, W / 1.5, X).steepest.factor == pytest.approx(0.5, rel=0.1)
    with pytest.raises(TypeError, match="needs arrays"):
        jaxviz.growth(f, jax.ShapeDtypeStruct((4, 4), "float32"), X)


def test_a_little_in_each_of_many_steps_is_much_in_all():
    f = lambda x: jnp.sum(lax.scan(lambda h, _: (1.05 * h, None), x, None, length=100)[0])
    assert "grows ×1.05 an iteration" in str(jaxviz.growth(f, X))


def test_the_chart_has_the_value_and_its_cotangent_by_the_step_of_the_forward_pass():
    found = jaxviz.growth(recurrent, W, X)
    chart = found._chart()
    value, cotangent = chart.named
    assert (value.name, cotangent.name) == ("value", "cotangent")
    norms = [y for _, y in cotangent.points]
    assert norms == list(found.steepest.norms[::-1])  # the first that is computed is that of the last iteration
    assert norms == sorted(norms, reverse=True)
    assert [x for x, _ in value.points] == list(range(10))
    assert {c.kind for c in chart.curves} == {"forward", "backward"}
    by = found.amplifier
    assert (by.expression, chart.notes[0]) == ("h @ w", f"most at {by.line}, ×1.5: the derivative of h @ w")
    assert value.label.startswith("×1.5 an iteration, test_growth.py:")
    assert chart.text() in str(found)
    assert chart.text() not in found._repr_html_()
    is_sound(drawn(found._repr_html_()))
    assert found.plot().axes[0].get_xlabel() == "iteration"
    assert jaxviz.growth(layers, W, X).plot().axes[0].get_xlabel() == "layer"
    with pytest.raises(ValueError, match="nothing to plot"):
        jaxviz.growth(jnp.sin, X).plot()


def test_the_chart_marks_where_values_leave_their_type_and_ends_there():
    def f(x):
        for _ in range(6):
            x = x * x * 1e6
        return jnp.sum(x)

    for g, step in ((f, "layer"), (jax.jit(f), "layer"), (powers, "iteration")):
        found = jaxviz.growth(g, X)
        extreme = next(e for e in found.extremes if (e.kind, e.phase) == ("is not finite", "forward"))
        assert 0 < extreme.number < extreme.steps == 6
        assert f"is not finite, first in step {extreme.number} of 6" in str(found)
        chart = found._chart()
        assert (extreme.number, "a value is not finite") in chart.marks
        assert chart.x.label == step
        is_sound(drawn(found._repr_html_()))
        norms = {s.expression: s.norms for s in found.series if s.phase == "forward"}[extreme.expression]
        assert np.isfinite(norms[: extreme.number - 1]).all()
        assert np.isinf(norms[extreme.number :]).all()


def powers(x):
    return jnp.sum(jax.lax.scan(lambda x, _: (x * x * 1e6, None), x, None, length=6)[0])


@pytest.mark.parametrize("width", [4, 64])
@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_norms_whose_squares_float32_does_not_hold(factor, width):
    def loss(w, x):
        h, _ = jax.lax.scan(lambda h, _: (factor * (h @ w), None), x, None, length=30)
        return jnp.sum(h)

    found = jaxviz.growth(loss, jnp.eye(width), jnp.ones(width))
    norms = next(s.norms for s in found.series if s.expression == "h @ w" and s.phase == "forward")
    np.testing.assert_allclose(norms, width**0.5 * factor ** np.arange(30.0), rtol=1e-4)
