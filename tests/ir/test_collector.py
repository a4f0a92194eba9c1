"""The garbage collector is paused while programs are traced and derived, and restored afterwards."""

import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz.features.explorer.whatif import Switches
from jaxviz.features.memory.model import Model
from jaxviz.features.residuals.residual_set import ResidualSet
from jaxviz.ir.collector import collector_paused


@pytest.fixture(autouse=True)
def enabled():
    assert gc.isenabled()
    yield
    gc.enable()


class Node:
    """Garbage that only the collector can free."""

    def __init__(self):
        self.me = self


def deep(x):
    for _ in range(300):
        x = jnp.sin(x) * 2.0
    return x


def collections_in(work):
    begun = []
    note = lambda phase, info: begun.append(info) if phase == "start" else None
    gc.callbacks.append(note)
    try:
        work()
    finally:
        gc.callbacks.remove(note)
    return len(begun)


@pytest.mark.slow
def test_the_last_of_nested_pauses_ends_it():
    with collector_paused():
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    with collector_paused():
        assert not gc.isenabled()
    assert not gc.isenabled()
    gc.enable()
    with collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_it_is_resumed_after_an_error(error):
    @collector_paused()
    def fails(depth):
        assert not gc.isenabled()
        if depth:
            fails(depth - 1)
        raise error

    with pytest.raises(error):
        fails(3)
    assert gc.isenabled()


def test_the_last_thread_resumes_it():
    inside, go_on = threading.Event(), threading.Event()

    def work():
        with collector_paused():
            inside.set()
            go_on.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(10)
    with collector_paused():
        pass
    assert not gc.isenabled()
    go_on.set()
    thread.join()
    assert gc.isenabled()


def test_many_threads_leave_it_as_it_was():
    together = threading.Barrier(8)
    seen = []

    def work():
        together.wait(10)
        for _ in range(200):
            with collector_paused():
                seen.append(gc.isenabled())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(seen) == 1600
    assert not any(seen)
    assert gc.isenabled()


def test_garbage_of_a_pause_goes_soon_after():
    with collector_paused():
        gone = weakref.ref(Node())
        kept = [[] for _ in range(2 * gc.get_threshold()[0])]
        assert gone() is not None
    kept += [[] for _ in range(10)]
    assert gone() is None


def oldest(made):
    return any(o is made for o in gc.get_objects(generation=2))


@pytest.fixture
def nothing_frozen():
    gc.unfreeze()  # pytest's own hooks freeze what tests leave behind
    yield
    gc.unfreeze()


@pytest.mark.slow
def test_many_objects_of_a_pause_become_the_oldest_without_a_scan(nothing_frozen):
    def work():
        with collector_paused():
            kept.extend([] for _ in range(150_000))
        assert oldest(kept[0])

    kept = []
    assert collections_in(work) <= 1
    assert gc.get_freeze_count() == 0
    with collector_paused():
        few = [[] for _ in range(1000)]
    assert not oldest(few[0])


@pytest.mark.slow
def test_what_a_user_has_frozen_stays_frozen(nothing_frozen):
    gc.freeze()
    frozen = gc.get_freeze_count()
    with collector_paused():
        kept = [[] for _ in range(150_000)]
    # Without a collector, frozen objects end with their last reference, also those of other tests.
    assert 0 < gc.get_freeze_count() <= frozen
    assert not oldest(kept[0])


def test_it_is_paused_while_a_program_is_analyzed(monkeypatch):
    seen = []
    analyzed = {Model: "walk", ResidualSet: "__init__", Switches: "trade"}
    for owner, name in analyzed.items():
        work = getattr(owner, name)

        def noted(self, *args, _work=work, _of=owner.__name__, **kwargs):
            seen.append((_of, gc.isenabled()))
            return _work(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, noted)
    derivation = jaxviz.derive(deep, 1.0)
    jaxviz.memory(derivation)
    _ = derivation.residuals
    Switches(derivation).fill(["||"], 0.0)
    assert set(seen) == {("Model", False), ("ResidualSet", False), ("Switches", False)}


def test_it_is_paused_while_a_function_is_traced():
    seen = []

    def f(x):
        seen.append(gc.isenabled())
        return jnp.sin(x)

    jaxviz.trace(f)(1.0)
    jaxviz.grad(f)(1.0)
    jaxviz.vmap(f)(jnp.ones(3))
    assert seen == [False] * 3
    assert gc.isenabled()


def test_it_runs_while_a_function_is_run_on_values():
    seen = []

    def f(x):
        seen.append(gc.isenabled())
        return x if x > 0 else -x

    assert jaxviz.trace(f)(1.0).is_path
    assert seen == [False, True]


def test_a_derivation_is_not_stopped_to_collect():
    program = jaxviz.trace(deep)(1.0)
    _ = jaxviz.derive(program).backward, jaxviz.derive(program).jvp  # the rules are known from here on

    def work():
        d = jaxviz.derive(program)
        return d.jvp, d.backward

    # About one when each of the three programs is finished; without the pause, one per hundred equations.
    assert collections_in(work) <= 6


def test_it_is_resumed_after_a_function_or_a_rule_that_fails():
    def fails(x):
        raise ValueError("no")

    @jax.custom_jvp
    def f(x):
        return x

    @f.defjvp
    def rule(primals, tangents):
        raise ValueError("no rule")

    with pytest.raises(ValueError, match="no"):
        jaxviz.trace(fails)(1.0)
    assert gc.isenabled()
    with pytest.raises(ValueError, match="no rule"):
        _ = jaxviz.derive(f, 1.0).backward
    assert gc.isenabled()
