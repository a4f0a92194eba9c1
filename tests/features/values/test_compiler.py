"""What XLA does to a whole program, and not where values leave it, is found, with the option that leaves it out."""

import jax
import jax.numpy as jnp
import pytest
from divergence_programs import WS, X, model
from short_runs import short

import jaxviz

LARGE, OTHER = (jax.random.normal(jax.random.key(i), (64, 64)) for i in range(2))
ROW = jnp.ones(64)


def rounded(x):
    return x.astype(jnp.bfloat16).astype(jnp.float32)


def rest(x):
    """What a value loses in bfloat16; XLA leaves the rounding out in the sum, and nothing is lost."""
    low = rounded(x)
    return jnp.sum((x - low) ** 2)


def two(x):
    return jnp.mean(x), jnp.max(jnp.abs(OTHER * x - rounded(OTHER * x)))


def weighted(row, x):
    """Its gradient is a sum of what is lost."""
    return jnp.sum((row * (x - rounded(x))) ** 2)


PLANTED = {
    "a result": (rest, LARGE, "its result"),
    "a jitted function": (jax.jit(rest), LARGE, "its result"),
    "one of two results": (two, LARGE, "result 2 of 2"),
}


@pytest.mark.parametrize("name", short(list(PLANTED), ["a jitted function"]))
def test_a_difference_that_only_the_whole_program_has_is_found(name):
    fun, x, what = PLANTED[name]
    with jax.disable_jit():
        want = jax.tree.leaves(fun(x))[-1]
    of = lambda options: jax.tree.leaves(jax.jit(fun, compiler_options=options)(x))[-1]
    assert apart(of({}), want) > 0.9
    found = jaxviz.divergence(fun, x, against="op-by-op")
    assert found.parting is None
    assert found.compiled.what == what
    assert found.compiled.relative > 0.9
    assert "though all values that leave the program agree; it vanishes with `jax.jit(…, " in found.summary
    # What it advises, to the letter.
    assert {"xla_allow_excess_precision": False} in found.compiled.options
    for options in found.compiled.options:
        assert apart(of(options), want) < 1e-4


def apart(x, y):
    return float(jnp.linalg.norm(x - y) / jnp.maximum(jnp.linalg.norm(x), jnp.linalg.norm(y)))


def test_a_gradient_that_differs_is_found():
    fun = jax.grad(weighted)
    with jax.disable_jit():
        want = fun(ROW, LARGE)
    assert apart(jax.jit(fun)(ROW, LARGE), want) > 0.9
    found = jaxviz.divergence(fun, ROW, LARGE, against="op-by-op")
    assert found.compiled.what == "its result"
    assert found.compiled.relative > 0.9


def step(ws, x):
    return ws - 0.1 * jax.grad(model)(ws, x)


def mixed(ws, x):
    """Computed in bfloat16, some of whose roundings XLA leaves out."""
    low = jax.tree.map(lambda a: a.astype(jnp.bfloat16), ws)  # each operation is compiled alone
    h = x.astype(jnp.bfloat16)
    for w in low:
        h = jnp.tanh(h @ w[0]) * 1.7 + h * 0.3
    return jnp.mean(h.astype(jnp.float32) ** 2)


@pytest.mark.parametrize(
    "fun", short([model, step, jax.jit(model), mixed], [mixed]), ids=["loss", "step", "jit", "bfloat16"]
)
def test_a_program_that_is_compiled_as_it_is_written_agrees(fun):
    found = jaxviz.divergence(fun, WS, X, against="op-by-op")
    assert (found.parting, found.compiled) == (None, None)
