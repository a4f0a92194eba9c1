"""Steps, series and reports of a watch; what it receives is tested in tests/features/probes/test_probes.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import jaxviz
from jaxviz.features.probes import series


@jax.jit
def train_step(w, x):
    def loss(w):
        h = jaxviz.probe(jnp.tanh(x * w), "h")
        return jaxviz.probe(jnp.sum(h**2), "loss")

    value, g = jax.value_and_grad(loss)(w)
    return w - 0.1 * g, value


def trained(n, **options):
    values = []
    with jaxviz.watch(**options) as w:
        p = jnp.ones(3)
        for x in w.steps(jnp.arange(1.0, n + 1)):
            p, value = train_step(p, x)
            values.append(float(value))
    return w, values


def test_steps_are_those_that_are_marked():
    w, values = trained(5)
    assert w["loss"].steps.tolist() == w["h"].steps.tolist() == w["h"].cotangents.steps.tolist() == list(range(5))
    np.testing.assert_allclose(w["loss"].mean, values, rtol=1e-6)
    assert w["loss"].positions.tolist() == [0] * 5


def test_every_nth_step_and_nothing_in_between():
    w, values = trained(7, every=3)
    assert w["loss"].steps.tolist() == [0, 3, 6]
    np.testing.assert_allclose(w["loss"].mean, values[::3], rtol=1e-6)
    assert w.cost.reports == 3 * 4  # so the other steps did not report at all


def test_steps_may_have_numbers_of_ones_own():
    with jaxviz.watch("h", every=10) as w:
        for i in (20, 25, 40):
            assert w.step(i) == i
            train_step(jnp.ones(3), 1.0)
    assert w["h"].steps.tolist() == [20, 40]


def test_without_steps_records_are_counted():
    with jaxviz.watch("h", every=2) as w:
        for _ in range(5):
            train_step(jnp.ones(3), 1.0)
    assert w["h"].steps.tolist() == [0, 2, 4]
    assert w["h"].count == 5


def test_iterations_of_a_scan_have_positions():
    fun = jax.jit(lambda x: jax.lax.scan(lambda c, _: (jaxviz.probe(c * 2, "c"), None), x, None, length=3)[0])
    with jaxviz.watch("c") as w:
        for _ in w.steps(range(2)):
            fun(1.0)
    assert w["c"].steps.tolist() == [0, 0, 0, 1, 1, 1]
    assert w["c"].positions.tolist() == [0, 1, 2, 0, 1, 2]
    assert w["c"].mean.tolist() == [2.0, 4.0, 8.0] * 2
    assert w["c"].line()[0].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1, 4 / 3, 5 / 3])


def test_memory_is_bounded_and_whole_steps_are_kept():
    w, values = trained(50, keep=8)
    series = w["loss"]
    assert series.count == 50
    assert len(series) <= 8
    assert series.steps.tolist() == [0, 8, 16, 24, 32, 40, 48]
    np.testing.assert_allclose(series.mean, values[::8], rtol=1e-6)
    assert series.last.step == 49


def test_a_long_loop_in_one_step_is_thinned_too():
    fun = jax.jit(lambda x: jax.lax.scan(lambda c, _: (jaxviz.probe(c + 1, "c"), None), x, None, length=100)[0])
    with jaxviz.watch("c", keep=10) as w:
        fun(0.0)
        fun(0.0)
    assert len(w["c"]) <= 10
    assert w["c"].count == 200
    with jaxviz.watch("c", keep=10) as marked:
        marked.step()
        fun(0.0)
    assert marked["c"].positions.tolist() == [0, 16, 32, 48, 64, 80, 96]


def test_whole_values_are_bounded_by_bytes(monkeypatch):
    monkeypatch.setattr(series, "MOST_BYTES", 100)
    w, _ = trained(40, what="value")
    assert sum(r.values.nbytes for r in w["h"].records) <= 100
    assert w["h"].values.shape[1:] == (3,)


def test_values_must_be_asked_for():
    w, _ = trained(2)
    with pytest.raises(AttributeError, match="what='value'"):
        _ = w["h"].values
    with pytest.raises(AttributeError, match="already a series of cotangents"):
        _ = w["h"].cotangents.cotangents


def test_cotangents_may_be_left_out():
    w, _ = trained(2, cotangents=False)
    assert w["h"].cotangents.count == 0
    assert w["h"].cotangents.norm.shape == (0,)


def test_the_report():
    w, values = trained(3)
    lines = str(w).splitlines()
    (loss,) = (line.split() for line in lines if line.startswith("loss") and "value" in line)
    assert loss[:4] == ["loss", "value", "3", "0–2"]
    assert float(loss[5]) == pytest.approx(values[-1], rel=1e-3)
    assert "12 reports took" in lines[-1]
    assert w._repr_html_().count("<tr") == 5
    assert repr(w["h"]) == "Series('h', value, 3 records)"
    assert "no values recorded for nothing.*" in str(jaxviz.watch("nothing.*"))


def test_what_is_told_of_is_named_in_the_error():
    w, _ = trained(1)
    with pytest.raises(KeyError, match="recorded: h, loss"):
        _ = w["hidden"]


def test_as_arrays():
    w, values = trained(3)
    found = w.to_dict()
    np.testing.assert_allclose(found["series"]["loss"]["value"]["mean"], values, rtol=1e-6)
    assert found["series"]["h"]["cotangent"]["nans"].tolist() == [0, 0, 0]
    assert found["cost"]["reports"] == 12
    assert found["cost"]["nbytes"] == 12 * 8 * 4


def test_time_in_callbacks_is_counted():
    w, _ = trained(3)
    assert 0 < w.cost.seconds < 1


def test_the_figure_has_a_line_for_each_series():
    w, values = trained(3)
    figure = w.plot()
    assert isinstance(figure, Figure)
    drawn = {line.get_label(): line for line in figure.axes[0].lines}
    assert set(drawn) == {"h, norm", "h, norm of its cotangent", "loss, value", "loss, value of its cotangent"}
    np.testing.assert_allclose(drawn["loss, value"].get_ydata(), values, rtol=1e-6)
    axes = Figure().add_subplot()
    assert w.plot(axes, log=True) is axes.figure
    assert axes.get_yscale() == "log"


def test_an_open_watch_is_not_opened_again():
    with jaxviz.watch("h") as w, pytest.raises(RuntimeError, match="already active"), w:
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [({"what": "all"}, "'summary' or 'value'"), ({"every": 0}, "every=0"), ({"keep": 1}, "keep=1")],
)
def test_arguments_that_mean_nothing(options, message):
    with pytest.raises(ValueError, match=message):
        jaxviz.watch("h", **options)
    with pytest.raises(TypeError, match="got int"):
        jaxviz.watch(3)
