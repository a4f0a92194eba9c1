"""Where two runs part: planted faults are found at their value, pass and iteration; equal programs raise no alarm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from divergence_programs import FAULTS, HEALTHY, ON_DEVICES, WS, X, in_checkpoints, model, on_devices
from short_runs import short

import jaxviz
from jaxviz.features.values.divergence import MOST_NOISE
from jaxviz.features.values.summaries import BITS, NORM, SKETCH, columns, finished


@pytest.mark.slow
@pytest.mark.parametrize("other", short(HEALTHY, 3), ids=lambda f: f.__name__)
def test_equal_programs_raise_no_alarm(other):
    found = jaxviz.divergence(model, other, WS, X)
    assert found.parting is None, str(found)
    assert found.n_compared > 5
    assert found.worst < MOST_NOISE / 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "against", short(["op-by-op", "float64", "bfloat16", "no-remat", "unsharded", "perturbed"], ["float64", "no-remat"])
)
def test_the_same_program_otherwise_raises_no_alarm(against):
    found = jaxviz.divergence(in_checkpoints, WS, X, against=against)
    assert found.parting is None, str(found)
    assert found.worst < MOST_NOISE / 3


def decides(ws, x):
    """Rounding may decide a comparison, and which is the largest."""
    h = jnp.tanh(x @ ws[0, 0])
    mask = h > jnp.mean(h)
    best = jnp.argmax(h, -1)
    picked = jnp.take_along_axis(h, best[:, None], -1)
    return jnp.mean(jnp.where(mask, h, 0.5 * h)) + jnp.sum(picked)


@pytest.mark.slow
@pytest.mark.parametrize("against", short(["op-by-op", "float64", "bfloat16", "perturbed"], ["bfloat16"]))
def test_what_rounding_decides_raises_no_alarm(against):
    assert jaxviz.divergence(decides, WS, X, against=against).parting is None


def test_a_decision_is_named_where_it_makes_the_difference():
    def other(ws, x):
        h = jnp.tanh(x @ ws[0, 0])
        mask = h > jnp.mean(h) + 0.2
        best = jnp.argmax(h, -1)
        picked = jnp.take_along_axis(h, best[:, None], -1)
        return jnp.mean(jnp.where(mask, h, 0.5 * h)) + jnp.sum(picked)

    found = jaxviz.divergence(decides, other, WS, X).parting
    assert found.expression in ("h > jnp.mean(h)", "jnp.where(mask, h, 0.5 * h)")


@pytest.mark.slow(sweep=True)
def test_the_same_program_under_flags():
    assert jaxviz.divergence(model, WS, X, flags={"jax_default_matmul_precision": "highest"}).parting is None
    with pytest.raises(ValueError, match="no flag"):
        jaxviz.divergence(model, WS, X, flags={"jax_no_such_flag": True})


@pytest.mark.slow
@pytest.mark.parametrize("name", short(list(FAULTS), ["a factor in iteration 4", "a rule off in iteration 2", "a NaN"]))
def test_a_planted_fault_is_found(name):
    faulty, phase, expression, iteration = FAULTS[name]
    found = jaxviz.divergence(faulty, model, WS, X).parting
    assert (found.phase, found.iterations) == (phase, () if iteration is None else (iteration,))
    assert found.expression == expression


@pytest.mark.slow(sweep=True)
@pytest.mark.parametrize("wrong", ON_DEVICES)
def test_a_fault_over_devices_is_found(wrong):
    assert jaxviz.divergence(on_devices(), on_devices(wrong), WS, X).parting.expression == ON_DEVICES[wrong]


def test_a_record_is_the_same_after_it_was_written(tmp_path):
    record = jaxviz.record(model, WS, X)
    again = jaxviz.RunRecord.load(record.save(tmp_path / "a.jaxviz"))
    assert str(again) == str(record)
    assert jaxviz.divergence(record, tmp_path / "a.jaxviz").worst == 0
    assert jaxviz.divergence(str(tmp_path / "a.jaxviz"), again).parting is None
    (tmp_path / "b").write_text("no record")
    with pytest.raises(ValueError, match="not a record"):
        jaxviz.divergence(tmp_path / "b", again)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "int32", "bool"])
def test_summaries(dtype):
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(np.maximum(2 * rng.normal(size=(37, 21)), 0)).astype(dtype) for _ in range(2))
    one, other = (finished(columns(v), v.size * (1 + jnp.iscomplexobj(v))) for v in (x, y))
    wide = lambda v: np.asarray(v).astype(np.complex64 if jnp.iscomplexobj(v) else np.float32)
    np.testing.assert_allclose(one[NORM], np.linalg.norm(wide(x)), rtol=1e-5)
    apart = np.linalg.norm((one - other)[SKETCH])
    assert 0.5 < apart / np.linalg.norm(wide(x) - wide(y)) < 1.6
    for otherwise in (-x, 2 * x) if dtype not in ("bool", "int32") else ():
        assert not np.array_equal(finished(columns(otherwise), x.size)[BITS], one[BITS])
    shuffled = finished(jax.jit(columns)(jax.random.permutation(jax.random.key(0), x)), x.size)
    assert not np.array_equal(shuffled[SKETCH], one[SKETCH])
