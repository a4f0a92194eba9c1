"""Reading a donated array: the error names the call, also for functions of `jax.jit`."""

import gc
import inspect
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transcripts
from jax._src import api
from jax._src.array import ArrayImpl

import jaxviz
from jaxviz.runtime import donated


@pytest.fixture
def watched():
    jaxviz.watch_donations()
    yield
    jaxviz.watch_donations(False)


def step(params, scale):
    return jax.tree.map(lambda p: p * scale, params)


def said(read):
    with pytest.raises(RuntimeError) as error:
        read()
    return str(error.value)


READS = {
    "add": lambda x: x + 1, "print": str, "numpy": np.asarray, "jit": lambda x: jax.jit(lambda a: a * 2)(x),
    "index": lambda x: x[0], "sum": lambda x: float(x.sum()), "grad": lambda x: jax.grad(lambda a: a.sum())(x),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("calls_before", [0, 2])
def test_the_call_is_named_whether_it_was_compiled_or_not(watched, read, calls_before):
    # Before JAX 0.12 a compiled operation raises XLA's error, so these arrays have a size that is used nowhere else.
    size = 1009 + 2 * list(READS.values()).index(read) + 31 * calls_before
    f = jax.jit(step, donate_argnums=0)
    for _ in range(calls_before):
        f({"w": jnp.ones(size)}, 2.0)
    params = {"w": jnp.ones(size)}
    f(params, 2.0)
    line = inspect.currentframe().f_lineno - 1
    told = said(lambda: read(params["w"]))
    assert told.startswith(
        f"Array has been deleted with shape=float32[{size}]. It was donated to step as params['w'] at "
    )
    assert f"{__file__}:{line}" in told
    assert jaxviz.donated_to(params["w"]) == f"to step as params['w'] at {__file__}:{line}"
    assert jaxviz.donated_to(jnp.ones(3)) is None


@transcripts.of("donated")
def test_transcripts(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


def test_what_was_patched_is_put_back():
    before = ArrayImpl._check_if_deleted, api._post_hook_state.get_global()
    jaxviz.watch_donations()
    patched = ArrayImpl._check_if_deleted
    f = jax.jit(lambda x: x + 1, donate_argnums=0)
    for _ in range(5):
        f(jnp.ones(3))
    assert ArrayImpl._check_if_deleted is patched is not before[0]
    jaxviz.watch_donations(False)
    assert (ArrayImpl._check_if_deleted, api._post_hook_state.get_global()) == before


def test_of_calls_in_quick_succession_the_first_are_noted_and_the_rest_are_probable(watched):
    f = jax.jit(step, donate_argnums=0)
    f({"w": jnp.ones(30), "b": jnp.ones(31)}, 2.0)  # compiled
    kept = []
    for _ in range(5):
        if len(kept) == 2:  # both are recorded, and there is no time left
            donated._watch.credit = -1e9
        kept.append({"w": jnp.ones(30), "b": jnp.ones(31)})
        f(kept[-1], 2.0)
        line = inspect.currentframe().f_lineno - 1
    went = [jaxviz.donated_to(params["w"]) for params in kept]
    sure = f"to step as params['w'] at {__file__}:{line}"
    assert went == [sure, sure, *[f"probably {sure}"] * 3]
    assert "It was donated probably to step as params['b']" in said(lambda: np.asarray(kept[-1]["b"]))
    other = jnp.ones(37)
    other.delete()
    assert jaxviz.donated_to(other) is None


def test_the_check_for_nans_goes_on_beside_it(own_state):
    jax.config.update("jax_debug_nans", True)
    try:
        jaxviz.watch_donations()
        divide = jax.jit(lambda x: x / x)
        divide(jnp.ones(2))
        with pytest.raises(FloatingPointError):
            divide(jnp.zeros(2))
        jaxviz.watch_donations(False)
        with pytest.raises(FloatingPointError):
            divide(jnp.zeros(2))
    finally:
        jax.config.update("jax_debug_nans", False)


@pytest.mark.slow
def test_no_array_is_kept(watched):
    f = jax.jit(lambda x: x + 1, donate_argnums=0)
    kept = jnp.ones(3)
    f(kept)
    for _ in range(300):
        x = jnp.ones(3)
        f(x)
    reference = weakref.ref(x)
    del x
    gc.collect()
    assert reference() is None
    assert len(donated._watch.went.calls) <= 70
    assert jaxviz.donated_to(kept).startswith("to <lambda> as x at ")
