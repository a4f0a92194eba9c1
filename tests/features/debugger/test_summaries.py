"""Summaries of arrays compared with NumPy; and that nothing else leaves the device. Their texts are transcripts."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxviz.features.debugger.summaries import BINS, fingerprint, is_finite, same_fingerprint, summarize

RANDOM = np.random.RandomState(0)
FLOATS = [jnp.float32, jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.float8_e5m2]
floats = pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)


def samples(dtype, n=1000):
    return RANDOM.standard_normal(n).astype(dtype)


@pytest.mark.slow
@floats
def test_numbers_are_those_of_numpy(dtype):
    x = samples(dtype)
    exact = x.astype(np.float64)
    s = summarize(jnp.asarray(x))
    assert (s.size, s.finite, s.nan, s.pos_inf, s.neg_inf) == (1000, 1000, 0, 0, 0)
    assert (s.min, s.max) == (exact.min(), exact.max())
    assert s.zeros == (exact == 0).sum()
    np.testing.assert_allclose([s.mean, s.std], [exact.mean(), exact.std()], rtol=1e-4, atol=1e-6)
    assert s.first_not_finite is None


def test_the_histogram_is_numpy_s():
    x = np.arange(1000, dtype=np.float32) ** 2
    s = summarize(jnp.asarray(x))
    counts, edges = np.histogram(x, BINS)
    assert s.edges == (edges[0], edges[-1])
    assert sum(s.histogram) == 1000
    assert np.abs(np.array(s.histogram) - counts).max() <= 1  # a value on an edge may be counted on either side


@pytest.mark.slow
@floats
def test_what_is_not_finite_is_counted_and_the_first_is_placed(dtype):
    x = np.ones((4, 5), dtype)
    x[2, 3] = x[3, 0] = np.nan
    has_inf = ml_dtypes.finfo(dtype).dtype != jnp.float8_e4m3fn
    if has_inf:
        x[2, 4], x[3, 1], x[3, 2] = np.inf, -np.inf, -np.inf
    s = summarize(jnp.asarray(x))
    assert (s.nan, s.pos_inf, s.neg_inf) == ((2, 1, 2) if has_inf else (2, 0, 0))
    assert s.finite == 20 - s.nan - s.pos_inf - s.neg_inf
    assert s.first_not_finite == (2, 3)
    assert (s.min, s.max, s.mean, s.std) == (1.0, 1.0, 1.0, 0.0)
    assert not is_finite(jnp.asarray(x))
    assert f"{s.nan} NaN" in str(s)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_an_array_laid_out_over_devices_is_one_array(kind):
    mesh = jax.make_mesh((8,), ("i",), axis_types=(kind,))
    x = samples(np.float32, 64)
    laid_out = jax.device_put(jnp.asarray(x), NamedSharding(mesh, PartitionSpec("i")))
    one, many = summarize(jnp.asarray(x)), summarize(laid_out)
    assert (one.min, one.max, one.zeros, one.histogram) == (many.min, many.max, many.zeros, many.histogram)
    assert same_fingerprint(fingerprint(jnp.asarray(x)), fingerprint(laid_out))


SETTINGS = {
    "explicit mesh": lambda: jax.set_mesh(LINE),
    "strict types": lambda: jax.numpy_dtype_promotion("strict"),
    "strict ranks": lambda: jax.numpy_rank_promotion("raise"),
    "checks for NaNs": lambda: jax.debug_nans(True),
    "no jit": jax.disable_jit,
}
LINE = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Explicit,))


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.complex64, bool])
def test_they_do_not_depend_on_the_user_s_settings(setting, dtype):
    x = samples(np.float32, 64).astype(dtype)
    x[3] = np.nan if jnp.issubdtype(dtype, jnp.inexact) else 0
    x = jax.device_put(x, NamedSharding(LINE, PartitionSpec("i")))
    made = [summarize(x), is_finite(x), fingerprint(x).tolist()]
    with SETTINGS[setting]():
        assert made == [summarize(x), is_finite(x), fingerprint(x).tolist()]
        assert summarize(2.0).max == 2.0


def test_terms_of_a_sum_on_several_devices_are_added_up():
    w = jnp.arange(8.0)
    sharded = jax.device_put(w, NamedSharding(LINE, PartitionSpec("i")))
    with jax.set_mesh(LINE):
        terms = jnp.einsum("i,i->", sharded, sharded, out_sharding=PartitionSpec(unreduced={"i"}))
        assert summarize(terms).max == float(w @ w)
        assert fingerprint(terms)[1] == float(w @ w)
    assert jax.typeof(terms).sharding.spec.unreduced


def test_the_picture_is_small_and_shows_where_nan_is():
    x = np.arange(1000.0 * 300).reshape(1000, 300).astype(np.float32)
    x[500, 100] = np.nan
    p = summarize(jnp.asarray(x)).picture
    assert p.rows <= 64
    assert p.columns <= 64
    shades = np.frombuffer(p.shades, np.uint8).reshape(p.rows, p.columns)
    assert (shades == 255).sum() == 1
    seen = np.where(shades == 255, 0, shades)
    assert shades[0, 0] == 0
    assert seen.max() == 254
    assert shades[500 // 16, 100 // 5] == 255


def test_only_a_summary_leaves_the_device(monkeypatch):
    got = []
    fetch = jax.device_get
    monkeypatch.setattr(jax, "device_get", lambda x: got.append(fetch(x)) or got[-1])
    x = jnp.ones((512, 512))
    summarize(x)
    assert sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(got)) < 8192 < x.nbytes


# --- fingerprints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [
    lambda x: x, lambda x: x.astype(jnp.bfloat16), lambda x: (x * 100).astype(jnp.int32), lambda x: x > 0,
    lambda x: x + 1j * x[::-1], lambda x: jnp.where(x > 0, x, jnp.nan),
])  # fmt: skip
def test_a_fingerprint_tells_another_array_from_the_same_one(make):
    x, y = (make(jnp.asarray(samples(np.float32))) for _ in range(2))
    assert same_fingerprint(fingerprint(x), fingerprint(make(x) if x.dtype == jnp.float32 else x))
    assert not same_fingerprint(fingerprint(x), fingerprint(y))
    assert not same_fingerprint(fingerprint(x), fingerprint(x[::-1]))


def test_rounding_is_no_difference_and_one_large_element_or_another_key_is():
    x = jnp.asarray(samples(np.float32))
    assert same_fingerprint(fingerprint(x), fingerprint(x * (1 + 1e-6)))
    assert not same_fingerprint(fingerprint(x), fingerprint(x.at[3].set(30.0)))
    assert not same_fingerprint(*(fingerprint(jax.random.key(i)) for i in range(2)))
