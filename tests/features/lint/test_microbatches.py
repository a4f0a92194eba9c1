"""Loops that add up gradients in what they carry: what the advice says, followed to the letter, and XLA's memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxviz
from benchmarks import microbatches
from jaxviz.analysis.training_step import subject_of
from jaxviz.features.lint.microbatches import accumulations, in_place

LAYERS, WIDTH, ROWS, N = 8, 64, 4, 3
PARAMS = {
    "layers": jnp.linspace(-1.0, 1.0, LAYERS * WIDTH**2).reshape(LAYERS, WIDTH, WIDTH) / 8,
    "out": jnp.ones(WIDTH),
}
BATCHES = jnp.linspace(0.0, 1.0, N * ROWS * WIDTH).reshape(N, ROWS, WIDTH)


def loss(params, x):
    h = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, params["layers"])[0]
    return jnp.mean((h @ params["out"]) ** 2)


def unrolled(params, x):
    for i in range(LAYERS):
        x = jnp.tanh(x @ params["layers"][i])
    return jnp.mean((x @ params["out"]) ** 2)


def summed(add, taken=lambda g: g, f=loss, wrap=lambda f: f):
    def step(params, batches):
        def one(total, x):
            value, gradient = wrap(jax.value_and_grad(f))(params, x)
            return jax.tree.map(add, total, taken(gradient)), value

        return lax.scan(one, jax.tree.map(jnp.zeros_like, params), batches)

    return step


def followed(seed, loss=loss):
    def step(params, batches):
        total = jax.tree.map(lambda p: jax.new_ref(jnp.zeros_like(p)), params)

        def one(_, x):
            value, pull = jax.vjp(lambda p: loss(p, x), params)
            pull.with_refs(total)(seed(value))
            return None, value

        values = lax.scan(one, None, batches)[1]
        return jax.tree.map(jax.freeze, total), values

    return step


def clipped(gradient):
    return jax.tree.map(lambda g: g / jnp.maximum(1.0, jnp.linalg.norm(g)), gradient)


def in_half(params, batches):
    half = lambda tree: jax.tree.map(lambda a: a.astype(jnp.bfloat16), tree)
    add = lambda total, g: total + g.astype(total.dtype)
    step = lambda total, x: (jax.tree.map(add, total, jax.grad(loss)(half(params), x)), None)
    return lax.scan(step, jax.tree.map(jnp.zeros_like, params), half(batches))[0]


def read_twice(params, batches):
    def one(total, x):
        total = jax.tree.map(jnp.add, total, jax.grad(loss)(params, x))
        return total, total["out"]

    return lax.scan(one, jax.tree.map(jnp.zeros_like, params), batches)


ADD = summed(jnp.add)
MEAN = summed(lambda total, g: total + g / N)
ADVISED = {
    "added": (ADD, jnp.ones_like),
    "in a mean": (MEAN, lambda value: jnp.ones_like(value) / 3.0),
    "in a jitted function": (jax.jit(ADD), jnp.ones_like),
    "of a jitted function": (summed(jnp.add, wrap=jax.jit), jnp.ones_like),
    "added from the left": (summed(lambda total, g: g + total), jnp.ones_like),
}


def advice(step, *args):
    return [a for a in jaxviz.lint(step, *args) if a.rule == "sum-in-carry"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ADVISED)
def test_the_advice_followed_to_the_letter(name):
    step, seed = ADVISED[name]
    (a,) = advice(step, PARAMS, BATCHES)
    assert f"adds up the gradient of `loss` in `params` in what it carries: in each of {N} iterations" in a.text
    assert (" / 3.0)" in a.fix) == (name == "in a mean")
    after = followed(seed)
    assert not advice(after, PARAMS, BATCHES)
    expected, found = jax.jit(step)(PARAMS, BATCHES), jax.jit(after)(PARAMS, BATCHES)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-7), expected, found)
    modelled = [jaxviz.memory(f, PARAMS, BATCHES).peak_nbytes for f in (step, after)]
    assert a.nbytes <= modelled[0] - modelled[1] <= a.nbytes + 2 * PARAMS["out"].nbytes
    assert a.nbytes == pytest.approx(PARAMS["layers"].nbytes * (LAYERS - 1) / LAYERS, rel=0.05)  # all but one layer


def from_start(read):
    return lambda params, x: loss({k: params[k] for k in PARAMS}, x + read(params["positions"]))


@pytest.mark.slow
def test_the_advice_names_a_slice_that_jax_does_not_add_in_place():
    params = {**PARAMS, "positions": jnp.ones((2 * ROWS, WIDTH))}
    of_slice = from_start(lambda w: w[:ROWS])
    (a,) = advice(summed(jnp.add, f=of_slice), params, BATCHES)
    line = of_slice.__closure__[0].cell_contents.__code__.co_firstlineno
    is_added = jax.__version_info__ >= (0, 11)
    assert (f"error at the slice at test_microbatches.py:{line}: use" in a.fix) == (not is_added)
    expected = jax.jit(summed(jnp.add, f=of_slice))(params, BATCHES)
    if is_added:
        found = jax.jit(followed(jnp.ones_like, of_slice))(params, BATCHES)
    else:
        with pytest.raises(TypeError):
            jax.jit(followed(jnp.ones_like, of_slice))(params, BATCHES)
        read = from_start(lambda w: lax.dynamic_slice(w, (0, 0), (ROWS, WIDTH)))
        assert "at the slice" not in advice(summed(jnp.add, f=read), params, BATCHES)[0].fix
        found = jax.jit(followed(jnp.ones_like, read))(params, BATCHES)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-7), expected, found)


@pytest.mark.parametrize("name", ADVISED)
def test_the_step_in_place_is_modelled_as_the_one_that_is_written(name):
    step, seed = ADVISED[name]
    d = subject_of(step, (PARAMS, BATCHES), {}, 0)
    flat, loops = accumulations(d.step)
    modelled = jaxviz.memory(d.taken_by(in_place(flat, loops))).peak_nbytes
    assert modelled == jaxviz.memory(followed(seed), PARAMS, BATCHES).peak_nbytes


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(followed(jnp.ones_like), id="in place already"),
        pytest.param(summed(jnp.add, f=unrolled), id="no loop computes it"),
        pytest.param(summed(jnp.add, clipped), id="clipped before"),
        pytest.param(summed(lambda total, g: 0.9 * total + g), id="a decaying sum"),
        pytest.param(summed(lambda _, g: g), id="not summed"),
        pytest.param(in_half, id="of another type"),
        pytest.param(read_twice, id="read in each iteration"),
        pytest.param(lambda params, batches: jax.grad(loss)(params, batches[0]), id="no loop"),
        pytest.param(lambda params, batches: jax.vmap(jax.grad(loss), (None, 0))(params, batches), id="mapped"),
    ],
)
def test_there_is_none(step):
    assert not advice(step, PARAMS, BATCHES)


@pytest.mark.slow
def test_xlas_temporaries_fall_as_it_says():
    """For large models with few rows; see `benchmarks/microbatches.py`."""
    for name in ("transformer, 32 layers", "RNN"):
        args = microbatches.typed(microbatches.CASES[name]())
        assert microbatches.advised(*args) == pytest.approx(microbatches.fall(*args), rel=0.05)
