"""`jaxviz.jit`: the compile cache, donation, and the report of devices and layouts."""

import gc
import subprocess
import sys
import weakref

import jax
import jax.numpy as jnp
import pytest
import transcripts
from device_programs import CASES
from laws import assert_same

import jaxviz
from jaxviz.analysis.donation import donations_of

X = jnp.linspace(0.1, 1.0, 3)
M = jnp.linspace(0.1, 1.2, 12).reshape(4, 3)


@pytest.fixture(autouse=True)
def _empty_cache(little_to_collect):
    jaxviz.clear_caches()
    gc.collect()


def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w))


@pytest.mark.slow(sweep=True)
def test_nothing_is_said_when_python_ends():
    program = "import jaxviz\nf = jaxviz.jit(lambda x: 2 * x)\nf(1.0)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "Exception ignored" not in ended.stderr


# --- the cache --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_functions_made_in_a_loop_are_not_confused():
    """Each is dropped before the next is created, which may then have the same id."""
    for k in range(20):
        f = lambda x: x * k
        assert_same(jaxviz.jit(f)(X), jax.jit(f)(X))
        g = lambda x: jnp.sum(jnp.sin(x) * k)
        assert_same(jaxviz.jit(jaxviz.grad(g))(X), jax.jit(jax.grad(g))(X))
        del f, g
    assert jaxviz.cache_info().misses == 40


def test_what_is_compiled_of_a_function_goes_with_it():
    def f(x):
        return jnp.sin(x) * table

    table = jnp.arange(3.0)
    gone = weakref.ref(f)
    jitted = jaxviz.jit(jaxviz.grad(lambda x: jnp.sum(x)))
    assert_same(jaxviz.jit(f)(X), f(X))
    jaxviz.jit(jaxviz.vmap(f))(X)
    jitted(X)
    assert jaxviz.cache_info().functions == 2
    del f
    gc.collect()
    assert gone() is None
    info = jaxviz.cache_info()
    assert (info.functions, info.misses) == (1, 3)
    assert [p.transforms for p in info.programs] == [("grad",)]


# --- donation ---------------------------------------------------------------------------------------------------------


def test_a_result_of_another_type_may_take_the_memory():
    """JAX offers it to XLA, which uses it on the CPU if the sizes are equal."""
    for fun, arg in ((lambda x: x.astype(jnp.int32), X), (lambda x: x.reshape(3, 4), M)):
        jitted, x = jaxviz.jit(fun, donate_argnums=0), arg + 0.0
        (said,) = jitted.report(x).donations
        pointer = x.unsafe_buffer_pointer()
        assert (said.result == 0) is (jitted(x).unsafe_buffer_pointer() == pointer)
        inside = jaxviz.trace(lambda x: jax.jit(fun, donate_argnums=0)(x))(arg)
        (planned,) = donations_of(inside.equations[0].operation)
        assert planned.reason.endswith("has the same number of elements, but XLA may reuse its memory for it")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_the_report_is_what_xla_did():
    """Every pair of donated arguments and results, compared with what happens to the arrays."""
    kinds = [jnp.ones(3), jnp.ones((4, 3)), jnp.ones(3, jnp.int32), jnp.ones(())]
    for i, x in enumerate(kinds):
        for j, y in enumerate(kinds):
            f = jaxviz.jit(lambda x, y: (y + 1, x * 2, x.sum()), donate_argnums=(0, 1))
            given = x + 0, y + 0
            donations = f.report(*given).donations
            pointers = [a.unsafe_buffer_pointer() for a in given]
            results = f(*given)
            for d in donations:
                assert d.result is not None, (i, j)
                assert results[d.result].unsafe_buffer_pointer() == pointers[d.argument], (i, j)


# --- residuals on devices ---------------------------------------------------------------------------------------------


def check_parts(cases):
    """Compares what is reported without compiling with XLA; returns the number of values for which it is reported.

    Only of values that are read: XLA drops the others from a gradient, and not from a forward program alone.
    """
    known = 0
    for case in cases:
        said = jaxviz.residuals(case.fun, *case.args)
        if not any(r.nbytes_per_device for r in said):
            continue
        for r, c in zip(said, jaxviz.residuals(case.fun, *case.args, compile=True), strict=True):
            if r.is_read and r.nbytes_per_device is not None:
                known += 1
                assert r.nbytes_per_device == c.nbytes_per_device, (case.name, r.expression)
    return known


@pytest.mark.parametrize("name", ["jitted_in_a_library", "explicit_axes_in_a_jitted_function"])
def test_the_parts_of_what_a_jitted_function_returns_are_known(name):
    """XLA's pass names a function's own values, and not those that its call returns."""
    (case,) = (c for c in CASES if c.name == name)
    with case.where():
        said, compiled = (jaxviz.residuals(case.fun, *case.args, compile=c) for c in (False, True))
    parts, xla = ([(r.nbytes, r.nbytes_per_device) for r in saved if r.is_read] for saved in (said, compiled))
    assert len(parts) > 2
    assert parts == xla


@pytest.mark.slow
def test_the_parts_are_those_of_the_compiled_program():
    assert check_parts(CASES[::8]) > 12


@pytest.mark.slow(sweep=True)
def test_the_parts_of_every_program_are_those_of_the_compiled_one():
    assert check_parts(CASES) > 100


@pytest.mark.slow
@transcripts.of("jit")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)
