"""Python's recursion limit: raised while deeply nested programs are processed, and restored."""

import gc
import os
import sys
import threading

import jax
import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz.ir.collector import collector_paused
from jaxviz.ir.stack import FRAMES, deep_stack, usual_stack


@pytest.fixture(autouse=True)
def limit():
    before = sys.getrecursionlimit()
    assert before < FRAMES
    yield before
    sys.setrecursionlimit(before)


def test_the_limit_is_raised_and_put_back(limit):
    with deep_stack:
        assert sys.getrecursionlimit() == FRAMES
        with deep_stack:
            assert sys.getrecursionlimit() == FRAMES
        assert sys.getrecursionlimit() == FRAMES
    assert sys.getrecursionlimit() == limit


def test_what_runs_programs_has_the_usual_limit(limit):
    with deep_stack:
        with usual_stack, usual_stack:
            assert sys.getrecursionlimit() == limit
        assert sys.getrecursionlimit() == FRAMES
    with usual_stack:
        assert sys.getrecursionlimit() == limit
    assert sys.getrecursionlimit() == limit


def test_it_is_put_back_after_an_error(limit):
    with pytest.raises(ValueError, match="no"), deep_stack:
        raise ValueError("no")
    assert sys.getrecursionlimit() == limit


def test_a_limit_that_is_higher_stays():
    sys.setrecursionlimit(2 * FRAMES)
    with deep_stack:
        assert sys.getrecursionlimit() == 2 * FRAMES
    assert sys.getrecursionlimit() == 2 * FRAMES


def test_a_limit_that_is_set_meanwhile_stays():
    with deep_stack:
        sys.setrecursionlimit(3 * FRAMES)
    assert sys.getrecursionlimit() == 3 * FRAMES


def test_the_last_thread_puts_it_back(limit):
    inside, go_on = threading.Event(), threading.Event()

    def work():
        with deep_stack:
            inside.set()
            go_on.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(10)
    with deep_stack:
        pass
    assert sys.getrecursionlimit() == FRAMES
    go_on.set()
    thread.join()
    assert sys.getrecursionlimit() == limit


@pytest.mark.slow
def test_a_function_that_calls_itself_without_end_is_told_what_to_do(limit):
    def endless(x):
        return jnp.sin(endless(x))

    with pytest.raises(RecursionError, match="maximum recursion depth exceeded") as caught:
        jaxviz.derive(endless, 1.0)
    assert sum("sys.setrecursionlimit" in note for note in caught.value.__notes__) == 1
    assert sys.getrecursionlimit() == limit


def test_where_jax_says_that_a_function_calls_itself_there_is_no_more_to_say():
    @jax.jit
    def endless(x):
        return jnp.sin(endless(x))

    with pytest.raises(RecursionError, match="Recursively calling") as caught:
        jaxviz.derive(endless, 1.0)
    assert not any("sys.setrecursionlimit" in note for note in getattr(caught.value, "__notes__", ()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning", "ignore:This process:DeprecationWarning")
def test_a_forked_process_keeps_neither_the_limit_nor_the_pause_of_another_thread(limit):
    inside, go_on = threading.Event(), threading.Event()

    def work():
        with deep_stack, collector_paused():
            inside.set()
            go_on.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(10)
    child = os.fork()
    if child == 0:
        is_as_before = sys.getrecursionlimit() == limit and gc.isenabled()
        with deep_stack, collector_paused():
            is_as_before &= sys.getrecursionlimit() == FRAMES and not gc.isenabled()
        os._exit(0 if is_as_before and gc.isenabled() and sys.getrecursionlimit() == limit else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sys.getrecursionlimit() == FRAMES
    go_on.set()
    thread.join()
