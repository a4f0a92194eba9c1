"""Reading a donated array: the error names the call, also for functions of `jax.jit`."""

import gc
import weakref

import jax
import jax.numpy as jnp
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


@pytest.mark.slow
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
